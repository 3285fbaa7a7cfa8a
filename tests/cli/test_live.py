"""``show --live`` and what is said of snapshots that a process took no part in."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from stillframe.cli import snapshots
from stillframe.model import Abandoned, Channel, SnapshotId
from stillframe.protocol.policy import Policy
from stillframe.protocol.stragglers import Cause, PendingSnapshot, Straggler
from stillframe.runtime.supervisor.admin_socket import serve_commands
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from tests.cli.conftest import Call
from tests.runtime.watch import new_store, program

TIMEOUT_S = 60
STRAGGLER = Straggler("C", Cause.SILENT, 3.0, (Channel("C", "A"),))


@pytest.mark.parametrize("arguments", [("A-1", "--live"), ("--live", "--books")])
def test_what_to_show_is_one_of_two(call: Call, money: Path, arguments: tuple[str, ...]) -> None:
    """A snapshot, or what is pending."""
    result = call("show", money, *arguments)
    assert result.exit_code == 2
    assert "--live shows pending snapshots: leave out SNAPSHOT and --books" in result.stderr


def test_without_a_running_system_nothing_is_under_way(call: Call, money: Path) -> None:
    """The error says how to start it."""
    result = call("show", money, "--live")
    assert result.exit_code == 2
    assert "no system is running on the store" in result.stderr


def test_a_line_comes_when_something_changes_and_not_because_time_goes_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cause that stays is told once."""
    told: dict[SnapshotId, str] = {}
    waits = PendingSnapshot(SnapshotId("A", 1), 2.0, 12.0, ("A", "C"), (STRAGGLER,))
    for second in range(2):
        snapshots._put_changes((waits,), told, 3.0 + second)
    snapshots._put_changes(
        (PendingSnapshot(SnapshotId("A", 1), 2.0, 12.0, ("C",), (STRAGGLER,)),), told, 5.0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("missing: ")[2].partition(";")[0] for line in lines] == ["A, C", "C"]
    assert all("; markers are awaited on C->A" in line for line in lines)


def test_an_older_damaged_manifest_does_not_hide_how_a_snapshot_ended(money: Path) -> None:
    """Only whether this one was published is asked."""
    (money / "snapshots" / "A-1" / "manifest.json").write_bytes(b"")
    assert snapshots._outcome(money, SnapshotId("A", 3)) == "snapshot A-3 was published"
    assert snapshots._outcome(money, SnapshotId("A", 9)) == "snapshot A-9 is no longer pending"


@pytest.mark.slow
def test_a_stopped_process_is_shown_while_the_snapshot_waits(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON once, and as lines until the process goes on and the snapshot is published."""
    store = new_store(tmp_path, "trio")
    is_shown = threading.Event()
    put_changes = snapshots._put_changes

    def put(shown: snapshots.Shown, told: dict[SnapshotId, str], now: float) -> None:
        put_changes(shown, told, now)
        if any(cause.process == "C" for one in shown for cause in one.stragglers):
            is_shown.set()

    monkeypatch.setattr(snapshots, "_put_changes", put)

    async def main() -> tuple[str, str]:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("trio"), store, SupervisorConfig(timeout_s=TIMEOUT_S)) as system,
            serve_commands(system),
        ):
            idle = await asyncio.to_thread(call, "show", store.path, "--live")
            assert (idle.exit_code, idle.stdout) == (0, "no snapshot is pending\n")
            os.kill(system.children["C"].pid, signal.SIGSTOP)
            result = await system.begin_snapshot("A")
            once = await asyncio.to_thread(call, "show", store.path, "--live", "--json")
            following = asyncio.create_task(asyncio.to_thread(call, "show", store.path, "--live"))
            await asyncio.to_thread(is_shown.wait, TIMEOUT_S)
            os.kill(system.children["C"].pid, signal.SIGCONT)
            await result
            shown = await following
            assert shown.exit_code == 0
            assert "snapshot A-1 was published" in shown.stderr
            return once.stdout, shown.stdout

    once, shown = asyncio.run(main())
    (pending,) = json.loads(once)["pending"]
    assert pending["snapshot"] == "A-1"
    assert "C" in pending["missing"]
    (straggler,) = [found for found in pending["stragglers"] if found["cause"] == "SILENT"]
    assert straggler["process"] == "C"
    assert "C does not answer, and has sent nothing for" in shown
    store.close()


@pytest.mark.slow
def test_what_a_process_took_no_part_in_says_so(tmp_path: Path, call: Call) -> None:
    """``list`` and ``show`` name the process and the snapshot that its state is from."""
    store = new_store(tmp_path, "separate")

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(
                program("separate"), store, SupervisorConfig(timeout_s=1.0, policy=Policy.EXCLUDE)
            ) as system,
        ):
            while isinstance(await system.snapshot("A"), Abandoned):
                pass
            os.kill(system.children["R"].pid, signal.SIGSTOP)
            while isinstance(await system.snapshot("A"), Abandoned):
                pass

    asyncio.run(main())
    first, second = store.entries()[-2:]
    store.close()
    words = f"R took no part: its state is from {first.id}"
    assert words in call("list", store.path).stdout
    assert words in call("show", store.path, second.id).stdout
    assert words not in call("show", store.path, first.id).stdout
    shown = json.loads(call("show", store.path, second.id, "--json").stdout)
    assert shown["excluded"] == {"R": str(first.id)}
    assert call("verify", store.path).exit_code == 0
