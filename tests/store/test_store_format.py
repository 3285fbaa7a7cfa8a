"""A reader that knows nothing but ``docs/store-format.md`` reads what Stillframe reads."""

import contextlib
import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import NotConsistent, StoreError
from stillframe.model import SnapshotId
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.fragments import find_fragments, read_fragment, read_topologies
from stillframe.store.history import SnapshotBegan, readable_history
from stillframe.store.store import Store
from stillframe.store.tables import fields_of, messages_of
from tests.golden import recording
from tests.store import any_names, keyed_samples, samples
from tests.store.format_reader import Fragments, NotReadable, Reader, read_history


def of_store(path: Location) -> dict[str, Any]:
    """Return what the tables of each snapshot say: of processes, channels and keyed fields."""
    store = Store.open(path)
    found = {}
    for entry in store.entries():
        state = store.load(entry.id).state
        tables = store.tables(entry.id)
        description = store.description_of(entry.id)
        processes = {
            row["_process"]: {
                column.name: row[column.name]
                for column in description.states[row["_kind"]]
                if column.kind != "keyed"
            }
            for row in tables["processes"].to_pylist()
        }
        for kind, fields in description.keyed.items():
            for field, columns in fields.items():
                for process, of in description.processes.items():
                    if of == kind:
                        processes[process][field] = {}
                for row in tables[f"{kind}_{field}"].to_pylist():
                    values = {column.name: row[column.name] for column in columns.values}
                    value = values["value"] if columns.layout == "value" else values
                    processes[row["_process"]][field][row["_key"]] = value
        assert {s.process: {*fields_of(s)} for s in state.processes} == {
            process: {*fields} for process, fields in processes.items()
        }
        channels = {
            (one.channel.source, one.channel.target): [
                (message.number, message.kind, {*message.fields})
                for message in messages_of(one, description)
            ]
            for one in state.channels
        }
        found[str(entry.id)] = processes, channels
    return found


def of_reader(path: Path, *, is_of_bucket: bool = False) -> dict[str, Any]:
    """Return the same as the reader of the document finds it."""
    reader = Reader(path, is_of_bucket=is_of_bucket)
    found = {}
    for snapshot in reader.snapshots():
        processes, channels = reader.read(snapshot)
        found[snapshot] = (
            processes,
            {
                channel: [(one["number"], one["kind"], {*one["fields"]}) for one in messages]
                for channel, messages in channels.items()
            },
        )
    return found


@pytest.fixture(params=["names", "kinds", "chains", "0.1.0", "0.1.0, migrated", "0.2.0"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Stores with all kinds of columns, chains of changes, and those of an earlier release."""
    path = tmp_path / "store"
    match request.param:
        case "names":
            return any_names.make_store(path)
        case "kinds":
            made = Store.create(path, description=samples.DESCRIPTION)
            made.raise_epoch(None)
            samples.publish(made, 1, 2)
        case "chains":
            made = Store.create(path, description=keyed_samples.DESCRIPTION)
            made.raise_epoch(None)
            first = keyed_samples.nothing() | {"accounts": {"a": 1, "b": 2}}
            then = first | {"accounts": {"b": 2, "c": 3}}
            last = then | {"accounts": {"c": 4, "a": 5}}
            for number, (before, now) in enumerate([(None, first), (first, then), (then, last)], 1):
                base = None if before is None else SnapshotId("P", number - 1)
                banks = (
                    keyed_samples.whole(bank, now)
                    if before is None
                    else keyed_samples.part(bank, before, now, base)
                    for bank in keyed_samples.BANKS
                )
                made.publish(keyed_samples.snapshot_of(number, banks))
        case "0.1.0":
            return recording.DATA / "store"
        case "0.2.0":
            return recording.DATA_2 / "store"
        case _:
            return recording.DATA / "migrated"
    made.close()
    return path


def test_the_document_suffices(store: Path) -> None:
    """States, messages and keyed fields with their chains of bases are the same."""
    assert of_reader(store) == of_store(store)


def test_a_store_in_an_object_store_is_read_from_the_document_alone(tmp_path: Path) -> None:
    """Published snapshots, and none that is unfinished, removed or has a tombstone."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
    storage = storage_of(place)
    with contextlib.closing(Store.create(place, description=samples.DESCRIPTION)) as made:
        made.raise_epoch(None)
        samples.publish(made, 1, 2, 3)
        made.drop("A-2")
        made.history.append(SnapshotBegan(SnapshotId("A", 4)))
    with contextlib.closing(Store.open_writer(place)) as made:
        samples.publish(made, 5)
    storage.put(place / "snapshots" / "A-6" / "processes.parquet", b"unfinished")
    for one in storage.files_below(place):
        assert isinstance(one.location, ObjectPath)
        path = tmp_path / one.location.relative_to(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(one.location, bytes_max=10**7)[0])
    assert (tmp_path / "snapshots" / "A-4" / "manifest.json").stat().st_size < 256
    found = of_reader(tmp_path, is_of_bucket=True)
    assert list(found) == ["A-1", "A-3", "A-5"]
    assert found == of_store(place)
    events, damaged_count = read_history(tmp_path)
    assert damaged_count == 0
    assert "WriterChanged" in {event["what"]["type"] for event in events}


def test_what_was_recorded_is_decoded_from_the_document_alone(store: Path) -> None:
    """A restore reads the same values of all fields, keys and messages, of the same types."""
    own, reader = Store.open(store), Reader(store)
    for entry in own.entries():
        state, description = own.load(entry.id).state, own.description_of(entry.id)
        processes, channels = reader.recorded(str(entry.id))
        assert sorted_text(processes) == sorted_text(
            {s.process: fields_of(s) for s in state.processes}
        )
        assert repr(channels) == repr(
            {
                (one.channel.source, one.channel.target): [
                    (message.number, message.kind, message.fields)
                    for message in messages_of(one, description)
                ]
                for one in state.channels
            }
        )


def sorted_text(processes: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return each field, with its types; the keys of mappings in the order of their text."""
    return sorted(
        (process, name, repr(sorted(value.items(), key=repr) if isinstance(value, dict) else value))
        for process, fields in processes.items()
        for name, value in fields.items()
    )


@pytest.mark.parametrize("name", ["data/store", "data/migrated", "data-2/store"])
def test_the_history_is_read_from_the_document_alone(name: str, tmp_path: Path) -> None:
    """The same events of each line, and a changed line is damage to that line alone."""
    own = shutil.copytree(recording.HERE / name, tmp_path / "own")
    path = own / "history.ndjson"
    lines = path.read_bytes().split(b"\n")
    for number in range(-1, len(lines) - 1):
        changed = [
            line.replace(b'"at":1', b'"at":2') if n == number else line
            for n, line in enumerate(lines)
        ]
        path.write_bytes(b"\n".join([*changed[:-1], b'{"event":{"at":']))
        events, damaged_count = read_history(own)
        records, damages = readable_history(own)
        assert events == plain(records)
        assert damaged_count == len(damages) == (number >= 0)
    assert len(events) == len(lines) - 2 > 0


def plain(value: Any) -> Any:
    """Return what a value of Stillframe is in JSON."""
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("data", [recording.DATA, recording.DATA_2], ids=["0.1.0", "0.2.0"])
def test_fragments_are_read_from_the_document_alone(data: Path) -> None:
    """Their manifests, and what each has of its process and incoming channels is what the store
    has of them."""
    directory, reader = data / "fragments", Fragments(data / "fragments")
    topologies = read_topologies(directory)
    places = find_fragments(directory)
    assert reader.places() == sorted((one.epoch, one.process, str(one.snapshot)) for one in places)
    store = Reader(data / "store")
    published = {*store.snapshots()}
    compared = 0
    for place in places:
        named = place.epoch, place.process, str(place.snapshot)
        known = plain(read_fragment(directory, place, topologies))
        assert reader.manifest(named) | {"format": 0} == known | {"format": 0}
        fields, channels, keyed = reader.read(named)
        if named[2] not in published:
            continue
        processes, on_channels = store.recorded(named[2])
        assert processes[place.process] == processes[place.process] | fields
        for channel, (_, _, messages) in channels.items():
            assert on_channels[channel] == messages
        for field, rows in keyed.items():
            for key, value in rows:
                assert key == "removed" or processes[place.process][field][key] == value
        compared += 1
    assert compared > 2


def test_the_document_says_how_to_find_damage(tmp_path: Path) -> None:
    """Every changed byte of every file of a snapshot is found."""
    path = any_names.make_store(tmp_path / "store")
    for file in sorted((path / "snapshots").rglob("*.*")):
        content = file.read_bytes()
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises(NotReadable, match=f"{file} changed"):
            of_reader(path)
        file.write_bytes(content)
    assert [*of_reader(path)] == ["A-1", "A-2"]


def seal(path: Path, content: dict[str, Any]) -> None:
    """Write a sealed file."""
    encoded = json.dumps(content, separators=(",", ":")).encode()
    digest = hashlib.sha256(encoded).hexdigest().encode()
    path.write_bytes(b'{"content":%b,"hash":"%b"}' % (encoded, digest))


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("processes", "number", 8),
        ("processes", "source", None),
        ("messages", "snapshot", "of yours"),
        ("messages", "encoded", b"\x06"),
        ("Named_parts.whole", "key_encoded", 8),
    ],
)
def test_columns_that_contradict_what_was_recorded_are_found(
    file: str, column: str, value: Any, tmp_path: Path
) -> None:
    """By the reader, and by Stillframe's verification, though all hashes are right."""
    path = any_names.make_store(tmp_path / "store")
    directory = path / "snapshots" / "A-1"
    manifest = json.loads((directory / "manifest.json").read_bytes())["content"]
    name = f"{file}.parquet"
    table = pq.read_table(directory / name, partitioning=None)
    place = table.schema.get_field_index(column)
    values = pa.array(
        [value, *table.column(column).to_pylist()[1:]], table.schema.field(place).type
    )
    pq.write_table(table.set_column(place, table.schema.field(place), values), directory / name)
    content = (directory / name).read_bytes()
    (record,) = (one for one in manifest["files"] if one["name"] == name)
    record.update(bytes=len(content), hash=hashlib.sha256(content).hexdigest())
    seal(directory / "manifest.json", manifest)
    with pytest.raises(NotReadable, match="was recorded"):
        [Reader(path).read("A-1"), Reader(path).recorded("A-1")]
    with pytest.raises(NotConsistent):
        Store.open(path).verify(SnapshotId("A", 1))


@pytest.mark.parametrize("version", [1, 2])
def test_the_reader_refuses_what_the_document_forbids(version: int, tmp_path: Path) -> None:
    """A newer version with the sentence for it, and members that are not listed, or that miss."""
    store = shutil.copytree(
        (recording.DATA, recording.DATA_2)[version - 1] / "store", tmp_path / "s"
    )
    path = store / "store.json"
    content = json.loads(path.read_bytes())["content"]
    for change, words in (
        ({"format": 3, "x": 1}, "has format 3, and this version of Stillframe knows 2"),
        ({"x": 1}, "unknown member"),
    ):
        seal(path, content | change)
        with pytest.raises(NotReadable, match=words):
            Reader(store)
        with pytest.raises(StoreError):
            Store.open(store)
    content.pop("savepoints")
    seal(path, content)
    if version == 1:
        assert Reader(store).savepoints == {} == Store.open(store).savepoints
    else:
        with pytest.raises(NotReadable, match="misses"):
            Reader(store)
