"""Several machines, each a network namespace: far away, at the end of a bad line, and cut off."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.examples.bank import TOTAL, Transfer
from stillframe.model import Snapshot
from stillframe.store.store import Store
from tests.nightly import Figure, seeds
from tests.runtime.certificate_dirs import make
from tests.runtime.network import Machine, Wire, machines, why_impossible

ROOT = Path(__file__).parent.parent.parent
DELAY_S = 0.05
LOSS = 5
SEED = 1985
DEADLINE_S = 180
STOP_S = 20


class Far:
    """The command line on a machine, with its JSON read event by event."""

    def __init__(self, machine: Machine, log: Path, *words: object) -> None:
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                machine.command(sys.executable, "-m", "stillframe", *words, "--json"),
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=ROOT,
            )
        self.seen: list[dict[str, Any]] = []
        self._deadline = threading.Timer(DEADLINE_S, self.process.kill)
        self._deadline.start()

    def until(self, kind: str, condition: Callable[[dict[str, Any]], bool] = bool) -> None:
        """Wait for an event of this kind for which `condition` holds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.seen.append(event)
            if event["event"] == kind and condition(event):
                return
        pytest.fail(f"no {kind} came; stderr: {self._log.read_text()}")

    def kinds(self) -> set[str]:
        """Return the kinds of the events so far."""
        return {event["event"] for event in self.seen}

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        self.seen += map(json.loads, self.process.stdout)
        return self.process.wait()

    def close(self) -> None:
        """Leave nothing behind."""
        self._deadline.cancel()
        self.process.terminate()  # killed, it would leave its processes behind for a minute
        try:
            self.process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def money_in(snapshot: Snapshot) -> int:
    """Return how much money there is at the cut: in the accounts and on the way."""
    balances: list[int] = [
        msgspec.msgpack.decode(process.encoded)["balance"] for process in snapshot.state.processes
    ]
    amounts: list[int] = [
        message[1]
        for channel in snapshot.state.channels
        for batch in channel.batches
        for message in msgspec.msgpack.decode(batch.encoded)
        if message[0] == Transfer.__name__
    ]
    return sum(balances) + sum(amounts)


@contextlib.contextmanager
def running_bank(place: Path, made: list[Machine]) -> Iterator[tuple[Far, dict[str, Far]]]:
    """Run the bank, with P2 and P3 on machines of their own; yield it and them."""
    make(place / "papers", "P2", "P3")
    first = made[0]
    with contextlib.ExitStack() as stack:

        def start(machine: Machine, name: str, *words: object) -> Far:
            far = Far(machine, place / f"{name}.log", *words)
            stack.callback(far.close)
            return far

        system = start(
            first,
            "system",
            *(
                "run",
                "stillframe.examples.bank:bank",
                "--store",
                place / "store",
                "--every",
                "500ms",
            ),
            *("--timeout", "2s", "--listen", first.address, "--external", "P2"),
            *("--external", "P3", "--tls", place / "papers" / "coordinator"),
        )
        joined = {
            name: start(
                machine,
                name,
                *("join", "stillframe.examples.bank:bank", name, "--coordinator", first.address),
                *("--listen", machine.address, "--tls", place / "papers" / name),
            )
            for name, machine in zip(("P2", "P3"), made[1:], strict=True)
        }
        yield system, joined


def check_money(store: Path, count_min: int) -> None:
    """Check that there are more snapshots than that, and that each has all the money."""
    opened = Store.open(store)
    totals = {str(entry.id): money_in(opened.load(entry.id)) for entry in opened.entries()}
    assert len(totals) > count_min
    assert set(totals.values()) == {TOTAL}, totals


needs_machines = pytest.mark.skipif(
    bool(why_impossible()), reason=why_impossible() or "it is possible"
)


@pytest.mark.slow
@needs_machines
def test_a_bank_on_three_machines_over_a_bad_line(tmp_path: Path) -> None:
    """50 ms away, with 5 of 100 packets lost, and a cable that is out: a snapshot is abandoned
    meanwhile, nobody is given up, and no snapshot has a coin too many or too few."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(machines(3))
        wire = Wire(made, delay_s=DELAY_S, loss=LOSS, seed=SEED)
        stack.callback(wire.close)
        system, joined = stack.enter_context(running_bank(tmp_path, made))
        system.until("SnapshotPublished")
        made[1].disconnect()
        system.until("SnapshotAbandoned")
        made[1].connect()
        system.until("SnapshotPublished")
        assert "ProcessDied" not in system.kinds()
        assert system.stop() == 0
        assert [far.stop() for far in joined.values()] == [0, 0]
        assert wire.lost_count > 0
    check_money(tmp_path / "store", 1)


@pytest.mark.nightly(part="soak", only=True)
@pytest.mark.slow
@needs_machines
@pytest.mark.parametrize("seed", seeds("machines", SEED, night=1))
def test_a_bank_on_three_machines_over_a_bad_line_that_is_cut(
    seed: int, tmp_path: Path, figure: Figure
) -> None:
    """50 ms away, with 5 of 100 packets lost: snapshots go on. A cable that is out for seconds, and
    a machine that is cut off for longer than its connections last: nothing is lost and nobody goes
    back. One that is cut off for longer than it is waited for is a death; when it is back, the
    system goes on from the last snapshot. No snapshot has a coin too many or too few."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(machines(3))
        one, two, three = made
        wire = Wire(made, delay_s=DELAY_S, loss=LOSS, seed=seed)
        stack.callback(wire.close)
        system, joined = stack.enter_context(running_bank(tmp_path, made))
        system.until("SystemRunning")
        for _ in range(3):
            system.until("SnapshotPublished")

        two.disconnect()
        system.until("SnapshotAbandoned")
        two.connect()
        system.until("SnapshotPublished")

        wire.cut((one, three), (two, three))
        system.until("ConnectionWarning", lambda event: "P3 to the coord" in event["detail"])
        wire.cut()
        system.until("SnapshotPublished")
        assert "ProcessDied" not in system.kinds()

        wire.cut((one, three), (two, three))
        system.until("ProcessDied", lambda event: event["process"] == "P3")
        wire.cut()
        system.until("SystemRunning", lambda event: event["epoch"] > 1)
        system.until("SnapshotPublished")

        assert system.stop() == 0
        assert [far.stop() for far in joined.values()] == [0, 0]
        assert wire.lost_count > 100
        figure("packets lost", wire.lost_count)
    check_money(tmp_path / "store", 6)
