"""Reads data files on executors: nothing but Arrow is needed here."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.store.checksum import check_file


def record_batches(
    files: Iterable[tuple[str, int]], schema_message: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield the records of Parquet files, one file after the other.

    Args:
        files: their paths and checksums.
        schema_message: the Arrow schema of the records, as an IPC message.

    Raises:
        Damaged: a file is not what was written.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    for path, checksum in files:
        check_file(Path(path), checksum)
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=1 << 16):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield from table.to_batches()
