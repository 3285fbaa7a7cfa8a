"""Records stopped participants: what is on the disk is their state.

A stopped query is at its last committed micro-batch. A service that left wrote its state; one that
has not joined since a restore has the state that was restored. A service that died lost its state:
then no snapshot can be taken before the pipeline is restored. The state of a service with topics of
Kafka is in its ledger (``ledger``), and here is only where it began in the epoch.
"""

import contextlib
import functools
import secrets
from pathlib import Path

import msgspec

from stillframe.durable_files import replace_durably, shell_command, sync
from stillframe.errors import Damaged, NotConsistent, StillframeError, Unavailable
from stillframe.pipeline import pending_snapshot
from stillframe.pipeline.locks import PARTICIPANTS, participant_lock
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.participant_logs import (
    QueryParticipant,
    ServiceLogs,
    reported_positions,
    writers_of,
)
from stillframe.pipeline.pending_snapshot import ParticipantFragment, Request, ServiceState
from stillframe.pipeline.snapshot_manifest import Manifest, is_published, read_manifest
from stillframe.pipeline.topics import TopicPositions
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import below, names, remove_tree
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject
from stillframe.storage.reading import is_there
from stillframe.storage.storage import Changed
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import (
    FORMAT,
    SEALED_BYTES_MAX,
    read_sealed,
    read_sealed_bytes,
    seal,
)


class NotAtRest(StillframeError):
    """A participant is not running, and its files do not contain its state."""


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/epoch-2/NAME.json``: that a service joined in `epoch`; its
    positions and state when it left, once it has; or those that were restored, until it joins. Of a
    service with topics of Kafka, where it began in this epoch, with its position on each partition
    of the topics that it reads; the rest is in its ledger."""

    format: int = FORMAT
    epoch: int
    positions: dict[str, int] | None = None
    state: ServiceState | None = None
    topic_positions: TopicPositions | msgspec.UnsetType = msgspec.UNSET


class ObjectServiceRecord(ServiceRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same in an object store. `token` is new in each version, so that none is like an earlier
    one."""

    token: str


class ServiceStatus(msgspec.Struct, frozen=True):
    """The status of a service, as far as the disk shows it. It says whether the service joined in
    this epoch, or was restored; whether its state is on the disk, because it left or has not joined
    since a restore; its current or last reported positions, and since when, in seconds since 1970.
    """

    has_joined: bool
    has_state: bool
    positions: dict[str, int]
    since: float | None

    @property
    def is_dead(self) -> bool:
        """Whether it lost its state, unless it runs."""
        return self.has_joined and not self.has_state


def service_status(root: Location, metadata: Metadata, name: str) -> ServiceStatus:
    """Return the status of a service. It is asked every few milliseconds while a snapshot is
    pending, so its state, which may be long, is read once."""
    starts, path = metadata.starts[name], _record_path(root, metadata.epoch, name)
    since: float | None = None
    with explain_io_errors(path, "read"):
        try:
            if isinstance(path, ObjectPath):
                sealed, _ = storage_of(path).read(path, bytes_max=SEALED_BYTES_MAX)
                record = read_sealed_bytes(path, sealed, ObjectServiceRecord)
                positions, has_state = record.positions, record.state is not None
            else:
                status = path.stat()
                positions, has_state = _brief_of(path, status.st_ino, status.st_mtime_ns)
                since = status.st_mtime
        except FileNotFoundError:
            return ServiceStatus(has_joined=False, has_state=False, positions=starts, since=None)
    if positions is None:
        positions, since = reported_positions(root, metadata, name) or (starts, since)
    return ServiceStatus(has_joined=True, has_state=has_state, positions=positions, since=since)


def write_service_record(root: Location, name: str, record: ServiceRecord) -> None:
    """Record that a service joined or left, in the epoch of the record."""
    path = _record_path(root, record.epoch, name)
    with explain_io_errors(path, "written"):
        if isinstance(path, ObjectPath):
            storage_of(path).put(path, seal(_for_objects(record)))
            return
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another may join at the same time
            sync(path.parent.parent)
        replace_durably(path, seal(record))


class OwnRecord:
    """The record of a service, as the program that takes its place reads and writes it. In an
    object store a write fails if another program has written since: so of two programs that take
    the place of one service, only one runs it, whatever their leases are worth."""

    def __init__(self, root: Location, metadata: Metadata, name: str) -> None:
        self._root = root
        self._metadata = metadata
        self._name = name
        self._path = _record_path(root, metadata.epoch, name)
        self._object = OwnedObject(self._path)

    def stopped(self) -> tuple[dict[str, int], ServiceState] | None:
        """Read the record; returns and raises as ``stopped_service``."""
        if not isinstance(self._path, ObjectPath):
            return stopped_service(self._root, self._metadata, self._name)
        with explain_io_errors(self._path, "read"):
            sealed = self._object.read(bytes_max=SEALED_BYTES_MAX)
        record = (
            None if sealed is None else read_sealed_bytes(self._path, sealed, ObjectServiceRecord)
        )
        return _state_in(self._root, self._metadata, self._name, record)

    def write(
        self, positions: dict[str, int] | None = None, state: ServiceState | None = None
    ) -> None:
        """Record that the service joined, or with positions and a state that it left. Unavailable
        if another program has taken its place."""
        record = ServiceRecord(epoch=self._metadata.epoch, positions=positions, state=state)
        if not isinstance(self._path, ObjectPath):
            write_service_record(self._root, self._name, record)
            return
        with explain_io_errors(self._path, "written"):
            try:
                self._object.replace(seal(_for_objects(record)))
            except Changed:
                raise Unavailable(
                    f"another program has taken the place of service {self._name}: stop that one "
                    "first",
                    path=self._root,
                    process=self._name,
                ) from None


def _for_objects(record: ServiceRecord) -> ObjectServiceRecord:
    token = secrets.token_hex(16)
    return ObjectServiceRecord(**msgspec.structs.asdict(record), token=token)


def place_services(root: Location, metadata: Metadata, manifest: Manifest, left: int) -> None:
    """Record the restored state of every service: as it was in the snapshot. The epoch of
    `metadata` has not started, so no program reads these records yet, and those of the epoch `left`
    stay. Older ones, and those of an attempt that did not finish, are removed."""
    with explain_io_errors(root / PARTICIPANTS, "cleared"):
        for one in names(root / PARTICIPANTS):
            epoch = one.removeprefix("epoch-")
            if not epoch.isdecimal() or int(epoch) == left:
                continue
            # In an object store another restore may have overtaken this one, which will fail.
            if isinstance(root, Path) or int(epoch) < left:
                remove_tree(root / PARTICIPANTS / one)
    for fragment in manifest.fragments:
        if (state := fragment.service) is not None:
            name = fragment.participant
            record = ServiceRecord(
                epoch=metadata.epoch,
                positions=metadata.starts[name],
                state=state,
                topic_positions=manifest.topic_positions(name) or msgspec.UNSET,
            )
            path = _record_path(root, metadata.epoch, name)
            if isinstance(path, ObjectPath):
                # Nothing is there. A late duplicate of a request must not undo that it joins.
                with explain_io_errors(path, "written"):
                    storage_of(path).put_if_absent(path, seal(_for_objects(record)))
            else:
                write_service_record(root, name, record)


def has_joined(root: Location, metadata: Metadata, name: str) -> bool:
    """Return whether a service has a state: it joined at some time, or was restored."""
    return is_there(_record_path(root, metadata.epoch, name))


def beginning_of(root: Location, metadata: Metadata, name: str) -> ServiceRecord | None:
    """Return where a service that reads and writes topics began in this epoch; None if it never ran
    at all."""
    path = _record_path(root, metadata.epoch, name)
    kind = ObjectServiceRecord if isinstance(path, ObjectPath) else ServiceRecord
    record = read_sealed(path, kind) if is_there(path) else None
    _state_in(root, metadata, name, record)
    return record


def stopped_service(
    root: Location, metadata: Metadata, name: str
) -> tuple[dict[str, int], ServiceState] | None:
    """Return positions and state of a service that does not run; None if it never ran at all, and
    NotAtRest if it died."""
    path = _record_path(root, metadata.epoch, name)
    kind = ObjectServiceRecord if isinstance(path, ObjectPath) else ServiceRecord
    record = read_sealed(path, kind) if is_there(path) else None
    return _state_in(root, metadata, name, record)


def _state_in(
    root: Location, metadata: Metadata, name: str, record: ServiceRecord | None
) -> tuple[dict[str, int], ServiceState] | None:
    if record is None:
        if metadata.restored_from is None:
            return None
        if isinstance(root, ObjectPath) and read_metadata(root).epoch != metadata.epoch:
            # Later restores remove the records of an epoch that is over.
            raise Unavailable(
                f"the pipeline {root} was restored meanwhile", path=root, remedy="try again"
            )
        path = _record_path(root, metadata.epoch, name)
        raise Damaged(
            f"{path} is missing, with the state of service {name} at the start of "
            "this epoch: restore the pipeline from a snapshot",
            path=path,
        )
    if record.positions is None or record.state is None:
        raise _died(name)
    return record.positions, record.state


def _died(name: str) -> NotAtRest:
    return NotAtRest(
        f"service {name} died, and its state is lost",
        process=name,
        remedy="restore the pipeline from its last snapshot and start the service again",
    )


def record_stopped(
    root: Location, metadata: Metadata, request: Request, name: str
) -> ParticipantFragment | None:
    """Record a participant that no program runs. None if a program runs it, or its turn has not
    come; NotAtRest if the disk does not have its state."""
    lock = participant_lock(root, name)
    if not lock.try_acquire():
        return None
    try:
        is_query, sources = name in metadata.dataflow.queries, metadata.dataflow.incoming(name)
        # Before a barrier is on one of its logs it is not worthwhile to search all of them.
        if (
            request.mode is Mode.RETAINED
            or name in metadata.dataflow.initiators()
            or any(
                pending_snapshot.has_recorded(root, request.snapshot, log.source) for log in sources
            )
        ):
            if is_query:
                _record_query(root, name)
            else:
                _record_service(root, metadata, name)
        elif not is_query and service_status(root, metadata, name).is_dead:
            raise _died(name)
        return pending_snapshot.read_fragment(root, request.snapshot, name)
    finally:
        lock.release()


def is_as_restored(
    metadata: Metadata,
    part: ParticipantFragment,
    stopped: tuple[dict[str, int], ServiceState],
) -> bool:
    """Return whether a stopped service has not run since the restore that gave it `part`."""
    return stopped == (metadata.starts[part.participant], part.service)


def _check_no_process(
    root: Location, metadata: Metadata, name: str, stopped: tuple[dict[str, int], ServiceState]
) -> None:
    """NotAtRest if the service was restored as a process of a system that has not started since.
    Its record has no channels over TCP: what they hold is in the system's own store."""
    origin = metadata.restored_from
    # A snapshot with a system is kept as long as the epoch lasts.
    if origin is None or not is_published(root, origin):
        return
    manifest = read_manifest(root, origin)
    part = manifest.fragment(name)
    if part.system is None or not is_as_restored(metadata, part, stopped):
        return
    store = next(cut.store for cut in manifest.systems if cut.name == part.system)
    raise NotAtRest(
        f"service {name} is a process of a system that has not started since the restore of "
        f"the pipeline: start it with '{shell_command('restore', store, '--pipeline', root)}'",
        process=name,
    )


def _record_query(root: Location, name: str) -> None:
    try:
        participant = QueryParticipant(root, name)
        participant.is_patient = False
        with contextlib.suppress(Unavailable):  # it was started meanwhile, and records itself
            participant.at_boundary(participant.tails())
    except NotConsistent as error:
        raise NotAtRest(f"query {name} does not run: {error}; start it again") from error


def _record_service(root: Location, metadata: Metadata, name: str) -> None:
    writers = None
    if isinstance(root, ObjectPath):
        # First where its logs end, then its state: if it starts now and appends, despite our lease,
        # the barrier either comes before that or finds its number taken.
        writers = writers_of(root, metadata, name)
    if (stopped := stopped_service(root, metadata, name)) is not None:
        _check_no_process(root, metadata, name, stopped)
        positions, state = stopped
        logs = ServiceLogs(root, name, metadata, positions, writers)
        logs.is_patient = False
        logs.at_boundary(lambda request: logs.submit(request, positions, service=state))
    # Else a program may be starting it right now.


@functools.lru_cache(maxsize=1024)
def _brief_of(
    path: Path,
    inode: int,  # noqa: ARG001 - identifies the record
    changed_at_ns: int,  # noqa: ARG001 - identifies the record
) -> tuple[dict[str, int] | None, bool]:
    """Return the positions in a service's record, and whether it has a state. Each record is a new
    file, so inode and time identify it."""
    record = read_sealed(path, ServiceRecord)
    return record.positions, record.state is not None


def _record_path(root: Location, epoch: int, name: str) -> Location:
    return below(root, PARTICIPANTS, f"epoch-{epoch}", f"{name}.json")
