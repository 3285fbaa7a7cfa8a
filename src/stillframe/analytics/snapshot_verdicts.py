"""The verdict on one published snapshot: whether it was changed, and whether its books balance.

``analytics.audit`` has the same for a whole store. Executors of a cluster use it: it needs no more
than Arrow.

The channel accounting here (`contradiction`) repeats the rule of ``channel_accounting`` on purpose.
Every snapshot was checked with that when it was taken; an audit that used it again would pass the
mistakes in it. It reads the tables as they were written, down to the number of each message.
"""

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from stillframe.errors import Damaged, StoreError, text_of
from stillframe.storage.location import Location, ObjectPath, location_of
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import SNAPSHOT_ADVICE, read_hashed, read_sealed_content
from stillframe.store import version_1
from stillframe.store.parquet import NUMBER, PROCESS, SOURCE, TARGET, as_written, read_parquet

CONSISTENT = "consistent"
INCONSISTENT = "inconsistent"
INCOMPLETE = "incomplete"
"""The three verdicts on a snapshot, also from an event log (``log_verification``)."""

_TIME = pa.timestamp("us", tz="UTC")
VERDICTS = pa.schema(
    [
        pa.field("snapshot", pa.string()),  # P1-17; null: a line of the history is damaged
        pa.field("sequence", pa.int64()),  # its place in the order of publishing; null: it has none
        pa.field("epoch", pa.int64()),  # null: unknown
        pa.field("verdict", pa.string()),  # CONSISTENT, INCONSISTENT or INCOMPLETE
        pa.field("why", pa.string()),  # for people
        pa.field("reason", pa.string()),  # of an abandoned one: its model.Reason
        pa.field("missing", pa.list_(pa.string())),  # the processes whose parts were not in
        pa.field("initiated_at", _TIME),
        pa.field("ended_at", _TIME),  # when it was published or abandoned
        pa.field("pause_s", pa.float64()),  # the longest pause of any process
        pa.field("capture_s", pa.float64()),  # the longest that encoding a state took
        pa.field("total_s", pa.float64()),  # from the request to the end
        pa.field("message_count", pa.int64()),  # in transit; null: damaged or not published
    ]
)
Row = dict[str, Any]
_DURATIONS = ("pause_s", "capture_s")
_NO_MANIFEST = (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError)
_TOMBSTONE = b'"poisoned":true'
_TOMBSTONE_BYTES_MAX = 256
"""What is in place of a manifest, in an object store, if there will never be one."""
_CHANNEL_COLUMNS = ["source", "target", "sent_count", "received_count", "message_count", "encoded"]


class Topology(NamedTuple):
    """The requirements for the snapshots of one topology. `full` and `changes` are the files, in
    the order of a manifest, of full and of incremental snapshots."""

    processes: list[str]
    channels: list[tuple[str, str]]
    full: list[str]
    changes: list[str]


class Expected(NamedTuple):
    """The requirements for each snapshot of a store: format, name and greatest length of a
    manifest, and the topologies by hash."""

    format: int
    manifest: str
    bytes_max: int
    topologies: Mapping[str, Topology]


def verdict_for(directory: Location, expected: Expected) -> Row:
    """Return the verdict on the snapshot published as `directory` (a row of `VERDICTS`). If it is
    compacted to a full one meanwhile, its manifest changes, and it is read again; one that was
    dropped is `INCOMPLETE`."""
    known: Row = {"snapshot": directory.name, "missing": []}
    path = directory / expected.manifest
    before: bytes | None = None
    while True:
        row, content = known, b""
        try:
            content = read_sealed_content(
                path, bytes_max=expected.bytes_max, advice=SNAPSHOT_ADVICE
            )
            manifest = _manifest(path, content, expected)
            row = known | _from_manifest(manifest)
            return row | _verdict(directory, manifest, expected)
        except Damaged as error:
            if not _is_published(directory, expected):
                why = "it was deleted before it could be read"
                return known | {"verdict": INCOMPLETE, "why": why}
            if content == before:
                return row | {"verdict": INCONSISTENT, "why": str(error)}
            before = content


def checked(directory: str, expected: Expected) -> tuple[str, bool, str, int | None]:
    """Return of the snapshot in `directory` its name, whether it is consistent, why not, and how
    many messages are in transit; None if it is damaged."""
    row = verdict_for(location_of(directory), expected)
    return row["snapshot"], row["verdict"] == CONSISTENT, row["why"], row.get("message_count")


def _is_published(directory: Location, expected: Expected) -> bool:
    if not isinstance(directory, ObjectPath):
        return directory.is_dir()
    path = directory / expected.manifest
    try:
        start = storage_of(path).read_range(path, 0, _TOMBSTONE_BYTES_MAX)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", path=path) from error
    return _TOMBSTONE not in start


def to_batch(rows: list[Row]) -> pa.RecordBatch:
    """Return verdicts as Arrow; fields that a row lacks are null."""
    return pa.RecordBatch.from_pylist(rows, schema=VERDICTS)


def moment(seconds: float | None) -> datetime.datetime | None:
    """Return seconds since 1970 as a time, if there is such a one."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _manifest(path: Location, content: bytes, expected: Expected) -> Row:
    """Return the manifest at `path`, with the types that it must have."""
    try:
        found = json.loads(content)
        if found["format"] > expected.format:
            raise Damaged(
                f"{path} has format {found['format']}, and this version of Stillframe knows "
                f"{expected.format}: use the version that wrote it, or a newer one"
            )
        if found["format"] < expected.format:
            found = version_1.with_current_keys(found, ("bases",))
        _check_types(found)
        topology = expected.topologies.get(found["topology"])
        snapshot = f"{found['snapshot']['initiator']}-{found['snapshot']['number']}"
        names = [file["name"] for file in found["files"]]
        bases = found.get("bases")
    except _NO_MANIFEST as error:
        raise Damaged(
            f"{path} has invalid content: {text_of(error)}", path=path, remedy=SNAPSHOT_ADVICE
        ) from error
    if snapshot != path.parent.name:
        raise Damaged(f"{path} belongs to snapshot {snapshot}", path=path, remedy=SNAPSHOT_ADVICE)
    if topology is None:
        raise Damaged(
            f"{path} belongs to a store with another topology", path=path, remedy=SNAPSHOT_ADVICE
        )
    # Names are compared with the expected ones, never used to make a path.
    listed = topology.full if bases is None else topology.changes
    if names != listed:
        raise Damaged(
            f"{path} lists files other than {', '.join(listed)}", path=path, remedy=SNAPSHOT_ADVICE
        )
    return dict(found)


def _check_types(manifest: Row) -> None:
    """Refuse a manifest whose fields cannot be columns, with any of `_NO_MANIFEST`."""
    for name in ("format", "sequence", "epoch"):
        if type(manifest[name]) is not int or not 0 <= manifest[name] < 2**63:
            raise ValueError(f"{name} is {manifest[name]!r}")
    _from_manifest(manifest)
    for file in manifest["files"]:
        if type(file["bytes"]) is not int or not isinstance(file["hash"], str):
            raise TypeError(f"file {file['name']!r} has no length or no hash")


def _from_manifest(manifest: Row) -> Row:
    begun, ended = float(manifest["initiated_at"]), float(manifest["published_at"])
    return {
        **{name: manifest[name] for name in ("sequence", "epoch")},
        **{name: float(manifest.get(name, 0)) for name in _DURATIONS},
        "initiated_at": moment(begun),
        "ended_at": moment(ended),
        "total_s": ended - begun,
    }


def _verdict(directory: Location, manifest: Row, expected: Expected) -> Row:
    topology = expected.topologies[manifest["topology"]]
    tables = processes, channels, messages = topology.full[:3]
    content = {}
    for file in manifest["files"]:
        found = read_hashed(directory / file["name"], file["bytes"], file["hash"])
        if file["name"] in tables:
            content[file["name"]] = found
    with as_written(directory / processes):
        recorded = sorted(read_parquet(content[processes], [PROCESS])[PROCESS].to_pylist())
    with as_written(directory / channels):
        books = read_parquet(content[channels], _CHANNEL_COLUMNS)
    with as_written(directory / messages):
        caught = read_parquet(content[messages], [SOURCE, TARGET, NUMBER])
    with as_written(directory):
        wrong = contradiction(topology.channels, books, caught)
    if recorded != topology.processes:
        wrong = (
            f"states of the processes {', '.join(recorded) or 'none'} are recorded, but the "
            f"processes are {', '.join(topology.processes)}"
        )
    return {
        "verdict": CONSISTENT if wrong is None else INCONSISTENT,
        "why": wrong or "no byte changed, and the books of every channel balance",
        "message_count": caught.num_rows,
    }


def contradiction(
    expected: Iterable[tuple[str, str]], channels: pa.Table, messages: pa.Table
) -> str | None:
    """Return what is wrong with the first channel of a snapshot whose books do not balance, of its
    tables and the channels that its system has."""
    known = set(expected)
    recorded: dict[tuple[str, str], list[Row]] = {}
    for row in channels.to_pylist():
        recorded.setdefault((row["source"], row["target"]), []).append(row)
    caught = _numbers_by_channel(messages)
    for channel in sorted({*known, *recorded, *caught}):
        name, rows = f"channel {channel[0]}->{channel[1]}", recorded.get(channel, [])
        if channel not in known:
            return f"{name} is recorded, but the system has no such channel"
        if len(rows) != 1:
            return f"{name} is recorded {len(rows)} times, not once"
        if why := _imbalance(rows[0], *caught.get(channel, (0, 0, None, None))):
            return f"{name}: {why}"
    return None


def _numbers_by_channel(messages: pa.Table) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return how many rows and numbers there are of each channel, the least and the greatest."""
    ends = {name: messages[name].cast(pa.string()) for name in (SOURCE, TARGET)}
    grouped = pa.table({**ends, "number": messages[NUMBER]}).group_by([*ends], use_threads=False)
    figures = ("count", "count_distinct", "min", "max")
    found = grouped.aggregate([("number", figure) for figure in figures])
    names = [f"number_{figure}" for figure in figures]
    return {
        (row[SOURCE], row[TARGET]): tuple(row[name] for name in names) for row in found.to_pylist()
    }


def _imbalance(row: Row, row_count: int, number_count: int, low: Any, high: Any) -> str | None:
    sent, received, count = row["sent_count"], row["received_count"], row["message_count"]
    if not 0 <= received <= sent:
        return (
            f"the target had received {received} messages at its cut, the source had sent {sent} "
            "at its own"
        )
    balance = f"{sent} sent - {received} received = {sent - received}"
    if sent - received != count:
        return f"{balance}, but {count} messages were recorded"
    batched = sum(batch["count"] for batch in row["encoded"])
    if batched != count:
        return f"{balance}, but its batches hold {batched} messages"
    if row_count != count:
        return f"{balance}, but messages.parquet holds {row_count}"
    if number_count != count or (count and (low, high) != (received + 1, sent)):
        return (
            f"its messages should be the numbers {received + 1} to {sent}, but messages.parquet "
            f"holds {number_count} different ones, from {low} to {high}"
        )
    return None
