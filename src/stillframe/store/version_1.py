"""The names of version 1 of the formats, which Stillframe 0.1.0 wrote.

This is the one place that knows these names: readers translate as they read.
``docs/store-format.md`` and ``docs/pipeline-format.md`` have the reasons.

Executors of a cluster import this module: it needs no more than Python.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_KEYS = {"bases": "parent", "segments": "stretches", "fragments": "parts"}
"""Key in a sealed file -> its name in version 1."""

_OWN = {
    ("snapshot", "process", "kind"): ("snapshot", "process", "kind", "encoded"),
    ("snapshot", "source", "target", "number"): ("snapshot", "source", "target", "number", "kind"),
}
_OWN_OF_KEYED = ("snapshot", "process", "is_removed", "key", "key_encoded", "value_encoded")
"""The columns of the store in a table, which had no prefix: by those that it begins with."""

HISTORY_KEY = b"happening"
"""The first key of a line of a history; now it is `event`."""


def with_current_keys(document: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the content of a sealed file of version 1 with the keys of today; `fields` are those
    that such a file has now."""
    renamed = {_KEYS[field]: field for field in fields if field in _KEYS}
    return {renamed.get(key, key): value for key, value in document.items()}


def parquet_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the name today -> that of version 1, for the columns of the store in a file with these
    columns; none if it is of a newer version, or has no columns of fields."""
    if columns[:1] != ["snapshot"]:
        return {}
    own = next((own for first, own in _OWN.items() if tuple(columns[: len(first)]) == first), ())
    if not own and tuple(columns[:3]) in (_OWN_OF_KEYED[:3], (*_OWN_OF_KEYED[:2], "key")):
        own = _OWN_OF_KEYED
    return {f"_{name}": name for name in own if name in columns}


def table_columns(columns: Sequence[Any]) -> tuple[Any, ...]:
    """Return the columns of the table of a keyed field in ``tables.json``; the first is the key."""
    return (type(columns[0])("_key", columns[0].kind), *columns[1:])
