"""A field that is a mapping, and of which a snapshot takes only the keys that changed."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Keyed(MutableMapping[Key, Value]):
    """A mapping whose recording costs what has changed in it, not what it holds.

    Declare it as the whole type of a field, ``accounts: Keyed[str, int] =
    field(default_factory=Keyed)``, and use it like a dict. Keys and values must be of types that
    cannot be changed in place: to change a value, set its key again. The order of the keys is no
    part of the state: after a restore it can be another.

    Args:
        rows: what it holds at first, a mapping or pairs of key and value.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[Key, Value] | Iterable[tuple[Key, Value]] = ()) -> None:
        self._rows: dict[Key, Value] = dict(rows)

    def __getitem__(self, key: Key) -> Value:
        return self._rows[key]

    def __setitem__(self, key: Key, value: Value) -> None:
        self._rows[key] = value

    def __delitem__(self, key: Key) -> None:
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
        """What it holds now, as a plain mapping to read from."""
        return self._rows
