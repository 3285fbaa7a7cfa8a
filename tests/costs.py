"""The CPU time of each test file, and which file runs where.

Three pytest processes share the tests (pytest-xdist). All tests of one file run in one of them, and
so do those of files that share something costly (``SHARED``). The files that took longest when
``tests/costs.json`` was written begin first, so that all end at about the same time.

``scripts/cpu.py`` measures the whole run, compares it with ``tests/costs.json``, and names what
grew.
"""

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.cpu import BASELINE, CPU, MEASURED, ROOT, read, started_in

TICKS = os.sysconf("SC_CLK_TCK")
UTIME = 11
"""Where ``utime`` stands in ``/proc/PID/stat`` behind the program's name; the next three are
``stime`` and both of children that were waited for (proc(5))."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and all its descendants, running or waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return total + sum(map(_ticks, _descendants())) / TICKS


def _ticks(pid: int) -> int:
    """Return what a descendant has used; nothing if it has ended since."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[UTIME : UTIME + 4])


def _descendants() -> Iterator[int]:
    """Yield the pid of every running descendant.

    Linux lists the children of each thread. Most tests have none, and a look at every process of
    the machine before and after each of thousands of tests takes longer than most of them.
    """
    waiting = [os.getpid()]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{parent}/task").iterdir():
                children = [int(pid) for pid in (task / "children").read_bytes().split()]
                waiting += children
                yield from children


class Costs:
    """Measures the CPU time of each test file in a pytest process, and adds them up in the one that
    controls the others."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Add the CPU time of a test, with its fixtures, to its file."""
        before = cpu_s()
        result = yield
        # The sum falls when a program ends without waiting for its children, as Chromium does.
        self._add(file_of(item), max(0.0, cpu_s() - before))
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the figures to the controlling process, or write them if this is it.

        What still runs outlives this process: ``scripts/cpu.py`` adds all that it has used to the
        file that it was started in.
        """
        for pid in _descendants():
            if file := started_in(pid):
                self._add(file, -_ticks(pid) / TICKS)
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = dict(self.by_file)
        else:
            MEASURED.parent.mkdir(exist_ok=True)
            costs = {file: round(seconds, 1) for file, seconds in sorted(self.by_file.items())}
            MEASURED.write_text(json.dumps({CPU: costs}, indent=0))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take the figures of a process that ended."""
        for file, seconds in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._add(file, seconds)

    def _add(self, file: str, seconds: float) -> None:
        self.by_file[file] = self.by_file.get(file, 0.0) + seconds


SHARED = ("spark", "kafka_server", "browser", "distributions")
"""Fixtures that are costly to make: every file that uses one runs where the others do."""


def file_of(item: pytest.Item) -> str:
    """Return the test's file as ``costs.json`` names it."""
    return item.path.relative_to(ROOT).as_posix()


def group(items: list[pytest.Item]) -> None:
    """Mark each test with the group that runs in one process, unless it says so itself.

    The group is that of the first fixture of ``SHARED`` that any test of the file uses; else the
    file.
    """
    shared: dict[str, set[str]] = {}
    for item in items:
        shared.setdefault(file_of(item), set()).update(getattr(item, "fixturenames", ()))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            file = file_of(item)
            name = next((name for name in SHARED if name in shared[file]), file)
            item.add_marker(pytest.mark.xdist_group(name))


def put_longest_first(items: list[pytest.Item]) -> None:
    """Order the tests by the cost of their group, the costliest first: xdist hands them out so."""
    baseline: dict[str, float] = read(BASELINE)[CPU] if BASELINE.exists() else {}
    cost: dict[str, float] = {}
    for name, file in {(group_of(item), file_of(item)) for item in items}:
        cost[name] = cost.get(name, 0.0) + baseline.get(file, 0.0)
    items.sort(key=lambda item: (-cost[group_of(item)], group_of(item)))


def group_of(item: pytest.Item) -> str:
    """Return the group of tests that run in one process to which this one belongs."""
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return str(marker.args[0])
