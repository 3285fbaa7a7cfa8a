"""What docs/detection.md shows is what happens."""

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from stillframe.cli.app import app
from stillframe.examples.philosophers import table
from stillframe.store.store import Store
from tests.analytics.epochs import make_store
from tests.doc_pages import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "detection.md").read_text()


def words_of(line: str, store: Path) -> list[str]:
    """Return the arguments of a command, with `store` for the one that it calls ``dinner``."""
    program, *arguments = shlex.split(line.removeprefix("$ "))
    assert program == "stillframe"
    return [str(store) if word == "dinner" else word for word in arguments]


def called(line: str, store: Path) -> Result:
    """Call a command in this process."""
    return CliRunner().invoke(app, words_of(line, store))


@pytest.mark.slow
@pytest.mark.xdist_group(
    "philosophers"
)  # seconds of waiting, which the tests on Spark can do without
def test_philosophers_lock_and_detect_says_so(tmp_path: Path) -> None:
    """The commands of the page, with real processes: a ring of all forks and philosophers is found,
    and that it is no termination."""
    session, *_ = blocks("console", PAGE)
    store = tmp_path / "dinner"
    run, *questions = session.splitlines()
    subprocess.run(
        [sys.executable, "-m", "stillframe", *words_of(run, store)],
        cwd=ROOT,
        capture_output=True,
        timeout=240,
        check=True,
    )
    deadlock, termination = (called(question, store) for question in questions)
    assert deadlock.exit_code == 0, deadlock.stderr
    ring = deadlock.stdout.rpartition(": ")[2].strip().split(" waits for ")
    assert (len(ring), len(set(ring)), ring[0]) == (11, 10, ring[-1])
    assert termination.exit_code == 1
    assert "active: P1, P2, P3, P4, P5" in termination.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_spark_says_so_of_all_epochs(spark: "SparkSession", tmp_path: Path) -> None:
    """The command of the page, and what it says of a store with several epochs; and its
    program."""
    _, session, *_ = blocks("console", PAGE)
    path = make_store(
        tmp_path / "dinner", table, "stillframe.examples.philosophers:table", snapshot_count=40
    )
    found = called(session.strip(), path)
    assert found.exit_code == 0, found.stderr
    more, yes, of_all = found.stdout.splitlines()[-3:]
    newest = Store.open(path).entries()[-1]
    assert more == "and 20 more snapshots (--json has all)"
    assert yes.startswith(f"yes: deadlock holds in {newest.id}, and has since ")
    assert of_all.startswith(f"of all 40 snapshots in {newest.epoch} epochs it held first in ")
    program, _ = blocks("python", PAGE)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(program, {})
    assert "A waits for B waits for A; waiting for them: C" in said.getvalue()
