"""How snapshots ended, each told once, wherever the history was cut or put aside."""

import contextlib
import json
import random
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stillframe.errors import Damaged, StoreError
from stillframe.model import SnapshotId
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store import bucket_history, history
from stillframe.store.history import NEWER, OLDER, History, HistoryRecord, first_record, read_after
from stillframe.store.layout import SNAPSHOTS
from stillframe.store.outcomes import (
    ABANDONED,
    DAMAGED,
    LOST,
    OVERDUE,
    PUBLISHED,
    OutcomeCursor,
    OutcomeReader,
    SnapshotOutcome,
    Started,
)
from stillframe.store.store import Store
from tests.storage.faulty import Fault, faulty
from tests.store.samples import DESCRIPTION
from tests.store.samples import publish as publish_in

LATER = 1e12


def id_of(number: int) -> SnapshotId:
    """Return the id of a snapshot of P."""
    return SnapshotId("P", number)


class System:
    """Begins and ends snapshots; those that are published are mere directories."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / SNAPSHOTS).mkdir(parents=True)
        self.history = History(path)

    def begin(self, number: int) -> None:
        """Begin a snapshot."""
        self.history.append(history.SnapshotBegan(id_of(number)))

    def publish(self, number: int) -> None:
        """Let it be published."""
        (self.path / SNAPSHOTS / str(id_of(number))).mkdir()
        self.history.append(history.SnapshotPublished(id_of(number)))

    def abandon(self, number: int) -> None:
        """Let it be given up."""
        self.history.append(history.SnapshotAbandoned(id_of(number), "DEADLINE", ("Q",), ""))


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A system that has done nothing yet."""
    made = System(tmp_path / "store")
    yield made
    made.history.close()


def drain(
    store: Path, cursor: OutcomeCursor, now: float = LATER
) -> tuple[list[str], OutcomeCursor]:
    """Return what ended since a cursor, by somebody who is started again after each step."""
    told: list[str] = []
    while True:
        cursor = msgspec.json.decode(msgspec.json.encode(cursor), type=OutcomeCursor)
        found = OutcomeReader(store, timeout_s=None).after(cursor, now)
        if found.place == cursor.place and not found.outcomes:
            return told, found
        told += [f"{ending.snapshot} {ending.how}" for ending in found.outcomes]
        cursor = found


def test_each_ending_is_told_once(system: System) -> None:
    """Those that overlap too, with when and in which epoch they began."""
    system.history.append(history.EpochBegan(3, None))
    for number in (1, 2, 3):
        system.begin(number)
    system.abandon(2)
    system.publish(1)
    told, cursor = drain(system.path, OutcomeCursor())
    assert told == [f"P-2 {ABANDONED}", f"P-1 {PUBLISHED}"]
    assert (cursor.epoch, list(cursor.pending), cursor.last_number) == (3, ["P-3"], 3)
    system.publish(3)
    found = OutcomeReader(system.path, timeout_s=None).after(cursor, LATER)
    (ending,) = found.outcomes
    assert (ending.snapshot, ending.started and ending.started.epoch) == ("P-3", 3)
    assert drain(system.path, found)[0] == []


def test_what_was_given_up_says_why(system: System) -> None:
    """Reason, processes, and a sentence."""
    system.begin(1)
    system.abandon(1)
    cursor = OutcomeReader(system.path, timeout_s=None).after(OutcomeCursor(), LATER)
    (ending,) = OutcomeReader(system.path, timeout_s=None).after(cursor, LATER).outcomes
    assert (ending.reason, ending.missing) == ("DEADLINE", ("Q",))
    assert ending.why.startswith("snapshot P-1 was abandoned: the deadline passed")


def test_what_is_later_than_now_is_not_told_yet(system: System) -> None:
    """The history is read up to a time."""
    system.begin(1)
    system.publish(1)
    assert drain(system.path, OutcomeCursor(), now=0.0)[0] == []
    assert drain(system.path, OutcomeCursor())[0] == [f"P-1 {PUBLISHED}"]


def test_what_takes_too_long_is_overdue_once(system: System) -> None:
    """Its end is not told; one whose publishing was not noted, because of a crash, is published."""
    system.begin(1)
    system.begin(2)
    (system.path / SNAPSHOTS / "P-2").mkdir()
    _, cursor = drain(system.path, OutcomeCursor())
    late = OutcomeReader(system.path, timeout_s=10).after(cursor, LATER)
    assert [(e.snapshot, e.how) for e in late.outcomes] == [("P-1", OVERDUE), ("P-2", PUBLISHED)]
    assert OutcomeReader(system.path, timeout_s=10).after(late, LATER).outcomes == ()
    system.publish(1)
    system.history.append(history.SnapshotPublished(id_of(2)))
    assert drain(system.path, late)[0] == []


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_repeated_when_files_are_put_aside(
    system: System, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whoever reads now and then, also after lines that are gone, is told of each published
    snapshot once, and of none that it was told of as anything else."""
    chance = random.Random(seed)
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 1500)
    told: list[str] = []
    cursor, number, under_way = OutcomeCursor(), 0, []
    published = set()
    for _ in range(300):
        what = chance.random()
        if what < 0.45:
            number += 1
            system.begin(number)
            under_way.append(number)
        elif what < 0.95 and under_way:
            ended = under_way.pop(chance.randrange(len(under_way)))
            if chance.random() < 0.7:
                system.publish(ended)
                published.add(f"P-{ended}")
            else:
                system.abandon(ended)
        elif chance.random() < 0.3:
            more, cursor = drain(system.path, cursor)
            told += more
    more, cursor = drain(system.path, cursor)
    told += more
    names = [entry.split()[0] for entry in told]
    assert len(names) == len(set(names))
    assert {entry.split()[0] for entry in told if entry.endswith(PUBLISHED)} == published
    assert set(cursor.pending) == {f"P-{left}" for left in under_way}


def test_what_was_under_way_when_lines_were_lost_has_an_end(system: System) -> None:
    """One that is not in the store was given up, or dropped; nobody knows any more."""
    system.begin(1)
    system.begin(2)
    _, cursor = drain(system.path, OutcomeCursor())
    system.abandon(1)
    (system.path / OLDER).unlink(missing_ok=True)
    (system.path / NEWER).unlink()
    system.history.close()
    again = History(system.path)
    again.append(history.SnapshotBegan(id_of(7)))
    again._roll_over(1.0)
    (system.path / OLDER).unlink()
    again.close()
    told, after = drain(system.path, cursor)
    assert told == [f"P-1 {LOST}", f"P-2 {LOST}"]
    assert list(after.pending) == ["P-7"]


def test_a_line_that_was_read_and_taken_back_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The object store took it and gave no answer, so the writer wrote others in its place."""
    monkeypatch.setattr(bucket_history, "WRITE_INTERVAL_S", 3600.0)
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
    reader = OutcomeReader(place, timeout_s=None)

    def told(cursor: OutcomeCursor) -> tuple[list[str], OutcomeCursor]:
        found = reader.after(cursor, LATER)
        names = [f"{one.snapshot} {one.how}" for one in found.outcomes]
        if found.place == cursor.place and not names:
            return [], found
        more, last = told(found)
        return names + more, last

    with contextlib.closing(Store.create(place, description=DESCRIPTION)) as store:
        store.raise_epoch(None)
        publish_in(store, 1, 2, 3)
        store.history.append(history.SnapshotBegan(SnapshotId("A", 4)))
        names, cursor = told(OutcomeCursor())
        assert names == [f"A-{number} {PUBLISHED}" for number in (1, 2, 3)]
        lost = lambda request: Fault.LOST if "history" in request.key else None  # noqa: E731
        with faulty(place, lost, repeat_s=0.0), pytest.raises(StoreError):
            store.history.append(history.SnapshotBegan(SnapshotId("A", 5)))
        names, cursor = told(cursor)
        assert (names, list(cursor.pending)) == ([], ["A-4", "A-5"])
        for number in (4, 5):
            store.history.append(
                history.SnapshotAbandoned(SnapshotId("A", number), "DEADLINE", (), "")
            )
    assert told(cursor)[0] == [f"A-4 {ABANDONED}", f"A-5 {ABANDONED}"]


def test_many_come_a_few_at_a_time(system: System) -> None:
    """Those that were there before the history, and those in it."""
    for number in range(1, 601):
        (system.path / SNAPSHOTS / str(id_of(number))).mkdir()
    for number in range(601, 1201):
        system.begin(number)
        system.publish(number)
    endings = OutcomeReader(system.path, timeout_s=None)
    cursor = endings.after(OutcomeCursor(), LATER)
    counts: list[int] = []
    while cursor.outcomes or cursor.place is None or not counts or counts[-1]:
        counts.append(len(cursor.outcomes))
        cursor = endings.after(cursor, LATER)
    assert (sum(counts), max(counts)) == (1200, 256)


def test_a_line_that_is_being_written_is_not_read(system: System) -> None:
    """What comes behind the last whole line is read when it is whole."""
    first = first_record(system.path)
    assert first is not None
    system.begin(1)
    path = system.path / NEWER
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_after(system.path, first[1]) == []
    path.write_bytes(whole)
    steps = read_after(system.path, first[1])
    assert steps is not None
    assert [line.what for line, _ in steps if isinstance(line, HistoryRecord)] == [
        history.SnapshotBegan(id_of(1))
    ]
    assert read_after(system.path, steps[-1][1]) == []


def test_a_changed_line_is_named(system: System) -> None:
    """A byte that was changed is found, with the file."""
    first = first_record(system.path)
    assert first is not None
    system.begin(1)
    path = system.path / NEWER
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":2'))
    steps = read_after(system.path, first[1])
    assert steps is not None
    [(line, _)] = steps
    assert isinstance(line, Damaged)
    assert re.match(r"line 2 of .*history\.ndjson was changed", str(line))


def change_line(path: Path, number: int) -> None:
    """Change a byte of a line of a history."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(b'"at"', b'"as"')
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_changed_line_hides_no_other(system: System, number: int) -> None:
    """It is told once, with its number in the file; what the other lines say is told as ever, also
    by a follower that is started again after each step."""
    system.begin(1)
    system.publish(1)
    system.begin(2)
    system.abandon(2)
    change_line(system.path / NEWER, number)
    cursor = OutcomeCursor()
    endings: list[SnapshotOutcome] = []
    while True:
        cursor = msgspec.json.decode(msgspec.json.encode(cursor), type=OutcomeCursor)
        found = OutcomeReader(system.path, timeout_s=None).after(cursor, LATER)
        if found.place == cursor.place and not found.outcomes:
            break
        endings += found.outcomes
        cursor = found
    [damage] = [ending for ending in endings if ending.how == DAMAGED]
    assert damage.snapshot is None
    assert damage.why.startswith(f"line {number} of ")
    told = [f"{ending.snapshot} {ending.how}" for ending in endings if ending is not damage]
    expected = {3: ["P-2 abandoned"], 5: ["P-1 published"]}
    assert told == expected.get(number, ["P-1 published", "P-2 abandoned"])


def test_a_changed_line_is_told_no_sooner_than_what_comes_before_it(system: System) -> None:
    """A place behind it would leave that out."""
    system.begin(1)
    system.publish(1)
    system.begin(2)
    path = system.path / NEWER
    change_line(path, 4)
    began_at = json.loads(path.read_bytes().splitlines()[1])["event"]["at"]
    told, cursor = drain(system.path, OutcomeCursor(), now=began_at)
    assert told == []
    assert drain(system.path, cursor)[0] == ["P-1 published", "None damaged"]


def test_a_cursor_in_a_checkpoint_keeps_its_keys() -> None:
    """A query continues from the offset that an earlier release wrote."""
    written = b'{"under_way":{"P-1":null},"endings":[{"snapshot":"P-2","how":"published"}]}'
    cursor = msgspec.json.decode(written, type=OutcomeCursor)
    assert (cursor.pending, len(cursor.outcomes)) == ({"P-1": None}, 1)
    assert msgspec.json.encode(cursor) == written


def test_what_never_came_has_no_outcome_in_an_object_store() -> None:
    """A listing has it nevertheless, and its line was removed. One that had begun is lost."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
    with contextlib.closing(Store.create(place, description=DESCRIPTION)) as store:
        store.raise_epoch(None)
        publish_in(store, 1, 4)
    storage = storage_of(place)
    for number in (2, 3):
        storage.put(place / SNAPSHOTS / f"A-{number}" / "processes.parquet", b"x")
    storage.delete([place / NEWER, place / OLDER])
    reader = OutcomeReader(place, timeout_s=None)
    begun = OutcomeCursor(pending={"A-3": Started(1.0, 1)})
    for cursor, lost in ((OutcomeCursor(), []), (begun, [("A-3", "lost")])):
        found = [(one.snapshot, one.how) for one in reader.after(cursor, 2e9).outcomes]
        assert found == [("A-1", "published"), *lost, ("A-4", "published")]
    storage.delete([place / SNAPSHOTS / f"A-{n}" / "manifest.json" for n in (1, 4)])
    assert reader.after(OutcomeCursor(), 2e9).outcomes == ()
