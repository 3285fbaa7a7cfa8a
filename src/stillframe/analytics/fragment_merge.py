"""Tasks that merge the files of fragments into those of a snapshot.

Executors of a cluster run it: it needs no more than Arrow.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillframe.durable_files import FRAGMENT_ADVICE, read_hashed, replace_by
from stillframe.errors import Damaged, StoreError
from stillframe.store.parquet import (
    apply_changes,
    as_written,
    identity_of,
    read_parquet,
    to_parquet,
)

PROCESSES, CHANNELS, MESSAGES, KEYED = "processes", "channels", "messages", "keyed"
PLAIN = (PROCESSES, CHANNELS, MESSAGES)
_CHANNEL = ("source", "target")
_COUNTS = ("sent_count", "received_count", "message_count")
_FILE = pa.struct([("path", pa.string()), ("byte_count", pa.int64()), ("hash", pa.string())])
_BOOKS = pa.struct([("source", pa.string()), *((name, pa.int64()) for name in _COUNTS)])
_FRAGMENT = pa.struct(
    [
        pa.field("process", pa.string()),
        pa.field("kind", pa.string()),  # its class
        pa.field("links", pa.list_(_FILE)),  # of a keyed field all that it takes, the oldest first
        pa.field("books", pa.list_(_BOOKS)),  # of its incoming channels, as both ends say
    ]
)
MERGE_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),
        pa.field("path", pa.string()),  # of the file to write
        pa.field("what", pa.string()),  # PROCESSES, CHANNELS, MESSAGES or KEYED
        pa.field("columns", pa.binary()),  # an Arrow schema: what every fragment must have
        pa.field("fragments", pa.list_(_FRAGMENT)),  # in the order of the processes
        pa.field("task", pa.int32()),
    ]
)
MERGED = pa.schema(
    [
        pa.field("snapshot", pa.string()),
        pa.field("name", pa.string()),
        pa.field("byte_count", pa.int64()),
        pa.field("hash", pa.string()),
        pa.field("process", pa.string()),  # whose fragment is damaged; null: none
        pa.field("why", pa.string()),  # and how
    ]
)
_ORDER = {CHANNELS: _CHANNEL, MESSAGES: (*_CHANNEL, "number")}
FragmentFiles = Mapping[str, Any]


def merge_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write each file of `batches` (`MERGE_SCHEMA`), and yield what it is (`MERGED`). Every byte of
    its fragments is verified and compared with their manifests."""
    for batch in batches:
        for row in batch.to_pylist():
            path, content = Path(row["path"]), b""
            process = why = None
            tables: list[pa.Table] = []
            for fragment in row["fragments"]:
                try:
                    tables.append(_table(fragment, row))
                except (Damaged, StoreError) as error:
                    process, why = fragment["process"], str(error)
                    break
            else:
                content = _concatenated(tables, _ORDER.get(row["what"], ()))
                # A name of its own: the same task may be run twice, at the same time.
                partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
                replace_by(partial, path, content)
            digest = sha256(content).hexdigest()
            values = row["snapshot"], path.name, len(content), digest, process, why
            yield pa.RecordBatch.from_pylist([dict(zip(MERGED.names, values, strict=True))], MERGED)


def _concatenated(tables: Sequence[pa.Table], order: Sequence[str]) -> bytes:
    table = pa.concat_tables(tables)
    if order:
        table = table.sort_by([(name, "ascending") for name in order])
    return to_parquet(table)


def _table(fragment: FragmentFiles, row: Mapping[str, Any]) -> pa.Table:
    """Return the rows of one process, if its files are what was written and fit its manifest."""
    what, snapshot = row["what"], row["snapshot"]
    columns = pa.ipc.read_schema(pa.py_buffer(row["columns"]))
    links: list[pa.Table] = []
    for file in fragment["links"]:
        path = Path(file["path"])
        content = read_hashed(path, file["byte_count"], file["hash"], advice=FRAGMENT_ADVICE)
        with as_written(path):
            row_count = pq.read_metadata(pa.BufferReader(content)).num_rows
            if what != KEYED and row_count != _row_count(fragment, what):
                raise ValueError(f"it has {row_count} rows, and its manifest says otherwise")
            table = read_parquet(content)
            if table.schema != columns:
                raise ValueError("it has other columns than such a file")
            if not _CHECKS[what](table, fragment):
                raise ValueError("it does not say what the manifest beside it does")
            if what != KEYED and not _is_all(table, "snapshot", snapshot):
                raise ValueError(f"it is not of snapshot {snapshot}")
            links.append(table)
    with as_written(path):
        if what != KEYED:
            return links[0]
        table = apply_changes(links)
        identity = table.column(identity_of(table.column_names))
        if pc.count_distinct(identity).as_py() != table.num_rows:
            raise ValueError("it has a key twice")
        return _of_snapshot(table, snapshot)


def _row_count(fragment: FragmentFiles, what: str) -> int:
    if what == PROCESSES:
        return 1
    books = fragment["books"]
    return len(books) if what == CHANNELS else sum(of_one["message_count"] for of_one in books)


def _of_snapshot(table: pa.Table, snapshot: str) -> pa.Table:
    """Return rows of a keyed field as rows of this snapshot, whichever recorded them."""
    index = table.column_names.index("snapshot")
    name = pa.repeat(pa.scalar(snapshot), table.num_rows)
    return table.set_column(index, table.schema.field(index), name)


def _is_state(table: pa.Table, fragment: FragmentFiles) -> bool:
    named = [table.column(name).to_pylist() for name in ("process", "kind")]
    return bool(named == [[fragment["process"]], [fragment["kind"]]])


def _is_of_process(table: pa.Table, fragment: FragmentFiles) -> bool:
    return _is_all(table, "process", fragment["process"])


def _is_all(table: pa.Table, column: str, value: str) -> bool:
    return pc.unique(table.column(column)).to_pylist() in ([], [value])


def _are_channels(table: pa.Table, fragment: FragmentFiles) -> bool:
    """Return whether these are the process's incoming channels, with the counts of both ends."""
    named = (*_CHANNEL, *_COUNTS)
    found = sorted(zip(*(table.column(name).to_pylist() for name in named), strict=True))
    known = [
        (books["source"], fragment["process"], *(books[name] for name in _COUNTS))
        for books in fragment["books"]
    ]
    return bool(found == sorted(known))


def _are_messages(table: pa.Table, fragment: FragmentFiles) -> bool:
    rest = table.num_rows
    for books in fragment["books"]:
        of_one = table.filter(pc.equal(table.column("source"), books["source"]))
        if of_one.num_rows != books["message_count"]:
            return False
        wanted = np.arange(of_one.num_rows) + (books["received_count"] + 1)
        if not np.array_equal(of_one.column("number").to_numpy(), wanted):
            return False
        rest -= of_one.num_rows
    return rest == 0 and _is_all(table, "target", fragment["process"])


_CHECKS = {
    PROCESSES: _is_state,
    CHANNELS: _are_channels,
    MESSAGES: _are_messages,
    KEYED: _is_of_process,
}
