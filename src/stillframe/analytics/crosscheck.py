"""The verdicts of a micro-batch of ``follow``, with those of the event log on the same snapshots.

To judge a snapshot from the event log is to count what is before its cut, from the beginning of its
epoch. What was counted in a file that is complete stays known, as a few numbers for each channel
and each cut: so each micro-batch reads what is new, and the files that are still being written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.analytics import log_verification
from stillframe.analytics.log_aggregate import ACCEPTED_SIDE, COUNTS
from stillframe.analytics.log_splits import SPLITS, plan_splits
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.eventlog.groups import STREAM

_WORST_FIRST = (INCONSISTENT, INCOMPLETE, CONSISTENT)
_STEPS = ("cuts", "markers")

Row = dict[str, Any]


class CrossCheck:
    """Looks micro-batches up in an event log, one after the other.

    Args:
        spark: the session that the query was started in.
        log: the directory of the event log; None if there is none.
    """

    def __init__(self, spark: SparkSession, log: Path | None) -> None:
        self._spark = spark
        self._log = log
        self._read: set[str] = set()
        self._counts = COUNTS.empty_table()

    def rows(self, batch: DataFrame) -> list[Row]:
        """Return the verdicts of a micro-batch as rows of ``snapshot_verdicts.VERDICTS``.

        With an event log each row has the verdict from there as `log`: a row of
        ``log_verification.verdicts``, None if nothing there is of this snapshot; and `verdict` is
        the worse of the two. No snapshot may come twice.

        Raises:
            UsageError: there is no event log.
            Damaged: a file in it is none of a log.
            OSError: one cannot be read.
        """
        found = [row.asDict(recursive=True) for row in batch.collect()]
        if self._log is None or not found:
            return found
        names = pa.array([row["snapshot"] for row in found if row["snapshot"]], pa.string())
        epochs = {row["epoch"] for row in found if row["epoch"] is not None}
        counts = self._count(self._log, epochs, names)
        judged = log_verification.verdicts(log_verification.to_findings(counts))
        of_snapshots = judged.where(F.col("snapshot").isNotNull()).collect()
        known = {row["snapshot"]: row.asDict(recursive=True) for row in of_snapshots}
        for row in found:
            row["log"] = of_log = known.get(row["snapshot"])
            seen = {row["verdict"], INCOMPLETE if of_log is None else of_log["verdict"]}
            row["verdict"] = next(verdict for verdict in _WORST_FIRST if verdict in seen)
        return found

    def _count(self, log: Path, epochs: set[int], names: pa.Array) -> DataFrame:
        """Return what the log says of `epochs`, with the steps of the snapshots `names` alone."""
        listed = [piece for piece in plan_splits(log) if piece["epoch"] in epochs]
        complete = {_file(piece) for piece in listed if piece["row_group"] != STREAM}
        # Of what its writer has removed nothing may be known: the log begins behind that.
        kept = self._counts.filter(_is_of(self._counts, complete & self._read))
        new = [piece for piece in listed if _file(piece) not in complete & self._read]
        if new:
            counted = log_verification.counted(self._spark.createDataFrame(new, SPLITS)).toArrow()
            kept = pa.concat_tables([kept, counted.cast(COUNTS)])
        self._counts = _with_steps(
            kept.filter(_is_of(kept, complete)), lambda name: pc.invert(pc.is_in(name, names))
        )
        self._read = complete
        return self._spark.createDataFrame(
            _with_steps(kept, lambda name: pc.is_in(name, names)), from_arrow_schema(COUNTS)
        )


def _file(piece: Row) -> str:
    return f"{piece['epoch']} {piece['process']} {piece['part']}"


def _is_of(counts: pa.Table, files: set[str]) -> pa.ChunkedArray:
    """Return which rows are of pieces of these files."""
    is_accepted = pc.equal(counts["side"], ACCEPTED_SIDE)
    process = pc.if_else(is_accepted, counts["target"], counts["source"])
    epoch, part = (counts[name].cast(pa.string()) for name in ("epoch", "part"))
    named = pc.binary_join_element_wise(epoch, process, part, " ")
    return pc.is_in(named, pa.array(sorted(files), pa.string()))


def _with_steps(counts: pa.Table, is_wanted: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """Return `counts` with those cuts and markers that are of wanted snapshots."""
    for column in _STEPS:
        lists = counts[column].combine_chunks()
        flat = lists.flatten()
        chosen = is_wanted(flat.field("snapshot"))
        of_row = pc.list_parent_indices(lists).filter(chosen).to_numpy()
        ends = np.cumsum([0, *np.bincount(of_row, minlength=len(lists))])
        some = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat.filter(chosen))
        counts = counts.set_column(counts.schema.get_field_index(column), column, some)
    return counts.cast(COUNTS)
