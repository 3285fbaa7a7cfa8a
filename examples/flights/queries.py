"""The Spark driver: the queries `enrich`, `alerts` and `carriers` in one session.

Their final results do not depend on where micro-batches end. Each flight is joined with its weather
as soon as both are available. No row is ever late: each channel is in the order of hours, and the
watermark follows the slower one.
"""

import argparse
from pathlib import Path

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, SparkSession

from examples.flights.flows import ENRICHED, LATE
from examples.processes import READY
from stillframe.pipeline import Pipeline
from stillframe.spark import spark_session
from stillframe.spark.queries import read_channels, start_query

LATE_MINUTES_MIN = 180
CALM_WIND_MAX = 40.0
CLEAR_VISIBILITY_MIN = 1.0
WATERMARK_DELAY = "6 hours"
FLIGHTS_AT_ONCE = 20_000
SHUFFLE_PARTITION_COUNT = 2


def enriched(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return each flight with the weather at its origin in its scheduled hour."""
    joined = flights.withWatermark("hour", WATERMARK_DELAY).join(
        weather.withWatermark("hour", WATERMARK_DELAY), ["origin", "hour"]
    )
    return joined.select(*ENRICHED.names)


def very_late(flights: DataFrame) -> DataFrame:
    """Return the flights to compensate: very late, and not because of the weather."""
    return flights.where(
        (fn.col("arr_delay") >= LATE_MINUTES_MIN)
        & (fn.col("wind_speed") <= CALM_WIND_MAX)
        & (fn.col("visib") >= CLEAR_VISIBILITY_MIN)
    ).select(*LATE.names)


def per_carrier(flights: DataFrame, payments: DataFrame) -> DataFrame:
    """Return the flights, delays and payments of each carrier."""
    none, one = fn.lit(0).cast("long"), fn.lit(1).cast("long")
    delay = fn.coalesce(fn.greatest("arr_delay", none), none)
    rows = flights.select(
        "carrier", one.alias("f"), delay.alias("l"), none.alias("p"), none.alias("a")
    ).unionByName(
        payments.select(
            "carrier", none.alias("f"), none.alias("l"), one.alias("p"), fn.col("amount").alias("a")
        )
    )
    return rows.groupBy("carrier").agg(
        fn.sum("f").alias("flight_count"),
        fn.sum("l").alias("late_minutes"),
        fn.sum("p").alias("payment_count"),
        fn.sum("a").alias("paid"),
    )


def start(spark: SparkSession, pipeline: Pipeline) -> None:
    """Start the queries; each continues at its position in the pipeline."""
    flights = read_channels(spark, pipeline, "enrich", "flights", rows_max=FLIGHTS_AT_ONCE)
    weather = read_channels(spark, pipeline, "enrich", "weather")
    start_query(enriched(flights, weather), pipeline, "enrich")
    late = very_late(read_channels(spark, pipeline, "alerts", "enriched"))
    start_query(late, pipeline, "alerts")
    totals = per_carrier(
        read_channels(spark, pipeline, "carriers", "enriched"),
        read_channels(spark, pipeline, "carriers", "payments"),
    )
    start_query(totals, pipeline, "carriers", output_mode="update")


def main() -> None:
    """Run the driver from the command line until a query fails or the program is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", type=Path)
    pipeline = Pipeline(parser.parse_args().pipeline)
    spark = spark_session(app_name="flights", master="local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", SHUFFLE_PARTITION_COUNT)
    start(spark, pipeline)
    print(READY, flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
