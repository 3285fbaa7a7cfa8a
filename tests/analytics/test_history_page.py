"""What ``docs/history.md`` shows is run: its commands, its programs, on two real runs of a bank."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.examples.bank import ACCOUNT_COUNT
from tests import calm
from tests.doc_pages import blocks
from tests.reader import wait_until
from tests.store.call_samples import deadlocked, stored

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "history.md").read_text()
STILLFRAME = str(Path(sys.executable).with_name("stillframe"))
DIRECTORY = re.compile(
    r"\bbank\.(?=again|log|parts|store|tables)|(?<=\")(?=judged\"|verdicts\"|seen\")"
)
"""Where a directory of the page begins."""

SNAPSHOT_COUNT_MIN = 17

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def blocks_in(language: str, place: Path) -> list[str]:
    """Return the page's code blocks in a language, with every directory in `place`: Spark's own
    current directory is another than that of the test."""
    found = blocks(language, PAGE)
    return [DIRECTORY.sub(lambda match: f"{place}/{match[0]}", block) for block in found]


def run_until(files: str, count: int, line: str, place: Path) -> None:
    """Run a system as the page says, but with few messages, until there are `count` files; then
    stop it."""
    words = shlex.split(line.replace("stillframe.examples.bank:bank", calm.BANK))
    system = subprocess.Popen(
        [STILLFRAME, *words[2:], "--every", "20ms"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: len(list(place.glob(files))) >= count, f"{count} {files}")
    finally:
        system.terminate()
        _, said = system.communicate(timeout=60)
    assert system.returncode == 0, said.decode()


def command(line: str, code: int = 0) -> str:
    """Run a command of the page; return what it says."""
    ended = CliRunner().invoke(app, shlex.split(line)[2:])
    assert ended.exit_code == code, (line, ended.output)
    return ended.output


def test_commands_and_programs_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the two runs that the page describes each command and program does what it says, in its
    order, on the Spark that is active; verdicts are those that a sound run must have."""
    monkeypatch.chdir(tmp_path)
    sessions = blocks_in("console", tmp_path)
    _, history, diff, compact, fragments, assemble, log, verify, clock, follow = sessions
    run_until("bank.store/snapshots/P1-17/manifest.json", 1, log, tmp_path)
    apart = fragments.replace("bank.store", "other.store")
    run_until("bank.parts/e1/*/P1-2/manifest.json", ACCOUNT_COUNT, apart, tmp_path)
    assert "paused for" in command(history)
    command(diff, code=1)
    assert "v000001" in command(compact)
    assert "consistent" in command(assemble)
    assert "inconsistent" not in command(verify)
    assert "P2" in command(clock)
    assert "consistent" in command(f"{follow.strip()} --duration 100ms")
    total, _ = blocks_in("sql", tmp_path)
    totals = duckdb.execute(total.replace("v000003", "v000001")).fetchall()
    assert len(totals) >= SNAPSHOT_COUNT_MIN
    stored(tmp_path / "seen", deadlocked())
    space: dict[str, Any] = {}
    for program in blocks_in("python", tmp_path):
        exec(program.replace('/judged"', '/judged by a query"'), space)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(str(tmp_path / "verdicts")).collect()
    assert len(rows) >= SNAPSHOT_COUNT_MIN
    assert {row["verdict"] for row in rows} <= {"consistent", "incomplete"}
