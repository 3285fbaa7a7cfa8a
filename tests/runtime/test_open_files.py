"""A system whose processes and channels need many open files: its limit is checked at the start."""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.errors import UsageError
from stillframe.imports import load_topology
from stillframe.runtime import os_process
from stillframe.runtime.os_process import (
    PROGRAM_FILE_COUNT,
    require_channel_files,
    require_open_files,
)
from tests.runtime.watch import program

PROCESS_COUNT = 24
NEEDED = PROGRAM_FILE_COUNT + 3 * PROCESS_COUNT
"""Of the supervisor: for each process a connection, a descriptor of the process and a pipe."""

Limit = Callable[[int, int], list[tuple[int, int]]]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Pretend that the limits, soft and hard, are these; return the list of those that are set."""

    def limit(soft: int, hard: int) -> list[tuple[int, int]]:
        changes: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, pair: changes.append(pair))
        return changes

    return limit


@pytest.mark.parametrize("limits", [(100, 100), (100, 500), (resource.RLIM_INFINITY,) * 2])
def test_a_limit_that_is_enough_stays(limit: Limit, limits: tuple[int, int]) -> None:
    """The application may have chosen it."""
    changes = limit(*limits)
    require_open_files(100, "the system")
    assert not changes


def test_a_soft_limit_is_raised_to_the_hard_one(limit: Limit) -> None:
    """If that is enough."""
    changes = limit(100, 500)
    require_open_files(101, "the system")
    assert changes == [(500, 500)]


def test_a_hard_limit_that_is_too_low_is_an_error_with_limit_need_and_remedy(limit: Limit) -> None:
    """Before anything has started."""
    changes = limit(100, 1024)
    with pytest.raises(UsageError) as caught:
        require_open_files(1264, "the supervisor of 400 processes")
    assert str(caught.value).startswith(
        "the supervisor of 400 processes needs up to 1,264 open files, and the hard limit of this "
        "program is 1,024: raise it with 'ulimit -Hn 1264' in a root shell, with "
    )
    assert not changes


def test_a_process_needs_a_file_for_each_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both directions."""
    needs: list[tuple[int, str]] = []
    monkeypatch.setattr(os_process, "require_open_files", lambda *need: needs.append(need))
    require_channel_files(load_topology(program("pipeline")).description, "B")
    assert needs == [(PROGRAM_FILE_COUNT + 2, "process B, which has 2 channels,")]


def run_with(flags: str, count: int, directory: Path) -> tuple[int, str]:
    """Run a mesh under the limit that ``ulimit`` sets with `flags`; return the exit code, and what
    was written."""
    (directory / "many.py").write_text(
        "from stillframe import Topology\n"
        "from tests.runtime.programs import Sink\n"
        f"many = Topology.mesh({{f'P{{n}}': Sink() for n in range({PROCESS_COUNT})}})\n"
    )
    command = f"{sys.executable} -m stillframe run many:many --store store --duration 10ms"
    done = subprocess.run(
        ["bash", "-c", f"ulimit {flags} {count} && exec {command}"],
        cwd=directory,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "count"), [("-n", NEEDED), ("-Sn", 64)])
def test_as_many_files_as_are_needed_are_enough(tmp_path: Path, flags: str, count: int) -> None:
    """What is computed is the most that is open at once; a low soft limit is raised for all."""
    code, said = run_with(flags, count, tmp_path)
    assert code == 0, said
    assert "from snapshot P0-" in said


def test_a_dashboard_that_could_not_open_files_says_so_at_its_start(
    limit: Limit, tmp_path: Path
) -> None:
    """Rather than in answer to some request of a page."""
    limit(16, 16)
    result = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert result.exit_code == 2
    assert "the dashboard needs up to 64 open files, and the hard limit of this" in result.stderr


def test_with_fewer_files_nothing_starts(tmp_path: Path) -> None:
    """The error says how many are needed."""
    code, said = run_with("-n", NEEDED - 1, tmp_path)
    assert code == 2
    assert f"the supervisor of 24 processes needs up to {NEEDED} open files" in said
    assert "epoch" not in said
