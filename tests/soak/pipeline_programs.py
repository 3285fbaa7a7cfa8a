"""The kill soaks of pipelines, and their programs: each has a process group, takes commands on its
standard input, and is killed."""

import argparse
import contextlib
import os
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from stillframe.storage.location import Location, locate

HERE = Path(__file__).parent.parent.parent
LINE_TIMEOUT_S = 300.0
"""A Spark driver starts in ten seconds, on a busy machine in a minute."""

_LAST_WORDS = 4000
_WRONG_MAX = 50
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Program:
    """A Python module that runs as a program and says by lines how far it is.

    Args:
        module: its name.
        arguments: for it.
        log: where its standard error goes, behind what is there.
    """

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        self.name = " ".join((module, *arguments[:1]))
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=HERE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def line(self) -> str | None:
        """Return the next line that it says; None when it has ended."""
        try:
            return self._lines.get(timeout=LINE_TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"{self.name} says nothing.{self.last_words()}") from None

    def expect(self, line: str) -> None:
        """Wait until it says a line."""
        while (said := self.line()) != line:
            assert said is not None, f"{self.name} ended before {line!r}.{self.last_words()}"

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{self.name} ended before {line!r}.{self.last_words()}") from None

    def end(self) -> None:
        """Wait until it has ended well."""
        while self.line() is not None:
            pass
        code = self.process.wait()
        assert code == 0, f"{self.name} ended with {code}.{self.last_words()}"

    def check_alive(self) -> None:
        """Complain if it has ended by itself."""
        code = self.process.poll()
        assert code is None, f"{self.name} ended by itself with {code}.{self.last_words()}"

    def kill(self, *, alone: bool = False) -> None:
        """Kill -9 all of it, or the Python process alone, whose Java then finds itself orphaned."""
        if alone:
            self.process.kill()
        else:
            self.clear_away()
        self.process.wait()

    def freeze(self) -> None:
        """Stop all of it in the middle of whatever it does, until ``wake``."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on after ``freeze``: for it no time has passed."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def clear_away(self) -> None:
        """Kill whatever of it may be left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill whatever of it may be left, and let go of its pipes."""
        self.clear_away()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            # What could not be written to it is written once more when it is closed.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def last_words(self) -> str:
        """Return the end of its log, for an error."""
        said = self.log.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip()
        return f" It said last:\n{said or 'nothing'}"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class KillSoak:
    """What the kill soaks of pipelines share: chance, and the programs that they start.

    Args:
        seed: of all that is random.
        directory: for what the programs write.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        # Full files of state as often as they can be: those of an abandoned timeline are dangerous.
        self.settings = ["spark.sql.streaming.stateStore.minDeltasForSnapshot=5"]
        self.settings += ["spark.sql.streaming.stateStore.maintenanceInterval=500ms"]
        if seed % 2:
            self.settings += [f"spark.sql.streaming.stateStore.providerClass={_ROCKSDB}"]
        self.ever: list[Program] = []
        self.done: Counter[str] = Counter()

    def start(self, module: str, *arguments: str) -> Program:
        """Start one of the programs beside this one."""
        log = self.directory / f"{module}.log"
        program = Program(f"tests.soak.{module}", *arguments, log=log)
        self.ever.append(program)
        return program

    def pause(self, seconds_max: float) -> None:
        """Let a random time go by: it is the moment of a kill that is random."""
        select.select([], [], [], self.random.random() * seconds_max)

    def close(self) -> None:
        """Kill all that is left."""
        for program in self.ever:
            program.close()


def run_as_program(
    description: str | None,
    soak: Callable[[int, int, Path, Location | None], tuple[KillSoak, list[str]]],
    claim: str,
) -> None:
    """Run the full form of a kill soak, print what it did, and exit with 1 if anything is wrong.

    Args:
        description: for ``--help``.
        soak: called with the seed, the number of kills, an empty directory and the place of the
            pipeline, if one was given. It returns what was done, and what is wrong.
        claim: what is true if nothing is.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--place", type=locate, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"SEED={seed}", flush=True)
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="stillframe-soak-"))
    run, wrong = soak(seed, options.kills, directory, options.place)
    for what, count in sorted(run.done.items()):
        print(f"{what:60} {count:>8,}")
    print(f"{'all of it':60} {time.monotonic() - began:>8.0f} s")
    if wrong:
        print(f"\nwrong, and left in {directory}:", *wrong[:_WRONG_MAX], sep="\n")
        sys.exit(1)
    print(claim)
    shutil.rmtree(directory)
