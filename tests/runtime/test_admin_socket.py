"""What a command does whose supervisor does not answer."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stillframe.errors import StillframeError, StoreError, Unavailable
from stillframe.examples.bank import bank
from stillframe.model import SnapshotId
from stillframe.protocol import wire
from stillframe.runtime import events, run_file
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.os_process import OsProcess, current_process
from stillframe.runtime.supervisor import admin_socket, recovery
from stillframe.runtime.supervisor.admin_socket import RestoreSnapshot, send_command
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import ObjectPath
from stillframe.store.store import Store
from tests.runtime.watch import new_store, program


def announced(path: Path, supervisor: OsProcess) -> run_file.RunFile:
    """Make a store, and announce a system of it that this program supervises."""
    Store.create(path, description=bank.description).close()
    system = run_file.RunFile(
        supervisor=supervisor,
        directory=run_file.identity(path),
        epoch=1,
        topology_hash=bank.description.hash,
        coordinator=ANY_PORT,
        has_tls=False,
        secret=b"",
        commands=str(path / "commands"),
        children={},
        pipeline=None,
        protocol_version=wire.VERSION,
    )
    run_file.write_run_file(path, system)
    return system


def test_a_supervisor_in_another_container_is_not_called_dead(tmp_path: Path) -> None:
    """This program cannot see whether it runs: the error names where to ask."""
    path = tmp_path / "store"
    apart = msgspec.structs.replace(current_process(), space=1)
    announced(path, apart)
    with pytest.raises(Unavailable, match=r"another PID namespace.*: call this command there"):
        run_file.find_running(path)
    assert run_file.supervisor_of(path) == apart
    assert "stop it there first" in run_file.describe_owner(path)
    # The release before this one did not say in which it ran.
    announced(tmp_path / "older", msgspec.structs.replace(current_process(), space=0))
    assert run_file.find_running(tmp_path / "older").supervisor.pid == apart.pid


@pytest.mark.parametrize("takes_over", [False, True])
def test_nothing_starts_beside_processes_that_may_run_in_another_container(
    tmp_path: Path, takes_over: bool
) -> None:
    """Only their supervisor is known to have died; with it all died if it was process 1 there."""
    apart = msgspec.structs.replace(current_process(), space=1)
    left = msgspec.structs.replace(announced(tmp_path / "store", apart), children={"P1": apart})
    run_file.write_run_file(tmp_path / "store", left)
    config = SupervisorConfig(takes_over=takes_over)

    async def start(store: Store) -> None:
        async with Supervisor("stillframe.examples.bank:bank", store, config):
            pass

    with contextlib.closing(Store.open_writer(tmp_path / "store")) as store:
        words = r"process P1 of the last run .*another PID namespace.*delete .*running\.json and"
        with pytest.raises(Unavailable, match=words):
            asyncio.run(start(store))
        first = msgspec.structs.replace(apart, pid=1)
        recovery.check_visible(msgspec.structs.replace(left, supervisor=first), store)
    assert run_file.read_run_file(tmp_path / "store") == left


def test_a_user_without_a_home_directory_learns_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container its home is often a directory in which only root may write."""
    (tmp_path / "home").touch()
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    place = ObjectPath("memory://no-home", "bank")
    system = announced(tmp_path / "store", current_process())
    system = msgspec.structs.replace(system, directory=run_file.identity(place))
    with pytest.raises(StoreError, match="set XDG_STATE_HOME to a directory of this machine"):
        run_file.write_run_file(place, system)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_file.write_run_file(place, system)
    assert run_file.read_run_file(place) == system


def test_the_directory_of_a_dead_supervisor_is_removed_with_what_processes_left(
    tmp_path: Path,
) -> None:
    """A process that failed without a coordinator wrote the reason there, in a file."""
    system = announced(tmp_path / "store", current_process())
    place = tmp_path / "stillframe-x"
    place.mkdir()
    for name in ("commands", "4711"):
        (place / name).touch()
    run_file.remove_socket(msgspec.structs.replace(system, commands=str(place / "commands")))
    assert not place.exists()


@contextlib.asynccontextmanager
async def silent_server(path: Path) -> AsyncIterator[asyncio.Event]:
    """Take connections and say nothing; give what is set when somebody has connected."""
    connected, ended = asyncio.Event(), asyncio.Event()

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await ended.wait()
        writer.close()

    async with await asyncio.start_unix_server(be_silent, path / "commands"):
        try:
            yield connected
        finally:
            ended.set()


def test_a_command_may_come_as_soon_as_the_system_is_announced(tmp_path: Path) -> None:
    """Whoever reads that it runs may send one before its supervisor does anything else."""
    early: list[socket.socket] = []

    def connect(event: events.Event) -> None:
        if isinstance(event, events.SystemRunning):
            early.append(socket.socket(socket.AF_UNIX))
            early[0].connect(run_file.find_running(tmp_path / "store").commands)

    async def main() -> None:
        with contextlib.closing(new_store(tmp_path, "rally")) as store:
            async with Supervisor(program("rally"), store, emit=connect) as system:
                reader, writer = await asyncio.open_unix_connection(sock=early[0])
                writer.write(b'{"protocol_version": %d}\n' % wire.VERSION)
                async with admin_socket.serve_commands(system):
                    assert b"cannot be read" in await reader.readline()
                writer.close()

    asyncio.run(main())


def test_a_command_to_a_system_that_is_not_ready_says_why(tmp_path: Path) -> None:
    """In words, without the number of an error."""
    path = tmp_path / "store"
    announced(path, current_process())
    with pytest.raises(Unavailable) as caught:
        asyncio.run(send_command(path, RestoreSnapshot(None)))
    assert str(caught.value) == (
        f"the system on the store {path} takes no commands now: it is still starting, waits for "
        "processes to join, or is stopping; try again when it runs"
    )


def test_a_command_says_what_it_waits_for_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor takes the request and never answers."""
    monkeypatch.setattr(admin_socket, "NOTICE_S", 0.01)
    monkeypatch.setattr(admin_socket, "DEADLINE_S", 0.02)
    path, notices = tmp_path / "store", list[str]()
    announced(path, current_process())

    async def main() -> None:
        async with silent_server(path) as connected:
            with pytest.raises(StillframeError) as caught:
                await send_command(
                    path, RestoreSnapshot(SnapshotId("P1", 3)), notice=notices.append
                )
            await connected.wait()
        assert not isinstance(caught.value, Unavailable), "nothing must be started in its place"
        awaited = f"the supervisor of {path}, process {current_process().pid}, to restore"
        assert str(caught.value).startswith(
            f"waited 0 s for {awaited} snapshot P1-3 without success"
        )
        assert notices == [f"waiting for {awaited} snapshot P1-3; at most 0 s"]

    asyncio.run(main())


def test_a_command_whose_supervisor_is_gone_by_the_deadline_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps its connection open."""
    monkeypatch.setattr(admin_socket, "DEADLINE_S", 0.02)
    path = tmp_path / "store"
    system = announced(path, current_process())

    def dies(words: str) -> None:
        gone = msgspec.structs.replace(current_process(), start_ticks=1)
        run_file.write_run_file(path, msgspec.structs.replace(system, supervisor=gone))

    async def main() -> None:
        async with silent_server(path):
            with pytest.raises(Unavailable, match="died; start a new one with 'stillframe resume"):
                await send_command(path, RestoreSnapshot(None), notice=dies)

    monkeypatch.setattr(admin_socket, "NOTICE_S", 0.01)
    asyncio.run(main())
