"""A Python program as a service of a pipeline, reading and writing its logs.

One iteration of its loop is one atomic action; between iterations, and only there, a snapshot may
record the fields of its state.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, overload

import pyarrow as pa

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.metadata import begin_taking_part, read_metadata
from stillframe.pipeline.participant_logs import ServiceLogs
from stillframe.pipeline.pending_snapshot import Request, ServiceState
from stillframe.pipeline.stopped import OwnRecord
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location, locate


class _Left(BaseException):
    """The last action of a service that leaves has finished. This ends the body of
    ``join_service``; error handlers in it should not catch it."""


class JoinedService:
    """A service's view of its pipeline: ``for`` to receive, ``append`` to send."""

    def __init__(
        self,
        name: str,
        logs: ServiceLogs,
        codec: StateCodec,
        state: object,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = name
        self._check = check
        self._logs = logs
        self._codec = codec
        self._state = state
        self._is_leaving = False

    def append(self, channel: str, table: pa.Table) -> None:
        """Append the records of `table` to a channel. It is part of the current action.

        Raises:
            UsageError: this service writes no such channel, or the columns are not those declared.
            StoreError: the disk is full or failed; nothing was appended. An object store that did
                not answer may have appended it: then the next call, or the end, is an Unavailable.
            Unavailable: another program appended to this channel, or see above.
        """
        self._logs.append(channel, table)

    def boundary(self) -> None:
        """End the current action and begin another: here the state may be recorded.

        Call it between actions if you write your own loop; ``for`` does so automatically.

        Raises:
            Refused: the pipeline was restored: join again.
        """
        self._at_boundary()

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield channel and records as they were appended, one atomic action a turn, endlessly."""
        while True:
            received = self.receive()
            assert received is not None
            yield received

    def leave(self) -> None:
        """Leave after the current action: the body of ``join_service`` ends at the next
        ``boundary``, ``receive`` or turn of ``for``.

        It may be called from a signal handler or another thread. A service that is to stop then
        leaves, and its state is kept.
        """
        self._is_leaving = True

    @overload
    def receive(self, timeout_s: None = None) -> tuple[str, pa.Table]: ...

    @overload
    def receive(self, timeout_s: float) -> tuple[str, pa.Table] | None: ...

    def receive(self, timeout_s: float | None = None) -> tuple[str, pa.Table] | None:
        """End the current action, and begin another with the next records and their channel.

        The incoming channels are read round-robin.

        Args:
            timeout_s: how long to wait for records, in seconds; None for no limit.

        Returns:
            channel and records; None if none arrived in time.

        Raises:
            Refused: the pipeline was restored: join again.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            received = self._logs.take(self._at_boundary())
            if received is not None:
                return received
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(self._logs.poll_s)

    def state(self) -> ServiceState:
        """Return the state as it is now, encoded; UsageError if that, or to read it back, is
        impossible."""
        encoded = self._codec.capture(self._state)
        self._codec.check(encoded)
        return ServiceState(self._codec.kind.__name__, encoded)

    @property
    def positions(self) -> dict[str, int]:
        """The position of this service on each log that it reads."""
        return self._logs.positions()

    def _at_boundary(self) -> dict[str, int]:
        if self._is_leaving:
            raise _Left
        self._check()
        self._logs.report()
        return self._logs.at_boundary(self._record)

    def _record(self, request: Request) -> None:
        content: dict[str, Any]
        try:
            content = {"service": self.state()}
        except UsageError as error:
            content = {"failure": f"service {self.id}: {error}"}
        self._logs.submit(request, self.positions, **content)


@contextlib.contextmanager
def join(name: str, *, pipeline: str | Location, state: object) -> Iterator[JoinedService]:
    """Take the place of a service: see ``Pipeline.join_service``."""
    root = locate(pipeline)
    metadata = read_metadata(root)
    metadata.dataflow.check_participant(name, "service")
    codec = StateCodec(type(state))
    declared = metadata.dataflow.services[name]
    if codec.kind.__name__ != declared:
        raise UsageError(
            f"service {name} has a state of type {declared}, not {codec.kind.__name__}"
        )
    if codec.outboxes:
        raise UsageError(
            f"service {name}: {codec.kind.__name__}.{min(codec.outboxes)} is an Outbox, and only "
            "processes of a system commit the entries of one"
        )
    begin_taking_part(root)
    lock = participant_lock(root, name)
    if not lock.acquire():
        raise Unavailable(
            f"another program runs service {name}",
            path=root,
            process=name,
            remedy="stop that one first",
        )
    again = "restore the pipeline from its last snapshot and start the service again"
    check = functools.partial(lock.check_held, "service", name, remedy=again)

    try:
        metadata = read_metadata(root)
        record = OwnRecord(root, metadata, name)
        stopped = record.stopped()
        positions = metadata.starts[name] if stopped is None else stopped[0]
        logs = ServiceLogs(root, name, metadata, positions)
        me = JoinedService(name, logs, codec, state, check)
        if stopped is not None:
            codec.restore(state, stopped[1].encoded)
        record.write()
        with contextlib.suppress(_Left):
            yield me
        logs.check_end()
        record.write(me.positions, me.state())
    finally:
        lock.release()
