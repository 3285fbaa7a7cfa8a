"""Follows the history of a store while it is written, and turns its records into events."""

import time
from typing import Any, NamedTuple

from stillframe.errors import Damaged
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.location import Location
from stillframe.store import history
from stillframe.store.history import HistoryRecord

OUTCOME_COUNT_MAX = 1000
"""How many snapshot outcomes are kept."""


class SnapshotOutcome(NamedTuple):
    """The end of a snapshot: the record, when it started and ended, and a sentence."""

    record: history.SnapshotPublished | history.SnapshotAbandoned
    started_at: float
    ended_at: float
    sentence: str


class EventReader:
    """Reads the events of the store in a directory: deaths, restores, takeovers, abandoned
    snapshots. It knows who died in the last epoch, how often each thing happened, how the last
    snapshots ended, the oldest first, and whether a record was changed since it was written."""

    def __init__(self, store: Location) -> None:
        self.dead: frozenset[ProcessId] = frozenset()
        self.counts = history.EventCounts()
        self.outcomes: dict[SnapshotId, SnapshotOutcome] = {}
        self.is_damaged = False
        self._started: dict[SnapshotId, float] = {}
        self._store = store
        self._cursor: history.HistoryCursor | None = None
        self._last_at: float | None = None

    def poll(self) -> list[dict[str, Any]]:
        """Return the events since the last poll. A damaged record is one, and hides no other."""
        events: list[dict[str, Any]] = []
        while records := self._read():
            events += [event for r in records if (event := self._event(r)) is not None]
        return events

    def _read(self) -> list[HistoryRecord | Damaged]:
        if self._cursor is not None:
            steps = history.read_after(self._store, self._cursor)
            if steps is not None:
                if steps:
                    self._cursor = steps[-1][1]
                return [record for record, _ in steps]
            again = history.read_again(self._store, self._cursor)
            if again is not None:
                self._cursor = again[-1][1]
                return [record for record, _ in again if self._is_new(record)]
        first = history.first_record(self._store)
        if first is None:
            return []
        record, self._cursor = first
        return [record]

    def _is_new(self, record: HistoryRecord | Damaged) -> bool:
        """Return whether a line of a file that is read again is later than what was read of it."""
        last_at = self._last_at
        return isinstance(record, HistoryRecord) and (last_at is None or record.at > last_at)

    def _event(self, record: HistoryRecord | Damaged) -> dict[str, Any] | None:
        if isinstance(record, Damaged):
            self.is_damaged = True
            at = time.time() if self._last_at is None else self._last_at
            return {"at": at, "kind": "error", "sentence": str(record)}
        self._last_at = record.at
        kind, sentence = None, ""
        self.counts = history.count_event(self.counts, record.what)
        match record.what:
            case history.EpochBegan(epoch, restored_from):
                self.dead = frozenset()
                kind = "restore" if restored_from else "start"
                origin = f"snapshot {restored_from}" if restored_from else "the initial states"
                sentence = f"epoch {epoch} began from {origin}"
            case history.TakenOver(epoch):
                kind, sentence = "takeover", f"a new supervisor took over in epoch {epoch}"
            case history.ProcessDied(process, cause):
                self.dead |= {process}
                kind, sentence = "death", f"process {process} died: {cause}"
            case history.SnapshotBegan(snapshot):
                self._started[snapshot] = record.at
                _keep_last(self._started)
            case history.SnapshotAbandoned():
                kind, sentence = "abandoned", str(record.what)
        if isinstance(ended := record.what, history.SnapshotPublished | history.SnapshotAbandoned):
            started_at = self._started.pop(ended.snapshot, record.at)
            outcome = SnapshotOutcome(ended, started_at, record.at, sentence)
            self.outcomes[ended.snapshot] = outcome
            _keep_last(self.outcomes)
        return None if kind is None else {"at": record.at, "kind": kind, "sentence": sentence}


def _keep_last(known: dict[SnapshotId, Any]) -> None:
    while len(known) > OUTCOME_COUNT_MAX:
        del known[next(iter(known))]
