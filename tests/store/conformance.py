"""What every store must do, whatever it is made of: ``check_store(make_store)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pytest

from stillframe.errors import NotConsistent, StoreError, UsageError
from stillframe.model import Batch, Snapshot, SnapshotId
from stillframe.store.manifest import SnapshotEntry
from stillframe.topology import Description
from tests.store.samples import (
    DESCRIPTION,
    SOME_MESSAGES,
    Account,
    Transfer,
    global_state,
    snapshot_of,
)


class AnyStore(Protocol):
    """The part of a store that a running system uses."""

    @property
    def epoch(self) -> int:
        """Return how often the system began."""

    @property
    def restored_from(self) -> SnapshotId | None:
        """Return the snapshot that this epoch began from."""

    def raise_epoch(self, restored_from: SnapshotId | None) -> int:
        """Begin the next epoch."""

    def publish(self, snapshot: Snapshot) -> SnapshotEntry:
        """Write a snapshot, whole."""

    def entries(self) -> list[SnapshotEntry]:
        """Return all, by sequence."""

    def current(self) -> SnapshotEntry | None:
        """Return the one to go back to."""

    def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        """Return one."""

    def load(self, snapshot: SnapshotId) -> Snapshot:
        """Read one back."""

    def verify(self, snapshot: SnapshotId) -> None:
        """Check all of one."""

    def next_number(self) -> int:
        """Return a number that is free."""

    def close(self) -> None:
        """Let another have it."""


MakeStore = Callable[[Description], AnyStore]
"""Makes a new, empty store that can be written to, for a description."""


def check_store(make_store: MakeStore) -> None:
    """Check all that is asked of a store, each with a store of its own from `make_store`."""
    for check in (
        _check_empty,
        _check_round_trip,
        _check_order_and_numbers,
        _check_epochs,
        _check_refused,
        _check_unknown,
    ):
        with _made(make_store) as store:
            check(store)


@contextmanager
def _made(make_store: MakeStore) -> Iterator[AnyStore]:
    store = make_store(DESCRIPTION)
    try:
        yield store
    finally:
        store.close()


def _check_empty(store: AnyStore) -> None:
    assert (store.epoch, store.restored_from) == (0, None)
    assert (store.entries(), store.current(), store.next_number()) == ([], None, 1)


def _check_round_trip(store: AnyStore) -> None:
    store.raise_epoch(None)
    balances = {"A": Account(balance=-(2**53)), "B": Account(balance=2**53, history=[1, 2])}
    for number, state in enumerate(
        (global_state(), global_state(SOME_MESSAGES), global_state({}, {**balances})), 1
    ):
        snapshot = snapshot_of(number, state)
        entry = store.publish(snapshot)
        assert store.load(snapshot.id) == snapshot
        assert store.entry(snapshot.id) == entry
        assert (entry.message_count, entry.process_count, entry.channel_count) == (
            *(state.message_count, 3, 3),
        )
        assert (entry.initiated_at, entry.completed_at) == (
            snapshot.initiated_at,
            snapshot.completed_at,
        )
        store.verify(snapshot.id)


def _check_order_and_numbers(store: AnyStore) -> None:
    store.raise_epoch(None)
    published = [store.publish(snapshot_of(number)) for number in (7, 3, 12)]
    assert store.entries() == published
    assert [entry.sequence for entry in published] == [1, 2, 3]
    assert store.current() == published[-1]
    assert store.next_number() == 13


def _check_epochs(store: AnyStore) -> None:
    assert store.raise_epoch(None) == 1
    older, newer = (store.publish(snapshot_of(number, epoch=1)) for number in (1, 2))
    assert store.raise_epoch(older.id) == store.epoch == 2
    # The newer one is of a past that was given up: it must not be picked.
    assert (store.restored_from, store.current()) == (older.id, older)
    with pytest.raises(UsageError, match="epoch 1"):
        store.publish(snapshot_of(3, epoch=1))
    newest = store.publish(snapshot_of(4, epoch=2))
    assert store.current() == newest
    assert store.raise_epoch(None) == 3
    assert (store.restored_from, store.current()) == (None, None)
    assert store.entries() == [older, newer, newest]


def _check_refused(store: AnyStore) -> None:
    store.raise_epoch(None)
    good = global_state(SOME_MESSAGES)
    lost = _with_channel(good, sent_count=99)
    unknown = _with_channel(good, batches=(Batch.of(1, [b"\x91\xa1X"] * 4),))
    smaller = msgspec.structs.replace(good, processes=good.processes[1:])
    too_big = global_state({("A", "B"): [Transfer(2**63)]})
    refusals: list[tuple[Any, type[Exception], str]] = [
        (lost, NotConsistent, "A->B"),
        (unknown, NotConsistent, "A->B"),
        (smaller, UsageError, "'A'"),
        (too_big, StoreError, "message 1 on channel A->B.*amount.*9223372036854775808"),
    ]
    for state, error, named in refusals:
        with pytest.raises(error, match=named):
            store.publish(snapshot_of(1, state))
        assert store.entries() == []
    entry = store.publish(snapshot_of(1, good))
    with pytest.raises(UsageError, match="A-1 is already in the store"):
        store.publish(snapshot_of(1, global_state()))
    assert store.entries() == [entry]
    assert store.load(entry.id).state == good


def _with_channel(state: Any, **changes: Any) -> Any:
    first = msgspec.structs.replace(state.channels[0], **changes)
    return msgspec.structs.replace(state, channels=(first, *state.channels[1:]))


def _check_unknown(store: AnyStore) -> None:
    store.raise_epoch(None)
    for act in (store.entry, store.load, store.verify, store.raise_epoch):
        with pytest.raises(UsageError, match=r"no snapshot A-1 .* none"):
            act(SnapshotId("A", 1))
    store.publish(snapshot_of(1))
    with pytest.raises(UsageError, match="A-1"):
        store.load(SnapshotId("B", 1))
