"""The measurement of a check's CPU time (``scripts/cpu.py``), run as the check runs it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parent.parent / "scripts" / "cpu.py"
BURN_S = 0.3
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass\n"


def measure(*arguments: str) -> tuple[int, float, str]:
    """Run the program; return its exit code, the CPU seconds it printed, and all it printed."""
    run = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False
    )
    line = next(line for line in run.stderr.splitlines() if line.startswith("cpu: "))
    return run.returncode, float(line.split()[1]), run.stderr


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program as a module, with a baseline and figures of its own."""
    spec = importlib.util.spec_from_file_location("cpu", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("BASELINE", "MEASURED"):
        monkeypatch.setattr(module, name, tmp_path / name)
    return module


def test_children_of_a_killed_parent_are_counted() -> None:
    """A parent that is killed before it waits takes nothing with it."""
    leave_a_child = """sh -c '"$0" -c "$1" & kill -9 $$' "$0" "$1"; exit 3"""
    code, used_s, _ = measure("sh", "-c", leave_a_child, sys.executable, BURN)
    assert code == 3
    assert used_s >= BURN_S


def test_exit_codes_are_those_of_the_command() -> None:
    """Also for one that a signal ended."""
    assert measure("false")[0] == 1
    assert measure("sh", "-c", "kill -9 $$")[0] == 137


def test_too_much_cpu_time_fails(tmp_path: Path) -> None:
    """A command that succeeds fails above the limit, and not below."""
    burn = (sys.executable, "-c", BURN)
    code, _, said = measure("--limit", str(BURN_S / 60 / 2), *burn)
    assert code == 1
    assert "more than the limit" in said
    assert measure("--limit", "5", *burn)[0] == 0


def test_files_that_grew_are_named(cpu: ModuleType) -> None:
    """The ones that grew most first; new ones grew from nothing; noise is left out."""
    cpu.BASELINE.write_text(json.dumps({"a": 5.0, "b": 5.0, "c": 9.0}))
    cpu.MEASURED.write_text(json.dumps({"a": 6.0, "b": 9.0, "c": 1.0, "d": 8.0}))
    assert cpu.grown() == ["  d: 0.0 s -> 8.0 s", "  b: 5.0 s -> 9.0 s"]
