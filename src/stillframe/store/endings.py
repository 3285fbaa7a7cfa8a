"""How the snapshots of a store ended, each once, from a standing that outlives the program.

While a system runs its history says what ended; what ended before the oldest line that is still
there is looked up among the snapshots themselves. That is also done for a store without a history.
"""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stillframe.errors import Damaged
from stillframe.model import Abandoned, ProcessId, Reason, SnapshotId
from stillframe.store import history
from stillframe.store.history import Line
from stillframe.store.opening import SNAPSHOTS, explained, is_published, snapshot_directories
from stillframe.store.tail import Place, Step, beginning, read_on

ENDING_COUNT_MAX = 256
"""So many endings at most come at once."""

_NUMBER_MAX = 2**63
_SETTLED_NS = 10**9
"""A directory that was changed so long ago is not changed a second time at that same time."""

PUBLISHED = "published"
ABANDONED = "abandoned"
OVERDUE = "overdue"
LOST = "lost"
"""How a snapshot ends. `OVERDUE`: it began too long ago, and what becomes of it later is not told
any more. `LOST`: it is not in the store, and the line that says why is gone."""
DAMAGED = "damaged"
"""No end of a snapshot: a line of the history was changed, and how one ended may be in it."""


class Begun(msgspec.Struct, frozen=True):
    """When a snapshot began, and in which epoch, if that is known."""

    at: float
    epoch: int | None


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one snapshot ended.

    `reason` is the name of a ``model.Reason``, `missing` are the processes whose parts were not in,
    `why` is a sentence for people. Of one that was published its manifest knows more than this.
    `snapshot` is None if `how` is `DAMAGED`.
    """

    snapshot: str | None
    how: str
    begun: Begun | None = None
    at: float | None = None
    reason: str | None = None
    missing: tuple[ProcessId, ...] = ()
    why: str = ""


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the endings of a store are known.

    Attributes:
        place: up to where the history was read; None before its beginning was.
        last_number: the highest number of a snapshot so far.
        epoch: of the system there, if it is known.
        under_way: what had begun there and not ended; None for what was told as overdue.
        endings: what ended since the standing before.
    """

    place: Place | None = None
    last_number: int = 0
    epoch: int | None = None
    under_way: dict[str, Begun | None] = {}
    endings: tuple[Ending, ...] = ()


class Endings:
    """The endings of the snapshots of one store.

    Args:
        store: its directory.
        timeout_s: what began so long ago and has not ended is overdue; None if it never is.
    """

    def __init__(self, store: Path, *, timeout_s: float | None) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._listed: tuple[int, list[SnapshotId]] = (-1, [])

    def after(self, standing: Standing, now: float) -> Standing:
        """Return the next standing; at the end it is where it was, and nothing ended.

        Args:
            standing: from where to go on.
            now: what the history says of later is not read yet.

        Raises:
            StoreError: the store cannot be read.
        """
        standing = msgspec.structs.replace(standing, endings=())
        steps = None if standing.place is None else read_on(self._store, standing.place)
        if steps is None:
            return self._caught_up(standing)
        behind = _behind(standing, list(_until(steps, now)))
        return behind if behind.place != standing.place else self._overdue(standing, now)

    def _overdue(self, standing: Standing, now: float) -> Standing:
        """Return what takes too long: nothing more is known of it for now."""
        if self._timeout_s is None:
            return standing
        latest = now - self._timeout_s
        late = {
            snapshot: begun
            for snapshot, begun in standing.under_way.items()
            if begun is not None and begun.at < latest
        }
        endings = []
        overdue = list(late.items())[:ENDING_COUNT_MAX]
        for snapshot, begun in overdue:
            # One that was published in the moment of a crash has no line that says so yet.
            how = PUBLISHED if is_published(self._store, SnapshotId.parse(snapshot)) else OVERDUE
            why = f"it has not ended {self._timeout_s:g} s after it began"
            endings.append(Ending(snapshot=snapshot, how=how, begun=begun, why=why))
        told: dict[str, Begun | None] = dict.fromkeys(snapshot for snapshot, _ in overdue)
        return msgspec.structs.replace(
            standing, under_way=standing.under_way | told, endings=tuple(endings)
        )

    def _caught_up(self, standing: Standing) -> Standing:
        """Return what ended before the oldest line of the history, and that line as the place."""
        # In this order: the beginning of what is there is in the history before.
        there = self._published()
        first = beginning(self._store)
        what = self._known_before(first)

        def is_before(snapshot: SnapshotId) -> bool:
            return snapshot.number <= what.last_number and snapshot not in what.under_way

        awaited = {SnapshotId.parse(name): begun for name, begun in standing.under_way.items()}
        untold = [s for s in there if s.number > standing.last_number or awaited.get(s)]
        ended = [(s, PUBLISHED) for s in untold if is_before(s)]
        if first is not None:
            gone = [s for s, begun in awaited.items() if begun and s not in set(there)]
            ended += [(s, LOST) for s in gone if is_before(s)]
        if not ended:
            return standing if first is None else _at_beginning(standing, first, what)
        ended.sort(key=lambda pair: pair[0].number)
        chosen = ended[:ENDING_COUNT_MAX]
        endings = [
            Ending(
                snapshot=str(snapshot),
                how=how,
                begun=awaited.get(snapshot),
                why="it is not in the store, and how it ended is no longer in the history"
                if how == LOST
                else "",
            )
            for snapshot, how in chosen
        ]
        told = {str(snapshot) for snapshot, _ in chosen}
        return msgspec.structs.replace(
            standing,
            place=None,
            last_number=max(standing.last_number, chosen[-1][0].number),
            under_way={s: begun for s, begun in standing.under_way.items() if s not in told},
            endings=tuple(endings),
        )

    def _known_before(self, first: Step | None) -> history.Continued:
        """Return what was known when the history began that is there: of snapshots of a store
        without one, that they have lower numbers than the first that began in it."""
        if first is None:
            return history.Continued(_NUMBER_MAX, ())
        line, place = first
        what = line.what if isinstance(line, Line) else None
        if isinstance(what, history.Continued) and what.last_number:
            return what
        while steps := read_on(self._store, place):
            for line, _ in steps:
                match line.what if isinstance(line, Line) else None:
                    # The line that it began with may be damaged, and not that of its end.
                    case (
                        history.SnapshotBegan(snapshot)
                        | history.SnapshotPublished(snapshot)
                        | history.SnapshotAbandoned(snapshot)
                    ):
                        return history.Continued(snapshot.number - 1, ())
            place = steps[-1][1]
        # Gone meanwhile, which shows when it is read on; or nothing has begun.
        return history.Continued(0 if steps is None else _NUMBER_MAX, ())

    def _published(self) -> list[SnapshotId]:
        """Return what is published; the directory is listed again when a name in it changed."""
        with explained(self._store, "read"):
            changed = (self._store / SNAPSHOTS).stat().st_mtime_ns
        if changed == self._listed[0]:
            return self._listed[1]
        directories = snapshot_directories(self._store / SNAPSHOTS)
        found = [SnapshotId.parse(path.name) for path in directories]
        if time.time_ns() - changed > _SETTLED_NS:
            self._listed = changed, found
        return found


def _at_beginning(standing: Standing, first: Step, what: history.Continued) -> Standing:
    """Return the standing behind the first line that is there, when all before it is told."""
    line, place = first
    under_way: dict[str, Begun | None] = {}
    if isinstance(line, Line):
        begun = Begun(line.at, None)
        under_way = {str(s): standing.under_way.get(str(s), begun) for s in what.under_way}
    return Standing(
        place=place,
        last_number=standing.last_number,
        epoch=standing.epoch,
        under_way=under_way,
        endings=(_damaged(line),) if isinstance(line, Damaged) else (),
    )


def _until(steps: Iterable[Step], now: float) -> Iterator[Step]:
    """Yield the lines that are no younger than `now`. One that was changed is as young as the one
    before: to go behind it is to go behind that."""
    at = -math.inf
    for step in steps:
        if isinstance(step[0], Line):
            at = step[0].at
        if at <= now:
            yield step


def _behind(standing: Standing, steps: list[Step]) -> Standing:
    """Return the standing behind some lines, or fewer if more ended in them than come at once."""
    place, last_number, epoch = standing.place, standing.last_number, standing.epoch
    under_way = dict(standing.under_way)
    endings: list[Ending] = []
    for line, after in steps:
        if len(endings) == ENDING_COUNT_MAX:
            break
        place = after
        if isinstance(line, Damaged):
            endings.append(_damaged(line))
            continue
        match line.what:
            case history.EpochBegan(number) | history.TakenOver(number):
                epoch = number
            case history.SnapshotBegan(snapshot):
                under_way[str(snapshot)] = Begun(line.at, epoch)
                last_number = max(last_number, snapshot.number)
            case history.SnapshotPublished(snapshot) | history.SnapshotAbandoned(snapshot):
                # One that could not begin, on a full disk, has no line before this one.
                begun = under_way.pop(str(snapshot), Begun(line.at, epoch))
                last_number = max(last_number, snapshot.number)
                if begun is not None:
                    endings.append(_ending(line, snapshot, begun))
    return Standing(place, last_number, epoch, under_way, tuple(endings))


def _damaged(damage: Damaged) -> Ending:
    return Ending(snapshot=None, how=DAMAGED, why=str(damage))


def _ending(line: Line, snapshot: SnapshotId, begun: Begun) -> Ending:
    if not isinstance(line.what, history.SnapshotAbandoned):
        return Ending(snapshot=str(snapshot), how=PUBLISHED, begun=begun, at=line.at)
    _, name, missing, detail = msgspec.structs.astuple(line.what)
    known = Reason.__members__.get(name)
    return Ending(
        snapshot=str(snapshot),
        how=ABANDONED,
        begun=begun,
        at=line.at,
        reason=name,
        missing=missing,
        why=str(Abandoned(snapshot, known, missing, detail)) if known else f"{name}: {detail}",
    )
