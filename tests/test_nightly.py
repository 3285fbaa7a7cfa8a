"""What is kept of a part of the night (``tests/nightly.py``): pytest runs tests made for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import nightly

ROOT = Path(__file__).parent.parent
SEED = 7
CONFTEST = """from pathlib import Path
from tests import nightly
from tests.conftest import pytest_sessionstart, pytest_terminal_summary
from tests.nightly import figure
nightly.RESULTS = Path(__file__).parent
"""
PASSES = "def test_passes(figure): figure('kills', 3)\n"

pytestmark = pytest.mark.slow


def run_part(folder: Path, tests: str, *arguments: str) -> dict[str, Any]:
    """Run `tests` as a part of the night that passed with another seed before; return what is kept
    of it."""
    kept = folder / "soak.json"
    kept.write_text(json.dumps({"seed": SEED - 1, "finished": True, "passed": 9, "failed": []}))
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "--rootdir=.", *arguments, "."],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "STILLFRAME_NIGHTLY_SEED": str(SEED),
            "STILLFRAME_NIGHTLY_PART": "soak",
        },
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # open until every process of pytest-xdist has ended
        text=True,
    )
    sys.stdout.write(run.stdout)
    result: dict[str, Any] = json.loads(kept.read_text())
    return result


def row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the only row of the table of nights."""
    monkeypatch.setattr(nightly, "RESULTS", folder)
    _, _, only = nightly.table().splitlines()
    return only


def test_a_part_that_ended_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its seed, what failed, and what it measured."""
    kept = run_part(tmp_path, PASSES + "def test_fails(): assert False\n", "-n1")
    assert (kept["seed"], kept["passed"], kept["finished"]) == (SEED, 1, True)
    assert kept["failed"] == ["test_it.py::test_fails"]
    assert kept["figures"] == {"test_it.py::test_passes": {"kills": 3}}
    assert "| 1 passed, 1 failed | it: kills 3 |" in row(tmp_path, monkeypatch)


def test_an_interrupted_part_did_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had done by then is kept."""
    kept = run_part(tmp_path, PASSES + "def test_ctrl_c(): raise KeyboardInterrupt\n")
    assert (kept["seed"], kept["passed"], kept["failed"]) == (SEED, 1, [])
    assert not kept["finished"]
    assert "| 1 passed, 0 failed, not finished |" in row(tmp_path, monkeypatch)


def test_a_killed_part_did_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed replaces what was kept of the night before; the processes of pytest-xdist, which
    finish in order after it, report only to the one that was killed."""
    kept = run_part(tmp_path, "import os\ndef test_kills(): os.kill(os.getppid(), 9)\n", "-n1")
    assert (kept["seed"], kept["passed"]) == (SEED, 0)
    assert not kept["finished"]
    assert "| 0 passed, 0 failed, not finished |" in row(tmp_path, monkeypatch)


def test_a_part_of_an_older_tree_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not say whether it had finished."""
    old = {"seed": SEED, "passed": 9, "failed": [], "minutes": 1.5, "figures": {}}
    (tmp_path / "soak.json").write_text(json.dumps(old))
    assert f"| soak | {SEED} | 1.5 | 9 passed, 0 failed, not finished |" in row(
        tmp_path, monkeypatch
    )


@pytest.mark.parametrize("arguments", [(), ("-n1",)], ids=["alone", "xdist"])
def test_a_file_that_cannot_be_collected_failed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """It is named, and the seed is kept."""
    kept = run_part(tmp_path, "import missing_module\n", *arguments)
    assert (kept["seed"], kept["failed"]) == (SEED, ["test_it.py"])
