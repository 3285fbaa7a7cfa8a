"""A driver between Kafka and four sinks: ``ends_program.py PHASE ROOT KAFKA PORT``.

    Kafka's topic purchases -> intake -> (sums) -> ends -> Kafka's topic sums, two tables, files

``first`` takes a snapshot while records come, and then stands still in a micro-batch of `ends` that
every sink has, until it is killed. ``again`` goes on from there; then goes back to the snapshot and
on to the end, and writes ROOT/report.json.
"""

import concurrent.futures
import importlib
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel
from stillframe.spark import read_channels, with_barriers
from stillframe.spark.queries import EachBatch, start_query
from stillframe.spark.session import find_java
from tests.spark.flows import stop_queries
from tests.spark.outside import QUICK, jars

SUMS = pa.schema([("customer", pa.string()), ("total", pa.int64())])
PURCHASES = "purchases"
POLL_S = 0.02


@dataclass(frozen=True)
class Place:
    """Where everything is."""

    root: Path
    kafka: str
    port: int

    @property
    def address(self) -> str:
        """The database, for psycopg."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def files(self) -> Path:
        """Of Spark's Parquet sink."""
        return self.root / "files"

    def pipeline(self) -> Pipeline:
        """Make the pipeline, or open it."""
        return Pipeline.create(
            self.root / "ends.pipeline",
            queries=["intake", "ends"],
            channels=[channel("sums", SUMS, source="intake", targets=["ends"])],
        )


def session() -> SparkSession:
    """Start a session that knows Kafka and PostgreSQL."""
    os.environ["JAVA_HOME"] = str(find_java())
    builder = SparkSession.builder.master("local[2]").appName("test of ends")
    for setting, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(map(str, jars("spark"))),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def produce(spark: SparkSession, place: Place, first: int, end: int) -> None:
    """Put purchases into Kafka."""
    numbers = spark.range(first, end, 1, 1).selectExpr("string(id) AS key", "string(id) AS value")
    to_kafka(numbers, place, PURCHASES)


def to_kafka(frame: DataFrame, place: Place, topic: str) -> None:
    """Write a frame with Spark's own writer."""
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", place.kafka)
    writer.option("topic", topic).save()


def consumed(spark: SparkSession, place: Place, topic: str) -> list[str]:
    """Return the values of all records of a topic."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", place.kafka)
    rows = reader.option("subscribe", topic).load().selectExpr("string(value) AS value").collect()
    return [row["value"] for row in rows]


def every_sink(place: Place, pipeline: Pipeline) -> EachBatch:
    """Return what gives a micro-batch to each sink; then it stands still if it is told to."""
    into_table: EachBatch = importlib.import_module("database").into_table(
        pipeline, "ends", place.address
    )
    epoch = pipeline.epoch

    def each_batch(batch: DataFrame, number: int) -> None:
        batch.persist()
        tagged = batch.select(F.lit(epoch).alias("epoch"), F.lit(number).alias("batch"), "*")
        tagged.write.jdbc(
            f"jdbc:postgresql://127.0.0.1:{place.port}/postgres",
            "appended",
            mode="append",
            properties={"driver": "org.postgresql.Driver", "user": "postgres"},
        )
        to_kafka(tagged.select(F.to_json(F.struct("*")).alias("value")), place, "sums")
        batch.write.mode("overwrite").parquet(f"{place.files}/epoch={epoch}/batch={number}")
        into_table(batch, number)
        batch.unpersist()
        if (place.root / "hold").exists():
            (place.root / "held").write_text(str(number))
            threading.Event().wait()

    return each_batch


def start(spark: SparkSession, place: Place, pipeline: Pipeline) -> list[StreamingQuery]:
    """Start both queries."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", place.kafka)
    source = reader.option("subscribe", PURCHASES).option("startingOffsets", "earliest").load()
    purchases = source.selectExpr("bigint(string(value)) AS total").selectExpr(
        "'customer-' || string(total % 3) AS customer", "total"
    )
    intake = with_barriers(purchases, pipeline, "intake")
    sums = read_channels(spark, pipeline, "ends", "sums")
    return [
        start_query(intake, pipeline, "intake", output_mode="append"),
        start_query(
            sums, pipeline, "ends", output_mode="append", each_batch=every_sink(place, pipeline)
        ),
    ]


def settle(queries: list[StreamingQuery]) -> None:
    """Wait until what is in Kafka is in all sinks."""
    for query in queries:
        query.processAllAvailable()


def first(spark: SparkSession, place: Place) -> None:
    """Take a snapshot while records come; go on; stand still in a micro-batch."""
    pipeline = place.pipeline()
    produce(spark, place, 0, 20)
    queries = start(spark, place, pipeline)
    settle(queries)
    produce(spark, place, 20, 40)
    count = 40
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pipeline.snapshot, timeout_s=300)
        while not concurrent.futures.wait([asked], timeout=POLL_S).done:
            produce(spark, place, count, count + 5)
            count += 5
        assert not isinstance(asked.result(), Abandoned), str(asked.result())
    produce(spark, place, count, count + 20)
    settle(queries)
    (place.root / "hold").touch()
    produce(spark, place, count + 20, count + 30)
    queries[-1].awaitTermination()


def again(spark: SparkSession, place: Place) -> None:
    """Go on after the kill; go back to the snapshot, and on to the end."""
    pipeline = place.pipeline()
    queries = start(spark, place, pipeline)
    stop_queries(pipeline, queries)
    with psycopg.connect(place.address) as database:
        counted = database.execute("select total from sums_that_count").fetchall()
    count = len(consumed(spark, place, PURCHASES))
    pipeline.restore()
    queries = start(spark, place, pipeline)
    settle(queries)
    produce(spark, place, count, count + 10)
    stop_queries(pipeline, queries)
    report = {
        "counted after the kill": [total for (total,) in counted],
        "produced before the kill": count,
        "purchases": [int(value) for value in consumed(spark, place, PURCHASES)],
        "sums": [json.loads(value) for value in consumed(spark, place, "sums")],
    }
    (place.root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    where = Place(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    {"first": first, "again": again}[sys.argv[1]](session(), where)
