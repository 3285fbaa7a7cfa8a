"""The runs of a query in an object store: each start is a new one, with a separate checkpoint.

    ROOT/participants/epoch-2/enrich.json            which run is the present one, of this query
    ROOT/checkpoints/epoch-2/enrich/run-0/           Spark's checkpoint at the start of the epoch
    ROOT/checkpoints/epoch-2/enrich/run-3/           and that of the third start

A driver that was frozen may wake at any time. It writes only into the checkpoint of its run, where
no other program writes. A new run first closes the query's logs to it (``LogWriter.fence``),
and then reads how far it has come. In a directory the query's lock keeps a second driver away, and
all drivers continue one checkpoint.
"""

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stillframe.errors import Damaged, Unavailable
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint, pending_snapshot
from stillframe.pipeline.locks import PARTICIPANTS
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import Metadata, checkpoint_path
from stillframe.pipeline.pending_snapshot import ParticipantFragment
from stillframe.storage.files import below
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject
from stillframe.storage.storage import Changed
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, SEALED_BYTES_MAX, read_sealed_bytes, seal

_Answer = TypeVar("_Answer")
_RUN = "run-"
_REMEDY = "restore the pipeline from a snapshot"


class QueryRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/epoch-2/QUERY.json``; as long as there is none, it is run 0.

    `run` is the present run, and `checkpoint` the last one whose checkpoint is complete: another
    one if a start was cut short. `recorded` is the last snapshot that was pending at a start, when
    an earlier run had recorded for it. `token` is new in each version.
    """

    format: int = FORMAT
    epoch: int
    run: int
    checkpoint: int
    recorded: SnapshotId | None
    token: str


class QueryRun(msgspec.Struct, frozen=True):
    """A run of a query: its number, its checkpoint, and ``QueryRecord.recorded``. In a directory
    there is no number."""

    number: int | None
    checkpoint: Location
    recorded: SnapshotId | None = None

    @property
    def is_starting(self) -> bool:
        """Return whether its checkpoint is still that of an earlier run: its start did not end yet,
        or was interrupted."""
        return self.number is not None and self.checkpoint.name != f"{_RUN}{self.number}"

    def has(self, fragment: ParticipantFragment | None) -> bool:
        """Return whether a fragment of the query, as far as there is one, belongs to the history
        that this run continues. In an object store one may be of a driver that was replaced."""
        if fragment is None or fragment.query is None or self.number is None:
            return fragment is not None
        run = fragment.query.run
        return self.recorded == fragment.snapshot or (
            run is not msgspec.UNSET and run >= self.number
        )


def current_run(root: Location, epoch: int, query: str) -> QueryRun:
    """Return the present run of a query."""
    if not isinstance(root, ObjectPath):
        return QueryRun(None, checkpoint_path(root, epoch, query))
    path = _record_path(root, epoch, query)
    sealed = None
    with explain_io_errors(path, "read"):
        try:
            sealed, _ = storage_of(path).read(path, bytes_max=SEALED_BYTES_MAX)
        except FileNotFoundError:
            return QueryRun(0, first_checkpoint(root, epoch, query))
    return _run_in(root, query, _decoded(path, sealed, epoch, query))


def of_current_checkpoint(
    root: Location, epoch: int, query: str, look: Callable[[Location], _Answer]
) -> _Answer:
    """Return what `look` returns for the checkpoint of the present run. A start deletes that of the
    run before, perhaps during this look: then it is that of the next run."""
    run = current_run(root, epoch, query)
    try:
        return look(run.checkpoint)
    except Damaged:
        following = current_run(root, epoch, query)
        if following.checkpoint == run.checkpoint:
            raise
        return look(following.checkpoint)


def first_checkpoint(root: Location, epoch: int, query: str) -> Location:
    """Return where a restore puts the checkpoint with which a query begins an epoch."""
    place = checkpoint_path(root, epoch, query)
    return below(place, f"{_RUN}0") if isinstance(place, ObjectPath) else place


def begin_run(
    root: ObjectPath, metadata: Metadata, query: str, check: Callable[[Location], None]
) -> QueryRun:
    """Make the caller's run the present one, and its checkpoint from that of the run before, which
    `check` may refuse. Unavailable if another program has begun a run meanwhile: of two starts only
    one succeeds, whatever their leases are worth."""
    own = _OwnRecord(root, metadata.epoch, query)
    before = own.record
    own.replace(run=before.run + 1)
    for log in metadata.dataflow.outgoing(query):
        LogWriter(root, log, metadata, run=own.record.run).fence()
    # From here on earlier runs append nothing. So what they have appended is known, and its plans
    # are in the checkpoint. What one still does in there after it was read has no effect.
    place = checkpoint_path(root, metadata.epoch, query)
    old, new = (below(place, f"{_RUN}{number}") for number in (before.checkpoint, own.record.run))
    is_known = False
    while not is_known:
        recorded = _recorded(root, query, before)
        check(old)
        with explain_io_errors(new, "written"):
            is_retained = bool(metadata.dataflow.topics)
            checkpoint.continue_in(old, new, is_retained=is_retained)
        # One that writes no log may have recorded since, and planned to read past a barrier.
        is_known = recorded == _recorded(root, query, before)
    own.replace(checkpoint=own.record.run, recorded=recorded)
    with explain_io_errors(place, "cleared"):
        storage = storage_of(place)
        storage.delete(
            one.location
            for one in storage.files_below(place)
            if _is_of_earlier(str(one.location)[len(str(place)) + 1 :], own.record.run)
        )
    return _run_in(root, query, own.record)


def interrupt_start(root: ObjectPath, epoch: int, query: str) -> QueryRun:
    """Let a start that is not complete fail when its program wakes, and return the next run, with
    the same checkpoint. Unavailable if it is complete now."""
    own = _OwnRecord(root, epoch, query)
    if own.record.checkpoint == own.record.run:
        raise Unavailable(f"another program has just started query {query}", process=query)
    own.replace(run=own.record.run + 1)
    return _run_in(root, query, own.record)


class _OwnRecord:
    """The record of a query, as the program that begins a run reads and writes it."""

    def __init__(self, root: ObjectPath, epoch: int, query: str) -> None:
        self._query = query
        path = _record_path(root, epoch, query)
        self._object = OwnedObject(path)
        self.record = QueryRecord(epoch=epoch, run=0, checkpoint=0, recorded=None, token="")
        with explain_io_errors(path, "read"):
            sealed = self._object.read(bytes_max=SEALED_BYTES_MAX)
        if sealed is not None:
            self.record = _decoded(path, sealed, epoch, query)

    def replace(self, **changes: Any) -> None:
        """Replace some members; Unavailable if another program has written since."""
        token = secrets.token_hex(16)
        changed = msgspec.structs.replace(self.record, **changes, token=token)
        with explain_io_errors(self._object.location, "written"):
            try:
                self._object.replace(seal(changed))
            except Changed:
                raise Unavailable(
                    f"another program has just started query {self._query}: stop that one first",
                    path=self._object.location,
                    process=self._query,
                ) from None
        self.record = changed


def _decoded(path: ObjectPath, sealed: bytes, epoch: int, query: str) -> QueryRecord:
    record = read_sealed_bytes(path, sealed, QueryRecord)
    if record.epoch != epoch or not 0 <= record.checkpoint <= record.run:
        raise Damaged(
            f"{path} describes no run of query {query} in epoch {epoch}", path=path, remedy=_REMEDY
        )
    return record


def _is_of_earlier(name: str, run: int) -> bool:
    """Return whether a file below the checkpoints of a query is of a run before `run`. Those of a
    later one are of a program that has replaced this one."""
    number = name.partition("/")[0].removeprefix(_RUN)
    return number.isdecimal() and int(number) < run


def _recorded(root: ObjectPath, query: str, before: QueryRecord) -> SnapshotId | None:
    """Return the pending snapshot, if the query has recorded for it: in the checkpoint that is
    continued, before the caller reads that, or in an earlier one."""
    request = pending_snapshot.pending_request(root)
    if request is None or request.epoch != before.epoch:
        return None
    known = QueryRun(before.checkpoint, root, before.recorded)
    fragment = pending_snapshot.read_fragment(root, request.snapshot, query)
    return request.snapshot if known.has(fragment) else None


def _run_in(root: ObjectPath, query: str, record: QueryRecord) -> QueryRun:
    place = checkpoint_path(root, record.epoch, query)
    return QueryRun(record.run, below(place, f"{_RUN}{record.checkpoint}"), record.recorded)


def _record_path(root: ObjectPath, epoch: int, query: str) -> ObjectPath:
    return below(root, PARTICIPANTS, f"epoch-{epoch}", f"{query}.json")
