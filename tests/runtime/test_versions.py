"""Who speaks another version of the protocol is refused with both versions and what to do about it,
wherever two programs meet: nothing of another version is ever read."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from stillframe.errors import Refused, StillframeError
from stillframe.protocol import wire
from stillframe.protocol.handshake import Declined
from stillframe.runtime import events, run_file
from stillframe.runtime.network.addresses import ANY_PORT, LOOPBACK, Address
from stillframe.runtime.os_process import current_process, is_alive
from stillframe.runtime.process.process_runtime import ProcessRuntime
from stillframe.runtime.supervisor import admin_socket, operation, recovery
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.runtime.links import until
from tests.runtime.local import LocalSystem
from tests.runtime.rally import beside_players, players
from tests.runtime.stranger import stranger
from tests.runtime.test_admin_socket import announced
from tests.runtime.test_takeover import kill_a_supervisor, resumed
from tests.runtime.watch import Watch, program

OURS = wire.VERSION
OTHERS = [OURS - 1, OURS + 1]
REMEDY = (
    "stop it with the one that started it, install the other, and continue with 'stillframe resto"
)


def check_words(said: object, theirs: int, ours: int = OURS) -> None:
    """Check that an error names both versions, and says what to do."""
    words = str(said)
    assert f"speaks version {theirs} of the protocol, we speak {ours}: run the same" in words
    assert REMEDY in words


def speak(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """Let this program speak another version; the programs that it starts speak ours."""
    monkeypatch.setattr(wire, "VERSION", version)
    monkeypatch.setattr(wire.encode_greeting, "__defaults__", (version,))


@contextlib.asynccontextmanager
async def listener_of(version: int) -> AsyncIterator[int]:
    """Listen as a program that speaks another version, which refuses ours; give the port."""
    refusal = wire.encode_greeting(Declined("you speak another version"), version)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(refusal)
        writer.close()

    server = await asyncio.start_server(refuse, LOOPBACK)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("place", ["B", "the coordinator"])
def test_who_connects_with_another_version_is_refused(
    tmp_path: Path, place: str, version: int
) -> None:
    """By a process on a channel, and by the coordinator whoever joins or comes back: it is told so
    whatever the rest of its greeting is, and so is who runs the system."""

    async def body(system: LocalSystem) -> None:
        is_channel = place == "B"
        port = system.members["B"].port if is_channel else system.port
        hello = system.credentials("A").hello("B" if is_channel else None)
        async with stranger(port) as other:
            other.write(wire.encode_greeting(hello, version))
            check_words(await other.hear(), version)
        await system.until(lambda: len(system.troubles()) == 1)
        check_words(system.troubles()[0], version)

    beside_players(tmp_path, body)


@pytest.mark.parametrize("version", OTHERS)
def test_a_channel_to_another_version_ends_the_process(tmp_path: Path, version: int) -> None:
    """It could never be connected: the coordinator hears why."""

    async def main() -> None:
        async with asyncio.timeout(30), listener_of(version) as port:
            system = LocalSystem(players(), tmp_path, detour=lambda _: port, may_fail=True)
            async with system:
                check_words(system.failures[0], version)
                assert "channel " in str(system.failures[0])
                failures = system.coordinator.membership._failures
                await system.until(lambda: bool(failures))
                check_words(next(iter(failures.values())).detail, version)

    asyncio.run(main())


@pytest.mark.parametrize("version", OTHERS)
def test_who_joins_a_coordinator_of_another_version_is_refused(
    tmp_path: Path, version: int
) -> None:
    """As `stillframe.join` and `stillframe join` do it, and each process that is started."""

    async def main() -> None:
        async with asyncio.timeout(30), listener_of(version) as port:
            me = LocalSystem(players(), tmp_path).credentials("A")
            member = ProcessRuntime(me, Address(LOOPBACK, port), ANY_PORT)
            with pytest.raises(Refused) as caught:
                await member.connect()
            check_words(caught.value, version)
            await member.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", OTHERS)
def test_who_comes_back_to_a_coordinator_of_another_version_is_refused(
    tmp_path: Path, version: int
) -> None:
    """It ends, and says why; it does not try again and again."""

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            listener_of(version) as port,
            LocalSystem(players(), tmp_path, survives=True, may_fail=True) as system,
        ):
            member = system.members["A"]
            member._coordinator = Address(LOOPBACK, port)
            member._connection.abort()
            await system.until(lambda: bool(system.failures))
            check_words(system.failures[0], version)

    asyncio.run(main())


@pytest.mark.slow
def test_a_supervisor_of_another_version_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume` by an older and a newer release is refused before anything is touched: the
    processes go on, and are taken over by the release that started them."""

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        left = run_file.read_run_file(tmp_path / "store")
        assert left is not None
        for version in OTHERS:
            with monkeypatch.context() as patch:
                speak(patch, version)
                with pytest.raises(Refused) as caught:
                    operation.open_writer(tmp_path / "store", takes_over=True)
            check_words(caught.value, OURS, version)
            assert all(map(is_alive, left.children.values()))
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (_, watch):
            assert watch.of(events.TakenOver)
            now = run_file.read_run_file(tmp_path / "store")
            assert now is not None
            assert now.children == left.children

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_what_comes_back_to_a_supervisor_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], version: int
) -> None:
    """Should it listen in the place of the dead one after all, the handshake keeps both apart: it
    hears of each process why, and each process ends. The first one says why; the supervisor kills
    the others when it sees that one has ended, which may be before they have said it."""
    watch = Watch()

    def refused() -> list[str]:
        told = [event.detail for event in watch.of(events.ConnectionWarning)]
        return [detail for detail in told if "speaks version" in detail]

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        left = run_file.read_run_file(tmp_path / "store")
        assert left is not None
        speak(monkeypatch, version)
        with contextlib.closing(Store.open_writer(tmp_path / "store")) as store:
            system = Supervisor(
                program("rally"), store, SupervisorConfig(takes_over=True), emit=watch.emit
            )
            starting = asyncio.ensure_future(system.__aenter__())
            await until(lambda: len(refused()) >= len(left.children))
            await until(lambda: not any(map(is_alive, left.children.values())))
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StillframeError):
                await starting
        for detail in refused():
            check_words(detail, OURS, version)

    asyncio.run(asyncio.wait_for(main(), 60))
    ended = [line for line in capfd.readouterr().err.splitlines() if "ended: " in line]
    assert ended
    for line in ended:
        check_words(line, version)


@pytest.mark.parametrize("version", OTHERS)
def test_nothing_that_runs_no_more_is_of_another_version(tmp_path: Path, version: int) -> None:
    """If no process runs any more, any release may begin with the last snapshot."""
    gone = msgspec.structs.replace(current_process(), start_ticks=1)
    left = msgspec.structs.replace(
        announced(tmp_path / "store", current_process()),
        protocol_version=version,
        children={"P1": gone},
    )
    store = Store.open(tmp_path / "store")
    everybody = dict.fromkeys(store.description.processes, gone)
    recovery.check_release(msgspec.structs.replace(left, children=everybody), store)
    with pytest.raises(Refused, match="the running system on the store"):
        recovery.check_release(left, store)  # those that are not here may run elsewhere


@pytest.mark.parametrize("version", OTHERS)
def test_a_command_of_another_version_is_not_sent(tmp_path: Path, version: int) -> None:
    """The run file says which version the system speaks."""
    path = tmp_path / "store"
    system = announced(path, current_process())
    run_file.write_run_file(path, msgspec.structs.replace(system, protocol_version=version))
    for request in (
        admin_socket.send_command(path, admin_socket.GetPendingSnapshots()),
        admin_socket.query_status(path),
    ):
        with pytest.raises(Refused) as caught:
            asyncio.run(request)
        check_words(caught.value, version)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("version", OTHERS)
def test_a_command_of_another_version_is_not_carried_out(version: int) -> None:
    """Nor read: the command hears why, in the form of every answer."""

    async def main() -> admin_socket.Reply:
        reader = asyncio.StreamReader()
        reader.feed_data(b'{"type":"SomethingNew","protocol_version":%d}\n' % version)
        return await admin_socket._execute(cast(Supervisor, None), reader)

    answer = asyncio.run(main())
    assert isinstance(answer, admin_socket.Failed)
    check_words(answer.detail, version)
    assert not answer.is_usage


def test_a_command_says_which_version_it_speaks(tmp_path: Path) -> None:
    """Beside the request as it always was: who does not look at the version understands it."""
    path, lines = tmp_path / "store", list[bytes]()
    announced(path, current_process())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())
        writer.write(b'{"type":"Done","epoch":3}\n')
        writer.close()

    async def main() -> None:
        async with await asyncio.start_unix_server(answer, path / "commands"):
            assert (
                await admin_socket.send_command(path, admin_socket.DropSnapshot("gold"))
            ).epoch == 3

    asyncio.run(main())
    assert json.loads(lines[0]) == {
        "type": "DropSnapshot",
        "text": "gold",
        "protocol_version": OURS,
    }


def test_a_run_file_that_says_no_version_is_of_the_one_before_it_was_written(
    tmp_path: Path,
) -> None:
    """Its system was started by a release that spoke version 2."""
    path = tmp_path / "store"
    announced(path, current_process())
    document = json.loads((path / run_file.FILE).read_bytes())
    del document["protocol_version"]
    (path / run_file.FILE).write_text(json.dumps(document))
    left = run_file.read_run_file(path)
    assert left is not None
    assert left.protocol_version == 2
    with pytest.raises(Refused, match="speaks version 2 of the protocol, we speak 3"):
        run_file.find_running(path)
