"""A snapshot as a trace, and which snapshots have become one: no library is needed for that.

One trace is one snapshot: a span from its beginning until it was published or abandoned, and in it
a span for each process, from its cut until its part was in, with an event for each marker that
came. Its ids are made from the snapshot, so that it is the same trace whoever sends it, and how
often.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stillframe.model import MarkerTimes, ProcessId, SnapshotId
from stillframe.runtime.commands import Observed
from stillframe.runtime.waves import WAVE_COUNT_MAX, Wave
from stillframe.store.history import SnapshotAbandoned
from stillframe.store.manifest import Entry
from stillframe.watch.happenings import Ended

ROOT, PART, MARKER = "snapshot", "part", "marker"
"""What spans and events are called; that of a part has the process behind."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    ROOT: {
        "stillframe.snapshot.id": "As in every command: `P1-17`.",
        "stillframe.snapshot.initiator": "The process that began it.",
        "stillframe.snapshot.epoch": "The epoch of the system; left out if it is not known.",
        "stillframe.snapshot.outcome": "`published` or `abandoned`.",
        "stillframe.snapshot.reason": "Why it was abandoned: `deadline`, `process_died`, ...",
        "stillframe.snapshot.missing": "Whose parts were missing when it was abandoned.",
        "stillframe.snapshot.bytes": "All its Parquet files together.",
        "stillframe.snapshot.messages": "How many messages were caught on channels.",
        "stillframe.snapshot.pause_s": "The longest that any process stood still for it.",
        "stillframe.snapshot.capture_s": "The longest until the part of a process was encoded.",
        "stillframe.snapshot.has_markers": "Whether it is known how its markers went: if not, "
        "there are no spans of processes.",
    },
    PART: {
        "stillframe.process": "Whose part it is.",
        "stillframe.marked_by": "Whose marker made it record its state; left out for an initiator.",
        "stillframe.moved_s": "So far its times were moved, because its clock is not that of the "
        "coordinator; left out if they were not.",
    },
    MARKER: {
        "stillframe.source": "The process at the other end of the channel on which it came.",
    },
}
SEEN_COUNT_MAX = 1000
"""Of so many snapshots that the history does not know of yet the way of the markers is kept."""
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

Value = str | bool | int | float | tuple[str, ...]


class Part(NamedTuple):
    """The span of a process: times are seconds since 1970, by the clock of the coordinator.

    Attributes:
        span_id: of this span.
        process: whose it is.
        began_at: when it recorded its state.
        ended_at: when its part was in.
        attributes: as `ATTRIBUTES` has them.
        markers: when the marker of each source came.
    """

    span_id: int
    process: ProcessId
    began_at: float
    ended_at: float
    attributes: dict[str, Value]
    markers: dict[ProcessId, float]


class Trace(NamedTuple):
    """The trace of a snapshot.

    Attributes:
        trace_id: of the trace.
        span_id: of the span of the snapshot.
        began_at: when it began, in seconds since 1970.
        ended_at: when it ended.
        why_not: why it was abandoned, in words; empty if it was published.
        attributes: as `ATTRIBUTES` has them.
        parts: of the processes.
    """

    trace_id: int
    span_id: int
    began_at: float
    ended_at: float
    why_not: str
    attributes: dict[str, Value]
    parts: tuple[Part, ...]


def trace_of(wave: Wave, ended: Ended, entry: Entry | None) -> Trace:
    """Return a snapshot that has ended as a trace.

    Args:
        wave: how its markers went.
        ended: how it ended.
        entry: how it is in the store, if it is.
    """
    snapshot, began_at = wave.snapshot, wave.initiated_at
    seed = f"{snapshot} {began_at}"
    attributes: dict[str, Value] = {
        "stillframe.snapshot.id": str(snapshot),
        "stillframe.snapshot.initiator": snapshot.initiator,
        "stillframe.snapshot.has_markers": bool(wave.part_at),
        "stillframe.snapshot.outcome": "published" if wave.is_published else "abandoned",
    }
    if epoch := wave.epoch if entry is None else entry.epoch:
        attributes["stillframe.snapshot.epoch"] = epoch
    if entry is not None:
        attributes["stillframe.snapshot.bytes"] = entry.bytes
        attributes["stillframe.snapshot.messages"] = entry.message_count
        attributes["stillframe.snapshot.pause_s"] = entry.pause_s
        attributes["stillframe.snapshot.capture_s"] = entry.capture_s
    why_not = ""
    if isinstance(ended.what, SnapshotAbandoned):
        why_not = ended.sentence
        attributes["stillframe.snapshot.reason"] = ended.what.reason.lower()
        attributes["stillframe.snapshot.missing"] = ended.what.missing
    return Trace(
        _hashed(seed, TRACE_ID_BYTES),
        _hashed(f"{seed} {ROOT}", SPAN_ID_BYTES),
        began_at,
        max(began_at, ended.at if wave.ended_at is None else wave.ended_at),
        why_not,
        attributes,
        tuple(
            _part(process, part_at, wave.times.get(process), began_at, seed)
            for process, part_at in wave.part_at.items()
        ),
    )


def _part(
    process: ProcessId, part_at: float, times: MarkerTimes | None, began_at: float, seed: str
) -> Part:
    """Return the span of a process; it lies where the coordinator's clock has room for it."""
    span_id = _hashed(f"{seed} {PART} {process}", SPAN_ID_BYTES)
    attributes: dict[str, Value] = {"stillframe.process": process}
    if times is None:
        return Part(span_id, process, part_at, part_at, attributes, {})
    cut_at = min(max(times.cut_at, began_at), part_at)
    if times.marked_by is not None:
        attributes["stillframe.marked_by"] = times.marked_by
    if cut_at != times.cut_at:
        attributes["stillframe.moved_s"] = cut_at - times.cut_at
    markers = {
        source: min(max(cut_at + came_s, cut_at), part_at)
        for source, came_s in sorted(times.came_s.items(), key=lambda pair: pair[1])
    }
    return Part(span_id, process, cut_at, part_at, attributes, markers)


def _hashed(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


class Sends(Protocol):
    """Takes traces, and brings them somewhere.

    Attributes:
        sent_count: how many spans are there.
        dropped_count: how many were given up.
        is_troubled: whether the last ones could not be brought there.
    """

    sent_count: int
    dropped_count: int
    is_troubled: bool

    def put(self, trace: Trace) -> None:
        """Bring it there some time, without waiting for that."""


class Tracing:
    """Makes a trace of each snapshot that ended since it began, and of those that the system knows
    of then.

    Args:
        entry_of: returns how a snapshot is in the store, if it is.
        sender: takes the traces.
        say: takes words for people.

    Attributes:
        traced_count: of how many snapshots a trace was made.
        missed_count: of how many of them the system knew no more how their markers went.
        sender: as above.
    """

    def __init__(
        self,
        entry_of: Callable[[SnapshotId], Entry | None],
        sender: Sends,
        say: Callable[[str], None],
    ) -> None:
        self.traced_count = 0
        self.missed_count = 0
        self.sender = sender
        self._entry_of = entry_of
        self._say = say
        self._seen: dict[SnapshotId, Wave] = {}
        self._traced: dict[SnapshotId, None] = {}
        self._is_first = True

    def follow(self, ended: Mapping[SnapshotId, Ended], observed: Observed | None) -> int:
        """Trace what has ended.

        Args:
            ended: how snapshots ended, as the history had it before the system was asked.
            observed: what the system said then; None if there is none any more.

        Returns:
            how many snapshots were traced.
        """
        if observed is not None:
            if not observed.is_running:
                return 0  # it starts again, and says then what it knows
            for wave in observed.waves:
                if wave.ended_at is not None and wave.snapshot not in self._traced:
                    self._seen[wave.snapshot] = wave
        before = self.traced_count
        for snapshot, how in ended.items():
            if snapshot in self._traced:
                continue
            if snapshot in self._seen:
                self._trace(self._seen.pop(snapshot), how)
            elif not self._is_first:
                self._trace_missed(snapshot, how)
            self._traced[snapshot] = None
        self._is_first = False
        self._traced = {snapshot: None for snapshot in self._traced if snapshot in ended}
        while len(self._seen) > SEEN_COUNT_MAX:
            del self._seen[next(iter(self._seen))]
        return self.traced_count - before

    def _trace(self, wave: Wave, how: Ended) -> None:
        self.traced_count += 1
        self.sender.put(trace_of(wave, how, self._entry_of(wave.snapshot)))

    def _trace_missed(self, snapshot: SnapshotId, how: Ended) -> None:
        self.missed_count += 1
        if self.missed_count == 1:
            self._say(
                f"how the markers of snapshot {snapshot} went is not known: the system ended, "
                f"or {WAVE_COUNT_MAX} snapshots more had begun before it was asked; its "
                "trace is without processes. How often that happens is in the metric "
                "stillframe_traced_snapshots_missed_total"
            )
        entry = self._entry_of(snapshot)
        began_at = how.began_at if entry is None else entry.initiated_at
        is_published = not isinstance(how.what, SnapshotAbandoned)
        self._trace(Wave(snapshot, began_at, None, is_published), how)
