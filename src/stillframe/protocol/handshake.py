"""The handshake: the first frames on every connection, and the reasons to decline.

    connector                                   listener
    Hello(who, epoch, topology, nonce)   ->
                                         <-     Challenge(nonce, proof)      or  Declined(reason)
    Proof(proof)                         ->
                                         <-     Welcome(received)            or  Declined(reason)

Both ends prove that they know the secret of this run, by HMAC-SHA256 over the whole exchange; the
secret itself never travels. The version precedes the frame's content (``wire``), so that a peer of
any version is recognized. Nonces are arguments: this module uses no randomness.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

from stillframe.errors import ProtocolViolation, Refused, Unavailable
from stillframe.model import ProcessId

NONCE_BYTES = 16


class EpochEnded(Refused, Unavailable):
    """The epoch of the connector has ended: it can join the next one."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Identifies the connector: the source of a channel to `target`, or, when `target` is None, a
    process that reports to the coordinator. To it, `epoch` 0 means the current one."""

    source: ProcessId
    target: ProcessId | None
    epoch: int
    topology_hash: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The listener proves that it knows the secret, and asks the connector to do the same."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """The connector's proof."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The connection is open; `received` is the last frame that came on earlier connections."""

    received: int


class Declined(msgspec.Struct, frozen=True, tag=True):
    """The connection is refused for a reason."""

    reason: str


Greeting = Hello | Challenge | Proof | Welcome | Declined


def _proof(secret: bytes, role: bytes, hello: Hello, nonce: bytes) -> bytes:
    said = msgspec.msgpack.encode((role, hello, nonce))
    return hmac.new(secret, said, hashlib.sha256).digest()


def _ended(epoch: int) -> str:
    return f"epoch {epoch} has ended"


def _shown(text: str) -> str:
    # The text of a stranger is printed on a terminal: it must contain no control characters.
    return ascii(text)[1:-1]


@dataclass(repr=False, eq=False)
class Connector:
    """The side that connects: send ``hello``, then hand each greeting to ``receive``. The nonce
    must be fresh random bytes."""

    hello: Hello
    secret: bytes
    _is_challenged: bool = field(default=False, init=False)

    def receive(self, greeting: Greeting) -> Proof | Welcome:
        """Return the proof to send; or the Welcome, after which the connection is open. Raises
        Refused if the listener said no, or does not know the secret; ProtocolViolation if this
        greeting has no place here."""
        match greeting:
            case Declined(reason):
                readable = "".join(sign if sign.isprintable() else "?" for sign in reason)
                kind = EpochEnded if reason.startswith(_ended(self.hello.epoch)) else Refused
                raise kind(f"the other end refused the connection: {readable}")
            case Challenge(nonce, proof) if not self._is_challenged:
                expected = _proof(self.secret, b"listener", self.hello, nonce)
                if not hmac.compare_digest(expected, proof):
                    raise Refused("the other end does not know the secret of this run")
                self._is_challenged = True
                return Proof(_proof(self.secret, b"connector", self.hello, nonce))
            case Welcome() if self._is_challenged:
                return greeting
        raise ProtocolViolation(f"{type(greeting).__name__} arrived out of turn in the handshake")


@dataclass(kw_only=True, repr=False, eq=False)
class Listener:
    """The side that listens: pass each greeting to ``receive``, and send its result. `target` is
    who we are, None for the coordinator; one of `sources` must name it, the epoch, and the
    topology. `sources` None stands for everyone who has the secret. The nonce must be fresh
    random bytes."""

    secret: bytes
    epoch: int
    topology_hash: str
    target: ProcessId | None
    sources: tuple[ProcessId, ...] | None
    nonce: bytes
    _hello: Hello | None = field(default=None, init=False)

    def receive(self, greeting: Greeting) -> Challenge | ProcessId:
        """Return the challenge to send; or the source's id, after which a Welcome is due. Raises
        Refused with the reason to send as Declined before closing; ProtocolViolation if this
        greeting has no place here."""
        match greeting:
            case Hello() if self._hello is None:
                self._check(greeting)
                self._hello = greeting
                return Challenge(self.nonce, _proof(self.secret, b"listener", greeting, self.nonce))
            case Proof(proof) if self._hello is not None:
                expected = _proof(self.secret, b"connector", self._hello, self.nonce)
                if not hmac.compare_digest(expected, proof):
                    raise Refused("wrong secret: this is not a process of this run")
                return self._hello.source
        raise ProtocolViolation(f"{type(greeting).__name__} arrived out of turn in the handshake")

    def _check(self, hello: Hello) -> None:
        us = self.target or "the coordinator"
        if hello.target != self.target:
            raise Refused(
                f"this is {us}, not {_shown(hello.target or 'the coordinator')}: "
                "the address is out of date"
            )
        if self.sources is not None and hello.source not in self.sources:
            raise Refused(
                f"there is no channel from {hello.source!r} to {us}; known sources: "
                f"{', '.join(self.sources) or 'none'}"
            )
        if hello.topology_hash != self.topology_hash:
            raise Refused(
                f"the topologies differ: {_shown(hello.topology_hash[:12])} there, "
                f"{self.topology_hash[:12]} here; start every process from the same topology"
            )
        # A process on another machine asks the coordinator which epoch it is.
        is_asking = self.target is None and hello.epoch == 0
        if hello.epoch != self.epoch and not is_asking:
            is_over = hello.epoch < self.epoch
            what = _ended(hello.epoch) if is_over else f"epoch {hello.epoch} has not begun"
            raise Refused(f"{what}: this is epoch {self.epoch}")
