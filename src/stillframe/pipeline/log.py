"""A log: a channel on disk, as Parquet files in one order, with barriers between them.

    ROOT/channels/LOG/epoch-1/00000000000000000007.json   entry 7: which rows, or which barrier
    ROOT/channels/LOG/epoch-1/data/...parquet             the rows; only if an entry names them

Entries are numbered from 0 without a gap. An entry appears in one step, by a hard link that fails
if the number is taken, so that no reader sees half of one and two writers never both win. A record
is identified by partition and offset; an entry holds the offset of each partition before it.

In an object store the entry is written with the condition that there is none of that number. One
of a query also names the query's run (``query_runs``), and the runs of a log never fall.
"""

import bisect
import contextlib
import io
import itertools
import os
import re
import uuid
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillframe.durable_files import check_content, check_file, checksum_of, write_new
from stillframe.errors import Damaged, NotConsistent, StoreError, Unavailable, UsageError, text_of
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Log, schema_difference
from stillframe.pipeline.metadata import CHANNELS, Metadata, Segment, with_ends
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import Place, below, mapped, names
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there, read_file
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

DATA = "data"
BATCH_ROW_COUNT = 2**16
"""Maximum records of a batch."""
TO_MEND = (
    "put the file back from a copy of the pipeline, or restore the pipeline from a snapshot "
    "that does not need it; a restore verifies that before it changes anything"
)
"""The end of every error about an entry that is not what was written."""
_LOOKED_COUNT = 1024
"""How many entries are looked for before it is asked whether one is missing."""
_READ_BYTES_MAX = 2**32
"""A data file in an object store is read as a whole: a table of this many bytes does not fit."""
_encode = msgspec.json.Encoder().encode
_DATA_FILE = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/part-[\w.=-]+)?", re.ASCII)
"""A file of a service, or one in the directory of a micro-batch. It leads nowhere else."""


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file of one entry; `name` is its path below the epoch's data directory, `checksum`
    its checksum (``durable_files``)."""

    name: str
    partition: int
    record_count: int
    checksum: int


class Rows(msgspec.Struct, frozen=True, tag="rows", forbid_unknown_fields=True):
    """Records. `batch` is the micro-batch of the query that wrote them, None from a service."""

    files: tuple[DataFile, ...]
    batch: int | None = None


class Barrier(msgspec.Struct, frozen=True, tag="barrier", forbid_unknown_fields=True):
    """Separates the entries before the cut of `snapshot` from those after it; `batch` is the newest
    micro-batch whose records come before it in the same epoch."""

    snapshot: SnapshotId
    mode: Mode
    batch: int | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a log; `offsets` is the number of records of each partition before it. In an
    object store `run` is that of the query which appended it; no other entry has it."""

    format: int = FORMAT
    number: int
    epoch: int
    offsets: tuple[int, ...]
    content: Rows | Barrier
    run: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def record_count(self) -> int:
        """How many records it holds."""
        return sum(file.record_count for file in self.files)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Its data files; a barrier has none."""
        return self.content.files if isinstance(self.content, Rows) else ()

    @property
    def next_offsets(self) -> tuple[int, ...]:
        """How many records of each partition come before the next entry."""
        counts = list(self.offsets)
        for file in self.files:
            counts[file.partition] += file.record_count
        return tuple(counts)

    def fits(self, log: Log) -> bool:
        """Return whether a writer of `log` may have written it."""
        return (
            len(self.offsets) == log.partition_count
            and min(self.offsets) >= 0
            and all(
                0 <= file.partition < log.partition_count
                and file.record_count >= 0
                and _DATA_FILE.fullmatch(file.name) is not None
                for file in self.files
            )
        )


class LogBatch(msgspec.Struct, frozen=True):
    """Some consecutive records of a channel of a pipeline.

    Attributes:
        position: the entry of the log that they are part of. To read on after its last batch, start
            at the next position.
        partition: their partition.
        offset: how many records of that partition come before them.
        records: with the columns of the channel.
    """

    position: int
    partition: int
    offset: int
    records: pa.RecordBatch


def epoch_directory(root: Place, log: str, epoch: int) -> Place:
    """Return where a log keeps what was appended in `epoch`."""
    return below(root, CHANNELS, log, f"epoch-{epoch}")


def entry_name(number: int) -> str:
    """Return the name of an entry's file."""
    return f"{number:020d}.json"


class LogReader:
    """Reads a log of the pipeline at `root` as it is in one epoch, in which it has these segments.
    Entries that others append appear automatically."""

    def __init__(self, root: Location, log: Log, segments: Sequence[Segment]) -> None:
        self.log = log
        self._root = root
        self._segments = tuple(segments)
        self._directories = {s.epoch: epoch_directory(root, log.name, s.epoch) for s in segments}
        self._entries: dict[int, LogEntry] = {}
        self._forgotten = 0
        self._tail = 0
        self._sought: SnapshotId | None = None
        self._sought_from = self._sought_until = 0
        self._barrier: int | None = None

    def tail(self, position: int) -> int:
        """Return the number that the next entry appended will have; at least `position`. A damaged
        log may seem to end where an entry is missing (``check_whole``)."""
        first = max(self._tail, position)
        step = 1
        while is_there(self.entry_path(first + step - 1)):
            step *= 2
        # Entries are without a gap: the tail is in the half of the last step that was too far.
        numbers = range(first + step // 2, first + step - 1)
        self._tail = numbers.start + bisect.bisect_left(
            numbers, 1, key=lambda number: 0 if is_there(self.entry_path(number)) else 1
        )
        return self._tail

    def first_kept(self) -> int:
        """Return the number of the first entry that was not trimmed; 0 if the log has no target: it
        is the output of the pipeline, and is never trimmed."""
        if not self.log.targets:
            return 0
        for segment, end in with_ends(self._segments):
            numbers = numbers_in(self._directories[segment.epoch])
            kept = [n for n in numbers if n >= segment.first and (end is None or n < end)]
            if kept:
                return min(kept)
        return self._segments[-1].first

    def check_whole(self, position: int) -> None:
        """Raise Damaged if a log has a gap at `position` or later, which ``tail`` may take for the
        end. Entries are appended one after the other, so all before an existing one must exist."""
        last = self._segments[-1]
        listed = {n for n in numbers_in(self._directories[last.epoch]) if n >= last.first}
        newest = max(listed, default=last.first - 1)
        missing = self.first_missing(position, newest + 1, listed=listed)
        if missing is not None:
            raise Damaged(
                f"{self.entry_path(missing)} is missing, but entry {newest} of channel "
                f"{self.log.name} exists",
                path=self.entry_path(missing),
                remedy=TO_MEND,
            )

    def first_missing(self, start: int, end: int, *, listed: Collection[int] = ()) -> int | None:
        """Return the first missing one of the entries ``start .. end - 1``; it opens none, and does
        not look for those `listed`."""
        numbers = (number for number in range(start, end) if number not in listed)
        # Some at a time, and no list of all: a damaged file may name any end.
        while some := list(itertools.islice(numbers, _LOOKED_COUNT)):
            found = mapped(self._root, lambda number: is_there(self.entry_path(number)), some)
            for number, exists in zip(some, found, strict=True):
                if not exists:
                    return number
        return None

    def entries(self, start: int, end: int) -> Iterator[LogEntry]:
        """Yield the entries ``start .. end - 1``, which must exist."""
        yield from mapped(self._root, self.entry, range(start, end))

    def entry(self, number: int) -> LogEntry:
        """Return one entry."""
        entry = self._entries.get(number)
        if entry is None:
            path = self.entry_path(number)
            entry = read_sealed(path, LogEntry, advice=TO_MEND)
            if entry.number != number or entry.epoch != self._epoch(number):
                raise Damaged(
                    f"{path} is not entry {number} of channel {self.log.name}",
                    path=path,
                    remedy=TO_MEND,
                )
            if not entry.fits(self.log):
                raise Damaged(
                    f"{path} names files, partitions or counts that channel {self.log.name} cannot "
                    f"have",
                    path=path,
                    remedy=TO_MEND,
                )
            self.remember(entry)
        return entry

    def remember(self, entry: LogEntry) -> None:
        """Keep an entry in memory, until it is forgotten."""
        self._entries[entry.number] = entry
        self._forgotten = min(self._forgotten, entry.number)

    def forget(self, position: int) -> None:
        """Free the memory of the entries before `position`."""
        if not self._entries:
            self._forgotten = position
        if position - self._forgotten > len(self._entries):
            self._entries = {n: entry for n, entry in self._entries.items() if n >= position}
        else:
            for number in range(self._forgotten, position):
                self._entries.pop(number, None)
        self._forgotten = max(self._forgotten, position)

    def find_barrier(self, snapshot: SnapshotId, start: int, end: int) -> int | None:
        """Return the position of a snapshot's barrier among the entries ``start .. end - 1``;
        repeated calls while the log grows read each entry once."""
        if snapshot != self._sought or not self._sought_from <= start <= self._sought_until:
            self._sought, self._barrier = snapshot, None
            self._sought_from = self._sought_until = start
        for entry in self.entries(self._sought_until, end):
            if isinstance(entry.content, Barrier) and entry.content.snapshot == snapshot:
                self._barrier = entry.number
        self._sought_until = max(self._sought_until, end)
        found = self._barrier
        return found if found is not None and start <= found < end else None

    def data_path(self, entry: LogEntry, file: DataFile) -> Any:
        """Return the path of a data file of an entry, of the kind of `root`."""
        return below(self._directories[self._epoch(entry.number)], DATA, file.name)

    def entry_path(self, number: int) -> Any:
        """Return the path of an entry's file, of the kind of `root`."""
        return below(self._directories[self._epoch(number)], entry_name(number))

    def table(self, entry: LogEntry) -> pa.Table:
        """Return the records of one entry, partition by partition."""
        schema = self.log.arrow_schema
        tables = []
        for file in entry.files:
            path = self.data_path(entry, file)
            table = read_records(path, schema, file.checksum)
            self._check_count(entry, file, table.num_rows)
            tables.append(table)
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def batches(self, start: int, end: int) -> Iterator["LogBatch"]:
        """Yield the records of the entries ``start .. end - 1`` in batches, in order. Memory holds
        one entry and one batch at a time. A UsageError if an entry was trimmed meanwhile."""
        for number in range(start, end):
            try:
                entry = self.entry(number)
                for file in entry.files:
                    yield from self._file_batches(entry, file)
            except Damaged:
                if number < (kept := self.first_kept()):
                    raise UsageError(
                        f"entry {number} of channel {self.log.name} was trimmed",
                        remedy=f"start at entry {kept} or later",
                    ) from None
                raise
            self.forget(number + 1)

    def _file_batches(self, entry: LogEntry, file: DataFile) -> Iterator["LogBatch"]:
        before = entry.files[: entry.files.index(file)]
        first = entry.offsets[file.partition]
        first += sum(one.record_count for one in before if one.partition == file.partition)
        path, count = self.data_path(entry, file), 0
        for batch in record_batches(path, self.log.arrow_schema, file.checksum):
            yield LogBatch(entry.number, file.partition, first + count, batch)
            count += batch.num_rows
        self._check_count(entry, file, count)

    def _check_count(self, entry: LogEntry, file: DataFile, found: int) -> None:
        if found != file.record_count:
            path = self.data_path(entry, file)
            raise Damaged(
                f"{path} holds {found} records, but entry {entry.number} of channel "
                f"{self.log.name} lists {file.record_count}",
                path=path,
                remedy=TO_MEND,
            )

    def offsets_at(self, position: int) -> tuple[int, ...]:
        """Return for each partition how many records come before `position`."""
        if position == 0:
            return (0,) * self.log.partition_count
        return self.entry(position - 1).next_offsets

    def _epoch(self, number: int) -> int:
        for segment in reversed(self._segments):
            if segment.first <= number:
                return segment.epoch
        raise StoreError(
            f"channel {self.log.name} has no entry {number}: its first segment is later"
        )


class LogWriter:
    """Appends to a log in the current epoch. The caller holds the lock of the log's source. One
    that `is_alone` appends after what it has seen when it was made, and after its own entries. An
    entry of another writer is an Unavailable, and one that was reported as failed, too. One of a
    `run` appends nothing after an entry of a later run."""

    def __init__(
        self,
        root: Location,
        log: Log,
        metadata: Metadata,
        *,
        is_alone: bool = False,
        run: int | None = None,
    ) -> None:
        self.log = log
        self._is_alone = is_alone
        self._run = msgspec.UNSET if run is None else run
        self.reader = LogReader(root, log, metadata.segments[log.name])
        self._epoch = metadata.epoch
        self._directory = epoch_directory(root, log.name, metadata.epoch)
        self._first = metadata.segments[log.name][-1].first
        self._uncertain: list[Rows | Barrier] = []
        with explain_io_errors(self._directory, "made"):
            if isinstance(self._directory, Path):
                (self._directory / DATA).mkdir(parents=True, exist_ok=True)
            self._tail = max(numbers_in(self._directory), default=self._first - 1) + 1

    @property
    def data_directory(self) -> Any:
        """Where data files go before ``append_files`` makes them part of the log; of the kind of
        `root`."""
        return self._directory / DATA

    def tail(self) -> int:
        """Return the number that the next entry will have."""
        if not self._is_alone:
            self._tail = self.reader.tail(self._tail)
        return self._tail

    def last_batch(self) -> int | None:
        """Return the newest micro-batch of this epoch whose records are in the log. Unavailable if
        a later run has appended."""
        number = self.tail()
        self._check_run(number)
        return self._batch_before(number)

    def _batch_before(self, number: int) -> int | None:
        return self.reader.entry(number - 1).content.batch if number > self._first else None

    def append(self, table: pa.Table) -> int:
        """Append the records of a table, and return the number of the entry; UsageError if its
        columns are not the declared ones, Unavailable if another program appended. A key selects
        the partition of each record; without one they are used round-robin, also from call to
        call."""
        difference = schema_difference(self.log.arrow_schema, table.schema)
        if difference is not None:
            raise UsageError(f"channel {self.log.name} does not accept these records: {difference}")
        first = sum(self.reader.offsets_at(self.tail())) % self.log.partition_count
        files = []
        with explain_io_errors(self.data_directory, "written"):
            for partition, records in spread(table, self.log, first):
                name = f"{uuid.uuid4().hex}-{partition}.parquet"
                checksum = write_records(self.data_directory / name, records)
                files.append(DataFile(name, partition, records.num_rows, checksum))
        return self.append_files(files, batch=None)

    def append_files(self, files: Sequence[DataFile], *, batch: int | None) -> int:
        """Make files that are in the data directory part of the log; return the entry's number.
        They come right after what this writer has last seen of the log (``last_batch``, ``tail``),
        so of two writers that both miss a micro-batch only one appends it, and the other gets an
        Unavailable. No barrier is appended in between, because one is only ever appended between
        two micro-batches."""
        return self._commit(Rows(tuple(files), batch), self._tail)

    def fence(self) -> None:
        """Append an entry without records: after it no earlier run of the query appends anything.
        Unavailable if a later run has appended."""
        while True:
            batch = self.last_batch()
            with contextlib.suppress(Unavailable):  # an earlier run has appended meanwhile
                self._commit(Rows((), batch), self._tail)
                return

    def append_barrier(self, snapshot: SnapshotId, mode: Mode, *, batch: int | None = None) -> int:
        """Append a barrier, unless the last entry is that one; return its position. `batch` is the
        micro-batch after which a query has recorded its state; NotConsistent if the log holds
        records of a later one."""
        number = self.tail()
        self._check_run(number)
        written = self._batch_before(number)
        for before in range(number - 1, self._first - 1, -1):
            last = self.reader.entry(before).content
            if isinstance(last, Barrier) and last.snapshot == snapshot:
                return before
            if isinstance(last, Barrier) or last.files:
                break  # else the query was started again after the barrier
        if written is not None and (batch is None or written > batch):
            raise NotConsistent(
                f"channel {self.log.name} holds records of micro-batch {written} of query "
                f"{self.log.source}, whose last committed one is {batch}: no state can be "
                "recorded in between"
            )
        # At just this place: an entry appended meanwhile by another program must not precede it.
        return self._commit(Barrier(snapshot, mode, written), number)

    def settle(self) -> None:
        """Make sure that no append of records that failed takes effect later. Unavailable if one
        has taken effect."""
        if any(isinstance(content, Rows) for content in self._uncertain):
            self._commit(Rows(()), self._tail)

    def _commit(self, content: Rows | Barrier, number: int) -> int:
        entry = LogEntry(
            number=number,
            epoch=self._epoch,
            offsets=self.reader.offsets_at(number),
            content=content,
            run=self._run,
        )
        path = self._directory / entry_name(number)
        with explain_io_errors(path, "written"):
            try:
                _write_once(path, seal(entry))
            except FileExistsError:
                entry = self._own(number)
            except OSError:
                if isinstance(path, ObjectPath):
                    self._uncertain.append(content)  # it may be there, or come later
                raise
        self._uncertain.clear()
        self.reader.forget(number)
        self.reader.remember(entry)  # the next one needs its offsets
        self._tail = number + 1
        # What exists may be a barrier whose snapshot has ended.
        return number if entry.content == content else self._commit(content, number + 1)

    def _own(self, number: int) -> LogEntry:
        """Return the entry that exists, if this writer may append after it; else Unavailable.

        It may be a barrier, from an attempt that was reported as failed, or from a coordinator that
        found the service at rest just before this writer was made. Neither is a second writer.
        """
        entry = self.reader.entry(number) if self._is_alone else None
        if entry is not None and (
            isinstance(entry.content, Barrier) or entry.content in self._uncertain
        ):
            if not entry.files:
                return entry
            raise Unavailable(
                f"channel {self.log.name}: entry {number} was appended, although that was "
                f"reported as failed; the state of {self.log.source} may not match it",
                process=self.log.source,
                remedy="restore the pipeline from its last snapshot and start the service again",
            ) from None
        raise Unavailable(
            f"channel {self.log.name}: another program has just written entry {number}; "
            "a channel has one writer: stop the other one"
        ) from None

    def _check_run(self, number: int) -> None:
        """Raise Unavailable if the entry before is of a later run. A writer looks at it, and then
        takes this number or fails: so no run appends after a later one."""
        if self._run is msgspec.UNSET or number <= self._first:
            return
        before = self.reader.entry(number - 1).run
        if before is not msgspec.UNSET and before > self._run:
            raise Unavailable(
                f"channel {self.log.name}: query {self.log.source} was started again by another "
                "program, and this one writes nothing more: stop it"
            )


def _write_once(path: Location, content: bytes) -> None:
    """Write an entry in one step; FileExistsError if there is one already."""
    if isinstance(path, ObjectPath):
        storage_of(path).put_if_absent(path, content)
        return
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        write_new(partial, content)
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def numbers_in(directory: Location) -> list[int]:
    """Return the numbers of the entries in a directory, which need not exist, in any order."""
    with explain_io_errors(directory, "read"):
        stems = [name.removesuffix(".json") for name in names(directory)]
    return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]


# --- records


def write_records(path: Location, table: pa.Table) -> int:
    """Write records as a Parquet file, and return its checksum."""
    if isinstance(path, ObjectPath):
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        storage_of(path).put(path, file.getvalue())
        return zlib.crc32(file.getbuffer())
    pq.write_table(table, path, compression="zstd")
    return checksum_of(path)


def read_records(path: Location, schema: pa.Schema, checksum: int) -> pa.Table:
    """Read a Parquet file of a log, whose checksum when it was written is given."""
    return pa.Table.from_batches(record_batches(path, schema, checksum), schema)


def record_batches(path: Location, schema: pa.Schema, checksum: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a Parquet file of a log in batches; see ``read_records``."""
    source: Path | pa.BufferReader
    if isinstance(path, ObjectPath):
        content = read_file(path, bytes_max=_READ_BYTES_MAX)
        check_content(path, zlib.crc32(content), checksum)
        source = pa.BufferReader(content)
    else:
        check_file(path, checksum)
        source = path
    try:
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(BATCH_ROW_COUNT, columns=schema.names):
                table = pa.Table.from_batches([batch]).select(schema.names)
                # Spark writes times without their zone.
                difference = schema_difference(schema, table.schema, with_zones=False)
                if difference is not None:
                    raise Damaged(
                        f"{path} does not have the columns of its channel: {difference}", path=path
                    )
                yield from table.cast(schema).to_batches()
    except (OSError, pa.ArrowException, KeyError, UnicodeError) as error:
        raise Damaged(
            f"{path} cannot be read as records of its channel: {text_of(error)}", path=path
        ) from error


def spread(table: pa.Table, log: Log, first: int = 0) -> list[tuple[int, pa.Table]]:
    """Return the partitions of `log` that get records of a table, each with its records in their
    order. Without a key the partitions are used round-robin, from partition `first` on."""
    count = log.partition_count
    if count == 1:
        return [(0, table)] if table.num_rows else []
    if not log.key:
        turns = range(min(count, table.num_rows))
        return [
            ((first + turn) % count, table.take(list(range(turn, table.num_rows, count))))
            for turn in turns
        ]
    places = _places(table.select(log.key), count)
    ordered = table.take(pc.sort_indices(places))  # a stable sort: records keep their order
    parts = []
    done_count = 0
    sizes = {int(one["values"]): int(one["counts"]) for one in pc.value_counts(places).to_pylist()}
    for place in sorted(sizes):
        parts.append((place, ordered.slice(done_count, sizes[place])))
        done_count += sizes[place]
    return parts


def partition_of(key: tuple[object, ...], partition_count: int) -> int:
    """Return the partition of a key, the same in every process and every epoch. It has a value for
    each column; for columns of time, the integer that Arrow stores."""
    # Not repr, which depends on the version of Python and on what else is installed.
    return zlib.crc32(_encode(key)) % partition_count


def _places(keys: pa.Table, count: int) -> pa.Array:
    """Return the partition of every record; each distinct key is hashed once."""
    distinct: list[tuple[object, ...]] = [()]
    codes = pa.repeat(pa.scalar(0, pa.int64()), keys.num_rows)
    for column in keys.columns:
        coded = _plain(column).dictionary_encode(null_encoding="encode")
        values = coded.dictionary.to_pylist()
        if keys.num_columns == 1:
            distinct = list(zip(values, strict=True))
            codes = coded.indices
            break
        both = pc.add(pc.multiply(codes, len(values)), coded.indices.cast(pa.int64()))
        again = both.dictionary_encode()
        distinct = [
            (*distinct[code // len(values)], values[code % len(values)])
            for code in again.dictionary.to_pylist()
        ]
        codes = again.indices.cast(pa.int64())
    return pa.array([partition_of(key, count) for key in distinct], pa.int32()).take(codes)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with times as the integers that Arrow stores."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
