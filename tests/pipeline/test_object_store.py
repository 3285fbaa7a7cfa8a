"""Pipelines in an object store: each step may fail or be overtaken, and nothing half remains."""

import contextlib
import functools
import itertools
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from stillframe.errors import Refused, StillframeError, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, stopped
from stillframe.pipeline import restore as restoring
from stillframe.pipeline.coordinator import abandoned_snapshots
from stillframe.pipeline.metadata import Metadata, MetadataWriter, as_ranges
from stillframe.pipeline.pending_snapshot import fragment_path
from stillframe.pipeline.service import join
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import PROBE
from tests.nightly import by_night
from tests.pipeline.faulty_store import Faults, after, before, faults, lost
from tests.pipeline.money import (
    TOTAL,
    Account,
    leave_behind,
    line,
    money_in,
    money_now,
    records,
)
from tests.storage.test_probe import careless

__all__ = ["faults"]
Operation = Callable[[Pipeline], object]


def place(bucket: ObjectPath) -> ObjectPath:
    """Return a new place in a bucket."""
    return bucket / secrets.token_hex(8) / "run"


@functools.cache
def _template() -> ObjectPath:
    pipeline = line(place(ObjectPath("memory://template", "")))
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    pipeline.snapshot()
    step(pipeline)
    pipeline.snapshot()
    step(pipeline)
    return pipeline.path.parent  # type: ignore[no-any-return]


def used(bucket: ObjectPath) -> Pipeline:
    """Return a pipeline with two snapshots, of which nothing runs, and with records in transit."""
    source, target = _template(), place(bucket)
    for one in storage_of(source).files_below(source):
        content, _ = storage_of(source).read(one.location, bytes_max=2**20)
        name = str(one.location).removeprefix(f"{source}/")
        storage_of(target).put(target.parent / name, content)
    return Pipeline(target)


def step(pipeline: Pipeline) -> None:
    """Let the source send 3, and the other end receive what is there."""
    with join("mint", pipeline=pipeline.path, state=(state := Account())) as mint:
        state.balance -= 3
        mint.append("coins", records(3))
    with join("till", pipeline=pipeline.path, state=(state := Account())) as till:
        found = till.receive(timeout_s=0)
        if found is not None:
            state.balance += sum(found[1]["amount"].to_pylist())


def publish(pipeline: Pipeline) -> None:
    """Take a third snapshot."""
    pipeline.snapshot()


def restore(pipeline: Pipeline) -> None:
    """Go back to the first one."""
    pipeline.restore("run-1")


def fork(pipeline: Pipeline) -> None:
    """Make a second pipeline of the first one."""
    pipeline.fork("run-1", pipeline.path.parent / "fork")


def fork_again(pipeline: Pipeline) -> None:
    """Make another one in the same place, unless that is taken, and use it."""
    with contextlib.suppress(UsageError):
        step(pipeline.fork("run-2", pipeline.path.parent / "fork"))


def delete(pipeline: Pipeline) -> None:
    """Delete the first one, and what only it needs."""
    pipeline.delete("run-1")


OPERATIONS = [publish, restore, fork, delete]


def check(pipeline: Pipeline) -> None:
    """Check that everything that is there is whole: each snapshot has all the money and can be
    restored, and the pipeline goes on."""
    again, target = Pipeline(pipeline.path), pipeline.path.parent / "fork"
    with contextlib.suppress(UsageError):  # there is none, or it was not completed
        made = Pipeline(target)
        assert money_now(made) == TOTAL
        made.restore(made.snapshots()[0].snapshot)
    assert money_now(again) == TOTAL
    found = again.snapshots()
    assert found[-1].snapshot.number >= 3
    for manifest in found:
        assert money_in(again, manifest) == TOTAL
        again.restore(manifest.snapshot)
    step(again)
    assert money_now(again) == TOTAL


def writes_of(faults: Faults, operation: Operation, bucket: ObjectPath) -> int:
    """Return how many writes an operation consists of."""
    pipeline = used(bucket)
    with faults.at(-1, before):
        operation(pipeline)
    return faults.count


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("fault", "stays"),
    [(after, True), (before, False), (after, False)],
    ids=["dies", "fails", "answer-lost"],
)
def test_each_write_may_fail(
    faults: Faults,
    bucket: ObjectPath,
    operation: Operation,
    fault: Callable[[Any], Any],
    *,
    stays: bool,
) -> None:
    """Before or after it takes effect, and the program dies there or does what it does then: all is
    as it was, or the operation is done; and the next program finds nothing in its way."""
    for number in range(writes_of(faults, operation, bucket)):
        pipeline = used(bucket)
        with contextlib.suppress(StoreError, OSError), faults.at(number, fault, stays=stays):
            operation(pipeline)
        check(pipeline)


def test_a_snapshot_that_others_saw_published_stays(faults: Faults, bucket: ObjectPath) -> None:
    """Its coordinator does not know it, because an answer was lost. A system may have announced the
    publication to its processes meanwhile."""
    seen_count = 0
    for number in range(writes_of(faults, publish, bucket)):
        pipeline, seen = used(bucket), list[SnapshotId]()

        def look(write: Callable[[], Any], pipeline: Pipeline = pipeline, seen: Any = seen) -> None:
            write()
            with faults.paused():
                seen += [manifest.snapshot for manifest in pipeline.snapshots()]
            raise lost()

        with contextlib.suppress(StoreError, OSError), faults.at(number, look):
            publish(pipeline)
        found = {manifest.snapshot for manifest in pipeline.snapshots()}
        assert found >= set(seen)
        assert not found & {one.snapshot for one in abandoned_snapshots(pipeline.path)}
        seen_count += SnapshotId("run", 3) in seen
        check(pipeline)
    assert seen_count


def sent_again(
    faults: Faults, pipeline: Pipeline, other: Operation
) -> Callable[[Callable[[], Any]], Any]:
    """Return how a program sends a request, is frozen before it has the answer, and sends it again
    when another one has done something."""

    def twice(write: Callable[[], Any]) -> Any:
        write()
        with faults.paused():
            other(Pipeline(pipeline.path))
        return write()

    return twice


def test_what_was_published_before_another_took_over_is_no_failure(
    faults: Faults, bucket: ObjectPath
) -> None:
    """The other program has already deleted an older snapshot."""
    published_count = 0
    for number in range(writes_of(faults, publish, bucket)):
        pipeline, outcomes = used(bucket), list[object]()

        overtaken = sent_again(faults, pipeline, delete)
        with contextlib.suppress(StillframeError, OSError), faults.at(number, overtaken):
            outcomes.append(pipeline.snapshot())
        found = {manifest.snapshot: manifest for manifest in pipeline.snapshots()}
        if (third := SnapshotId("run", 3)) in found:
            published_count += 1
            assert outcomes == [found[third]]
            assert third not in {one.snapshot for one in abandoned_snapshots(pipeline.path)}
        check(pipeline)
    assert published_count


def test_what_was_restored_before_another_took_over_is_no_failure(
    faults: Faults, bucket: ObjectPath
) -> None:
    """The other program has already taken a snapshot of what was restored."""
    restored_count = 0
    for number in range(writes_of(faults, restore, bucket)):
        pipeline, ended = used(bucket), list[bool]()

        overtaken = sent_again(faults, pipeline, publish)
        with contextlib.suppress(StillframeError, OSError), faults.at(number, overtaken):
            restore(pipeline)
            ended.append(True)
        if pipeline.epoch > 1:
            restored_count += 1
            assert ended
        check(pipeline)
    assert restored_count


@pytest.mark.parametrize(
    ("operation", "other"),
    [
        (publish, publish),
        (fork, fork_again),
        *itertools.product(OPERATIONS, [restore, delete, step]),
    ],
)
def test_a_program_that_wakes_up_does_no_harm(
    faults: Faults, bucket: ObjectPath, operation: Operation, other: Operation
) -> None:
    """It was frozen before any of its writes for so long that another program took over; at night,
    before any request."""
    faults.with_reads = by_night(True, check=operation is other is restore)
    for number in range(writes_of(faults, operation, bucket)):
        pipeline = used(bucket)

        def come_between(write: Callable[[], Any], pipeline: Pipeline = pipeline) -> Any:
            with faults.paused():
                other(Pipeline(pipeline.path))
            return write()

        overtaken = contextlib.suppress(Unavailable, UsageError, Refused)
        with overtaken, faults.at(number, come_between):
            operation(pipeline)
        check(pipeline)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failing_request_is_an_error_that_programs_expect(
    faults: Faults, bucket: ObjectPath, operation: Operation
) -> None:
    """It ends no program that takes a snapshot again and again."""
    faults.with_reads = True
    for number in range(writes_of(faults, operation, bucket)):
        pipeline = used(bucket)
        with contextlib.suppress(StillframeError), faults.at(number, before):
            operation(pipeline)


def test_an_interrupted_fork_is_no_pipeline(faults: Faults, bucket: ObjectPath) -> None:
    """It says so, also to a program that would make one there."""
    pipeline = used(bucket)
    target = pipeline.path.parent / "fork"
    last = writes_of(faults, fork, bucket) - 1
    # Before its own object replaces the claim.
    with pytest.raises(StoreError), faults.at(last - 1, before, stays=True):
        fork(pipeline)
    for use in (Pipeline, line):
        with pytest.raises(UsageError, match=r"a fork is being copied to .*/fork, or it was"):
            use(target)
    with pytest.raises(UsageError, match="fork is not empty"):
        fork(pipeline)


def test_a_fork_of_a_snapshot_that_is_being_deleted_is_no_pipeline(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that forks was frozen, and another one took its lease and deletes."""
    pipeline = used(bucket)
    copy_content = restoring._copy_content

    def overtaken(*arguments: Any) -> None:
        copy_content(*arguments)
        MetadataWriter(pipeline.path).replace(published=as_ranges([SnapshotId("run", 2)]))

    monkeypatch.setattr(restoring, "_copy_content", overtaken)
    with pytest.raises(UsageError, match="there is no snapshot run-1"):
        fork(pipeline)
    with pytest.raises(UsageError, match="a fork is being copied to"):
        Pipeline(pipeline.path.parent / "fork")


def test_a_probe_that_was_left_is_in_nobodys_way(bucket: ObjectPath) -> None:
    """A program died while it tested the object store."""
    pipeline = used(bucket)
    for name in ("fork", "new"):
        storage_of(bucket).put(pipeline.path.parent / name / f"{PROBE}1", b"1")
    fork(pipeline)
    line(pipeline.path.parent / "new")


def test_what_no_coordinator_has_left_stays(bucket: ObjectPath) -> None:
    """Here it is another pipeline, in a place that looks like a snapshot."""
    pipeline = used(bucket)
    inner = line(pipeline.path / "snapshots" / "copy-1")
    pipeline.delete("run-1")
    assert Pipeline(inner.path).snapshots() == []


def test_a_late_duplicate_undoes_nothing(faults: Faults, bucket: ObjectPath) -> None:
    """A request of a restore arrives a second time when a service runs."""
    pipeline = used(bucket)
    for number in range(writes_of(faults, restore, bucket)):
        late: list[Callable[[], Any]] = []

        def remembered(write: Callable[[], Any], late: list[Any] = late) -> Any:
            late.append(write)
            return write()

        with faults.at(number, remembered):
            restore(pipeline)
        with join("till", pipeline=pipeline.path, state=(state := Account())) as till:
            with contextlib.suppress(OSError):
                late[0]()
            found = till.receive(timeout_s=0)
            assert found is not None
            state.balance += sum(found[1]["amount"].to_pylist())
        assert money_now(pipeline) == TOTAL


def test_a_fork_tests_the_object_store(bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores conditions is refused, and nothing is copied there."""
    target = ObjectPath(f"memory://{secrets.token_hex(8)}", "fork")
    careless(target, monkeypatch, str)
    with pytest.raises(StoreError, match="use an object store with conditional writes"):
        used(bucket).fork("run-1", target)
    assert storage_of(target).files_below(target) == []


def test_an_attempt_at_a_restore_keeps_its_epoch(faults: Faults, bucket: ObjectPath) -> None:
    """The next one, to another snapshot, finds no states of the one that died."""
    pipeline = used(bucket)
    last = writes_of(faults, restore, bucket) - 1
    with pytest.raises(StoreError), faults.at(last, before, stays=True):
        restore(pipeline)
    pipeline.restore("run-2")
    assert pipeline.epoch == 3
    check(pipeline)


def replacing(faults: Faults, other: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Let another program act when the one under test has replaced ``pipeline.json``, and is frozen
    right after that. Its first write is that of the lease."""

    def come_between(write: Callable[[], Any]) -> Any:
        answer = write()
        with faults.paused():
            other()
        return answer

    return faults.at(1, come_between)


def test_one_that_deletes_spares_what_came_later(faults: Faults, bucket: ObjectPath) -> None:
    """A snapshot that was published meanwhile, and a fragment of one that is pending."""
    pipeline = used(bucket)
    fragment = fragment_path(pipeline.path, SnapshotId("run", 4), "mint")

    def other() -> None:
        publish(pipeline)
        storage_of(bucket).put(fragment, b"of the next one")

    with replacing(faults, other):
        delete(pipeline)
    assert storage_of(bucket).exists(fragment)
    storage_of(bucket).delete([fragment])
    assert [one.snapshot.number for one in pipeline.snapshots()] == [2, 3]
    check(pipeline)


def test_one_that_trims_spares_a_later_epoch(faults: Faults, bucket: ObjectPath) -> None:
    """It was restored meanwhile, and a service has appended since."""
    pipeline = used(bucket)

    def other() -> None:
        pipeline.restore("run-2")
        step(pipeline)

    with replacing(faults, other):
        delete(pipeline)
    check(pipeline)


def test_the_barrier_of_a_service_at_rest_is_where_its_state_was(
    bucket: ObjectPath, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after its state was read it ran again, and appended: then nothing is published."""
    pipeline = used(bucket)
    read = stopped.stopped_service

    def then_it_runs(root: ObjectPath, metadata: Metadata, name: str) -> Any:
        found = read(root, metadata, name)
        if name == "mint":
            monkeypatch.setattr(stopped, "stopped_service", read)
            with join("mint", pipeline=root, state=(state := Account())) as mint:
                state.balance -= 3
                mint.append("coins", records(3))
        return found

    monkeypatch.setattr(stopped, "stopped_service", then_it_runs)
    with pytest.raises(Unavailable, match="another program has just written entry"):
        publish(pipeline)
    check(pipeline)
