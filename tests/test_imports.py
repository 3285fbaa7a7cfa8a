"""The modules of users are found, and their files are never imported in place of other modules."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.imports import (
    add_cwd_to_path,
    load_function,
    load_topology,
    search_path,
    set_search_path,
)

ROOT = Path(__file__).parent.parent
STILLFRAME = Path(sys.executable).with_name("stillframe")
SOURCE = """
from stillframe import Process, Topology
class Idle(Process):
    count: int = 0
system = Topology({"A": Idle()}, [])
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of a user that is on the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    add_cwd_to_path(str(tmp_path))
    return tmp_path


def test_what_a_module_of_a_user_imports_is_found_beside_it_first(here: Path) -> None:
    """Even if a package has a module of that name; later, that of the package comes first."""
    (here / "numpy.py").write_text("def holds(view):\n    return True\n")
    (here / "own_predicate.py").write_text("from numpy import holds\n")
    before = sys.modules.pop("numpy", None)
    try:
        assert load_function("own_predicate:holds")(None) is True
        assert sys.path[-1] == str(here)
        assert search_path()[0] == str(here)
    finally:
        sys.modules.pop("numpy")
        if before is not None:
            sys.modules["numpy"] = before


def test_another_program_looks_in_the_same_order(here: Path) -> None:
    """However often it is told: what Python does not have there is the user's."""
    (here / "told.py").write_text("import sys\ndef path():\n    return PATH\nPATH = [*sys.path]\n")
    told = search_path()
    sys.path.remove(str(here))
    for _ in range(2):
        set_search_path(told)
        assert search_path() == told
        assert sys.path == [*told[1:], told[0]]
    assert load_function("told:path")() == told


def test_a_hidden_file_of_a_user_is_named(here: Path) -> None:
    """With the module that hides it, and what to do."""
    (here / "token.py").write_text("class Token: pass\n")
    (here / "uses_token.py").write_text("from token import Token\n")
    advice = re.escape(f"{here / 'token.py'} is hidden by the module 'token' of ")
    with pytest.raises(UsageError, match=advice + ".*: rename it"):
        load_topology("uses_token:system")
    with pytest.raises(UsageError, match=advice):
        load_topology("token:system")


@pytest.mark.slow
def test_files_that_are_called_like_other_modules_are_not_imported(tmp_path: Path) -> None:
    """None of Python's modules and of the installed packages is looked for beside a topology, by
    the command, the fork server, and the processes, which write an event log and fragments."""
    names = set(importlib.metadata.packages_distributions()) | sys.stdlib_module_names
    for name in names - {"stillframe"}:
        (tmp_path / f"{name}.py").write_text(f"print('{name} was imported')\nraise OSError\n")
    (tmp_path / "case.py").write_text(SOURCE)
    run = "run case:system --store st --duration 1ms --event-log ev --fragments fr".split()
    for words in (run, ["list", "st"]):
        ended = subprocess.run(
            [STILLFRAME, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "was imported" not in ended.stdout + ended.stderr
        assert ended.returncode == 0, ended.stderr


def test_every_python_that_is_started_ignores_the_current_directory() -> None:
    """Its files would come before the modules of Python, while Python itself starts."""
    starts = [
        line.strip()
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r'sys\.executable, "', line)
    ]
    assert len(starts) > 1
    assert [line for line in starts if '"-P"' not in line and '"-I"' not in line] == []


def test_the_command_as_a_module_ignores_files_of_the_current_directory(tmp_path: Path) -> None:
    """``python -m stillframe`` imports none of Python's modules from there."""
    for name in ("token", "logging", "inspect"):
        (tmp_path / f"{name}.py").write_text("raise OSError\n")
    command = [sys.executable, "-m", "stillframe", "--version"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.returncode) == ("", 0)


@pytest.mark.parametrize(
    "name",
    [
        *("Process", "pipeline.Pipeline", "services.attach", "sim.explore", "spark.spark_session"),
        *("analytics.audit_store", "importer.read_log", "cuts.consistent_cuts", "tracefile.read"),
    ],
)
def test_python_without_assertions_is_refused(name: str) -> None:
    """By every package of public names, with what to do."""
    package, _, name = f"stillframe.{name}".rpartition(".")
    code = f"from {package} import {name}"
    ended = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False
    )
    assert "UsageError: Python runs with -O" in ended.stderr
    assert "start it without -O, and unset PYTHONOPTIMIZE" in ended.stderr


def test_no_command_runs_without_assertions() -> None:
    """It says what to do."""
    ended = subprocess.run(
        [STILLFRAME, "list", "nowhere"],
        env={"PYTHONOPTIMIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: Python runs with -O, or with PYTHONOPTIMIZE set")
