"""What a query leaves on the disk, without Spark."""

import json
from pathlib import Path

import pyarrow as pa

from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import DataFile, LogWriter, write_records
from stillframe.pipeline.metadata import checkpoint_path, read_metadata

SCHEMA = pa.schema([("n", pa.int64())])


def log_writer(pipeline: Pipeline, log: str) -> LogWriter:
    """Return the writer of a log."""
    return LogWriter(pipeline.path, pipeline.dataflow.log(log), read_metadata(pipeline.path))


def write(writer: LogWriter, batch: int) -> None:
    """Append the record of a micro-batch."""
    writer.tail()
    name = f"{batch}.parquet"
    records = pa.table({"n": [batch]}, schema=SCHEMA)
    checksum = write_records(writer.data_directory / name, records)
    writer.append_files([DataFile(name, 0, 1, checksum)], batch=batch)


def commit(path: Path, query: str, batch: int, positions: dict[str, int]) -> None:
    """Leave what Spark leaves of a micro-batch in the first epoch."""
    checkpoint = checkpoint_path(path, 1, query)
    offsets = json.dumps({"stillframe": positions})
    for name, text in {
        "metadata": '{"id":"5f2c0c5e-6a6d-4a55-8f3a-6c8c7d6a1f10"}',
        f"offsets/{batch}": f'v1\n{{"batchTimestampMs":1}}\n{offsets}',
        f"commits/{batch}": "v1\n{}",
    }.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text, encoding="utf-8")
