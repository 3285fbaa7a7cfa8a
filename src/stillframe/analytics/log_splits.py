"""The pieces of an event log, of which each task of Spark's reads some.

The driver finds them. What executors need to know of a piece is in its row: they have no msgspec.
"""

from pathlib import Path
from typing import Any

import msgspec

from stillframe.eventlog.reading import parts

SPLITS = (
    "path STRING, "  # of the file
    "row_group INT, "  # which row group of it, from 0, or ``eventlog.groups.STREAM``
    "epoch BIGINT, "
    "process STRING, "  # whose file it is
    "part INT, "  # which file of that process and epoch, from 1
    "span STRING"  # what came before the file, as JSON (``eventlog.parts.Span``)
)


def plan_splits(log: Path) -> list[dict[str, Any]]:
    """Return a row for each row group of an event log (`SPLITS`), which a system may write to.

    Raises:
        UsageError: there is no event log.
        Damaged: a file in it is none of a log.
        OSError: one cannot be read.
    """
    return [
        {
            "path": str(part.path.absolute()),
            "row_group": group,
            "epoch": part.span.epoch,
            "process": part.span.process,
            "part": part.span.part,
            "span": msgspec.json.encode(part.span).decode(),
        }
        for part in parts(log)
        for group in part.groups
    ]
