"""An event log in an object store is verified as the same one in a directory."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stillframe.analytics.log_events import event_rows, vector_clock
from stillframe.analytics.log_verification import log_pieces, verify
from stillframe.errors import Damaged
from stillframe.eventlog.reader import list_segments
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from tests.eventlog.test_remote import copied
from tests.eventlogs import Execution, as_stream, write

pytestmark = pytest.mark.spark

SEED = 864


def test_verdicts_rows_and_clocks_are_the_same(
    spark: SparkSession, tmp_path: Path, spark_bucket: ObjectPath
) -> None:
    """Tasks read the object store themselves. A changed byte is found there, and named."""
    chance = random.Random(SEED)
    for epoch in (1, 2):
        write(Execution(chance).log(), tmp_path, epoch, chance)
    as_stream(min(tmp_path.rglob("*.parquet")))
    remote = copied(tmp_path, spark_bucket / "runs" / "log")
    here, there = log_pieces(spark, tmp_path), log_pieces(spark, str(remote))
    assert sorted(verify(there).collect(), key=str) == sorted(verify(here).collect(), key=str)
    assert sorted(event_rows(there).collect()) == sorted(event_rows(here).collect())
    process = list_segments(tmp_path, 2)[0].header.process
    assert vector_clock(there, 2, process, 2) == vector_clock(here, 2, process, 2)
    part = next(part for part in list_segments(remote) if part.path.suffix == ".parquet")
    content, _ = storage_of(remote).read(part.path, bytes_max=2**20)
    half = len(content) // 2
    storage_of(remote).put(part.path, content[:8] + bytes(half - 8) + content[half:])
    with pytest.raises(Damaged, match=rf"^{part.path} is not an intact file of an event log"):
        verify(there)
