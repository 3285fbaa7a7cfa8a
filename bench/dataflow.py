"""Snapshots across streaming queries: throughput of the source, cost, latency, and back-pressure.

``python -m bench.dataflow`` prints what it measured, good or bad; name parts to run those alone.
Ways that are compared take turns within one run, and ratios are taken between neighbours: the
machine drifts.
"""

import argparse
from collections.abc import Callable

from pyspark.sql import SparkSession

from bench.flow_rates import measure_cost, measure_source
from bench.flow_waits import measure_backpressure, measure_idle, measure_latency
from stillframe.spark.session import spark_session

PARTS: dict[str, Callable[[SparkSession], None]] = {
    "source": measure_source,
    "cost": measure_cost,
    "idle": measure_idle,
    "latency": measure_latency,
    "backpressure": measure_backpressure,
}


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="bench/run dataflow", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=", ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    spark = spark_session(app_name="bench", master="local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        for name in chosen:
            PARTS[name](spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
