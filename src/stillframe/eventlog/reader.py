"""Lists the segments of an event log, and reads their headers and rows."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import pyarrow as pa

from stillframe.durable_files import shell_command
from stillframe.errors import Damaged, UsageError, text_of
from stillframe.eventlog.segments import (
    SCHEMA,
    STREAM,
    as_written,
    open_parquet,
    open_stream,
    read_rows,
    whole_batches,
    whole_stream,
)
from stillframe.model import DECODING_ERRORS, ProcessId, check_process_id
from stillframe.storage.files import mapped
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import readable
from stillframe.storage.storage import Listed

VERSION = 1
HEADER_KEY = b"stillframe"
"""The key of the header in the metadata of the schema; its value is JSON."""
_NAME = re.compile(r"events-(\d{6})\.(parquet|arrows)")
_EPOCH = re.compile(r"e([1-9]\d{0,8})")
_LISTING_COUNT_MAX = 16
"""How often a listing is restarted because a file was removed meanwhile."""
_KEPT_COUNT = 2**15
"""Maximum segments in object stores that this program remembers."""
_DEPTH = 3
"""How many names there are in the path of a segment below its log."""
_Place = TypeVar("_Place", Path, ObjectPath)
_Result = TypeVar("_Result")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header of a segment: the log that it is part of, and the counts before it.

    `number` is that of this segment among those of the process in that epoch, from 1. Before its
    first row are `event_count` actions, lost ones included, and the numbers of messages `sent` to
    each target and `received` from each source. The last `lost_count` of these actions are in no
    segment: there was no time or no room to write them.
    """

    version: int = VERSION
    process: ProcessId
    epoch: int
    number: int = msgspec.field(name="part")
    event_count: Count
    sent: dict[ProcessId, Count]
    received: dict[ProcessId, Count]
    lost_count: Count = 0


class _Versioned(msgspec.Struct):
    version: int


def schema_with(header: SegmentHeader) -> pa.Schema:
    """Return the schema of a segment with this header."""
    return SCHEMA.with_metadata({HEADER_KEY: msgspec.json.encode(header)})


def header_of(metadata: dict[bytes, bytes] | None, path: Location) -> SegmentHeader:
    """Return the header in the metadata of the schema of the file at `path`; Damaged if it has
    none, or one that cannot be of that file."""
    encoded = (metadata or {}).get(HEADER_KEY)
    if encoded is None:
        raise _foreign(path)
    try:
        # First: another version may have other names.
        version = msgspec.json.decode(encoded, type=_Versioned).version
        if version != VERSION:
            raise Damaged(
                f"{path} has format version {version}, and this release reads version {VERSION}: "
                "use a newer release",
                path=path,
            )
        header = msgspec.json.decode(encoded, type=SegmentHeader)
        for process in (header.process, *header.sent, *header.received):
            check_process_id(process)
    except (*DECODING_ERRORS, UsageError) as error:
        raise Damaged(f"{path} has no valid header: {text_of(error)}", path=path) from error
    if segment_of(path) != (header.epoch, header.number) or path.parent.name != header.process:
        raise Damaged(
            f"{path} is, by its header, part {header.number} of {header.process} in epoch "
            f"{header.epoch}: put it back where it was",
            path=path,
        )
    if header.event_count < header.lost_count:
        raise Damaged(f"{path} has impossible counts in its header", path=path)
    return header


def segment_path(log: _Place, header: SegmentHeader, *, is_complete: bool) -> _Place:
    """Return the path of the segment with this header in the event log `log`."""
    ending = "parquet" if is_complete else "arrows"
    return log / f"e{header.epoch}" / header.process / f"events-{header.number:06}.{ending}"


def segment_of(path: Location) -> tuple[int, int] | None:
    """Return epoch and number of the segment at `path`, by its name; None if it is none."""
    name, epoch = _NAME.fullmatch(path.name), _EPOCH.fullmatch(path.parent.parent.name)
    return None if name is None or epoch is None else (int(epoch[1]), int(name[1]))


class Segment(msgspec.Struct, frozen=True):
    """One file of an event log, with the rows that it has now; `row_group_count` is 0 for a stream
    of batches."""

    path: Location
    header: SegmentHeader
    row_count: int
    row_group_count: int

    @property
    def groups(self) -> tuple[int, ...]:
        """What can be read separately, for ``segments.read_rows``."""
        return tuple(range(self.row_group_count)) or (STREAM,)


def epochs(log: Location) -> tuple[int, ...]:
    """Return the epochs in the event log `log`, in order; none if there is no such directory.
    UsageError: `log` is a file; Damaged: something there does not belong to an event log."""
    try:
        found = _visible(log)
    except FileNotFoundError:
        return ()
    except NotADirectoryError:
        raise UsageError(f"{log} is a file, but an event log is a directory") from None
    numbers = []
    for path, is_directory in found:
        named = segment_of(path / "P" / "events-000001.arrows")
        if named is None or not is_directory:
            raise _foreign(path)
        numbers.append(named[0])
    return tuple(sorted(numbers))


def list_segments(log: Location, epoch: int | None = None) -> list[Segment]:
    """Return the segments of the event log `log`, or only of one epoch, which need not be there:
    by epoch, process and number.

    A segment that is still being written, or that a crash cut short, counts as far as it is whole.
    UsageError: there is no event log; Damaged: something there does not belong to one, or is not
    what was written; OSError: it cannot be read; in an object store StoreError.
    """

    def list_all(files: list[Listed]) -> list[Segment]:
        found = _open_all(files)
        return sorted(found, key=lambda s: (s.header.epoch, s.header.process, s.header.number))

    return with_files(log, epoch, list_all)


def with_files(log: Location, epoch: int | None, use: Callable[[list[Listed]], _Result]) -> _Result:
    """Return what `use` makes of the files of all segments of the event log `log`, or of one epoch:
    those of one process together, by number. A process that still runs replaces and removes files:
    `use` is called again if it raises FileNotFoundError. Errors are as for ``list_segments``."""
    log = locate(log)
    if not epochs(log):
        command = shell_command("run", "SYSTEM", "--event-log", log)
        raise UsageError(f"{log} holds no event log: write one with '{command}'")
    for _ in range(_LISTING_COUNT_MAX):
        with contextlib.suppress(FileNotFoundError):
            return use([*_files(log, epoch)])
    raise UsageError(
        f"the files in {log} change too fast to be listed: stop the program that removes them"
    )


def read_segment(segment: Segment) -> Iterator[pa.Table]:
    """Yield all rows of a segment in order, as ``segments.read_rows`` does."""
    return read_rows(segment.path, segment.groups, SCHEMA.names)


def _foreign(path: Location) -> Damaged:
    return Damaged(f"{path} is not part of an event log: move it out of the directory", path=path)


def _files(log: Location, wanted: int | None) -> Iterator[Listed]:
    """Yield one file for each segment; if it exists twice, the Parquet file."""
    if isinstance(log, ObjectPath):
        yield from _objects(log, wanted)
        return
    for epoch in epochs(log):
        if wanted not in (None, epoch):
            continue
        for directory, is_directory in _visible(log / f"e{epoch}"):
            if not is_directory:
                raise _foreign(directory)
            files = [Listed(path, None) for path, _ in _visible(directory)]
            for path, _ in files:
                if isinstance(path, Path) and path.is_fifo():
                    raise _foreign(path)
            yield from _one_each(files)


def _objects(log: ObjectPath, wanted: int | None) -> Iterator[Listed]:
    """Yield the same of an object store, from one listing."""
    place = log if wanted is None else log / f"e{wanted}"
    by_process: dict[Location, list[Listed]] = {}
    with readable(place):
        listed = storage_of(log).files_below(place)
    for path, byte_count in listed:
        assert isinstance(path, ObjectPath)
        parts = path.relative_to(log).split("/")
        if any(part.startswith(".") for part in parts):
            continue
        if len(parts) != _DEPTH:
            raise _foreign(path)
        by_process.setdefault(path.parent, []).append(Listed(path, byte_count))
    for files in by_process.values():
        yield from _one_each(files)


def _one_each(files: Iterable[Listed]) -> Iterable[Listed]:
    by_number: dict[int, Listed] = {}
    for file in sorted(files, key=lambda one: one.location.name):  # Parquet comes after Arrow
        if (named := segment_of(file.location)) is None:
            raise _foreign(file.location)
        by_number[named[1]] = file
    return by_number.values()


def _visible(directory: Location) -> list[tuple[Location, bool]]:
    """Return what is in a directory, and whether each is one."""
    found: list[tuple[Location, bool]]
    if isinstance(directory, ObjectPath):
        with readable(directory):
            listed = storage_of(directory).children(directory)
        found = [(path, byte_count is None) for path, byte_count in listed]
    else:
        found = [(path, path.is_dir()) for path in directory.iterdir()]
    return [one for one in found if not one[0].name.startswith(".")]


def _open_all(files: list[Listed]) -> list[Segment]:
    place = files[0].location if files else Path()
    return [s for s in mapped(place, open_segment, files) if s is not None]


def open_segment(file: Listed) -> Segment | None:
    """Return the segment in a file; None for a stream that was cut short in its schema. A complete
    one in an object store, which is never replaced, is read once."""
    if isinstance(file.location, ObjectPath) and file.location.suffix == ".parquet":
        return _complete_segment(file)
    return _open_segment(file.location)


@functools.lru_cache(maxsize=_KEPT_COUNT)
def _complete_segment(file: Listed) -> Segment | None:
    return _open_segment(file.location)


def _open_segment(path: Location) -> Segment | None:
    with as_written(path):
        if path.suffix == ".parquet":
            with open_parquet(path) as (file, _):
                metadata = file.metadata
                header = header_of(metadata.metadata, path)
                return Segment(path, header, metadata.num_rows, metadata.num_row_groups)
        with open_stream(path) as source:
            if (stream := whole_stream(source)) is None:
                return None
            header = header_of(stream.schema.metadata, path)
            row_count = sum(batch.num_rows for batch in whole_batches(stream, path))
            return Segment(path, header, row_count, 0)
