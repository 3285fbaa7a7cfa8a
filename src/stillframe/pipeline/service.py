"""``join``: a Python program as a service of a pipeline, reading and writing its logs.

One turn of the loop is one atomic action; between turns, and only there, a snapshot may record the
fields of its state.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.head import Head, read_head
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.member import Epoch, consider, writers_of
from stillframe.pipeline.part import Part, Request, ServiceState, forward, hand_in
from stillframe.pipeline.resting import ServiceRecord, resting_service, write_service_record
from stillframe.process import StateCodec

POLL_S = 0.01


class Participant:
    """A service's view of its pipeline: ``for`` to receive, ``append`` to send."""

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        head: Head,
        codec: StateCodec,
        state: object,
        positions: dict[str, int],
    ) -> None:
        self.id = name
        self._root = root
        self._head = head
        self._codec = codec
        self._state = state
        self._positions = dict(positions)
        self._last = ""
        self._readers = {
            log.name: LogReader(root, log, head.stretches[log.name])
            for log in head.dataflow.incoming(name)
        }
        self._writers = writers_of(root, head, name)
        self._epoch = Epoch(root, head, f"service {name}")

    def append(self, channel: str, table: pa.Table) -> None:
        """Append the records of `table` to a channel. It is part of the current action.

        Raises:
            UsageError: this service writes no such channel, or the columns are not the declared.
            StoreError: the disk is full or failed; nothing was appended.
        """
        writer = self._writers.get(channel)
        if writer is None:
            raise UsageError(
                f"service {self.id} writes no channel {channel!r}; it writes "
                f"{', '.join(self._writers) or 'none'}"
            )
        if table.num_rows:
            writer.append(table)

    def boundary(self) -> None:
        """End the current action and begin another: here the state may be recorded.

        Call it between actions in a loop of your own; ``for`` does it by itself.

        Raises:
            Refused: the pipeline was restored: join again.
        """
        self._ends()

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield channel and records as they were appended, one atomic action a turn, for ever."""
        while True:
            received = self.receive()
            assert received is not None
            yield received

    def receive(self, timeout_s: float | None = None) -> tuple[str, pa.Table] | None:
        """End the current action, and begin another with the next records and their channel.

        Every incoming channel in its turn.

        Args:
            timeout_s: how long to wait for records; None for as long as it takes.

        Returns:
            channel and records; None if none came in time.

        Raises:
            Refused: the pipeline was restored: join again.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            received = self._next(self._ends())
            if received is not None:
                return received
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(POLL_S)

    def _next(self, ends: dict[str, int]) -> tuple[str, pa.Table] | None:
        """Take the next item, from every channel in its turn."""
        while ready := sorted(log for log, end in ends.items() if self._positions[log] < end):
            self._last = next((log for log in ready if log > self._last), ready[0])
            reader = self._readers[self._last]
            item = reader.item(self._positions[self._last])
            self._positions[self._last] += 1
            reader.forget(self._positions[self._last])
            if item.files:
                return self._last, reader.table(item)
        return None

    def state(self) -> ServiceState:
        """Return the state as it is now, encoded."""
        return ServiceState(self._codec.kind.__name__, self._codec.capture(self._state))

    @property
    def positions(self) -> dict[str, int]:
        """Where this service stands on each log that it reads."""
        return dict(self._positions)

    def _ends(self) -> dict[str, int]:
        self._epoch.check()
        tails = {log: reader.tail(self._positions[log]) for log, reader in self._readers.items()}
        return consider(
            self._root,
            self._head,
            self.id,
            self._readers,
            tails,
            is_patient=True,
            positions=lambda: self._positions,
            record=self._record,
        )

    def _record(self, request: Request) -> None:
        state = self.state()
        hand_in(
            self._root,
            Part(
                snapshot=request.snapshot,
                participant=self.id,
                recorded_at=time.time(),
                positions=self.positions,
                barriers=forward(self._writers, request),
                service=state,
            ),
        )


@contextlib.contextmanager
def join(name: str, *, pipeline: str | Path, state: object) -> Iterator[Participant]:
    """Take the place of the service `name` in a pipeline.

    ``with join("books", pipeline="shop.pipeline", state=books) as me`` gives a `Participant`. When
    the body ends without an error the service has left, and how it stood counts in later snapshots.

    Args:
        name: of the service, as the pipeline declares it.
        pipeline: the directory of the pipeline.
        state: the object whose fields are recorded. After a restore, and after it has left before,
            its fields are set to what they were before the body begins.

    Raises:
        UsageError: there is no such pipeline or service, or the state is of another class.
        Unavailable: another program runs this service.
        NotAtRest: it died in this epoch, and its state with it: restore first.
    """
    root = Path(pipeline)
    head = read_head(root)
    head.dataflow.check_participant(name, "service")
    codec = StateCodec(type(state))
    declared = head.dataflow.services[name]
    if codec.kind.__name__ != declared:
        raise UsageError(f"service {name} records a {declared}, not a {codec.kind.__name__}")
    lock = participant_lock(root, name)
    if not lock.take_soon():
        raise Unavailable(f"service {name} is run by another program: end that one first")
    try:
        head = read_head(root)
        resting = resting_service(root, head, name)
        positions = head.starts[name] if resting is None else resting[0]
        me = Participant(root, name, head=head, codec=codec, state=state, positions=positions)
        if resting is not None:
            codec.restore(state, resting[1].encoded)
        write_service_record(root, name, ServiceRecord(epoch=head.epoch))
        yield me
        write_service_record(
            root,
            name,
            ServiceRecord(epoch=head.epoch, positions=me.positions, state=me.state()),
        )
    finally:
        lock.release()
