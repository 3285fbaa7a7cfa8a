"""The last snapshot of a system that is stopped: everything done up to the stop can be restored."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stillframe.cli.command import EXIT_CLOSED_PIPE
from stillframe.cli.supervision import EventPrinter, SystemConfig, keep_running, stop_signals
from stillframe.runtime import events, run_file
from stillframe.runtime.os_process import is_alive
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.calm import BANK, bank
from tests.cli.conftest import Call
from tests.cli.test_runs import Start, start

__all__ = ["start"]
pytestmark = pytest.mark.slow

COUNTING = """
import pathlib, time, stillframe
BLOCK, GATE = map(pathlib.Path(__file__).with_name, ("block", "gate"))
class Tick(stillframe.Message):
    pass
class Counter(stillframe.Process):
    count: int = 0
    has_sent: bool = False
    @stillframe.every(ms=5)
    def act(self) -> None:
        self.count += 1
        if not self.has_sent and BLOCK.exists():
            self.has_sent = True
            self.send("C", Tick())
class Blocked(stillframe.Process):
    def receive(self, channel: stillframe.Channel, message: Tick) -> None:
        while not GATE.exists():
            time.sleep(0.01)
counting = stillframe.Topology({"A": Counter(), "C": Blocked()}, [("A", "C")])
"""


@pytest.fixture(autouse=True)
def _hangups_count() -> Iterator[None]:
    """Let programs inherit the usual SIGHUP, also where nohup runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Impatient(EventPrinter):
    """Asks the system to stop as soon as it reports that the system runs."""

    def emit(self, event: events.Event) -> None:
        """See the class."""
        super().emit(event)
        if isinstance(event, events.SystemRunning):
            self.on_unwritten()


def test_a_system_that_was_reported_to_run_is_stopped_with_a_last_snapshot(tmp_path: Path) -> None:
    """The command has not noticed yet that the start is complete."""
    store = Store.create(tmp_path / "money", description=bank.description, reference=BANK)
    with contextlib.closing(store):
        printer, config = Impatient(process_count=3, is_json=False), SystemConfig()
        system = Supervisor(BANK, store, config, emit=printer.emit)
        assert asyncio.run(keep_running(system, config, printer, None))
        assert len(store.entries()) == 1


def counts(path: Path) -> list[int]:
    """Return how far A had counted in each snapshot, in the order of publishing."""
    store = Store.open(path)
    states = [store.load(entry.id).state.processes[0] for entry in store.entries()]
    return [int(msgspec.msgpack.decode(state.encoded)["count"]) for state in states]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_during_a_snapshot_loses_nothing(
    start: Start, call: Call, tmp_path: Path, number: signal.Signals
) -> None:
    """A snapshot is in progress, because C is busy, when the stop comes. The last one begins when
    that one is complete, is a restore point, and is what the system goes on from."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "block").touch()
    path = tmp_path / "store"
    system = start("run", "counting:counting", "--store", path, "--every", "200ms", cwd=tmp_path)
    system.until("was still pending")
    system.process.send_signal(number)
    system.until("stopping after one last snapshot")
    refused = call("snapshot", path)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the system is stopping and takes its last snapshot" in refused.stderr
    (tmp_path / "gate").touch()
    code, _, err = system.end()
    assert code == 0, err
    store = Store.open(path)
    last, current = store.entries()[-1], store.current()
    assert last.is_restore_point
    assert current is not None
    assert current.id == last.id
    assert f"to continue from snapshot {last.id}" in err
    assert counts(path)[-1] == max(counts(path))


def test_a_stop_without_a_last_snapshot_says_what_is_lost(start: Start, tmp_path: Path) -> None:
    """C stays busy: both the snapshot in progress and the last one are abandoned, and that is no
    success."""
    (tmp_path / "counting.py").write_text(COUNTING)
    path = tmp_path / "store"
    options = ("--every", "200ms", "--timeout", "500ms")
    system = start("run", "counting:counting", "--store", path, *options, cwd=tmp_path)
    system.until("in transit")
    (tmp_path / "block").touch()
    system.until("was still pending")
    code, _, err = system.end(signal.SIGTERM)
    current = Store.open(path).current()
    assert current is not None
    assert code == 1
    assert "no last snapshot: snapshot A-" in err
    assert "missing: C" in err
    assert f"the work since {current.id} is lost" in err


def test_a_second_signal_stops_without_a_last_snapshot(start: Start, tmp_path: Path) -> None:
    """That is what was asked for: exit 0."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "block").touch()
    system = start(
        "run", "counting:counting", "--store", tmp_path / "s", "--every", "200ms", cwd=tmp_path
    )
    system.until("was still pending")
    system.process.send_signal(signal.SIGINT)
    system.until("stopping after one last snapshot")
    code, _, err = system.end(signal.SIGINT)
    assert code == 0
    assert "no last snapshot, as requested" in err


def test_a_stop_whose_words_nobody_can_read_takes_the_last_snapshot(
    start: Start, tmp_path: Path
) -> None:
    """Ctrl-C ends ``| tee log``, too; and a terminal that is closed sends SIGHUP more than once."""
    (tmp_path / "counting.py").write_text(COUNTING)
    path = tmp_path / "store"
    system = start("run", "counting:counting", "--store", path, "--every", "never", cwd=tmp_path)
    system.until("the system runs")
    assert system.process.stderr is not None
    system.process.stderr.close()
    for _ in range(2):
        system.process.send_signal(signal.SIGHUP)
    assert system.process.wait() == 0
    (entry,) = Store.open(path).entries()
    assert entry.is_restore_point


def test_nohup_is_respected(start: Start, tmp_path: Path) -> None:
    """The end of the terminal does not stop a system that was told to ignore it."""
    path = tmp_path / "money"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does: a program inherits it
    try:
        system = start("run", BANK, "--store", path, "--every", "never")
    finally:
        signal.signal(signal.SIGHUP, before)
    system.until("the system runs")
    status = Path(f"/proc/{system.process.pid}/status").read_text()
    (ignored,) = (line for line in status.splitlines() if line.startswith("SigIgn:"))
    assert int(ignored.split()[1], 16) & 1 << signal.SIGHUP - 1
    code, _, err = system.end(signal.SIGHUP, signal.SIGTERM)
    assert code == 0, err
    assert "as you wish" not in err


def test_a_system_whose_events_nobody_can_read_stops_after_a_last_snapshot(
    start: Start, tmp_path: Path
) -> None:
    """``run --json | tee log``, and tee is gone while a snapshot is in progress: the system would
    continue unseen, and stops in order, with all that was done."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "block").touch()
    path = tmp_path / "store"
    options = ("--store", path, "--every", "200ms", "--json")
    system = start("run", "counting:counting", *options, cwd=tmp_path)
    system.until("was still pending")
    assert system.process.stdout is not None
    system.process.stdout.close()
    system.until("the system stops: its events cannot be written to stdout: Broken pipe")
    system.until("stopping after one last snapshot")
    (tmp_path / "gate").touch()
    assert system.process.stderr is not None
    err = system.process.stderr.read()
    assert system.process.wait() == EXIT_CLOSED_PIPE, err
    last = Store.open(path).entries()[-1]
    assert last.is_restore_point
    assert f"to continue from snapshot {last.id}" in err
    assert counts(path)[-1] == max(counts(path))


def test_a_closed_terminal_never_hurries_a_stop() -> None:
    """It sends SIGHUP twice; only a second Ctrl-C comes from somebody who will not wait."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with stop_signals() as stop:
            for _ in range(2):
                # Signals are handled in the order in which they come.
                handled = loop.create_future()
                loop.add_signal_handler(signal.SIGUSR1, handled.set_result, None)
                for number in (signal.SIGHUP, signal.SIGUSR1):
                    os.kill(os.getpid(), number)
                await handled
                assert stop.requested.done()
                assert not stop.forced.done()
            os.kill(os.getpid(), signal.SIGINT)
            await stop.forced

    asyncio.run(main())


def test_a_stop_while_processes_come_back_loses_nothing(start: Start, tmp_path: Path) -> None:
    """Their supervisor was killed, and the next one is told to stop before all have come back: it
    waits for them and takes a last snapshot of what they did meanwhile."""
    path = tmp_path / "money"
    begun = start("run", BANK, "--store", path, "--every", "never")
    begun.until("the system runs")
    slow = run_file.find_running(path).children["P2"]
    begun.process.kill()
    begun.process.wait()
    os.kill(slow.pid, signal.SIGSTOP)
    again = start("resume", path, "--every", "never")
    # On a busy machine others may not have come back either when it says so, once.
    assert "P2" in again.until(" to reconnect")
    again.process.send_signal(signal.SIGTERM)
    assert "P2" in again.until(" to reconnect, to stop after one last snapshot")
    os.kill(slow.pid, signal.SIGCONT)
    code, _, err = again.end()
    assert code == 0, err
    (entry,) = Store.open(path).entries()
    assert (entry.epoch, entry.is_restore_point) == (1, True)
    assert f"to continue from snapshot {entry.id}" in err


def test_a_second_stop_while_processes_come_back_ends_them(start: Start, tmp_path: Path) -> None:
    """As it does without a last snapshot once the system runs."""
    path = tmp_path / "money"
    begun = start("run", BANK, "--store", path, "--every", "never")
    begun.until("the system runs")
    left = run_file.find_running(path)
    begun.process.kill()
    begun.process.wait()
    os.kill(left.children["P2"].pid, signal.SIGSTOP)
    again = start("resume", path, "--every", "never")
    # On a busy machine others may not have come back either when it says so, once.
    assert "P2" in again.until(" to reconnect")
    again.process.send_signal(signal.SIGTERM)
    assert "P2" in again.until(" to reconnect, to stop after one last snapshot")
    code, _, err = again.end(signal.SIGTERM)
    assert code == 0, err
    assert "no last snapshot, as requested" in err
    assert not Store.open(path).entries()
    assert not any(map(is_alive, left.children.values()))
