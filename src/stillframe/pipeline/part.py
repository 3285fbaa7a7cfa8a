"""A snapshot under way, as files: the request, and what each participant recorded for it.

    ROOT/under-way/shop-17/request.json           which snapshot, in which mode, until when
    ROOT/under-way/shop-17/parts/enrich.json      what one participant recorded
    ROOT/under-way/shop-17/checkpoints/enrich/    the files of a query's checkpoint, as hard links

At most one snapshot is under way in a pipeline. When its directory is gone, the snapshot is over,
published or given up, and its barriers mean nothing any more.
"""

import contextlib
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.head import check_positions
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.protocol.aligner import Mode, Reading
from stillframe.store.disk import sync, write_new
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, TooLarge, read_sealed, seal

UNDER_WAY = "under-way"
REQUEST = "request.json"
PARTS = "parts"
PINNED = "checkpoints"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``request.json``. Times are seconds since 1970; `name` is a savepoint's."""

    format: int = FORMAT
    snapshot: SnapshotId
    epoch: int
    mode: Mode
    name: str | None
    initiated_at: float
    deadline_at: float


class ServiceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a service, as ``state_codec.StateCodec`` encodes them."""

    kind: str
    encoded: bytes


class QueryState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last committed micro-batch of a query; None if it has not committed any."""

    batch: int | None


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one participant recorded: its state, where it stood on each log that it reads, and where
    it put the barrier on each log that it writes. `system` names the system that it is a process
    of (``systems``). `failure` says why its state could not be recorded; None if it was."""

    format: int = FORMAT
    snapshot: SnapshotId
    participant: str
    recorded_at: float
    positions: dict[str, int]
    barriers: dict[str, int]
    service: ServiceState | None = None
    query: QueryState | None = None
    system: str | None = None
    failure: str | None = None


def request_path(root: Path, snapshot: SnapshotId) -> Path:
    """Return the directory of a snapshot that is under way."""
    return root / UNDER_WAY / str(snapshot)


def under_way(root: Path) -> Request | None:
    """Return the request of the snapshot that is under way, or None."""
    with contextlib.suppress(FileNotFoundError):
        for directory in (root / UNDER_WAY).iterdir():
            # It may be over, and its directory gone, at any moment.
            if not directory.name.startswith("."):
                with contextlib.suppress(Damaged):
                    request = read_sealed(directory / REQUEST, Request)
                    # Its id becomes a path.
                    if str(request.snapshot) == directory.name:
                        return request
    return None


def part_path(root: Path, snapshot: SnapshotId, participant: str) -> Path:
    """Return where a participant's part is written."""
    return request_path(root, snapshot) / PARTS / f"{participant}.json"


def has_recorded(root: Path, snapshot: SnapshotId, participant: str) -> bool:
    """Return whether a participant has handed in its part, or the snapshot is over."""
    if part_path(root, snapshot, participant).exists():
        return True
    # Only if it is still under way now was the part really missing a moment ago.
    return not (request_path(root, snapshot) / REQUEST).exists()


def hand_in(root: Path, part: Part) -> None:
    """Write a participant's part, unless there is one; it is on the disk when this returns.

    If the snapshot is over in the meantime, nothing is written: the part is not needed. If its
    state is too large to be read back, the part says that instead: the snapshot is given up.
    """
    path = part_path(root, part.snapshot, part.participant)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with explained(path, "written"), contextlib.suppress(FileNotFoundError):
        try:
            content = seal(part)
        except TooLarge as error:
            failure = f"the state of service {part.participant} is too large: {error}"
            content = seal(msgspec.structs.replace(part, service=None, failure=failure))
        write_new(partial, content)
        sync(partial)
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
        partial.unlink()
        sync(path.parent)


def read_part(root: Path, snapshot: SnapshotId, participant: str) -> Part | None:
    """Return the part of one participant, or None if it has not handed it in.

    None as well if the snapshot is over in the meantime.

    Raises:
        Damaged, StoreError: the part was changed or cannot be read.
    """
    path = part_path(root, snapshot, participant)
    if not path.exists():
        return None
    try:
        return read_sealed(path, Part)
    except Damaged:
        if path.exists():
            raise
        return None


def check_parts(dataflow: Dataflow, parts: Sequence[Part]) -> None:
    """Check that each participant of a dataflow recorded its own kind of state, and stands on the
    logs that are its own.

    Raises:
        UsageError: what cannot be.
    """
    if [part.participant for part in parts] != list(dataflow.participants):
        raise UsageError(f"it has not one part of each of {', '.join(dataflow.participants)}")
    for part in parts:
        name = part.participant
        check_positions(part.positions, dataflow.incoming(name), name)
        check_positions(part.barriers, dataflow.outgoing(name), name)
        kind = (part.query is not None, part.service is not None)
        if kind != (name in dataflow.queries, name in dataflow.services):
            raise UsageError(f"{name} recorded no state of its kind")


def readings(
    root: Path,
    snapshot: SnapshotId,
    readers: dict[str, LogReader],
    positions: dict[str, int],
    tails: dict[str, int],
) -> dict[str, Reading]:
    """Return where a participant stands on each log that it reads.

    A barrier ahead is found in the log itself, as soon as it is there. One that was passed, which
    only at-least-once allows, is known from the part of the log's source.
    """
    found = {}
    for name, reader in readers.items():
        position = _behind_old_barriers(reader, snapshot, positions[name], tails[name])
        barrier = reader.find_barrier(snapshot, position, tails[name])
        if barrier is None and (part := read_part(root, snapshot, reader.log.source)) is not None:
            barrier = part.barriers[name]
        found[name] = Reading(position, barrier)
    return found


def _behind_old_barriers(reader: LogReader, snapshot: SnapshotId, position: int, tail: int) -> int:
    """Return `position` behind the barriers of other snapshots that stand there: nobody reads on
    just to step over one."""
    while position < tail:
        item = reader.item(position)
        if item.files or getattr(item.content, "snapshot", snapshot) == snapshot:
            break
        position += 1
    return position


def forward(
    writers: dict[str, LogWriter], request: Request, *, batch: int | None = None
) -> dict[str, int]:
    """Put the barrier on every log that a participant writes; return its position on each.

    Doing it again, before anything else is appended, changes nothing.

    Args:
        writers: of its logs.
        request: the snapshot.
        batch: the micro-batch after which a query has recorded its state.

    Raises:
        NotConsistent: a log holds records of a later micro-batch.
    """
    return {
        name: writer.append_barrier(request.snapshot, request.mode, batch=batch)
        for name, writer in writers.items()
    }
