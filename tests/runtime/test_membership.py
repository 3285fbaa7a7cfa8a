"""Who comes to an epoch that is over is not kept: another one may wait for it already."""

import asyncio
from collections.abc import Callable

import pytest

from stillframe import Topology
from stillframe.errors import Unavailable
from stillframe.runtime import control
from stillframe.runtime.coordinator.membership import (
    RETURN_TURNS,
    CoordinatorConfig,
    EpochStart,
    Membership,
)
from stillframe.runtime.network import acceptor, connection
from stillframe.runtime.network.addresses import ANY_PORT, LOOPBACK
from stillframe.runtime.network.connection import HANDSHAKE_TIMEOUT_S, Connection, Credentials
from stillframe.runtime.process import join, process_runtime
from stillframe.runtime.process.link import connect
from stillframe.runtime.process.process_runtime import CoordinatorConnection, ProcessRuntime
from tests.runtime.conformance import Caller
from tests.runtime.links import SECRET, hang_up, until

DESCRIPTION = Topology.mesh({"A": Caller(), "B": Caller()}).description


def membership_of(*, is_taken_over: bool, departed: list[str] | None = None) -> Membership:
    """Return the membership of an epoch in which nothing happens."""
    gone = [] if departed is None else departed
    return Membership(
        DESCRIPTION,
        CoordinatorConfig(),
        EpochStart(
            emit=lambda event: None,
            departed=lambda process, failure: gone.append(process),
            epoch=1,
            secret=SECRET,
            is_taken_over=is_taken_over,
        ),
        on_message=lambda process, message: None,
        returned=lambda process: None,
    )


def end(membership: Membership) -> None:
    """End the epoch, as the coordinator does."""
    membership.expect_departures()
    membership.hang_up()


@pytest.mark.parametrize(
    "word", [control.JoinRequest, lambda: control.RejoinRequest(is_connected=True)]
)
def test_who_is_let_in_when_the_epoch_ends_is_sent_away(
    word: Callable[[], control.FirstMessage],
) -> None:
    """It comes again, and finds the next epoch: it would wait here for ever, and that for it."""

    async def main() -> None:
        membership = membership_of(is_taken_over=word is not control.JoinRequest)
        address = await membership.listen(ANY_PORT, None)

        def first() -> control.FirstMessage:
            end(membership)
            return word()

        line = CoordinatorConnection(Credentials("A", 1, DESCRIPTION.hash, SECRET), first)
        async with asyncio.timeout(30):
            await connect(line, address, None, None)
            assert await line.received.get() is None
        await hang_up()

    asyncio.run(main())


def test_who_is_at_the_handshake_when_the_epoch_ends_is_sent_away() -> None:
    """It need not say who it is any more."""

    async def main() -> None:
        membership = membership_of(is_taken_over=False)
        address = await membership.listen(ANY_PORT, None)
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2):
            reader, writer = await asyncio.open_connection(LOOPBACK, address.port)
            await until(lambda: bool(membership.acceptor._greeting))
            end(membership)
            assert await reader.read() == b""
            assert not membership.acceptor._greeting
            writer.transport.abort()
        await hang_up()

    asyncio.run(main())


@pytest.mark.parametrize("is_handshake", [True, False])
def test_a_limit_takes_no_time_while_its_program_is_busy(
    monkeypatch: pytest.MonkeyPatch, *, is_handshake: bool
) -> None:
    """That of a handshake, and that of a process that must reconnect. However late the event loop
    comes to its turns, each of them passes."""
    due: list[Callable[[], None]] = []
    delays: list[float] = []

    class Loop:
        def call_later(self, delay_s: float, act: Callable[..., None], *words: object) -> None:
            delays.append(delay_s)
            due.append(lambda: act(*words))

    waiting = CoordinatorConnection(Credentials("A", 1, "", SECRET), control.JoinRequest)
    departed: list[str] = []
    membership = membership_of(is_taken_over=True, departed=departed)
    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    limit_s = HANDSHAKE_TIMEOUT_S if is_handshake else CoordinatorConfig().return_s
    turn_count = connection.HANDSHAKE_TURNS if is_handshake else RETURN_TURNS
    if is_handshake:
        waiting._wait(turn_count)
    else:
        membership._await("A")
    for _ in range(turn_count):
        assert not waiting._is_aborted
        assert not departed
        (turn,) = due
        due.clear()
        turn()
    assert (waiting._is_aborted, departed) == (is_handshake, [] if is_handshake else ["A"])
    assert delays == [limit_s / turn_count] * turn_count


def test_a_process_waits_for_a_coordinator_that_is_busy_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It tries again until the coordinator accepts it. A program that joins a system on another
    machine gets an error instead."""
    monkeypatch.setattr(process_runtime, "RETRY_S_MAX", 0.0)
    monkeypatch.setattr(join, "RETRY_S_MAX", 0.0)
    turned_away: list[Connection] = []

    async def main() -> None:
        membership = membership_of(is_taken_over=False)
        answer = membership.acceptor._answer

        def busy() -> Connection:
            made = answer()
            if len(turned_away) < 3:
                turned_away.append(made)
                made.abort()
            return made

        membership.acceptor._answer = busy
        address = await membership.listen(ANY_PORT, None)

        def place_of(process: str) -> ProcessRuntime:
            me = Credentials(process, 1, DESCRIPTION.hash, SECRET)
            return ProcessRuntime(me, address, ANY_PORT)

        async with asyncio.timeout(30):
            with pytest.raises(Unavailable, match=r"process A cannot join: .* during the handsh"):
                await join._connect(lambda: place_of("A"), is_patient=False)
            patient = place_of("A")
            await patient.connect(is_patient=True)
            assert len(turned_away) == 3
            turned_away.clear()
            joined, _ = await join._connect(lambda: place_of("B"), is_patient=True)
        assert len(turned_away) == 3
        await patient.close()
        await joined.close()
        end(membership)
        await hang_up()

    asyncio.run(main())


class Silent(CoordinatorConnection):
    """One that says who it is, and nothing else."""

    def send(self, message: control.FromProcess) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_who_only_says_who_it_is_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could come so often that no descriptor is left for the others."""
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT_S", 1.0)
    # One in all: both processes are expected.
    monkeypatch.setattr(acceptor, "GREETING_COUNT_MAX", -1)

    async def main() -> None:
        membership = membership_of(is_taken_over=False)
        address = await membership.listen(ANY_PORT, None)
        me = Credentials("A", 1, DESCRIPTION.hash, SECRET)
        async with asyncio.timeout(30):
            lines = [Silent(me, control.JoinRequest) for _ in range(2)]
            for line in lines:
                await connect(line, address, None, None)
                await until(lambda line=line: line.is_open)  # type: ignore[misc]
            for line in lines:
                assert await line.received.get() is None
            assert membership.acceptor.refused_count == 1
            process = CoordinatorConnection(me, control.JoinRequest)
            await connect(process, address, None, None)
            assert isinstance(await process.received.get(), control.Setup)
        end(membership)
        await hang_up()

    asyncio.run(main())
