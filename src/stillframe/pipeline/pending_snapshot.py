"""A pending snapshot, as files: the request, and what each participant recorded for it.

    ROOT/pending/shop-17/request.json             which snapshot, in which mode, until when
    ROOT/pending/shop-17/fragments/enrich.json    what one participant recorded
    ROOT/pending/shop-17/checkpoints/enrich/      the files of a query's checkpoint, as hard links
    ROOT/pending/shop-17/systems/P1.json          the system whose first service is P1

At most one snapshot is pending in a pipeline. When its directory disappears, the snapshot was
published or abandoned, and its barriers mean nothing any more. In an object store the request is a
member of ``pipeline.json``, and the snapshot has ended when it is no longer there.

Some services may be processes of a system with channels over TCP. The system's own snapshot, with
markers on those channels, and the pipeline's, with barriers in the logs, become one cut: a process
in both records once, in one atomic step, for both. The system's coordinator announces under which
id it takes part before any marker travels, and then the outcome.
"""

import contextlib
import enum
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from stillframe.durable_files import replace_durably, sync, write_new
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.metadata import Request as Request  # noqa: PLC0414 - it belongs here
from stillframe.pipeline.metadata import check_positions, read_object_metadata
from stillframe.storage.files import Place, below
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject
from stillframe.storage.reading import is_there
from stillframe.storage.storage import Changed
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import (
    FORMAT,
    SEALED_BYTES_MAX,
    TooLarge,
    read_sealed,
    read_sealed_bytes,
    seal,
)

PENDING = "pending"
REQUEST = "request.json"
FRAGMENTS = "fragments"
PINNED = "checkpoints"
SYSTEMS = "systems"
WHOLE = ".whole"

_Content = TypeVar("_Content", bound=msgspec.Struct)


class ServiceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a service, as ``state_codec.StateCodec`` encodes them. Of one that reads or
    writes topics of Kafka `version` is the transaction after which they were so; -1 before the
    first."""

    kind: str
    encoded: bytes
    version: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] | msgspec.UnsetType = msgspec.UNSET

    def fields(self) -> dict[str, Any]:
        """Return the recorded fields by name, as MessagePack gives them."""
        return msgspec.msgpack.decode(self.encoded, type=dict[str, Any])


class QueryState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last committed micro-batch of a query; None if it has not committed any. In an object
    store `run` is the one that recorded it (``query_runs``)."""

    batch: int | None
    run: int | msgspec.UnsetType = msgspec.UNSET


class ParticipantFragment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recording of one participant: its state, its position on each log that it reads, and that
    of the barrier on each log that it writes. `system` names the system if the participant is a
    process of one. `failure` explains why its state could not be recorded; None if it was."""

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

    @property
    def version(self) -> int:
        """The last micro-batch of a query, or transaction of a service that reads and writes
        topics, that is part of it; `START` before the first."""
        if self.query is not None:
            return START if self.query.batch is None else self.query.batch
        assert self.service is not None
        assert self.service.version is not msgspec.UNSET
        return self.service.version


def request_path(root: Place, snapshot: SnapshotId) -> Place:
    """Return the directory of a pending snapshot."""
    return below(root, PENDING, str(snapshot))


def is_being_published(root: Location, snapshot: SnapshotId) -> bool:
    """Return whether a snapshot is neither pending any more, nor in its place yet."""
    return isinstance(root, Path) and any((root / PENDING).glob(f".{snapshot}.*{WHOLE}"))


def pending_request(root: Location) -> Request | None:
    """Return the request of the pending snapshot, or None."""
    if isinstance(root, ObjectPath):
        return read_object_metadata(root)[0].request
    with contextlib.suppress(FileNotFoundError):
        for directory in (root / PENDING).iterdir():
            # It may end, and its directory disappear, at any moment.
            if not directory.name.startswith("."):
                with contextlib.suppress(Damaged):
                    request = read_sealed(directory / REQUEST, Request)
                    # Its id becomes a path.
                    if str(request.snapshot) == directory.name:
                        return request
    return None


def fragment_path(root: Place, snapshot: SnapshotId, participant: str) -> Place:
    """Return where a participant's fragment is written."""
    return below(request_path(root, snapshot), FRAGMENTS, f"{participant}.json")


def has_recorded(root: Location, snapshot: SnapshotId, participant: str) -> bool:
    """Return whether a participant has submitted its fragment, or the snapshot has ended. In an
    object store a fragment outlives its snapshot's end by a moment, so the order does not matter.
    """
    if is_there(fragment_path(root, snapshot, participant)):
        return True
    if isinstance(root, ObjectPath):
        request = pending_request(root)
        return request is None or request.snapshot != snapshot
    # Only if it is still pending now was the fragment really missing a moment ago.
    return not (request_path(root, snapshot) / REQUEST).exists()


def submit_fragment(root: Location, fragment: ParticipantFragment) -> None:
    """Write a participant's fragment, unless there is one, or the snapshot has ended in the
    meantime; it is on the disk when this returns. If the state is too large to be read back, the
    fragment says that instead, and the snapshot is abandoned. A later run of a query replaces the
    fragment of an earlier one."""
    path = fragment_path(root, fragment.snapshot, fragment.participant)
    with explain_io_errors(path, "written"), contextlib.suppress(FileNotFoundError):
        try:
            content = seal(fragment)
        except TooLarge as error:
            failure = f"the state of service {fragment.participant} is too large: {error}"
            content = seal(msgspec.structs.replace(fragment, service=None, failure=failure))
        if isinstance(path, ObjectPath):
            with contextlib.suppress(FileExistsError, Changed):
                _put(path, content, _run_of(fragment))
            return
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_new(partial, content)
        sync(partial)
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
        partial.unlink()
        sync(path.parent)


def _put(path: ObjectPath, content: bytes, run: int) -> None:
    storage = storage_of(path)
    try:
        storage.put_if_absent(path, content)
    except FileExistsError:
        sealed, version = storage.read(path, bytes_max=SEALED_BYTES_MAX)
        if _run_of(read_sealed_bytes(path, sealed, ParticipantFragment)) < run:
            storage.replace_if_unchanged(path, content, version)


def _run_of(fragment: ParticipantFragment) -> int:
    run = fragment.query.run if fragment.query is not None else msgspec.UNSET
    return -1 if run is msgspec.UNSET else run


def _read_pending(path: Location, kind: type[_Content]) -> _Content | None:
    """Return the content of a file; None if it is not there, or was removed while it was read."""
    if is_there(path):
        try:
            return read_sealed(path, kind)
        except Damaged:
            if is_there(path):
                raise
    return None


def read_fragment(
    root: Location, snapshot: SnapshotId, participant: str
) -> ParticipantFragment | None:
    """Return the fragment of one participant; None if it has submitted none, or the snapshot has
    ended."""
    path = fragment_path(root, snapshot, participant)
    fragment = _read_pending(path, ParticipantFragment)
    if fragment is not None and (fragment.snapshot, fragment.participant) != (
        snapshot,
        participant,
    ):
        raise Damaged(f"{path} is not what {participant} recorded for {snapshot}", path=path)
    return fragment


def check_fragments(dataflow: Dataflow, fragments: Sequence[ParticipantFragment]) -> None:
    """Raise UsageError if a participant did not record its own kind of state, or has positions on
    other logs than its own."""
    if [fragment.participant for fragment in fragments] != list(dataflow.participants):
        raise UsageError(
            f"it does not have one fragment of each of {', '.join(dataflow.participants)}"
        )
    for fragment in fragments:
        check_fragment(dataflow, fragment)


def check_fragment(dataflow: Dataflow, fragment: ParticipantFragment) -> None:
    """Raise UsageError if one fragment is not as ``check_fragments`` says."""
    name = fragment.participant
    check_positions(fragment.positions, dataflow.incoming(name), name)
    check_positions(fragment.barriers, dataflow.outgoing(name), name)
    kind = (fragment.query is not None, fragment.service is not None)
    if kind != (name in dataflow.queries, name in dataflow.services):
        raise UsageError(f"{name} recorded no state of its kind")
    if fragment.service is not None:
        has_version = fragment.service.version is not msgspec.UNSET
        if has_version != (name in dataflow.versioned):
            raise UsageError(f"{name} recorded {'a' if has_version else 'no'} transaction")


# --- systems of processes


class Outcome(enum.Enum):
    """The state of a system's own snapshot."""

    PENDING = "pending"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class SystemCut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system's share of a pipeline's snapshot: its own snapshot, in its own store, whose
    absolute path or address this has. `name` is the first of its services, `detail` why it was
    abandoned."""

    format: int = FORMAT
    name: str
    store: str
    snapshot: SnapshotId
    outcome: Outcome = Outcome.PENDING
    detail: str = ""


def services_among(dataflow: Dataflow, processes: list[str]) -> tuple[str, ...]:
    """Return which processes of a system are services of the pipeline; UsageError if none is."""
    attached = tuple(sorted(set(processes) & dataflow.services.keys()))
    if not attached:
        raise UsageError(
            f"no process of the system ({', '.join(processes)}) is a service of the pipeline "
            f"({', '.join(dataflow.services) or 'it has none'}): they must have the same name"
        )
    for service in attached:
        for topic in dataflow.topics_of(service):
            raise UsageError(
                f"service {service} cannot be a process of a system, because its channel "
                f"{topic.name} is a topic of Kafka: run it as a separate program "
                "(Pipeline.join_service)"
            )
    return attached


class CutReport:
    """Reports the state of a system's snapshot, again and again."""

    def __init__(self, root: Location, snapshot: SnapshotId, name: str) -> None:
        self._path = _cut_path(root, snapshot, name)
        # A late attempt at an unconditional write could undo the one after it.
        self._object = OwnedObject(self._path)

    def write(self, cut: SystemCut) -> None:
        """Replace what was reported; if the pipeline's snapshot has ended, it means nothing."""
        path, content = self._path, seal(cut)
        with explain_io_errors(path, "written"), contextlib.suppress(FileNotFoundError):
            if isinstance(path, Path):
                path.parent.mkdir(exist_ok=True)
                replace_durably(path, content)
                return
            try:
                self._object.replace(content)
            except Changed:
                # Of a snapshot that has ended it is gone; then no other program has reported.
                if is_there(path):
                    raise


def system_cut(root: Location, snapshot: SnapshotId, name: str) -> SystemCut | None:
    """Return the state of a system's snapshot; None if it has not started, or the snapshot has
    ended."""
    return _read_pending(_cut_path(root, snapshot, name), SystemCut)


def _cut_path(root: Location, snapshot: SnapshotId, name: str) -> Location:
    return below(request_path(root, snapshot), SYSTEMS, f"{name}.json")
