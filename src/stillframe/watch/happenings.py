"""What happened to a system, in sentences, as its history has it: read on while it is written."""

import time
from pathlib import Path
from typing import Any, NamedTuple

from stillframe.errors import Damaged
from stillframe.model import Abandoned, ProcessId, Reason, SnapshotId
from stillframe.store import history
from stillframe.store.history import Line, SnapshotAbandoned, SnapshotPublished, Tally, counted
from stillframe.store.tail import Place, beginning, read_on

ENDED_COUNT_MAX = 1000
"""Of so many snapshots is kept how they ended."""


class Ended(NamedTuple):
    """How a snapshot ended, when, when it was given its number, and that in a sentence."""

    what: SnapshotPublished | SnapshotAbandoned
    began_at: float
    at: float
    sentence: str


class Happenings:
    """The happenings of one store: deaths, restores, snapshots that were given up.

    Args:
        store: its directory.

    Attributes:
        dead: the processes that died in an epoch that has not been followed by another.
        tally: how often each thing happened.
        ended: how the last snapshots ended, oldest first.
        is_damaged: whether a line was changed since it was written.
    """

    def __init__(self, store: Path) -> None:
        self.dead: frozenset[ProcessId] = frozenset()
        self.tally = Tally()
        self.ended: dict[SnapshotId, Ended] = {}
        self.is_damaged = False
        self._begun: dict[SnapshotId, float] = {}
        self._store = store
        self._place: Place | None = None
        self._last_at: float | None = None

    def look(self) -> list[dict[str, Any]]:
        """Read on, and return what is new.

        A line that was changed is trouble, and hides no other.

        Raises:
            StoreError: the history cannot be read.
        """
        found: list[dict[str, Any]] = []
        while True:
            lines = self._read()
            if not lines:
                break
            found += [document for line in lines if (document := self._told(line)) is not None]
        return found

    def _read(self) -> list[Line | Damaged]:
        if self._place is not None:
            steps = read_on(self._store, self._place)
            if steps is not None:
                if steps:
                    self._place = steps[-1][1]
                return [line for line, _ in steps]
        first = beginning(self._store)
        if first is None:
            return []
        line, self._place = first
        return [line]

    def _told(self, line: Line | Damaged) -> dict[str, Any] | None:
        if isinstance(line, Damaged):
            self.is_damaged = True
            at = time.time() if self._last_at is None else self._last_at
            return {"at": at, "kind": "trouble", "sentence": str(line)}
        self._last_at = line.at
        kind = sentence = None
        self.tally = counted(self.tally, line.what)
        match line.what:
            case history.EpochBegan(epoch, restored_from):
                self.dead = frozenset()
                kind = "restore" if restored_from else "start"
                whence = f"from snapshot {restored_from}" if restored_from else "afresh"
                sentence = f"epoch {epoch} began {whence}"
            case history.TakenOver(epoch):
                kind, sentence = "takeover", f"a new supervisor took over in epoch {epoch}"
            case history.ProcessDied(process, cause):
                self.dead |= {process}
                kind, sentence = "death", f"process {process} died: {cause}"
            case history.SnapshotAbandoned(snapshot, name, missing, detail):
                known = Reason.__members__.get(name)
                kind = "abandoned"
                sentence = (
                    str(Abandoned(snapshot, known, missing, detail))
                    if known
                    else f"snapshot {snapshot} was abandoned: {name}; {detail}"
                )
        self._note(line, sentence or "")
        return None if kind is None else {"at": line.at, "kind": kind, "sentence": sentence}

    def _note(self, line: Line, sentence: str) -> None:
        """Note when a snapshot begins, and how it ends."""
        match line.what:
            case history.SnapshotBegan(snapshot):
                self._begun[snapshot] = line.at
                _keep_last(self._begun)
            case history.SnapshotPublished(snapshot) | history.SnapshotAbandoned(snapshot):
                began_at = self._begun.pop(snapshot, line.at)
                self.ended[snapshot] = Ended(line.what, began_at, line.at, sentence)
                _keep_last(self.ended)


def _keep_last(known: dict[SnapshotId, Any]) -> None:
    while len(known) > ENDED_COUNT_MAX:
        del known[next(iter(known))]
