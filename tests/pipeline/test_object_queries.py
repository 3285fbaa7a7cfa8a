"""Queries of a pipeline in an object store: their checkpoints in snapshots, restores and forks.

The checkpoints are written by hand, as Spark would leave them; nothing runs.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import Damaged, Refused, StillframeError, StoreError, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.log import DataFile, LogReader, LogWriter, write_records
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import QueryState
from stillframe.pipeline.query_runs import first_checkpoint
from stillframe.pipeline.restore import repeated_batch_counts
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest, pinned_path
from stillframe.storage.files import below
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from tests.pipeline.faulty_store import Faults, after, before, faults
from tests.pipeline.money import SCHEMA, Account, records
from tests.pipeline.test_object_checkpoint import (
    DONE,
    PINNED,
    SAME,
    SCHEMAS,
    attempt,
    in_memory,
    rocksdb_2,
    write,
)
from tests.storage.faulty import faulty

__all__ = ["faults"]
READ = 2
"""How many of the three entries of its channel the query has read."""


def as_of(batch: int) -> tuple[dict[str, bytes], set[str]]:
    """Return the checkpoint of a query that has committed `batch`, and what is needed of it."""
    files, _ = rocksdb_2()
    found = {}
    for name, content in files.items():
        folder, _, last = name.rpartition("/")
        if folder in ("commits", "offsets") and int(last) > batch:
            continue
        found[name] = content
        if folder == "offsets":
            found[name] = b'v1\n{}\n{"stillframe": {"coins": %d}}' % READ
    needed = {n for n in SAME if "/1" not in n} | SCHEMAS
    needed |= {f"offsets/{batch}", f"offsets/{batch - 1}", f"commits/{batch}"}
    for partition in (0, 1):
        full = f"{batch + 1}_{attempt(partition, batch + 1)}.zip"
        own = (full, f"{full}.crc", f"SSTs/{batch + 1:06}-a.sst")
        needed |= {f"state/0/{partition}/{name}" for name in own}
    return found, needed


def made(root: Location) -> Pipeline:
    """Make the pipeline ``mint -> sums -> summed``; the query has committed a micro-batch."""
    pipeline = Pipeline.create(
        root,
        queries=["sums"],
        services={"mint": Account},
        channels=[
            channel("coins", SCHEMA, source="mint", targets=["sums"]),
            channel("summed", SCHEMA, source="sums"),
        ],
        name="run",
    )
    with join("mint", pipeline=root, state=Account()) as mint:
        for amount in (3, 5, 7):
            mint.append("coins", records(amount))
    write(first_checkpoint(root, 1, "sums"), as_of(PINNED)[0])
    return pipeline


def taken(pipeline: Pipeline) -> Manifest:
    """Take a snapshot."""
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Manifest), outcome
    return outcome


def pinned(root: Location, manifest: Manifest) -> Location:
    """Return where a snapshot has the checkpoint."""
    return manifest.pinned(root, "sums")


def names_below(directory: Location) -> set[str]:
    """Return the names of all files below a place."""
    found = storage_of(directory).files_below(directory)
    return {str(one.location)[len(str(directory)) + 1 :] for one in found}


def check_continues(pipeline: Pipeline, batch: int = PINNED) -> None:
    """Check that a query can continue from what a restore has made."""
    path = first_checkpoint(pipeline.path, pipeline.epoch, "sums")
    assert names_below(path) == as_of(batch)[1]
    assert checkpoint.last_committed(path) == checkpoint.Committed(batch, {"coins": READ})
    assert checkpoint.contradiction(path) is None


def test_a_snapshot_has_exactly_the_files_of_the_micro_batch() -> None:
    """With their hashes; and a restore makes a checkpoint of them, in the new epoch's place."""
    pipeline = made(in_memory())
    manifest = taken(pipeline)
    assert {file.name for file in manifest.files} == as_of(PINNED)[1]
    assert manifest.cut("coins", "sums").record_count == 1
    assert manifest.last_batches == {"sums": PINNED}
    pipeline.restore(manifest.snapshot)
    assert pipeline.epoch == 2
    check_continues(pipeline)
    pipeline.restore(taken(pipeline).snapshot)
    check_continues(pipeline)
    pipeline.delete(manifest.snapshot)
    assert names_below(pinned(pipeline.path, manifest)) == set()
    check_continues(pipeline)


def test_a_file_with_a_unique_name_is_read_once() -> None:
    """Large files of RocksDB are known from the snapshot before."""
    pipeline = made(in_memory())
    first = taken(pipeline)
    with faulty(pipeline.path) as requests:
        second = taken(pipeline)
    assert first.files == second.files
    read = [request.key for request in requests.sent if request.method == "get"]
    assert any(key.endswith(".zip") for key in read)
    assert not any(key.endswith(".sst") for key in read)


def test_a_fork_takes_its_checkpoints_along(tmp_path: Path) -> None:
    """Into another place in memory, into a directory, and back."""
    pipeline = made(in_memory())
    manifest = taken(pipeline)
    for target in (in_memory(), tmp_path / "fork", in_memory()):
        forked = pipeline.fork(manifest.snapshot, target, name="other")
        check_continues(forked)
        assert names_below(pinned(target, manifest)) == as_of(PINNED)[1]
        forked.restore(manifest.snapshot)
        check_continues(forked)
        pipeline = forked


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (f"state/0/0/17_{attempt(0, 17)}.zip.crc", b"[]", "was changed since"),
        ("state/0/0/SSTs/000017-a.sst", b"longer", "was changed since"),
        ("state/0/0/SSTs/000017-a.sst", None, "is missing"),
        ("metadata", None, "is missing"),
        ("sources/0/1", b"v1", "it was added later"),
    ],
)
def test_an_edited_checkpoint_is_not_restored(name: str, content: bytes | None, what: str) -> None:
    """Whatever was done to the files of a snapshot: nothing is changed."""
    pipeline = made(in_memory())
    path = below(pinned(pipeline.path, taken(pipeline)), name)
    if content is None:
        storage_of(path).delete([path])
    else:
        storage_of(path).put(path, content)
    with pytest.raises(Damaged, match=what):
        pipeline.restore()
    assert pipeline.epoch == 1
    assert names_below(first_checkpoint(pipeline.path, 2, "sums")) == set()


def test_what_another_program_of_the_query_pinned_is_noticed() -> None:
    """It was left over, and had committed another micro-batch than the one that is recorded."""
    pipeline = made(in_memory())
    path = first_checkpoint(pipeline.path, 1, "sums")
    for number, batch in enumerate((PINNED, DONE), start=1):
        write(path, as_of(batch)[0])
        place = pipeline.path / "snapshots" / f"run-{number}"
        checkpoint.pin(path, batch, pinned_path(place, "sums", QueryState(batch, run=0)))
    assert {file.name for file in taken(pipeline).files} == as_of(DONE)[1]
    storage = storage_of(path)
    storage.delete([below(path, f"commits/{DONE}")])
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Abandoned)
    assert "still recording" in outcome.detail


@pytest.mark.parametrize("address", ["gs://bucket/shop", "abfss://a@b.dfs.core.windows.net/shop"])
def test_queries_are_refused_where_spark_cannot_write(address: str, tmp_path: Path) -> None:
    """By what makes a pipeline, and by a fork."""
    source = made(tmp_path / "run")
    manifest = taken(source)
    with pytest.raises(UsageError, match="cannot hold the checkpoint of the query sums"):
        source.fork(manifest.snapshot, address)
    with pytest.raises(UsageError, match="cannot hold the checkpoint of the query sums"):
        Pipeline.create(address, queries=["sums"], services={}, channels=[])


def publish(pipeline: Pipeline) -> None:
    """Take another snapshot."""
    pipeline.snapshot()


def restore(pipeline: Pipeline) -> None:
    """Go back to the first one."""
    pipeline.restore("run-1")


@pytest.mark.parametrize("operation", [publish, restore])
def test_a_failing_request_is_an_error_that_programs_expect(
    faults: Faults, operation: Callable[[Pipeline], None]
) -> None:
    """It ends no program that takes a snapshot again and again."""
    faults.with_reads = True
    pipeline = made(in_memory())
    taken(pipeline)
    with faults.at(-1, before):
        operation(pipeline)
    for number in range(faults.count):
        with contextlib.suppress(StillframeError), faults.at(number, before):
            operation(pipeline)


def test_a_checkpoint_that_cannot_be_listed_or_read_is_no_bug(faults: Faults) -> None:
    """When a query starts, it is said what to do."""
    pipeline = made(in_memory())
    place = first_checkpoint(pipeline.path, 1, "sums")
    faults.with_reads = True
    for look in (checkpoint.contradiction, lambda path: checkpoint.agrees(path, path, PINNED)):
        with faults.at(-1, before):
            look(place)
        for number in range(faults.count):
            with pytest.raises(StoreError, match="check that"), faults.at(number, before):
                look(place)


@pytest.mark.parametrize("operation", [publish, restore])
@pytest.mark.parametrize(("fault", "stays"), [(after, True), (before, True), (after, False)])
def test_each_write_may_fail(
    faults: Faults,
    operation: Callable[[Pipeline], None],
    fault: Callable[[Any], Any],
    *,
    stays: bool,
) -> None:
    """The program dies there, or goes on: each snapshot can be restored."""

    def try_at(number: int) -> Pipeline:
        pipeline = made(in_memory())
        taken(pipeline)
        expected = contextlib.suppress(StoreError, OSError, Refused)
        with expected, faults.at(number, fault, stays=stays):
            operation(pipeline)
        return pipeline

    try_at(-1)
    count = faults.count
    assert count > len(as_of(PINNED)[1])
    for number in range(count):
        again = Pipeline(try_at(number).path)
        for manifest in (again.find("run-1"), taken(again)):
            again.restore(manifest.snapshot)
            check_continues(again)


def test_the_newest_consistent_point_is_restored_in_an_object_store() -> None:
    """The epoch begins from the snapshot that is taken with the restore; none was there before."""
    pipeline = Pipeline.create(
        in_memory(),
        queries=["mint", "sums"],
        channels=[channel("coins", SCHEMA, source="mint", targets=["sums"])],
        name="run",
    )
    root = pipeline.path
    writer = LogWriter(root, pipeline.dataflow.log("coins"), read_metadata(root), run=0)
    for batch in range(PINNED - 1, PINNED + 2):
        checksum = write_records(writer.data_directory / f"{batch}.parquet", records(batch))
        writer.tail()
        writer.append_files([DataFile(f"{batch}.parquet", 0, 1, checksum)], batch=batch)
    reading = as_of(PINNED)[0]
    writing = {
        n: b"v1\n{}" if n.startswith("offsets") else content for n, content in reading.items()
    }
    write(first_checkpoint(root, 1, "sums"), reading)
    write(first_checkpoint(root, 1, "mint"), writing)
    found = pipeline.restore(newest_consistent=True)
    assert [one.snapshot for one in pipeline.snapshots()] == [found.snapshot]
    assert found.last_batches == {"mint": PINNED, "sums": PINNED}
    assert repeated_batch_counts(root, found) == {"mint": 0, "sums": 0}
    metadata = read_metadata(root)
    assert (metadata.epoch, metadata.restored_from) == (2, found.snapshot)
    assert (
        LogReader(root, pipeline.dataflow.log("coins"), metadata.segments["coins"]).tail(0) == READ
    )
    check_continues(pipeline)
