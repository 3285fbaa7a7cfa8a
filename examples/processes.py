"""The programs of a pipeline as operating-system processes that can be killed together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from stillframe.errors import Unavailable

READY = "takes part"
"""The line that each program prints when it has joined: from then on snapshots include it."""
FEED = "feed"
"""The program that ends when it has sent everything."""
POLL_S = 0.1
_LAST_WORDS_BYTES = 2000


class Processes:
    """The programs of one pipeline, which are modules of one package.

    Args:
        package: the name of the package.
        pipeline: the path or address of the pipeline, the first argument of each program.
        logs: a directory for what they say, and for what Spark keeps for a while.
        variables: further environment variables of each program.
    """

    def __init__(
        self, package: str, pipeline: object, logs: Path, variables: Mapping[str, str] = {}
    ) -> None:
        self._package = package
        self._pipeline = str(pipeline)
        self._logs = logs
        self._variables = {"SPARK_LOCAL_DIRS": str(logs), "TMPDIR": str(logs), **variables}
        self._running: dict[str, subprocess.Popen[str]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, *programs: tuple[str, ...]) -> None:
        """Start programs at once, and wait until each reports that it has joined.

        Args:
            programs: the name of each one, and its further arguments.

        Raises:
            Unavailable: a program did not start; the error has its last output.
        """
        for name, *arguments in programs:
            self._running[name] = self._started(name, arguments)
        for name, *_ in programs:
            process = self._running[name]
            assert process.stdout is not None
            while READY not in (line := process.stdout.readline()):
                if not line:
                    process.wait()
                    self._fail(name)

    def check(self) -> None:
        """Check that no process ended early.

        Raises:
            Unavailable: a process ended early; the error has its last output.
        """
        for name, process in self._running.items():
            if process.poll() is not None and (name, process.returncode) != (FEED, 0):
                self._fail(name)

    def has_ended(self, name: str) -> bool:
        """Return whether a program has ended."""
        return self._running[name].poll() is not None

    def wait_for_feed(self) -> None:
        """Wait until the feed has sent everything.

        Raises:
            Unavailable: another process ended, or the feed failed.
        """
        while not self.has_ended(FEED):
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

    def _started(self, name: str, arguments: list[str]) -> subprocess.Popen[str]:
        with self._log(name).open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"{self._package}.{name}", self._pipeline, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parents[1],
                env={**os.environ, **self._variables},
                start_new_session=True,
            )

    def _fail(self, name: str) -> None:
        said = self._log(name).read_text(errors="replace")[-_LAST_WORDS_BYTES:]
        ended = self._running[name].returncode
        raise Unavailable(f"{name} ended with {ended}; it said last: {said}")

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
