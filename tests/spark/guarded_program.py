"""A driver whose queries log in as different users: ``guarded_program.py ROOT ADDRESS ADDRESS``.

    Kafka's topic orders -> dedup -> unique -> sums -> totals

The addresses are those for passwords and for certificates.
It takes a snapshot as one more user, goes back to it, and goes on to the end. Then it shows all
that Spark shows of its queries, and fails with a wrong password. ROOT has the properties files.
The last line that it prints is a report in JSON.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Manifest, Pipeline, kafka_channel
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.kafka_login import VARIABLE
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topics import counting
from stillframe.spark import counted, kafka_options, start_query
from tests.spark.ends_program import session

QUERIES = ("dedup", "sums")
OPERATOR = "operator"


def pipeline_in(root: Path, servers: str) -> Pipeline:
    """Make the pipeline, or open it."""
    return Pipeline.create(
        root / "guarded.pipeline",
        queries=QUERIES,
        channels=[
            kafka_channel("orders", topic="orders", servers=servers, targets=["dedup"]),
            kafka_channel(
                "unique", topic="unique", servers=servers, source="dedup", targets=["sums"]
            ),
            kafka_channel(
                "totals", topic="totals", servers=servers, source="sums", has_unique_keys=True
            ),
        ],
    )


@contextmanager
def logged_in(root: Path, name: str) -> Iterator[None]:
    """Let Stillframe log in with a properties file."""
    os.environ[VARIABLE] = str(root / f"{name}.properties")
    yield
    del os.environ[VARIABLE]


def read(spark: SparkSession, pipeline: Pipeline, query: str, channel: str) -> DataFrame:
    """Return the values that count on a channel, as numbers."""
    reader = spark.readStream.format("kafka").options(**kafka_options(pipeline, channel))
    frame = counted(reader.load(), pipeline, query, channel)
    frame.explain(extended=True)
    return frame.selectExpr("bigint(string(value)) AS n")


def run(spark: SparkSession, root: Path, pipeline: Pipeline) -> None:
    """Run the queries one after the other, each as its own user, until every record has come
    through."""
    with logged_in(root, "dedup"):
        unique = read(spark, pipeline, "dedup", "orders").dropDuplicates(["n"])
        values = unique.select(F.col("n").cast("string").alias("value"))
        settle(start_query(values, pipeline, "dedup"))
    with logged_in(root, "sums"):
        sums = read(spark, pipeline, "sums", "unique").groupBy().agg(F.sum("n").alias("s"))
        totals = sums.selectExpr("'all' AS key", "string(s) AS value")
        settle(start_query(totals, pipeline, "sums", output_mode="update"))


def settle(query: StreamingQuery) -> None:
    """Wait until a query has read every record, show it, and stop it."""
    query.processAllAvailable()
    query.explain(extended=True)
    sys.stdout.write(f"{query.lastProgress} {query.recentProgress} {query.status}\n")
    query.stop()


def last_total(pipeline: Pipeline) -> int:
    """Return the value of the last record of the last topic that counts."""
    topic = pipeline.dataflow.topic("totals")
    one = counting(pipeline.path, read_metadata(pipeline.path), topic)
    with Broker(topic.servers) as broker:
        ends = broker.end_offsets(topic.topic)
        records = broker.records(topic.topic, {p: (0, end) for p, end in ends.items()})
        values = [
            int(r.value or b"") for r in records if r.label is not None and one.counts(r.label)
        ]
    return max(values)


def fail(spark: SparkSession, root: Path, passwords: Pipeline, certificates: Pipeline) -> list[str]:
    """Return the errors of Spark with a wrong password, and with a certificate without an ACL."""
    errors = []
    for name, pipeline in (("wrong", passwords), ("stranger", certificates)):
        with logged_in(root, name):
            options = kafka_options(pipeline, "orders")
        frame = spark.read.format("kafka").options(**options).load()
        try:
            frame.explain(extended=True)
            frame.collect()
        except (PySparkException, Py4JError):
            errors.append(traceback.format_exc())
    return errors


def command_lines() -> list[str]:
    """Return the arguments of every program that runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return found


def main(root: Path, passwords: str, certificates: str) -> None:
    """Do all of it."""
    spark = session()
    spark.sparkContext.setLogLevel("INFO")
    pipeline = pipeline_in(root, passwords)
    run(spark, root, pipeline)
    with logged_in(root, OPERATOR):
        taken = pipeline.snapshot()
        assert isinstance(taken, Manifest), taken
        pipeline.restore(str(taken.snapshot))
    run(spark, root, pipeline)
    with logged_in(root, "sums"):
        total = last_total(pipeline)
    other = Pipeline.create(
        root / "other.pipeline",
        queries=["one"],
        channels=[kafka_channel("orders", topic="orders", servers=certificates, targets=["one"])],
    )
    with logged_in(root, "holder"):
        options = kafka_options(other, "orders")
        read_count = spark.read.format("kafka").options(**options).load().count()
        spark.readStream.format("kafka").options(**options).load().explain(extended=True)
    errors = fail(spark, root, pipeline, other)
    commands = command_lines()
    spark.stop()
    report = {"total": total, "epoch": pipeline.epoch, "read": read_count}
    sys.stdout.write(json.dumps({**report, "errors": errors, "commands": commands}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
