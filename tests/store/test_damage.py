"""A changed, missing, cut or longer file is found and named, wherever the change is."""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.process import Process
from stillframe.store.history import EpochBegan, SnapshotBegan
from stillframe.store.manifest import (
    CHANNELS,
    FILES,
    MANIFEST,
    MESSAGES,
    PROCESSES,
    FileRecord,
    Manifest,
)
from stillframe.store.parquet import read_parquet, to_parquet
from stillframe.store.sealed_json import FORMAT, SEALED_BYTES_MAX, read_sealed, seal
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.store.samples import DESCRIPTION, SOME_MESSAGES, global_state, publish, snapshot_of

ID, ID_2 = SnapshotId("A", 1), SnapshotId("A", 2)


class Idle(Process):
    """A process that makes the smallest store there is."""

    balance: int = 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with the snapshot A-1."""
    made = Store.create(tmp_path / "store", description=DESCRIPTION)
    made.raise_epoch(None)
    publish(made, 1)
    yield made
    made.close()


@pytest.fixture
def directory(store: Store) -> Path:
    """The directory of A-1."""
    return local(store.path) / "snapshots" / "A-1"


@pytest.mark.slow
def test_every_changed_byte_is_found_and_named(tmp_path: Path) -> None:
    """One flipped bit in any byte of any file of a store: verify names that file."""
    topology = Topology({"A": Idle()}, [])
    with_one = Store.create(tmp_path / "tiny", description=topology.description)
    with_one.raise_epoch(None)
    with_one.publish(snapshot_of(1, global_state(topology=topology)))
    with_one.close()
    store = Store.open(with_one.path)
    directory = local(store.path) / "snapshots" / "A-1"
    paths = [
        local(store.path) / "store.json",
        directory / MANIFEST,
        *(directory / n for n in FILES),
    ]
    missed = [
        (path.name, offset)
        for path in paths
        for offset in range(path.stat().st_size)
        if not _is_found(store, path, offset)
    ]
    assert missed == []
    store.verify(ID)


def _is_found(store: Store, path: Path, offset: int) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        [byte] = os.pread(descriptor, 1, offset)
        os.pwrite(descriptor, bytes([byte ^ 1 << offset % 8]), offset)
        try:
            store.verify(ID)
        except Damaged as error:
            return str(path) in str(error)
        finally:
            os.pwrite(descriptor, bytes([byte]), offset)
        return False
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", ["store.json", f"snapshots/A-1/{MANIFEST}"])
@pytest.mark.parametrize("extra", [b" ", b"\n", b"\x00", b"{}"])
def test_bytes_added_to_a_sealed_file_are_found(store: Store, name: str, extra: bytes) -> None:
    """Even white space at the end of a sealed file is a change."""
    path = local(store.path) / name
    path.write_bytes(path.read_bytes() + extra)
    with pytest.raises(Damaged, match=path.name):
        store.verify(ID)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_cut_or_longer_table_is_named(store: Store, directory: Path, name: str) -> None:
    """Whatever happened to the length of a table, verify says which and what."""
    path = directory / name
    content = path.read_bytes()
    for changed, cause in (
        (content + b"x", "more than"),
        (content[:-1], "cut short"),
        (b"", "cut"),
    ):
        path.write_bytes(changed)
        with pytest.raises(Damaged, match=rf"{name}.* {cause}"):
            store.verify(ID)
    path.unlink()
    with pytest.raises(Damaged, match=rf"{name} is missing"):
        store.verify(ID)


@pytest.mark.parametrize("name", [MANIFEST, PROCESSES, CHANNELS])
def test_a_restore_checks_what_it_reads(store: Store, directory: Path, name: str) -> None:
    """Loading verifies the files that it reads, and names the one that was changed."""
    content = bytearray((directory / name).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / name).write_bytes(content)
    with pytest.raises(Damaged, match=name):
        store.load(ID)


def test_a_restore_does_not_need_the_messages_for_queries(store: Store, directory: Path) -> None:
    """Loading reads processes and channels only: the rest can be lost, and verify tells."""
    (directory / MESSAGES).unlink()
    assert store.load(ID) == snapshot_of(1)
    with pytest.raises(Damaged, match=MESSAGES):
        store.verify(ID)


def test_a_list_names_a_damaged_manifest(store: Store, directory: Path) -> None:
    """A snapshot with a damaged manifest is not left out of the list in silence."""
    (directory / MANIFEST).unlink()
    for act in (store.entries, Store.open(store.path).current):
        with pytest.raises(Damaged, match=str(directory / MANIFEST)):
            act()


def test_a_damaged_manifest_of_an_older_snapshot_keeps_no_writer_back(
    store: Store, directory: Path
) -> None:
    """The system continues from the newest one, and no place in the order is used twice."""
    newest = store.publish(snapshot_of(2))
    store.close()
    (directory / MANIFEST).write_bytes(b"")
    again = Store.open_writer(store.path)
    try:
        assert again.current() == newest
        published = again.publish(snapshot_of(3))
        assert published.is_restore_point
        assert published.sequence > newest.sequence
        assert again.current() == published
        assert again.load(ID_2) == store.load(ID_2)
        entries, damages = again.listing()
    finally:
        again.close()
    assert [entry.id for entry in entries] == [newest.id, published.id]
    assert [*damages] == [ID]


def test_a_damaged_manifest_of_the_newest_snapshot_leaves_the_others(store: Store) -> None:
    """Nobody knows where a death goes back to, nor whether the next snapshot is a restore point. A
    system that begins with an earlier one by its name needs neither."""
    newest = store.publish(snapshot_of(2))
    store.close()
    (local(newest.directory) / MANIFEST).write_bytes(b"")
    again = Store.open_writer(store.path)
    try:
        for act in (
            again.current,
            lambda: again.publish(snapshot_of(3)),
            lambda: again.drop(str(ID)),
        ):
            with pytest.raises(Damaged, match=r"A-2/manifest\.json"):
                act()
        assert again.raise_epoch(ID) == 2
        published = again.publish(snapshot_of(3, epoch=2))
        assert published.is_restore_point
        assert again.current() == published
    finally:
        again.close()


def test_no_place_in_the_order_is_used_twice_after_a_removal_and_damage(store: Store) -> None:
    """The damaged snapshot may have had the place of its number."""
    for number in (2, 3):
        newest = store.publish(snapshot_of(number))
    store.drop("A-2")
    store.close()
    (local(newest.directory) / MANIFEST).write_bytes(b"")
    again = Store.open_writer(store.path)
    try:
        again.raise_epoch(ID)
        assert again.publish(snapshot_of(4, epoch=2)).sequence > newest.sequence
    finally:
        again.close()


def test_a_damaged_manifest_of_an_older_epoch_is_not_what_the_system_goes_back_to(
    store: Store, directory: Path
) -> None:
    """The newest snapshot is damaged, and the system began a new epoch with an earlier one: until
    that has snapshots of its own, a death goes back to the same one. The writer knows that; others
    learn from the history that the damaged one is older than the epoch."""
    newest = store.publish(snapshot_of(2))
    (local(newest.directory) / MANIFEST).write_bytes(b"")
    with pytest.raises(Damaged, match=r"A-2/manifest\.json"):
        Store.open(store.path).current()
    assert store.raise_epoch(ID) == 2
    current = store.current()
    assert current is not None
    assert current.id == ID
    with pytest.raises(Damaged, match=r"A-2/manifest\.json"):
        Store.open(store.path).current()
    for happening in (EpochBegan(1, None), SnapshotBegan(ID), SnapshotBegan(ID_2)):
        store.history.append(happening)
    with pytest.raises(Damaged, match=r"A-2/manifest\.json"):
        Store.open(store.path).current()
    store.history.append(EpochBegan(2, ID))
    assert Store.open(store.path).current() == current
    store.close()
    with contextlib.closing(Store.open_writer(store.path)) as again:
        assert again.current() == current
        assert again.publish(snapshot_of(3, epoch=2)).is_restore_point


def test_a_damaged_manifest_of_the_epoch_is_never_taken_for_older(store: Store) -> None:
    """It began after the epoch: then it may be what a death goes back to."""
    newest = store.publish(snapshot_of(2))
    for happening in (EpochBegan(1, None), SnapshotBegan(ID), SnapshotBegan(ID_2)):
        store.history.append(happening)
    (local(newest.directory) / MANIFEST).write_bytes(b"")
    with pytest.raises(Damaged, match=r"A-2/manifest\.json"):
        Store.open(store.path).current()


def test_a_snapshot_under_another_name_is_found(store: Store, directory: Path) -> None:
    """A copied directory is no second snapshot."""
    shutil.copytree(directory, directory.with_name("A-2"))
    with pytest.raises(Damaged, match=r"A-2/manifest\.json belongs to snapshot A-1"):
        store.entries()


def test_a_second_name_of_a_snapshot_is_none(store: Store, directory: Path) -> None:
    """A-01 would be A-1, too: it is not taken for that."""
    shutil.copytree(directory, directory.with_name("A-01"))
    for read in (store.entries, store.next_number, Store.open(store.path).current):
        with pytest.raises(StoreError, match=r"A-01 is not a snapshot: move it out of the store"):
            read()


def test_a_lost_store_json_is_named(store: Store) -> None:
    """Snapshots without a store.json are a damaged store, not a free directory."""
    store.close()
    (local(store.path) / "store.json").unlink()
    acts: tuple[Callable[[], Store], ...] = (
        lambda: Store.open(store.path),
        lambda: Store.open_writer(store.path),
        lambda: Store.create(store.path, description=DESCRIPTION),
    )
    for act in acts:
        with pytest.raises(Damaged, match=r"store\.json is missing"):
            act()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """Nothing, an empty directory and somebody's files: each is refused in its own words."""
    with pytest.raises(UsageError, match="does not exist"):
        Store.open(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is not a store"):
        Store.open_writer(tmp_path)
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match=r"contains thesis\.tex"):
        Store.create(tmp_path, description=DESCRIPTION)
    with pytest.raises(StoreError, match="could not be made into a store"):
        Store.create(tmp_path / "thesis.tex", description=DESCRIPTION)


class Newer(msgspec.Struct):
    """A content that a later version might write."""

    format: int
    what: str = "we cannot know"


def test_a_newer_format_is_refused_as_such(store: Store, directory: Path) -> None:
    """A store of a later version is not called damaged; the sentence is that of the document."""
    page = (Path(__file__).parents[2] / "docs/store-format.md").read_text(encoding="utf-8")
    prescribed = re.search(r"^    (FILE has format N, .*)$", page, re.MULTILINE)
    assert prescribed
    for path in (directory / MANIFEST, local(store.path) / "store.json"):
        path.write_bytes(seal(Newer(FORMAT + 1)))
        with pytest.raises(StoreError) as caught:
            store.verify(ID)
        assert not isinstance(caught.value, Damaged)
        expected = prescribed[1].replace("FILE", str(path)).replace(" M:", f" {FORMAT}:")
        assert str(caught.value) == expected.replace(" N,", f" {FORMAT + 1},")


def test_a_huge_manifest_is_not_read(store: Store, directory: Path) -> None:
    """A manifest over the bound is refused by its length."""
    os.truncate(directory / MANIFEST, SEALED_BYTES_MAX + 1)
    with pytest.raises(Damaged, match=r"manifest\.json has more than"):
        store.entry(ID)


Change = Callable[[Manifest], Manifest]


def _reseal(directory: Path, change: Change) -> None:
    path = directory / MANIFEST
    path.write_bytes(seal(change(read_sealed(path, Manifest))))


@pytest.mark.parametrize("name", ["../A-2/processes.parquet", "/etc/passwd", "..", "a/b", ""])
def test_a_manifest_cannot_lead_out_of_its_directory(
    store: Store, directory: Path, name: str
) -> None:
    """A sealed manifest that names any other file is refused, and that file is not read."""
    _reseal(
        directory,
        lambda manifest: msgspec.structs.replace(
            manifest, files=(FileRecord(name, 1, "0" * 64), *manifest.files[1:])
        ),
    )
    for act in (store.load, store.verify, store.entry):
        with pytest.raises(Damaged, match="lists files other than"):
            act(ID)


def _replace_table(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    record = FileRecord(name, len(content), hashlib.sha256(content).hexdigest())
    _reseal(
        directory,
        lambda manifest: msgspec.structs.replace(
            manifest, files=tuple(record if f.name == name else f for f in manifest.files)
        ),
    )


@pytest.mark.parametrize(
    ("name", "column"),
    [(MESSAGES, "amount"), (MESSAGES, "_number"), (PROCESSES, "balance"), (CHANNELS, "first")],
)
def test_columns_that_contradict_what_was_recorded_are_found(
    store: Store, directory: Path, name: str, column: str
) -> None:
    """Hashes that fit are not enough: the columns for queries must say what was recorded."""
    table = read_parquet((directory / name).read_bytes())
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    changed = table.set_column(index, field, pa.array([4] * table.num_rows, field.type))
    _replace_table(directory, name, to_parquet(changed))
    with pytest.raises(NotConsistent, match=rf"{name}: column {column}"):
        store.verify(ID)


def test_books_are_checked_after_reading(store: Store, directory: Path) -> None:
    """A channel whose recorded messages do not fit its counts is found on load."""
    table = read_parquet((directory / CHANNELS).read_bytes())
    index = table.schema.get_field_index("sent_count")
    changed = table.set_column(index, "sent_count", pa.array([99, 10, 21], pa.int64()))
    _replace_table(directory, CHANNELS, to_parquet(changed))
    with pytest.raises(NotConsistent, match="channel A->B: 99 sent") as caught:
        store.load(ID)
    assert (caught.value.path, caught.value.snapshot) == (str(directory), "A-1")


def test_counts_of_the_manifest_are_checked(store: Store, directory: Path) -> None:
    """A manifest that promises another number of messages than there are is not believed."""
    _reseal(directory, lambda manifest: msgspec.structs.replace(manifest, message_count=4))
    with pytest.raises(
        NotConsistent, match=r"messages\.parquet holds \d+ rows, and its manifest lists 4"
    ):
        store.tables(ID)
    with pytest.raises(NotConsistent, match="4 messages, but the files hold 3, 3 and 5"):
        store.load(ID)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table at all"])
def test_what_is_no_parquet_is_damage(store: Store, directory: Path, content: bytes) -> None:
    """A file with the right hash that is no table is damage, not a crash of ours."""
    _replace_table(directory, CHANNELS, content)
    with pytest.raises(Damaged, match="is not a table of a store"):
        store.load(ID)


def test_a_table_of_other_columns_is_damage(store: Store, directory: Path) -> None:
    """A table with the right hash and other columns is damage, not a crash of ours."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"source": ["A"], "encoded": [1]}), sink)
    for name in (CHANNELS, PROCESSES):
        _replace_table(directory, name, bytes(sink.getvalue()))
        with pytest.raises(Damaged, match="is not a table of a store"):
            store.load(ID)


def test_the_sample_has_what_these_tests_need() -> None:
    """The snapshot that is damaged here holds messages of several classes on several channels."""
    kinds = {type(message) for messages in SOME_MESSAGES.values() for message in messages}
    assert len(kinds) == len(SOME_MESSAGES) == 2
