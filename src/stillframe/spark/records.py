"""Reads data files on executors: nothing but Arrow is needed here."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq


def record_batches(files: list[str], schema_message: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the records of Parquet files, one file after the other.

    Args:
        files: their paths.
        schema_message: the Arrow schema of the records, as an IPC message.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    for path in files:
        with pq.ParquetFile(
            path, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as file:
            for batch in file.iter_batches(batch_size=1 << 16):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield from table.to_batches()
