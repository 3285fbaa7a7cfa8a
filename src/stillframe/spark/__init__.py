"""Pipelines on Spark: a session, streaming queries that take part in snapshots, their snapshots.

Importing this package needs no Spark; calling what is in it does. Functions of whole stores and
event logs are in ``stillframe.analytics``.
"""

from typing import TYPE_CHECKING, Any

from stillframe.errors import check_assertions
from stillframe.public_names import public_attribute
from stillframe.spark.session import import_with_pyspark, s3_settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stillframe.spark.queries import (
        checkpoint_location,
        read_channels,
        start_query,
        to_channel,
        with_barriers,
    )
    from stillframe.spark.snapshot_reader import diff, log_records, query_state
    from stillframe.spark.topics import counted, kafka_options

__all__ = [
    "checkpoint_location",
    "counted",
    "diff",
    "kafka_options",
    "log_records",
    "query_state",
    "read_channels",
    "register",
    "s3_settings",
    "spark_session",
    "start_query",
    "to_channel",
    "with_barriers",
]

_MODULES = {
    "stillframe.spark.queries": "checkpoint_location read_channels start_query to_channel "
    "with_barriers",
    "stillframe.spark.snapshot_reader": "diff log_records query_state",
    "stillframe.spark.topics": "counted kafka_options",
}


def register(spark: "SparkSession") -> None:
    """Let a session read the formats ``stillframe``, ``stillframe.snapshot``, ``stillframe.log``
    and ``stillframe.verdicts``.

    Args:
        spark: the session.

    Raises:
        Unavailable: PySpark is missing, Spark is older than 4.2, or Spark does not register
            Stillframe's sources in this session.
    """
    # It registers the format of the analytics, too, which no module here may import.
    import_with_pyspark("stillframe.analytics.verdict_stream").register(spark)


check_assertions()

if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import what needs PySpark when it is used."""
        return public_attribute(__name__, name, _MODULES, import_with_pyspark)
