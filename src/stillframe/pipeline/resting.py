"""Records participants that no program runs: as they lie on the disk, that is their state.

A stopped query stands after its last committed micro-batch. A service that left said how it stood;
one that has not joined since a restore stands where the restore put it. A service that died has
taken its state with it: then there is no snapshot before it is restored.
"""

import functools
import shutil
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, NotConsistent, StillframeError
from stillframe.pipeline.ends import Ends
from stillframe.pipeline.head import Head
from stillframe.pipeline.locks import PARTICIPANTS, participant_lock
from stillframe.pipeline.member import QueryMember
from stillframe.pipeline.part import (
    Part,
    Request,
    ServiceState,
    has_recorded,
    read_part,
)
from stillframe.pipeline.positions import noted_positions
from stillframe.pipeline.published import Manifest
from stillframe.store.disk import replace_durably, sync
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, read_sealed, seal


class NotAtRest(StillframeError):
    """A participant does not run, and what is on the disk is not its state."""


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/epoch-2/NAME.json``: that a service joined in `epoch`; how it
    stood when it left, once it has; or how a restore put it, until it joins."""

    format: int = FORMAT
    epoch: int
    positions: dict[str, int] | None = None
    state: ServiceState | None = None


class Standing(msgspec.Struct, frozen=True):
    """How a service stands, as far as the disk says.

    Attributes:
        has_joined: it joined in this epoch, or was restored.
        has_state: there is a state of it on the disk: it left, or has not joined since a restore.
        positions: where it stands, or stood a moment ago, on each log that it reads.
        since: when that was said, in seconds since 1970; None if nothing was.
    """

    has_joined: bool
    has_state: bool
    positions: dict[str, int]
    since: float | None


def standing(root: Path, head: Head, name: str) -> Standing:
    """Return how a service stands; its state, which may be long, is read once.

    Raises:
        Damaged, StoreError: the disk.
    """
    record = _record_path(root, head.epoch, name)
    with explained(record, "read"):
        try:
            status = record.stat()
        except FileNotFoundError:
            return Standing(
                has_joined=False, has_state=False, positions=head.starts[name], since=None
            )
    positions, has_state = _brief(record, status.st_ino, status.st_mtime_ns)
    since = status.st_mtime
    if positions is None:
        noted = noted_positions(root, head, name)
        positions, since = (head.starts[name], since) if noted is None else noted
    return Standing(has_joined=True, has_state=has_state, positions=positions, since=since)


def write_service_record(root: Path, name: str, record: ServiceRecord) -> None:
    """Note that a service joined, or how it left, in the epoch that the record says."""
    path = _record_path(root, record.epoch, name)
    with explained(path, "written"):
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another may join at the same time
            sync(path.parent.parent)
        replace_durably(path, seal(record))


def put_services(root: Path, head: Head, manifest: Manifest) -> None:
    """Note how a restore puts every service: as it was in the snapshot.

    The epoch of `head` has not begun, so nobody reads these records yet, and those of the epoch
    that it follows stay. Older ones, and what an attempt left that did not come to its end, go.
    """
    with explained(root / PARTICIPANTS, "cleared"):
        for records in (root / PARTICIPANTS).glob("epoch-*/"):
            if records.name != f"epoch-{head.epoch - 1}":
                shutil.rmtree(records)
    for part in manifest.parts:
        if part.service is not None:
            name = part.participant
            record = ServiceRecord(
                epoch=head.epoch, positions=dict(head.starts[name]), state=part.service
            )
            write_service_record(root, name, record)


def has_joined(root: Path, head: Head, name: str) -> bool:
    """Return whether there is a state of a service: it joined at some time, or was restored."""
    return _record_path(root, head.epoch, name).exists()


def resting_service(
    root: Path, head: Head, name: str
) -> tuple[dict[str, int], ServiceState] | None:
    """Return positions and state of a service that does not run; None if it never ran at all.

    Raises:
        NotAtRest: it was running and died.
        Damaged, StoreError: the disk.
    """
    path = _record_path(root, head.epoch, name)
    if not path.exists():
        if head.restored_from is None:
            return None
        raise Damaged(
            f"{path} is missing, which says how service {name} stood when this epoch began: "
            "restore the pipeline from a snapshot"
        )
    record = read_sealed(path, ServiceRecord)
    if record.positions is None or record.state is None:
        raise _died(name)
    return record.positions, record.state


def _died(name: str) -> NotAtRest:
    return NotAtRest(
        f"service {name} died, and its state with it: restore the pipeline from its last "
        "snapshot and start the service again"
    )


def record_at_rest(root: Path, head: Head, request: Request, name: str) -> Part | None:
    """Record a participant that no program runs; None if one does, or if it is not its turn yet.

    Raises:
        NotAtRest: it does not run, and what is on the disk is not its state.
    """
    lock = participant_lock(root, name)
    if not lock.try_take():
        return None
    try:
        if name in head.dataflow.queries:
            if _has_its_turn(root, head, request, name):
                _query_at_rest(root, name)
        else:
            _service_at_rest(root, head, request, name)
        return read_part(root, request.snapshot, name)
    finally:
        lock.release()


def _has_its_turn(root: Path, head: Head, request: Request, name: str) -> bool:
    """Return whether a barrier is on a log that a participant reads, or none need be: only then is
    it worth while to look through all that is on its logs."""
    return name in head.dataflow.initiators() or any(
        has_recorded(root, request.snapshot, log.source) for log in head.dataflow.incoming(name)
    )


def _query_at_rest(root: Path, name: str) -> None:
    try:
        member = QueryMember(root, name, is_patient=False)
        positions = member.positions()[1]
        member.ends({log: reader.tail(positions[log]) for log, reader in member.readers.items()})
    except NotConsistent as error:
        raise NotAtRest(f"query {name} does not run: {error}; start it again") from error


def _service_at_rest(root: Path, head: Head, request: Request, name: str) -> None:
    if not _has_its_turn(root, head, request, name):
        if has_joined(root, head, name):
            _check_alive(root, head, name)
        return
    resting = resting_service(root, head, name)
    if resting is None:
        return  # somebody may be starting it right now
    positions, state = resting
    ends = Ends(root, name, head, positions)
    ends.consider(is_patient=False, record=lambda request: ends.hand_in(request, state))


def _check_alive(root: Path, head: Head, name: str) -> None:
    """Refuse a service that died. Asked every few milliseconds until it is its turn, so that its
    state, which may be long, is read once.

    Raises:
        NotAtRest: it was running and died.
        Damaged, StoreError: the disk.
    """
    path = _record_path(root, head.epoch, name)
    with explained(path, "read"):
        status = path.stat()
    _, has_state = _brief(path, status.st_ino, status.st_mtime_ns)
    if not has_state:
        raise _died(name)


@functools.lru_cache(maxsize=1024)
def _brief(
    path: Path,
    inode: int,  # noqa: ARG001 - to know it again
    changed_at_ns: int,  # noqa: ARG001 - to know it again
) -> tuple[dict[str, int] | None, bool]:
    """Return where a record says that a service stood, and whether it has a state. Each record is a
    file of its own, known again by its `inode` and its time."""
    record = read_sealed(path, ServiceRecord)
    return record.positions, record.state is not None


def _record_path(root: Path, epoch: int, name: str) -> Path:
    return root / PARTICIPANTS / f"epoch-{epoch}" / f"{name}.json"
