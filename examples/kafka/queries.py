"""The Spark driver: the queries `dedup` and `carriers` in one session.

They use Spark's own source for Kafka and its own operators. Their final results do not depend on
where micro-batches end.
"""

import argparse

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, SparkSession

from examples.processes import READY
from stillframe.pipeline import Pipeline
from stillframe.spark import counted, kafka_options, spark_session, start_query

FLIGHT = "id long, carrier string, distance long, arr_delay long"
RECORDS_AT_ONCE = 40_000
EVERY = {"processingTime": "1 second"}
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # Everything is in S3: Spark writes the files of checkpoints at once.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
}


def read(spark: SparkSession, pipeline: Pipeline, query: str, channel: str) -> DataFrame:
    """Return the flights that count among the records of a topic."""
    source = spark.readStream.format("kafka").options(**kafka_options(pipeline, channel))
    records = source.option("maxOffsetsPerTrigger", RECORDS_AT_ONCE).load()
    value = fn.from_json(fn.col("value").cast("string"), FLIGHT).alias("flight")
    return counted(records, pipeline, query, channel).select(value).select("flight.*")


def for_kafka(frame: DataFrame) -> DataFrame:
    """Return rows as records of a topic, with the carrier as their key."""
    return frame.select(fn.col("carrier").alias("key"), fn.to_json(fn.struct("*")).alias("value"))


def per_carrier(flights: DataFrame) -> DataFrame:
    """Return the number of flights of each carrier, their minutes of delay, and their miles."""
    late = fn.coalesce(fn.greatest("arr_delay", fn.lit(0)), fn.lit(0))
    return flights.groupBy("carrier").agg(
        fn.count("*").alias("flight_count"),
        fn.sum(late).alias("late_minutes"),
        fn.sum("distance").alias("miles"),
    )


def start(spark: SparkSession, pipeline: Pipeline) -> None:
    """Start the queries; each continues at its position in the pipeline."""
    unique = read(spark, pipeline, "dedup", "flights").dropDuplicates(["id"])
    start_query(for_kafka(unique), pipeline, "dedup", trigger=EVERY)
    totals = per_carrier(read(spark, pipeline, "carriers", "unique"))
    start_query(for_kafka(totals), pipeline, "carriers", output_mode="update", trigger=EVERY)


def main() -> None:
    """Run the driver from the command line until a query fails or the program is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    pipeline = Pipeline(parser.parse_args().pipeline)
    spark = spark_session(app_name="flights", master="local[2]")
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    start(spark, pipeline)
    print(READY, flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
