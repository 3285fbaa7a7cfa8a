"""What a source does when its target behaves oddly on the other end of a connection."""

import asyncio
import secrets

from stillframe import Topology
from stillframe.protocol import wire
from stillframe.protocol.handshake import NONCE_BYTES, Challenge, Hello, Listener, Proof, Welcome
from stillframe.runtime.network.addresses import LOOPBACK, Address
from stillframe.runtime.process.link import keep_connected
from tests.runtime.conformance import Call, Caller
from tests.runtime.links import SECRET, TcpPair, hang_up
from tests.runtime.memory import parse

LARGE_BYTES = 15 * 2**20
"""More than the system takes in for a target that does not read."""


class OddTarget:
    """Plays B by hand: welcomes A, and does nothing more by itself."""

    def __init__(self, pair: TcpPair) -> None:
        self._pair = pair
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Go through the handshake."""
        me = self._pair._me["B"]
        listener = Listener(
            secret=SECRET,
            epoch=me.epoch,
            topology_hash=me.topology_hash,
            target="B",
            sources=("A",),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        while True:
            head = await reader.readexactly(4)
            data = head + await reader.readexactly(int.from_bytes(head, "big"))
            greeting = next(parse(wire.FrameReader(), data))
            assert isinstance(greeting, Hello | Proof)
            reply = listener.receive(greeting)
            if isinstance(reply, str):
                break
            assert isinstance(reply, Challenge)
            writer.write(wire.encode_greeting(reply))
        writer.write(wire.encode_greeting(Welcome(0)))
        self.connections.append((reader, writer))


def test_the_end_of_an_old_connection_does_not_harm_the_new_one() -> None:
    """A connection that was given up and ends when the next is open takes nothing with it."""

    async def main() -> None:
        pair = TcpPair(Topology.mesh({"A": Caller(), "B": Caller()}))
        odd = OddTarget(pair)
        server = await asyncio.start_server(odd.answer, LOOPBACK, 0)
        host = pair.hosts["A"]
        keeping = asyncio.get_running_loop().create_task(
            keep_connected(
                host,
                host.outgoing["B"],
                pair._me["A"],
                address=Address(LOOPBACK, server.sockets[0].getsockname()[1]),
                warn=pair.troubles.append,
                connected=lambda channel: None,
            )
        )
        await pair.until(
            lambda: len(odd.connections) == 1 and host.outgoing["B"].transport is not None
        )
        host.send("B", Call(1, bytes(LARGE_BYTES)))
        host.flush()
        odd.connections[0][1].write(wire.encode_ack(99))
        await pair.until(
            lambda: len(odd.connections) == 2 and host.outgoing["B"].transport is not None
        )
        odd.connections[0][1].transport.abort()
        reader = odd.connections[1][0]
        host.send("B", Call(2, b""))
        host.flush()
        first = await reader.readexactly(4)
        await reader.readexactly(int.from_bytes(first, "big"))
        # The old connection has ended by now: its end came before what was just read.
        host.send("B", Call(3, b""))
        host.flush()
        for _ in (2, 3):
            head = await reader.readexactly(4)
            await reader.readexactly(int.from_bytes(head, "big"))
        assert len(pair.troubles) == 1
        port = server.sockets[0].getsockname()[1]
        assert pair.troubles[0] == (
            f"channel A->B: the connection to {LOOPBACK}:{port} was closed: "
            "frame 99 was acknowledged, but only 1 were sent"
        )
        keeping.cancel()
        server.close()
        await hang_up()

    async def limited() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(limited())
