"""Files of an event log with bytes changed, added or taken away: refused by name, or read."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged
from stillframe.eventlog.parts import span_of, with_span
from stillframe.eventlog.schema import SCHEMA
from tests.eventlogs import Execution, write
from tests.nightly import by_night, seeds
from tests.spark.test_judging import found_in

CHANGE_COUNT = by_night(3000, check=60)
SEEDS = seeds("event logs", 1, night=2)


def as_stream(path: Path) -> None:
    """Write a file as the stream that it was before it was complete."""
    span = span_of(pq.read_metadata(path).metadata, path)
    table = pq.read_table(path).cast(SCHEMA)
    with (
        pa.OSFile(str(path.with_suffix(".arrows")), "wb") as file,
        pa.ipc.new_stream(file, with_span(span)) as stream,
    ):
        for batch in table.to_batches(max_chunksize=20):
            stream.write_batch(batch)
    path.unlink()


def changed(content: bytes, chance: random.Random) -> bytes:
    """Return bytes of which a few are other ones, are missing, or are too many."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[place] ^= 1 << chance.randrange(8)
            case 1:
                found[place] = chance.randrange(256)
            case 2:
                del found[place : place + chance.randint(1, 50)]
            case _:
                found[place:place] = chance.randbytes(chance.randint(1, 20))
        found = found or bytearray(b"x")
    return bytes(found)


@pytest.mark.nightly(part="hostile")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ending", ["parquet", "arrows"])
def test_no_change_of_bytes_does_harm(seed: int, ending: str, tmp_path: Path) -> None:
    """Whoever reads it goes on: with an error that names the file, or with what is there."""
    chance = random.Random(seed)
    write(Execution(chance).log(), tmp_path, 1, chance)
    if ending == "arrows":
        for path in list(tmp_path.rglob("*.parquet")):
            as_stream(path)
    files = sorted(tmp_path.rglob(f"*.{ending}"))
    said = []
    for _ in range(CHANGE_COUNT):
        path = chance.choice(files)
        content = path.read_bytes()
        path.write_bytes(changed(content, chance))
        try:
            found_in(tmp_path)
        except Damaged as error:
            said.append((path.name, str(error)))
        path.write_bytes(content)
    assert len(said) > CHANGE_COUNT / 4
    assert [words for name, words in said if name not in words] == []
    assert len(found_in(tmp_path))
