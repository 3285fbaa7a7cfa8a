"""Somebody who connects to a port by hand, with greetings of the test's own making."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from stillframe.protocol import wire
from stillframe.protocol.handshake import Challenge, Declined, Hello, Proof, _proof
from stillframe.runtime import control
from stillframe.runtime.network.addresses import LOOPBACK
from tests.runtime.memory import parse


class Stranger:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = wire.FrameReader()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def hear(self) -> wire.Frame | None:
        """Return the next frame; None if the other end has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(4096):
                for frame in parse(self._frames, data):
                    return frame
        return None

    async def knock(self, hello: Hello, secret: bytes) -> str:
        """Go through the handshake without looking at the other end's proof; return its reason to
        say no, or an empty text if it said yes."""
        self.write(wire.encode_greeting(hello))
        answer = await self.hear()
        if isinstance(answer, Challenge):
            proof = Proof(_proof(secret, b"connector", hello, answer.nonce))
            self.write(wire.encode_greeting(proof))
            answer = await self.hear()
        return answer.reason if isinstance(answer, Declined) else ""

    async def say(self, message: control.FromProcess) -> control.ToProcess | None:
        """Speak to the coordinator as a process that was let in; return what it answers, None if
        it hangs up."""
        self._frames.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
        self.write(wire.encode_control(message))
        answer = await self.hear()
        if answer is None:
            return None
        assert isinstance(answer, wire.Control)
        said: control.ToProcess = msgspec.msgpack.Decoder(control.ToProcess).decode(answer.encoded)
        return said


@contextlib.asynccontextmanager
async def stranger(port: int) -> AsyncIterator[Stranger]:
    """Connect to `port`."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        yield Stranger(reader, writer)
    finally:
        writer.transport.abort()


def changed(**fields: object) -> Callable[[Hello], Hello]:
    """Return what replaces fields of a hello."""
    return lambda hello: msgspec.structs.replace(hello, **fields)
