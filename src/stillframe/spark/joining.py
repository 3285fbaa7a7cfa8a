"""Tasks that make the files of a snapshot of those of its fragments.

Executors of a cluster run it: it needs no more than Arrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from stillframe.errors import Damaged
from stillframe.store.checksum import read_hashed
from stillframe.store.disk import sync, write_new
from stillframe.store.parquet import as_written, read_parquet, to_parquet

JOIN_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),
        pa.field("path", pa.string()),  # of the file to write
        pa.field(
            "parts",  # of it, in the order of the processes
            pa.list_(
                pa.struct(
                    [
                        pa.field("path", pa.string()),
                        pa.field("byte_count", pa.int64()),
                        pa.field("hash", pa.string()),
                    ]
                )
            ),
        ),
        pa.field(
            "order", pa.list_(pa.string())
        ),  # by which columns the rows are; none: as they are
        pa.field("task", pa.int32()),
    ]
)
JOINED = "snapshot STRING, name STRING, byte_count BIGINT, hash STRING, damage STRING"
_JOINED = pa.schema(
    [
        pa.field("snapshot", pa.string()),
        pa.field("name", pa.string()),
        pa.field("byte_count", pa.int64()),
        pa.field("hash", pa.string()),
        pa.field("damage", pa.string()),  # what is wrong with a part; null: nothing
    ]
)


def join_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write each file of `batches` (`JOIN_SCHEMA`), and yield what it is.

    Every byte of its parts is verified. What a task that failed has written is written anew.

    Raises:
        StoreError: a part cannot be read.
        OSError: the disk is full or failed.
    """
    for batch in batches:
        for row in batch.to_pylist():
            path, damage, content = Path(row["path"]), None, b""
            try:
                content = _joined(row["parts"], row["order"])
            except Damaged as error:
                damage = str(error)
            else:
                path.unlink(missing_ok=True)
                write_new(path, content)
                sync(path)
            digest = sha256(content).hexdigest()
            values = (row["snapshot"], path.name, len(content), digest, damage)
            yield pa.RecordBatch.from_arrays([pa.array([v]) for v in values], schema=_JOINED)


def _joined(parts: Sequence[dict[str, object]], order: Sequence[str]) -> bytes:
    tables = []
    for part in parts:
        path, byte_count, digest = Path(str(part["path"])), part["byte_count"], str(part["hash"])
        assert isinstance(byte_count, int)
        content = read_hashed(path, byte_count, digest)
        with as_written(path):
            tables.append(read_parquet(content))
            if tables[0].schema != tables[-1].schema:
                raise ValueError("it has other columns than those of other processes")
    table = pa.concat_tables(tables)
    if order:
        table = table.sort_by([(name, "ascending") for name in order])
    return to_parquet(table)
