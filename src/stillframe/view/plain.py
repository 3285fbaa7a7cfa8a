"""Values as JSON and people can have them."""

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from stillframe.model import Channel, SnapshotId


def plain(value: Any) -> Any:
    """Return what JSON can hold: ids and channels as people write them, Structs as objects."""
    match value:
        case SnapshotId() | Channel() | Path():
            return str(value)
        case Enum():
            return value.name
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            named = {"event": tag} if tag is not None else {}
            return named | plain(msgspec.structs.asdict(value))
        case dict():
            return {_key(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def printable(text: str, *, kept: str = "") -> str:
    """Return `text` with escapes for what cannot be printed or changes the direction of writing,
    but for the characters `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(plain(key))
