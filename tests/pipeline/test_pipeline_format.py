"""A reader that knows nothing but ``docs/pipeline-format.md`` reads what Stillframe reads."""

import datetime
import decimal
import itertools
import json
import math
import random
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import UsageError
from stillframe.pipeline import LogBatch, Pipeline, channel
from stillframe.pipeline.coordinator import abandoned_snapshots
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.log import spread
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import ServiceState
from stillframe.pipeline.service import join
from stillframe.pipeline.stopped import stopped_service
from stillframe.pipeline.topics import counting
from tests.golden import recording
from tests.golden.systems import Till
from tests.pipeline.format_reader import ENTRY, Reader, content_of, keys_of, partition_of
from tests.pipeline.test_newest_consistent import two_queries
from tests.pipeline.topics_shop import Shop
from tests.store.format_reader import NotReadable

PIPELINES = ("data/shop.pipeline", "data/counted.pipeline", "data-2/shop.pipeline")
"""Those of version 1, one with a query of Spark, and of version 2."""
Records = list[tuple[int, int, dict[str, Any]]]


@pytest.fixture(params=PIPELINES)
def root(request: pytest.FixtureRequest) -> Path:
    """A pipeline that was recorded."""
    return recording.HERE / str(request.param)


def plain(value: Any) -> Any:
    """Return what a value of Stillframe is in JSON, with version 2 as format of each part."""
    return of_version_2(json.loads(msgspec.json.encode(value)))


def of_version_2(value: Any) -> Any:
    """Return a document with this format in all its parts."""
    if isinstance(value, list):
        return [of_version_2(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: 2 if key == "format" else of_version_2(one) for key, one in value.items()}


def rows(batches: Iterable[LogBatch]) -> Records:
    """Return partition, offset and columns of each record."""
    return [
        (batch.partition, batch.offset + number, row)
        for batch in batches
        for number, row in enumerate(batch.records.to_pylist())
    ]


def fields(state: ServiceState) -> tuple[str, Any]:
    """Return the class of a service and its fields."""
    return state.kind, msgspec.msgpack.decode(state.encoded)


def read_all(reader: Reader) -> dict[str, Any]:
    """Return all that the reader of the document finds in a pipeline."""
    flow = reader.metadata["dataflow"]
    return {
        "metadata": of_version_2(reader.metadata),
        "manifests": {one: of_version_2(reader.manifest(one)) for one in reader.snapshots()},
        "logs": {
            log["name"]: reader.records(reader.metadata, log["name"], 0, reader.tail(log["name"]))
            for log in flow["logs"]
        },
        "in transit": {one: reader.in_transit(one) for one in reader.snapshots()},
        "states": {one: reader.states(one) for one in reader.snapshots()},
        "services": {name: reader.service(name) for name in flow["services"]},
        "topics": {one["name"]: reader.topic(one["name"]) for one in flow.get("topics", [])},
    }


def read_with_stillframe(root: Path) -> dict[str, Any]:
    """Return the same as Stillframe finds it."""
    pipeline, metadata = Pipeline(root), read_metadata(root)
    manifests = {str(one.snapshot): one for one in pipeline.snapshots()}
    return {
        "metadata": plain(metadata),
        "manifests": {
            name: {"topics": [], "staleness_s": None, "data_age_s": None} | plain(one)
            for name, one in manifests.items()
        },
        "logs": {log.name: rows(pipeline.records(log.name)) for log in metadata.dataflow.logs},
        "in transit": {
            name: {
                (cut.log, cut.target): rows(
                    pipeline.records(cut.log, snapshot=name, target=cut.target)
                )
                for cut in one.channels
            }
            for name, one in manifests.items()
        },
        "states": {
            name: {
                fragment.participant: fragment.service and fields(fragment.service)
                for fragment in one.fragments
            }
            for name, one in manifests.items()
        },
        "services": {
            name: None if found is None else (found[0], fields(found[1]))
            for name in metadata.dataflow.services
            for found in [stopped_service(root, metadata, name)]
        },
        "topics": {topic.name: joined(root, topic) for topic in metadata.dataflow.topics},
    }


def joined(root: Path, topic: Topic) -> tuple[str, dict[int, int]] | None:
    """Return what a pipeline knows of a topic, if a query writes it."""
    if topic.source is None:
        return None
    record = counting(root, read_metadata(root), topic).record
    return record.writer, record.first_offsets


def test_the_document_suffices(root: Path) -> None:
    """Metadata, manifests, logs, records in transit and states are the same."""
    found = read_all(Reader(root))
    assert found == read_with_stillframe(root)
    assert any(found["logs"].values())
    in_transit = [records for one in found["in transit"].values() for records in one.values()]
    assert any(in_transit) == (root.name == "shop.pipeline")


def test_the_document_suffices_for_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after a restore; which records count is the same for labels of all epochs and
    micro-batches."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    assert read_all(Reader(shop.path)) == read_with_stillframe(shop.path)
    shop.run()
    shop.lose("dedup")
    shop.lose("dedup")
    shop.pipeline.snapshot()
    shop.pipeline.restore(newest_consistent=True)
    shop.commit("dedup", 1, {"shop-orders": {0: 4, 1: 4}})
    shop.pipeline.restore(newest_consistent=True)
    reader = Reader(shop.path)
    assert read_all(reader) == read_with_stillframe(shop.path)
    metadata = read_metadata(shop.path)
    decides = counting(shop.path, metadata, shop.pipeline.dataflow.topic("unique"))
    seen = set()
    for epoch, batch in itertools.product(range(1, 5), range(5)):
        label = decides.label(epoch, batch)
        counts = decides.counts(label)
        assert reader.counts(reader.metadata, "unique", (0, 9), label.encoded) is counts
        if counts:
            seen.add((epoch, batch))
    assert seen == {(1, 0), (2, 1), (3, 2), (3, 3), (3, 4)}
    for strange in (None, b"", label.encoded[:-1], b"x" * 20):
        with pytest.raises(NotReadable, match="another writer"):
            reader.counts(reader.metadata, "unique", (0, 9), strange)
    assert reader.counts(reader.metadata, "orders", (0, 9), None)


def test_the_document_suffices_for_a_cut_without_barriers(tmp_path: Path) -> None:
    """The records in transit in logs end behind those of the micro-batch of the source."""
    pipeline = two_queries(tmp_path / "logs.pipeline")
    pipeline.snapshot("retained")
    found = read_all(Reader(pipeline.path))
    assert found == read_with_stillframe(pipeline.path)
    assert found["manifests"]["logs-1"]["staleness_s"] > 0


def some_doubles() -> list[float]:
    """Return doubles of all sizes, and around the places where another notation begins."""
    chance = random.Random(3)
    edges = [sign * 10.0**power for power in range(-8, 24) for sign in (1, -1)]
    near = [math.nextafter(edge, towards) for edge in edges for towards in (0.0, math.inf)]
    other: list[float] = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(500)]
    return [*edges, *near, *other, 0.0, -0.0, math.inf, -math.inf, math.nan]


INSTANTS = [datetime.datetime(2024, 5, 17, 12, second, tzinfo=datetime.UTC) for second in range(20)]
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "int": (pa.int64(), [0, -1, 2**63 - 1, -(2**63), None]),
    "unsigned": (pa.uint64(), [2**64 - 1]),
    "double": (pa.float64(), some_doubles()),
    "float": (pa.float32(), [0.1, 1e-5, 1e16, 3.4e38]),
    "bool": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), [*map(chr, range(256)), "\u2028", "\U0001f600", "", 'a"b\\c/']),
    "bytes": (pa.binary(), [b"", b"\0\xff", b"abc"]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal("1.50"), decimal.Decimal(-70000)]),
    "time": (pa.timestamp("us"), INSTANTS),
    "instant": (pa.timestamp("ms", "UTC"), INSTANTS),
    "day": (pa.date32(), [datetime.date(1969, 1, day) for day in range(1, 20)]),
    "hour": (pa.time64("us"), [datetime.time(hour) for hour in range(20)]),
}


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KEYS), ("int", "text"), ("double", "day")])
def test_the_partition_of_a_key_is_that_of_the_document(kinds: tuple[str, ...]) -> None:
    """For values of each type that can be a key."""
    count = min(len(KEYS[kind][1]) for kind in kinds)
    table = pa.table({kind: pa.array(KEYS[kind][1][:count], KEYS[kind][0]) for kind in kinds})
    log = channel(
        "log", table.schema, source="a", targets=["b"], partition_count=997, key=table.column_names
    )
    found = spread(table, log)
    assert sum(rows.num_rows for _, rows in found) == count
    for partition, rows in found:
        for key in keys_of(rows, table.column_names):
            assert partition_of(key, 997) == partition, key


def test_a_nested_column_is_no_key(tmp_path: Path) -> None:
    """Nothing could be appended to such a channel."""
    schema = pa.schema({"k": pa.list_(pa.int64())})
    nested = channel("log", schema, source="a", targets=["b"], partition_count=2, key=["k"])
    with pytest.raises(UsageError, match="channel log: the key 'k' is of type list"):
        Pipeline.create(tmp_path / "p", services={"a": Till, "b": Till}, channels=[nested])


def test_abandoned_snapshots_are_read_from_the_document_alone(tmp_path: Path) -> None:
    """None was in the recorded pipelines."""
    root = shutil.copytree(recording.DATA_2 / "shop.pipeline", tmp_path / "shop.pipeline")
    assert Reader(root).abandoned() == []
    with join("till", pipeline=root, state=Till()):
        Pipeline(root).snapshot("unaligned", timeout_s=0.05)
    found = Reader(root).abandoned()
    assert found == plain(abandoned_snapshots(root))
    (one,) = found
    assert "till" in one["missing"]


@pytest.mark.parametrize("name", [PIPELINES[0], PIPELINES[2]])
def test_the_document_says_how_to_find_damage(name: str, tmp_path: Path) -> None:
    """A changed byte of any file that the reader opens is found; it opens all but locks, those of
    former epochs and for display, and what no timeline reaches."""
    root = shutil.copytree(recording.HERE / name, tmp_path / "shop.pipeline")
    untouched = set()
    for path in sorted(path for path in root.rglob("*.*") if path.suffix != ".lock"):
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        try:
            read_all(Reader(root))
        except NotReadable:
            pass
        else:
            untouched.add(path.relative_to(root).as_posix())
        path.write_bytes(content)
    assert untouched == {
        "last-snapshot.json",
        *(f"participants/epoch-1/{one}.json" for one in ("books", "till", "positions/books")),
        "participants/epoch-2/positions/books.json",
    }


@pytest.mark.parametrize(
    "name",
    [
        "pipeline.json",
        "participants/epoch-2/books.json",
        *(f"channels/sales/epoch-2/0000000000000000000{number}.json" for number in (4, 5)),
        "snapshots/shop-5/manifest.json",
    ],
)
def test_no_changed_byte_of_a_sealed_file_is_overlooked(name: str, tmp_path: Path) -> None:
    """Each of them, of one file of each kind."""
    content = (recording.DATA_2 / "shop.pipeline" / name).read_bytes()
    for number, changed in enumerate(each_changed(content)):
        (path := tmp_path / f"{number % 8}.json").write_bytes(changed)
        with pytest.raises(NotReadable, match="changed"):
            Reader.unseal(path, "format")


def test_no_changed_byte_of_a_data_file_is_overlooked(tmp_path: Path) -> None:
    """Each of them, of the file of one entry."""
    directory = recording.DATA_2 / "shop.pipeline/channels/sales/epoch-2"
    entry = Reader.unseal(directory / "00000000000000000004.json", ENTRY)
    (file,) = entry["content"]["files"]
    content = content_of(directory / "data" / file["name"], file["checksum"])
    for changed in each_changed(content):
        (path := tmp_path / "changed.parquet").write_bytes(changed)
        with pytest.raises(NotReadable, match="changed"):
            content_of(path, file["checksum"])


def each_changed(content: bytes) -> Iterator[bytes]:
    """Yield bytes with a bit of each of them changed in turn."""
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)
