"""Reads event logs: which files there are, and their rows, a bounded number at a time."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import Damaged, UsageError
from stillframe.eventlog import groups
from stillframe.eventlog.groups import STREAM, as_written, whole_batches, whole_stream
from stillframe.eventlog.parts import Span, part_of, span_of
from stillframe.eventlog.schema import SCHEMA
from stillframe.local_path import local_path
from stillframe.model import check_process_id

_COUNT_MAX = 2**62
_LISTING_COUNT_MAX = 16
"""So often a listing is begun again because a file went while it was looked at."""


class Part(msgspec.Struct, frozen=True):
    """One file of an event log.

    Attributes:
        path: where it is.
        span: what it is a part of, and what came before it.
        row_count: how many rows it has now.
        row_group_count: how many row groups, if it is Parquet; 0 for a stream of batches.
    """

    path: Path
    span: Span
    row_count: int
    row_group_count: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The parts of it that can be read by themselves, for ``groups.tables``."""
        return tuple(range(self.row_group_count)) or (STREAM,)


def epochs(log: Path) -> tuple[int, ...]:
    """Return the epochs of which the directory `log` holds something, in order; none if there is no
    such directory.

    Raises:
        UsageError: `log` is a file.
        Damaged: something there is of no event log.
    """
    try:
        found = [path for path in log.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return ()
    except NotADirectoryError:
        raise UsageError(f"{log} is a file: an event log is a directory") from None
    return tuple(sorted(_epoch_of(path) for path in found))


def parts(log: Path, epoch: int | None = None) -> list[Part]:
    """Return the files of the event log `log`, by epoch, process and part.

    A file that is still being written, or that a crash cut short, counts as far as it is whole.

    Args:
        log: the directory of the event log.
        epoch: only those of this epoch are looked at, and there may be none; None: all.

    Raises:
        UsageError: there is no event log.
        Damaged: something there is of no event log, or is not what was written.
        OSError: it cannot be read.
    """
    if not epochs(local_path(log)):
        raise UsageError(
            f"{log} holds no event log: let a system write one with 'stillframe run SYSTEM --log "
            f"{log}'"
        )
    for _ in range(_LISTING_COUNT_MAX):
        # A process that still runs replaces and removes files.
        with contextlib.suppress(FileNotFoundError):
            found = [part for path in _files(log, epoch) if (part := _look_at(path)) is not None]
            return sorted(found, key=lambda p: (p.span.epoch, p.span.process, p.span.part))
    raise UsageError(f"the files in {log} change too fast to be listed: stop what removes them")


def tables(part: Part) -> Iterator[pa.Table]:
    """Yield the rows of `part` in order, with the columns of ``schema.SCHEMA``, at most
    ``schema.ROW_GROUP_COUNT`` at a time.

    Raises:
        Damaged: it is not what was written, or too large; the file is named.
        OSError: it cannot be read.
    """
    yield from groups.tables(part.path, part.groups, SCHEMA.names)


def _epoch_of(path: Path) -> int:
    named = part_of(path / "P" / "events-000001.arrows")
    if named is None or not path.is_dir():
        raise _foreign(path)
    return named[0]


def _foreign(path: Path) -> Damaged:
    return Damaged(f"{path} is no part of an event log: move it out of the directory")


def _files(log: Path, wanted: int | None) -> Iterator[Path]:
    """Yield one path for each part; of two, that of the one which is complete."""
    for epoch in epochs(log):
        if wanted not in (None, epoch):
            continue
        for directory in _visible(log / f"e{epoch}"):
            if not directory.is_dir():
                raise _foreign(directory)
            by_part: dict[int, Path] = {}
            for path in sorted(_visible(directory)):  # Parquet comes after Arrow
                if (named := part_of(path)) is None:
                    raise _foreign(path)
                by_part[named[1]] = path
            yield from by_part.values()


def _visible(directory: Path) -> Iterable[Path]:
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def _look_at(path: Path) -> Part | None:
    """Return what `path` is; None if it is a stream that was cut short before it said so."""
    with as_written(path):
        if _is_parquet(path):
            with pq.ParquetFile(path) as file:
                metadata = file.metadata
                span = span_of(metadata.metadata, path)
                part = Part(path, span, metadata.num_rows, metadata.num_row_groups)
        else:
            with pa.OSFile(str(path)) as source:
                if (stream := whole_stream(source)) is None:
                    return None
                span = span_of(stream.schema.metadata, path)
                row_count = sum(batch.num_rows for batch in whole_batches(stream, path))
                part = Part(path, span, row_count, 0)
    if part_of(path) != (span.epoch, span.part) or path.parent.name != span.process:
        raise Damaged(
            f"{path} says that it is part {span.part} of {span.process} in epoch {span.epoch}: put "
            "it back where it was"
        )
    counts = (span.event_count, span.lost_count, *span.sent.values(), *span.received.values())
    if min(counts) < 0 or max(counts) > _COUNT_MAX or span.event_count < span.lost_count:
        raise Damaged(f"{path} says of what came before it what cannot be")
    try:
        for process in (span.process, *span.sent, *span.received):
            check_process_id(process)
    except UsageError as error:
        raise Damaged(f"{path} names a process that cannot be: {error}") from error
    return part
