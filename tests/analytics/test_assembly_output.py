"""The store that fragments are assembled into: which snapshots it has, and where back to."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import assemble, assembly
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.store.history import History, SnapshotPublished, read_history
from stillframe.store.layout import ASSEMBLED, take_lock
from stillframe.store.manifest import Head
from stillframe.store.sealed_json import read_sealed
from stillframe.store.store import Store
from tests.analytics.test_assembly import verdicts
from tests.fragments import write_fragments
from tests.soak.hostile_files import sealed
from tests.store import samples

pytestmark = pytest.mark.spark


def test_a_crash_before_there_is_a_store_leaves_the_directory_free(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What says whose store it will be is there first."""
    write_fragments(tmp_path / "parts", samples.DESCRIPTION, [samples.snapshot_of(1)])
    assert verdicts(spark, tmp_path / "parts", tmp_path / "whole") == {"A-1": "consistent"}
    (tmp_path / "out").mkdir()
    shutil.copy(tmp_path / "whole" / ASSEMBLED, tmp_path / "out")
    lock = take_lock(tmp_path / "out")
    with pytest.raises(Unavailable, match="in use by another program"):
        assemble(spark, tmp_path / "parts", tmp_path / "out")
    os.close(lock)
    assert verdicts(spark, tmp_path / "parts", tmp_path / "out") == {"A-1": "consistent"}


def test_snapshots_of_several_epochs_and_topologies_are_one_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each is read by the description of its time; the newest is where a restore begins."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)], reference="old:system")
    other = msgspec.structs.replace(samples.DESCRIPTION, shapes={"Account": "another"})
    write_fragments(parts, other, [samples.snapshot_of(2, epoch=2)], reference="new:system")
    assert verdicts(spark, parts, out, epoch=2) == {"A-2": "consistent"}
    assert verdicts(spark, parts, out) == {"A-1": "consistent"}
    store = Store.open(out)
    assert (store.epoch, store.reference, store.description) == (2, "new:system", other)
    assert store.description_of(SnapshotId("A", 1)) == samples.DESCRIPTION
    current = store.current()
    assert current is not None
    assert str(current.id) == "A-2"
    assert [str(entry.id) for entry in store.entries()] == ["A-1", "A-2"]
    for number in (1, 2):
        store.verify(SnapshotId("A", number))


def test_a_number_is_never_two_snapshots_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    """A system that began again may give it once more: the other one is told, and nothing is put
    together of both."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(n) for n in (1, 2)])
    assert verdicts(spark, parts, out) == {"A-1": "consistent", "A-2": "consistent"}
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(n, epoch=2) for n in (2, 3)])
    rows = assemble(spark, parts, out).collect()
    assert [(row["epoch"], row["snapshot"], row["verdict"]) for row in rows] == [
        (2, "A-2", "incomplete"),
        (2, "A-3", "consistent"),
    ]
    assert "holds A-2 of epoch 1, which has the same number" in rows[0]["why"]
    store = Store.open(out)
    assert [str(entry.id) for entry in store.entries()] == ["A-1", "A-2", "A-3"]
    told = [
        line.what.snapshot for line in read_history(out) if isinstance(line.what, SnapshotPublished)
    ]
    assert sorted(told) == sorted(entry.id for entry in store.entries())


def test_both_epochs_of_a_number_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """The one that is set aside takes nothing from the other."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(n) for n in (1, 2)])
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(n, epoch=2) for n in (2, 3)])
    rows = assemble(spark, parts, out).collect()
    assert {(row["epoch"], row["snapshot"]): row["verdict"] for row in rows} == {
        (1, "A-1"): "consistent",
        (1, "A-2"): "incomplete",
        (2, "A-2"): "consistent",
        (2, "A-3"): "consistent",
    }
    found = {(entry.epoch, str(entry.id)) for entry in Store.open(out).entries()}
    assert found == {(1, "A-1"), (2, "A-2"), (2, "A-3")}


def test_another_run_is_not_put_beside_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """Its epochs and numbers are the same, and nothing else is."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)])
    assert verdicts(spark, parts, out) == {"A-1": "consistent"}
    later = tmp_path / "later"
    write_fragments(later, samples.DESCRIPTION, [samples.snapshot_of(n) for n in (1, 2)], run="b")
    rows = assemble(spark, later, out).collect()
    assert {row["snapshot"]: row["verdict"] for row in rows} == {
        "A-1": "incomplete",
        "A-2": "incomplete",
    }
    assert all("of another run of epoch 1" in row["why"] for row in rows)


def points(spark: SparkSession, parts: Path, out: Path) -> tuple[str | None, set[str]]:
    """Assemble; return where a restore goes back to, and which are restore points."""
    assemble(spark, parts, out)
    store = Store.open(out)
    current = store.current()
    is_point = {str(entry.id) for entry in store.entries() if entry.is_restore_point}
    return None if current is None else str(current.id), is_point


def test_a_restore_goes_back_to_what_no_process_is_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Cuts that cross are no restore points, whichever comes first; an epoch of which nothing is
    whole goes back to what it began from."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    moments = {("B", 2): 0.5, ("B", 4): 9.0}

    def write(number: int, epoch: int = 1, **options: Any) -> None:
        write_fragments(
            parts,
            samples.DESCRIPTION,
            [samples.snapshot_of(number, epoch=epoch)],
            moment_s=lambda s, p: moments.get((p, s.id.number), float(s.id.number)),
            **options,
        )

    for number in (1, 2, 3, 5):
        write(number)
    assert points(spark, parts, out) == ("A-5", {"A-1", "A-3", "A-5"})
    write(4)
    assert points(spark, parts, out) == ("A-5", {"A-1", "A-3", "A-5"})
    only = {"change": lambda f: f if f.state.process == "A" else None}
    write(6, 2, began_from=SnapshotId("A", 3), **only)
    write(7, 1)
    assert points(spark, parts, out) == ("A-3", {"A-1", "A-3", "A-5", "A-7"})
    assert Store.open(out).epoch == 2
    write(8, 2, began_from=SnapshotId("A", 3))
    assert points(spark, parts, out)[0] == "A-8"


def test_a_directory_without_a_fragment_spoils_no_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whoever made it: what goes on from the store has numbers to give."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)])
    (parts / "e1" / "A" / f"A-{10**15}").mkdir()
    (parts / "e999999" / "A" / "A-1").mkdir(parents=True)
    rows = assemble(spark, parts, out).collect()
    assert {row["verdict"] for row in rows} == {"consistent", "incomplete"}
    assert [str(entry.id) for entry in Store.open(out).entries()] == ["A-1"]
    history = History(out)
    assert history.last_number == 1
    assert Store.open(out).epoch == 1
    history.close()


def test_it_writes_only_into_a_store_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of anybody else's is changed: a system's store, files, or one that was restored."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)])
    Store.create(tmp_path / "theirs", description=samples.DESCRIPTION).close()
    with pytest.raises(UsageError, match="is a store of another kind"):
        assemble(spark, parts, tmp_path / "theirs")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "something").touch()
    with pytest.raises(UsageError, match="is not empty and is not a store"):
        assemble(spark, parts, tmp_path / "files")
    for inside in (parts, parts / "e1" / "out", tmp_path):
        with pytest.raises(UsageError, match="which contains the fragments or is inside"):
            assemble(spark, parts, inside)
    assert verdicts(spark, parts, out) == {"A-1": "consistent"}
    writer = Store.open_writer(out)
    writer.raise_epoch(SnapshotId("A", 1))
    writer.close()
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(2)])
    with pytest.raises(UsageError, match="a system was started from the store"):
        assemble(spark, parts, out)


def test_a_damaged_store_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is added to what cannot be read."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)])
    assert verdicts(spark, parts, out) == {"A-1": "consistent"}
    path = out / "snapshots" / "A-1" / "manifest.json"
    path.write_bytes(path.read_bytes()[:-1])
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(2)])
    with pytest.raises(Damaged, match=f"{path} was changed"):
        assemble(spark, parts, out)


def test_a_store_of_version_1_is_continued(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head is of this version before a snapshot of this version is in it."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(1)])
    assert verdicts(spark, parts, out) == {"A-1": "consistent"}
    head = read_sealed(out / "store.json", Head)
    encoded = msgspec.json.encode(msgspec.structs.replace(head, format=1))
    (out / "store.json").write_bytes(sealed(encoded))
    write_fragments(parts, samples.DESCRIPTION, [samples.snapshot_of(2)])
    monkeypatch.setattr(assembly, "_put_epoch", lambda *_: None)  # as if it was killed before
    assert verdicts(spark, parts, out) == {"A-2": "consistent"}
    assert read_sealed(out / "store.json", Head) == head
