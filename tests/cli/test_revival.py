"""``resume`` and ``history`` as a person uses them: real processes, kill -9, two who try."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stillframe.protocol import wire
from stillframe.runtime import run_file
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.os_process import current_process, wait_for
from stillframe.store.history import NEWER
from stillframe.store.store import Store
from tests.calm import BANK, bank
from tests.cli.conftest import Call
from tests.cli.test_runs import Program, Start, start

__all__ = ["start"]


def first_word_of(*programs: Program) -> Iterator[tuple[Program, str]]:
    """Yield each program with the first line that it says, and what became of it then."""
    for program in programs:
        said = program.until("")
        if "this command supervises the system of" in said:
            said += program.until("reconnected after")
        yield program, said


@pytest.mark.slow
def test_a_killed_supervisor_is_replaced_by_one_of_two(
    start: Start, call: Call, tmp_path: Path
) -> None:
    """One wins, and the processes go on under it; the other is told who has the store, also when
    that one stands still, and the one that stood still goes on when it may. No money is lost."""
    path = tmp_path / "money"
    system = start("run", BANK, "--store", path, "--every", "100ms")
    system.until("in transit")
    system.process.kill()
    assert system.process.wait() == -signal.SIGKILL
    refused = call("snapshot", path)
    assert refused.exit_code == 2
    assert f"start a new one with 'stillframe resume {path}'" in refused.stderr

    both = [start("resume", path, "--every", "never") for _ in range(2)]
    words = dict(first_word_of(*both))
    (winner,) = [program for program, said in words.items() if "reconnected after" in said]
    (loser,) = [program for program in both if program is not winner]
    assert f"the store {path} is in use" in words[loser]
    assert loser.process.wait() == 2

    winner.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, winner.process.pid, os.WSTOPPED | os.WNOWAIT)
    for command in ("resume", "snapshot", "restore"):
        refused = call(command, path)
        assert refused.exit_code == 2
        assert f"continue it (kill -CONT {winner.process.pid}), or kill it" in refused.stderr
    winner.process.send_signal(signal.SIGCONT)
    assert call("snapshot", path, "--initiator", "P2").exit_code == 0

    code, _, _ = winner.end(signal.SIGINT)
    assert code == 0
    assert call("verify", path).exit_code == 0
    assert call("detect", path, "loss").exit_code == 1
    store = Store.open(path)
    assert {entry.epoch for entry in store.entries()} == {1}
    told = json.loads(call("events", path, "--json").stdout)["history"]
    assert [event["event"] for event in told].count("TakenOver") == 1
    published = [event["snapshot"] for event in told if event["event"] == "SnapshotPublished"]
    assert published == [str(entry.id) for entry in store.entries()]
    shown = call("events", path).stdout
    assert "epoch 1 began from the initial states" in shown
    assert "epoch 1 continues: a new supervisor took it over" in shown
    assert f"snapshot {published[-1]} was published" in shown


@pytest.mark.slow
@pytest.mark.parametrize("is_damaged", [False, True])
def test_resume_starts_what_has_nothing_to_go_on_from(
    start: Start, tmp_path: Path, is_damaged: bool
) -> None:
    """A store whose system has no snapshot: it begins from the initial states, and stops in
    order. A damaged line of
    the history does not prevent that: only the takeover of processes that run needs every line."""
    path = tmp_path / "money"
    begun = start("run", BANK, "--store", path, "--every", "never")
    begun.until("epoch 1: the system runs")
    left = run_file.find_running(path)
    begun.process.kill()
    begun.process.wait()
    for child in left.children.values():
        os.kill(child.pid, signal.SIGKILL)
    for child in left.children.values():
        wait_for(child)
    if is_damaged:
        content = (path / NEWER).read_bytes()
        (path / NEWER).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    again = start("resume", path, "--every", "never")
    again.until("the system runs")
    code, _, err = again.end(signal.SIGTERM)
    assert code == 0
    (entry,) = Store.open(path).entries()
    assert f"to continue from snapshot {entry.id}" in err
    assert is_damaged or str(entry.id) == "P1-1"


def test_a_part_of_a_pipeline_is_not_brought_back_alone(call: Call, tmp_path: Path) -> None:
    """The error says how both go back together."""
    path = tmp_path / "money"
    description = bank.description
    Store.create(path, description=description, reference=BANK).close()
    run_file.write_run_file(
        path,
        run_file.RunFile(
            supervisor=msgspec.structs.replace(current_process(), start_ticks=1),
            directory=run_file.identity(path),
            epoch=0,
            topology_hash=description.hash,
            coordinator=ANY_PORT,
            has_tls=False,
            secret=b"",
            commands="",
            children={},
            pipeline="/data/shop",
            protocol_version=wire.VERSION,
        ),
    )
    refused = call("resume", path)
    assert refused.exit_code == 2
    assert "use 'stillframe pipeline restore /data/shop', and then 'stillframe restore" in (
        refused.stderr
    )


@pytest.mark.parametrize("command", ["snapshot", "restore", "savepoint"])
def test_a_system_of_another_version_takes_no_command(
    call: Call, money: Path, command: str
) -> None:
    """Exit 2 names both versions and what to do; nothing is started in its place."""
    theirs = wire.VERSION + 1
    run_file.write_run_file(
        money,
        run_file.RunFile(
            supervisor=current_process(),
            directory=run_file.identity(money),
            epoch=1,
            topology_hash=Store.open(money).description.hash,
            coordinator=ANY_PORT,
            has_tls=False,
            secret=b"",
            commands="",
            children={},
            pipeline=None,
            protocol_version=theirs,
        ),
    )
    refused = call(command, money, *(["gold"] if command == "savepoint" else []))
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert f"speaks version {theirs} of the protocol, we speak {wire.VERSION}: run the" in said
    assert "install the other, and continue with 'stillframe restore STORE'" in said
    assert Store.open(money).epoch == 1


def test_a_store_without_a_history_has_none_to_show(call: Call, tmp_path: Path) -> None:
    """Nothing happened yet; and what is no store is refused."""
    Store.create(tmp_path / "money", description=bank.description).close()
    shown = call("events", tmp_path / "money")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert call("events", tmp_path).exit_code == 2
