"""Who is there: both ends know the secret, or nothing is let in."""

import pytest

from stillframe.errors import ProtocolViolation, Refused, Unavailable
from stillframe.protocol.handshake import (
    Challenge,
    Connector,
    Declined,
    Hello,
    Listener,
    Proof,
    Welcome,
)

SECRET = b"s" * 32
HELLO = Hello("P1", "P2", 3, "ab" * 32, b"n" * 16)


def listener(**changed: object) -> Listener:
    """Return P2's side, with something changed."""
    expected: dict[str, object] = {
        "secret": SECRET,
        "epoch": 3,
        "topology_hash": "ab" * 32,
        "target": "P2",
        "sources": ("P1", "P3"),
        "nonce": b"m" * 16,
    }
    return Listener(**{**expected, **changed})  # type: ignore[arg-type]


def test_two_that_know_the_secret_come_together() -> None:
    """Hello, challenge, proof, welcome."""
    connector, target = Connector(HELLO, SECRET), listener()
    challenge = target.receive(connector.hello)
    assert isinstance(challenge, Challenge)
    proof = connector.receive(challenge)
    assert isinstance(proof, Proof)
    assert target.receive(proof) == "P1"
    assert connector.receive(Welcome(7)) == Welcome(7)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"target": "P9"}, "this is P9, not P2"),
        ({"target": None}, "this is the coordinator, not P2"),
        ({"sources": ("P3",)}, "no channel from 'P1' to P2; known sources: P3"),
        ({"topology_hash": "cd" * 32}, "the topologies differ: abababababab there, cdcdcdcdcdcd"),
        ({"epoch": 4}, "epoch 3 has ended: this is epoch 4"),
        ({"epoch": 2}, "epoch 3 has not begun: this is epoch 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    changed: dict[str, object], found: str
) -> None:
    """Before any secret is used."""
    with pytest.raises(Refused, match=found) as refused:
        listener(**changed).receive(HELLO)
    connector = Connector(HELLO, SECRET)
    with pytest.raises(Refused, match=found) as learned:
        connector.receive(Declined(str(refused.value)))
    # Who comes too late for its epoch can join the next one.
    assert isinstance(learned.value, Unavailable) is ("has ended" in found)


def test_a_connector_without_the_secret_is_refused() -> None:
    """Its proof is of another secret."""
    target = listener()
    target.receive(HELLO)
    with pytest.raises(Refused, match="wrong secret"):
        target.receive(Proof(b"x" * 32))


def test_a_listener_without_the_secret_is_refused() -> None:
    """It is asked first, so a connector proves nothing to a stranger."""
    connector = Connector(HELLO, SECRET)
    challenge = listener(secret=b"t" * 32).receive(connector.hello)
    assert isinstance(challenge, Challenge)
    with pytest.raises(Refused, match="does not know the secret"):
        connector.receive(challenge)


def test_a_proof_of_one_connection_is_none_for_another() -> None:
    """Nonces and roles are in the proof: neither replay nor reflection helps."""
    connector, target = Connector(HELLO, SECRET), listener()
    challenge = target.receive(connector.hello)
    assert isinstance(challenge, Challenge)
    proof = connector.receive(challenge)
    again = listener(nonce=b"o" * 16)
    again.receive(HELLO)
    assert isinstance(proof, Proof)
    with pytest.raises(Refused):
        again.receive(proof)
    with pytest.raises(Refused):
        target.receive(Proof(challenge.proof))


def test_a_refusal_is_passed_on() -> None:
    """In the words of the other end."""
    with pytest.raises(Refused, match="refused the connection: epoch 3 is over"):
        Connector(HELLO, SECRET).receive(Declined("epoch 3 is over"))


def test_words_out_of_turn_are_violations() -> None:
    """Each greeting has its place."""
    with pytest.raises(ProtocolViolation, match="Welcome arrived out of turn"):
        Connector(HELLO, SECRET).receive(Welcome(0))
    with pytest.raises(ProtocolViolation, match="Proof arrived out of turn"):
        listener().receive(Proof(b""))
    target = listener()
    target.receive(HELLO)
    with pytest.raises(ProtocolViolation, match="Hello arrived out of turn"):
        target.receive(HELLO)
