"""A restore to the newest consistent point: no earlier snapshot, all at once, nothing between."""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import NotConsistent, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Manifest, Pipeline, channel, coordinator, restore, retained
from stillframe.pipeline.locks import coordinator_lock, is_running, participant_lock
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.restore import repeated_batch_counts
from stillframe.protocol.aligner import Mode
from tests.cli.pipelines import resting_shop
from tests.pipeline.fake_queries import SCHEMA, commit, log_writer, write
from tests.pipeline.topics_shop import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop that has run and of which no snapshot was ever taken."""
    made = Shop(tmp_path / "shop.pipeline", monkeypatch)
    made.run()
    return made


def test_no_earlier_snapshot_is_needed(shop: Shop) -> None:
    """Both queries are at micro-batches that fit, and the epoch began from what was found."""
    shop.lose("dedup")
    shop.lose("dedup")
    found = shop.pipeline.restore(newest_consistent=True)
    assert (found.mode, found.last_batches) == (Mode.RETAINED, {"dedup": 0, "sums": 0})
    assert [one.snapshot for one in shop.pipeline.snapshots()] == [found.snapshot]
    metadata = read_metadata(shop.path)
    assert (metadata.epoch, metadata.restored_from) == (2, found.snapshot)
    assert repeated_batch_counts(shop.path, found) == {"dedup": 0, "sums": 1}
    assert shop.pipeline.timeline("sums")[1] == range(1)


def test_it_is_refused_before_anything_is_written_while_a_query_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot is taken, not even a number for one."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.0)
    lock = participant_lock(shop.path, "sums")
    assert lock.acquire()
    files = set(shop.path.rglob("*"))
    with pytest.raises(Unavailable, match="sums is running"):
        shop.pipeline.restore(newest_consistent=True)
    lock.release()
    assert {path for path in shop.path.rglob("*") if path.suffix != ".lock"} <= files
    assert shop.pipeline.epoch == 1


def test_no_program_starts_in_between(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """All locks are held while the point is found and until the new epoch has begun."""
    seen: list[tuple[int, bool]] = []

    def look(name: str, module: Any) -> None:
        real = getattr(module, name)

        def looking(*arguments: Any, **named: Any) -> Any:
            locks = [not coordinator_lock(shop.path).is_free()]
            locks += [is_running(shop.path, query) for query in ("dedup", "sums")]
            seen.append((read_metadata(shop.path).epoch, all(locks)))
            return real(*arguments, **named)

        monkeypatch.setattr(module, name, looking)

    look("record", retained)
    look("_publish", coordinator)
    look("_export", restore)
    look("write_metadata", restore)
    shop.pipeline.restore(newest_consistent=True)
    assert seen == [(1, True)] * 4
    assert not is_running(shop.path, "dedup")


def test_without_a_consistent_point_nothing_changes(shop: Shop) -> None:
    """The reason is that of the search."""
    for _ in range(3):
        shop.lose("dedup")
    (checkpoint_path(shop.path, 1, "sums") / "commits" / "0").unlink()
    with pytest.raises(NotConsistent, match=r"no newest consistent point .*minBatchesToRetain"):
        shop.pipeline.restore(newest_consistent=True)
    assert (shop.pipeline.epoch, shop.pipeline.snapshots()) == (1, [])


def test_it_is_not_both(shop: Shop) -> None:
    """A snapshot and the newest consistent point exclude each other."""
    with pytest.raises(UsageError, match="not both"):
        shop.pipeline.restore("shop-1", newest_consistent=True)


def two_queries(path: Path) -> Pipeline:
    """Make a pipeline of two queries with a log between them, into which the first one has written
    in each of three micro-batches. The second has read two of them in its first micro-batch, and
    the third in its second one; the disk has lost the third micro-batch of the first query."""
    pipeline = Pipeline.create(
        path,
        queries=["first", "second"],
        channels=[channel("log", SCHEMA, source="first", targets=["second"])],
    )
    writer = log_writer(pipeline, "log")
    for batch in range(3):
        write(writer, batch)
    commit(path, "first", 0, {})
    commit(path, "first", 1, {})
    commit(path, "second", 0, {"log": 2})
    commit(path, "second", 1, {"log": 3})
    return pipeline


def test_it_works_for_logs_between_queries_too(tmp_path: Path) -> None:
    """The log ends where the chosen micro-batch of its source ended, and is read from there."""
    pipeline = two_queries(tmp_path / "logs.pipeline")
    found = pipeline.restore(newest_consistent=True)
    assert found.last_batches == {"first": 1, "second": 0}
    assert repeated_batch_counts(pipeline.path, found) == {"first": 0, "second": 1}
    assert [row for one in pipeline.records("log") for row in one.records.to_pylist()] == [
        {"n": 0},
        {"n": 1},
    ]
    assert read_metadata(pipeline.path).starts == {"first": {}, "second": {"log": 2}}


def test_entries_that_were_trimmed_are_not_missed(tmp_path: Path) -> None:
    """The search looks at micro-batches before the oldest snapshot, whose entries are gone."""
    pipeline = two_queries(tmp_path / "logs.pipeline")
    writer = log_writer(pipeline, "log")
    for batch in range(2, 44):
        if batch > 2:
            write(writer, batch)
            commit(pipeline.path, "second", batch - 1, {"log": batch + 1})
        commit(pipeline.path, "first", batch, {})
        if batch > 41:
            assert isinstance(pipeline.snapshot("retained"), Manifest)
    pipeline.keep(1)
    assert writer.reader.first_kept() > 30
    write(writer, 44)
    commit(pipeline.path, "second", 43, {"log": 45})
    found = pipeline.restore(newest_consistent=True)
    assert found.last_batches == {"first": 43, "second": 42}


def empty_log(path: Path) -> tuple[Pipeline, LogWriter]:
    """Make a pipeline whose first query has committed a micro-batch without records."""
    pipeline = Pipeline.create(
        path,
        queries=["first", "second"],
        channels=[channel("log", SCHEMA, source="first", targets=["second"])],
    )
    commit(path, "first", 0, {})
    return pipeline, log_writer(pipeline, "log")


def test_a_reader_stands_behind_a_barrier_before_the_first_records(tmp_path: Path) -> None:
    """The barrier of an earlier snapshot in another mode belongs before the cut."""
    pipeline, writer = empty_log(tmp_path / "logs.pipeline")
    writer.append_barrier(SnapshotId("logs", 1), Mode.ALIGNED, batch=0)
    commit(pipeline.path, "second", 0, {"log": 1})
    found = pipeline.snapshot("retained")
    assert isinstance(found, Manifest), found
    assert found.barriers == {"log": 1}


def test_a_log_ends_before_what_was_written_after_the_cut(tmp_path: Path) -> None:
    """Records of a micro-batch that was not committed, and a barrier after them."""
    pipeline, writer = empty_log(tmp_path / "logs.pipeline")
    writer.append_barrier(SnapshotId("logs", 1), Mode.ALIGNED, batch=0)
    write(writer, 1)
    writer.append_barrier(SnapshotId("logs", 2), Mode.ALIGNED, batch=1)
    commit(pipeline.path, "second", 0, {"log": 1})
    found = pipeline.snapshot("retained")
    assert isinstance(found, Manifest), found
    assert found.barriers == {"log": 1}


def test_of_two_sources_of_a_topic_the_one_behind_needs_the_most(shop: Shop) -> None:
    """A restore continues both: what is in flight begins where the first one has yet to read."""
    offsets = checkpoint_path(shop.path, 1, "sums") / "offsets" / "1"
    offsets.write_text(offsets.read_text() + '\n{"shop-unique": {"0": 3, "1": 5}}')
    found = shop.pipeline.snapshot()
    assert isinstance(found, Manifest)
    (cut,) = [one for one in found.topics if one.channel == "unique"]
    assert cut.positions == {"sums": {0: 3, 1: 4}}
    assert found.last_batches == {"dedup": 2, "sums": 1}


def test_states_in_memory_are_only_in_snapshots(tmp_path: Path) -> None:
    """The error says what to restore instead, and the snapshots that exist still do."""
    pipeline = resting_shop(tmp_path / "shop.pipeline")
    with pytest.raises(UsageError, match=r"the service books, .*: restore a snapshot"):
        pipeline.restore(newest_consistent=True)
    assert (pipeline.epoch, pipeline.snapshots()) == (1, [])


def test_a_pipeline_of_an_older_release_is_restored_at_once(tmp_path: Path) -> None:
    """Its format is brought up to date under the same locks."""
    pipeline = two_queries(tmp_path / "logs.pipeline")
    path = pipeline.path / "pipeline.json"
    content = json.loads(path.read_bytes())["content"] | {"format": 1}
    content["stretches"] = content.pop("segments")
    encoded = msgspec.json.encode(content)
    digest = hashlib.sha256(encoded).hexdigest().encode()
    path.write_bytes(b'{"content":%b,"hash":"%b"}' % (encoded, digest))
    assert read_metadata(pipeline.path).format == 1
    pipeline.restore(newest_consistent=True)
    assert (read_metadata(pipeline.path).format, pipeline.epoch) == (2, 2)
