"""Commands that race each other on one store: each ends, or says that it supervises the system.

python -m tests.soak.races --seed 1 --rounds 20
"""

import argparse
import dataclasses
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from stillframe.errors import Unavailable
from stillframe.runtime.os_process import OsProcess, is_alive
from stillframe.runtime.run_file import find_running, read_run_file
from stillframe.store.store import Store

ROOT = Path(__file__).parent.parent.parent
BANK = "tests.soak.ledger:bank"
SUPERVISES = "this command supervises the system of"
DEADLINE_S = 150.0
"""Longer than any command waits: one that has not ended by then, hangs."""
COMMAND_COUNT = 3
KINDS = ("restore", "restore OLD", "resume", "snapshot", "savepoint", "stop", "kill")
FINE = (0, 1, 2, -signal.SIGKILL)


@dataclasses.dataclass
class Racer:
    """One command that runs.

    Attributes:
        words: what was called.
        process: that runs it.
        said: its lines of stderr so far.
        settled: has an item when it supervises, and one when it has closed its stderr.
    """

    words: tuple[str, ...]
    process: "subprocess.Popen[str]"
    said: list[str]
    settled: "queue.SimpleQueue[str]"

    @classmethod
    def start(cls, *words: str) -> "Racer":
        """Start a command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "stillframe", *words],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        racer = cls(words, process, [], queue.SimpleQueue())
        threading.Thread(target=racer._read, daemon=True).start()
        return racer

    @property
    def supervises(self) -> bool:
        """Whether it has said so, as the first that it does itself."""
        return any(SUPERVISES in line for line in self.said)

    def settle(self, *, until_ended: bool = False) -> None:
        """Wait until it has ended, or supervises the system; fail if it does neither."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                news = self.settled.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self} neither ended nor supervises") from None
            if news == "ended":
                code = self.process.wait()
                assert code in FINE, f"{self} ended with {code}"
                return
            if not until_ended:
                return

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said.append(line)
                if SUPERVISES in line:
                    self.settled.put("supervises")
        self.settled.put("ended")

    def __str__(self) -> str:
        return f"{' '.join(self.words)} ({self.process.pid}), which said {''.join(self.said)!r},"


def race(seed: int, round_count: int, directory: Path) -> list[Racer]:
    """Let commands race on a new store in `directory`, in so many rounds; return all of them.

    Raises:
        AssertionError: one neither ended nor supervises, ended with a bug, or two supervise.
    """
    chance, store = random.Random(seed), directory / "store"
    racers = [Racer.start("run", BANK, "--store", str(store), "--every", "50ms")]
    try:
        for _ in range(round_count):
            _one_round(chance, store, racers)
        _end_all(racers)
    finally:
        for racer in racers:
            racer.process.kill()
            racer.process.wait()
        _leave_nothing(store)
    return racers


def _one_round(chance: random.Random, store: Path, racers: list[Racer]) -> None:
    """Wait until a system runs, and let some commands race."""
    if not any(racer.supervises and racer.process.poll() is None for racer in racers):
        racers.append(Racer.start("resume", str(store), "--every", "50ms"))
        racers[-1].settle()
    old = _published(store)
    begun = []
    for number in range(COMMAND_COUNT):
        kind = chance.choice(KINDS)
        if kind in ("stop", "kill"):
            _signal(store, signal.SIGTERM if kind == "stop" else signal.SIGKILL)
            continue
        words = {
            "restore": ("restore", str(store)),
            "restore OLD": ("restore", str(store), old),
            "resume": ("resume", str(store)),
            "snapshot": ("snapshot", str(store)),
            "savepoint": ("savepoint", str(store), f"s{len(racers)}-{number}"),
        }[kind]
        begun.append(Racer.start(*words))
        time.sleep(chance.random() * 0.8)  # races come from moments, and the seed chooses them
    racers += begun
    for racer in begun:
        racer.settle()
    alive = [r for r in racers if r.supervises and r.process.poll() is None]
    # One that was told to stop may still be at its last snapshot; the store has one writer.
    for racer in alive[:-1]:
        racer.settle(until_ended=True)


def _published(store: Path) -> str:
    """Return the oldest snapshot, when there is one: the system runs then, or did."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        try:
            entries = Store.open(store).entries()
        except Exception:  # noqa: BLE001 - it is being made
            entries = []
        if entries:
            return str(entries[0].id)
        time.sleep(0.05)
    raise AssertionError("no snapshot was published")


def _signal(store: Path, number: signal.Signals) -> None:
    """Send a signal to whoever supervises the system of `store`."""
    try:
        os.kill(find_running(store).supervisor.pid, number)
    except (Unavailable, ProcessLookupError):
        pass  # nobody does: that is a race as well


def _end_all(racers: list[Racer]) -> None:
    """Stop whoever supervises still, and wait for the end of all."""
    for racer in racers:
        if racer.process.poll() is None:
            racer.process.send_signal(signal.SIGTERM)
    for racer in racers:
        if racer.process.poll() is None:
            racer.settle(until_ended=True)


def _leave_nothing(store: Path) -> None:
    """End the processes that a killed supervisor has left."""
    left = read_run_file(store)
    children: list[OsProcess] = [] if left is None else list(left.children.values())
    for child in children:
        if is_alive(child):
            os.kill(child.pid, signal.SIGKILL)


def main() -> None:
    """Race with the seed and for the rounds that the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        racers = race(options.seed, options.rounds, Path(directory))
    for racer in racers:
        print(racer.process.returncode, racer)
    print(f"seed {options.seed}: {len(racers)} commands raced, and each ended or supervised")


if __name__ == "__main__":
    main()
