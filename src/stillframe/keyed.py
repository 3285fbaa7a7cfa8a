"""Mappings as fields: a snapshot records only the keys that changed.

At a cut nothing is copied. The field sets aside the set of keys that changed since the cut before
and starts a new one; their values at the cut are read from the live rows afterwards, bit by bit
(``KeyedCut.take``). A key that is set or removed before it was read has its old value saved first.
Values cannot be changed in place, so a reference to the old one is enough.
"""

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from itertools import islice, repeat
from operator import is_, is_not
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

KeySet = dict[Key, None]
"""A set of keys. Python's garbage collection traverses sets, but no dicts of atomic values."""
ABSENT: Any = object()
"""The value of a missing key."""
UNTRACKED_COUNT_MIN = 100_000
"""This many changed keys are remembered even if the field holds fewer."""


class Keyed(MutableMapping[Key, Value]):
    """A mapping that snapshots record incrementally: the cost depends on its changes, not on its
    size.

    Declare it as the whole type of a field, ``accounts: Keyed[str, int] =
    field(default_factory=Keyed)``, and use it like a dict. Keys and values must be of types that
    cannot be changed in place: to change a value, set its key again. The order of the keys is not
    part of the state, and can differ after a restore.

    Args:
        rows: the initial content, a mapping or pairs of key and value.
    """

    __slots__ = ("_changed", "_open", "_rows")

    def __init__(self, rows: Mapping[Key, Value] | Iterable[tuple[Key, Value]] = ()) -> None:
        # Not a subclass of dict: Python's garbage collection would traverse all of it.
        self._rows: dict[Key, Value] = dict(rows)
        self._changed: KeySet[Key] | None = None
        self._open: list[KeyedCut[Key, Value]] = []

    def __getitem__(self, key: Key) -> Value:
        return self._rows[key]

    def __setitem__(self, key: Key, value: Value) -> None:
        changed = self._changed
        if changed is not None and key not in changed:
            self._note(key)
        self._rows[key] = value

    def __delitem__(self, key: Key) -> None:
        if key in self._rows:
            self._note_removal(key)
        del self._rows[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Keyed({self._rows!r})"

    @property
    def rows(self) -> Mapping[Key, Value]:
        """The current content, as a plain mapping to read from."""
        return self._rows

    def keys(self) -> KeysView[Key]:
        """Return a view of the keys."""
        return self._rows.keys()

    def items(self) -> ItemsView[Key, Value]:
        """Return a view of the pairs of key and value."""
        return self._rows.items()

    def values(self) -> ValuesView[Value]:
        """Return a view of the values."""
        return self._rows.values()

    def popitem(self) -> tuple[Key, Value]:
        """Remove and return some key with its value.

        Raises:
            KeyError: it is empty.
        """
        if not self._rows:
            raise KeyError("popitem(): the mapping is empty")
        # Putting a key back can make the dict move its rows during an iteration.
        self._expect_other_size()
        # The dict itself removes it: one whose last keys were deleted would search its end each
        # time, and ``clear`` would take forever.
        key, value = self._rows.popitem()
        self._rows[key] = value
        self._note_removal(key)
        return self._rows.popitem()

    def track(self) -> None:
        """Start to record which keys change, if that has not started yet: now is a cut."""
        if self._changed is None:
            self._changed = {}

    def put_changes_aside(self) -> KeySet[Key] | None:
        """Return the keys that changed since the last call, and start again: now is a cut. None: it
        is not known which changed, and any may have."""
        changed, self._changed = self._changed, {}
        return changed

    def cut(self, changes: list[KeySet[Key]] | None) -> "KeyedCut[Key, Value]":
        """Return the current content, to be read later; end it with ``close``. `changes` are the
        sets of keys to read, the oldest first; None: all keys."""
        opened = KeyedCut(self._rows, changes, self._open)
        self._open.append(opened)
        return opened

    def _note(self, key: Key) -> None:
        """Record that `key` changes for the first time since the last cut."""
        assert self._changed is not None
        self._changed[key] = None
        if self._open:
            old = self._rows.get(key, ABSENT)
            for cut in self._open:
                cut.before.setdefault(key, old)
            if old is ABSENT:
                self._expect_other_size()
        elif len(self._changed) > max(UNTRACKED_COUNT_MIN, 2 * len(self._rows)):
            # Without snapshots, keys that come and go must not fill the memory.
            self._changed = None

    def _note_removal(self, key: Key) -> None:
        """Record that `key`, which exists, is about to be removed."""
        if self._changed is not None:
            if key not in self._changed:
                self._note(key)
            self._expect_other_size()

    def _expect_other_size(self) -> None:
        for cut in self._open:
            cut.expect_other_size()


class KeyedCut(Generic[Key, Value]):
    """The content of a keyed field at one cut, read bit by bit while the field changes. `before`
    has the old values of keys that were set or removed since, ABSENT for new ones; `total_count` is
    how many keys there are to read, at most."""

    def __init__(
        self,
        rows: dict[Key, Value],
        changes: list[KeySet[Key]] | None,
        siblings: "list[KeyedCut[Key, Value]]",
    ) -> None:
        self.before: dict[Key, Any] = {}
        self.total_count: int = len(rows) if changes is None else sum(map(len, changes))
        self._rows = rows
        self._siblings = siblings
        self._is_whole = changes is None
        self._keys: Iterator[Key] = iter(rows) if changes is None else _once_each(changes)

    def expect_other_size(self) -> None:
        """Before a key is added or removed: Python cannot iterate over such a dict."""
        if self._is_whole:
            self._is_whole = False
            self._keys = iter(list(self._keys))

    def take(self, count: int) -> tuple[list[Key], list[Value], list[Key]] | None:
        """Read about `count` more keys: those that existed at the cut, their values, and the keys
        that did not; None if all have been read."""
        keys = list(islice(self._keys, count))
        if not keys:
            return None
        values: list[Any] = list(map(self._rows.get, keys, repeat(ABSENT)))
        if self.before:
            values = list(map(self.before.get, keys, values))
        if not any(map(is_, values, repeat(ABSENT))):
            return keys, values, []
        there = list(map(is_not, values, repeat(ABSENT)))
        removed = [key for key, is_there in zip(keys, there, strict=True) if not is_there]
        keys = [key for key, is_there in zip(keys, there, strict=True) if is_there]
        return keys, [value for value in values if value is not ABSENT], removed

    def close(self) -> None:
        """Stop reading. Closing twice does nothing."""
        if self in self._siblings:
            self._siblings.remove(self)


def _once_each(changes: list[KeySet[Key]]) -> Iterator[Key]:
    for index, keys in enumerate(changes):
        if not index:
            yield from keys  # nearly always there is one; no call for each of its keys
            continue
        earlier = changes[:index]
        yield from (key for key in keys if not any(key in others for others in earlier))
