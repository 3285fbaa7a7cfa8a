"""Snapshots and Spark: a session, the store as DataFrames, audits.

Importing this package needs no Spark; calling what is in it does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from stillframe.spark.session import spark_session

if TYPE_CHECKING:
    from stillframe.spark.audit import Audit


def audit_store(
    store_path: Path, *, states_sql: str | None = None, messages_sql: str | None = None
) -> "Audit":
    """Check every snapshot of a store at once on Spark, in the active session or one of our own.

    Args:
        store_path: the directory of the store.
        states_sql: an aggregate over process states, such as ``sum(balance)``.
        messages_sql: the same over messages in transit, such as ``sum(amount)``.

    Returns:
        The verdict, with a row per snapshot: ``stillframe.spark.audit.Audit``.

    Raises:
        Unavailable: PySpark or Java is missing.
        UsageError: there is no store or no snapshot in it, or the SQL is wrong.
        StoreError: the store cannot be read.
    """
    spark = spark_session()
    from stillframe.spark.audit import audit  # noqa: PLC0415 - needs PySpark, which is there now

    return audit(spark, store_path, states_sql=states_sql, messages_sql=messages_sql)
