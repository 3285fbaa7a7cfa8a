"""A file in an object store is read in ranges, as a local one would be."""

import io
import random
import secrets

import pytest

from stillframe.errors import Damaged, StoreError
from stillframe.storage.location import ObjectPath
from stillframe.storage.object_store import ObjectStore
from stillframe.storage.opened import requests_to, storage_of
from stillframe.storage.range_file import RangeFile
from stillframe.storage.reading import is_there, read_file


@pytest.fixture
def place() -> ObjectPath:
    """A place in an empty object store."""
    return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "x")


@pytest.mark.parametrize("size", [0, 1, 2**16, 2**16 + 1, 3 * 2**16 + 5])
def test_it_is_read_as_any_file(place: ObjectPath, size: int) -> None:
    """At random places, forwards and backwards."""
    chance = random.Random(size)
    content = chance.randbytes(size)
    storage_of(place).put(place, content)
    ours, other = RangeFile(place), io.BytesIO(content)
    assert ours.size == size
    for _ in range(200):
        offset = chance.randrange(-size - 1, size + 2)
        whence = chance.choice((io.SEEK_SET, io.SEEK_END)) if offset < 0 else io.SEEK_SET
        if whence == io.SEEK_SET:
            offset = abs(offset)
        assert ours.seek(offset, whence) == other.seek(offset, whence)
        length = chance.choice((-1, 0, 1, chance.randrange(size + 2)))
        assert ours.read(length) == other.read(length)
        assert ours.tell() == other.tell()


def test_its_end_takes_one_request(place: ObjectPath) -> None:
    """And so does each range elsewhere."""
    storage_of(place).put(place, bytes(2**20))
    before = requests_to(place)
    file = RangeFile(place)
    file.seek(-100, io.SEEK_END)
    file.read()
    file.seek(-(2**16), io.SEEK_END)
    file.read()
    file.seek(5)
    file.read(2**19)
    after = requests_to(place)
    assert before is not None
    assert after is not None
    assert after.requests - before.requests == 2


def test_its_errors(place: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing storage is no damage, and an OSError would be one to a reader of Parquet."""
    with pytest.raises(FileNotFoundError):
        RangeFile(place)
    storage_of(place).put(place, bytes(2**20))
    file = RangeFile(place)

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(5, "the object store failed")

    for name in ("read", "read_range", "read_end", "exists"):
        monkeypatch.setattr(ObjectStore, name, fail)
    with pytest.raises(StoreError, match=rf"{place} cannot be read: the object store failed"):
        file.read(1)
    for use in (RangeFile, is_there, lambda path: read_file(path, bytes_max=9)):
        with pytest.raises(StoreError, match=": check that the object store is available") as error:
            use(place)
        assert not isinstance(error.value, Damaged)
    monkeypatch.undo()
    storage_of(place).delete([place])
    with pytest.raises(FileNotFoundError):
        file.read(1)
