"""A log: a channel on disk, as Parquet files in one order, with barriers between them.

    ROOT/channels/LOG/epoch-1/00000000000000000007.json   item 7: which rows, or which barrier
    ROOT/channels/LOG/epoch-1/data/...parquet             the rows; what no item names is no part

Items are numbered from 0 without a gap. An item appears in one step, by a hard link that fails if
the number is taken, so that nobody ever sees half of one and two writers never both win. A record
is known by partition and offset; an item says at which offset each partition stood before it.
"""

import bisect
import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Log, schema_difference
from stillframe.pipeline.head import CHANNELS, Head, Stretch
from stillframe.pipeline.items import Barrier, DataFile, Item, Rows, may_be_of
from stillframe.pipeline.tables import read_records, spread, write_records
from stillframe.protocol.aligner import Mode
from stillframe.store.checksum import checksum_of
from stillframe.store.disk import write_new
from stillframe.store.opening import explained
from stillframe.store.seal import read_sealed, seal

DATA = "data"
TO_MEND = (
    "put the file back from a copy of the pipeline, or restore the pipeline from a snapshot that "
    "does not need it; a restore looks before it changes anything"
)
"""The end of every error about an item that is not what was written."""


def epoch_directory(root: Path, log: str, epoch: int) -> Path:
    """Return where a log keeps what was appended in `epoch`."""
    return root / CHANNELS / log / f"epoch-{epoch}"


def item_name(number: int) -> str:
    """Return the name of an item's file."""
    return f"{number:020d}.json"


class LogReader:
    """Reads a log as it is in one epoch; what others append shows up by itself.

    Args:
        root: the pipeline.
        log: which log.
        stretches: the epochs it consists of, the oldest first.
    """

    def __init__(self, root: Path, log: Log, stretches: Sequence[Stretch]) -> None:
        self.log = log
        self._stretches = tuple(stretches)
        self._directories = {s.epoch: epoch_directory(root, log.name, s.epoch) for s in stretches}
        self._items: dict[int, Item] = {}
        self._forgotten = 0
        self._tail = 0
        self._sought: SnapshotId | None = None
        self._sought_from = self._sought_until = 0
        self._barrier: int | None = None

    def tail(self, position: int) -> int:
        """Return the number that the next item appended will have; at least `position`.

        A log that was damaged may seem to end where an item is missing (``check_whole``).
        """
        first = max(self._tail, position)
        step = 1
        while self.item_path(first + step - 1).exists():
            step *= 2
        # Items are without a gap: the tail is in the half of the last step that was too far.
        numbers = range(first + step // 2, first + step - 1)
        self._tail = numbers.start + bisect.bisect_left(
            numbers, 1, key=lambda number: 0 if self.item_path(number).exists() else 1
        )
        return self._tail

    def first_kept(self) -> int:
        """Return the number of the first item that was not trimmed; 0 if the log has no target: it
        is what the pipeline makes, and is never trimmed."""
        if not self.log.targets:
            return 0
        ends = [*(stretch.first for stretch in self._stretches[1:]), None]
        for stretch, end in zip(self._stretches, ends, strict=True):
            numbers = _numbers(self._directories[stretch.epoch])
            kept = [n for n in numbers if n >= stretch.first and (end is None or n < end)]
            if kept:
                return min(kept)
        return self._stretches[-1].first

    def check_whole(self, position: int) -> None:
        """Refuse a log with a gap at `position` or later: ``tail`` may take it for the end.

        Items are appended one after the other, so all before one that is there must be there.

        Raises:
            Damaged: an item is missing.
        """
        last = self._stretches[-1]
        newest = max(_numbers(self._directories[last.epoch]), default=last.first - 1)
        missing = self.first_missing(position, newest + 1)
        if missing is not None:
            raise Damaged(
                f"{self.item_path(missing)} is missing, and item {newest} of channel "
                f"{self.log.name} is there: {TO_MEND}"
            )

    def first_missing(self, start: int, end: int) -> int | None:
        """Return the first of the items ``start .. end - 1`` that is not there; it opens none."""
        return next((n for n in range(start, end) if not self.item_path(n).exists()), None)

    def items(self, start: int, end: int) -> Iterator[Item]:
        """Yield the items ``start .. end - 1``, which must be there."""
        for number in range(start, end):
            yield self.item(number)

    def item(self, number: int) -> Item:
        """Return one item.

        Raises:
            Damaged: it is missing, or not what was written.
        """
        item = self._items.get(number)
        if item is None:
            path = self.item_path(number)
            item = read_sealed(path, Item, advice=TO_MEND)
            if item.number != number or item.epoch != self._epoch(number):
                raise Damaged(f"{path} is not item {number} of channel {self.log.name}: {TO_MEND}")
            if not may_be_of(item, self.log):
                raise Damaged(
                    f"{path} names files, partitions or counts that channel {self.log.name} cannot "
                    f"have: {TO_MEND}"
                )
            self.remember(item)
        return item

    def remember(self, item: Item) -> None:
        """Keep an item in memory, until it is forgotten."""
        self._items[item.number] = item
        self._forgotten = min(self._forgotten, item.number)

    def forget(self, position: int) -> None:
        """Let go of the memory for items before `position`."""
        if not self._items:
            self._forgotten = position
        for number in range(self._forgotten, position):
            self._items.pop(number, None)
        self._forgotten = max(self._forgotten, position)

    def find_barrier(self, snapshot: SnapshotId, start: int, end: int) -> int | None:
        """Return the position of a snapshot's barrier among the items ``start .. end - 1``.

        It may be asked again and again while the log grows: each item is looked at once.
        """
        if snapshot != self._sought or not self._sought_from <= start <= self._sought_until:
            self._sought, self._barrier = snapshot, None
            self._sought_from = self._sought_until = start
        for item in self.items(self._sought_until, end):
            if isinstance(item.content, Barrier) and item.content.snapshot == snapshot:
                self._barrier = item.number
        self._sought_until = max(self._sought_until, end)
        found = self._barrier
        return found if found is not None and start <= found < end else None

    def data_path(self, item: Item, file: DataFile) -> Path:
        """Return where a data file of an item lies."""
        return self._directories[self._epoch(item.number)] / DATA / file.name

    def item_path(self, number: int) -> Path:
        """Return where the file of an item lies."""
        return self._directories[self._epoch(number)] / item_name(number)

    def table(self, item: Item) -> pa.Table:
        """Return the records of one item, partition by partition.

        Raises:
            Damaged: a data file is missing, or not what was written.
        """
        schema = self.log.arrow_schema
        parts = [
            read_records(self.data_path(item, file), schema, file.checksum) for file in item.files
        ]
        for part, file in zip(parts, item.files, strict=True):
            if part.num_rows != file.record_count:
                raise Damaged(
                    f"{self.data_path(item, file)} holds {part.num_rows} records, and item "
                    f"{item.number} of channel {self.log.name} says {file.record_count}: {TO_MEND}"
                )
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def offsets_at(self, position: int) -> tuple[int, ...]:
        """Return for each partition how many records come before `position`."""
        if position == 0:
            return (0,) * self.log.partition_count
        return self.item(position - 1).next_offsets

    def _epoch(self, number: int) -> int:
        for stretch in reversed(self._stretches):
            if stretch.first <= number:
                return stretch.epoch
        raise StoreError(
            f"channel {self.log.name} has no item {number}: its first stretch is later"
        )


class LogWriter:
    """Appends to a log in the current epoch. The caller holds the lock of the log's source.

    Args:
        root: the pipeline.
        log: which log.
        head: of the pipeline, as it is now.
    """

    def __init__(self, root: Path, log: Log, head: Head) -> None:
        self.log = log
        self.reader = LogReader(root, log, head.stretches[log.name])
        self._epoch = head.epoch
        self._directory = epoch_directory(root, log.name, head.epoch)
        self._first = head.stretches[log.name][-1].first
        with explained(self._directory, "made"):
            (self._directory / DATA).mkdir(parents=True, exist_ok=True)
            self._tail = max(_numbers(self._directory), default=self._first - 1) + 1

    @property
    def data_directory(self) -> Path:
        """Where data files go before ``append_files`` makes them part of the log."""
        return self._directory / DATA

    def tail(self) -> int:
        """Return the number that the next item will have."""
        self._tail = self.reader.tail(self._tail)
        return self._tail

    def last_batch(self) -> int | None:
        """Return the newest micro-batch of this epoch whose records are in the log."""
        number = self.tail() - 1
        return self.reader.item(number).content.batch if number >= self._first else None

    def append(self, table: pa.Table) -> int:
        """Append the records of a table, and return the number of the item.

        With several partitions, ``key`` decides where a record goes; without one, each takes its
        turn, also from one call to the next.

        Raises:
            UsageError: its columns are not the declared ones.
            Unavailable: somebody else has appended at the same time.
            StoreError: the disk is full or failed; nothing was appended.
        """
        difference = schema_difference(self.log.arrow_schema, table.schema)
        if difference is not None:
            raise UsageError(f"channel {self.log.name} does not take these records: {difference}")
        before_count = sum(self.reader.offsets_at(self.tail()))
        files = []
        with explained(self.data_directory, "written"):
            for partition, part in spread(table, self.log, before_count % self.log.partition_count):
                name = f"{uuid.uuid4().hex}-{partition}.parquet"
                write_records(path := self.data_directory / name, part)
                files.append(DataFile(name, partition, part.num_rows, checksum_of(path)))
        return self.append_files(files, batch=None)

    def append_files(self, files: Sequence[DataFile], *, batch: int | None) -> int:
        """Make files that are in the data directory part of the log; return the item's number.

        They come right after what this writer has seen of the log when it was last asked
        (``last_batch``, ``tail``): two that both miss a micro-batch never both append it. No
        barrier is in the way, for one is only ever appended between two micro-batches.

        Raises:
            Unavailable: somebody else has appended since.
            StoreError: the disk is full or failed; nothing was appended.
        """
        return self._commit(Rows(tuple(files), batch), self._tail)

    def append_barrier(self, snapshot: SnapshotId, mode: Mode, *, batch: int | None = None) -> int:
        """Append a barrier, unless the last item is that one; return its position.

        Args:
            snapshot: which snapshot.
            mode: of the snapshot.
            batch: the micro-batch after which a query has recorded its state.

        Raises:
            NotConsistent: the log holds records of a later micro-batch.
            Unavailable: somebody else has appended at the same time.
        """
        number = self.tail()
        last = self.reader.item(number - 1).content if number > self._first else None
        if isinstance(last, Barrier) and last.snapshot == snapshot:
            return number - 1
        written = None if last is None else last.batch
        if written is not None and (batch is None or written > batch):
            raise NotConsistent(
                f"channel {self.log.name} holds records of micro-batch {written} of query "
                f"{self.log.source}, whose last committed one is {batch}: no state can be recorded "
                "in between"
            )
        # At just this place: what is appended meanwhile by somebody else must not come before it.
        return self._commit(Barrier(snapshot, mode, written), number)

    def _commit(self, content: Rows | Barrier, number: int) -> int:
        item = Item(
            number=number,
            epoch=self._epoch,
            offsets=self.reader.offsets_at(number),
            content=content,
        )
        path = self._directory / item_name(number)
        partial = self._directory / f".{uuid.uuid4().hex}.partial"
        with explained(path, "written"):
            try:
                write_new(partial, seal(item))
                os.link(partial, path)
            except FileExistsError:
                raise Unavailable(
                    f"channel {self.log.name}: item {number} was just written by another program; "
                    "a channel has one writer: end the other one"
                ) from None
            finally:
                partial.unlink(missing_ok=True)
        self.reader.forget(number)
        self.reader.remember(item)  # the next one is asked for its offsets
        self._tail = number + 1
        return number


def _numbers(directory: Path) -> list[int]:
    """Return the numbers of the items in a directory, which need not be there, in any order."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        stems = [entry.name.removesuffix(".json") for entry in entries]
        return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
    return []
