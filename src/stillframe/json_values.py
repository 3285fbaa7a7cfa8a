"""Values as JSON that loses nothing: ``docs/json.md``, *Values*, describes the form.

Commands, pages, and the columns of tables that hold JSON all show values in this form, or as its
text. So two values that differ are shown differently, whatever a process has recorded.
"""

import datetime
import math
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from stillframe.model import Channel, SnapshotId
from stillframe.storage.location import ObjectPath

ESCAPE = "$"
"""The first character of a key that is no text, and of the only key of what JSON cannot say."""
FLOAT, BYTES, TIME, EXTENSION, PAIRS = (
    ESCAPE + name for name in ("float", "bytes", "time", "extension", "pairs")
)
_SCALARS = frozenset({type(None), bool, int, str})
_ORDINARY = _SCALARS | {float, dict, list, tuple}


def plain(value: Any) -> Any:
    """Return `value` in JSON types: ids and channels as text, Structs as objects."""
    # Without recursion: how deep a value may be must not depend on the stack of the caller.
    root = [value]
    pending: list[Any] = [root]  # containers whose items are still those of the value
    while pending:
        container = pending.pop()
        for place, item in enumerate(container) if type(container) is list else container.items():
            if type(item) in _SCALARS or (type(item) is float and math.isfinite(item)):
                continue
            container[place] = shown = _outer(item)
            items = shown.values() if type(shown) is dict else shown
            if isinstance(shown, dict | list) and not _SCALARS.issuperset(map(type, items)):
                pending.append(shown)
    return root[0]


def _outer(value: Any) -> Any:
    """Return `value` in a JSON type, but the items of a container as they are."""
    match value:
        case float():
            return value if math.isfinite(value) else {FLOAT: str(value)}
        case dict():
            if _has_plain_keys([value]):
                return dict(value)
            named = {_key(key): item for key, item in value.items()}
            # Several NaN can be keys of one dict.
            return named if len(named) == len(value) else {PAIRS: [*map(list, value.items())]}
        case list() | tuple():
            return list(value)
        case bytes():
            return {BYTES: msgspec.to_builtins(value)}
        case datetime.datetime():
            return {TIME: msgspec.to_builtins(value)}
        case SnapshotId() | Channel() | Path() | ObjectPath():
            return str(value)
        case Enum():
            return value.name
        case msgspec.msgpack.Ext():
            return {EXTENSION: [value.code, msgspec.to_builtins(bytes(value.data))]}
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            named = {"event": tag} if tag is not None else {}
            return named | _outer(msgspec.structs.asdict(value))
        case _:
            return value


def _key(key: Any) -> str:
    """Return a key as text. One that is no text is escaped, and so is a text that looks so."""
    if isinstance(key, str) and (key == ESCAPE or not key.startswith(ESCAPE)):
        return key
    shown = plain(key)
    is_name = isinstance(shown, str) and not isinstance(key, str)  # an id or a channel
    return shown if is_name else ESCAPE + plain_text(shown)


def json_text(value: Any) -> str:
    """Return a value as the text of JSON; an object of another library as Python writes it."""
    try:
        return plain_text(value if _is_ordinary(value) else plain(value))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return repr(value)


def json_texts(values: Sequence[Any]) -> list[str | None]:
    """Return the ``json_text`` of each value of a column, and None for None."""
    # The values of a column are looked at together: many that are short cost little then.
    text = plain_text if _is_ordinary(values) else json_text
    return [None if value is None else text(value) for value in values]


def _is_ordinary(value: Any) -> bool:
    """Return whether JSON says all of `value` as it is, so that it need not be made plain."""
    level = [value]
    while level:  # all values of one depth at once: most of this runs in C
        kinds = set(map(type, level))
        if kinds <= _SCALARS:
            return True
        if not kinds <= _ORDINARY:
            return False
        if float in kinds and not all(math.isfinite(v) for v in level if type(v) is float):
            return False
        following: list[Any] = []
        if dict in kinds:
            dicts = [v for v in level if type(v) is dict]
            if not _has_plain_keys(dicts):
                return False
            following += chain.from_iterable(map(dict.values, dicts))
        if not kinds.isdisjoint((list, tuple)):
            following += chain.from_iterable(v for v in level if type(v) in (list, tuple))
        level = following
    return True


def _has_plain_keys(dicts: list[dict[Any, Any]]) -> bool:
    """Return whether all keys are texts without an escape."""
    names = [*chain.from_iterable(dicts)]
    return {str}.issuperset(map(type, names)) and ESCAPE not in "".join(names)


def plain_text(shown: Any, *, is_sorted: bool = False) -> str:
    """Return what ``plain`` returned as the text of JSON, however deep it is; the keys of objects
    in their order, or sorted.

    Raises:
        TypeError: it holds an object of another library.
    """
    encode = msgspec.json.encode
    try:
        return encode(shown, order="sorted" if is_sorted else None).decode()
    except RecursionError:  # the stack of the caller counts too
        parts: list[bytes] = []
    pending = [shown]
    while pending:
        match pending.pop():
            case msgspec.Raw() as text:
                parts.append(bytes(text))
            case dict() as items if items:
                pending.append(msgspec.Raw(b"}"))
                for name, item in reversed(sorted(items.items()) if is_sorted else items.items()):
                    pending += [item, msgspec.Raw(b"," + encode(name) + b":")]
                pending[-1] = msgspec.Raw(b"{" + bytes(pending[-1])[1:])
            case list() | tuple() as items if items:
                pending.append(msgspec.Raw(b"]"))
                for item in reversed(items):
                    pending += [item, msgspec.Raw(b",")]
                pending[-1] = msgspec.Raw(b"[")
            case scalar:
                parts.append(encode(scalar))
    return b"".join(parts).decode()
