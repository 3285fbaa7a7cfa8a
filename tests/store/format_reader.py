"""A reader of stores, fragments and compacted tables, written from ``docs/store-format.md`` alone.

It imports nothing of Stillframe: Python, and pyarrow for Parquet.
"""

import datetime
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.msgpack_reader import NotMessagePack, hashable, unpack

VERSION = 2
VERSION_IN_BUCKETS = 3
TOMBSTONE_BYTES_MAX = 256
SEALED = re.compile(rb'\{"content":(\{.*\}),"hash":"([0-9a-f]{64})"\}', re.DOTALL)
SEALED_BYTES_MAX = 64 * 2**20
STORE = "format reference description epoch restored_from former savepoints"
MANIFEST = (
    "format snapshot sequence epoch initiated_at completed_at published_at pause_s capture_s "
    "excluded is_restore_point bases process_count channel_count message_count topology files"
)
FRAGMENT = (
    "format snapshot process epoch run began_from topology moment_s recorded_at completed_at "
    "pause_s capture_s base sent received files"
)
TABLES = "format version snapshots columns parts index"
COLUMNS = {
    "processes": ["_snapshot", "_process", "_kind", "_encoded"],
    "channels": "snapshot source target sent_count received_count message_count encoded".split(),
    "messages": ["_snapshot", "_source", "_target", "_number", "_kind"],
    "snapshots": (
        "snapshot sequence epoch initiator initiated_at completed_at published_at pause_s "
        "capture_s waiting_s publishing_s total_s bytes process_count channel_count message_count "
        "chain_length bases savepoints is_restore_point topology"
    ).split(),
}
"""The columns of the store in compacted tables; those of keyed fields have the first two."""
NAMES_OF_VERSION_1 = {
    "parent": "bases",
    "under_way": "pending",
    "tally": "counts",
}
LINE = re.compile(rb'(\{"(?:event|happening)":(\{.*\})),"crc32":"([0-9a-f]{8})"\}')
EVENTS = {
    "EpochBegan": "epoch restored_from",
    "TakenOver": "epoch",
    "ProcessDied": "process cause",
    "SnapshotBegan": "snapshot",
    "SnapshotPublished": "snapshot is_removal_noted",
    "SnapshotRemoved": "snapshot",
    "SnapshotAbandoned": "snapshot reason missing detail",
    "WriterChanged": "token",
    "Continued": "last_number pending counts",
}
EXACT = {"bool": bool, "int": int, "float": float, "text": str, "bytes": bytes}
MAPS = ("processes", "states", "messages", "accepts", "shapes", "keyed")
Row = dict[str, Any]
Channel = tuple[str, str]


class NotReadable(Exception):
    """A file is not what the document says."""


def require(holds: object, what: str) -> None:
    """Raise NotReadable unless something holds."""
    if not holds:
        raise NotReadable(what)


def unseal(
    path: Path,
    members: str,
    renamed: Mapping[str, str] = NAMES_OF_VERSION_1,
    *,
    newest: int = VERSION,
    absent: Mapping[str, Any] | None = None,
) -> Row:
    """Return the content of a sealed file, with the names of today and all its members. Those that
    may be `absent` have these values then."""
    content = path.read_bytes()
    require(len(content) <= SEALED_BYTES_MAX, f"{path} is too long")
    found = SEALED.fullmatch(content)
    require(found and hashlib.sha256(found[1]).hexdigest().encode() == found[2], f"{path} changed")
    assert found
    document: Row = json.loads(found[1])
    version, names = document["format"], members.split()
    require(type(version) is int and version >= 1, f"{path} has no format")
    require(
        version <= newest,
        f"{path} has format {version}, and this version of Stillframe knows {newest}: "
        "use the version that wrote it, or a newer one",
    )
    if version == 1:
        document = {renamed.get(key, key): value for key, value in document.items()}
    else:
        require(document.keys() >= {*names}, f"{path} misses members")
    others = absent or {}
    require(document.keys() <= {*names, *others}, f"{path} has an unknown member")
    return {**dict.fromkeys(names), **others, **document}


def decoded(content: bytes) -> Any:
    """Return the value that is MessagePack."""
    try:
        return unpack(content)
    except NotMessagePack as error:
        raise NotReadable(f"it is no MessagePack: {error}") from error


def compare(kind: str, column: Any, recorded: Any, where: str) -> None:
    """Raise NotReadable unless a column of a kind repeats what was recorded."""
    if recorded is None or column is None:
        same = recorded is column
    elif kind == "time":
        if isinstance(recorded, str):
            recorded = datetime.datetime.fromisoformat(recorded).replace(tzinfo=datetime.UTC)
        same = column == recorded
    elif kind == "json":
        json.loads(column)
        same = True  # it is for display
    else:
        value = float(recorded) if kind == "float" else recorded
        same = type(value) is type(column) is EXACT[kind] and repr(value) == repr(column)
    require(same, f"{where} is {column!r}, and {recorded!r} was recorded")


def kinds_of(classes: Mapping[str, list[Row]]) -> dict[str, str]:
    """Return the columns of fields of several classes, in their order, with their kinds."""
    kinds: dict[str, set[str]] = {}
    for column in (one for columns in classes.values() for one in columns):
        if column["kind"] != "keyed":
            kinds.setdefault(column["name"], set()).add(column["kind"])
    return {name: _met(of_name) for name, of_name in kinds.items()}


def _met(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "float" if kinds == {"int", "float"} else "json"


def read_history(store: Path) -> tuple[list[Row], int]:
    """Return the events in the history, with the names of today, and how many lines changed."""
    events, damaged_count = [], 0
    for path in (store / "history.1.ndjson", store / "history.ndjson"):
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
            found = LINE.fullmatch(line)
            if found is None or b"%08x" % zlib.crc32(found[2]) != found[3]:
                damaged_count += 1
                continue
            event = json.loads(found[2])
            names = NAMES_OF_VERSION_1 if b'"happening"' in found[1][:12] else {}
            what = {names.get(key, key): value for key, value in event["what"].items()}
            known = EVENTS.get(what["type"])
            if (
                known is None
                or what.keys() != {"type", *known.split()}
                or event.keys() != {"at", "what"}
            ):
                damaged_count += 1
            else:
                events.append({"at": event["at"], "what": what})
    return events, damaged_count


def id_of(snapshot: Row) -> str:
    """Return an id as it is written."""
    return f"{snapshot['initiator']}-{snapshot['number']}"


def hash_of(description: Row) -> str:
    """Return the hash of a topology: maps are sorted by name, other members in their order."""

    def by_name(value: Any, depth: int) -> Any:
        if not isinstance(value, dict) or not depth:
            return value
        return {name: by_name(value[name], depth - 1) for name in sorted(value)}

    ordered = {
        name: by_name(value, 2 if name == "keyed" else 1) if name in MAPS else value
        for name, value in description.items()
    }
    encoded = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(encoded.encode()).hexdigest()


def check_files(
    files: list[Row], description: Row, *, is_whole: bool, process: str | None = None
) -> None:
    """Raise NotReadable unless a manifest has the files that it must have, in their order."""
    what = "whole" if is_whole else "changes"
    keyed = [
        f"{kind}_{field}.{what}.parquet"
        for kind, fields in description.get("keyed", {}).items()
        for field in fields
        if process is None or description["processes"][process] == kind
    ]
    expected = ["processes.parquet", "channels.parquet", "messages.parquet", *keyed]
    require([file["name"] for file in files] == expected, f"the files are {files}")


def rows_of(directory: Path, manifest: Row, name: str) -> list[Row]:
    """Return the rows of a file whose length and hash are right, with the names of today."""
    record = next(one for one in manifest["files"] if one["name"] == name)
    path = directory / name
    content = path.read_bytes()
    require(len(content) == record["bytes"], f"{path} has another length")
    require(hashlib.sha256(content).hexdigest() == record["hash"], f"{path} changed")
    table = pq.read_table(path, partitioning=None)
    if table.column_names[0] == "snapshot" and name != "channels.parquet":
        own = {
            "processes.parquet": "snapshot process kind encoded",
            "messages.parquet": "snapshot source target number kind",
        }.get(name, "snapshot process is_removed key key_encoded value_encoded")
        table = table.rename_columns(
            [f"_{one}" if one in own.split() else one for one in table.column_names]
        )
    rows: list[Row] = table.to_pylist()
    return rows


def state_of(row: Row, description: Row) -> Row:
    """Return the recorded fields of a process without the keyed ones; the columns repeat them."""
    fields: Row = decoded(row["_encoded"])
    columns = description["states"][row["_kind"]]
    names = {column["name"] for column in columns if column["kind"] != "keyed"}
    require(isinstance(fields, dict) and fields.keys() == names, f"the fields of {row['_process']}")
    for name, kind in kinds_of(description["states"]).items():
        compare(kind, row[name], fields.get(name), f"{name} of {row['_process']}")
    return fields


def messages_on(row: Row, description: Row) -> list[tuple[int, str, Row]]:
    """Return the number, class and values of each message that was recorded on a channel."""
    found: list[tuple[int, str, Row]] = []
    for batch in row["encoded"]:
        messages = decoded(batch["encoded"])
        require(batch["first"] == row["first"] + len(found), "a batch is not the next one")
        require(len(messages) == batch["count"], "a batch has another number of messages")
        for kind, *values in messages:
            names = [column["name"] for column in description["messages"][kind]]
            require(len(values) <= len(names), f"a message has {len(values)} values")
            number = row["first"] + len(found)
            found.append((number, kind, dict(zip(names, values, strict=False))))
    return found


def key_and_value(row: Row, described: Row) -> tuple[Any, Any]:
    """Return a key and its value as they were recorded; the columns repeat them."""
    key, columns = row["_key"], described["values"]
    if described["key"] not in EXACT:
        key = decoded(row["_key_encoded"])
        compare(described["key"], row["_key"], key, "a key")
    if described["layout"] == "value" and columns[0]["kind"] in EXACT:
        return hashable(key), row["value"]
    value = decoded(row["_value_encoded"])
    for place, column in enumerate(columns):
        match described["layout"]:
            case "value":
                recorded = value
            case "map":
                recorded = value.get(column["name"])
            case _:
                recorded = value[place] if place < len(value) else None
        compare(column["kind"], row[column["name"]], recorded, f"{column['name']} of {key}")
    return hashable(key), value


class Reader:
    """Reads the store in a directory, or a copy, object by object, of one in an object store."""

    def __init__(self, store: Path, *, is_of_bucket: bool = False) -> None:
        self.store = store
        self.is_of_bucket = is_of_bucket
        if is_of_bucket:
            head = unseal(store / "store.json", f"{STORE} token", newest=VERSION_IN_BUCKETS)
            require(head["format"] == VERSION_IN_BUCKETS, "it is of a directory")
        else:
            head = unseal(store / "store.json", STORE)
        self.epoch: int = head["epoch"]
        self.savepoints = {name: id_of(one) for name, one in (head["savepoints"] or {}).items()}
        self.topologies = {
            hash_of(one): one for one in (*(head["former"] or ()), head["description"])
        }

    def snapshots(self) -> list[str]:
        """Return the ids of all published snapshots, in the order of publishing."""
        names = [path.name for path in (self.store / "snapshots").iterdir()]
        if self.is_of_bucket:
            names = [name for name in names if self.is_published(name)]
        found = {name: self.manifest(name) for name in names if not name.startswith(".")}
        return sorted(found, key=lambda name: int(found[name]["sequence"]))

    def is_published(self, snapshot: str) -> bool:
        """Return whether a snapshot in an object store has a manifest that is no tombstone."""
        path = self.store / "snapshots" / snapshot / "manifest.json"
        if not path.exists() or path.stat().st_size > TOMBSTONE_BYTES_MAX:
            return path.exists()
        tombstone = unseal(path, "format snapshot poisoned", newest=VERSION_IN_BUCKETS)
        require(tombstone["poisoned"] is True, f"{path} is no tombstone")
        require(id_of(tombstone["snapshot"]) == snapshot, f"{path} is another")
        return False

    def manifest(self, snapshot: str) -> Row:
        """Return a manifest, whose files are those that the document lists."""
        manifest = unseal(self.store / "snapshots" / snapshot / "manifest.json", MANIFEST)
        require(id_of(manifest["snapshot"]) == snapshot, f"{snapshot} is another")
        description = self.topologies[manifest["topology"]]
        check_files(manifest["files"], description, is_whole=manifest["bases"] is None)
        return manifest

    def rows(self, snapshot: str, name: str) -> list[Row]:
        """Return the rows of a file of a snapshot."""
        return rows_of(self.store / "snapshots" / snapshot, self.manifest(snapshot), name)

    def read(self, snapshot: str) -> tuple[dict[str, Row], dict[tuple[str, str], list[Row]]]:
        """Return the fields of each process, and the messages on each channel: number, class and
        fields."""
        manifest = self.manifest(snapshot)
        description = self.topologies[manifest["topology"]]
        channels = self.rows(snapshot, "channels.parquet")
        messages = self.rows(snapshot, "messages.parquet")
        states = self.rows(snapshot, "processes.parquet")
        for count, rows in (("process", states), ("channel", channels), ("message", messages)):
            require(len(rows) == manifest[f"{count}_count"], f"rows of {snapshot}")
        on_channels: dict[tuple[str, str], list[Row]] = {}
        for row in channels:
            end = (row["source"], row["target"])
            found = [one for one in messages if (one["_source"], one["_target"]) == end]
            on_channels[end] = [
                {
                    "number": one["_number"],
                    "kind": one["_kind"],
                    "fields": {
                        c["name"]: one[c["name"]] for c in description["messages"][one["_kind"]]
                    },
                }
                for one in found
            ]
            recorded = messages_on(row, description)
            pairs = zip(recorded, found, strict=True)
            kinds = kinds_of(description["messages"])
            for (number, of, values), one in pairs:
                require((number, of) == (one["_number"], one["_kind"]), f"messages of {snapshot}")
                for name, column in kinds.items():
                    compare(column, one[name], values.get(name), f"{name} of message {number}")
            numbers = list(range(row["received_count"] + 1, row["sent_count"] + 1))
            require([one["_number"] for one in found] == numbers, f"books of {snapshot}")
            require(row["message_count"] == len(numbers), f"books of {snapshot}")
            require(sum(b["count"] for b in row["encoded"]) == len(numbers), f"books of {snapshot}")
        processes = {}
        for row in states:
            state_of(row, description)
            columns = description["states"][row["_kind"]]
            fields = {c["name"]: row[c["name"]] for c in columns if c["kind"] != "keyed"}
            for field, keyed in description.get("keyed", {}).get(row["_kind"], {}).items():
                fields[field] = self.keyed(snapshot, row["_process"], row["_kind"], field, keyed)
            processes[row["_process"]] = fields
        return processes, on_channels

    def recorded(
        self, snapshot: str
    ) -> tuple[dict[str, Row], dict[Channel, list[tuple[int, str, Row]]]]:
        """Return the recorded fields of each process, and the messages on each channel: what a
        restore needs."""
        description = self.topologies[self.manifest(snapshot)["topology"]]
        processes = {}
        for row in self.rows(snapshot, "processes.parquet"):
            process, kind = row["_process"], row["_kind"]
            processes[process] = state_of(row, description)
            for field, keyed in description.get("keyed", {}).get(kind, {}).items():
                rows = self.chain(snapshot, process, kind, field, keyed)
                processes[process][field] = dict(key_and_value(one, keyed) for one in rows)
        channels = {
            (row["source"], row["target"]): messages_on(row, description)
            for row in self.rows(snapshot, "channels.parquet")
        }
        return processes, channels

    def keyed(self, snapshot: str, process: str, kind: str, field: str, described: Row) -> Row:
        """Return the keys of a keyed field with their columns, along the chain of a process."""
        found = {}
        for row in self.chain(snapshot, process, kind, field, described):
            value = {column["name"]: row[column["name"]] for column in described["values"]}
            found[row["_key"]] = value["value"] if described["layout"] == "value" else value
        return found

    def chain(
        self, snapshot: str, process: str, kind: str, field: str, described: Row
    ) -> list[Row]:
        """Return the rows of a keyed field, along the chain of a process."""
        chain = [snapshot]
        while (base := (self.manifest(chain[-1])["bases"] or {}).get(process)) is not None:
            before, newer = self.manifest(id_of(base)), self.manifest(chain[-1])
            require(before["sequence"] < newer["sequence"], f"the base of {chain[-1]}")
            require(before["topology"] == newer["topology"], f"the base of {chain[-1]}")
            chain.append(id_of(base))
        identity = "_key" if described["key"] in EXACT else "_key_encoded"
        found: dict[Any, Row] = {}
        for link in reversed(chain):
            bases = self.manifest(link)["bases"]
            what = "whole" if bases is None else "changes"
            rows = self.rows(link, f"{kind}_{field}.{what}.parquet")
            rows = [row for row in rows if row["_process"] == process]
            keys = {row[identity] for row in rows}
            require(len(keys) == len(rows), f"a key of {process} occurs twice in {link}")
            for row in rows:
                found.pop(row[identity], None)
                if not row["_is_removed"]:
                    found[row[identity]] = row
                require(not row["_is_removed"] or process in (bases or {}), f"a key in {link}")
        return [*found.values()]


def read_compacted(out: Path) -> dict[str, list[Row]]:
    """Return the rows of each compacted table, each file with its length, hash and rows."""
    catalog = unseal(out / "tables.json", TABLES, {})
    parts, columns = catalog["parts"], catalog["columns"]
    require("snapshots" not in columns, "a keyed field has the name of the index")
    index = [] if catalog["index"] is None else [catalog["index"]]
    every = [({*catalog["snapshots"]}, {"snapshots": index})]
    every += [({*map(id_of, part["snapshots"])}, part["files"]) for part in parts]
    tables: dict[str, list[Row]] = {table: [] for table in (*columns, "snapshots")}
    for snapshots, files in every:
        require(snapshots <= catalog["snapshots"].keys(), "a part has other snapshots")
        for table, of_table in files.items():
            own = COLUMNS.get(table, ["_snapshot", "_process", "_key"])
            values = columns.get(table, ())[table not in COLUMNS :]  # the first is the key
            names = [*own, *(column["name"] for column in values)]
            former = [one.removeprefix("_") if one in own else one for one in names]
            for file in of_table:
                path = out / f"v{catalog['version']:06}" / table / file["name"]
                content = path.read_bytes()
                require(len(content) == file["bytes"], f"{path} has another length")
                require(hashlib.sha256(content).hexdigest() == file["hash"], f"{path} changed")
                rows = pq.read_table(path, partitioning=None)
                known = [former, names] if catalog["format"] == 1 else [names]
                require(rows.column_names in known, f"{path} has the columns {rows.column_names}")
                rows = rows.rename_columns(names)
                require(rows.num_rows == file["row_count"], f"{path} has {rows.num_rows} rows")
                require({*rows.column(0).to_pylist()} <= snapshots, f"{path} has other snapshots")
                tables[table] += rows.to_pylist()
    return tables


class Fragments:
    """Reads a directory of fragments."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.topologies: dict[str, Row] = {}
        for path in sorted((directory / "topologies").glob("[!.]*")):
            description = unseal(path, "format reference description")["description"]
            require(path.name == f"{hash_of(description)}.json", f"{path} is another")
            self.topologies[path.stem] = description

    def places(self) -> list[tuple[int, str, str]]:
        """Return epoch, process and snapshot of each fragment."""
        paths = [path.parent for path in self.directory.glob("e*/[!.]*/[!.]*/manifest.json")]
        return sorted((int(p.parent.parent.name[1:]), p.parent.name, p.name) for p in paths)

    def manifest(self, place: tuple[int, str, str]) -> Row:
        """Return the manifest of the fragment at a place."""
        epoch, process, snapshot = place
        path = self.directory / f"e{epoch}" / process / snapshot / "manifest.json"
        manifest = unseal(path, FRAGMENT)
        named = manifest["epoch"], manifest["process"], id_of(manifest["snapshot"])
        require(named == place, f"{path} is of another place")
        description = self.topologies[manifest["topology"]]
        is_whole = manifest["base"] is None
        check_files(manifest["files"], description, is_whole=is_whole, process=process)
        return manifest

    def read(self, place: tuple[int, str, str]) -> tuple[Row, dict[Channel, Any], dict[str, Any]]:
        """Return the recorded fields of the process, what was recorded on each incoming channel
        with its sent_count and received_count, and the rows of each keyed field: whether it is
        removed, or key and value."""
        manifest = self.manifest(place)
        epoch, process, snapshot = place
        directory = self.directory / f"e{epoch}" / process / snapshot
        description = self.topologies[manifest["topology"]]
        (row,) = rows_of(directory, manifest, "processes.parquet")
        kind = description["processes"][process]
        require((row["_process"], row["_kind"]) == (process, kind), f"{directory} is of another")
        channels = {}
        for one in rows_of(directory, manifest, "channels.parquet"):
            counts = manifest["received"][one["source"]]
            sent = counts["count"] + counts["recorded_count"]
            books = one["sent_count"], one["received_count"], one["target"]
            require(books == (sent, counts["count"], process), f"books of {directory}")
            messages = messages_on(one, description)
            require(len(messages) == counts["recorded_count"], f"books of {directory}")
            channels[one["source"], process] = sent, counts["count"], messages
        require({source for source, _ in channels} == {*manifest["received"]}, f"{directory}")
        keyed = {}
        what = "whole" if manifest["base"] is None else "changes"
        for field, described in description.get("keyed", {}).get(kind, {}).items():
            rows = rows_of(directory, manifest, f"{kind}_{field}.{what}.parquet")
            keyed[field] = [
                ("removed", one["_key"]) if one["_is_removed"] else key_and_value(one, described)
                for one in rows
            ]
        return state_of(row, description), channels, keyed
