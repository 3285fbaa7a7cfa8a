"""The verdicts of a micro-batch of ``follow``, with those of the event log on the same snapshots.

To judge a snapshot from the event log is to count what is before its cut: each micro-batch reads
the log of the epochs that its snapshots are of, from their beginning.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.spark import verification
from stillframe.spark.soundness import CONSISTENT, INCOMPLETE, INCONSISTENT

_WORST_FIRST = (INCONSISTENT, INCOMPLETE, CONSISTENT)


def rows(spark: SparkSession, batch: DataFrame, log: Path | None) -> list[dict[str, Any]]:
    """Return the verdicts of a micro-batch as rows of ``soundness.VERDICTS``.

    Args:
        spark: the session that the query was started in.
        batch: what ``follow`` gave.
        log: the directory of the event log. Each row then has the verdict from there as `log`: a
            row of ``verification.verdicts``, None if nothing there is of this snapshot; and
            `verdict` is the worse of the two.

    Raises:
        UsageError: there is no event log.
        Damaged, StoreError: a file in it is none of a log, or cannot be read.
    """
    found = [row.asDict(recursive=True) for row in batch.collect()]
    if log is None or not found:
        return found
    names = [row["snapshot"] for row in found]
    epochs = {row["epoch"] for row in found if row["epoch"] is not None}
    pieces = verification.log_pieces(spark, log).where(F.col("epoch").isin(*epochs))
    judged = verification.verify(pieces).where(F.col("snapshot").isin(*names))
    known = {row["snapshot"]: row.asDict(recursive=True) for row in judged.collect()}
    for row in found:
        row["log"] = of_log = known.get(row["snapshot"])
        seen = {row["verdict"], INCOMPLETE if of_log is None else of_log["verdict"]}
        row["verdict"] = next(verdict for verdict in _WORST_FIRST if verdict in seen)
    return found
