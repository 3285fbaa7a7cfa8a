"""Chaos: everything that goes wrong with machines happens to a system, at random, for minutes.

``python -m tests.soak.chaos --minutes 10 --seed 1`` prints ``SEED=`` first. It runs ``stillframe
run`` on a machine of its own and kills -9 processes and the supervisor, stops them for seconds,
breaks connections, cuts the network, fills the disk, and sets the clock, sometimes several at once.
After each it waits for a snapshot that was begun later, and every snapshot that it meets must be
whole, balanced and conserved. At the end no number was used twice, nothing was published twice, the
history tells all of it, and the store holds no file that no manifest lists. The short form runs
with the tests.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError, UsageError
from stillframe.store.history import (
    EpochBegan,
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    TakenOver,
    read_history,
)
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.soak.chaos_machine import ROOT, Machine, enter, is_inside, missing, send
from tests.soak.chaos_shops import check_snapshot

MODULE = "tests.soak.chaos"
REFERENCE = "tests.soak.chaos_shops:shops"
OPTIONS = ("--every", "200ms", "--timeout", "3s", "--keep", "5", "--json")
PROCESS = "stillframe.runtime.process.fork_server"
"""The command of the processes, and of what they are forked from, which may be hit as well."""
STORE_FILES = ("store.json", "lock", "history.ndjson", "history.1.ndjson", "savepoints.json")
RECOVERY_TIMEOUT_S = 120.0
CLOCK_JUMP_S_MAX = 100_000


class Run:
    """One supervisor: ``stillframe run`` or ``resume``, and what it says, event by event."""

    def __init__(self, machine: Machine, arguments: list[str], log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("stillframe")), *arguments],
                cwd=ROOT,
                env=machine.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for_restore_points(self, count: int) -> bool:
        """Wait until so many more were published; False if the supervisor ended before."""
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        with self._news:
            after = len(self.events)
            while sum(map(_is_restore_point, self.events[after:])) < count:
                if self.process.poll() is not None:
                    return False
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(f"no snapshot any more; the last {self.events[-8:]}")
                self._news.wait(min(left_s, 1.0))
        return True

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news, contextlib.suppress(ValueError):  # cut off by a kill
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Chaos:
    """One run of the soak: what was done, and what was seen."""

    def __init__(self, seed: int, machine: Machine) -> None:
        self.random = random.Random(seed)
        self.machine = machine
        self.store = machine.disk / "store"
        self.log = machine.disk.parent / "supervisor.log"
        self.done: Counter[str] = Counter()
        self.runs = [
            Run(machine, ["run", REFERENCE, "--store", str(self.store), *OPTIONS], self.log)
        ]
        self.checked: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        self.faults: dict[str, Callable[[], None]] = {
            "a process killed": self._kill_process,
            "the supervisor killed": self._kill_supervisor,
            "both killed": self._kill_both,
            "a process stopped for a while": lambda: self._stop(self._any_process()),
            "the supervisor stopped for a while": lambda: self._stop(self.supervisor),
            "connections reset": machine.reset_connections,
            "the network cut": self._cut_network,
            "the disk full": self._fill_disk,
            "the clock set": self._set_clock,
        }

    @property
    def supervisor(self) -> int:
        """The process id of the present supervisor."""
        return self.runs[-1].process.pid

    def go(self, minutes: float) -> None:
        """Let everything go wrong for so long; each kind of fault once at least."""
        assert self.runs[-1].wait_for_restore_points(1), self.words()
        deadline = time.monotonic() + minutes * 60
        order = list(self.faults)
        self.random.shuffle(order)
        while order or time.monotonic() < deadline:
            names = [order.pop() if order else self.random.choice(list(self.faults))]
            if self.random.random() < 0.3:
                names.append(self.random.choice([n for n in self.faults if n not in names]))
            self.strike(names)
            left_s = max(0.0, deadline - time.monotonic())
            print(f"{left_s:5.0f} s left: {' and '.join(names)}: came back", file=sys.stderr)

    def strike(self, names: list[str]) -> None:
        """Let some things go wrong at a random moment, mend them, and wait for a new snapshot."""
        self._moment(0.3)
        for name in names:
            self.faults[name]()
            self.done[name] += 1
            self._moment(0.2)
        while self._undo:
            self._undo.pop()()
        self._recover()
        self._check_newest()

    def _recover(self) -> None:
        """Wait for a snapshot that was begun after now; bring the supervisor back if it is gone,
        as a service manager would."""
        while True:
            run = self.runs[-1]
            # The first may have been under way already.
            if run.process.poll() is None and run.wait_for_restore_points(2):
                return
            code = run.process.wait()
            assert code in (-signal.SIGKILL, 2), f"the supervisor exited with {code}{self.words()}"
            self.done["supervisors brought back"] += 1
            resume = ["resume", str(self.store), *OPTIONS]
            self.runs.append(Run(self.machine, resume, self.log))

    def _published(self, run: Run) -> list[str]:
        return [e["entry"]["id"] for e in run.events if e["event"] == "SnapshotPublished"]

    def words(self) -> str:
        """Return what the supervisors said last."""
        return f"\n{self.log.read_text()[-4000:]}"

    # Faults. What has to be mended afterwards is put into `_undo`.

    def _any_process(self) -> int:
        return self.random.choice(self.machine.processes(PROCESS) or [self.supervisor])

    def _kill_process(self) -> None:
        send(self._any_process(), signal.SIGKILL)

    def _kill_supervisor(self) -> None:
        send(self.supervisor, signal.SIGKILL)
        self.runs[-1].process.wait()
        self._moment(2.0)

    def _kill_both(self) -> None:
        self._kill_process()
        self._kill_supervisor()

    def _stop(self, pid: int) -> None:
        send(pid, signal.SIGSTOP)
        self._moment(4.0)
        send(pid, signal.SIGCONT)

    def _cut_network(self) -> None:
        self.machine.set_network(is_up=False)
        self._moment(3.0)
        self._undo.append(lambda: self.machine.set_network(is_up=True))

    def _fill_disk(self) -> None:
        self.machine.fill_disk()
        self._moment(2.0)
        self._undo.append(self.machine.free_disk)

    def _set_clock(self) -> None:
        self.machine.set_clock(self.random.randint(-CLOCK_JUMP_S_MAX, CLOCK_JUMP_S_MAX))

    def _moment(self, seconds_max: float) -> None:
        time.sleep(self.random.random() * seconds_max)

    # Checks.

    def _check_newest(self) -> None:
        """Check what is in the store and was not checked yet."""
        store = Store.open(self.store)
        for entry in store.entries():
            if str(entry.id) in self.checked:
                continue
            try:
                snapshot = store.load(entry.id)
            except StillframeError as error:
                if isinstance(error, UsageError) and not local(entry.directory).exists():
                    continue  # it was let go meanwhile
                raise
            self.done["messages in transit"] += check_snapshot(snapshot)
            self.done["snapshots checked"] += 1
            self.checked.add(str(entry.id))

    def end(self) -> None:
        """Stop the system in order, and look at what it left behind."""
        run = self.runs[-1]
        send(run.process.pid, signal.SIGINT)
        assert run.process.wait(RECOVERY_TIMEOUT_S) == 0, self.words()
        assert not self.machine.processes(PROCESS), "processes outlived their system"
        published = [name for one in self.runs for name in self._published(one)]
        assert len(published) == len(set(published)), "a snapshot was published twice"
        self.done["snapshots published"] = len(published)
        with contextlib.closing(Store.open(self.store)) as store:
            self.done["snapshots verified"] = store.verify_all(lambda entry, count: None)
        self._check_newest()
        self._check_history()
        self._check_files()

    def _check_history(self) -> None:
        """Check that no number was used twice, and that every snapshot ended once."""
        happened = [line.what for line in read_history(self.store)]
        begun = [what.snapshot for what in happened if isinstance(what, SnapshotBegan)]
        ended = [
            what.snapshot
            for what in happened
            if isinstance(what, SnapshotPublished | SnapshotAbandoned)
        ]
        assert len({snapshot.number for snapshot in begun}) == len(begun), "a number came twice"
        assert len(set(ended)) == len(ended), "a snapshot ended twice"
        lost = set(begun) - set(ended)
        assert not lost, f"nobody knows how these ended: {sorted(map(str, lost))}"
        self.done["snapshots begun"] = len(begun)
        self.done["takeovers"] = sum(isinstance(what, TakenOver) for what in happened)
        self.done["epochs"] = sum(isinstance(what, EpochBegan) for what in happened)

    def _check_files(self) -> None:
        """Check that the store holds what its manifests list, and nothing else."""
        known = {self.store / name for name in STORE_FILES}
        for directory in (self.store / "snapshots").iterdir():
            content = json.loads((directory / "manifest.json").read_bytes())["content"]
            known |= {directory / record["name"] for record in content["files"]}
            known.add(directory / "manifest.json")
        found = {path for path in self.store.rglob("*") if not path.is_dir()}
        orphans = sorted(str(path.relative_to(self.store)) for path in found - known)
        assert not orphans, f"no manifest lists {orphans}"
        self.done["files listed"] = len(found & known)


def _is_restore_point(event: dict[str, Any]) -> bool:
    return event["event"] == "SnapshotPublished" and bool(event["entry"]["is_restore_point"])


def main() -> int:
    """Run the soak as the command line says."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if (lack := missing()) is not None:
        print(lack, file=sys.stderr)
        return 2
    if not is_inside():
        enter(MODULE, sys.argv[1:])
    print(f"SEED={options.seed}", flush=True)
    chaos = Chaos(options.seed, Machine())
    chaos.go(options.minutes)
    chaos.end()
    for what, count in sorted(chaos.done.items()):
        print(f"{what}: {count:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
