"""What an earlier version wrote is read with Spark as that version read it."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stillframe.pipeline import Pipeline
from tests.golden import on_spark, recording

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_spark_says_what_it_said(spark: SparkSession, tmp_path: Path) -> None:
    """Of the store, the event log and the fragments; and a query goes on from a checkpoint that is
    pinned in a snapshot, with what it had counted."""
    root = shutil.copytree(recording.DATA, tmp_path / "data")
    known = json.loads(on_spark.EXPECTED_OF_SPARK.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(on_spark.answers(root)))
    for answers in (found, known):
        for rows in ("spread", "in_transit"):  # they were recorded in Spark's own order
            answers["history"]["says"][rows].sort(key=json.dumps)
        for channel in answers["history"]["says"]["channels"]:
            if channel["max"] == 0:  # in every snapshot: then any was named
                del channel["snapshot"]
    assert found == known
    assert recording.run(root, "verify assembled")[0] == 0

    pipeline = Pipeline(root / "counted.pipeline")
    pipeline.restore("gold")
    query = on_spark.start_counts(spark, pipeline)
    recording.sell(pipeline, 5, 8)
    query.processAllAvailable()
    query.stop()
    written = [
        row
        for path in sorted((pipeline.path / "channels/counted/epoch-2").rglob("*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    last = {row["amount"]: row["sold_count"] for row in written}
    assert max(row["sold_count"] for row in written if row["amount"] == 5) == 3
    assert last == {5: last[5], 8: 1}
