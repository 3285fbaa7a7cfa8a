"""Two stateful queries, one after the other, of a pipeline in a bucket.

    feed -> numbers -> sums (running sums) -> summed -> firsts (each sum once) -> distinct

``python -m tests.spark.s3_queries STORE`` is the driver. It reads addresses of such pipelines, and
answers each when its queries run. At the next line, and at the end, they finish and stop.
"""

import sys
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import JoinedService, join
from stillframe.spark import read_channels, spark_session, start_query
from tests.spark import flows

NUMBER = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUM = pa.schema([("k", pa.int64()), ("s", pa.int64())])
KEYS = 5


@dataclass
class Feed:
    """How many numbers the service has sent."""

    sent: int = 0


def make(root: str) -> Pipeline:
    """Make the pipeline, or open it."""
    return Pipeline.create(
        root,
        queries=["sums", "firsts"],
        services={"feed": Feed},
        channels=[
            channel("numbers", NUMBER, source="feed", targets=["sums"], partition_count=2),
            channel("summed", SUM, source="sums", targets=["firsts"], partition_count=2, key=["k"]),
            channel("distinct", SUM, source="firsts"),
        ],
        name="sums",
    )


def feed_up_to(pipeline: Pipeline, count: int) -> None:
    """Send the numbers that are missing, each ten as one entry."""
    state = Feed()
    with join("feed", pipeline=pipeline.path, state=state) as me:
        while state.sent < count:
            send_ten(me, state)


def send_ten(me: JoinedService, state: Feed) -> None:
    """Send ten numbers."""
    numbers = range(state.sent, state.sent + 10)
    rows = [{"k": number % KEYS, "v": number} for number in numbers]
    me.append("numbers", pa.Table.from_pylist(rows, schema=NUMBER))
    state.sent += 10
    me.boundary()


def start(spark: SparkSession, pipeline: Pipeline, store: str) -> list[StreamingQuery]:
    """Start both queries."""
    sums = read_channels(spark, pipeline, "sums", "numbers", rows_max=20)
    sums = sums.groupBy("k").agg(functions.sum("v").alias("s"))
    firsts = read_channels(spark, pipeline, "firsts", "summed").dropDuplicates(["k", "s"])
    with flows.configured(spark, store):
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        return [
            start_query(sums, pipeline, "sums", output_mode="update"),
            start_query(firsts, pipeline, "firsts", output_mode="append"),
        ]


def judge(pipeline: Pipeline, count: int) -> None:
    """Compare the outputs with a computation from the numbers alone. A fork has only the end of
    the channel between both queries."""
    summed = [row for row in rows(pipeline, "summed") if row in sums_of(count)]
    assert summed == rows(pipeline, "summed"), "a sum that no number of records has"
    distinct = rows(pipeline, "distinct")
    assert {*distinct} <= sums_of(count)
    assert {*summed} <= {*distinct}
    assert len({*distinct}) == len(distinct)
    ends = {(k, sum(range(k, count, KEYS))) for k in range(KEYS)}
    assert ends <= {*summed}


def sums_of(count: int) -> set[tuple[int, int]]:
    """Return every running sum of each key."""
    return {(k, sum(range(k, end, KEYS))) for k in range(KEYS) for end in range(k + 1, count + 1)}


def rows(pipeline: Pipeline, log: str) -> list[tuple[int, int]]:
    """Return the sums in a channel, as far as they are kept."""
    found = [batch.records.to_pylist() for batch in pipeline.records(log)]
    return [(row["k"], row["s"]) for some in found for row in some]


def main() -> None:
    """Run the queries of each pipeline until the next one comes."""
    spark = spark_session(app_name="s3-queries", master="local[2]")
    for line in sys.stdin:
        pipeline = make(line.strip())
        queries = start(spark, pipeline, sys.argv[1])
        sys.stdout.write("started\n")
        sys.stdout.flush()
        sys.stdin.readline()
        flows.stop_queries(pipeline, queries)
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
