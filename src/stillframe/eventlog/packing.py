"""Writes a complete segment as Parquet: it is a quarter of the size of its stream then, or less."""

from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.eventlog.segments import (
    DICTIONARIES,
    ROW_GROUP_COUNT,
    as_written,
    row_groups,
    whole_batches,
    whole_stream,
)
from stillframe.storage.location import Location

_COUNTING_UP = {"event": "DELTA_BINARY_PACKED", "number": "DELTA_BINARY_PACKED"}
_WITH_STATISTICS = ["event", "number", "at"]
"""The other columns are not sorted, and finding their extremes takes longer than writing them."""
_WRITE_BATCH_COUNT = 2**16


def write_packed(source: pa.NativeFile, path: Location, file: IO[bytes]) -> None:
    """Write the whole batches of the stream `source` into `file`, as Parquet. `path` is where the
    stream is from: a Damaged names it if it is not what was written."""
    with as_written(path):
        stream = whole_stream(source)
        if stream is None:
            raise ValueError("its schema is incomplete")
    with pq.ParquetWriter(
        file,
        stream.schema,
        compression="zstd",
        use_dictionary=DICTIONARIES,
        write_page_checksum=True,
        column_encoding=_COUNTING_UP,
        store_schema=False,
        write_statistics=_WITH_STATISTICS,
        write_batch_size=_WRITE_BATCH_COUNT,
    ) as writer:
        writer.add_key_value_metadata(stream.schema.metadata)
        for table in row_groups(whole_batches(stream, path)):
            writer.write_table(table, row_group_size=ROW_GROUP_COUNT)
