"""A process's connection to the coordinator."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from stillframe.errors import ProtocolViolation, StillframeError
from stillframe.model import DECODING_ERRORS
from stillframe.protocol import wire
from stillframe.protocol.handshake import Connector, Greeting, Proof, Welcome
from stillframe.runtime import control
from stillframe.runtime.host import describe
from stillframe.runtime.link import Carrier, Connection, Credentials

_decode: Callable[[bytes], control.ToProcess] = msgspec.msgpack.Decoder(control.ToProcess).decode


class CoordinatorLine(Connection):
    """The connection to the coordinator: what it says goes into `heard`, None when it is gone.

    Args:
        me: who this is, and how to prove it.
        first: asked for what to say first of all, when the coordinator has let us in.
    """

    def __init__(self, me: Credentials, first: Callable[[], control.First]) -> None:
        super().__init__()
        self.is_open = False
        self._first = first
        self.heard: asyncio.Queue[control.ToProcess | StillframeError | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        self._connector = Connector(me.hello(None), me.secret)

    def begin(self, carrier: Carrier) -> None:
        """Begin the handshake."""
        super().begin(carrier)
        self.write_greeting(self._connector.hello)

    def take(self, frame: wire.Frame) -> None:
        """Queue what the coordinator says; answer in the handshake."""
        if isinstance(frame, wire.Control):
            self.heard.put_nowait(_decode_control(frame))
            return
        match self._connector.receive(cast(Greeting, frame)):
            case Proof() as proof:
                self.write_greeting(proof)
            case Welcome():
                self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
                self.is_open = True
                self.say(self._first())

    def say(self, message: control.FromProcess) -> None:
        """Tell the coordinator; silently nothing while it is not there, which `heard` tells."""
        if self.is_open and self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Pass on why the connection ends."""
        self.heard.put_nowait(error)

    def crashed(self, error: Exception) -> None:
        """Pass on what we did not expect."""
        self.heard.put_nowait(StillframeError(describe(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that it ended."""
        self.is_open = False
        self.heard.put_nowait(None)
        self.gone.set()
        super().connection_lost(exc)


def _decode_control(frame: wire.Control) -> control.ToProcess:
    try:
        return _decode(frame.encoded)
    except DECODING_ERRORS as error:
        raise ProtocolViolation(f"the coordinator's message cannot be read: {error}") from error
