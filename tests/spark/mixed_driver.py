"""A driver of queries of ``mixed_shop``: ``mixed_driver.py QUERY ROOT``.

It does what the driver of the kill soak does (``tests.soak.pipeline_driver``). The command
``start QUERY...`` starts other queries than at first.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline
from stillframe.spark import counted, kafka_options, read_channels, start_query
from tests.soak.pipeline_driver import work
from tests.spark.ends_program import session

FIELDS = "serial long, amount long, hops long"


def first(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Return the orders of two logs, each once."""
    found = read_channels(spark, pipeline, "first", "orders", "returns")
    return as_text(found.dropDuplicates(["serial", "hops"]))


def back(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Return the orders of a topic and of a log."""
    source = spark.readStream.format("kafka").options(**kafka_options(pipeline, "entries"))
    frame = counted(source.load(), pipeline, "back", "entries")
    value = F.from_json(F.col("value").cast("string"), FIELDS)
    entries = frame.select(value.alias("v")).select("v.*")
    return as_text(entries.unionByName(read_channels(spark, pipeline, "back", "cash")))


def as_text(found: DataFrame) -> DataFrame:
    """Return orders with the columns that both a topic and the log ``totals`` have."""
    value = F.to_json(F.struct("serial", "amount", "hops"))
    return found.select(F.col("serial").cast("string").alias("key"), value.alias("value"))


def main(name: str, root: str) -> None:
    """Start Spark and work."""
    spark, pipeline = session(), Pipeline(root)
    frames = {"first": first, "back": back}

    def start(*names: str) -> list[StreamingQuery]:
        return [start_query(frames[one](spark, pipeline), pipeline, one) for one in names or [name]]

    work(start, lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
