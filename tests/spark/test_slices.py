"""What a task reads of data files, without a JVM."""

from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.durable_files import checksum_of
from stillframe.errors import Damaged
from stillframe.pipeline.log import write_records
from stillframe.spark.slices import record_batches

SCHEMA = pa.schema([("n", pa.int64())])


def test_a_changed_file_gives_no_record(tmp_path: Path) -> None:
    """Files before it are read, and then the error names the one that was changed."""
    places = []
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        write_records(path, pa.table({"n": [number]}, schema=SCHEMA))
        places.append((str(path), checksum_of(path)))
    assert [b["n"].to_pylist() for b in record_batches(places, SCHEMA)] == [[0], [1]]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    batches = record_batches(places, SCHEMA)
    assert next(batches)["n"].to_pylist() == [0]
    with pytest.raises(Damaged, match=r"1\.parquet was changed since it was written"):
        next(batches)
