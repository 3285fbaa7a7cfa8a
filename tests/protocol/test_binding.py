"""What a proof is bound to, every field of the hello and one challenge; and a stranger's words."""

import msgspec
import pytest

from stillframe.errors import ProtocolViolation, Refused
from stillframe.protocol.handshake import Challenge, Connector, Hello, Listener

SECRET = b"s" * 32
HELLO = Hello("P1", "P2", 3, "ab" * 32, b"n" * 16)


def listener_for(hello: Hello) -> Listener:
    """Return a listener that would take `hello`."""
    return Listener(
        secret=SECRET,
        epoch=hello.epoch,
        topology_hash=hello.topology_hash,
        target=hello.target,
        sources=("P1", "P3"),
        nonce=b"m" * 16,
    )


def challenge_for(hello: Hello) -> Challenge:
    """Return the challenge of a listener that would take `hello`."""
    challenge = listener_for(hello).receive(hello)
    assert isinstance(challenge, Challenge)
    return challenge


@pytest.mark.parametrize(
    "changed",
    [
        {"source": "P3"},
        {"target": "P4"},
        {"target": None},
        {"epoch": 4},
        {"topology_hash": "cd" * 32},
        {"nonce": b"o" * 16},
    ],
)
def test_a_hello_that_was_changed_on_its_way_is_found(changed: dict[str, object]) -> None:
    """The listener's proof is for what the connector said, or there is no connection."""
    arrived: Hello = msgspec.structs.replace(HELLO, **changed)
    with pytest.raises(Refused, match="does not know the secret"):
        Connector(HELLO, SECRET).receive(challenge_for(arrived))


def test_a_connector_proves_itself_once() -> None:
    """It does not go on signing challenges for whoever asks."""
    connector, challenge = Connector(HELLO, SECRET), challenge_for(HELLO)
    connector.receive(challenge)
    with pytest.raises(ProtocolViolation, match="Challenge arrived out of turn"):
        connector.receive(challenge)


@pytest.mark.parametrize("field", ["source", "target", "topology_hash"])
def test_a_refusal_shows_what_a_stranger_said_without_its_control_characters(field: str) -> None:
    """Words of somebody who has proved nothing do not act on the terminal that shows them."""
    said: Hello = msgspec.structs.replace(HELLO, **{field: "\x1b[2J\nP"})
    with pytest.raises(Refused) as refused:
        listener_for(HELLO).receive(said)
    assert str(refused.value).isprintable()
    assert r"\x1b[2J\nP" in str(refused.value)
