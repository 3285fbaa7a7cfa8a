"""What can be found in an event log: where cuts lie, what is on channels, and what is wrong."""

from typing import Any

import pyarrow as pa

from stillframe.analytics.intervals import Runs
from stillframe.analytics.log_aggregate import ACCEPTED_SIDE, SENT_SIDE

FINDINGS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("snapshot", pa.string()),  # null: of the log, whatever the snapshot
        ("source", pa.string()),  # of the channel; or the process, if there is no target
        ("target", pa.string()),
        ("what", pa.string()),  # one of KNOWN, LOGGED, CUT, IN_TRANSIT, FAULTS and GAPS
        # Which message. Of a cut: how many actions are before it. Of what is in transit: the first
        # that the target had not received at its cut, and the last that the source had sent.
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("count", pa.int64()),  # how many messages
    ]
)
"""What is found: where the cuts lie, how much is on the channels, and what is wrong."""

KNOWN = "known"
"""There is such a channel, or process."""
LOGGED = "logged"
"""The process has a log."""
CUT = "cut"
IN_TRANSIT = "in transit"

ORPHAN = "accepted inside the cut, not sent inside it"
NOT_RECORDED = "sent inside the cut, accepted outside, not recorded"
RECORDED_TOO_MUCH = "recorded, though not on the channel at the cut"
RECORDED_OUT_OF_ORDER = "recorded out of order or twice"
MARKER_NOT_SENT = "the marker was not sent"
MARKER_SENT_TWICE = "the marker was sent more than once"
MARKER_SENT_LATE = "sent between the recording of the state and the marker"
MARKER_ACCEPTED_TWICE = "the marker was accepted more than once"
OVERTAKEN = "sent before the marker, accepted after it"
OVERTAKES = "sent after the marker, accepted before it"
PUBLISHED_OTHERWISE = "published otherwise than the log says"
RECORDED_TWICE = "the state was recorded more than once"
MISSING = {SENT_SIDE: "never sent, though a later one was", ACCEPTED_SIDE: "passed over"}
TWICE = {SENT_SIDE: "sent more than once", ACCEPTED_SIDE: "accepted more than once"}
LATE = {SENT_SIDE: "sent out of order", ACCEPTED_SIDE: "accepted out of order"}
ACTIONS_WRONG = "actions out of order or twice"
FAULTS = (
    *(ORPHAN, NOT_RECORDED, RECORDED_TOO_MUCH, RECORDED_OUT_OF_ORDER),
    *(MARKER_NOT_SENT, MARKER_SENT_TWICE, MARKER_SENT_LATE, MARKER_ACCEPTED_TWICE),
    *(OVERTAKEN, OVERTAKES, PUBLISHED_OTHERWISE, RECORDED_TWICE, ACTIONS_WRONG),
    *(*MISSING.values(), *TWICE.values(), *LATE.values()),
)
"""What cannot be if the rules were followed and the log tells the truth."""

NOT_LOGGED = "published, but its cuts are not in the log"
MARKER_NOT_ACCEPTED = "the marker was not accepted"
GIVEN_UP = "the channel was not recorded to its end"
ROWS_LOST = "rows were lost, as the log itself says"
ROWS_MISSING = "rows are missing: a file is not there"
TOO_MUCH = "more is wrong than can be named"
GAPS = (NOT_LOGGED, MARKER_NOT_ACCEPTED, GIVEN_UP, ROWS_LOST, ROWS_MISSING, TOO_MUCH)
"""Why nothing can be said, or why a snapshot did not come to its end."""

_NAMED_MAX = 10
"""So many runs of messages are named of one kind of fault on one channel of one snapshot."""


class Findings:
    """Collects rows of `FINDINGS` about one channel or process."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._epoch, self._source, self._target = (
            None if part is None else part.as_py() if hasattr(part, "as_py") else part
            for part in key
        )
        self._rows: list[tuple[str | None, str, int | None, int | None, int | None]] = []
        self._tables: list[pa.Table] = []

    def add(self, snapshot: str | None, what: str, runs: Runs | None = None) -> None:
        """Note a fault; `runs` are the messages, None if it is of none. No message, no fault."""
        if runs is None:
            self._rows.append((snapshot, what, None, None, None))
            return
        self._rows += [
            (snapshot, what, first, first + count - 1, count) for first, count in runs[:_NAMED_MAX]
        ]

    def add_all(
        self,
        snapshots: pa.Array,
        what: str,
        firsts: Any = None,
        lasts: Any = None,
        counts: Any = None,
    ) -> None:
        """Note the same of many snapshots, with a number for each."""
        nothing = pa.nulls(len(snapshots), pa.int64())
        self._tables.append(
            self._table(
                snapshots,
                pa.repeat(pa.scalar(what), len(snapshots)),
                *(
                    nothing if n is None else pa.array(n, pa.int64())
                    for n in (firsts, lasts, counts)
                ),
            )
        )

    def table(self) -> pa.Table:
        """Return all that was noted."""
        columns = list(zip(*self._rows, strict=True)) or [()] * 5
        types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        return pa.concat_tables([*self._tables, self._table(*arrays)])

    def _table(self, snapshots: pa.Array, what: pa.Array, *numbers: pa.Array) -> pa.Table:
        count = len(snapshots)

        def same(value: Any, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), count)

        ends = same(self._source, pa.string()), same(self._target, pa.string())
        columns = [same(self._epoch, pa.int64()), snapshots, *ends, what, *numbers]
        return pa.table(columns, schema=FINDINGS)
