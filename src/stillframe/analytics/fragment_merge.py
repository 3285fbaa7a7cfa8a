"""Tasks that merge the files of fragments into those of a snapshot.

Executors of a cluster run it: it needs no more than Arrow.
"""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillframe.durable_files import replace_by
from stillframe.errors import Damaged, StoreError
from stillframe.storage.location import ObjectPath, location_of
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import FRAGMENT_ADVICE, read_hashed
from stillframe.store import parquet

PROCESSES, CHANNELS, MESSAGES = "processes", "channels", "messages"
PLAIN = (PROCESSES, CHANNELS, MESSAGES)
"""The files of every snapshot; all others are of keyed fields."""
_OTHER_BYTES = 2**16
"""How much more than twice its length the same table may have."""
_COUNTS = ("sent_count", "received_count", "message_count")
_ORDER = {
    CHANNELS: ("source", "target"),
    MESSAGES: (parquet.SOURCE, parquet.TARGET, parquet.NUMBER),
}


class FragmentFiles(TypedDict):
    """The contribution of a process to one file of a snapshot. It has path, bytes and SHA-256 of
    its files; for a keyed field all files that are needed, the oldest first. For its incoming
    channels it has the source, and the messages sent, received and in transit according to both
    ends."""

    process: str
    kind: str
    links: Sequence[tuple[str, int, str]]
    books: Sequence[tuple[str, int, int, int]]


class Merged(NamedTuple):
    """A file that was written; or the process whose fragment is damaged, and how."""

    snapshot: str
    name: str
    bytes: int = 0
    hash: str = ""
    process: str = ""
    why: str = ""


def merge_files(
    snapshot: str,
    path: str,
    topology: str,
    fragments: Sequence[FragmentFiles],
    schemas: Mapping[str, Mapping[str, pa.Schema]],
) -> Merged:
    """Write the file `path` of a snapshot from its fragments, in the order of the processes. Each
    must have the columns that `schemas` has for a file of that name in that topology. Every byte is
    verified and compared with the manifests."""
    target = location_of(path)
    what, schema = target.name.partition(".")[0], schemas[topology][target.name]
    tables: list[pa.Table] = []
    for fragment in fragments:
        try:
            tables.append(_table(fragment, snapshot, what, schema))
        except (Damaged, StoreError) as error:
            return Merged(snapshot, target.name, process=fragment["process"], why=str(error))
    table = pa.concat_tables(tables)
    if order := _ORDER.get(what):
        table = table.sort_by([(name, "ascending") for name in order])
    content = parquet.to_parquet(table)
    if isinstance(target, ObjectPath):
        content = _put(target, content)
    else:
        # A unique name: the same task may be run twice, at the same time.
        replace_by(target.with_name(f".{target.name}.{secrets.token_hex(8)}"), target, content)
    return Merged(snapshot, target.name, len(content), sha256(content).hexdigest())


def _put(target: ObjectPath, content: bytes) -> bytes:
    """Write a file once, and return what is there. An earlier attempt, or an earlier run, may have
    written the same rows, perhaps with another release of Arrow."""
    storage = storage_of(target)
    try:
        try:
            storage.put_if_absent(target, content)
        except FileExistsError:
            there = storage.read(target, bytes_max=_OTHER_BYTES + 2 * len(content))[0]
            if there != content:
                with parquet.as_written(target):
                    is_same = parquet.read_parquet(there).equals(parquet.read_parquet(content))
                if not is_same:
                    raise StoreError(f"{target} holds other rows", path=target) from None
            return there
    except OSError as error:
        raise StoreError(f"{target} could not be written: {error.strerror}", path=target) from error
    return content


def _table(fragment: FragmentFiles, snapshot: str, what: str, schema: pa.Schema) -> pa.Table:
    """Return the rows of one process, if its files are what was written and fit its manifest."""
    links: list[pa.Table] = []
    for name, byte_count, digest in fragment["links"]:
        path = location_of(name)
        content = read_hashed(path, byte_count, digest, advice=FRAGMENT_ADVICE)
        with parquet.as_written(path):
            row_count = pq.read_metadata(pa.BufferReader(content)).num_rows
            if what in PLAIN and row_count != _row_count(fragment, what):
                raise ValueError(f"it has {row_count} rows, but its manifest lists another number")
            table = parquet.read_parquet(content)
            if table.schema != schema:
                raise ValueError("its columns are not those of such a file")
            if not _CHECKS.get(what, _is_of_process)(table, fragment):
                raise ValueError("it does not match the manifest in its directory")
            if what in PLAIN and not _is_all(table, table.column_names[0], snapshot):
                raise ValueError(f"it does not belong to snapshot {snapshot}")
            links.append(table)
    if what in PLAIN:
        return links[0]
    with parquet.as_written(path):
        table = parquet.apply_changes(links)
        identity = table.column(parquet.identity_of(table.column_names))
        if pc.count_distinct(identity).as_py() != table.num_rows:
            raise ValueError("it contains a key twice")
        # They are rows of this snapshot, whichever recorded them.
        name = pa.repeat(pa.scalar(snapshot), table.num_rows)
        return table.set_column(0, parquet.SNAPSHOT, name)


def _row_count(fragment: FragmentFiles, what: str) -> int:
    if what == PROCESSES:
        return 1
    books = fragment["books"]
    return len(books) if what == CHANNELS else sum(count for *_, count in books)


def _is_all(table: pa.Table, column: str, value: str) -> bool:
    return pc.unique(table.column(column)).to_pylist() in ([], [value])


def _is_of_process(table: pa.Table, fragment: FragmentFiles) -> bool:
    return _is_all(table, parquet.PROCESS, fragment["process"])


def _is_state(table: pa.Table, fragment: FragmentFiles) -> bool:
    return _is_of_process(table, fragment) and _is_all(table, parquet.KIND, fragment["kind"])


def _are_channels(table: pa.Table, fragment: FragmentFiles) -> bool:
    """Return whether these are the process's incoming channels, with the counts of both ends."""
    named = ("source", *_COUNTS)
    found = sorted(zip(*(table.column(name).to_pylist() for name in named), strict=True))
    known = sorted(map(tuple, fragment["books"]))
    return found == known and _is_all(table, "target", fragment["process"])


def _are_messages(table: pa.Table, fragment: FragmentFiles) -> bool:
    rest = table.num_rows
    for source, _, received_count, message_count in fragment["books"]:
        of_one = table.filter(pc.equal(table.column(parquet.SOURCE), source))
        if of_one.num_rows != message_count:
            return False
        wanted = np.arange(of_one.num_rows) + (received_count + 1)
        if not np.array_equal(of_one.column(parquet.NUMBER).to_numpy(), wanted):
            return False
        rest -= of_one.num_rows
    return rest == 0 and _is_all(table, parquet.TARGET, fragment["process"])


_CHECKS = {PROCESSES: _is_state, CHANNELS: _are_channels, MESSAGES: _are_messages}
