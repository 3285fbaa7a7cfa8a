"""Run a command and measure the CPU time of all its descendants.

``python scripts/cpu.py [--limit MINUTES] COMMAND...``

A process that is killed before it waited for its children takes their figures with it. Therefore
this program becomes the "child subreaper" of its descendants (prctl(2)): a process that loses its
parent becomes a child of this one, and the kernel adds its CPU time here when it is waited for. It
belongs to the test file that the process was started in, which its environment names.

The exit code is the command's; or 1 if the command succeeded and its descendants used more than the
limit, in which case the test files that grew against ``tests/costs.json`` are named. SIGTERM and
SIGHUP end all descendants, then this program.
"""

import argparse
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Self

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "tests" / "costs.json"
MEASURED = ROOT / "build" / "costs.json"
PR_SET_CHILD_SUBREAPER = 36
PARENT = 1
"""Where the parent stands in ``/proc/PID/stat`` behind the program's name (proc(5))."""
ORPHAN_WAIT_S = 10.0
"""How long descendants have to end after the command or a signal, in seconds."""
LOOK_EVERY_S = 0.1
"""How often new orphans are asked for their test, in seconds: one that has ended says nothing."""
CURRENT_TEST = b"PYTEST_CURRENT_TEST="
"""The variable in which pytest names the test that runs (``FILE::NAME (PHASE)``)."""
GROWTH_S = 2.0
"""A file's growth below this is noise, in seconds."""
NAMED_COUNT_MAX = 10


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Orphans:
    """Finds out which test file each adopted process was started in, and adds up what they used."""

    def __init__(self) -> None:
        self.files: dict[int, str] = {}
        self.used_s: dict[str, float] = {}
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        """Begin to look at new children."""
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            for task in Path("/proc/self/task").iterdir():
                for pid in map(int, (task / "children").read_bytes().split()):
                    if pid not in self.files and (file := started_in(pid)):
                        self.files[pid] = file

    def add(self, pid: int, usage: resource.struct_rusage) -> None:
        """Add what a child used that was waited for."""
        if file := self.files.pop(pid, ""):
            self.used_s[file] = self.used_s.get(file, 0.0) + usage.ru_utime + usage.ru_stime


def started_in(pid: int) -> str:
    """Return the test file in which a running process was started; "" if none is known."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    named = next((entry for entry in variables if entry.startswith(CURRENT_TEST)), b"")
    return named.removeprefix(CURRENT_TEST).partition(b"::")[0].decode(errors="replace")


def run(command: list[str], orphans: Orphans) -> int:
    """Run `command`, wait for it and for the orphans that end meanwhile; return its exit code, as a
    shell does for one that was ended by a signal."""
    child = subprocess.Popen(command)
    # Ctrl-C reaches the command too: it decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status, usage = os.wait3(0)
        if pid == child.pid:
            code = child.returncode = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        orphans.add(pid, usage)


def end_by_signal(orphans: Orphans) -> None:
    """From now on, let SIGTERM and SIGHUP end all descendants, then this program."""
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup leaves it
    ]

    def end(received: int, _: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        report(end_orphans(orphans, ask=True))
        signal.signal(received, signal.SIG_DFL)
        os.kill(os.getpid(), received)

    for number in numbers:
        signal.signal(number, end)


def end_orphans(orphans: Orphans, *, ask: bool = False) -> list[str]:
    """Wait for descendants that are left; return the command lines of those that did not end in
    time, and end them.

    Args:
        orphans: adds up what they used.
        ask: whether to send SIGTERM to each child, and to each descendant that becomes one: parents
            first, because a parent may begin something else when a child of its own ends.
    """
    late: list[str] = []
    asked: set[int] = set()
    while left := list(_children()):
        if ask:
            for pid in set(left) - asked:
                os.kill(pid, signal.SIGTERM)
            asked.update(left)
        descriptors = [os.pidfd_open(pid) for pid in left]
        ended, _, _ = select.select(descriptors, [], [], 0 if late else ORPHAN_WAIT_S)
        for descriptor in descriptors:
            os.close(descriptor)
        if not ended:
            for pid in left:
                late.append(_command_line(pid))
                os.kill(pid, signal.SIGKILL)
                orphans.add(pid, os.wait4(pid, 0)[2])
        while _child_ended(orphans):
            pass
    return late


def report(late: list[str]) -> None:
    """Print the command lines of descendants that did not end in time."""
    for line in late:
        print(
            f"cpu: still running {ORPHAN_WAIT_S:.0f} s after the end, now killed: {line[:200]}",
            file=sys.stderr,
        )


def cpu_s() -> float:
    """Return the CPU seconds of all descendants that were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def add_to_files(used_s: dict[str, float]) -> None:
    """Add what orphans used to the figures of the test files."""
    if MEASURED.exists():
        figures: dict[str, float] = json.loads(MEASURED.read_text())
        for file, seconds in used_s.items():
            figures[file] = round(figures.get(file, 0.0) + seconds, 1)
        MEASURED.write_text(json.dumps(dict(sorted(figures.items())), indent=0) + "\n")


def grown() -> list[str]:
    """Return a line for each test file that needs more CPU time than in the baseline, the ones that
    grew most first."""
    if not MEASURED.exists() or not BASELINE.exists():
        return []
    baseline, now = (json.loads(path.read_text()) for path in (BASELINE, MEASURED))
    lines = {
        file: (seconds - before, f"  {file}: {before:.1f} s -> {seconds:.1f} s")
        for file, seconds in now.items()
        if seconds > (before := baseline.get(file, 0.0)) + GROWTH_S
    }
    return [line for _, line in sorted(lines.values(), reverse=True)][:NAMED_COUNT_MAX]


def _children() -> Iterator[int]:
    """Yield the children of this process, also those that ended and were not waited for."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[PARENT]) == os.getpid():
                yield int(entry.name)


def _child_ended(orphans: Orphans) -> bool:
    """Wait for a child if one has ended; return whether one had."""
    try:
        pid, _, usage = os.wait3(os.WNOHANG)
    except ChildProcessError:
        return False
    if pid:
        orphans.add(pid, usage)
    return pid != 0


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def main() -> int:
    """Run, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, metavar="MINUTES", help="fail above this")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    MEASURED.unlink(missing_ok=True)
    adopt_orphans()
    with Orphans() as orphans:
        end_by_signal(orphans)
        code = run(options.command, orphans)
        report(end_orphans(orphans))
    add_to_files(orphans.used_s)
    used_s = cpu_s()
    limit = "" if options.limit is None else f" (limit {options.limit:.0f} min)"
    print(f"cpu: {used_s:.1f} s = {used_s / 60:.1f} min in all processes{limit}", file=sys.stderr)
    if code == 0 and options.limit is not None and used_s > 60 * options.limit:
        print("cpu: FAILED: more than the limit; files that grew:", file=sys.stderr)
        print("\n".join(grown()) or "  none: everything became a little slower", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
