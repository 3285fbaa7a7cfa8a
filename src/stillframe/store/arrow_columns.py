"""Fields as columns: the Arrow type of each kind of field, and values as Arrow arrays."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.errors import StoreError
from stillframe.topology import KEYED, Column

ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
"""Kind of column (``Column.kind``) -> its Arrow type."""

_ABSENT = type(None)
_FITTING: dict[str, frozenset[type]] = {
    "bool": frozenset({bool, _ABSENT}),
    "int": frozenset({int, _ABSENT}),
    "float": frozenset({float, int, _ABSENT}),
    "text": frozenset({str, _ABSENT}),
    "bytes": frozenset({bytes, _ABSENT}),
    "time": frozenset({datetime.datetime, str, _ABSENT}),
}
"""Kind of column -> the types that MessagePack gives for it. Arrow would truncate 0.5 to 0."""

_CONVERSION_ERRORS = (
    pa.ArrowException,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)


def merged_columns(classes: Mapping[str, tuple[Column, ...]]) -> tuple[Column, ...]:
    """Return one column for each field name of any of the classes, in the order of first
    occurrence.

    If classes disagree about a name, integers and floats become float, all else JSON. A keyed field
    has rows of its own and no column.
    """
    kinds: dict[str, set[str]] = {}
    for columns in classes.values():
        for column in columns:
            if column.kind == KEYED:
                continue
            kinds.setdefault(column.name, set()).add(column.kind)
    return tuple(Column(name, _meet(of_name)) for name, of_name in kinds.items())


def _meet(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "float" if kinds == {"int", "float"} else "json"


def to_array(column: Column, values: Sequence[Any], where: Callable[[int], str]) -> pa.Array:
    """Turn values as MessagePack gave them into an Arrow array; None becomes null. A StoreError
    names the value that does not fit, with its owner by `where`, a function of its index."""
    try:
        return _convert(column, values)
    except _CONVERSION_ERRORS as error:
        index, cause = _first_misfit(column, values, error)
        raise StoreError(
            f"{where(index)}: field {column.name!r} holds {_shortened(repr(values[index]))}, "
            f"which does not fit a column of kind {column.kind} ({_shortened(str(cause))}): keep "
            "it in that range, or declare the field with another type, for example str"
        ) from error


def _convert(column: Column, values: Sequence[Any]) -> pa.Array:
    if column.kind == "json":
        values = [None if value is None else _json(value) for value in values]
        return pa.array(values, ARROW_TYPES["json"])
    odd = set(map(type, values)) - _FITTING[column.kind]
    if odd:
        raise TypeError(f"it is of type {', '.join(sorted(kind.__name__ for kind in odd))}")
    if column.kind == "time":
        values = [_time(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, ARROW_TYPES[column.kind])


def _first_misfit(column: Column, values: Sequence[Any], error: Exception) -> tuple[int, Exception]:
    for index, value in enumerate(values):
        try:
            _convert(column, [value])
        except _CONVERSION_ERRORS as cause:
            return index, cause
    return 0, error


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _time(text: str) -> datetime.datetime:
    # MessagePack has no time without a zone: it is encoded as text, and read as UTC.
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return msgspec.json.encode(_with_pairs(value), enc_hook=repr).decode()


def _with_pairs(value: Any) -> Any:
    """JSON has only text as keys: a dict with other keys becomes a list of [key, value]."""
    match value:
        case dict():
            return [[_with_pairs(k), _with_pairs(v)] for k, v in value.items()]
        case list() | tuple():
            return [_with_pairs(item) for item in value]
        case _:
            return value
