"""Programs that can be talked to and killed, each in a process group of its own."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent.parent.parent
LINE_TIMEOUT_S = 300.0
"""A Spark driver starts in ten seconds, on a busy machine in a minute."""

_LAST_WORDS = 4000


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
