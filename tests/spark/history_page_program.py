"""A program in the directory of a reader of ``docs/history.md``: ``history_page_program.py PAGE``.

It runs the page's commands and programs on one Spark, beside ``bank.store``, ``bank.log`` and
``bank.parts``, which are there.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import duckdb
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.spark import spark_session

SNAPSHOT_COUNT_MIN = 17


def blocks(language: str, page: str) -> list[str]:
    """Return a page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def command(line: str, code: int = 0) -> str:
    """Run a command of the page; return what it says."""
    ended = CliRunner().invoke(app, shlex.split(line)[2:])
    assert ended.exit_code == code, (line, ended.output)
    return ended.output


def main(page: str) -> None:
    """Do what the page says, in its order; verdicts are those that a sound run must have."""
    _, history, diff, compact, _, assemble, _, verify, clock, follow = blocks("console", page)
    assert "paused for" in command(history)
    command(diff, code=1)
    assert "v000001" in command(compact)
    assert "consistent" in command(assemble)
    assert "inconsistent" not in command(verify)
    assert "P2" in command(clock)
    assert "consistent" in command(f"{follow.strip()} --for 1s")
    total, _ = blocks("sql", page)
    totals = duckdb.execute(total.replace("v000003", "v000001")).fetchall()
    assert len(totals) >= SNAPSHOT_COUNT_MIN
    space: dict[str, Any] = {}
    for program in blocks("python", page):
        exec(program.replace('"judged"', '"judged by a query"'), space)
    spark = spark_session()
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet("verdicts").collect()
    assert len(rows) >= SNAPSHOT_COUNT_MIN
    assert {row["verdict"] for row in rows} <= {"consistent", "incomplete"}
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text())
