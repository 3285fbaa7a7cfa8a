"""Records stopped participants: what is on the disk is their state.

A stopped query is at its last committed micro-batch. A service that left wrote its state; one that
has not joined since a restore has the state that was restored. A service that died lost its state:
then no snapshot can be taken before the pipeline is restored.
"""

import functools
import shutil
from pathlib import Path

import msgspec

from stillframe.durable_files import replace_durably, shell_command, sync
from stillframe.errors import Damaged, NotConsistent, StillframeError
from stillframe.pipeline import pending_snapshot
from stillframe.pipeline.locks import PARTICIPANTS, participant_lock
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.participant_logs import QueryParticipant, ServiceLogs, reported_positions
from stillframe.pipeline.pending_snapshot import ParticipantFragment, Request, ServiceState
from stillframe.pipeline.snapshot_manifest import Manifest, read_manifest, snapshot_path
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal


class NotAtRest(StillframeError):
    """A participant is not running, and its files do not contain its state."""


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/epoch-2/NAME.json``: that a service joined in `epoch`; its
    positions and state when it left, once it has; or those that were restored, until it joins."""

    format: int = FORMAT
    epoch: int
    positions: dict[str, int] | None = None
    state: ServiceState | None = None


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


def service_status(root: Path, metadata: Metadata, name: str) -> ServiceStatus:
    """Return the status of a service. It is asked every few milliseconds while a snapshot is
    pending, so its state, which may be long, is read once."""
    starts, path = metadata.starts[name], _record_path(root, metadata.epoch, name)
    with explain_io_errors(path, "read"):
        try:
            status = path.stat()
            positions, has_state = _brief_of(path, status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            return ServiceStatus(has_joined=False, has_state=False, positions=starts, since=None)
    since = status.st_mtime
    if positions is None:
        positions, since = reported_positions(root, metadata, name) or (starts, since)
    return ServiceStatus(has_joined=True, has_state=has_state, positions=positions, since=since)


def write_service_record(root: Path, name: str, record: ServiceRecord) -> None:
    """Record that a service joined or left, in the epoch of the record."""
    path = _record_path(root, record.epoch, name)
    with explain_io_errors(path, "written"):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another may join at the same time
            sync(path.parent.parent)
        replace_durably(path, seal(record))


def place_services(root: Path, metadata: Metadata, manifest: Manifest) -> None:
    """Record the restored state of every service: as it was in the snapshot. The epoch of
    `metadata` has not started, so no program reads these records yet, and those of the epoch before
    it stay. Older ones, and those of an attempt that did not finish, are removed."""
    with explain_io_errors(root / PARTICIPANTS, "cleared"):
        for records in (root / PARTICIPANTS).glob("epoch-*/"):
            if records.name != f"epoch-{metadata.epoch - 1}":
                shutil.rmtree(records)
    for fragment in manifest.fragments:
        if (state := fragment.service) is not None:
            name = fragment.participant
            record = ServiceRecord(
                epoch=metadata.epoch, positions=metadata.starts[name], state=state
            )
            write_service_record(root, name, record)


def has_joined(root: Path, metadata: Metadata, name: str) -> bool:
    """Return whether a service has a state: it joined at some time, or was restored."""
    return _record_path(root, metadata.epoch, name).exists()


def stopped_service(
    root: Path, metadata: Metadata, name: str
) -> tuple[dict[str, int], ServiceState] | None:
    """Return positions and state of a service that does not run; None if it never ran at all, and
    NotAtRest if it died."""
    path = _record_path(root, metadata.epoch, name)
    if not path.exists():
        if metadata.restored_from is None:
            return None
        raise Damaged(
            f"{path} is missing, with the state of service {name} at the start of "
            "this epoch: restore the pipeline from a snapshot",
            path=path,
        )
    record = read_sealed(path, ServiceRecord)
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
    root: Path, metadata: Metadata, request: Request, name: str
) -> ParticipantFragment | None:
    """Record a participant that no program runs. None if a program runs it, or its turn has not
    come; NotAtRest if the disk does not have its state."""
    lock = participant_lock(root, name)
    if not lock.try_acquire():
        return None
    try:
        is_query, sources = name in metadata.dataflow.queries, metadata.dataflow.incoming(name)
        # Before a barrier is on one of its logs it is not worthwhile to search all of them.
        if name in metadata.dataflow.initiators() or any(
            pending_snapshot.has_recorded(root, request.snapshot, log.source) for log in sources
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
    root: Path, metadata: Metadata, name: str, stopped: tuple[dict[str, int], ServiceState]
) -> None:
    """NotAtRest if the service was restored as a process of a system that has not started since.
    Its record has no channels over TCP: what they hold is in the system's own store."""
    origin = metadata.restored_from
    # A snapshot with a system is kept as long as the epoch lasts.
    if origin is None or not snapshot_path(root, origin).exists():
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


def _record_query(root: Path, name: str) -> None:
    try:
        participant = QueryParticipant(root, name)
        participant.is_patient = False
        participant.at_boundary(participant.tails())
    except NotConsistent as error:
        raise NotAtRest(f"query {name} does not run: {error}; start it again") from error


def _record_service(root: Path, metadata: Metadata, name: str) -> None:
    if (stopped := stopped_service(root, metadata, name)) is not None:
        _check_no_process(root, metadata, name, stopped)
        positions, state = stopped
        logs = ServiceLogs(root, name, metadata, positions)
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


def _record_path(root: Path, epoch: int, name: str) -> Path:
    return root / PARTICIPANTS / f"epoch-{epoch}" / f"{name}.json"
