"""A reader of pipelines that was written from ``docs/pipeline-format.md`` alone.

It imports nothing of Stillframe: Python, and pyarrow for Parquet.
"""

import base64
import decimal
import hashlib
import itertools
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.store.format_reader import EVENTS, NotReadable, Row, decoded, id_of, require, unseal

PIPELINE = "format name dataflow epoch restored_from segments batches starts"
ENTRY = "format number epoch offsets content"
CONTENT = {
    "rows": {"type", "files", "batch"},
    "barrier": {"type", "snapshot", "mode", "batch"},
}
FILE = {"name", "partition", "record_count", "checksum"}
MODES = ("aligned", "unaligned", "at-least-once", "retained")
TOPIC = {"name", "topic", "servers", "source", "targets", "has_unique_keys"}
TOPIC_CUT = {"channel", "positions", "ends"}
LABEL = struct.Struct(">8sIQ")
AGES = {"staleness_s": None, "data_age_s": None}
MANIFEST = (
    "format snapshot name epoch mode initiated_at completed_at published_at dataflow segments "
    "batches fragments systems channels files"
)
FRAGMENT = {
    *("format", "snapshot", "participant", "recorded_at", "positions", "barriers"),
    *("service", "query", "system", "failure"),
}
CUT = {"log", "target", "position", "barrier", "received_counts", "sent_counts"}
PINNED = {"query", "name", "bytes", "hash", "inode", "changed_at_ns"}
NAMES_OF_VERSION_1 = {"stretches": "segments", "parts": "fragments"}
NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")
DATA_FILE = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[\w.=-]+)?", re.ASCII)


def check_names(*names: str) -> None:
    """Raise NotReadable unless each can be part of a path."""
    for name in names:
        require(NAME.fullmatch(name), f"{name!r} is no name")


def state_of(service: Row | None) -> tuple[str, Any] | None:
    """Return the class of a service and its fields; None while it has no state."""
    if service is None:
        return None
    require(service.keys() == {"kind", "encoded"}, f"the state has {[*service]}")
    return service["kind"], decoded(base64.b64decode(service["encoded"], validate=True))


def content_of(path: Path, checksum: int) -> bytes:
    """Return the bytes of a data file."""
    content = path.read_bytes()
    require(zlib.crc32(content) == checksum, f"{path} changed")
    return content


def partition_of(key: list[Any], count: int) -> int:
    """Return the partition of a key; its times are integers."""
    return zlib.crc32(f"[{','.join(map(_json, key))}]".encode()) % count


def _json(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        if value == 0 or 1e-5 <= abs(value) < 1e16:
            digits = f"{decimal.Decimal(repr(value)):f}"
            return digits if "." in digits else f"{digits}.0"
        number, exponent = f"{decimal.Decimal(repr(value)).normalize():e}".split("e")
        return f"{number}e{int(exponent)}"
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        value = str(value)
    return json.dumps(None if isinstance(value, float) else value, ensure_ascii=False)


def keys_of(table: pa.Table, columns: list[str]) -> list[list[Any]]:
    """Return the values of some columns in each row, with times as integers."""
    found = []
    for column in (table.column(name) for name in columns):
        is_time = pa.types.is_temporal(column.type)
        stored = column.cast(f"int{column.type.bit_width}") if is_time else column
        found.append(stored.to_pylist())
    return [list(values) for values in zip(*found, strict=True)]


class Reader:
    """Reads the pipeline in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata = self.unseal(root / "pipeline.json", PIPELINE)
        self.check(self.metadata)
        flow = self.metadata["dataflow"]
        starts = {
            name: {log["name"] for log in flow["logs"] if name in log["targets"]}
            for name in (*flow["queries"], *flow["services"])
        }
        found = {name: {*positions} for name, positions in self.metadata["starts"].items()}
        require(found == starts, f"{root} has start positions of {found}")

    @staticmethod
    def unseal(path: Path, members: str, **absent: Any) -> Row:
        """Return the content of a sealed file; some members may be absent."""
        return unseal(path, members, NAMES_OF_VERSION_1, absent=absent)

    @staticmethod
    def check(document: Row) -> None:
        """Raise NotReadable unless names and timelines of a pipeline or manifest are possible."""
        flow = document["dataflow"]
        members = {"queries", "services", "logs"}
        require(members <= flow.keys() <= members | {"topics"}, f"the dataflow has {[*flow]}")
        check_topics(flow)
        require(flow["queries"] == sorted(flow["queries"]), "queries are not sorted")
        names = [log["name"] for log in flow["logs"]]
        require(names == sorted({*names}), "logs are not sorted")
        check_names(*names, *flow["queries"], *flow["services"])
        for log in flow["logs"]:
            require(1 <= log["partition_count"] <= 1024, f"partitions of {log['name']}")
            participants = {*flow["queries"], *flow["services"]}
            require({log["source"], *log["targets"]} <= participants, f"ends of {log['name']}")
        timelines = document["segments"], document["batches"]
        require([{*one} for one in timelines] == [{*names}, {*flow["queries"]}], "timelines")
        for timeline in (*timelines[0].values(), *timelines[1].values()):
            require(timeline and timeline[-1]["epoch"] <= document["epoch"], "an epoch to come")
            for member, least in (("epoch", 1), ("first", 0)):
                numbers = [least - 1, *(segment[member] for segment in timeline)]
                require(all(a < b for a, b in itertools.pairwise(numbers)), f"{member} falls")

    def snapshots(self) -> list[str]:
        """Return the ids of all published snapshots, by number."""
        names = [path.name for path in (self.root / "snapshots").glob("[!.]*")]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def manifest(self, snapshot: str) -> Row:
        """Return a manifest, whose files, books and records are right."""
        directory = self.root / "snapshots" / snapshot
        manifest = self.unseal(directory / "manifest.json", MANIFEST, topics=[], **AGES)
        require(id_of(manifest["snapshot"]) == snapshot, f"{snapshot} is another")
        require(manifest["mode"] in MODES, f"{snapshot} has the mode {manifest['mode']}")
        self.check(manifest)
        flow, fragments = manifest["dataflow"], manifest["fragments"]
        names = [fragment["participant"] for fragment in fragments]
        require(names == sorted((*flow["queries"], *flow["services"])), f"fragments of {snapshot}")
        require(all(one.keys() == FRAGMENT for one in fragments), f"fragments of {snapshot}")
        for one in fragments:
            require(id_of(one["snapshot"]) == snapshot, f"fragments of {snapshot}")
            require(one["failure"] is None, f"{one['participant']} failed")
        for file in manifest["files"]:
            require(file.keys() == PINNED and file["query"] in flow["queries"], f"{file}")
            require(not {"", ".", ".."} & {*file["name"].split("/")}, f"{file}")
            content = (directory / "checkpoints" / file["query"] / file["name"]).read_bytes()
            require(len(content) == file["bytes"], f"{file['name']} has another length")
            require(hashlib.sha256(content).hexdigest() == file["hash"], f"{file['name']} changed")
        ends = [(log["name"], target) for log in flow["logs"] for target in log["targets"]]
        cuts = [(cut["log"], cut["target"]) for cut in manifest["channels"]]
        require(cuts == ends, f"{snapshot} has the cuts {cuts}")
        for cut in manifest["channels"]:
            self.check_books(manifest, cut)
        topics = flow.get("topics", [])
        cuts = [(cut["channel"], {*cut["positions"]}) for cut in manifest["topics"]]
        require(cuts == [(one["name"], {*one["targets"]}) for one in topics], f"{cuts}")
        members = [cut.keys() - {"topic_id"} for cut in manifest["topics"]]
        require(all(found == TOPIC_CUT for found in members), f"topics of {snapshot}")
        is_retained = manifest["mode"] == "retained"
        require((manifest["staleness_s"] is not None) == is_retained, f"staleness of {snapshot}")
        require((manifest["data_age_s"] is not None) == bool(topics), f"data age of {snapshot}")
        require(is_retained or not topics, f"{snapshot} has the mode {manifest['mode']}")
        return manifest

    def check_books(self, manifest: Row, cut: Row) -> None:
        """Raise NotReadable unless the books of a channel balance."""
        where = f"the books of {cut['log']} to {cut['target']}"
        require(cut.keys() == CUT, where)
        by_name = {one["participant"]: one for one in manifest["fragments"]}
        log = log_of(manifest, cut["log"])
        require(by_name[cut["target"]]["positions"][cut["log"]] == cut["position"], where)
        require(by_name[log["source"]]["barriers"][cut["log"]] == cut["barrier"], where)
        for place, counts in (("position", "received_counts"), ("barrier", "sent_counts")):
            require(self.offsets_at(manifest, cut["log"], cut[place]) == cut[counts], where)
        if manifest["mode"] != "at-least-once":
            require(cut["position"] <= cut["barrier"], where)
        if manifest["mode"] == "retained":
            return
        content = self.entry(manifest, cut["log"], cut["barrier"])["content"]
        named = content["type"], content.get("snapshot")
        require(named == ("barrier", manifest["snapshot"]), f"{where}: there is no barrier")

    def entry(self, document: Row, log: str, number: int) -> Row:
        """Return an entry of a log, on the timeline of the pipeline or of a manifest."""
        segments = document["segments"][log]
        epoch = [one["epoch"] for one in segments if one["first"] <= number][-1]
        path = self.directory(log, epoch) / f"{number:020}.json"
        entry = self.unseal(path, ENTRY)
        require((entry["number"], entry["epoch"]) == (number, epoch), f"{path} is of another place")
        content, count = entry["content"], log_of(document, log)["partition_count"]
        require(content.keys() == CONTENT[content["type"]], f"{path} has an unknown content")
        require(len(entry["offsets"]) == count, f"{path} has other partitions")
        for file in content.get("files", ()):
            require(file.keys() == FILE and 0 <= file["partition"] < count, f"{path}: {file}")
            require(DATA_FILE.fullmatch(file["name"]), f"{path}: {file}")
        return entry

    def directory(self, log: str, epoch: int) -> Path:
        """Return where the entries of an epoch are."""
        return self.root / "channels" / log / f"epoch-{epoch}"

    def offsets_at(self, document: Row, log: str, number: int) -> list[int]:
        """Return how many records of each partition come before an entry."""
        if number == 0:
            return [0] * int(log_of(document, log)["partition_count"])
        entry = self.entry(document, log, number - 1)
        offsets: list[int] = list(entry["offsets"])
        for file in entry["content"].get("files", ()):
            offsets[file["partition"]] += file["record_count"]
        return offsets

    def tail(self, log: str) -> int:
        """Return the number of the next entry of a log."""
        last = self.metadata["segments"][log][-1]
        names = self.directory(log, last["epoch"]).glob("[!.]*.json")
        return max(int(last["first"]), *(int(path.stem) + 1 for path in names), 0)

    def records(self, document: Row, log: str, first: int, end: int) -> list[tuple[int, int, Row]]:
        """Return partition, offset and columns of each record of some entries, in their order."""
        schema = pa.ipc.read_schema(
            pa.py_buffer(base64.b64decode(log_of(document, log)["schema"], validate=True))
        )
        found: list[tuple[int, int, Row]] = []
        for number in range(first, end):
            entry = self.entry(document, log, number)
            require(entry["offsets"] == self.offsets_at(document, log, number), f"{log} {number}")
            offsets = list(entry["offsets"])
            for file in entry["content"].get("files", ()):
                path = self.directory(log, entry["epoch"]) / "data" / file["name"]
                content = pa.BufferReader(content_of(path, file["checksum"]))
                rows = pq.read_table(content, columns=schema.names).cast(schema)
                require(rows.num_rows == file["record_count"], f"{path} has {rows.num_rows} rows")
                described = log_of(document, log)
                is_of_service = described["source"] in document["dataflow"]["services"]
                columns = described["key"] if is_of_service else []
                for key in keys_of(rows, columns) if columns else ():
                    place = partition_of(key, described["partition_count"])
                    require(place == file["partition"], f"{path} is of another partition")
                for row in rows.to_pylist():
                    found.append((file["partition"], offsets[file["partition"]], row))
                    offsets[file["partition"]] += 1
        return found

    def in_transit(self, snapshot: str) -> dict[tuple[str, str], list[tuple[int, int, Row]]]:
        """Return the records in transit of a snapshot on each channel, by log and target."""
        manifest = self.manifest(snapshot)
        return {
            (cut["log"], cut["target"]): self.records(
                manifest, cut["log"], cut["position"], cut["barrier"]
            )
            for cut in manifest["channels"]
        }

    def states(self, snapshot: str) -> dict[str, tuple[str, Any] | None]:
        """Return class and fields of each participant in a snapshot; None of a query."""
        fragments = self.manifest(snapshot)["fragments"]
        return {one["participant"]: state_of(one["service"]) for one in fragments}

    def abandoned(self) -> list[Row]:
        """Return the abandoned snapshots, the oldest first."""
        path = self.root / "abandoned.json"
        found: list[Row] = (
            self.unseal(path, "format snapshots")["snapshots"] if path.exists() else []
        )
        for one in found:
            known = {"type", *EVENTS["SnapshotAbandoned"].split()}
            require(one["type"] == "SnapshotAbandoned" and one.keys() == known, f"{path}: {one}")
        return found

    def topic(self, name: str) -> tuple[str, dict[int, int]] | None:
        """Return the id of the writer of a topic, and the ends of its partitions when the source
        joined; None before that."""
        path = self.root / "topics" / f"{name}.json"
        if not path.exists():
            return None
        document = self.unseal(path, "format writer first_offsets")
        require(re.fullmatch("[0-9a-f]{16}", document["writer"]), f"{path} has no writer")
        return document["writer"], {int(p): at for p, at in document["first_offsets"].items()}

    def counts(self, document: Row, name: str, place: tuple[int, int], label: bytes | None) -> bool:
        """Return whether a record at a place, partition and offset, counts on the timeline of the
        pipeline or of a manifest; `label` is None if its last header is none."""
        (topic,) = [one for one in document["dataflow"]["topics"] if one["name"] == name]
        if topic["source"] is None:
            return True
        if (joined := self.topic(name)) is None:
            raise NotReadable(f"{topic['source']} has not joined")
        writer, first_offsets = joined
        partition, offset = place
        if offset < first_offsets.get(partition, 0):
            return True
        if label is None or len(label) != LABEL.size or label[:8].hex() != writer:
            raise NotReadable(f"{name} has another writer")
        _, epoch, batch = LABEL.unpack(label)
        timeline = document["batches"][topic["source"]]
        found = [one["epoch"] for one in timeline if one["first"] <= batch]
        return found[-1:] == [epoch]

    def service(self, name: str) -> tuple[dict[str, int], tuple[str, Any]] | None:
        """Return positions, class and fields of a service that does not run; None if it has not
        joined yet."""
        epoch = self.metadata["epoch"]
        path = self.root / "participants" / f"epoch-{epoch}" / f"{name}.json"
        if not path.exists():
            require(self.metadata["restored_from"] is None, f"{path} is missing")
            return None
        document = self.unseal(path, "format epoch positions state")
        require(document["epoch"] == epoch, f"{path} is of another epoch")
        state = state_of(document["state"])
        if state is None:
            raise NotReadable(f"{name} runs, or its state is lost")
        return document["positions"], state


def check_topics(flow: Row) -> None:
    """Raise NotReadable unless the topics of a dataflow are possible."""
    topics = flow.get("topics", [])
    names = [topic["name"] for topic in topics]
    require(names == sorted({*names} - {log["name"] for log in flow["logs"]}), "names of topics")
    check_names(*names)
    require("topics" not in flow or names, "an empty member")
    for topic in topics:
        ends = {*topic["targets"]} | ({topic["source"]} - {None})
        require(topic.keys() == TOPIC and ends, f"{topic}")
        require(ends <= {*flow["queries"]}, f"ends of {topic['name']}")
    in_kafka = [topic["topic"] for topic in topics]
    require(len({*in_kafka}) == len(in_kafka), "a topic is declared twice")


def log_of(document: Row, name: str) -> Row:
    """Return the description of a log."""
    found = [log for log in document["dataflow"]["logs"] if log["name"] == name]
    if not found:
        raise NotReadable(f"there is no log {name}")
    log: Row = found[0]
    return log
