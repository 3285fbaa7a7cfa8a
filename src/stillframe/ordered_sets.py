"""Record sets in one order, so that equal sets have equal bytes.

Python iterates over a set in an order that depends on its history and, for texts, on the start of
Python. Everything that is recorded is compared as bytes: in a ``diff``, a replay, an exploration.
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
from msgspec import inspect

_encode = msgspec.msgpack.Encoder().encode
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_SORTED_DIRECTLY = ({str}, {int}, {bytes})


def may_hold_set(kind: Any) -> bool:
    """Return whether a value of this type can be or contain a set, according to its annotations:
    one of ``Any``, or of a ``list`` of unknown items, can."""
    sets = inspect.SetType | inspect.FrozenSetType | inspect.AnyType
    return any(isinstance(one, sets) for one in types_in(inspect.type_info(kind)))


def types_in(info: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and all types in it, each once: one may refer to itself."""
    seen: set[int] = set()
    pending: list[Any] = [info]
    while pending:
        found = pending.pop()
        if isinstance(found, tuple):
            pending += found
        elif isinstance(found, inspect.Type | inspect.Field) and id(found) not in seen:
            seen.add(id(found))
            if isinstance(found, inspect.Type):
                yield found
            pending += (
                getattr(found, name)
                for name in found.__struct_fields__
                if name not in ("default", "default_factory")
            )


def with_ordered_sets(value: Any) -> Any:
    """Return what is encoded as `value` is, with the items of every set in it in one order; `value`
    itself stays as it is. What cannot be encoded can raise the errors of msgspec."""
    return _ordered_in(value) if _holds_set(value) else value


def _holds_set(value: Any) -> bool:
    """Return whether there is a set in a value: with a few fast calls for all values that are
    reached in as many steps, because most hold none."""
    batch, seen = [value], set[int]()
    while batch:
        reached: list[Any] = []
        for kind in set(map(type, batch)) - _SCALARS:
            if issubclass(kind, set | frozenset):
                return True
            group = [one for one in batch if type(one) is kind and id(one) not in seen]
            seen.update(map(id, group))
            for parts in _parts(kind, group):
                part = list(parts)
                if not _SCALARS.issuperset(map(type, part)):
                    reached += part
        batch = reached
    return False


def _parts(kind: type, group: list[Any]) -> Iterator[Iterable[Any]]:
    if issubclass(kind, dict):
        yield chain.from_iterable(group)
        yield chain.from_iterable(map(dict.values, group))
    elif issubclass(kind, list | tuple):
        yield chain.from_iterable(group)
    else:
        for name in _field_names(kind):
            yield (getattr(one, name, None) for one in group)


def _ordered_in(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    match value:
        case set() | frozenset() if _SCALARS.issuperset(map(type, value)):
            return tuple(_ordered(value))
        case set() | frozenset():
            return tuple(_ordered(map(_ordered_in, value)))
        case dict():
            return {_ordered_in(k): _ordered_in(item) for k, item in value.items()}
        case tuple():  # also a key of a dict
            return tuple(map(_ordered_in, value))
        case list():
            return list(map(_ordered_in, value))
    names = _field_names(type(value))
    parts = {name: getattr(value, name) for name in names if hasattr(value, name)}
    ordered = {name: _ordered_in(part) for name, part in parts.items()}
    if all(ordered[name] is part for name, part in parts.items()):
        return value
    made = copy.copy(value)
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, part in ordered.items():
        put(made, name, part)
    return made


def _ordered(items: Iterable[Any]) -> list[Any]:
    listed = list(items)
    # Others may have no order: 1 and "1", NaN, or members of an Enum.
    is_direct = set(map(type, listed)) in _SORTED_DIRECTLY
    return sorted(listed, key=None if is_direct else _encode)


def _field_names(kind: type) -> Iterable[str]:
    """Return the fields that msgspec encodes of a class of the user's."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]
