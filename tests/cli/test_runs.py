"""``run``, ``snapshot`` and ``restore`` as a person uses them: real processes, real signals."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillframe.eventlog.to_trace import read_trace
from stillframe.runtime.run_file import read_run_file
from stillframe.store.store import Store
from tests.cli.conftest import Call
from tests.json_page import check_output

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60
"""After so long a program that hangs is killed, and the test fails for want of its words."""

Start = Callable[..., "Program"]


class Program:
    """The command line as a program of its own, its words read line by line as they come."""

    def __init__(
        self, *arguments: object, cwd: Path = ROOT, deadline_s: float = DEADLINE_S
    ) -> None:
        self._arguments = arguments
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stillframe", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={"PYTHONPATH": str(ROOT / "src")},
        )
        self._deadline = threading.Timer(deadline_s, self.process.kill)
        self._deadline.start()

    def until(self, words: str) -> str:
        """Return the line of stderr that holds `words`; wait for it."""
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if words in line:
                return line
        pytest.fail(f"{words!r} never came; stderr: {''.join(seen)}")

    def end(self, *signals: signal.Signals) -> tuple[int, str, str]:
        """Send signals, wait for the end, and return exit code, stdout and the rest of stderr."""
        for number in signals:
            self.process.send_signal(number)
        out, err = self.process.communicate()
        check_output([str(argument) for argument in self._arguments], out)
        return self.process.returncode, out, err

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.process.kill()
        self.process.communicate()
        self._deadline.cancel()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs that end with the test."""
    programs: list[Program] = []

    def start(*arguments: object, cwd: Path = ROOT, deadline_s: float = DEADLINE_S) -> Program:
        programs.append(Program(*arguments, cwd=cwd, deadline_s=deadline_s))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def snapshot_ids(path: Path) -> list[str]:
    """Return the ids in a store, in the order of publishing."""
    return [str(entry.id) for entry in Store.open(path).entries()]


def test_a_command_that_says_that_it_supervises_can_be_told_to_stop(
    start: Start, tmp_path: Path
) -> None:
    """At once: it ends in order, and leaves nothing behind."""
    path = tmp_path / "money"
    system = start("run", "tests.calm:bank", "--store", path)
    system.until("this command supervises the system of")
    code, _, err = system.end(signal.SIGTERM)
    assert code == 0, err
    assert read_run_file(path) is None


def test_a_slow_import_is_waited_for_in_words(start: Start, tmp_path: Path) -> None:
    """The import of a topology may take long, or hang: the command says so, and Ctrl-C ends it."""
    (tmp_path / "slow.py").write_text(
        f"import pathlib, sys, time\nsys.path.append({str(ROOT)!r})\nfrom tests.calm import bank\n"
        "while not pathlib.Path(__file__).with_name('gate').exists():\n    time.sleep(0.01)\n"
    )
    (tmp_path / "gate").touch()
    path = tmp_path / "money"
    begun = start("run", "slow:bank", "--store", path, "--duration", "1ms", cwd=tmp_path)
    code, _, err = begun.end()
    assert code == 0, err
    (tmp_path / "gate").unlink()
    system = start("resume", path, cwd=tmp_path)
    system.until("waiting for the import of slow; Ctrl-C ends this command")
    code, _, err = system.end(signal.SIGINT)
    assert code == 130, err


def test_run_snapshot_restore_stop_and_go_on(start: Start, call: Call, tmp_path: Path) -> None:
    """A day in the life: run, a snapshot by hand, back live, Ctrl-C, and on from the last one."""
    path = tmp_path / "money"
    system = start("run", "tests.calm:bank", "--store", path, "--every", "never")
    system.until("epoch 1: the system runs")

    taken = call("snapshot", path, "--initiator", "P2")
    assert (taken.exit_code, taken.stdout) == (0, "P2-1\n")
    assert "in transit, recorded in" in taken.stderr
    taken = call("snapshot", path, "--json")
    assert json.loads(taken.stdout)["entry"]["id"] == "P1-2"
    refused = call("snapshot", path, "--initiator", "Q")
    assert refused.exit_code == 2
    assert "there is no process 'Q'; there are P1, P2, P3, P4, P5" in refused.stderr

    back = call("restore", path, "P2-1", "--json")
    assert back.exit_code == 0
    assert json.loads(back.stdout).items() >= {"epoch": 2, "snapshot": "P2-1"}.items()
    system.until("epoch 2: the system runs from snapshot P2-1")

    code, out, err = system.end(signal.SIGINT)
    assert (code, out) == (0, "")
    last = snapshot_ids(path)[-1]
    assert last == "P1-3"
    assert f"to continue from snapshot {last}: stillframe restore {path}" in err

    again = start("restore", path, "--every", "never", "--json")
    again.until(f"epoch 3: the system runs from snapshot {last}")
    code, out, err = again.end(signal.SIGTERM)
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events][:2] == ["EpochBegan", "SystemRunning"]
    assert events[1]["restored_from"] == last
    assert len(snapshot_ids(path)) == 4
    assert call("verify", path).exit_code == 0


def test_an_event_log_goes_on_and_is_never_overwritten(call: Call, tmp_path: Path) -> None:
    """``--event-log`` writes what every process does, epoch by epoch; a system that would begin
    with an epoch which is there already is refused."""
    path, log, rally = tmp_path / "store", tmp_path / "log", "tests.runtime.programs:rally"
    options = ("--every", "never", "--event-log", log, "--duration", "1ms")
    assert call("run", rally, "--store", path, *options).exit_code == 0
    refused = call("run", rally, "--store", tmp_path / "other", "--event-log", log)
    assert refused.exit_code == 2
    assert "event log of epoch 1, which is not overwritten" in refused.stderr
    assert call("restore", path, *options).exit_code == 0
    for epoch, snapshot in zip((1, 2), Store.open(path).entries(), strict=True):
        trace = read_trace(log, epoch)
        assert trace.processes == ("A", "B")
        assert trace.is_consistent(trace.cut_of(snapshot.id))


def test_periodic_snapshots_initiators_and_an_end(
    call: Call, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """``--every`` publishes periodically, initiators alternate, ``--duration`` ends it with 0."""
    path = tmp_path / "money"
    options = ("--every", "100ms", "--initiator", "P2", "--initiator", "P3", "--duration", "700ms")
    ended = call("run", "tests.calm:bank", "--store", path, *options, "--json")
    assert ended.exit_code == 0, ended.stderr
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    published = [e["entry"]["id"] for e in events if e["event"] == "SnapshotPublished"]
    assert published == snapshot_ids(path)
    assert {name.split("-")[0] for name in published} == {"P2", "P3"}
    assert sum("in transit" in line for line in ended.stderr.splitlines()) == 1


def test_ctrl_c_before_the_system_runs(start: Start, tmp_path: Path) -> None:
    """A system that waits for others to join can be stopped too."""
    topology = tmp_path / "waiting.py"
    topology.write_text(
        "import dataclasses, stillframe\n"
        "@dataclasses.dataclass\n"
        "class Total:\n"
        "    seen_count: int = 0\n"
        "class Ping(stillframe.Message):\n"
        "    pass\n"
        "waiting = stillframe.Topology.mesh({\n"
        "    name: stillframe.ExternalProcess(state=Total, accepts=Ping) for name in ('A', 'B')\n"
        "})\n"
    )
    program = start("run", "waiting:waiting", "--store", tmp_path / "money", cwd=tmp_path)
    program.until("waiting for A, B to join")
    code, _, err = program.end(signal.SIGINT)
    assert code == 0
    assert "stopped; no snapshot was published" in err


@pytest.mark.parametrize("command", ["resume", "restore"])
def test_ctrl_c_while_the_topology_is_imported(command: str, start: Start, tmp_path: Path) -> None:
    """It ends the command at once, however long the import would take."""
    path = tmp_path / "money"
    bank = f"import sys; sys.path.append({str(ROOT)!r}); from tests.calm import bank\n"
    slow = tmp_path / "slow.py"
    slow.write_text(bank)
    code, _, err = start(
        "run", "slow:bank", "--store", path, "--duration", "1ms", cwd=tmp_path
    ).end()
    assert code == 0, err
    slow.write_text(
        f"{bank}if 'stillframe.runtime.process.fork_server' not in sys.orig_argv:\n"
        "    import time; print('importing', file=sys.stderr, flush=True); time.sleep(1000)\n"
    )
    program = start(command, path, cwd=tmp_path)
    program.until("importing")
    code, out, _ = program.end(signal.SIGINT)
    assert (code, out) == (130, "")


def test_an_application_that_keeps_failing_ends_with_its_story(
    start: Start, tmp_path: Path
) -> None:
    """A handler that raises at every attempt: the traceback is shown, and the exit code is 2."""
    (tmp_path / "broken.py").write_text(
        "import stillframe\n"
        "class Broken(stillframe.Process):\n"
        "    @stillframe.every(ms=10)\n"
        "    def act(self) -> None:\n"
        "        raise ValueError('out of paper')\n"
        "broken = stillframe.Topology({'A': Broken()}, [])\n"
    )
    program = start(
        "run", "broken:broken", "--store", tmp_path / "s", "--every", "never", cwd=tmp_path
    )
    code, _, err = program.end()
    assert code == 2
    assert "process A died: " in err
    assert "ValueError: out of paper" in err
    assert "Fix the program" in err
