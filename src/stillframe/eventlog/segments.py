"""The segments of an event log: their schema, and their rows, checked before they are used.

    LOG/e1/P1/events-000001.parquet     the first rows of process P1 in epoch 1
    LOG/e1/P1/events-000002.arrows      the rows after them: a segment that is still being written

There is one row for each event of a process, in order. An atomic action (``trace.Event``) is a row
for each message that it accepted or sent, all with its number among the actions of the process; or
one row of kind `INTERNAL` if there are none. A step of a snapshot is rows, too: they bear the
number of the last action before it.

A segment that is being written is a stream of Arrow record batches, which a crash can only cut
short; a complete one is Parquet. The schema of each carries its header (``reader.SegmentHeader``):
whose log it is, and what came before it.

Executors of a cluster import this module: it needs no more than Arrow.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import Damaged, text_of
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.range_file import RangeFile
from stillframe.storage.reading import readable

ACCEPTED = "accepted"
SENT = "sent"
INTERNAL = "internal"
MARKER_ACCEPTED = "marker accepted"
RECORDED = "recorded"
MARKER_SENT = "marker sent"
KINDS = (ACCEPTED, SENT, INTERNAL, MARKER_ACCEPTED, RECORDED, MARKER_SENT)
"""The kinds of rows. Those of one step of a snapshot come in this order: the marker that arrived,
the state that was recorded, the markers that were sent for that."""

SCHEMA = pa.schema(
    [
        pa.field("event", pa.int64()),  # which action of this process, from 1
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),  # one of KINDS
        pa.field("channel", pa.dictionary(pa.int32(), pa.string())),  # P1->P2; null: on none
        pa.field("number", pa.int64()),  # of the message on its channel; null: no message
        pa.field("snapshot", pa.dictionary(pa.int32(), pa.string())),  # P1-17; null: no step of one
        # When, for a step of a snapshot, else null: it starts when a marker arrives or the state is
        # recorded, and sends its markers after that.
        pa.field("at", pa.timestamp("us", tz="UTC")),
        # For a marker that was accepted: the numbers of the messages that were recorded on its
        # channel; null if the process had left the snapshot.
        pa.field(
            "recorded",
            pa.list_(pa.struct([pa.field("first", pa.int64()), pa.field("count", pa.int64())])),
        ),
    ]
)

ROW_GROUP_COUNT = 2**20
"""Maximum rows in a row group: a reader holds one row group at a time."""


DICTIONARIES = ["kind", "channel", "snapshot"]
"""Columns with few distinct texts."""
STREAM = -1
"""Instead of the number of a row group: all rows of a stream of batches."""

_MESSAGE_BEGINS = b"\xff\xff\xff\xff"
_MESSAGE_HEAD = re.compile(rb"\xff{4}[^\xff]..\0", re.DOTALL)
"""How an Arrow message begins, with the length of its metadata: a multiple of `_ALIGNMENT`."""
_ALIGNMENT = 8
_NO_TABLE = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError)
_UNPACKED_BYTES_MIN = 2**28
_UNPACKED_PER_BYTE = 64
_GROUP_BYTES_MAX = 2**30
"""Maximum size of a row group in memory."""


def whole_stream(source: pa.NativeFile) -> pa.RecordBatchReader | None:
    """Return a reader of a stream of batches up to its last whole one; None without a whole schema.

    A stream that is being written, or whose process was killed, misses bytes at its end and nowhere
    else. Anything else that cannot be read is damage, an ArrowInvalid or OSError: whole batches may
    come after it.
    """
    size = source.size()
    messages = pa.ipc.MessageReader.open_stream(source)
    whole = following = 0
    while True:
        try:
            kind = messages.read_next_message().type
        except (StopIteration, pa.ArrowInvalid, pa.ArrowMemoryError, OSError) as error:
            # Rows that were appended later are left out: Arrow has not seen them.
            rest_bytes = max(size, source.tell()) - following
            is_too_long = rest_bytes > _GROUP_BYTES_MAX
            if is_too_long or not _is_cut_short(source.read_at(rest_bytes, following)):
                raise pa.ArrowInvalid(f"no message follows its first {following} bytes") from error
            return pa.ipc.open_stream(source.get_stream(0, whole)) if whole else None
        following = source.tell()
        if following % _ALIGNMENT:  # Arrow would read the next one, too, in its oldest format
            raise pa.ArrowInvalid(f"a message ends after its first {following} bytes")
        if kind != "dictionary":  # a dictionary counts if a batch follows that may need it
            whole = following


def _is_cut_short(rest: bytes) -> bool:
    """Return whether the bytes after the last whole message are its end, or a message cut short.

    Zeros are an end, too: some file systems leave them where bytes had not reached the disk when
    the power failed. A message with some zeros is damaged, and so is one whose length reaches past
    the end of the file, if a whole message follows.
    """
    if _MESSAGE_BEGINS.startswith(rest.rstrip(b"\0")):
        return True
    if not rest.startswith(_MESSAGE_BEGINS) or (len(rest) >= 8 and not _MESSAGE_HEAD.match(rest)):
        return False
    source = pa.BufferReader(rest)
    if _is_message(source):
        return False
    # If bytes are missing, Arrow has asked for more than there are.
    return source.tell() == len(rest) and not any(
        _is_message(pa.BufferReader(pa.py_buffer(rest).slice(head.start())))
        for head in _MESSAGE_HEAD.finditer(rest, len(_MESSAGE_BEGINS))
    )


def _is_message(source: pa.NativeFile) -> bool:
    try:
        pa.ipc.read_message(source)
    except (pa.ArrowException, OSError, EOFError):
        return False
    return True


@contextlib.contextmanager
def open_parquet(path: Location, **options: Any) -> Iterator[tuple[pq.ParquetFile, int]]:
    """Open a complete segment, and find its size. Of an object store its end is read, and then what
    is asked for."""
    if isinstance(path, ObjectPath):
        remote = RangeFile(path)
        source, size = pa.PythonFile(remote, mode="r"), remote.size
    else:
        source, size = path, path.stat().st_size
    with pq.ParquetFile(source, **options) as file:
        yield file, size


def open_stream(path: Location) -> pa.NativeFile:
    """Open a segment that is being written. Of an object store all of it is read."""
    if not isinstance(path, ObjectPath):
        return pa.OSFile(str(path))
    with readable(path):
        content, _ = storage_of(path).read(path, bytes_max=_GROUP_BYTES_MAX)
    if len(content) > _GROUP_BYTES_MAX:
        raise ValueError(f"it has more than {_GROUP_BYTES_MAX} bytes")
    return pa.BufferReader(content)


def whole_batches(stream: pa.RecordBatchReader, path: Location) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the stream that `whole_stream` returned for the file at `path`."""
    with as_written(path):
        for batch in stream:
            if not batch.schema.equals(SCHEMA):
                raise pa.ArrowInvalid(f"it has other columns: {batch.schema.to_string()}")
            # Arrow validates nothing until it is asked to; a wrong offset could end this process.
            batch.validate(full=True)
            yield pa.record_batch([_with_known_indices(array) for array in batch], schema=SCHEMA)


def _with_known_indices(array: pa.Array) -> pa.Array:
    """Return `array` with index 0 for each null, if it has a dictionary.

    Arrow does not validate the index of a null, but uses it to unify dictionaries, and reads out of
    bounds. `array` is from a stream, so it has no offset.
    """
    if not (pa.types.is_dictionary(array.type) and array.null_count):
        return array
    validity, _ = array.indices.buffers()
    known = array.indices.fill_null(0).buffers()[1]
    indices = pa.Array.from_buffers(array.indices.type, len(array), [validity, known])
    return pa.DictionaryArray.from_arrays(indices, array.dictionary)


def row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches, `ROW_GROUP_COUNT` at a time."""
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + rest.num_rows >= ROW_GROUP_COUNT:
            taken = ROW_GROUP_COUNT - count
            yield pa.Table.from_batches([*gathered, rest.slice(0, taken)]).unify_dictionaries()
            gathered, count, rest = [], 0, rest.slice(taken)
        if rest.num_rows:
            gathered.append(rest)
            count += rest.num_rows
    if gathered:
        yield pa.Table.from_batches(gathered).unify_dictionaries()


def read_rows(path: Location, groups: Iterable[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows of a segment in order, with some columns of `SCHEMA`, at most `ROW_GROUP_COUNT` at
    a time. `groups` are the numbers of row groups; `STREAM` alone: all of a stream, or of the
    Parquet by which its writer has replaced it since it was listed.

    Damaged: it is not what was written, or too large, and the file is named; FileNotFoundError: its
    writer has removed it to make room.
    """
    with as_written(path):
        for table in _tables(path, list(groups), list(columns)):
            yield _checked(table, columns)


def _tables(path: Location, wanted: list[int], columns: list[str]) -> Iterator[pa.Table]:
    if wanted == [STREAM]:
        if path.suffix == ".parquet":
            return  # it has no row groups
        with contextlib.suppress(FileNotFoundError), open_stream(path) as source:
            if (stream := whole_stream(source)) is not None:
                for table in row_groups(whole_batches(stream, path)):
                    yield table.select(columns)
            return
        path, wanted = path.with_name(f"{path.stem}.parquet"), []
    options = {"read_dictionary": DICTIONARIES, "page_checksum_verification": True}
    with open_parquet(path, **options) as (file, size):
        size_max = _UNPACKED_BYTES_MIN + _UNPACKED_PER_BYTE * size
        for number in wanted or range(file.num_row_groups):
            # Only from the group: reading the metadata of a column can end this process.
            group = file.metadata.row_group(number)
            if not 0 <= group.total_byte_size <= size_max:
                raise ValueError(f"it would be {group.total_byte_size} bytes in memory")
            if not 0 <= group.num_rows <= ROW_GROUP_COUNT:
                raise ValueError(f"it has {group.num_rows} rows in a group")
            yield file.read_row_group(number, columns=columns, use_threads=False)


def _checked(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return `table` if its rows can be those of an event log."""
    if table.column_names != list(columns):
        raise ValueError(f"it has the columns {', '.join(table.column_names)}")
    if table.nbytes > _GROUP_BYTES_MAX:
        raise ValueError(f"{table.num_rows} of its rows are {table.nbytes} bytes in memory")
    for name in table.column_names:
        found, expected = table.schema.field(name).type, SCHEMA.field(name).type
        if found != expected:
            raise ValueError(f"column {name} is of type {found}, not {expected}")
    table.validate(full=True)
    for name in {"event", "kind"}.intersection(table.column_names):
        if table.column(name).null_count:
            raise ValueError(f"column {name} has a missing value")
    if "recorded" in table.column_names:
        for chunk in table.column("recorded").chunks:
            runs = chunk.flatten()
            if any(part.null_count for part in (runs, *runs.flatten())):
                raise ValueError("column recorded has messages without numbers")
    if "kind" in table.column_names:
        chunks = table.column("kind").chunks
        kinds = {kind for chunk in chunks for kind in chunk.dictionary.to_pylist()}
        if not kinds <= {*KINDS}:
            raise ValueError(f"it has rows of the kind {', '.join(map(repr, kinds - {*KINDS}))}")
    return table


@contextlib.contextmanager
def as_written(path: Any) -> Iterator[None]:
    """Turn errors of the body, which reads the file at `path`, into a Damaged. A FileNotFoundError
    passes: its writer may have removed or replaced the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _NO_TABLE as error:
        why = " ".join(text_of(error).split())
        raise Damaged(
            f"{path} is not an intact file of an event log: {why}: move it out of the directory; "
            "the other files can still be read",
            path=path,
        ) from error


class Row(NamedTuple):
    """A row of `SCHEMA`; `at` in microseconds since 1970."""

    event: int
    kind: str
    channel: str | None
    number: int | None
    snapshot: str | None
    at: int | None
    recorded: list[dict[str, int]] | None = None


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table with all columns of `SCHEMA`, or all but the last."""
    columns = [
        table.column(name).cast(pa.int64()) if name == "at" else table.column(name)
        for name in Row._fields
        if name in table.column_names
    ]
    yield from map(Row, *(column.to_pylist() for column in columns))


def grouped(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each action, and of each step of a snapshot."""
    group: list[Row] = []
    for row in rows:
        if group and not _goes_on(group[-1], row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _goes_on(before: Row, row: Row) -> bool:
    """Return whether two successive rows are of the same action, or of the same step."""
    if row.event != before.event or row.snapshot != before.snapshot:
        return False
    return (
        row.snapshot is None
        or KINDS.index(row.kind) > KINDS.index(before.kind)
        or (row.kind == before.kind == MARKER_SENT)
    )


_COUNTING_UP = {"event": "DELTA_BINARY_PACKED", "number": "DELTA_BINARY_PACKED"}
_WITH_STATISTICS = ["event", "number", "at"]
"""The other columns are not sorted, and finding their extremes takes longer than writing them."""
_WRITE_BATCH_COUNT = 2**16


def write_packed(source: pa.NativeFile, path: Location, file: IO[bytes]) -> None:
    """Write the whole batches of the stream `source` into `file`, as Parquet. `path` is where the
    stream is from: a Damaged names it if it is not what was written."""
    with as_written(path):
        stream = whole_stream(source)
        if stream is None:
            raise ValueError("its schema is incomplete")
    with pq.ParquetWriter(
        file,
        stream.schema,
        compression="zstd",
        use_dictionary=DICTIONARIES,
        write_page_checksum=True,
        column_encoding=_COUNTING_UP,
        store_schema=False,
        write_statistics=_WITH_STATISTICS,
        write_batch_size=_WRITE_BATCH_COUNT,
    ) as writer:
        writer.add_key_value_metadata(stream.schema.metadata)
        for table in row_groups(whole_batches(stream, path)):
            writer.write_table(table, row_group_size=ROW_GROUP_COUNT)
