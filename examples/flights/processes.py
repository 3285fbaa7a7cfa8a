"""The programs of the pipeline as operating-system processes that can be killed together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from examples.flights.flows import READY
from stillframe.errors import Unavailable

POLL_S = 0.1
_LAST_WORDS_BYTES = 2000


class Processes:
    """The driver and the services of one pipeline.

    Args:
        pipeline: its directory.
        logs: a directory for what they say, and for what Spark keeps for a while.
    """

    def __init__(self, pipeline: Path, logs: Path) -> None:
        self._pipeline = pipeline
        self._logs = logs
        self._running: dict[str, subprocess.Popen[str]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, flight_count: int | None, flights_per_s: float) -> None:
        """Start the queries, and then the services.

        Raises:
            Unavailable: a program did not start; the error has its last output.
        """
        wanted = () if flight_count is None else ("--flights", str(flight_count))
        self._start("queries")
        self._start("compensation")
        self._start("feed", "--per-second", str(flights_per_s), *wanted)

    def check(self) -> None:
        """Check that no process ended early.

        Raises:
            Unavailable: a process ended early; the error has its last output.
        """
        for name, process in self._running.items():
            # The feed ends when it has replayed all flights.
            if process.poll() is not None and (name, process.returncode) != ("feed", 0):
                said = self._log(name).read_text(errors="replace")[-_LAST_WORDS_BYTES:]
                raise Unavailable(f"{name} ended with {process.returncode}; it said last: {said}")

    def wait_for_feed(self) -> None:
        """Wait until all flights were replayed.

        Raises:
            Unavailable: another process ended, or the feed failed.
        """
        while self._running["feed"].poll() is None:
            self.check()
            time.sleep(POLL_S)
        self.check()

    def kill(self) -> int:
        """Kill all processes and their descendants with SIGKILL; return their number."""
        sessions = {process.pid for process in self._running.values()}
        killed = [pid for pid in _every_pid() if _session(pid) in sessions]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._running.clear()
        return len(killed)

    def _start(self, name: str, *arguments: str) -> None:
        """Start a program and wait until it reports that it has joined."""
        command = [sys.executable, "-m", f"examples.flights.{name}", str(self._pipeline)]
        with self._log(name).open("a") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "SPARK_LOCAL_DIRS": str(self._logs)},
                start_new_session=True,
            )
        self._running[name] = process
        assert process.stdout is not None
        while READY not in (line := process.stdout.readline()):
            if not line:
                process.wait()
                self.check()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _every_pid() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _session(pid: int) -> int | None:
    """Return the session of a process, or None if it has terminated."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
