"""What is recorded with Spark: what it says of the data; and the query of the pipeline in them."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.pipeline import Pipeline
from stillframe.spark.queries import read_channels, start_query
from tests.golden.recording import HERE, without_words

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
