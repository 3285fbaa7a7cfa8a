"""A reader that knows nothing but ``docs/store-format.md`` reads what Stillframe reads."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stillframe.model import SnapshotId
from stillframe.store.store import Store
from stillframe.store.tables import fields_of, messages_of
from tests.golden import recording
from tests.store import any_names, keyed_samples, samples
from tests.store.format_reader import NotReadable, Reader


def of_store(path: Path) -> dict[str, Any]:
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


def of_reader(path: Path) -> dict[str, Any]:
    """Return the same as the reader of the document finds it."""
    reader = Reader(path)
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


@pytest.fixture(params=["names", "kinds", "chains", "0.1.0", "0.1.0, migrated"])
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
        case _:
            return recording.DATA / "migrated"
    made.close()
    return path


def test_the_document_suffices(store: Path) -> None:
    """States, messages and keyed fields with their chains of bases are the same."""
    assert of_reader(store) == of_store(store)


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


def test_the_reader_needs_nothing_of_stillframe() -> None:
    """Only Python and pyarrow are loaded with it."""
    code = (
        "import json, sys; import tests.store.format_reader; "
        "print(json.dumps([*{name.split('.')[0] for name in sys.modules}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"stillframe", "msgspec"} & {*json.loads(done.stdout)}
