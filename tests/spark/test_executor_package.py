"""The package goes to executors once, and what they run of it needs little."""

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark")
package = pytest.importorskip("stillframe.spark.session")


class Context:
    """What sessions share, of a cluster that does not exist."""

    def __init__(self, where: str) -> None:
        self.sent: list[str] = []
        vars(self)["master"] = where

    def addPyFile(self, path: str) -> None:  # noqa: N802 - Spark's name
        """Take a file."""
        self.sent.append(path)


class Session:
    """A session of it."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context


def test_sessions_that_share_executors_send_it_once() -> None:
    """Spark refuses a second file of the same name; on this machine nothing is sent."""
    context = Context("spark://nowhere:7077")
    first: Any = Session(context)
    second: Any = Session(context)
    for session in (first, second, first):
        package.add_package(session)
    assert [path.rpartition("/")[2] for path in context.sent] == ["stillframe.zip"]
    here = Context("local[2]")
    alone: Any = Session(here)
    package.add_package(alone)
    assert here.sent == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        *("analytics.log_checks", "analytics.log_events"),
        *("analytics.fragment_merge", "analytics.predicate_eval"),
        *("analytics.verdict_stream", "analytics.verified_parquet"),
        *("analytics.wait_for_graphs", "spark.session"),
        *("spark.sink", "spark.slices", "spark.source"),
    ],
)
def test_what_tasks_run_can_be_imported_with_arrow_alone(module: str) -> None:
    """Neither msgspec nor what commands and services need is there on executors."""
    missing = ("msgspec", "rich", "typer", "uvloop")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import stillframe.{module}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
