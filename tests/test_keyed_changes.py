"""Captures of keyed fields, cut after cut, against plain copies of what they held."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from stillframe import keyed_changes
from stillframe.errors import UsageError
from stillframe.keyed import Keyed
from stillframe.keyed_changes import KeyedChanges, KeyedChangesCut
from stillframe.model import KeyedChange, SnapshotId
from stillframe.state_codec import StateCodec
from tests.nightly import examples

KEYS = st.integers(0, 11)
decode = msgspec.msgpack.decode


@dataclass
class Books:
    """Two keyed fields, and one that is not."""

    accounts: Keyed[int, int] = field(default_factory=Keyed)
    names: Keyed[str, str] = field(default_factory=Keyed)
    note: str = ""

    def held(self) -> dict[str, dict[Any, Any]]:
        """Return a copy of what the keyed fields hold."""
        return {"accounts": dict(self.accounts), "names": dict(self.names)}


CODEC = StateCodec(Books)


def snapshot(number: int) -> SnapshotId:
    """Return the id of a snapshot."""
    return SnapshotId("P", number)


def read(cut: KeyedChangesCut, count: int = 3) -> dict[str, KeyedChange]:
    """Encode a cut to its end, and return the changes whole, as a coordinator has them."""
    rows: dict[str, list[Any]] = {}
    while (taken := cut.take(count)) is not None:
        rows.setdefault(taken[0], []).append(taken[1])
    return {
        name: msgspec.structs.replace(change, rows=tuple(rows.get(name, ())))
        for name, change in cut.removals().items()
    }


def apply(held: dict[str, dict[Any, Any]], keyed: dict[str, KeyedChange]) -> None:
    """Make changes to plain dicts, and check that each key is told once."""
    for name, change in keyed.items():
        told: list[Any] = []
        for rows in change.rows:
            keys, values = decode(rows.keys), decode(rows.values)
            assert len(keys) == len(values) == rows.count
            held[name].update(zip(keys, values, strict=True))
            told += keys
        removed = decode(change.removed)
        assert len(removed) == change.removed_count
        for key in removed:
            held[name].pop(key, None)
        told += removed
        assert len(told) == len(set(told))


def whole(keyed: dict[str, KeyedChange]) -> dict[str, dict[Any, Any]]:
    """Return what fields hold of which `keyed` is all."""
    held: dict[str, dict[Any, Any]] = {"accounts": {}, "names": {}}
    apply(held, keyed)
    return held


class AgainstCopies(RuleBasedStateMachine):
    """Writes, cuts that overlap, slices, news from the store, losses, restores."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(accounts=Keyed({1: 1, 2: 2}))
        self.changes = KeyedChanges(CODEC, self.books, None)
        self.number = 0
        self.under_way: dict[SnapshotId, tuple[KeyedChangesCut, dict[str, list[Any]]]] = {}
        self.copies: dict[SnapshotId, dict[str, dict[Any, Any]]] = {}
        self.store: dict[SnapshotId, dict[str, dict[Any, Any]]] = {}

    @rule(key=KEYS, value=st.integers(0, 99))
    def write(self, key: int, value: int) -> None:
        """Set a key of each field."""
        self.books.accounts[key] = value
        self.books.names[str(value % 3)] = str(key)

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        """Remove a key."""
        self.books.accounts.pop(key, None)

    @rule()
    def put_another_in_its_place(self) -> None:
        """The field holds another object: what the old one knew of changes is worth nothing."""
        self.books.accounts = Keyed({7: 7})

    @rule()
    def cut(self) -> None:
        """Begin a snapshot."""
        self.number += 1
        name = snapshot(self.number)
        self.copies[name] = self.books.held()
        self.under_way[name] = (self.changes.cut(name), {})

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), count=st.integers(1, 4))
    def go_on(self, data: st.DataObject, count: int) -> None:
        """Encode a slice of a capture that is open."""
        name = data.draw(st.sampled_from(sorted(self.under_way)))
        cut, rows = self.under_way[name]
        taken = cut.take(count)
        if taken is not None:
            rows.setdefault(taken[0], []).append(taken[1])
            return
        del self.under_way[name]
        keyed = {
            field: msgspec.structs.replace(change, rows=tuple(rows.get(field, ())))
            for field, change in cut.removals().items()
        }
        CODEC.check(CODEC.encode(CODEC.others(self.books)), keyed)
        held = whole({})
        if cut.base is not None:
            held = {field: dict(rows) for field, rows in self.store[cut.base].items()}
        apply(held, keyed)
        assert held == self.copies[name]
        self.store[name] = held

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """Give a snapshot up, wherever it is."""
        self.under_way.pop(data.draw(st.sampled_from(sorted(self.under_way))))[0].close()

    @precondition(lambda self: self.store)
    @rule(data=st.data())
    def hear_of_the_store(self, data: st.DataObject) -> None:
        """Be told that a snapshot was published, late or in another order."""
        self.changes.in_store(data.draw(st.sampled_from(sorted(self.store))))

    @rule()
    def begin_anew(self) -> None:
        """Be told that something is missing there."""
        self.changes.in_store(None)

    @precondition(lambda self: self.store)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """Go back to a snapshot: it is the base, and nothing has changed since."""
        name = data.draw(st.sampled_from(sorted(self.store)))
        held = self.store[name]
        self.books = Books(accounts=Keyed(held["accounts"]), names=Keyed(held["names"]))
        self.changes = KeyedChanges(CODEC, self.books, name)
        self.under_way.clear()


TestAgainstCopies = AgainstCopies.TestCase
TestAgainstCopies.settings = settings(max_examples=examples(40), stateful_step_count=40)


def test_the_first_capture_has_all_and_the_next_what_changed_since_the_base() -> None:
    """Also what changed before a snapshot of which it was not told."""
    books = Books(accounts=Keyed({1: 1, 2: 2, 3: 3}))
    one = KeyedChanges(CODEC, books, None)
    first = one.cut(snapshot(1))
    assert first.base is None
    assert whole(read(first))["accounts"] == {1: 1, 2: 2, 3: 3}
    one.in_store(snapshot(1))
    books.accounts[1] = 10
    lost = one.cut(snapshot(2))
    lost.close()
    books.accounts[2] = 20
    third = one.cut(snapshot(3))
    assert third.base == snapshot(1)
    assert whole(read(third))["accounts"] == {1: 10, 2: 20}
    one.in_store(snapshot(3))
    assert whole(read(one.cut(snapshot(4))))["accounts"] == {}


def test_after_a_restore_nothing_has_changed() -> None:
    """The snapshot that was restored is the base."""
    books = Books(accounts=Keyed({1: 1}))
    one = KeyedChanges(CODEC, books, snapshot(9))
    cut = one.cut(snapshot(10))
    assert (cut.base, cut.total_count) == (snapshot(9), 0)


def test_losses_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many cuts without news from the store everything is recorded, and little is kept."""
    monkeypatch.setattr(keyed_changes, "PAST_KEYS_MIN", 5)
    books = Books(accounts=Keyed(dict.fromkeys(range(3), 0)))
    one = KeyedChanges(CODEC, books, snapshot(1))
    bases = []
    for number in range(2, 8):
        books.accounts[number % 3] += 1
        cut = one.cut(snapshot(number))
        bases.append(cut.base)
        cut.close()
    assert bases == [snapshot(1)] * 5 + [None]
    one.in_store(snapshot(7))
    assert one.cut(snapshot(8)).base == snapshot(7)


def test_many_cuts_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those in which nothing changed."""
    monkeypatch.setattr(keyed_changes, "PAST_COUNT_MAX", 3)
    one = KeyedChanges(CODEC, Books(), snapshot(1))
    assert [one.cut(snapshot(n)).base for n in range(2, 7)] == [snapshot(1)] * 3 + [None] * 2


def test_a_value_that_cannot_be_encoded_is_named() -> None:
    """Class and field are in the error."""
    books = Books()
    books.accounts[1] = 2**70
    cut = KeyedChanges(CODEC, books, None).cut(snapshot(1))
    with pytest.raises(UsageError, match=r"Books\.accounts cannot be recorded"):
        cut.take(10)
