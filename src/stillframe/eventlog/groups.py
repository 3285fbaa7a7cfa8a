"""The rows of one file of an event log, a bounded number at a time, checked before they are used.

Executors of a cluster run it: it needs no more than Arrow.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import Damaged
from stillframe.eventlog.schema import KINDS, ROW_GROUP_COUNT, SCHEMA

DICTIONARIES = ["kind", "channel", "snapshot"]
"""Columns in which few texts stand many times."""
STREAM = -1
"""In place of the number of a row group: all of a file that is a stream of batches."""

_MESSAGE_BEGINS = b"\xff\xff\xff\xff"
_MESSAGE_HEAD = re.compile(rb"\xff{4}[^\xff]..\0", re.DOTALL)
"""How a message begins, with the length of its metadata: a multiple of `_ALIGNMENT`."""
_ALIGNMENT = 8
_NO_TABLE = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError)
_UNPACKED_BYTES_MIN = 2**28
_UNPACKED_PER_BYTE = 64
_GROUP_BYTES_MAX = 2**30
"""So much a row group may become in memory, whatever it says."""


def whole_stream(source: pa.NativeFile) -> pa.RecordBatchReader | None:
    """Return a reader of a stream of batches up to its last whole one.

    A stream that is being written, or whose process was killed, misses bytes at its end and nowhere
    else. Whatever else cannot be read is damage: whole batches may come after it.

    Returns:
        None if not even its schema is whole.

    Raises:
        pyarrow.ArrowInvalid: a message is not what was written.
        OSError: it cannot be read.
    """
    size = source.size()
    messages = pa.ipc.MessageReader.open_stream(source)
    whole = following = 0
    while True:
        try:
            kind = messages.read_next_message().type
        except (StopIteration, pa.ArrowInvalid, OSError) as error:
            # What was appended later is left out: Arrow has not seen it.
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
    """Return whether what follows the last whole message of a stream is its end, or begins a
    message of which only the end is missing.

    Zeros are an end, too: some file systems leave them in place of what was not on the disk when
    the power failed. Of a message that is zeros in part nobody can say what made it so: it is
    damaged. So is a length that reaches past the end of the file, if a whole message follows.
    """
    if _MESSAGE_BEGINS.startswith(rest.rstrip(b"\0")):
        return True
    source = pa.BufferReader(rest)
    if not rest.startswith(_MESSAGE_BEGINS) or _is_message(source):
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


def whole_batches(stream: pa.RecordBatchReader, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream.

    Args:
        stream: what `whole_stream` returned of the file at `path`.
        path: of the file.

    Raises:
        Damaged: one is not what was written, or has other columns than an event log.
    """
    with as_written(path):
        for batch in stream:
            if not batch.schema.equals(SCHEMA):
                raise pa.ArrowInvalid(f"it has other columns: {batch.schema.to_string()}")
            # Arrow looks at nothing until it is asked to; what is wrong could end this process.
            batch.validate(full=True)
            yield pa.record_batch([_with_known_indices(array) for array in batch], schema=SCHEMA)


def _with_known_indices(array: pa.Array) -> pa.Array:
    """Return `array` with index 0 for each null, if it has a dictionary.

    Arrow does not validate the index of a null, but uses it when it unifies dictionaries. A large
    one makes it read out of bounds.
    """
    if not (pa.types.is_dictionary(array.type) and array.null_count):
        return array
    return pa.DictionaryArray.from_arrays(
        array.indices.fill_null(0).to_numpy(),
        array.dictionary,
        mask=array.is_null().to_numpy(zero_copy_only=False),
    )


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


def tables(path: Path, groups: Iterable[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows of a file in order, at most ``schema.ROW_GROUP_COUNT`` at a time.

    Args:
        path: of the file. If it was a stream when it was looked at and is there no more, its writer
            has written it again as Parquet: that is read then.
        groups: which row groups; `STREAM` alone: all of a stream.
        columns: which columns of ``schema.SCHEMA``.

    Raises:
        Damaged: it is not what was written, or too large; the file is named.
        FileNotFoundError: it is gone: its writer has removed it to make room.
    """
    wanted = list(groups)
    with as_written(path):
        if wanted == [STREAM] and path.suffix == ".parquet":
            return  # it has no row groups
        if wanted == [STREAM]:
            with contextlib.suppress(FileNotFoundError):
                for table in _stream(path):
                    yield _checked(table.select(columns), columns)
                return
            path, wanted = path.with_suffix(".parquet"), []
        for table in _of_parquet(path, wanted, columns):
            yield _checked(table, columns)


def _stream(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as source:
        if (stream := whole_stream(source)) is not None:
            yield from row_groups(whole_batches(stream, path))


def _of_parquet(path: Path, wanted: list[int], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield row groups of a Parquet file; all of them if none is named."""
    size_max = _UNPACKED_BYTES_MIN + _UNPACKED_PER_BYTE * path.stat().st_size
    with pq.ParquetFile(
        path, read_dictionary=DICTIONARIES, page_checksum_verification=True
    ) as file:
        for number in wanted or range(file.num_row_groups):
            # Of the group only: to ask what a column says of itself can end this process.
            group = file.metadata.row_group(number)
            if not 0 <= group.total_byte_size <= size_max:
                raise ValueError(f"it would be {group.total_byte_size} bytes in memory")
            if not 0 <= group.num_rows <= ROW_GROUP_COUNT:
                raise ValueError(f"it has {group.num_rows} rows in a group")
            yield file.read_row_group(number, columns=list(columns), use_threads=False)


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
            raise ValueError(f"column {name} has an empty place")
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
    """Refuse what no process writes.

    Raises:
        Damaged: the body finds that the file at `path` is no part of an event log.
        FileNotFoundError: it is not there.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except _NO_TABLE as error:
        raise Damaged(
            f"{path} is no file of an event log as it was written: {error}: move it out of the "
            "directory; what else is there can be read"
        ) from error
