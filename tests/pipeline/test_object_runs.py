"""Runs of a query in an object store: a driver that was frozen wakes, and changes nothing.

The drivers are played by hand; they write what Spark and the sink would, with state of format 1,
whose files have the same names in each run.
"""

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from stillframe.errors import Damaged, Refused, StoreError, Unavailable
from stillframe.model import Abandoned, SnapshotId
from stillframe.pipeline import Pipeline, channel, checkpoint, coordinator
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import DataFile, LogReader, LogWriter, write_records
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import QueryParticipant
from stillframe.pipeline.pending_snapshot import (
    ParticipantFragment,
    QueryState,
    Request,
    fragment_path,
)
from stillframe.pipeline.progress import Progress, progress_of
from stillframe.pipeline.query_runs import QueryRecord, begin_run, current_run
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.stopped import record_stopped
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import below, names
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there
from stillframe.store.sealed_json import seal
from stillframe.watch.pipeline_probe import PipelineProbe
from tests.pipeline.faulty_store import Faults, after, before, faults
from tests.pipeline.money import SCHEMA, Account, records
from tests.pipeline.test_object_checkpoint import content, in_memory

__all__ = ["faults"]
SENT = 9
"""How many entries the query can read; each has one coin."""


def made(*outputs: str) -> Pipeline:
    """Make the pipeline ``mint -> sums -> outputs``."""
    pipeline = Pipeline.create(
        in_memory(),
        queries=["sums"],
        services={"mint": Account},
        channels=[
            channel("coins", SCHEMA, source="mint", targets=["sums"]),
            *(channel(output, SCHEMA, source="sums") for output in outputs),
        ],
        name="run",
    )
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        for _ in range(SENT):
            mint.append("coins", records(1))
    return pipeline


class Driver:
    """The driver of a new run."""

    def __init__(self, pipeline: Pipeline) -> None:
        root, self.head = pipeline.path, read_metadata(pipeline.path)
        self.run = begin_run(root, self.head, "sums", check_whole)
        self.place = self.run.checkpoint
        outgoing = self.head.dataflow.outgoing("sums")
        self.writers = [LogWriter(root, log, self.head, run=self.run.number) for log in outgoing]
        self.source = QueryParticipant(root, "sums")

    def put(self, name: str, text: str) -> None:
        """Write a file of the checkpoint."""
        path = below(self.place, name)
        storage_of(path).put(path, text.encode())

    def plan(self, reads: int) -> tuple[int, int]:
        """Plan the next micro-batch, unless it was planned; return its number and its end."""
        done = checkpoint.last_committed(self.place)
        number = 0 if done is None else done.batch + 1
        if not is_there(below(self.place, f"offsets/{number}")):
            end = self.source.positions()["coins"] + reads
            assert end <= SENT
            self.put("metadata", '{"id":"one"}')
            self.put(f"offsets/{number}", "v1\n{}\n" + checkpoint.encode_offset({"coins": end}))
        return number, checkpoint.committed(self.place, number).positions["coins"]

    def append(self, number: int, end: int) -> None:
        """Append where the micro-batch ends to every channel, once."""
        for writer in self.writers:
            written = writer.last_batch()
            if written is None or written < number:
                name = f"batch-{number}-{self.run.number}"
                data = writer.data_directory / name
                file = _data_file(data, name, end)
                writer.append_files([file], batch=number)

    def commit(self, number: int, end: int) -> None:
        """Write the state after a micro-batch, and commit it."""
        self.put(f"state/0/0/{number + 1}.delta", str(end))
        self.put(f"commits/{number}", "v1\n{}")

    def micro_batch(self, reads: int) -> None:
        """Do the next micro-batch."""
        number, end = self.plan(reads)
        self.append(number, end)
        self.commit(number, end)

    def boundary(self) -> None:
        """Do what the query's source does between two micro-batches."""
        self.source.at_boundary(self.source.tails())


def _data_file(data: ObjectPath, name: str, end: int) -> DataFile:
    checksum = write_records(data / "part-00000.parquet", records(end))
    return DataFile(f"{name}/part-00000.parquet", 0, 1, checksum)


def check_whole(place: Any) -> None:
    """Raise Damaged if Spark alone cannot have written a checkpoint."""
    if (wrong := checkpoint.contradiction(place)) is not None:
        raise Damaged(wrong)


def judge_checkpoint(place: Any) -> dict[int, int]:
    """Check that state and plans of a checkpoint are of one history; return where each of its
    micro-batches ended."""
    found = content(place)
    ends = {}
    for name in (name for name in found if name.startswith("state/0/0/")):
        number = int(name.removeprefix("state/0/0/").removesuffix(".delta")) - 1
        ends[number] = int(found[name])
    done = [int(name.removeprefix("commits/")) for name in found if name.startswith("commits/")]
    kept = {number: end for number, end in ends.items() if number <= max(done, default=-1)}
    assert sorted(kept) == list(range(len(kept)))
    for name in (name for name in found if name.startswith("offsets/")):
        number = int(name.removeprefix("offsets/"))
        planned = json.loads(found[name].decode().split("\n")[2])["stillframe"]["coins"]
        assert kept.get(number, planned) == planned
    return kept


def judge(pipeline: Pipeline) -> int:
    """Check that each channel has the micro-batches of the query's one history, each once; return
    how many it has committed."""
    head = read_metadata(pipeline.path)
    ends = judge_checkpoint(current_run(pipeline.path, head.epoch, "sums").checkpoint)
    for log in head.dataflow.outgoing("sums"):
        reader = LogReader(pipeline.path, log, head.segments[log.name])
        found = {}
        for entry in reader.entries(0, reader.tail(0)):
            if entry.files:
                assert entry.content.batch not in found
                found[entry.content.batch] = reader.table(entry).to_pylist()[0]["amount"]
        assert found == ends
    return len(ends)


def taken(pipeline: Pipeline) -> Manifest:
    """Take a snapshot, and check what it has of the query."""
    outcome = pipeline.snapshot("unaligned")
    assert isinstance(outcome, Manifest), outcome
    check_taken(pipeline, outcome)
    return outcome


def check_taken(pipeline: Pipeline, manifest: Manifest) -> None:
    """Check that a snapshot has the state that the query had at that micro-batch."""
    state = manifest.fragment("sums").query
    assert state is not None
    pinned = judge_checkpoint(manifest.pinned(pipeline.path, "sums"))
    assert state.batch == max(pinned, default=None)
    run = current_run(pipeline.path, pipeline.epoch, "sums")
    assert pinned.items() <= judge_checkpoint(run.checkpoint).items()


def replaced(pipeline: Pipeline, others: list[Driver]) -> None:
    """Start another driver."""
    others.append(Driver(pipeline))


def outrun(pipeline: Pipeline, others: list[Driver]) -> None:
    """Start another driver, which does a micro-batch."""
    others.append(Driver(pipeline))
    others[-1].micro_batch(1)


def come_between(faults: Faults, happens: Callable[[], None], request: Callable[[], Any]) -> Any:
    """Let something happen before a request."""
    with faults.paused():
        happens()
    return request()


def life(pipeline: Pipeline) -> None:
    """Run the query for a while, each micro-batch with two coins."""
    driver = Driver(pipeline)
    driver.micro_batch(2)
    driver.micro_batch(2)


@pytest.mark.parametrize(
    ("outputs", "happens"),
    [
        (("left", "right"), replaced),
        ((), outrun),
        pytest.param(
            ("left", "right"), outrun, marks=pytest.mark.nightly(part="storage", only=True)
        ),
    ],
)
def test_a_driver_that_was_frozen_at_any_request_changes_nothing(
    faults: Faults,
    outputs: tuple[str, ...],
    happens: Callable[[Pipeline, list[Driver]], None],
) -> None:
    """Another driver takes its place there, and plans other micro-batches. The first one continues
    until it is stopped. What exists then is one history, that of the driver that came last."""
    faults.with_reads = True
    lasting_count = stopped_count = 0
    for number in itertools.count():
        pipeline = made(*outputs)
        Driver(pipeline).micro_batch(2)
        others: list[Driver] = []
        with contextlib.suppress(Unavailable, StoreError, Damaged):
            between = functools.partial(happens, pipeline, others)
            with faults.at(number, functools.partial(come_between, faults, between)):
                life(pipeline)
            lasting_count += 1
        if not others:
            break
        [second] = others
        if current_run(pipeline.path, 1, "sums").number == second.run.number:
            second.micro_batch(1)
        elif outputs:
            stopped_count += 1
            with pytest.raises(Unavailable):
                second.micro_batch(1)
        else:
            second.micro_batch(1)
        count = judge(pipeline)
        manifest = taken(pipeline)
        Driver(pipeline).micro_batch(1)
        assert judge(pipeline) == count + 1
        pipeline.restore(manifest.snapshot)
    assert number > 30
    assert stopped_count > 0 or not outputs
    assert lasting_count < number / 2 or not outputs


@pytest.mark.parametrize("outputs", [("left", "right"), ()])
def test_a_driver_may_work_on_while_another_one_starts(
    faults: Faults, outputs: tuple[str, ...]
) -> None:
    """At any request of the start it does a micro-batch, or learns that it is replaced."""
    faults.with_reads = True
    for number in itertools.count():
        pipeline = made(*outputs)
        first = Driver(pipeline)
        first.micro_batch(1)

        def go_on(first: Driver = first) -> None:
            with contextlib.suppress(Unavailable):
                first.micro_batch(2)

        with faults.at(number, functools.partial(come_between, faults, go_on)):
            second = Driver(pipeline)
        if number >= faults.count:
            break
        second.micro_batch(3)
        assert judge(pipeline) in (2, 3)
        if outputs:
            with pytest.raises(Unavailable):
                first.micro_batch(1)
        taken(pipeline)
    assert number > 15


@pytest.mark.parametrize("outputs", [("left",), ()])
def test_a_driver_may_record_while_another_one_starts(
    faults: Faults, monkeypatch: pytest.MonkeyPatch, outputs: tuple[str, ...]
) -> None:
    """At any request of the start it records at the barrier, and plans to read on. The new driver
    continues from there, or records itself; the snapshot is published in any case."""
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    monkeypatch.setattr(
        coordinator,
        "record_stopped",
        lambda *of: None if of[3] == "sums" else record_stopped(*of),
    )  # the query runs
    faults.with_reads = True
    counts: list[int] = []
    for number in itertools.count():
        pipeline = made(*outputs)
        first = Driver(pipeline)
        first.micro_batch(SENT)

        def read_on(first: Driver = first) -> None:
            with contextlib.suppress(Unavailable, Damaged):
                first.boundary()
                first.put("offsets/1", "v1\n{}\n" + checkpoint.encode_offset({"coins": SENT + 1}))
                first.append(1, SENT + 1)

        between = faults.at(number, functools.partial(come_between, faults, read_on))

        def start(pipeline: Pipeline = pipeline, between: Any = between) -> None:
            with between:
                second = Driver(pipeline)
            counts.append(faults.count)
            if is_there(below(second.place, "offsets/1")):
                second.micro_batch(0)
            second.boundary()

        snapshot_during(pipeline, start, mode="aligned")
        if number >= counts[-1]:
            break
    assert number > 10


@pytest.mark.parametrize("outputs", [("left",), ()])
def test_a_start_that_was_frozen_continues_from_what_was_recorded_meanwhile(
    faults: Faults, outputs: tuple[str, ...]
) -> None:
    """At any of its requests the driver before it does a micro-batch, and a coordinator that finds
    no program running records that. Else no later start would fit the snapshot."""
    faults.with_reads = True
    for number in itertools.count():
        pipeline = made(*outputs)
        first = Driver(pipeline)
        first.micro_batch(2)
        manifests: list[Manifest] = []

        def record(
            first: Driver = first, pipeline: Pipeline = pipeline, found: list[Manifest] = manifests
        ) -> None:
            with contextlib.suppress(Unavailable):
                first.micro_batch(1)
            found.append(taken(pipeline))

        happens = functools.partial(come_between, faults, record)
        with contextlib.suppress(Unavailable), faults.at(number, happens):
            Driver(pipeline)
        if not manifests:
            break
        Driver(pipeline).micro_batch(3)
        check_taken(pipeline, manifests[0])
        judge(pipeline)
    assert number > 15


@pytest.mark.parametrize(("fault", "stays"), [(after, True), (before, True), (after, False)])
def test_a_start_may_fail_at_any_request(
    faults: Faults, fault: Callable[[Any], Any], *, stays: bool
) -> None:
    """Another start continues from where the query was; so does a snapshot in between."""
    for number in itertools.count():
        pipeline = made("left", "right")
        first = Driver(pipeline)
        first.micro_batch(2)
        ended = first.plan(1)
        first.append(*ended)
        failing = contextlib.suppress(StoreError, OSError, Unavailable)
        with failing, faults.at(number, fault, stays=stays):
            Driver(pipeline)
        if number >= faults.count:
            break
        outcome = pipeline.snapshot("unaligned")
        assert not isinstance(
            outcome, Manifest
        )  # the channels have a micro-batch that is under way
        Driver(pipeline).micro_batch(5)
        assert judge(pipeline) == 2
        Driver(pipeline).micro_batch(1)
        assert judge(pipeline) == 3
        taken(pipeline)
    assert number > 8


def test_each_start_has_a_checkpoint_of_its_own() -> None:
    """The one before it is deleted, and a restore begins with its own."""
    pipeline = made("left")
    runs = []
    for _ in range(3):
        driver = Driver(pipeline)
        driver.micro_batch(1)
        runs.append(driver.run.number)
    assert runs == [1, 2, 3]
    place = pipeline.path / "checkpoints"
    assert names(place / "epoch-1" / "sums") == ["run-3"]
    manifest = taken(pipeline)
    pipeline.restore(manifest.snapshot)
    assert names(place / "epoch-2" / "sums") == ["run-0"]
    assert Driver(pipeline).run.number == 1
    pipeline.delete(taken(pipeline).snapshot)
    assert names(place) == ["epoch-2"]


def test_after_a_restore_the_driver_of_an_older_epoch_harms_nothing() -> None:
    """It writes where nobody reads, and its source refuses."""
    pipeline = made("left")
    first = Driver(pipeline)
    first.micro_batch(1)
    pipeline.restore(taken(pipeline).snapshot)
    second = Driver(pipeline)
    first.micro_batch(2)
    with pytest.raises(Refused):
        first.boundary()
    second.micro_batch(1)
    assert judge(pipeline) == 2


@contextlib.contextmanager
def held(pipeline: Pipeline, query: str) -> Iterator[None]:
    """Hold the lease of a query, so that no coordinator records it as stopped."""
    lock = participant_lock(pipeline.path, query)
    assert lock.acquire()
    yield
    lock.release()


def snapshot_during(
    pipeline: Pipeline, *steps: Callable[[], Any], query: str = "sums", mode: str = "unaligned"
) -> Manifest:
    """Take a snapshot; do these steps one by one while it waits."""
    left = list(steps)

    def step(progress: Progress) -> None:
        if left:
            left.pop(0)()

    with held(pipeline, query):
        outcome = pipeline.snapshot(mode, timeout_s=20, progress=step)
    assert isinstance(outcome, Manifest), outcome
    assert not left
    return outcome


def test_what_a_replaced_driver_recorded_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without channels to write nothing stops it. It has planned its last micro-batch in another
    way than the present driver, and records first."""
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    pipeline = made()
    first = Driver(pipeline)
    first.micro_batch(1)
    # The present driver has not deleted the checkpoint of the other one yet.
    monkeypatch.setattr("stillframe.pipeline.query_runs._is_of_earlier", lambda name, run: False)
    second = Driver(pipeline)
    second.micro_batch(3)
    first.micro_batch(1)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    manifest = snapshot_during(pipeline, first.boundary, nothing, second.boundary)
    fragment = manifest.fragment("sums")
    assert fragment.query is not None
    assert (fragment.query.batch, fragment.query.run) == (1, 2)
    assert fragment.positions == {"coins": 4}
    check_taken(pipeline, manifest)


def test_a_replaced_driver_appends_no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """It records nothing, and the present driver does."""
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    pipeline = made("left")
    first = Driver(pipeline)
    first.micro_batch(1)
    second = Driver(pipeline)

    def stopped() -> None:
        with pytest.raises(Unavailable, match="was started again by another program"):
            first.boundary()

    manifest = snapshot_during(pipeline, stopped, second.boundary)
    state = manifest.fragment("sums").query
    assert state is not None
    assert state.run == 2


def test_what_was_recorded_before_a_start_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that died while others record is started again: the query has one barrier. So it is
    if that start was cut short, and the next one is the third."""
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    pipeline = made("left")
    first = Driver(pipeline)
    first.micro_batch(1)

    def fails(place: Any) -> None:
        raise Damaged("this start is cut short")

    def again() -> None:
        first.boundary()
        first.micro_batch(1)
        with pytest.raises(Damaged, match="cut short"):
            begin_run(pipeline.path, read_metadata(pipeline.path), "sums", fails)
        for _ in range(2):
            driver = Driver(pipeline)
            driver.boundary()
            driver.micro_batch(1)
            driver.boundary()

    manifest = snapshot_during(pipeline, again)
    fragment = manifest.fragment("sums")
    assert fragment.query is not None
    assert (fragment.query.batch, fragment.query.run) == (0, 1)
    check_taken(pipeline, manifest)
    head = read_metadata(pipeline.path)
    reader = LogReader(pipeline.path, head.dataflow.log("left"), head.segments["left"])
    kinds = [type(entry.content).__name__ for entry in reader.entries(0, reader.tail(0))]
    assert kinds.count("Barrier") == 1


def test_a_barrier_is_found_behind_the_entry_of_a_start() -> None:
    """The driver died after the barrier, and before it had recorded."""
    pipeline = made("left")
    first = Driver(pipeline)
    first.micro_batch(1)
    manifest = taken(pipeline)
    second = Driver(pipeline)
    [writer] = second.writers
    position = manifest.barriers["left"]
    assert writer.append_barrier(manifest.snapshot, manifest.mode, batch=0) == position
    second.micro_batch(1)
    assert writer.append_barrier(manifest.snapshot, manifest.mode, batch=1) == writer.tail() - 1


@pytest.mark.parametrize("changes", [{"epoch": 2}, {"checkpoint": -1}, {"checkpoint": 9}])
def test_a_record_that_no_program_writes_is_refused(changes: dict[str, int]) -> None:
    """It would lead to the checkpoint of another epoch, or to none, and so to no state."""
    pipeline = made("left")
    Driver(pipeline).micro_batch(1)
    path = pipeline.path / "participants" / "epoch-1" / "sums.json"
    record = QueryRecord(epoch=1, run=1, checkpoint=1, recorded=None, token="t")
    storage_of(path).put(path, seal(msgspec.structs.replace(record, **changes)))
    with pytest.raises(Damaged, match="no run of query sums in epoch 1"):
        current_run(pipeline.path, 1, "sums")
    with pytest.raises(Damaged, match="no run of query sums in epoch 1"):
        Driver(pipeline)


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": SnapshotId("run", 9)},
        {"participant": "mint"},
        {"barriers": {}},
        {"positions": {"coins": -1}},
        {"query": None},
    ],
)
def test_a_fragment_that_no_program_writes_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Its names and numbers are looked up elsewhere."""
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    pipeline = made("left")
    fragment = ParticipantFragment(
        snapshot=SnapshotId("run", 1),
        participant="sums",
        recorded_at=0.0,
        positions={"coins": 0},
        barriers={"left": 0},
        query=QueryState(None, 0),
    )

    def put() -> None:
        path = fragment_path(pipeline.path, SnapshotId("run", 1), "sums")
        storage_of(path).put(path, seal(msgspec.structs.replace(fragment, **changes)))

    with pytest.raises(Damaged, match=r"sums\.json"):
        snapshot_during(pipeline, put)


def test_a_checkpoint_that_disappears_is_not_recorded_as_empty() -> None:
    """A start deletes that of the run before, perhaps while a coordinator looks: a snapshot without
    the restored state would be silently wrong."""
    pipeline = made("left")
    Driver(pipeline).micro_batch(1)
    pipeline.restore(taken(pipeline).snapshot)
    place = current_run(pipeline.path, 2, "sums").checkpoint
    storage_of(place).delete(one.location for one in storage_of(place).files_below(place))
    outcome = pipeline.snapshot("unaligned")
    assert isinstance(outcome, Abandoned)
    assert "ends before micro-batch 1" in outcome.detail


def test_a_query_may_start_at_any_request_of_who_looks_at_it(faults: Faults) -> None:
    """The checkpoint that a coordinator or the display reads is deleted; they read the next one."""
    faults.with_reads = True
    for number in itertools.count():
        pipeline = made("left")
        first = Driver(pipeline)
        first.micro_batch(1)
        head, now = read_metadata(pipeline.path), time.time()
        request = Request(
            snapshot=SnapshotId("run", 1),
            epoch=1,
            mode=Mode.UNALIGNED,
            name=None,
            initiated_at=now,
            deadline_at=now + 9,
        )
        starts = functools.partial(replaced, pipeline, [])
        with faults.at(number, functools.partial(come_between, faults, starts)):
            progress_of(pipeline.path, head, request, {})
            sample = PipelineProbe(pipeline.path).sample()
        if number >= faults.count:
            break
        assert sample.errors == ()
    assert number > 5


def test_a_checkpoint_is_not_continued_without_the_end_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of its files may lack some, if they change meanwhile."""
    pipeline = made("left")
    driver = Driver(pipeline)
    driver.micro_batch(1)
    monkeypatch.setattr(checkpoint, "_files_below", lambda place, *parts: iter(()))
    target = pipeline.path / "copy"
    checkpoint.continue_in(driver.place, target)
    found = checkpoint.last_committed(target)
    assert found == checkpoint.last_committed(driver.place)
    storage_of(target).delete([below(driver.place, "offsets/0")])
    with pytest.raises(StoreError, match="disappear"):
        checkpoint.continue_in(driver.place, pipeline.path / "another")


def test_a_target_steps_over_the_entries_of_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no records: an aligned snapshot needs no micro-batch for them."""
    pipeline = Pipeline.create(
        in_memory(),
        queries=["one", "two"],
        services={},
        channels=[channel("between", SCHEMA, source="one", targets=["two"])],
        name="run",
    )
    monkeypatch.setattr("stillframe.pipeline.coordinator.PROGRESS_S", 0.0)
    head = read_metadata(pipeline.path)
    for _ in range(3):
        begin_run(pipeline.path, head, "one", check_whole)
    target = QueryParticipant(pipeline.path, "two")

    def look() -> None:
        target.at_boundary(target.tails())

    manifest = snapshot_during(pipeline, look, query="two", mode="aligned")
    assert manifest.cut("between", "two").record_count == 0
