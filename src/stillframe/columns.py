"""What becomes of fields in a store: which columns they get, and of which kind. Pure."""

import datetime
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from stillframe.errors import UsageError
from stillframe.keyed import Keyed

COLUMN_KINDS: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    bytes: "bytes",
    datetime.datetime: "time",
}
"""Python type -> the kind of column that holds it in a store; everything else is kept as JSON."""

KEYED = "keyed"
"""The kind of a field that has rows of its own."""

RESERVED_COLUMNS = frozenset(
    {"snapshot", "process", "kind", "source", "target", "number", "encoded"}
)

RESERVED_KEYED_COLUMNS = frozenset(
    {"snapshot", "process", "is_removed", "key", "key_encoded", "value_encoded"}
)


class Column(msgspec.Struct, frozen=True):
    """A field of a process or of a message, and the kind of column it becomes (`COLUMN_KINDS`)."""

    name: str
    kind: str


class KeyedColumns(msgspec.Struct, frozen=True):
    """What becomes of a keyed field: a row for each key, with these columns.

    `key` is the kind of the column `key`. With the layout `value` there is one column of that name;
    with `map` or `array` the values are Structs that are encoded so, and each of their fields has a
    column.
    """

    key: str
    layout: Literal["value", "map", "array"]
    values: tuple[Column, ...]


def columns_of(owner: type, fields: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a class; SQL engines do not tell `Balance` from `balance`.

    Raises:
        UsageError: a field cannot be called so.
    """
    seen: dict[str, str] = {}
    for name in fields:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise UsageError(
                f"class {owner.__name__}: the fields {other!r} and {name!r} differ in case alone, "
                "and most SQL engines would not tell them apart: rename one"
            )
        if name.lower() in RESERVED_COLUMNS:
            raise UsageError(
                f"class {owner.__name__}: a field cannot be called {name!r}: the store uses that "
                f"name for a column of its own (reserved: {', '.join(sorted(RESERVED_COLUMNS))})"
            )
    return tuple(Column(name, _column_kind(kind)) for name, kind in fields.items())


def _column_kind(kind: Any) -> str:
    """Return the kind of column for a type; ``int | None`` is int, since any column may be null."""
    if typing.get_origin(kind) is Keyed:
        return KEYED
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and len(members) == 1:
        kind = members[0]
    return COLUMN_KINDS.get(kind, "json") if isinstance(kind, type) else "json"


def keyed_columns(
    classes: Iterable[tuple[type, Mapping[str, tuple[Any, Any]]]],
) -> dict[str, dict[str, KeyedColumns]]:
    """Return class name -> keyed field -> columns, for the classes that have any.

    Args:
        classes: each with the types of keys and values of its keyed fields.

    Raises:
        UsageError: a field cannot be kept so, or two would have one table; which is named.
    """
    found: dict[str, dict[str, KeyedColumns]] = {}
    tables: dict[str, tuple[str, str]] = {}
    for kind, fields in classes:
        owner = kind.__name__
        for field, (key, value) in fields.items():
            if tables.setdefault(f"{owner}_{field}".lower(), (owner, field)) != (owner, field):
                raise UsageError(
                    f"the rows of {owner}.{field} would be in a table {owner}_{field}, and another "
                    "field of another class has one of that name already: rename the field"
                )
            if key is types.NoneType or types.NoneType in typing.get_args(key):
                raise UsageError(
                    f"{owner}.{field}: a key cannot be None: give what None stands for a key of its"
                    " own, or a field of its own"
                )
            _check_key(f"{owner}.{field}", key)
            columns = KeyedColumns(_column_kind(key), *_value_columns(f"{owner}.{field}", value))
            found.setdefault(owner, {})[field] = columns
    return found


def _check_key(where: str, key: Any) -> None:
    """Refuse keys that are equal and not encoded alike, or not encoded as what can be a key."""
    struct = getattr(key, "__struct_config__", None)
    if key is float or (struct is not None and not struct.array_like):
        raise UsageError(
            f"{where}: a key cannot be, or hold, a {key.__name__}: floats that are equal need not "
            "be written alike, and a Struct is a key only with array_like=True"
        )
    members = set(typing.get_args(key)) - {types.NoneType}
    if key is datetime.time or (bool in members and len(members) > 1):
        raise UsageError(
            f"{where}: a key cannot be, or hold, a {getattr(key, '__name__', key)}: two that are "
            "equal (1 and True, or the same time in two time zones) need not be written alike: use "
            "an int or a str"
        )
    parts = typing.get_type_hints(key).values() if struct is not None else typing.get_args(key)
    for part in parts:
        _check_key(where, part)


def _value_columns(
    where: str, value: Any
) -> tuple[Literal["value", "map", "array"], tuple[Column, ...]]:
    """Return the layout of the values of a keyed field, and their columns.

    A Struct that is encoded in another way than field by field becomes JSON text.
    """
    struct = getattr(value, "__struct_config__", None)
    if (
        struct is None
        or struct.omit_defaults
        or value.__struct_fields__ != value.__struct_encode_fields__
        or (struct.array_like and struct.tag is not None)
    ):
        return "value", (Column("value", _column_kind(value)),)
    taken = RESERVED_KEYED_COLUMNS.intersection(map(str.lower, value.__struct_fields__))
    if taken:
        raise UsageError(
            f"{where}: {value.__name__} has a field {min(taken)!r}, and the store uses that name "
            f"for a column of its own (reserved: {', '.join(sorted(RESERVED_KEYED_COLUMNS))}): "
            "rename it"
        )
    hints = typing.get_type_hints(value)
    columns = tuple(Column(name, _column_kind(hints[name])) for name in value.__struct_fields__)
    return "array" if struct.array_like else "map", columns
