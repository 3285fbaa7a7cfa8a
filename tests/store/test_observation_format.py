"""A reader that knows nothing but ``docs/observation-format.md`` reads what Stillframe reads."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import StoreError
from stillframe.protocol.calls import CallLedger, Observation
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.layout import LEDGER, OBSERVATIONS
from stillframe.store.observations import ObservationReader
from tests.msgpack_reader import unpack
from tests.store.observation_format_reader import NotReadable, Reader, is_exact, outside_states
from tests.store.observation_samples import filled, observed

RUNS = [("deaths", 4), ("outside", 13), ("broken streams", 2), ("losses", 3), ("overflow", 1)]
RUNS += [("returns", 1)]


def plain(value: Any) -> Any:
    """Return a value as MessagePack has it, which the other reader reads."""
    return unpack(msgspec.msgpack.encode(value, order="deterministic"))


def parts_of(observation: Observation) -> dict[str, Any]:
    """Return the parts of an observation as the other reader names them."""
    return {
        "fragments": [observation.fragments[name] for name in sorted(observation.fragments)],
        "ends": [observation.ends[name] for name in sorted(observation.ends)],
        "calls": observation.calls,
        "late": observation.late,
        "duplicate": observation.duplicates,
        "orphan": observation.orphans,
    }


@pytest.mark.parametrize(("kind", "seed"), RUNS)
def test_the_other_reader_reads_the_same(kind: str, seed: int, tmp_path: Path) -> None:
    """Every part of every observation, and the same sums."""
    filled(tmp_path, kind, seed).close()
    reader, ours = Reader(tmp_path), ObservationReader(tmp_path)
    assert reader.numbers() == ours.numbers()
    for number in reader.numbers():
        found, stored = reader.read(number), ours.load(number)
        assert {name: found[name] for name in parts_of(stored.observation)} == plain(
            parts_of(stored.observation)
        )
        assert found["manifest"] == plain(stored.manifest)
        sums, expected = outside_states(found), stored.observation.outside_states()
        assert {unit: sums.get(unit, 0) for unit in expected} == expected
        assert is_exact(found) == stored.observation.is_exact


def test_the_other_reader_reads_those_of_an_object_store(tmp_path: Path) -> None:
    """It passes over what was not published, and refuses a copy as a directory."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
    filled(place, *RUNS[0]).close()
    storage_of(place).put(place / OBSERVATIONS / "99" / "calls.parquet", b"unfinished")
    for one in storage_of(place).files_below(place):
        assert isinstance(one.location, ObjectPath)
        path = tmp_path / one.location.relative_to(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage_of(place).read(one.location, bytes_max=10**7)[0])
    reader, ours = Reader(tmp_path, is_of_bucket=True), ObservationReader(place)
    assert reader.numbers() == ours.numbers()
    assert reader.ledger()[0] == reader.numbers()[-1]
    for number in reader.numbers():
        assert reader.read(number)["manifest"] == plain(ours.manifest(number))
    with pytest.raises(NotReadable, match="has format 3"):
        Reader(tmp_path)
    with pytest.raises(StoreError, match=r"has format 3, and this version of Stillframe knows 2"):
        ObservationReader(tmp_path)


def test_the_other_reader_reads_the_states(tmp_path: Path) -> None:
    """A row for each field, with its number."""
    filled(tmp_path, *RUNS[0]).close()
    [number, *_] = Reader(tmp_path).numbers()
    found = Reader(tmp_path).read(number)
    states = {one["instance"]: unpack(one["state"]["encoded"]) for one in found["fragments"]}
    rows = {(row["instance"], row["field"]): row for row in found["states"]}
    for instance, fields in states.items():
        assert rows[instance, "balance"]["number"] == fields["balance"]
        assert rows[instance, "owner"]["value"] == '"Ada"'
        assert rows[instance, "note"]["value"] is None
        assert rows[instance, "is_open"]["number"] is None


def test_the_other_reader_reads_the_ledger(tmp_path: Path) -> None:
    """With the number of the newest observation when it changed."""
    with contextlib.closing(filled(tmp_path, *RUNS[0])) as writer:
        number, encoded = Reader(tmp_path).ledger()
        assert 0 < number <= writer.number
    assert msgspec.msgpack.decode(encoded, type=CallLedger) == observed(*RUNS[0])[1]


def read_all(path: Path) -> None:
    """Read the ledger and an observation."""
    Reader(path).ledger()
    Reader(path).read(1)


@pytest.mark.parametrize("name", [LEDGER, "observations.json", f"{OBSERVATIONS}/1/calls.parquet"])
def test_the_other_reader_finds_damage(name: str, tmp_path: Path) -> None:
    """By the hashes of the page."""
    filled(tmp_path, *RUNS[0]).close()
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NotReadable):
        read_all(tmp_path)
