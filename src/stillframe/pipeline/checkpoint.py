"""The layout of Spark's checkpoint directory of a query, which only this module knows.

    metadata                     {"id": ...}: which query
    offsets/12                   the plan of micro-batch 12: v1, batch metadata, one line per source
    commits/12                   micro-batch 12 is done
    state/OPERATOR/PARTITION/    state after micro-batch 12: files of version 13 and before
    sources/0/                   the state of a source

Nothing is ever edited or deleted in such a directory: resetting it by hand leaves files of the
abandoned timeline that become the base of a later load, and the state is silently wrong. A restore
makes a new directory (``export``) from the files that were linked at the time (``pin``).

In an object store the same files are copied inside it. No directory appears there in one step: what
was pinned counts only when a manifest names the micro-batch.
"""

import functools
import json
import os
import re
import shutil
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec

from stillframe.durable_files import link_into
from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.pipeline.metadata import POSITION_END
from stillframe.storage.files import below, copy_all, mapped, names, remove_tree
from stillframe.storage.location import Location, ObjectPath, io_advice
from stillframe.storage.opened import storage_of
from stillframe.storage.range_file import RangeFile
from stillframe.storage.reading import is_there, readable
from stillframe.store.layout import explain_io_errors

OFFSET_KEY = "stillframe"
"""Our sources' offsets are ``{"stillframe": {channel: position}}``."""

_METADATA = "metadata"
_ADOPTED = "adopted"
"""Ours: what the query did before belongs to no pipeline. It holds the number of the oldest
micro-batch that was copied."""
_OFFSETS = "offsets"
_COMMITS = "commits"
_STATE = "state"
_SOURCES = "sources"
_OFFSET_LINES_BEFORE_SOURCES = 2
_VERSIONED = re.compile(
    r"\.?(\d+)(?:_([0-9A-Za-z_-]+))?\.(?:delta|snapshot|zip|changelog)(?:\.crc)?"
)
"""A file of state of a version, and in checkpoint format 2 of one attempt at it."""
_FULL = (".snapshot", ".zip")
_SST_FILES = "SSTs"
_SST_REFERENCE = re.compile(r'"dfsSstFileName":"([^"]*)"')
_SST_NAME = re.compile(r"\w[\w-]*\.sst", re.ASCII)
"""As Spark calls them, ``000008-213f2ef3-fa93-46db-961e-d302abca6136.sst``: it leads nowhere else.
"""
_ARCHIVED_BYTES_MAX = 16 * 2**20
"""A full file's metadata has some 100 bytes for each file that it names."""
_SHOWN_LENGTH_MAX = 100
_NOT_SPARKS = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError)
_GROWING = (".tmp", ".tmp.crc")
"""How the names of files end that Spark is still writing, and of their checksums."""
UNIQUE = ".sst"
"""The end of the names of files that are never used twice."""
_LINK_ATTEMPT_COUNT = 5
_CHECKSUM = ".crc"
_FILE_BYTES_MAX = 16 * 2**20
"""Of a plan or a commit in an object store: those of a thousand partitions have some 100 kB."""


START = -1
"""Stands for the start of a query, before its first micro-batch."""
_Position = Annotated[int, msgspec.Meta(ge=0, lt=POSITION_END)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Offset(msgspec.Struct):
    stillframe: msgspec.Raw


class _BatchMetadata(msgspec.Struct):
    batchTimestampMs: int  # noqa: N815 - Spark's


class _Commit(msgspec.Struct):
    stateUniqueIds: dict[str, list[list[str]]] | None = None  # noqa: N815 - Spark's
    """Operator, and partition -> the attempts at its stores that count."""


class Committed(msgspec.Struct, frozen=True):
    """A committed micro-batch and where it ended on each log that the query reads."""

    batch: int
    positions: dict[str, int]


def last_committed(checkpoint: Location) -> Committed | None:
    """Return the newest committed micro-batch of a query; None if there is none yet."""
    batches = _numbers(checkpoint / _COMMITS)
    return committed(checkpoint, max(batches)) if batches else None


def committed(checkpoint: Location, batch: int) -> Committed:
    """Return a committed micro-batch; NotConsistent if two of the query's sources read one log."""
    positions: dict[str, int] = {}
    for line in _offset_lines(checkpoint / _OFFSETS / str(batch)):
        for log, position in _positions_of(line).items():
            if log in positions:
                raise NotConsistent(
                    f"the query with the checkpoint {checkpoint} reads channel {log} twice: read "
                    "every channel once, and use that DataFrame twice"
                )
            positions[log] = position
    return Committed(batch, positions)


def retained_batches(checkpoint: Location) -> list[int]:
    """Return the micro-batches with which a query could continue, in rising order: those that Spark
    still keeps whole. `START` stands for the start, before the first micro-batch. An adopted query
    has none: its first records are not labelled."""
    plans, commits = (set(_numbers(checkpoint / part)) for part in (_OFFSETS, _COMMITS))
    # Spark continues after a micro-batch only if it has the plan of the previous one.
    found = sorted(n for n in commits & plans if n == 0 or n - 1 in plans)
    has_start = not commits or (found[:1] == [0] and not is_there(checkpoint / _ADOPTED))
    return [START, *found] if has_start else found


def oldest_adopted(checkpoint: Location) -> int:
    """Return the oldest micro-batch that was copied from the checkpoint that a query had before;
    `START` if there was none, or no such checkpoint."""
    try:
        return int(_text(checkpoint / _ADOPTED))
    except FileNotFoundError:
        return START


def has_started(checkpoint: Location) -> bool:
    """Return whether Spark has written anything."""
    return is_there(checkpoint / _METADATA)


def is_retained(checkpoint: Location, batch: int) -> bool:
    """Return whether Spark keeps a micro-batch: it has not deleted any of the files for it yet."""
    needed = [(_OFFSETS, batch - 1)] if batch > 0 else [(_COMMITS, 0)] if batch == 0 else []
    return all(is_there(below(checkpoint, part, str(number))) for part, number in needed)


def topic_positions(
    checkpoint: Location, batch: int, *, is_earlier: bool = False
) -> dict[str, dict[int, int]]:
    """Return the position of a query on each partition of each topic after a micro-batch, or at its
    `START`. If two of its sources read one topic, it is the later one, before which one of them has
    read everything; or, if `is_earlier`, the earlier one, before which both have."""
    return positions_in(source_lines(checkpoint, batch), is_earlier=is_earlier)


def positions_in(lines: Iterable[str], *, is_earlier: bool) -> dict[str, dict[int, int]]:
    """Return the positions that ``source_lines`` have, as ``topic_positions`` does."""
    choose = min if is_earlier else max
    found: dict[str, dict[int, int]] = {}
    for line in lines:
        try:
            topics = msgspec.json.decode(line, type=dict[str, dict[_Partition, _Position]])
        except DECODING_ERRORS:
            continue  # of another kind of source
        for topic, positions in topics.items():
            known = found.setdefault(topic, {})
            for partition, position in positions.items():
                known[partition] = choose(position, known.get(partition, position))
    return found


def source_lines(checkpoint: Location, batch: int) -> list[str]:
    """Return what Spark wrote about each source of a query: where a micro-batch, or its `START`,
    ends on it."""
    if batch == START:
        return _first_lines(checkpoint)
    return [line for line in _offset_lines(checkpoint / _OFFSETS / str(batch)) if line]


def _first_lines(checkpoint: Location) -> list[str]:
    """Return the offsets at which Spark's source for Kafka starts; it writes them once."""
    lines = []
    for name in _files_below(checkpoint, _SOURCES):
        if name.rpartition("/")[2] == "0":
            lines += _text(below(checkpoint, name)).split("\n")[1:]
    return lines


def planned_at(checkpoint: Location, batch: int) -> float | None:
    """Return when a micro-batch was planned, in seconds since 1970; None if it was not."""
    try:
        lines = _text(checkpoint / _OFFSETS / str(batch)).split("\n")
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(lines[1], type=_BatchMetadata).batchTimestampMs / 1000
    except (IndexError, *DECODING_ERRORS) as error:
        raise Damaged(
            f"{checkpoint} has no plan of micro-batch {batch}: {text_of(error)}"
        ) from error


def planned_batch(checkpoint: Location) -> int | None:
    """Return the newest micro-batch that was planned, committed or not."""
    return max(_numbers(checkpoint / _OFFSETS), default=None)


def changed_at(checkpoint: Path) -> tuple[int, int]:
    """Return when a micro-batch was planned and when one was committed last, in nanoseconds:
    neither need be searched for again while both stay the same."""
    return _changed_at_ns(checkpoint / _OFFSETS), _changed_at_ns(checkpoint / _COMMITS)


def committed_at(checkpoint: Path, batch: int) -> float | None:
    """Return when a micro-batch was committed, in seconds since 1970; None if that is long ago."""
    return _changed_at_ns(checkpoint / _COMMITS / str(batch)) / 1e9 or None


def contradiction(checkpoint: Location) -> str | None:
    """Return what in a checkpoint Spark alone cannot have written, or None. A reset by hand
    shows: offsets or commits without each other, or state of a micro-batch that was never planned,
    which Spark would take for the base of a later one."""
    while True:
        planned = planned_batch(checkpoint)
        wrong = _contradiction(checkpoint, planned)
        # In an object store a driver that was replaced may go on while this looks.
        if wrong is None or planned == planned_batch(checkpoint):
            return wrong


def _contradiction(checkpoint: Location, planned: int | None) -> str | None:
    done = max(_numbers(checkpoint / _COMMITS), default=None)
    newest = max(_state_versions(checkpoint), default=0)
    if planned is None:
        if done is not None or newest > 0:
            return "its plans of micro-batches are missing"
        return None
    if not is_there(checkpoint / _METADATA):
        return "its metadata is missing"
    if planned - (-1 if done is None else done) not in (0, 1):
        return f"micro-batch {planned} is the last one planned, and {done} the last one committed"
    if newest > planned + 1:
        return f"it has state of micro-batch {newest - 1}, and plans only up to {planned}"
    return None


def _state_versions(checkpoint: Location) -> Iterator[int]:
    """Yield the version of every file of state: N is the state after micro-batch N - 1."""
    for name in _files_below(checkpoint, _STATE):
        if match := _VERSIONED.fullmatch(name.rpartition("/")[2]):
            yield int(match[1])


def agrees(checkpoint: Location, pinned: Location, batch: int) -> bool:
    """Return whether a checkpoint has the same plan of a micro-batch as a pinned one. True as well
    if Spark has deleted the plan because it is old, or if the snapshot was dropped."""
    try:
        found, kept = (_content(place / _OFFSETS / str(batch)) for place in (checkpoint, pinned))
        return found == kept
    except FileNotFoundError:
        return True


def check_pinned(pinned: Location, expected: Committed) -> None:
    """Check that a pinned checkpoint ends with the micro-batch that its query recorded; raises
    NotConsistent if not: two programs recorded for one query, one of them left over."""
    found = last_committed(pinned)
    if found != expected:
        raise NotConsistent(
            f"{pinned} ends with {found}, and the query recorded {expected}: a killed program of "
            "the query was still recording; take another snapshot"
        )


def pin(checkpoint: Location, batch: int, target: Location) -> None:
    """Link into `target` every file needed to continue after a committed micro-batch. Call it
    before the next one is planned. Spark writes its files by rename, so a link keeps its content.
    `target` appears in one step, complete; an existing one of the same micro-batch stays, another
    is replaced.

    In an object store the files are copied into `target`, and the commit comes last, or at the
    `START` the metadata. Files of an interrupted attempt stay; ``pinned_files`` leaves them out."""
    if batch != START and is_there(target / _COMMITS / str(batch)):
        return
    try:
        if isinstance(checkpoint, Path) and isinstance(target, Path):
            _link(checkpoint, batch, target)
        else:
            _until_found(checkpoint, lambda: _copy_needed(checkpoint, batch, target))
    except OSError as error:
        raise StoreError(
            f"the checkpoint {checkpoint} could not be linked into {target}: "
            f"{error.strerror or error}; {io_advice(target, error)}"
        ) from error


def _link(checkpoint: Path, batch: int, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")

    def link_needed() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        for name in _needed(checkpoint, batch):
            link_into(checkpoint / name, partial / name)

    _until_found(checkpoint, link_needed)
    if target.exists():
        target.rename(target.with_name(f".{target.name}.{uuid.uuid4().hex}"))
    partial.rename(target)


def _copy_needed(checkpoint: Location, batch: int, target: Location) -> None:
    last = _METADATA if batch == START else f"{_COMMITS}/{batch}"
    needed = [name for name in _needed(checkpoint, batch) if name != last]
    copy_all([(below(checkpoint, name), below(target, name)) for name in needed])
    copy_all([(below(checkpoint, last), below(target, last))])


def continue_in(checkpoint: Location, target: Location, *, is_retained: bool = False) -> None:
    """Copy into `target` every file with which a query continues from where its checkpoint ends.
    These are those of the last committed micro-batch, as ``pin`` has them, or if all `is_retained`
    those of every one that Spark keeps; and the plan of the next one, with which Spark runs that
    again. Nothing is copied if Spark has written none yet. Commits are copied after all that they
    stand for, and the metadata last: only then has the query started there."""
    if not is_there(checkpoint / _METADATA):
        return
    batch = max(_numbers(checkpoint / _COMMITS), default=START)
    planned = f"{_OFFSETS}/{batch + 1}"
    # Even if the list of files is not whole, because they change: without these it begins anew.
    own = [] if batch == START else [f"{_OFFSETS}/{batch}", f"{_COMMITS}/{batch}"]

    def copy_needed() -> None:
        found = list(_files_below(checkpoint))
        kept = _up_to(batch, found) if is_retained else _needed(checkpoint, batch, found)
        needed = {*own, *kept, *({planned} & set(found))}
        commits = {name for name in needed if name.startswith(f"{_COMMITS}/")}
        for some in (needed - commits - {_METADATA}, commits, {_METADATA}):
            copy_all([(below(checkpoint, name), below(target, name)) for name in sorted(some)])

    _until_found(checkpoint, copy_needed)


def _up_to(batch: int, found: Iterable[str]) -> Iterator[str]:
    """Yield those of the files that do not belong to a micro-batch after `batch`."""
    for name in found:
        part, _, rest = name.partition("/")
        if name.endswith(_GROWING):
            continue
        if part in (_OFFSETS, _COMMITS):
            number = rest.removeprefix(".").removesuffix(_CHECKSUM)
            if not number.isdecimal() or int(number) > batch:
                continue
        versioned = _VERSIONED.fullmatch(name.rpartition("/")[2])
        if part != _STATE or versioned is None or int(versioned[1]) <= batch + 1:
            yield name


def adopt(checkpoint: Location, target: Location) -> None:
    """Copy into `target`, which has not started, what a query needs to continue from where its
    `checkpoint` ends. That one stays as it is. The copy has started when this returns, and not
    before.

    Raises:
        UsageError: there is no checkpoint.
        Damaged: it was edited by hand.
    """
    if not has_started(checkpoint):
        raise UsageError(
            f"{checkpoint} is not the checkpoint of a query that has run: give its option "
            "checkpointLocation, as it was",
            path=checkpoint,
        )
    if (wrong := contradiction(checkpoint)) is not None:
        raise Damaged(f"the checkpoint {checkpoint} was edited: {wrong}", path=checkpoint)
    with explain_io_errors(target, "written"):
        remove_tree(target)  # left by an attempt that was cut short
        mark = target / _ADOPTED
        oldest = next((n for n in retained_batches(checkpoint) if n != START), START)
        storage_of(mark).put(mark, str(oldest).encode())
        continue_in(checkpoint, target)


def _until_found(checkpoint: Location, take: Callable[[], None]) -> None:
    """Call `take` again while files are missing: Spark's maintenance deletes files older than the
    newest full one."""
    for _ in range(_LINK_ATTEMPT_COUNT):
        try:
            take()
        except FileNotFoundError:
            continue
        return
    raise StoreError(
        f"files of the checkpoint {checkpoint} disappear while they are linked: raise Spark's "
        "spark.sql.streaming.minBatchesToRetain"
    )


def pinned_files(pinned: Location, batch: int) -> list[str]:
    """Return the names of the files in a pinned checkpoint that are needed to continue after
    `batch`, and none that an interrupted attempt for another micro-batch left. Damaged if one is
    missing."""
    found = set(_files_below(pinned))
    own = () if batch == START else (f"{_OFFSETS}/{batch}", f"{_COMMITS}/{batch}")
    needed = sorted({*own, *_needed(pinned, batch, found)})
    for name in needed:
        if name not in found:
            raise Damaged(f"{pinned}/{name} is missing from a pinned checkpoint")
    return needed


def export(pinned: Location, target: Location, batch: int, positions: Mapping[str, int]) -> None:
    """Make from a `pinned` checkpoint a new one, `target`, with which a query continues after
    `batch`, from `positions` on our logs. Raises OSError if the disk is full or failed."""
    # A new id, so that sinks which remember (query, batch) do not take the next batches for done.
    metadata = json.dumps({"id": str(uuid.uuid4())})
    plan = f"{_OFFSETS}/{batch}"
    moved = None if batch == START else _moved(_text(below(pinned, plan)), positions)
    own = {_METADATA: metadata} if moved is None else {_METADATA: metadata, plan: moved}
    copied = (name for name in pinned_files(pinned, batch) if not _is_beside(name, own))
    copy_all([(below(pinned, name), below(target, name)) for name in copied])
    for name, text in own.items():
        place = below(target, name)
        storage_of(place).put(place, text.encode())


def _is_beside(name: str, written: Iterable[str]) -> bool:
    """Return whether a file is one of these, or the checksum that Hadoop keeps of one."""
    folder, _, last = name.rpartition("/")
    own = last.removeprefix(".").removesuffix(_CHECKSUM) if last.startswith(".") else last
    return f"{folder}/{own}".removeprefix("/") in written


def _moved(plan: str, positions: Mapping[str, int]) -> str | None:
    """Return the plan of a micro-batch with its end at other positions; None if it ends there."""
    lines = plan.split("\n")
    moved = lines[:_OFFSET_LINES_BEFORE_SOURCES]
    for line in lines[_OFFSET_LINES_BEFORE_SOURCES:]:
        ours = _positions_of(line)
        moved.append(encode_offset({log: positions[log] for log in ours}) if ours else line)
    return None if moved == lines else "\n".join(moved)


def encode_offset(positions: Mapping[str, int]) -> str:
    """Return the JSON of one of our offsets: Spark compares offsets as text, with these spaces."""
    return json.dumps(offset_of(positions), separators=(", ", ": "))


def offset_of(positions: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return one of our offsets as Spark's Python sources return it."""
    return {OFFSET_KEY: {log: positions[log] for log in sorted(positions)}}


def _positions_of(line: str) -> dict[str, int]:
    """Return the positions in a source's line; none if the source is not ours."""
    try:
        ours = msgspec.json.decode(line, type=_Offset).stillframe
    except DECODING_ERRORS:
        return {}
    try:
        return msgspec.json.decode(ours, type=dict[str, _Position])
    except DECODING_ERRORS as error:
        raise Damaged(f"{line[:200]!r} is not an offset of a channel: {text_of(error)}") from error


def _offset_lines(path: Location) -> list[str]:
    try:
        lines = _text(path).split("\n")
    except FileNotFoundError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise Damaged(
            f"{path} is not an offset file of Spark: {text_of(error)}", path=path
        ) from error
    if not lines or not lines[0].startswith("v"):
        raise Damaged(f"{path} is not an offset file of Spark", path=path)
    return lines[_OFFSET_LINES_BEFORE_SOURCES:]


def _content(path: Location) -> bytes:
    with readable(path):
        if isinstance(path, Path):
            return path.read_bytes()
        content, _ = storage_of(path).read(path, bytes_max=_FILE_BYTES_MAX)
    if len(content) > _FILE_BYTES_MAX:
        raise Damaged(f"{path} has more than {_FILE_BYTES_MAX} bytes", path=path)
    return content


def _text(path: Location) -> str:
    return _content(path).decode("utf-8")


def _changed_at_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _numbers(directory: Location) -> list[int]:
    with explain_io_errors(directory, "read"):
        found = names(directory)
    return [int(name) for name in found if name.isascii() and name.isdigit()]


# --- which files belong to a micro-batch


def _files_below(checkpoint: Location, *parts: str) -> Iterator[str]:
    """Yield the names of all files of a checkpoint, or below these parts of it."""
    if isinstance(checkpoint, ObjectPath):
        places = [below(checkpoint, part) for part in parts] or [checkpoint]
        for place in places:
            with explain_io_errors(place, "read"):
                listed = storage_of(place).files_below(place)
            for one in listed:
                # S3A marks directories by empty objects, listed without the slash at their end;
                # no file that Spark has finished is empty.
                if one.byte_count:
                    yield cast("ObjectPath", one.location).relative_to(checkpoint)
        return
    for part in parts or ("",):
        for folder, _, found in os.walk(checkpoint / part):
            relative = Path(folder).relative_to(checkpoint)
            yield from ((relative / name).as_posix() for name in found)


def _needed(checkpoint: Location, batch: int, found: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the names of the files that are needed to continue after `batch`, among those that were
    `found`. At the `START` there is no state yet: Spark refuses even a schema that its first
    micro-batch left."""
    folders: dict[str, list[str]] = {}
    for name in _files_below(checkpoint) if found is None else found:
        folder, _, last = name.rpartition("/")
        if not last.endswith(_GROWING):
            folders.setdefault(folder, []).append(last)
    yield _METADATA
    if _ADOPTED in folders.get("", ()):
        yield _ADOPTED
    for folder, numbers in ((_OFFSETS, (batch - 1, batch)), (_COMMITS, (batch,))):
        wanted = {name for n in numbers for name in (str(n), f".{n}{_CHECKSUM}")}
        yield from (f"{folder}/{name}" for name in folders.get(folder, ()) if name in wanted)
    attempts = _Attempts(checkpoint)
    full = []
    for folder, listed in folders.items():
        part, _, store = folder.partition("/")
        if part == _SOURCES:
            yield from (f"{folder}/{name}" for name in listed)
        elif part == _STATE and batch != START and not store.endswith(f"/{_SST_FILES}"):
            for name in _needed_state(listed, batch + 1, functools.partial(attempts.at, store)):
                yield f"{folder}/{name}"
                if name.endswith(".zip") and not name.startswith("."):
                    full.append((folder, below(checkpoint, folder, name)))
    referring = mapped(checkpoint, _sst_names, [path for _, path in full])
    for (folder, _), referred in zip(full, referring, strict=True):
        yield from (f"{folder}/{_SST_FILES}/{name}" for name in referred)


def _needed_state(
    listed: Iterable[str], version: int, attempts_at: Callable[[int], set[str] | None]
) -> Iterator[str]:
    """Yield those files of a state store that are needed for a version: not newer ones, and none
    before the newest full one. Schemas, metadata and RocksDB's own files are named once, without a
    version, and never changed.

    In checkpoint format 2 several attempts at a version may have left files. Those whose attempt
    was committed count. If that is not known any more, the files stay, and a full one ends nothing.
    """
    versions: dict[int, list[tuple[str, str | None]]] = {}
    for name in listed:
        if (match := _VERSIONED.fullmatch(name)) is None:
            yield name
        elif int(match[1]) <= version:
            versions.setdefault(int(match[1]), []).append((name, match[2]))
    for number in sorted(versions, reverse=True):
        known = attempts_at(number) if any(one for _, one in versions[number]) else None
        is_full = False
        for name, attempt in versions[number]:
            if attempt is None or known is None or attempt in known:
                yield name
                is_certain = attempt is None or known is not None
                is_full |= is_certain and name.endswith(_FULL) and not name.startswith(".")
        if is_full:
            return


class _Attempts:
    """The attempts at versions of state that were committed, in checkpoint format 2."""

    def __init__(self, checkpoint: Location) -> None:
        self._checkpoint = checkpoint
        self._commits: dict[int, dict[str, list[list[str]]] | None] = {}

    def at(self, store: str, version: int) -> set[str] | None:
        """Return the ids of the attempts that count, of the stores of one partition, or None. They
        are unknown if Spark has deleted the commit, or a restore left it out."""
        if version not in self._commits:
            self._commits[version] = self._read(version - 1)
        operators = self._commits[version]
        operator, _, rest = store.partition("/")
        partition = rest.partition("/")[0]
        partitions = (operators or {}).get(operator)
        if partitions is None or not partition.isdigit() or int(partition) >= len(partitions):
            return None
        return set(partitions[int(partition)])

    def _read(self, batch: int) -> dict[str, list[list[str]]] | None:
        path = self._checkpoint / _COMMITS / str(batch)
        try:
            return msgspec.json.decode(
                _content(path).partition(b"\n")[2], type=_Commit
            ).stateUniqueIds
        except FileNotFoundError:
            return None
        except DECODING_ERRORS as error:
            raise Damaged(
                f"{path} is not a commit of Spark: {text_of(error)}", path=path
            ) from error


def _sst_names(path: Location) -> list[str]:
    """Return the names of the files that a full file of a RocksDB state store refers to."""
    opened = RangeFile(path) if isinstance(path, ObjectPath) else path.open("rb")
    with opened:
        try:
            content = _archived(cast("BinaryIO", opened))
            found = _SST_REFERENCE.findall(content.decode("utf-8"))
            strange = [name for name in found if _SST_NAME.fullmatch(name) is None]
            if strange:
                raise ValueError(f"it refers to the file {strange[0][:_SHOWN_LENGTH_MAX]!r}")
        except FileNotFoundError:
            raise
        except (*_NOT_SPARKS, OSError) as error:
            raise Damaged(
                f"{path} was not written by Spark: {text_of(error)}: put the file back from a copy "
                "of the pipeline, or restore the pipeline from a snapshot",
                path=path,
            ) from error
    return found


def _archived(file: BinaryIO) -> bytes:
    """Return the metadata in a full file of a RocksDB state store."""
    with zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(_METADATA)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"its {_METADATA} is compressed in another way")
        # The length that an archive states may be wrong: no more than it may have is unpacked.
        with archive.open(entry) as unpacked:
            content = unpacked.read(_ARCHIVED_BYTES_MAX + 1)
    if max(entry.file_size, len(content)) > _ARCHIVED_BYTES_MAX:
        raise ValueError(f"its {_METADATA} has more than {_ARCHIVED_BYTES_MAX} bytes")
    return content
