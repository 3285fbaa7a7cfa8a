"""What docs/detection.md shows is what happens."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from examples.philosophers import table
from stillframe.store.store import Store
from tests.pages import blocks
from tests.spark.epochs import make_store

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "detection.md").read_text()


def outcomes_of(session: str, store: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run commands, with `store` for the one that they call ``dinner``."""
    outcomes = []
    for line in session.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "stillframe"
        words = [str(store) if word == "dinner" else word for word in arguments]
        outcomes.append(
            subprocess.run(
                [sys.executable, "-m", "stillframe", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        )
    return outcomes


@pytest.mark.slow
def test_philosophers_lock_and_detect_says_so(tmp_path: Path) -> None:
    """The commands of the page, with real processes: a ring of all forks and philosophers is found,
    and that it is no termination."""
    session, _ = blocks("console", PAGE)
    run, deadlock, termination = outcomes_of(session, tmp_path / "dinner")
    assert run.returncode == 0, run.stderr
    assert deadlock.returncode == 0, deadlock.stderr
    ring = deadlock.stderr.rpartition(": ")[2].strip().split(" waits for ")
    assert (len(ring), len(set(ring)), ring[0]) == (11, 10, ring[-1])
    assert termination.returncode == 1
    assert "active: P1, P2, P3, P4, P5" in termination.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_spark_says_so_of_all_epochs(tmp_path: Path) -> None:
    """The command of the page, and what it says of a store with several epochs; and its
    program."""
    _, session = blocks("console", PAGE)
    path = make_store(tmp_path / "dinner", table, "examples.philosophers:table", snapshot_count=40)
    (found,) = outcomes_of(session, path)
    assert found.returncode == 0, found.stderr
    more, yes, of_all = found.stderr.splitlines()
    newest = Store.open(path).entries()[-1]
    assert more == "and 20 more snapshots (--json has all)"
    assert yes.startswith(f"yes: deadlock holds in {newest.id}, and has since ")
    assert of_all.startswith(f"of all 40 snapshots in {newest.epoch} epochs it held first in ")
    (program,) = blocks("python", PAGE)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "A waits for B waits for A; behind them: C" in ended.stdout
