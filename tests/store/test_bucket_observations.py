"""Observations in an object store are those of a directory, whatever the object store does."""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from stillframe.errors import Damaged, Fenced, StoreError, Unavailable, UsageError
from stillframe.protocol.calls import Baseline, CallLedger
from stillframe.storage import lease, object_store
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.layout import LEDGER, OBSERVATIONS, OBSERVATIONS_HEAD
from stillframe.store.manifest import MANIFEST
from stillframe.store.observation_tables import CALLS, FAREWELLS, FILES
from stillframe.store.observations import ObservationReader, ObservationWriter
from stillframe.store.store import Store
from tests.nightly import by_night
from tests.s3_servers import at_night
from tests.storage import fake_hdfs
from tests.storage.faulty import (
    DEATHS,
    ONCE,
    Died,
    Fault,
    faulty,
    nth,
    restarted,
    since,
)
from tests.store.observation_samples import TIMES, filled, observed
from tests.store.samples import DESCRIPTION

KIND, SEED = "deaths", 4
NUMBERS = [1, 3, 4, 5, 6]
"""Those of the observations of this system."""


@pytest.fixture(
    params=["memory", *at_night("versitygw_bucket", "fake_gcs_bucket", "azurite_bucket")]
)
def place(request: pytest.FixtureRequest) -> ObjectPath:
    """An empty place in an object store: at night also in each server."""
    if request.param == "memory":
        return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "seen")
    found = request.getfixturevalue(request.param)
    return ObjectPath(str(found), "seen")


@pytest.fixture
def seen(place: ObjectPath) -> ObjectPath:
    """A store of observations there."""
    filled(place, KIND, SEED).close()
    return place


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease ends at once: what a program does that was frozen for longer than its lease."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    monkeypatch.setattr(lease.Lease, "_renew", lambda _: None)


@contextlib.contextmanager
def opened(place: ObjectPath, keep_count: int = 1000) -> Iterator[ObservationWriter]:
    """Open a store for writing while the body runs, also if its last writer has died."""
    with (
        restarted(),
        contextlib.closing(ObservationWriter.open(place, keep_count=keep_count)) as writer,
    ):
        yield writer


def publish(writer: ObservationWriter, number: int) -> None:
    """Store an observation of that number, with a ledger that has it, and remove old ones."""
    sample = observed(KIND, SEED)[0][-1]
    observation = msgspec.structs.replace(sample, number=number, since=Baseline(number))
    writer.publish(observation, TIMES, CallLedger(lost={"EUR": number}))
    writer.remove_old()


def verified(place: ObjectPath) -> list[int]:
    """Return the numbers of the observations of a store, every byte of which is read."""
    found: list[int] = []
    reader = ObservationReader(place)
    reader.verify_all(lambda manifest, _: found.append(manifest.number))
    assert found == reader.numbers()
    return found


def directories(place: ObjectPath) -> list[int]:
    """Return the numbers of which there are objects."""
    found = {
        one.location.parent.name for one in storage_of(place).files_below(place / OBSERVATIONS)
    }
    return sorted(int(name) for name in found if name.isdigit())


def test_they_are_those_of_a_directory(seen: ObjectPath, tmp_path: Path) -> None:
    """Each object has the bytes of the file, but for the ledger and the head."""
    filled(tmp_path / "seen", KIND, SEED).close()
    for file in (tmp_path / "seen" / OBSERVATIONS).rglob("*.*"):
        key = file.relative_to(tmp_path / "seen").as_posix()
        content = file.read_bytes()
        assert storage_of(seen).read(seen / key, bytes_max=len(content))[0] == content
    observations, ledger = observed(KIND, SEED)
    reader = ObservationReader(seen)
    assert [reader.load(one).observation for one in reader.numbers()] == [*observations]
    assert [one.number for one in reader.listing()[0]] == verified(seen) == NUMBERS
    with opened(seen) as again:
        assert (again.number, again.ledger) == (6, ledger)


def test_an_observation_takes_seven_requests(seen: ObjectPath) -> None:
    """One for each table, one for the manifest and one for the ledger; and one removes an old
    observation. None lists."""
    with opened(seen, keep_count=len(NUMBERS)) as writer, faulty(seen) as requests:
        publish(writer, 8)
    sent = [(one.method, one.key.rpartition("/")[2]) for one in requests.sent]
    written = sent[: len(FILES) - 1]
    assert sorted(written) == sorted(("put", name) for name in FILES if name != FAREWELLS)
    assert sent[len(written) :] == [("put", MANIFEST), ("put", LEDGER), ("delete", MANIFEST)]


def test_only_the_newest_stay(seen: ObjectPath) -> None:
    """The ledger lists them, and nothing else is there."""
    reader = ObservationReader(seen)
    manifest = reader.manifest(reader.numbers()[0])
    with opened(seen, keep_count=2) as writer:
        assert verified(seen) == NUMBERS
        publish(writer, 8)
        assert verified(seen) == directories(seen) == [6, 8]
    with pytest.raises(UsageError, match=f"no observation {manifest.number} .*; it has 6 to 8"):
        reader.load(manifest.number)


def test_in_hdfs_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its conditional writes are renames."""
    fake_hdfs.use(monkeypatch)
    place = ObjectPath(f"hdfs://fake-{secrets.token_hex(8)}", "seen")
    filled(place, KIND, SEED).close()
    with opened(place, keep_count=2) as writer:
        publish(writer, 8)
    assert verified(place) == directories(place) == [6, 8]


def test_a_second_collector_is_refused(seen: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one renews its lease."""
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    with contextlib.closing(ObservationWriter.open(seen)) as first:
        with pytest.raises(Unavailable, match="is in use by another program that writes to it: "):
            ObservationWriter.open(seen)
        publish(first, 8)
    ObservationWriter.open(seen).close()


@pytest.mark.usefixtures("hasty")
def test_a_collector_that_was_overtaken_stores_nothing(seen: ObjectPath) -> None:
    """Neither an observation nor a ledger, and no reader sees what it has written."""
    frozen = ObservationWriter.open(seen)
    with contextlib.closing(ObservationWriter.open(seen)) as writer:
        publish(writer, 7)
        for number in (8, 9):
            with pytest.raises(Fenced, match="has taken over"):
                publish(frozen, number)
        with pytest.raises(Fenced, match="has taken over"):
            frozen.store_ledger(CallLedger())
        frozen.close()
        assert verified(seen) == [*NUMBERS, 7]
        assert directories(seen) == [*NUMBERS, 7, 8]
        with pytest.raises(UsageError, match="no observation 8"):
            ObservationReader(seen).load(8)
        with pytest.raises(StoreError, match=f"{OBSERVATIONS}/8 could not be written: it exists"):
            publish(writer, 8)  # of an instance that has been observed by the other one
        publish(writer, 9)
        assert directories(seen) == verified(seen) == [*NUMBERS, 7, 9]


def frozen_before(name: str, number: int, act: Callable[[], object]) -> Any:
    """Let `act` happen before a request of this kind, of which it is the next, or the second."""
    real, calls = getattr(object_store.ObjectStore, name), []

    def method(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            act()
        return real(*arguments)

    return mock.patch.object(object_store.ObjectStore, name, method)


@pytest.mark.usefixtures("hasty")
def test_a_collector_that_opens_late_deletes_nothing_in_use(seen: ObjectPath) -> None:
    """Another one takes over and publishes before it deletes what was left. The first thing that it
    deletes shows whether writes are conditional."""
    storage_of(seen).put(seen / OBSERVATIONS / "7" / CALLS, b"half")
    others: list[ObservationWriter] = []

    def take_over() -> None:
        others.append(ObservationWriter.open(seen))
        publish(others[0], others[0].number + 1)

    with frozen_before("delete", 2, take_over):
        ObservationWriter.open(seen).close()
    with contextlib.closing(others[0]) as other:
        publish(other, 9)
    assert directories(seen) == verified(seen) == [*NUMBERS, 8, 9]


@pytest.mark.usefixtures("hasty")
def test_who_takes_over_reads_what_came_meanwhile(seen: ObjectPath) -> None:
    """The earlier collector publishes once more, after its ledger was read; never again after it
    was replaced. The first two that are replaced show whether writes are conditional."""
    first = ObservationWriter.open(seen)
    with frozen_before("replace_if_unchanged", 3, lambda: publish(first, 7)):
        second = ObservationWriter.open(seen)
    with contextlib.closing(first), contextlib.closing(second):
        assert (second.number, second.ledger.lost) == (7, {"EUR": 7})
        with pytest.raises(Fenced):
            publish(first, 8)
    assert verified(seen) == [*NUMBERS, 7]


def test_of_a_lost_answer_the_next_ledger_decides(seen: ObjectPath) -> None:
    """The observation was reported as abandoned. Until then it is there, with its ledger."""

    def is_lost(request: Any) -> Fault | None:
        return Fault.LOST if request.key.endswith(LEDGER) else None

    with opened(seen) as writer:
        with faulty(seen, is_lost, repeat_s=0.0), pytest.raises(StoreError, match=LEDGER):
            publish(writer, 8)
        assert writer.number == 6
        assert verified(seen) == [*NUMBERS, 8]
        publish(writer, 9)
        assert verified(seen) == directories(seen) == [*NUMBERS, 9]
        with faulty(seen, is_lost, repeat_s=0.0), pytest.raises(StoreError, match=LEDGER):
            publish(writer, 10)
    with opened(seen) as again:
        assert (again.number, again.ledger.lost, verified(seen)[-1]) == (10, {"EUR": 10}, 10)


def test_a_death_at_any_request_leaves_the_old_or_the_new() -> None:
    """The ledger is that of the newest observation; the next collector clears up and goes on."""
    found = []
    for fault in by_night(DEATHS, check=DEATHS[1:]):
        for number in itertools.count(1):
            here = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
            with faulty(here, nth(number, fault)) as requests:
                with contextlib.suppress(Died), opened(here, keep_count=1) as writer:
                    for one in (1, 2):
                        publish(writer, one)
                is_over = not requests.is_dead
            with opened(here, keep_count=1) as again:
                left = verified(here)
                assert directories(here) == left
                assert again.ledger.lost == ({"EUR": left[-1]} if left else {})
                publish(again, again.number + 1)
                assert directories(here) == verified(here)
            found.append(tuple(left))
            if is_over:
                break
    assert {*found} == {(), (1,), (2,)}


@pytest.mark.parametrize("fault", by_night(ONCE, check=(Fault.LOST,)))
def test_a_fault_that_passes_changes_nothing(fault: Fault) -> None:
    """It is repeated, or its outcome found out."""
    for number in itertools.count(1):
        here = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
        with faulty(here, nth(number, fault)) as requests:
            with contextlib.closing(ObservationWriter.open(here, keep_count=1)) as writer:
                publish(writer, 1)
                publish(writer, 2)
            is_over = len(requests.sent) < number
        assert directories(here) == verified(here) == [2]
        if is_over:
            break


def test_after_an_outage_it_goes_on() -> None:
    """From any request of an observation on, all fail; then the same collector continues."""
    for number in itertools.count(1):
        here = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
        with contextlib.closing(ObservationWriter.open(here, keep_count=2)) as writer:
            for before in (1, 2):
                publish(writer, before)
            with (
                faulty(here, since(number, Fault.LOST), repeat_s=0.0) as requests,
                contextlib.suppress(StoreError),
            ):
                publish(writer, 3)
            is_over = len(requests.sent) < number
            publish(writer, 4)
            assert directories(here) == verified(here)
            assert verified(here) in ([2, 4], [3, 4])
        if is_over:
            break


# --- refusals


def test_a_place_that_is_something_else_is_refused(place: ObjectPath) -> None:
    """As a directory would be."""
    storage_of(place).put(place / "notes.txt", b"1")
    with pytest.raises(UsageError, match=r"is not empty, and not a store of obs.*notes\.txt"):
        ObservationWriter.open(place)
    Store.create(place.with_name("money"), description=DESCRIPTION).close()
    with pytest.raises(UsageError, match="is a store of snapshots, and not a store of obs"):
        ObservationWriter.open(place.with_name("money"))


def test_it_is_no_store_of_snapshots(seen: ObjectPath) -> None:
    """Neither to read, nor to write, nor to begin one; the error says what can be done."""
    for use in (Store.open, Store.open_writer):
        with pytest.raises(UsageError, match=r"can be looked at and not restored.*stillframe show"):
            use(seen)
    with pytest.raises(UsageError, match="can be looked at and not restored"):
        Store.create(seen, description=DESCRIPTION)


@pytest.mark.parametrize("name", [OBSERVATIONS_HEAD, LEDGER])
def test_a_store_that_has_lost_a_file_is_not_made_anew(seen: ObjectPath, name: str) -> None:
    """That would let its observations disappear."""
    storage_of(seen).delete([seen / name])
    with pytest.raises(Damaged, match=f"{name} is missing: put it back from a copy of the store"):
        ObservationWriter.open(seen)
