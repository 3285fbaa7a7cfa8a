"""Every request of a writer of a store in an object store fails once, or is its last one.

At night this is also done on a real server, where a proxy lets the requests fail.
"""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from unittest import mock

import msgspec
import pytest

from stillframe.errors import StillframeError, UsageError
from stillframe.model import SnapshotId
from stillframe.storage import remote
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store import store as store_module
from stillframe.store.bucket_writer import BucketWriter
from stillframe.store.history import SnapshotBegan, SnapshotPublished
from stillframe.store.manifest import read_manifest
from stillframe.store.store import Store
from tests import faulty_proxy
from tests.nightly import by_night
from tests.s3_servers import S3Server, at_night, use
from tests.storage.faulty import (
    DEATHS,
    ONCE,
    Died,
    Fault,
    Plan,
    Request,
    faulty,
    nth,
    restarted,
    since,
)
from tests.store import keyed_samples as keyed

Operation = Callable[[Store], object]


def publish(store: Store, number: int, base: int | None = None) -> None:
    """Take and publish a snapshot with that number, full or with the changes since `base`."""
    snapshot = SnapshotId("P", number)
    store.history.append(SnapshotBegan(snapshot))
    fields = {"accounts": {"k": number}, "seats": {}, "days": {}}
    before = {"accounts": {"k": base}, "seats": {}, "days": {}} if base else keyed.nothing()
    based_on = None if base is None else SnapshotId("P", base)
    parts = [keyed.part(one, before, fields, based_on) for one in keyed.BANKS]
    store.publish(keyed.snapshot_of(number, parts, epoch=store.epoch))
    store.history.append(SnapshotPublished(snapshot, is_removal_noted=True))


def make_full(store: Store) -> None:
    """Rewrite the newest snapshot in full."""
    with mock.patch.object(store_module, "CHAIN_LENGTH_MAX", 0):
        store.keep(100)
        store.settle()


def keep_one(store: Store) -> None:
    """Remove all snapshots but the newest and what it needs."""
    store.keep(1)
    store.settle()


OPERATIONS: dict[str, Operation] = {
    "publish": lambda store: publish(store, 5, 4),
    "epoch": lambda store: store.raise_epoch(SnapshotId("P", 4)),
    "save": lambda store: store.save(SnapshotId("P", 1), "first"),
    "drop a base": lambda store: store.drop("P-1"),
    "rewrite": make_full,
    "keep": keep_one,
}


CHOSEN = by_night(tuple(OPERATIONS), check=("publish", "keep"))
STEP = by_night(1, check=3)
"""Of the requests of a start, each so many-th is tried."""


PROXIED = {
    Fault.REFUSED: faulty_proxy.Fault(503, is_forwarded=False),
    Fault.FAILED: faulty_proxy.Fault(500),
    Fault.LOST: faulty_proxy.CUT_AFTER,
}


@dataclass(frozen=True)
class Buckets:
    """Buckets in memory, or on a server behind a proxy."""

    server: S3Server | None = None
    proxy: faulty_proxy.FaultyProxy | None = None

    def new_store(self) -> ObjectPath:
        """Return a place in a bucket of its own."""
        if self.server is None:
            return ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
        return ObjectPath(f"s3://{self.server.new_bucket()}", "store")

    @contextlib.contextmanager
    def failing(
        self, place: ObjectPath, plan: Plan, *, repeat_s: float = remote.REPEAT_S
    ) -> Iterator[Callable[[], int]]:
        """Let requests fail until the block ends; the value returns how many there were."""
        if (proxy := self.proxy) is None:
            with faulty(place, plan, repeat_s=repeat_s) as requests:
                yield lambda: len(requests.sent)
            return
        first = len(proxy.requests)

        def over_http(request: faulty_proxy.Request) -> faulty_proxy.Fault | None:
            fault = plan(Request(request.number - first, request.method, request.path))
            return None if fault is None else PROXIED[fault]

        with faulty(place, repeat_s=repeat_s):
            proxy.plan = over_http
            yield lambda: len(proxy.requests) - first
            proxy.plan = lambda request: None


@pytest.fixture(params=["memory", *at_night("versitygw_server")])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    """Where the stores of a test are."""
    if request.param == "memory":
        yield Buckets()
        return
    server = request.getfixturevalue(request.param)
    with faulty_proxy.faulty_proxy(server.port) as proxy:
        use(server, monkeypatch, port=proxy.port)
        yield Buckets(server, proxy)


@pytest.fixture
def place(buckets: Buckets) -> ObjectPath:
    """A closed store with 1 and 3 full, 2 based on 1, and 4 on 3."""
    found = buckets.new_store()
    with contextlib.closing(Store.create(found, description=keyed.DESCRIPTION)) as store:
        store.raise_epoch(None)
        for number, base in ((1, None), (2, 1), (3, None), (4, 3)):
            publish(store, number, base)
    return found


def copies(place: ObjectPath, buckets: Buckets) -> Iterator[ObjectPath]:
    """Yield copies of a store, each in a bucket of its own, without end."""
    storage = storage_of(place)
    content = {
        one.location: storage.read(one.location, bytes_max=10**7)[0]
        for one in storage.files_below(place)
    }
    while True:
        copy = buckets.new_store()
        for location, found in content.items():
            assert isinstance(location, ObjectPath)
            storage_of(copy).put(ObjectPath(copy.root, location.key), found)
        yield copy


def state_of(store: Store) -> object:
    """Return what users see of a store."""
    return (
        store.epoch,
        store.restored_from,
        store.savepoints,
        [(entry.id.number, entry.chain_length) for entry in store.entries()],
    )


def check_goes_on(copy: ObjectPath) -> object:
    """Return the state of a store whose writer has ended, once the next one has published."""
    with restarted(), contextlib.closing(Store.open_writer(copy)) as writer:
        found = state_of(writer)
        assert state_of(Store.open(copy)) == found
        publish(writer, writer.history.last_number + 1)
        writer.verify_all(lambda *_: None)
        below = storage_of(copy).files_below(copy / "snapshots")
        left = [one for one in below if not one.location.name.startswith(".probe-")]
    listed = {f"{entry.id}" for entry in Store.open(copy).entries()}
    buried = {one.location.parent.name for one in left if one.location.name == "manifest.json"}
    assert {one.location.parent.name for one in left} == listed | buried
    return found


@pytest.mark.slow
@pytest.mark.nightly(part="storage")
@pytest.mark.parametrize("name", CHOSEN)
def test_a_death_at_any_request_leaves_the_old_or_the_new(
    place: ObjectPath, buckets: Buckets, name: str
) -> None:
    """Before or after the request took effect; the next writer clears up, and goes on."""
    found: list[object] = []
    act, places = OPERATIONS[name], copies(place, buckets)
    old = state_of(Store.open(place))
    with contextlib.closing(Store.open_writer(next(places))) as writer:
        act(writer)
        whole = state_of(writer)
    for fault in by_night(DEATHS, check=DEATHS[1:]):
        for number in itertools.count(1):
            store = Store.open_writer(copy := next(places))
            with faulty(copy, nth(number, fault)) as requests:
                with contextlib.suppress(Died):
                    act(store)
                is_over = not requests.is_dead
                with contextlib.suppress(Died):
                    store.close()
            found.append(check_goes_on(copy))
            if number == 1 and fault is Fault.DEATH_BEFORE:
                assert found[-1] == old
            if is_over:
                break
    assert whole in found
    if name in ("publish", "epoch", "save", "rewrite"):
        assert {repr(one) for one in found} <= {repr(old), repr(whole)}


@pytest.mark.slow
@pytest.mark.nightly(part="storage")
@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_that_passes_changes_nothing(
    place: ObjectPath, buckets: Buckets, name: str
) -> None:
    """It is repeated, or its outcome found out; the result is that of an untroubled one."""
    act, places = OPERATIONS[name], copies(place, buckets)
    with contextlib.closing(Store.open_writer(next(places))) as writer:
        act(writer)
        whole = state_of(writer)
    for fault in by_night(ONCE, check=(Fault.LOST,)):
        for number in itertools.count(1):
            with contextlib.closing(Store.open_writer(copy := next(places))) as store:
                with buckets.failing(copy, nth(number, fault)) as count:
                    act(store)
                    is_over = count() < number
                assert state_of(store) == whole
            assert check_goes_on(copy) == whole
            if is_over:
                break


@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
@pytest.mark.parametrize("fault", by_night([*ONCE, Fault.DENIED], check=[Fault.LOST]))
@pytest.mark.slow
@pytest.mark.nightly(part="storage")
@pytest.mark.parametrize("name", CHOSEN)
def test_after_an_outage_it_goes_on(
    place: ObjectPath, buckets: Buckets, name: str, fault: Fault
) -> None:
    """From any request on, all fail until the operation gives up; then the same writer goes on."""
    act, places = OPERATIONS[name], copies(place, buckets)
    for number in itertools.count(1):
        with contextlib.closing(Store.open_writer(copy := next(places))) as store:
            plan = since(number, fault)
            with faulty(copy, plan, repeat_s=0.0) as r, contextlib.suppress(StillframeError):
                act(store)
            if name == "epoch":
                act(store)  # as a supervisor does after an error: the head may have either epoch
            publish(store, store.history.last_number + 1)
            with contextlib.suppress(StillframeError):  # the error of what failed before
                store.settle()
            store.settle()
            store.verify_all(lambda *_: None)
            found = state_of(store)
        assert state_of(Store.open(copy)) == found
        if len(r.sent) < number:
            break


def test_what_was_reported_as_abandoned_is_not_published(
    place: ObjectPath, buckets: Buckets
) -> None:
    """The manifest was written, and all answers were lost: the next publication removes it."""
    with contextlib.closing(Store.open_writer(place)) as store:
        with (
            buckets.failing(
                place,
                lambda request: Fault.LOST if request.key.endswith("manifest.json") else None,
                repeat_s=0.0,
            ),
            pytest.raises(StillframeError, match="nothing was published"),
        ):
            publish(store, 5)
        assert 5 in [entry.id.number for entry in Store.open(place).entries()]
        publish(store, 6)
        assert [entry.id.number for entry in Store.open(place).entries()] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
def test_a_rewriting_whose_answer_was_lost_is_no_other_writer(
    place: ObjectPath, buckets: Buckets
) -> None:
    """The manifest was replaced, and the object store was away from then on: the same writer tries
    again later, and must not take its own manifest for that of a program that took over."""
    with contextlib.closing(Store.open_writer(place)) as store:
        lost: list[bool] = []
        store.lost = lambda: lost.append(True)
        replaced = storage_of(place).read(place / "snapshots/P-2/manifest.json", bytes_max=10**6)
        is_away: list[bool] = []

        def plan(request: Request) -> Fault | None:
            if request.method == "put" and request.key.endswith("P-2/manifest.json"):
                is_away.append(True)
                return Fault.LOST if len(is_away) == 1 else Fault.REFUSED
            return Fault.REFUSED if is_away else None

        with faulty(place, plan, repeat_s=0.0), pytest.raises(StillframeError):
            store.drop("P-1")
        now = storage_of(place).read(place / "snapshots/P-2/manifest.json", bytes_max=10**6)
        assert now != replaced
        assert store.drop("P-1") is None
        assert not lost
        assert [entry.id.number for entry in store.entries()] == [2, 3, 4]
        publish(store, 5)
        store.verify_all(lambda *_: None)


@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
def test_a_removal_that_failed_does_not_come_later(place: ObjectPath, buckets: Buckets) -> None:
    """The line in the history was written, and its answer lost: the snapshot, which may have got a
    name since, must not disappear when the next writer reads that line."""
    with contextlib.closing(Store.open_writer(place)) as store:
        with (
            faulty(
                place,
                lambda request: Fault.LOST if "history" in request.key else None,
                repeat_s=0.0,
            ),
            pytest.raises(StillframeError, match=r"history\.ndjson could not be written"),
        ):
            store.drop("P-2")
        store.save(SnapshotId("P", 2), "kept")
    reader = Store.open(place)
    assert [entry.id.number for entry in reader.entries()] == [1, 2, 3, 4]
    with contextlib.closing(Store.open_writer(place)) as successor:
        assert state_of(successor) == state_of(reader)
        successor.verify(successor.find("kept"))


@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
def test_a_removal_that_began_is_one(place: ObjectPath, buckets: Buckets) -> None:
    """It is noted, and the manifest could not be deleted. Readers ignore the snapshot, and the next
    writer deletes it, so it can become no savepoint; the removal can be tried again."""
    with contextlib.closing(Store.open_writer(place)) as store:
        refused = lambda r: Fault.REFUSED if r.method == "delete" else None  # noqa: E731
        with (
            faulty(place, refused, repeat_s=0.0),
            pytest.raises(StillframeError, match="P-2 could not be removed"),
        ):
            store.drop("P-2")
        for act in (
            lambda: store.save(SnapshotId("P", 2), "kept"),
            lambda: store.raise_epoch(SnapshotId("P", 2)),
        ):
            with pytest.raises(UsageError, match=r"no snapshot P-2 in .*; there are P-1, P-3, P-4"):
                act()
        assert state_of(store) == state_of(Store.open(place))
        assert store.drop("P-2") is None
        publish(store, 5)
        assert [entry.id.number for entry in store.entries()] == [1, 3, 4, 5]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED])
@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
def test_what_is_half_removed_is_not_rewritten_for_its_base(
    place: ObjectPath, buckets: Buckets, fault: Fault
) -> None:
    """Its manifest may be gone, and was not deleted by another program: when its base is deleted,
    its own removal ends first, and the system runs on."""
    with contextlib.closing(Store.open_writer(place)) as store:
        lost: list[bool] = []
        store.lost = lambda: lost.append(True)
        deleting = lambda r: fault if r.method == "delete" and "P-2" in r.key else None  # noqa: E731
        with (
            faulty(place, deleting, repeat_s=0.0),
            pytest.raises(StillframeError, match="P-2 could not be removed"),
        ):
            store.drop("P-2")
        assert store.drop("P-1") is None
        assert not lost
        assert storage_of(place).files_below(place / "snapshots" / "P-2") == []
        publish(store, 5, 4)
        assert [entry.id.number for entry in store.entries()] == [3, 4, 5]
        store.verify_all(lambda *_: None)


@pytest.mark.parametrize("buckets", ["memory"], indirect=True)
def test_what_was_assembled_stays_if_it_took_effect(place: ObjectPath, buckets: Buckets) -> None:
    """Its manifest was written, and all answers were lost: nothing relies on it not being there."""
    writer = BucketWriter(place, head=None, lost=lambda: None, keeps_files=True)
    four = Store.open(place).entry(SnapshotId("P", 4))
    manifest = read_manifest(four.directory, Store.open(place)._head.described)
    five = msgspec.structs.replace(manifest, snapshot=SnapshotId("P", 5), sequence=5)
    lost = lambda r: Fault.LOST if r.key.endswith("manifest.json") else None  # noqa: E731
    with (
        ThreadPoolExecutor(1) as executor,
        contextlib.closing(writer),
        faulty(place, lost, repeat_s=0.0),
        pytest.raises(StillframeError),
        writer.new_snapshot(five.snapshot, executor) as new,
    ):
        new.publish(five)
    assert [entry.id.number for entry in Store.open(place).entries()] == [1, 2, 3, 4, 5]
    with contextlib.closing(Store.open_writer(place)) as successor:
        assert [entry.id.number for entry in successor.entries()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.nightly(part="storage")
@pytest.mark.parametrize("fault", by_night(DEATHS, check=DEATHS[1:]))
def test_a_death_at_any_request_of_a_start_leaves_room(
    place: ObjectPath, buckets: Buckets, fault: Fault
) -> None:
    """While a store is made, and while one is opened for writing."""
    for number in itertools.count(1, STEP):
        new = buckets.new_store()
        with faulty(new, nth(number, fault)) as requests, contextlib.suppress(Died):
            Store.create(new, description=keyed.DESCRIPTION).close()
        with restarted(), contextlib.closing(Store.create(new, description=keyed.DESCRIPTION)) as s:
            assert s.raise_epoch(None) == 1
            publish(s, 1)
        if not requests.is_dead:
            break
    places = copies(place, buckets)
    old = state_of(Store.open(place))
    for number in itertools.count(1, STEP):
        copy = next(places)
        with faulty(copy, nth(number, fault)) as requests, contextlib.suppress(Died):
            Store.open_writer(copy).close()
        assert check_goes_on(copy) == old
        if not requests.is_dead:
            break
