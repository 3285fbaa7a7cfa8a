"""Run a command and measure the CPU time of all its descendants.

``python scripts/cpu.py [--compare] COMMAND...``

A process that is killed before it waited for its children takes their figures with it. Therefore
this program becomes the "child subreaper" of its descendants (prctl(2)): a process that loses its
parent becomes a child of this one, and the kernel adds its CPU time here when it is waited for. It
belongs to the test file that the process was started in, which its environment names.

How much CPU time the same work needs depends on the machine, and on what else runs there. So a
short piece of work, the calibration, runs again and again beside the command; the mean of what it
needed is the unit. With ``--compare``, ``build/costs.json`` gets that unit, and the report compares
the run, in units, with the one recorded in ``tests/costs.json`` and names the test files that grew.

The exit code is the command's. SIGTERM and SIGHUP end all descendants, then this program.
"""

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "tests" / "costs.json"
MEASURED = ROOT / "build" / "costs.json"
PR_SET_CHILD_SUBREAPER = 36
PARENT = 1
"""Where the parent stands in ``/proc/PID/stat`` behind the program's name (proc(5))."""
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
ORPHAN_WAIT_S = 10.0
"""How long descendants have to end after the command or a signal, in seconds."""
LOOK_EVERY_S = 0.1
"""How often new orphans are asked for their test, in seconds: one that has ended says nothing."""
CURRENT_TEST = b"PYTEST_CURRENT_TEST="
"""The variable in which pytest names the test that runs (``FILE::NAME (PHASE)``)."""
CALIBRATE_EVERY_S = 5.0
"""How long the calibration, which takes about 0.1 s, rests between two runs, in seconds."""
TOUCHED_BYTES = 2**23
"""How much fresh memory a calibration writes to, in bytes."""
UNIT = "unit_s"
"""Where a file of costs has the CPU time of one calibration, in seconds; only after a whole
check."""
CPU = "cpu_s"
"""Where a file of costs has the CPU time of each test file, in seconds."""
REST = "everything else"
"""What was used outside of test files: static checks, servers, what is set up."""
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


class Calibration:
    """Runs the same short work every few seconds, as long as it is entered, and measures the CPU
    time of each."""

    def __init__(self) -> None:
        self.used_s: list[float] = []
        self._stopped = threading.Event()
        self._running = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Begin with the first calibration."""
        self._running.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._running.join()

    @property
    def unit_s(self) -> float:
        """The mean CPU time of a calibration, in seconds."""
        return sum(self.used_s) / len(self.used_s)

    def _run(self) -> None:
        while True:
            began = time.thread_time()
            calibrate()
            self.used_s.append(time.thread_time() - began)
            if self._stopped.wait(CALIBRATE_EVERY_S):
                return


def calibrate() -> None:
    """Do what tests do, always the same: bytecode and small objects, fresh pages, hashes."""
    rows = sorted((str(number), {"number": number}) for number in range(20_000))
    with mmap.mmap(-1, TOUCHED_BYTES) as memory:
        for offset in range(0, TOUCHED_BYTES, mmap.PAGESIZE):
            memory[offset] = 1
        hashlib.sha256(memory).digest()
    json.loads(json.dumps(rows))


def run(command: list[str], orphans: Orphans) -> int:
    """Run `command`, wait for it and for the orphans that end meanwhile; return its exit code, as a
    shell does for one that was ended by a signal.

    A program in the background, or under nohup, ignores signals of the terminal, and its children
    inherit that: tests that send such a signal would wait for ever. The command gets a session of
    its own instead, which the terminal does not reach, and meets each signal as usual.
    """
    is_apart = any(signal.getsignal(number) is signal.SIG_IGN for number in FROM_TERMINAL)
    if is_apart:
        names = ",".join(number.name.removeprefix("SIG") for number in FROM_TERMINAL)
        command = ["env", f"--default-signal={names}", *command]
    child = subprocess.Popen(command, start_new_session=is_apart)
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


def keep(used_s: float, orphans_s: dict[str, float], unit_s: float | None) -> None:
    """Complete the costs that pytest wrote, if it did: add what orphans used to their files, and
    what is in no file. `unit_s` is None if the run cannot be compared."""
    if MEASURED.exists():
        figures: dict[str, float] = read(MEASURED)[CPU]
        for file, seconds in orphans_s.items():
            figures[file] = figures.get(file, 0.0) + seconds
        figures[REST] = used_s - sum(figures.values())
        rounded = {file: round(seconds, 1) for file, seconds in sorted(figures.items())}
        unit = {} if unit_s is None else {UNIT: round(unit_s, 6)}
        MEASURED.write_text(json.dumps(unit | {CPU: rounded}, indent=0) + "\n")


def read(costs: Path) -> dict[str, Any]:
    """Return what a file of costs holds."""
    found: dict[str, Any] = json.loads(costs.read_text())
    return found


def growth(before: dict[str, Any], now: dict[str, Any]) -> float:
    """Return how many times the recorded CPU time a run needed, each in its own units."""
    first, second = (float(sum(costs[CPU].values()) / costs[UNIT]) for costs in (before, now))
    return second / first


def grown(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each test file that needs more CPU time than recorded, the ones that grew
    most first, in seconds of the machine on which it ran now."""
    scale = now[UNIT] / before[UNIT]
    recorded = {file: seconds * scale for file, seconds in before[CPU].items()}
    lines = {
        file: (seconds - earlier, f"  {file}: {earlier:.1f} s -> {seconds:.1f} s")
        for file, seconds in now[CPU].items()
        if seconds > (earlier := recorded.get(file, 0.0)) + GROWTH_S * scale
    }
    return [line for _, line in sorted(lines.values(), reverse=True)][:NAMED_COUNT_MAX]


def comparison() -> list[str]:
    """Return what there is to say of a run beside the recorded one."""
    if not MEASURED.exists():
        return ["cpu: there is nothing to compare: no test ran to its end"]
    before, now = read(BASELINE), read(MEASURED)
    lines = [f"cpu: {growth(before, now):.2f} times the units recorded in tests/costs.json"]
    if files := grown(before, now):
        lines += ["cpu: what grew, in seconds of this machine:", *files]
    return lines


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
    """Run, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compare", action="store_true", help="compare with what tests/costs.json records"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    MEASURED.unlink(missing_ok=True)
    adopt_orphans()
    with Orphans() as orphans, Calibration() as calibration:
        end_by_signal(orphans)
        code = run(options.command, orphans)
        report(end_orphans(orphans))
    used_s, unit_s = cpu_s(), calibration.unit_s
    keep(used_s, orphans.used_s, unit_s if options.compare else None)
    print(
        f"cpu: {used_s:.1f} s = {used_s / 60:.1f} min in all processes = {used_s / unit_s:,.0f} "
        f"units of {1000 * unit_s:.1f} ms (mean of {len(calibration.used_s)} calibrations)",
        *(comparison() if options.compare else ()),
        sep="\n",
        file=sys.stderr,
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
