"""Files of an event log with bytes changed, added or taken away: refused by name, or read."""

import random
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.eventlog.reader import list_segments
from tests.analytics.test_log_checks import found_in
from tests.eventlogs import Execution, as_stream, messages, write
from tests.nightly import by_night, seeds

CHANGE_COUNT = by_night(3000, check=60)
SEEDS = seeds("event logs", 1, night=2)


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


def last_batch(stream: bytes) -> bytes:
    """Return the last batch of a stream as it is in the file."""
    _, start, end = messages(stream)[-1]
    return stream[start:end]


def row_count(log: Path) -> int:
    """Return how many rows the files of an event log have."""
    return sum(part.row_count for part in list_segments(log))


@pytest.mark.nightly(part="hostile")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ending", ["parquet", "arrows"])
def test_no_change_of_bytes_does_harm(seed: int, ending: str, tmp_path: Path) -> None:
    """A reader reports an error that names the file, or reads it. It leaves rows of a stream out
    only if the last batch is not there any more."""
    chance = random.Random(seed)
    write(Execution(chance).log(), tmp_path, 1, chance)
    if ending == "arrows":
        for path in list(tmp_path.rglob("*.parquet")):
            as_stream(path)
    files = sorted(tmp_path.rglob(f"*.{ending}"))
    row_count_before = row_count(tmp_path)
    said = []
    for _ in range(CHANGE_COUNT):
        path = chance.choice(files)
        content = path.read_bytes()
        found = changed(content, chance)
        path.write_bytes(found)
        try:
            found_in(tmp_path)
        except Damaged as error:
            said.append((path.name, str(error)))
        else:
            if ending == "arrows" and last_batch(content) in found:
                assert row_count(tmp_path) == row_count_before
        path.write_bytes(content)
    assert len(said) > CHANGE_COUNT / 4
    assert [words for name, words in said if name not in words] == []
    assert len(found_in(tmp_path))
