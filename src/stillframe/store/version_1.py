"""The names of version 1 of the formats, which Stillframe 0.1.0 wrote.

This is the one place that knows these names: readers translate as they read.
``docs/store-format.md`` and ``docs/pipeline-format.md`` have the reasons.

Executors of a cluster import this module: it needs no more than Python.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_KEYS = {"bases": "parent", "segments": "stretches", "fragments": "parts"}
"""Key in a sealed file -> its name in version 1."""

HISTORY_KEY = b"happening"
"""The first key of a line of a history; now it is `event`."""

PENDING = "under-way"
"""The directory of the pending snapshot of a pipeline; now it is `pending`."""


def with_current_keys(document: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the content of a sealed file of version 1 with the keys of today; `fields` are those
    that such a file has now."""
    renamed = {_KEYS[field]: field for field in fields if field in _KEYS}
    return {renamed.get(key, key): value for key, value in document.items()}


def with_current_words(event: bytes) -> bytes:
    """Return an event in a history, as JSON, with the keys of today. No text in it looks like one
    of these keys, because its quotes are escaped."""
    return event.replace(b',"under_way":[', b',"pending":[').replace(b'],"tally":', b'],"counts":')


def parquet_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the names of version 1 by today's, for the columns of the store in a file with these
    columns. The result is empty if the file is of a newer version, or has no columns of fields."""
    match columns[:4]:
        case ["snapshot", "process", "kind", *_]:
            own = "snapshot process kind encoded"
        case ["snapshot", "source", "target", "number"]:
            own = "snapshot source target number kind"
        case ["snapshot", "process", "is_removed" | "key", *_]:
            own = "snapshot process is_removed key key_encoded value_encoded"
        case _:
            return {}
    return {f"_{name}": name for name in own.split() if name in columns}
