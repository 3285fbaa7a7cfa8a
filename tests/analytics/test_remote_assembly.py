"""Fragments are assembled from and into object stores, whenever the program dies."""

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import assembly, verified_parquet
from stillframe.analytics.assembly import assemble
from stillframe.errors import StoreError, UsageError
from stillframe.model import Fragment
from stillframe.storage import lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.history import SnapshotAbandoned, SnapshotPublished, read_history
from stillframe.store.store import Store
from tests.analytics import bank
from tests.fragments import write_fragments
from tests.nightly import by_night
from tests.storage.faulty import DEATHS, Died, Fault, faulty, nth, restarted

EVERY_NTH = by_night(1, check=2)
"""Which of the requests are the last one of a program that dies."""
LOST_COUNT_MAX = 4
"""Requests between the note that a snapshot begins and its manifest, of two snapshots."""


class WithoutSpark:
    """Takes the rows of an answer."""

    def createDataFrame(self, table: pa.Table) -> pa.Table:  # noqa: N802 - Spark's
        """Return the rows."""
        return table


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Let tasks run here, and not on Spark: a thousandth of the time."""

    def run(
        _: object,
        place: Location,
        items: Sequence[tuple[Any, ...]],
        sizes: Sequence[int],
        work: Callable[..., Any],
    ) -> list[Any]:
        assert len(items) == len(sizes)
        answers = [work(*json.loads(json.dumps(item))) for item in items]
        return [json.loads(json.dumps(answer)) for answer in answers if answer is not None]

    monkeypatch.setattr(verified_parquet, "run", run)
    return cast("SparkSession", WithoutSpark())


def verdicts(spark: SparkSession, parts: Location, out: Location) -> dict[str, str]:
    """Assemble, and return the verdicts on what was new."""
    rows: Any = assemble(spark, str(parts), str(out))
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    found = table.select(["snapshot", "verdict"]).to_pylist()
    return {row["snapshot"]: row["verdict"] for row in found}


def write_parts(parts: Location, numbers: Sequence[int], *, without: str = "") -> None:
    """Write the fragments of snapshots; of the last one without that of a process."""

    def change(fragment: Fragment) -> Fragment | None:
        is_last = fragment.snapshot.number == numbers[-1]
        return None if is_last and fragment.state.process == without else fragment

    snapshots = [bank.snapshot(number) for number in numbers]
    write_fragments(parts, bank.TOPOLOGY.description, snapshots, change=change)


def check(out: Location, numbers: Sequence[int]) -> None:
    """Check that the store has these snapshots as they were recorded."""
    store = Store.open(out)
    assert [entry.id.number for entry in store.entries()] == list(numbers)
    for entry in store.entries():
        store.verify(entry.id)
        assert store.load(entry.id).state == bank.snapshot(entry.id.number).state
    assert store.epoch == 1


def check_assembly(spark: SparkSession, parts: Location, out: Location) -> None:
    """Assemble, with a fragment that comes late."""
    write_parts(parts, [1, 2, 3], without="P2")
    expected = {"P1-1": "consistent", "P1-2": "consistent", "P1-3": "incomplete"}
    assert verdicts(spark, parts, out) == expected
    check(out, [1, 2])
    assert verdicts(spark, parts, out) == {"P1-3": "incomplete"}
    write_parts(parts / "late", [3])
    for one in storage_of(parts).files_below(parts / "late" / "e1" / "P2"):
        content, _ = storage_of(parts).read(one.location, bytes_max=2**20)
        storage_of(parts).put(parts / "e1" / "P2" / "P1-3" / one.location.name, content)
    storage = storage_of(parts)
    storage.delete(one.location for one in storage.files_below(parts / "late"))
    assert verdicts(spark, parts, out) == {"P1-3": "consistent"}
    check(out, [1, 2, 3])
    events = [record.what for record in read_history(out)]
    assert sum(isinstance(what, SnapshotPublished) for what in events) == 3
    assert sum(isinstance(what, SnapshotAbandoned) for what in events) == 1
    with contextlib.closing(Store.open_writer(out)) as writer:
        point = writer.current()
        assert point is not None
        writer.raise_epoch(point.id)
    with pytest.raises(UsageError, match="a system was started from the store"):
        assemble(spark, str(parts), str(out))


def test_late_fragments_are_added(in_process: SparkSession, remote_place: ObjectPath) -> None:
    """Both in an object store; a system can start from the result, and then nothing is added."""
    place = remote_place
    check_assembly(in_process, place / "parts", place / "out")


@pytest.mark.spark
def test_tasks_read_and_write_the_object_store(
    spark: SparkSession, spark_bucket: ObjectPath
) -> None:
    """The same on Spark."""
    write_parts(spark_bucket / "parts", [1, 2])
    found = verdicts(spark, spark_bucket / "parts", spark_bucket / "out")
    assert found == {"P1-1": "consistent", "P1-2": "consistent"}
    check(spark_bucket / "out", [1, 2])


def test_the_store_of_a_system_is_not_taken_over(
    in_process: SparkSession, remote_place: ObjectPath
) -> None:
    """It is refused before anything is written to it. So is a place inside the fragments."""
    place = remote_place
    write_parts(place / "parts", [1])
    store = bank.make_store(place / "bank", snapshot_count=1)
    before = contents(store)
    with pytest.raises(UsageError, match="is a store of another kind"):
        assemble(in_process, place / "parts", store)
    assert before == contents(store)
    with pytest.raises(UsageError, match="contains the fragments or is inside"):
        assemble(in_process, place / "parts", place / "parts" / "out")


def contents(place: ObjectPath) -> list[tuple[bytes, object]]:
    """Return the contents of all objects below a place, and their versions."""
    storage = storage_of(place)
    return [storage.read(one.location, bytes_max=2**20) for one in storage.files_below(place)]


@pytest.mark.parametrize("fault", DEATHS)
def test_whenever_it_dies_the_next_run_completes_it(
    in_process: SparkSession, tmp_path: Path, empty_place: ObjectPath, fault: Fault
) -> None:
    """Every snapshot is whole or absent. At most one, which was being published when the program
    died, cannot come any more, and says so."""
    write_parts(tmp_path / "parts", [1, 2])
    lost_count = 0
    for number in itertools.count(1, EVERY_NTH):
        out = empty_place / f"out-{number}"
        with faulty(out, nth(number, fault)) as requests, contextlib.suppress(Died):
            assemble(in_process, tmp_path / "parts", out)
        with restarted():
            assemble(in_process, tmp_path / "parts", out)
            again = verdicts(in_process, tmp_path / "parts", out)
        lost = [int(name.removeprefix("P1-")) for name in again]
        check(out, [one for one in (1, 2) if one not in lost])
        assert set(again.values()) <= {"incomplete"}
        lost_count += len(lost)
        assert len(lost) <= 1
        if len(requests.sent) < number:  # it has fewer
            break
    assert number > 30
    assert lost_count <= LOST_COUNT_MAX


def test_a_fragment_that_was_repaired_is_assembled(
    in_process: SparkSession, remote_place: ObjectPath
) -> None:
    """The files that the first run has written of its snapshot are used, also by another release of
    Arrow, if they have the same rows."""
    parts, out = remote_place / "parts", remote_place / "out"
    write_parts(parts, [1, 2, 3])
    storage, damaged = storage_of(parts), parts / "e1" / "P2" / "P1-2" / "processes.parquet"
    content, _ = storage.read(damaged, bytes_max=2**20)
    storage.put(damaged, content[:-1] + b"x")
    found = verdicts(in_process, parts, out)
    assert found == {"P1-1": "consistent", "P1-2": "incomplete", "P1-3": "consistent"}
    storage.put(damaged, content)
    written = out / "snapshots" / "P1-2" / "channels.parquet"
    rows = pq.read_table(pa.BufferReader(storage.read(written, bytes_max=2**20)[0]))
    other = io.BytesIO()
    pq.write_table(rows, other, compression="none")
    storage.put(written, other.getvalue())
    assert verdicts(in_process, parts, out) == {"P1-2": "consistent"}
    check(out, [1, 2, 3])


def test_a_snapshot_that_was_deleted_does_not_come_back(
    in_process: SparkSession, empty_place: ObjectPath
) -> None:
    """Readers would ignore it, and the next writer would delete it."""
    parts, out = empty_place / "parts", empty_place / "out"
    write_parts(parts, [1, 2, 3])
    assemble(in_process, parts, out)
    with contextlib.closing(Store.open_writer(out)) as writer:
        writer.drop("P1-1")
    write_parts(parts, [4])
    assert verdicts(in_process, parts, out) == {"P1-1": "incomplete", "P1-4": "consistent"}
    check(out, [2, 3, 4])
    with contextlib.closing(Store.open_writer(out)):
        check(out, [2, 3, 4])


def test_a_run_that_was_overtaken_changes_no_mark(
    in_process: SparkSession, remote_place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen before it replaced the mark, and would forget what the other one has added."""
    parts, out = [remote_place / f"parts-{epoch}" for epoch in (1, 2, 3)], remote_place / "out"
    for epoch, place in enumerate(parts, 1):
        snapshot = msgspec.structs.replace(bank.snapshot(epoch), epoch=epoch)
        write_fragments(place, bank.TOPOLOGY.description, [snapshot], run=f"run {epoch}")
    assemble(in_process, parts[0], out)
    next_mark, call_count = assembly._next_mark, itertools.count(1)

    def frozen(*arguments: Any) -> object:
        mark = next_mark(*arguments)
        if next(call_count) == 2:  # the first one only looks whether it may write there
            assemble(in_process, parts[1], out)
        return mark

    monkeypatch.setattr(lease, "_has_ended", lambda _: True)
    monkeypatch.setattr(assembly, "_next_mark", frozen)
    with pytest.raises(StoreError, match="another program has taken over"):
        assemble(in_process, parts[2], out)
    assert (
        b'"runs":{"1":"run 1","2":"run 2"}'
        in storage_of(out).read(out / "assembled.json", bytes_max=2**20)[0]
    )
    assert verdicts(in_process, parts[2], out) == {"P1-3": "consistent"}
