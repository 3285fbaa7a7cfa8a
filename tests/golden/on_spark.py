"""What is recorded with Spark: a pipeline with a query, and what Spark says of the data."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.pipeline import Pipeline, channel
from stillframe.spark.queries import read_channels, start_query
from tests.golden.recording import HERE, sell, without_words
from tests.golden.systems import COUNTS, SALES, Till

EXPECTED_OF_SPARK = HERE / "expected-spark.json"
QUESTIONS: dict[str, tuple[str, ...]] = {
    "audit": (
        *("audit", "ROOT/store", "--states", "sum(balance)"),
        *("--messages", "sum(case when _kind = 'Coin' then amount else 0 end)"),
    ),
    "verify": ("verify", "ROOT/log", "--store", "ROOT/store"),
    "history": ("history", "ROOT/store", "--log", "ROOT/log"),
    "assemble": ("assemble", "ROOT/fragments", "--out", "ROOT/assembled"),
}
"""The commands under ``stillframe spark`` that are asked, each with ``--json``."""


def start_counts(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    """Start the query: it counts how often each amount was sold."""
    frame: DataFrame = read_channels(spark, pipeline, "counts", "sales")
    counted = frame.groupBy("amount").count().selectExpr("amount", "count AS sold_count")
    return start_query(counted, pipeline, "counts", output_mode="update")


def make_counted(spark: SparkSession, path: Path) -> None:
    """Make a pipeline with a query that has counted 5 twice and 7 once in the savepoint gold."""
    pipeline = Pipeline.create(
        path,
        services={"till": Till},
        queries=["counts"],
        channels=[
            channel("sales", SALES, source="till", targets=["counts"]),
            channel("counted", COUNTS, source="counts", targets=[]),
        ],
    )
    query = start_counts(spark, pipeline)
    sell(pipeline, 5, 5, 7)
    query.processAllAvailable()
    pipeline.savepoint("gold")
    sell(pipeline, 9)
    query.processAllAvailable()
    query.stop()


def answers(root: Path) -> dict[str, Any]:
    """Return what is asked of the data in `root`, and what comes of it."""
    found = {}
    for name, words in QUESTIONS.items():
        arguments = [word.replace("ROOT", str(root)) for word in words]
        result = CliRunner().invoke(app, ["spark", *arguments, "--json"])
        text = result.stdout.replace(str(root), "ROOT")
        says: Any = json.loads(text, object_hook=without_words) if text else {}
        if name == "history":
            says["damages"] = {
                one["id"]: one["detail"] for one in says.pop("damaged")
            }  # as in 0.1.0
        if "ok" in says:
            del says["verdict"]  # a sentence
        found[name] = {"exit_code": result.exit_code, "says": says}
    return found
