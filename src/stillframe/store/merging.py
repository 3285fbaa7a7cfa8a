"""Rows of a keyed field that say what changed, put together to those that there are in the end.

Executors of a cluster use it: it needs no more than Arrow.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

KEY, KEY_ENCODED = "key", "key_encoded"


def identity_of(columns: Sequence[str]) -> str:
    """Return which of the columns of a keyed field tells its keys apart."""
    return KEY_ENCODED if KEY_ENCODED in columns else KEY


def merged(links: Sequence[pa.Table]) -> pa.Table:
    """Return the keys of one process that the last of the `links`, the oldest first, has.

    All have the columns of the table of that field, and the oldest has each key once.
    """
    oldest, *rest = links
    identity = identity_of(oldest.column_names)
    newer = _last_rows(pa.concat_tables([oldest.slice(0, 0), *rest]), identity)
    is_stale = pc.is_in(oldest.column(identity), value_set=newer.column(identity))
    table = pa.concat_tables([oldest.filter(pc.invert(is_stale)), newer])
    return table.filter(pc.invert(table.column("is_removed")))


def _last_rows(table: pa.Table, identity: str) -> pa.Table:
    """Return the last row of each key: it is all that there is to say of it."""
    keys = table.select([identity]).append_column(
        "row", pa.array(range(table.num_rows), pa.int64())
    )
    last = keys.group_by(identity).aggregate([("row", "max")]).column("row_max")
    return table.take(last.sort())
