"""Services of a pipeline in an object store: one program for each, whatever leases are worth."""

import secrets
import time
from collections.abc import Callable
from typing import Any

import pytest

from stillframe.errors import Damaged, Refused, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline
from stillframe.pipeline.locks import OBJECT_POLL_S, LeasedLock, is_running
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import ObjectMetadata, read_metadata, read_object_metadata
from stillframe.pipeline.service import join
from stillframe.pipeline.stopped import NotAtRest, OwnRecord, stopped_service
from stillframe.protocol.aligner import Mode
from stillframe.storage import lease
from stillframe.storage.location import ObjectPath, locate
from stillframe.storage.opened import requests_to, storage_of
from stillframe.store.sealed_json import seal
from tests.pipeline.faulty_store import Faults, after, before, faults, lost
from tests.pipeline.money import (
    TOTAL,
    Account,
    leave_behind,
    line,
    money_now,
    records,
)

__all__ = ["faults"]


@pytest.fixture
def shop() -> Pipeline:
    """A pipeline ``mint -> till`` in memory."""
    return line(place())


def place() -> ObjectPath:
    """Return a new place in memory."""
    found = locate(f"memory://test-{secrets.token_hex(8)}/shop")
    assert isinstance(found, ObjectPath)
    return found


def test_a_second_program_is_refused(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one renews its lease, whatever it does."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.0)
    monkeypatch.setattr(lease, "LEASE_S", 0.2)
    with join("till", pipeline=shop.path, state=Account()):
        assert is_running(shop.path, "till")
        with (
            pytest.raises(Unavailable, match="another program runs service till"),
            join("till", pipeline=shop.path, state=Account()),
        ):
            pass
    assert not is_running(shop.path, "till")


def test_of_two_that_start_at_once_one_joins(faults: Faults, shop: Pipeline) -> None:
    """The other one was frozen between reading the state and taking its place."""
    leave_behind(shop, 5)

    def come_between(write: Callable[[], Any]) -> Any:
        with faults.paused(), join("till", pipeline=shop.path, state=Account()) as first:
            assert first.receive(timeout_s=0) is not None
        return write()

    # The first write is that of the lease.
    with (
        pytest.raises(Unavailable, match="has taken the place of service till"),
        faults.at(1, come_between),
        join("till", pipeline=shop.path, state=Account()),
    ):
        pass
    state = Account()
    with join("till", pipeline=shop.path, state=state) as till:
        assert till.receive(timeout_s=0) is None


def test_a_service_stops_if_another_program_appended(shop: Pipeline) -> None:
    """It does not append after what it has not seen."""
    metadata = read_metadata(shop.path)

    def run() -> None:
        with join("mint", pipeline=shop.path, state=Account(balance=TOTAL)) as mint:
            mint.append("coins", records(1))
            other = LogWriter(shop.path, metadata.dataflow.log("coins"), metadata)
            other.append(records(2))
            mint.append("coins", records(3))

    with pytest.raises(Unavailable, match="another program has just written entry 1"):
        run()
    with pytest.raises(NotAtRest), join("mint", pipeline=shop.path, state=Account()):
        pass


def test_a_service_steps_over_a_barrier_that_came_late(shop: Pipeline) -> None:
    """A coordinator that found it at rest was frozen before it appended that."""
    metadata = read_metadata(shop.path)
    leave_behind(shop, 5)
    with join("mint", pipeline=shop.path, state=(state := Account())) as mint:
        coordinator = LogWriter(shop.path, metadata.dataflow.log("coins"), metadata)
        coordinator.append_barrier(SnapshotId("shop", 9), Mode.ALIGNED)
        mint.append("coins", records(3))
        state.balance -= 3
    assert money_now(shop) == TOTAL


def test_a_service_that_lost_its_lease_ends(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of its action: another program may have taken its place."""
    locks: list[LeasedLock] = []
    acquire = LeasedLock.acquire

    def remembered(lock: LeasedLock) -> bool:
        locks.append(lock)
        return acquire(lock)

    def run() -> None:
        with join("till", pipeline=shop.path, state=Account()) as till:
            till.boundary()
            locks[0]._lease._lost()
            till.boundary()

    monkeypatch.setattr(LeasedLock, "acquire", remembered)
    with pytest.raises(Unavailable, match="did not renew its lease"):
        run()


def test_after_a_restore_a_service_must_join_again(faults: Faults, shop: Pipeline) -> None:
    """Here it was frozen: else its lease keeps the restore out."""
    leave_behind(shop, 5)
    shop.savepoint("begin")

    def run() -> None:
        with join("till", pipeline=shop.path, state=Account()) as till:
            shop.restore("begin")
            till.boundary()

    with pytest.raises(Refused, match="is in epoch 2: start it again"):
        run()


def test_a_service_that_leaves_after_a_restore_says_so(faults: Faults, shop: Pipeline) -> None:
    """What it did is not part of the pipeline."""
    leave_behind(shop, 5)
    shop.savepoint("begin")

    def run() -> None:
        with join("till", pipeline=shop.path, state=Account()):
            shop.restore("begin")

    with pytest.raises(Refused, match="is in epoch 2: start it again"):
        run()


def test_the_record_of_an_epoch_that_is_over_is_not_damaged(shop: Pipeline) -> None:
    """A program that was frozen as it joined is told to try again."""
    leave_behind(shop, 5)
    shop.savepoint("begin")
    shop.restore("begin")
    metadata = read_metadata(shop.path)
    for _ in range(2):
        shop.restore("begin")
    with pytest.raises(Unavailable, match="was restored meanwhile: try again"):
        OwnRecord(shop.path, metadata, "till").stopped()
    with pytest.raises(Unavailable, match="was restored meanwhile: try again"):
        stopped_service(shop.path, metadata, "till")


def test_an_append_that_fails_appends_nothing_later(faults: Faults, shop: Pipeline) -> None:
    """The request did not arrive, and cannot take effect when the service has left."""
    late: list[Callable[[], Any]] = []

    def is_on_its_way(write: Callable[[], Any]) -> Any:
        late.append(write)
        raise lost()

    with join("mint", pipeline=shop.path, state=Account(balance=TOTAL)) as mint:
        with pytest.raises(StoreError), faults.at(1, is_on_its_way):
            mint.append("coins", records(5))
        mint.boundary()
    with pytest.raises(FileExistsError):
        late[0]()
    leave_behind(shop)
    assert money_now(shop) == TOTAL


@pytest.mark.parametrize("appends", [True, False], ids=["appends", "leaves"])
def test_an_append_that_took_effect_ends_a_service_that_was_told_otherwise(
    faults: Faults, shop: Pipeline, *, appends: bool
) -> None:
    """Its state would not fit its channel: no snapshot has both."""

    def run() -> None:
        with join("mint", pipeline=shop.path, state=Account(balance=TOTAL)) as mint:
            with pytest.raises(StoreError), faults.at(1, after):
                mint.append("coins", records(5))
            if appends:
                mint.append("coins", records(5))

    with pytest.raises(Unavailable, match="entry 0 was appended, although that was reported as f"):
        run()
    with pytest.raises(NotAtRest), join("mint", pipeline=shop.path, state=Account()):
        pass


def test_a_barrier_whose_answer_was_lost_is_appended_once(faults: Faults, shop: Pipeline) -> None:
    """The next attempt finds its own. It finds records that were reported as failed, too."""
    metadata = read_metadata(shop.path)
    writer = LogWriter(shop.path, metadata.dataflow.log("coins"), metadata, is_alone=True)
    with pytest.raises(StoreError), faults.at(0, after):
        writer.append_barrier(SnapshotId("shop", 1), Mode.ALIGNED)
    assert writer.append_barrier(SnapshotId("shop", 1), Mode.ALIGNED) == 0
    with pytest.raises(StoreError), faults.at(0, after):
        writer.append_barrier(SnapshotId("shop", 2), Mode.ALIGNED)
    assert writer.append(records(3)) == 2  # that snapshot was abandoned
    with pytest.raises(StoreError), faults.at(1, after):
        writer.append(records(5))
    with pytest.raises(StoreError), faults.at(1, before):
        writer.append(records(7))
    with pytest.raises(Unavailable, match="entry 3 was appended, although"):
        writer.append_barrier(SnapshotId("shop", 3), Mode.ALIGNED)


def test_what_could_not_be_read_is_received_later(faults: Faults, shop: Pipeline) -> None:
    """A service that goes on after an error in any request has lost nothing."""
    leave_behind(shop, 5, 7)
    faults.with_reads = True
    amounts: list[int] = []
    failed_count = 0
    with join("till", pipeline=shop.path, state=Account()) as till:
        for number in range(8):
            with faults.at(number, before):
                try:
                    found = till.receive(timeout_s=0)
                except StoreError:
                    failed_count += 1
                else:
                    amounts += [] if found is None else found[1]["amount"].to_pylist()
    assert failed_count >= 2
    assert amounts == [5, 7]


def test_a_service_with_much_to_read_starts_with_few_requests(shop: Pipeline) -> None:
    """A listing shows that no entry is missing, and not one request for each."""
    leave_behind(shop, *[1] * 60)
    before = requests_to(shop.path)
    with join("till", pipeline=shop.path, state=Account()):
        after = requests_to(shop.path)
    assert before is not None
    assert after is not None
    assert after.requests - before.requests < 30


def test_an_idle_service_polls_seldom(shop: Pipeline) -> None:
    """One request for the pipeline, and one for each channel, ten times a second."""
    with join("till", pipeline=shop.path, state=Account()) as till:
        till.boundary()
        before, began = requests_to(shop.path), time.monotonic()
        assert till.receive(timeout_s=3.5 * OBJECT_POLL_S) is None
        polls = (time.monotonic() - began) / OBJECT_POLL_S + 1
        after = requests_to(shop.path)
    assert before is not None
    assert after is not None
    assert 2 <= after.requests - before.requests <= 2 * polls


def test_what_is_not_possible_there() -> None:
    """A place that holds something else; another pipeline."""
    root = place()
    storage_of(root).put(root / "notes.txt", b"mine")
    with pytest.raises(UsageError, match=r"it contains notes\.txt"):
        line(root)
    with pytest.raises(UsageError, match="is not a pipeline"):
        Pipeline(root)
    storage_of(root).delete([root / "notes.txt"])
    assert line(root).epoch == line(root).epoch == 1
    with pytest.raises(UsageError, match="a pipeline with different"):
        Pipeline.create(root, services={"mint": Account}, channels=[])
    leave_behind(line(root), 5)
    line(root).snapshot()
    with pytest.raises(UsageError, match="is not empty"):
        line(root).fork("shop-1", root)


@pytest.mark.parametrize(
    "change",
    [
        {"published": {"shop": ((1, 10**17),)}, "last_snapshot": 10**17},
        {"published": {"shop": ((2, 1),)}, "last_snapshot": 3},
        {"published": {"shop": ((1, 2),)}, "last_snapshot": 1},
        {"published": {"../x": ((1, 1),)}, "last_snapshot": 1},
        {"epoch": 2},
    ],
)
def test_forged_metadata_are_damaged(shop: Pipeline, change: dict[str, Any]) -> None:
    """Ids become paths, and ranges become lists."""
    found, _ = read_object_metadata(shop.path)
    members = {name: getattr(found, name) for name in ObjectMetadata.__struct_fields__}
    path = shop.path / "pipeline.json"
    storage_of(path).put(path, seal(ObjectMetadata(**(members | change))))
    with pytest.raises(Damaged, match="does not describe a valid pipeline"):
        shop.snapshots()


def test_a_lost_data_file_is_noticed(shop: Pipeline) -> None:
    """By whoever reads the channel, and by a restore."""
    leave_behind(shop, 5, 7)
    shop.snapshot()
    data = shop.path / "channels" / "coins" / "epoch-1" / "data"
    storage = storage_of(data)
    storage.delete([storage.children(data)[0].location])
    with pytest.raises(Damaged, match="is missing"):
        list(shop.records("coins"))
    with pytest.raises(StoreError):
        shop.restore()
    assert shop.epoch == 1
