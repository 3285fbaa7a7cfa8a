"""Values as JSON that loses nothing: ``docs/json.md``, *Values*, describes the form.

Commands, pages, and the columns of tables that hold JSON all show values in this form, or as its
text. So two values that differ are shown differently, whatever a process has recorded.
"""

import datetime
import math
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from stillframe.model import Channel, SnapshotId
from stillframe.storage.location import ObjectPath

ESCAPE = "$"
"""The first character of a key that is no text, and of the only key of what JSON cannot say."""
FLOAT, BYTES, TIME, EXTENSION = (ESCAPE + name for name in ("float", "bytes", "time", "extension"))
_SCALARS = frozenset({type(None), bool, int, str})


def plain(value: Any) -> Any:
    """Return `value` in JSON types: ids and channels as text, Structs as objects."""
    if type(value) in _SCALARS:
        return value
    match value:
        case float():
            return value if math.isfinite(value) else {FLOAT: str(value)}
        case dict():
            return {_key(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            is_flat = _SCALARS.issuperset(map(type, value))  # of a long list this is most often so
            return list(value) if is_flat else [plain(item) for item in value]
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
            return named | plain(msgspec.structs.asdict(value))
        case _:
            return value


def _key(key: Any) -> str:
    """Return a key as text. One that is no text is escaped, and so is a text that looks so."""
    if isinstance(key, str) and (key == ESCAPE or not key.startswith(ESCAPE)):
        return key
    shown = plain(key)
    is_name = isinstance(shown, str) and not isinstance(key, str)  # an id or a channel
    return shown if is_name else ESCAPE + _encode(shown)


def json_text(value: Any) -> str:
    """Return a value as the text of JSON; an object of another library as Python writes it."""
    try:
        return _encode(plain(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def _encode(shown: Any) -> str:
    return msgspec.json.encode(shown).decode()
