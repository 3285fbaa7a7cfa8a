"""Strangers cost a bounded number of connections, and of words."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from stillframe import Topology
from stillframe.errors import Unavailable, UsageError
from stillframe.runtime import control
from stillframe.runtime.network import acceptor as acceptor_module
from stillframe.runtime.network.acceptor import REPORT_COUNT_MAX, Acceptor
from stillframe.runtime.network.addresses import ANY_PORT, LOOPBACK, Address
from stillframe.runtime.network.connection import HANDSHAKE_TIMEOUT_S, Credentials
from stillframe.runtime.process.link import ListeningLink
from stillframe.runtime.process.process_runtime import CoordinatorConnection
from tests.runtime.certificate_dirs import everybody
from tests.runtime.conformance import Caller
from tests.runtime.links import TcpPair, hang_up, until

CAP = 5
ME = Credentials("B", 1, "", b"")


@pytest.mark.parametrize("has_tls", [False, True])
def test_who_says_nothing_makes_room_for_who_comes_next(
    monkeypatch: pytest.MonkeyPatch, *, has_tls: bool
) -> None:
    """However many connect and stay silent, so many at most are kept; the oldest goes, and a
    process that comes is let in."""
    monkeypatch.setattr(acceptor_module, "GREETING_COUNT_MAX", CAP)
    certificates = str(everybody()) if has_tls else None

    async def main() -> None:
        b = Caller()
        pair = TcpPair(Topology.mesh({"A": Caller(limit=3), "B": b}), certificates=certificates)
        await pair.listen()
        acceptor, port = pair._acceptors["B"], pair._addresses["B"].port
        silent = [await asyncio.open_connection(LOOPBACK, port) for _ in range(4 * CAP)]
        await pair.until(lambda: acceptor.refused_count == 3 * CAP)
        assert len(acceptor._greeting) == CAP
        for reader, _ in silent[: 3 * CAP]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert f"closed: {CAP} newer ones have not identified themselves" in pair.troubles[0]
        await pair.cut("B")
        pair.begin("A", "B")
        await pair.until(lambda: b.received_count == 3)
        await pair.close()
        await hang_up()
        assert acceptor._greeting == {}
        for _, writer in silent:
            writer.transport.abort()

    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(limited())


def test_so_many_words_and_no_more_are_said_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a number in some time they are counted; later it is said how many there were."""

    async def main() -> None:
        said: list[str] = []
        acceptor = Acceptor(_nobody, said.append)
        now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        for number in range(REPORT_COUNT_MAX + 7):
            acceptor.refused(f"reason {number}")
        assert said == [f"reason {number}" for number in range(REPORT_COUNT_MAX)]
        now += acceptor_module.REPORT_PERIOD_S
        acceptor.refused("another")
        assert said[REPORT_COUNT_MAX:] == [
            "7 more connections were refused for similar reasons",
            "another",
        ]

    asyncio.run(main())


def test_an_acceptor_opens_only_where_it_may_and_can() -> None:
    """Not to other machines without TLS; not at an address that is not here, or a port that is
    taken: the error says what to look at."""

    async def main() -> None:
        with pytest.raises(UsageError, match="TLS is required"):
            await Acceptor(_nobody, print).open(Address("192.0.2.1", 0), None)
        with pytest.raises(Unavailable, match="an address of this machine, and is the port free"):
            await Acceptor(_nobody, print).open(Address("192.0.2.1", 5), str(everybody()))
        first = Acceptor(_nobody, print)
        address = await first.open(ANY_PORT, None)
        with pytest.raises(Unavailable, match=f"cannot listen on {address}: "):
            await Acceptor(_nobody, print).open(address, None)
        first.close()

    asyncio.run(main())


def test_no_epoch_begins_where_no_process_can_reach_its_coordinator() -> None:
    """As in a network namespace whose loopback interface is down: the error says what to do."""
    code = (
        "import asyncio; from stillframe.runtime.network import acceptor as a, addresses as b\n"
        "asyncio.run(a.require_route(b.Address('127.0.0.1', 8640)))"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True)
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"needs network namespaces: {made.stderr.decode().strip()}")
    apart = subprocess.run(["unshare", "--net", *command], capture_output=True, check=False)
    assert b"Unavailable: no process can reach the coordinator at 127.0.0.1:8640" in apart.stderr
    assert b"let root call 'ip link set lo up'" in apart.stderr


def test_a_connection_that_ends_leaves_nothing_behind() -> None:
    """Who connects and goes is forgotten."""

    async def main() -> None:
        async with asyncio.timeout(30):
            pair = TcpPair(Topology.mesh({"A": Caller(), "B": Caller()}))
            await pair.listen()
            acceptor = pair._acceptors["B"]
            _, writer = await asyncio.open_connection(LOOPBACK, pair._addresses["B"].port)
            await until(lambda: len(acceptor._greeting) == 1)
            writer.transport.abort()
            await until(lambda: not acceptor._greeting)
            await pair.close()
            await hang_up()

    asyncio.run(main())


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_comes_while_the_acceptor_is_closed_is_not_let_in(
    run: Callable[[Coroutine[None, None, None]], None], *, has_tls: bool
) -> None:
    """At whatever step the connection was: its end is told at once."""
    certificates = str(everybody()) if has_tls else None

    async def main() -> None:
        for step_count in range(10):
            acceptor = Acceptor(lambda: CoordinatorConnection(ME, control.JoinRequest), print)
            address = await acceptor.open(ANY_PORT, certificates)
            with socket.create_connection((LOOPBACK, address.port)) as stranger:
                stranger.setblocking(False)
                for _ in range(step_count):
                    await asyncio.sleep(0)
                acceptor.close()
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2):
                    with contextlib.suppress(ConnectionResetError):
                        while await asyncio.get_running_loop().sock_recv(stranger, 100):
                            pass  # it may have been greeted

    run(main())


def _nobody() -> ListeningLink:
    raise AssertionError("nobody connects")
