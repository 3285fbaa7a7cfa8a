"""The layout of Spark's checkpoint directory of a query, which only this module knows.

    metadata                     {"id": ...}: which query
    offsets/12                   the plan of micro-batch 12: v1, batch metadata, one line per source
    commits/12                   micro-batch 12 is done
    state/OPERATOR/PARTITION/    state after micro-batch 12: files of version 13 and before
    sources/0/                   the state of a source

Nothing is ever edited or deleted in such a directory: resetting it by hand leaves files of the
abandoned timeline that become the base of a later load, and the state is silently wrong. A restore
makes a new directory (``export``) from the files that were linked at the time (``pin``).
"""

import json
import os
import re
import shutil
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from stillframe.durable_files import disk_advice, link_into, link_tree
from stillframe.errors import Damaged, NotConsistent, StoreError
from stillframe.model import DECODING_ERRORS

OFFSET_KEY = "stillframe"
"""Our sources' offsets are ``{"stillframe": {channel: position}}``."""

_METADATA = "metadata"
_OFFSETS = "offsets"
_COMMITS = "commits"
_STATE = "state"
_SOURCES = "sources"
_OFFSET_LINES_BEFORE_SOURCES = 2
_VERSIONED = re.compile(r"\.?(\d+)(?:_[0-9A-Za-z_-]+)?\.(?:delta|snapshot|zip|changelog)(?:\.crc)?")
_BASE = re.compile(r"(\d+)\.(?:snapshot|zip)")
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
_LINK_ATTEMPT_COUNT = 5


class _Offset(msgspec.Struct):
    stillframe: msgspec.Raw


class Committed(msgspec.Struct, frozen=True):
    """A committed micro-batch and where it ended on each log that the query reads."""

    batch: int
    positions: dict[str, int]


def last_committed(checkpoint: Path) -> Committed | None:
    """Return the newest committed micro-batch of a query; None if there is none yet."""
    batches = _numbers(checkpoint / _COMMITS)
    return committed(checkpoint, max(batches)) if batches else None


def committed(checkpoint: Path, batch: int) -> Committed:
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


def planned_batch(checkpoint: Path) -> int | None:
    """Return the newest micro-batch that was planned, committed or not."""
    return max(_numbers(checkpoint / _OFFSETS), default=None)


def changed_at(checkpoint: Path) -> tuple[int, int]:
    """Return when a micro-batch was planned and when one was committed last, in nanoseconds:
    neither need be searched for again while both stay the same."""
    return _changed_at_ns(checkpoint / _OFFSETS), _changed_at_ns(checkpoint / _COMMITS)


def committed_at(checkpoint: Path, batch: int) -> float | None:
    """Return when a micro-batch was committed, in seconds since 1970; None if that is long ago."""
    return _changed_at_ns(checkpoint / _COMMITS / str(batch)) / 1e9 or None


def contradiction(checkpoint: Path) -> str | None:
    """Return what in a checkpoint Spark alone cannot have written, or None. A reset by hand
    shows: offsets or commits without each other, or state of a micro-batch that was never planned,
    which Spark would take for the base of a later one."""
    planned = planned_batch(checkpoint)
    done = max(_numbers(checkpoint / _COMMITS), default=None)
    newest = max(_state_versions(checkpoint), default=0)
    if planned is None:
        if done is not None or newest > 0:
            return "its plans of micro-batches are missing"
        return None
    if not (checkpoint / _METADATA).exists():
        return "its metadata is missing"
    if planned - (-1 if done is None else done) not in (0, 1):
        return f"micro-batch {planned} is the last one planned, and {done} the last one committed"
    if newest > planned + 1:
        return f"it has state of micro-batch {newest - 1}, and plans only up to {planned}"
    return None


def _state_versions(checkpoint: Path) -> Iterator[int]:
    """Yield the version of every file of state: N is the state after micro-batch N - 1."""
    for _, _, names in os.walk(checkpoint / _STATE):
        for name in names:
            if match := _VERSIONED.fullmatch(name):
                yield int(match[1])


def agrees(checkpoint: Path, pinned: Path, batch: int) -> bool:
    """Return whether a checkpoint has the same plan of a micro-batch as a pinned one. True as well
    if Spark has deleted the plan because it is old, or if the snapshot was dropped."""
    path = Path(_OFFSETS) / str(batch)
    try:
        return (checkpoint / path).read_bytes() == (pinned / path).read_bytes()
    except FileNotFoundError:
        return True


def check_pinned(pinned: Path, expected: Committed) -> None:
    """Check that a pinned checkpoint ends with the micro-batch that its query recorded; raises
    NotConsistent if not: two programs recorded for one query, one of them left over."""
    found = last_committed(pinned)
    if found != expected:
        raise NotConsistent(
            f"{pinned} ends with {found}, and the query recorded {expected}: a killed program of "
            "the query was still recording; take another snapshot"
        )


def pin(checkpoint: Path, batch: int, target: Path) -> None:
    """Link into `target` every file needed to continue after a committed micro-batch. Call it
    before the next one is planned. Spark writes its files by rename, so a link keeps its content.
    `target` appears in one step, complete; an existing one of the same micro-batch stays, another
    is replaced."""
    if (target / _COMMITS / str(batch)).exists():
        return
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        _link_needed(checkpoint, batch, partial)
        if target.exists():
            target.rename(target.with_name(f".{target.name}.{uuid.uuid4().hex}"))
        partial.rename(target)
    except OSError as error:
        raise StoreError(
            f"the checkpoint {checkpoint} could not be linked into {target}: "
            f"{error.strerror or error}; {disk_advice(error)}"
        ) from error


def _link_needed(checkpoint: Path, batch: int, target: Path) -> None:
    for _ in range(_LINK_ATTEMPT_COUNT):
        try:
            for relative in _needed(checkpoint, batch):
                link_into(checkpoint / relative, target / relative)
        except FileNotFoundError:
            # Spark's maintenance deletes files older than the newest full one: look again.
            shutil.rmtree(target, ignore_errors=True)
        else:
            return
    raise StoreError(
        f"files of the checkpoint {checkpoint} disappear while they are linked: raise Spark's "
        "spark.sql.streaming.minBatchesToRetain"
    )


def export(pinned: Path, target: Path, batch: int, positions: Mapping[str, int]) -> None:
    """Make from a `pinned` checkpoint a new one, `target`, with which a query continues after
    `batch`, from `positions` on our logs. Raises OSError if the disk is full or failed."""
    for part in (_OFFSETS, _COMMITS, _STATE, _SOURCES):
        link_tree(pinned / part, target / part)
    # A new id, so that sinks which remember (query, batch) do not take the next batches for done.
    (target / _METADATA).write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    _move(target / _OFFSETS / str(batch), positions)


def _move(offsets: Path, positions: Mapping[str, int]) -> None:
    """Make the plan of a micro-batch end at other positions, in a separate file."""
    lines = offsets.read_text(encoding="utf-8").split("\n")
    moved = lines[:_OFFSET_LINES_BEFORE_SOURCES]
    for line in lines[_OFFSET_LINES_BEFORE_SOURCES:]:
        ours = _positions_of(line)
        moved.append(encode_offset({log: positions[log] for log in ours}) if ours else line)
    if moved == lines:
        return
    # The linked file belongs to the snapshot too: make a new one, and drop its old checksum.
    offsets.with_name(f".{offsets.name}.crc").unlink(missing_ok=True)
    offsets.unlink()
    offsets.write_text("\n".join(moved), encoding="utf-8")


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
        return msgspec.json.decode(ours, type=dict[str, int])
    except DECODING_ERRORS as error:
        raise Damaged(f"{line[:200]!r} is not an offset of a channel: {error}") from error


def _offset_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}", path=path) from error
    if not lines or not lines[0].startswith("v"):
        raise Damaged(f"{path} is not an offset file of Spark", path=path)
    return lines[_OFFSET_LINES_BEFORE_SOURCES:]


def _changed_at_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _numbers(directory: Path) -> list[int]:
    try:
        names = [path.name for path in directory.iterdir()]
        return [int(name) for name in names if name.isascii() and name.isdigit()]
    except FileNotFoundError:
        return []


def _needed(checkpoint: Path, batch: int) -> Iterator[Path]:
    """Yield the files, relative to the checkpoint, that are needed to continue after `batch`."""
    yield Path(_METADATA)
    for directory, numbers in ((_OFFSETS, (batch - 1, batch)), (_COMMITS, (batch,))):
        for number in numbers:
            for name in (str(number), f".{number}.crc"):
                if (checkpoint / directory / name).exists():
                    yield Path(directory, name)
    for part in (_STATE, _SOURCES):
        for folder, _, found in os.walk(checkpoint / part):
            relative, names = Path(folder).relative_to(checkpoint), found
            if relative.name == _SST_FILES:
                names = _sst_files_of(checkpoint / relative.parent, batch + 1)
            elif part == _STATE:
                names = _needed_files(found, batch + 1)
            yield from (relative / name for name in names if not name.endswith(_GROWING))


def _needed_files(names: list[str], version: int) -> list[str]:
    """Return those files of state that are needed for a version: not newer ones, and none before
    the newest full one. Schemas, metadata and RocksDB's own files are named once, without a
    version, and never changed."""
    full = (int(match[1]) for name in names if (match := _BASE.fullmatch(name)))
    base = max((found for found in full if found <= version), default=0)
    return [
        name
        for name in names
        if (match := _VERSIONED.fullmatch(name)) is None or base <= int(match[1]) <= version
    ]


def _sst_files_of(directory: Path, version: int) -> list[str]:
    """Return the files that the needed full files of a RocksDB state store refer to. Others belong
    to later versions; Spark may still be writing them."""
    found: set[str] = set()
    for name in _needed_files([path.name for path in directory.iterdir()], version):
        if name.endswith(".zip") and not name.startswith("."):
            found.update(_sst_names(directory / name))
    return sorted(found)


def _sst_names(path: Path) -> list[str]:
    """Return the names of the files that a full file of a RocksDB state store refers to."""
    with path.open("rb") as opened:
        try:
            content = _archived(opened)
            names = _SST_REFERENCE.findall(content.decode("utf-8"))
            strange = [name for name in names if _SST_NAME.fullmatch(name) is None]
            if strange:
                raise ValueError(f"it refers to the file {strange[0][:_SHOWN_LENGTH_MAX]!r}")
        except (*_NOT_SPARKS, OSError) as error:
            raise Damaged(
                f"{path} was not written by Spark: {error}: put the file back from a copy of "
                "the pipeline, or restore the pipeline from a snapshot",
                path=path,
            ) from error
    return names


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
