"""A reader of stores that was written from ``docs/store-format.md`` alone.

It imports nothing of Stillframe: Python, and pyarrow for Parquet.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

VERSION = 2
SEALED = re.compile(rb'\{"content":(\{.*\}),"hash":"([0-9a-f]{64})"\}', re.DOTALL)
SEALED_BYTES_MAX = 64 * 2**20
NAME_OF_VERSION_1 = {"parent": "bases"}
EXACT = ("bool", "int", "float", "text", "bytes")
MAPS = ("processes", "states", "messages", "accepts", "shapes", "keyed")
Row = dict[str, Any]


class NotReadable(Exception):
    """A file is not what the document says."""


def require(holds: object, what: str) -> None:
    """Raise NotReadable unless something holds."""
    if not holds:
        raise NotReadable(what)


def unseal(path: Path) -> Row:
    """Return the content of a sealed file."""
    content = path.read_bytes()
    require(len(content) <= SEALED_BYTES_MAX, f"{path} is too long")
    found = SEALED.fullmatch(content)
    require(found and hashlib.sha256(found[1]).hexdigest().encode() == found[2], f"{path} changed")
    assert found
    document: Row = json.loads(found[1])
    require(
        document["format"] <= VERSION,
        f"{path} has format {document['format']}, and this version of Stillframe knows {VERSION}: "
        "use the version that wrote it, or a newer one",
    )
    if document["format"] == 1:
        document = {NAME_OF_VERSION_1.get(key, key): value for key, value in document.items()}
    return document


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


class Reader:
    """Reads the store in a directory."""

    def __init__(self, store: Path) -> None:
        self.store = store
        head = unseal(store / "store.json")
        self.epoch: int = head["epoch"]
        self.savepoints = {name: id_of(one) for name, one in head["savepoints"].items()}
        self.topologies = {hash_of(one): one for one in (*head["former"], head["description"])}

    def snapshots(self) -> list[str]:
        """Return the ids of all published snapshots, in the order of publishing."""
        names = [path.name for path in (self.store / "snapshots").iterdir()]
        found = {name: self.manifest(name) for name in names if not name.startswith(".")}
        return sorted(found, key=lambda name: int(found[name]["sequence"]))

    def manifest(self, snapshot: str) -> Row:
        """Return a manifest, whose files are those that the document lists."""
        manifest = unseal(self.store / "snapshots" / snapshot / "manifest.json")
        require(id_of(manifest["snapshot"]) == snapshot, f"{snapshot} is another")
        description = self.topologies[manifest["topology"]]
        what = "whole" if manifest["bases"] is None else "changes"
        keyed = [
            f"{kind}_{field}.{what}.parquet"
            for kind, fields in description.get("keyed", {}).items()
            for field in fields
        ]
        expected = ["processes.parquet", "channels.parquet", "messages.parquet", *keyed]
        require([file["name"] for file in manifest["files"]] == expected, f"files of {snapshot}")
        return manifest

    def rows(self, snapshot: str, name: str) -> list[Row]:
        """Return the rows of a file whose length and hash are right, with the names of today."""
        record = next(one for one in self.manifest(snapshot)["files"] if one["name"] == name)
        path = self.store / "snapshots" / snapshot / name
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
            numbers = list(range(row["received_count"] + 1, row["sent_count"] + 1))
            require([one["_number"] for one in found] == numbers, f"books of {snapshot}")
            require(row["message_count"] == len(numbers), f"books of {snapshot}")
            require(sum(b["count"] for b in row["encoded"]) == len(numbers), f"books of {snapshot}")
        processes = {}
        for row in states:
            columns = description["states"][row["_kind"]]
            fields = {c["name"]: row[c["name"]] for c in columns if c["kind"] != "keyed"}
            for field, keyed in description.get("keyed", {}).get(row["_kind"], {}).items():
                fields[field] = self.keyed(snapshot, row["_process"], row["_kind"], field, keyed)
            processes[row["_process"]] = fields
        return processes, on_channels

    def keyed(self, snapshot: str, process: str, kind: str, field: str, described: Row) -> Row:
        """Return the keys of a keyed field with their values, along the chain of a process."""
        chain = [snapshot]
        while (base := (self.manifest(chain[-1])["bases"] or {}).get(process)) is not None:
            before, newer = self.manifest(id_of(base)), self.manifest(chain[-1])
            require(before["sequence"] < newer["sequence"], f"the base of {chain[-1]}")
            require(before["topology"] == newer["topology"], f"the base of {chain[-1]}")
            chain.append(id_of(base))
        identity = "_key" if described["key"] in EXACT else "_key_encoded"
        found: dict[Any, tuple[Any, Any]] = {}
        for link in reversed(chain):
            what = "whole" if self.manifest(link)["bases"] is None else "changes"
            for row in self.rows(link, f"{kind}_{field}.{what}.parquet"):
                if row["_process"] != process:
                    continue
                found.pop(row[identity], None)
                if not row["_is_removed"]:
                    value = {column["name"]: row[column["name"]] for column in described["values"]}
                    if described["layout"] == "value":
                        value = value["value"]
                    found[row[identity]] = row["_key"], value
        return dict(found.values())
