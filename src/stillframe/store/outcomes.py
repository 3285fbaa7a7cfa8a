"""The outcomes of the snapshots of a store, each once, from a cursor that outlives the program.

The history of the store has the outcomes as they happen. Those before its oldest line, and those of
a store without a history, are found among the snapshots themselves.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from stillframe.errors import Damaged
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.files import mapped
from stillframe.storage.location import Location, ObjectPath
from stillframe.store import history
from stillframe.store.layout import (
    SNAPSHOTS,
    changed_ns,
    explain_io_errors,
    is_published,
    is_published_at,
    snapshot_ids,
)

OUTCOME_COUNT_MAX = 256
"""Maximum outcomes at a time."""

_NUMBER_MAX = 2**63
_SETTLED_NS = 10**9
"""After this time, in nanoseconds, another change of a directory gets another time stamp."""

PUBLISHED = "published"
ABANDONED = "abandoned"
OVERDUE = "overdue"
LOST = "lost"
"""The outcomes. `OVERDUE`: it started too long ago, and a later outcome is not reported. `LOST`: it
is not in the store, and the line with the reason was removed."""
DAMAGED = "damaged"
"""No outcome: a line of the history was changed, which may have been one."""


class Started(msgspec.Struct, frozen=True):
    """The start of a snapshot: its time, and its epoch, if they are known."""

    at: float
    epoch: int | None


class SnapshotOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one snapshot.

    `reason` is the name of a ``model.Reason``, `missing` are the processes without a fragment,
    `why` is a sentence for the user. The manifest of a published one has more. `snapshot` is None
    if `how` is `DAMAGED`.
    """

    snapshot: str | None
    how: str
    started: Started | None = msgspec.field(default=None, name="begun")
    at: float | None = None
    reason: str | None = None
    missing: tuple[ProcessId, ...] = ()
    why: str = ""


class OutcomeCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position in the outcomes of a store: those up to `place` in the history have been read.

    `pending` are the snapshots that had started and not ended there; None for those reported as
    overdue. `outcomes` are the new ones since the cursor before.
    """

    place: history.HistoryCursor | None = None
    last_number: int = 0
    epoch: int | None = None
    pending: dict[str, Started | None] = msgspec.field(default={}, name="under_way")
    outcomes: tuple[SnapshotOutcome, ...] = msgspec.field(default=(), name="endings")


class OutcomeReader:
    """Reads the outcomes of the snapshots of the store in a directory. A snapshot that has not
    ended `timeout_s` seconds after its start is overdue; None: never."""

    def __init__(self, store: Location, *, timeout_s: float | None) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._listed: tuple[int, list[SnapshotId]] = (-1, [])

    def after(self, cursor: OutcomeCursor, now: float) -> OutcomeCursor:
        """Return the next cursor; without new outcomes it is equal to this one. Lines of the
        history later than `now`, in seconds since 1970, are not read yet."""
        cursor = msgspec.structs.replace(cursor, outcomes=())
        steps = None if cursor.place is None else history.read_after(self._store, cursor.place)
        if steps is None and cursor.place is not None:
            again = history.read_again(self._store, cursor.place)
            steps = again and [*_not_read(cursor, cursor.place, again)]
        if steps is None:
            return self._caught_up(cursor)
        behind = _behind(cursor, list(_until(steps, now)))
        return behind if behind.place != cursor.place else self._overdue(cursor, now)

    def _overdue(self, cursor: OutcomeCursor, now: float) -> OutcomeCursor:
        """Return the cursor after reporting overdue snapshots."""
        if self._timeout_s is None:
            return cursor
        latest = now - self._timeout_s
        late = {
            snapshot: started
            for snapshot, started in cursor.pending.items()
            if started is not None and started.at < latest
        }
        outcomes = []
        overdue = dict(itertools.islice(late.items(), OUTCOME_COUNT_MAX))
        for snapshot, started in overdue.items():
            # One that was published just before a crash has no line yet.
            how = PUBLISHED if is_published(self._store, SnapshotId.parse(snapshot)) else OVERDUE
            why = f"it did not end within {self._timeout_s:g} s of its start"
            outcomes.append(SnapshotOutcome(snapshot=snapshot, how=how, started=started, why=why))
        pending = cursor.pending | dict.fromkeys(overdue)
        return msgspec.structs.replace(cursor, pending=pending, outcomes=tuple(outcomes))

    def _caught_up(self, cursor: OutcomeCursor) -> OutcomeCursor:
        """Return the cursor after the outcomes before the oldest line, up to that line."""
        # In this order: the start of a published snapshot is in the history before.
        published = self._published()
        first = history.first_record(self._store)
        what = self._known_before(first)

        def is_before(snapshot: SnapshotId) -> bool:
            return snapshot.number <= what.last_number and snapshot not in what.pending

        pending = {SnapshotId.parse(name): started for name, started in cursor.pending.items()}
        unreported = [s for s in published if s.number > cursor.last_number or pending.get(s)]
        ended = [(s, PUBLISHED) for s in unreported if is_before(s)]
        if first is not None:
            gone = [s for s, started in pending.items() if started and s not in set(published)]
            ended += [(s, LOST) for s in gone if is_before(s)]
        if not ended:
            return cursor if first is None else _at_beginning(cursor, first, what)
        ended.sort(key=lambda pair: pair[0].number)
        chosen = ended[:OUTCOME_COUNT_MAX]
        last_number = max(cursor.last_number, chosen[-1][0].number)
        if isinstance(self._store, ObjectPath):
            chosen = [*self._known(chosen, pending)]
            if not chosen:
                return self._caught_up(msgspec.structs.replace(cursor, last_number=last_number))
        outcomes = [
            SnapshotOutcome(
                snapshot=str(snapshot),
                how=how,
                started=pending.get(snapshot),
                why="it is not in the store, and its outcome is no longer in the history"
                if how == LOST
                else "",
            )
            for snapshot, how in chosen
        ]
        reported = {str(snapshot) for snapshot, _ in chosen}
        return msgspec.structs.replace(
            cursor,
            place=None,
            last_number=last_number,
            pending={s: started for s, started in cursor.pending.items() if s not in reported},
            outcomes=tuple(outcomes),
        )

    def _known(
        self, ended: list[tuple[SnapshotId, str]], pending: Mapping[SnapshotId, Started | None]
    ) -> Iterator[tuple[SnapshotId, str]]:
        """Yield the outcomes in an object store, where a listing has snapshots that never came."""
        places = [self._store / SNAPSHOTS / str(snapshot) for snapshot, _ in ended]
        are_there = mapped(self._store, is_published_at, places)
        for (snapshot, how), is_there in zip(ended, are_there, strict=True):
            if is_there or how == LOST or pending.get(snapshot):
                yield snapshot, how if is_there else LOST

    def _known_before(self, first: history.PlacedRecord | None) -> history.Rollover:
        """Return a summary of everything before the first line. Without a history, or a readable
        one, all snapshots with a lower number than the first that started in it are before it."""
        if first is None:
            return history.Rollover(_NUMBER_MAX, ())
        line, place = first
        what = line.what if isinstance(line, history.HistoryRecord) else None
        if isinstance(what, history.Rollover) and what.last_number:
            return what
        while steps := history.read_after(self._store, place):
            for line, _ in steps:
                match line.what if isinstance(line, history.HistoryRecord) else None:
                    # The line of its start may be damaged, and not that of its outcome.
                    case (
                        history.SnapshotBegan(snapshot)
                        | history.SnapshotPublished(snapshot)
                        | history.SnapshotAbandoned(snapshot)
                    ):
                        return history.Rollover(snapshot.number - 1, ())
            place = steps[-1][1]
        # The file is gone, which the next call finds out; or no snapshot has started.
        return history.Rollover(0 if steps is None else _NUMBER_MAX, ())

    def _published(self) -> list[SnapshotId]:
        """Return the published snapshots; listed again only when the directory changed."""
        with explain_io_errors(self._store, "read"):
            changed = changed_ns(self._store / SNAPSHOTS)
        if changed == self._listed[0]:
            return self._listed[1]
        found = snapshot_ids(self._store / SNAPSHOTS)
        if time.time_ns() - changed > _SETTLED_NS:
            self._listed = changed, found
        return found


def _at_beginning(
    cursor: OutcomeCursor, first: history.PlacedRecord, what: history.Rollover
) -> OutcomeCursor:
    """Return the cursor after the first line, when all outcomes before it were reported."""
    line, place = first
    pending: dict[str, Started | None] = {}
    if isinstance(line, history.HistoryRecord):
        started = Started(line.at, None)
        pending = {str(s): cursor.pending.get(str(s), started) for s in what.pending}
    return OutcomeCursor(
        place=place,
        last_number=cursor.last_number,
        epoch=cursor.epoch,
        pending=pending,
        outcomes=(_damaged(line),) if isinstance(line, Damaged) else (),
    )


def _not_read(
    cursor: OutcomeCursor, place: history.HistoryCursor, steps: list[history.PlacedRecord]
) -> Iterator[history.PlacedRecord]:
    """Yield the lines of a file that are new to a cursor whose `place` is in none of them any more,
    with an empty event instead of each other one. Up to there only what they say tells."""
    for line, after in steps:
        is_known = after.length <= place.length
        match line.what if isinstance(line, history.HistoryRecord) else None:
            case history.EpochBegan() | history.TakenOver():
                is_known = False
            case history.SnapshotBegan(snapshot):
                is_known = is_known and snapshot.number <= cursor.last_number
            case history.SnapshotPublished(snapshot) | history.SnapshotAbandoned(snapshot):
                is_old = snapshot.number <= cursor.last_number
                is_known = is_known and is_old and str(snapshot) not in cursor.pending
        at = line.at if isinstance(line, history.HistoryRecord) else 0.0
        nothing = history.HistoryRecord(at, history.WriterChanged(""))
        yield nothing if is_known else line, after


def _until(steps: Iterable[history.PlacedRecord], now: float) -> Iterator[history.PlacedRecord]:
    """Yield the lines up to `now`. A damaged one has no time, and counts as one with that before
    it."""
    at = -math.inf
    for step in steps:
        if isinstance(step[0], history.HistoryRecord):
            at = step[0].at
        if at <= now:
            yield step


def _behind(cursor: OutcomeCursor, steps: list[history.PlacedRecord]) -> OutcomeCursor:
    """Return the cursor after some lines, or fewer if they have too many outcomes."""
    place, last_number, epoch = cursor.place, cursor.last_number, cursor.epoch
    pending = dict(cursor.pending)
    outcomes: list[SnapshotOutcome] = []
    for line, after in steps:
        if len(outcomes) == OUTCOME_COUNT_MAX:
            break
        place = after
        if isinstance(line, Damaged):
            outcomes.append(_damaged(line))
            continue
        match line.what:
            case history.EpochBegan(number) | history.TakenOver(number):
                epoch = number
            case history.SnapshotBegan(snapshot):
                pending[str(snapshot)] = Started(line.at, epoch)
                last_number = max(last_number, snapshot.number)
            case history.SnapshotPublished(snapshot) | history.SnapshotAbandoned(snapshot):
                # One that could not start, on a full disk, has no line before this one.
                started = pending.pop(str(snapshot), Started(line.at, epoch))
                last_number = max(last_number, snapshot.number)
                if started is not None:
                    outcomes.append(_outcome(line, snapshot, started))
    return OutcomeCursor(place, last_number, epoch, pending, tuple(outcomes))


def _damaged(damage: Damaged) -> SnapshotOutcome:
    return SnapshotOutcome(snapshot=None, how=DAMAGED, why=str(damage))


def _outcome(
    line: history.HistoryRecord, snapshot: SnapshotId, started: Started
) -> SnapshotOutcome:
    if not isinstance(line.what, history.SnapshotAbandoned):
        return SnapshotOutcome(snapshot=str(snapshot), how=PUBLISHED, started=started, at=line.at)
    return SnapshotOutcome(
        snapshot=str(snapshot),
        how=ABANDONED,
        started=started,
        at=line.at,
        reason=line.what.reason,
        missing=line.what.missing,
        why=str(line.what),
    )
