"""One process: its mailbox, its recorder, its outgoing batches. Everything happens in atomic steps.

A host owns no socket. Links pass frames to it (`Host.on_frame`), and it writes frames into the
transports that links have attached to its channels. Two kinds of host differ only in who drives:

* ``HandlerHost`` (``handlers.py``) calls the plain-function handlers of a ``Process`` itself;
* ``LoopHost`` (``loop_host.py``) is polled for the next message by a program with its own event
  loop; ``AsyncHandlerHost`` polls itself, and calls the handlers of a ``Process`` with ``async``
  ones.
"""

import contextlib
import os
import time
from asyncio import AbstractEventLoop, CancelledError
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

import msgspec

from stillframe.errors import ApplicationError, StillframeError, describe
from stillframe.model import Batch, Channel, Marker, ProcessId, ProcessState, SnapshotId
from stillframe.outbox import Outbox
from stillframe.process import Message, Process
from stillframe.protocol import wire
from stillframe.protocol.recorder import Effect, NotRecorded, Phase, Recorded, Recorder, SendMarker
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.process.endpoints import (
    FRAME_EXTRA_BYTES,
    LIMIT_BYTES,
    WINDOW_BYTES,
    IncomingEndpoint,
    OutgoingEndpoint,
    Send,
    make_send,
)
from stillframe.runtime.process.state_capture import StateCapture
from stillframe.topology import Topology

if TYPE_CHECKING:  # loaded only by a process that writes them
    from stillframe.runtime.process.event_logging import EventLogger
    from stillframe.runtime.process.fragment_recorder import FragmentRecorder

EXIT_RETURNED = 70
_STDERR = 2


class _Forks:
    """Detects that the child of a ``os.fork()`` in a handler returns to the event loop.

    Such a child shares the sockets of its parent and its event loop: it would take over the
    connections, and the whole system would hang silently. It exits before it touches any of them.
    The processes that we fork ourselves never return.

    `is_child` says whether this was forked off the process in which the host was made.
    """

    is_child = False
    has_host = False

    def forked(self) -> None:
        """Record, in the child, that it was forked."""
        self.is_child = self.has_host


forks = _Forks()
os.register_at_fork(after_in_child=forks.forked)


def leave(process: ProcessId, handler: str) -> NoReturn:
    """Print which handler forked, and exit this child at once."""
    words = (
        f"process {process}: {handler} called os.fork(), and the child (operating-system "
        f"process {os.getpid()}) returned from it; only the parent may return. The child was "
        "killed before it could use its parent's connections. End it with os._exit() inside "
        "the handler, or use the module subprocess\n"
    )
    with contextlib.suppress(OSError):
        os.write(_STDERR, words.encode())
    os._exit(EXIT_RETURNED)


def failure_of(process: ProcessId, error: BaseException) -> StillframeError:
    """Return how a process fails because of an error, which may be of the application."""
    if isinstance(error, StillframeError):
        return error
    why = "its code cancelled a task of Stillframe, or called sys.exit() in a task: "
    what = f"{why if isinstance(error, CancelledError) else ''}{describe(error)}"
    failure = ApplicationError(f"process {process}: {what}", process=process)
    failure.__cause__ = error
    return failure


class Delivery(msgspec.Struct, gc=False):
    """Messages in the mailbox; `frame_bytes` is None if no frame ends with them."""

    incoming: IncomingEndpoint
    messages: list[Message]
    batch: Batch
    frame_bytes: int | None


class MarkerArrival(msgspec.Struct, gc=False):
    """A marker in the mailbox; `frame_bytes` is None if it rode on messages, which come next."""

    incoming: IncomingEndpoint
    marker: Marker
    frame_bytes: int | None


Item = Delivery | MarkerArrival | SnapshotId
"""What a mailbox holds; a bare snapshot id is the request to initiate it."""


class Host:
    """The shared part of both kinds of host: the place of `process` in `topology`.

    `subject` is the object whose fields are the recorded state, `start` where to begin after a
    restore, None for a fresh start. `report` receives what the coordinator must know, and `fail` is
    called once with the error after which this process cannot continue. Of the event loop
    ``call_soon``, ``call_later``, ``time``, ``add_reader`` and ``remove_reader`` are used. A marker
    may wait `marker_wait_s` seconds for messages to ride on; 0 sends it at once.
    """

    def __init__(
        self,
        topology: Topology,
        process: ProcessId,
        subject: object,
        start: Start | None,
        *,
        report: Callable[[control.FromProcess], None],
        fail: Callable[[StillframeError], None],
        loop: AbstractEventLoop,
        marker_wait_s: float = 0.0,
    ) -> None:
        # The host belongs to this very process, and not to its children.
        forks.is_child, forks.has_host = False, True
        description, codec = topology.description, topology.codecs[process]
        sources, targets = description.incoming(process), description.outgoing(process)
        self.process = process
        self.report = report
        self.loop = loop
        self.mailbox: deque[Item] = deque()
        self.error: StillframeError | None = None
        self.is_blocked = False
        self.has_room = True
        self.on_cut: Callable[[SnapshotId, ProcessState], None] | None = None
        self._fail = fail
        self.marker_wait_s = marker_wait_s
        self.subject = subject
        self._is_flush_scheduled = False
        self.replayed_count = 0
        self.quantities_from_s = 0.0
        self.incoming = {
            source: IncomingEndpoint(Channel(source, process), topology.accepts[process])
            for source in sources
        }
        sent, received = dict.fromkeys(targets, 0), dict.fromkeys(sources, 0)
        if start is not None:
            sent = start.sent_counts
            received = {record.source: record.received_count for record in start.incoming}
        cyclic = description.cyclic_targets(process)
        self.outgoing = {
            t: OutgoingEndpoint(
                Channel(process, t),
                frozenset(topology.accepts[t]),
                sent[t],
                is_on_cycle=t in cyclic,
            )
            for t in targets
        }
        self._outgoing = tuple(self.outgoing.values())
        self.recorder = Recorder(process, incoming=received, outgoing=sent, capture=self._capture)
        if start is not None:
            codec.restore(subject, start.encoded)
            self._replay(start)
        self._cutting: SnapshotId
        self.captures = StateCapture(
            process,
            codec=codec,
            subject=subject,
            base=None if start is None else start.base,
            loop=loop,
            report=report,
        )
        self.log: EventLogger | None = None
        self.send = self.make_send()
        self.outboxes: tuple[Outbox[Any], ...] = ()
        self._codec = codec

    def open_outboxes(self, run: str) -> None:
        """Let the outboxes run, with keys that are unique to `run` if they are new; a UsageError if
        a field that is declared as one holds something else."""
        self.outboxes = self._codec.open_outboxes(self.subject, self.process, run)

    def open_fragments(self, fragments: "FragmentRecorder") -> None:
        """Record snapshots in `fragments` from now on; it is closed with the log."""
        self.captures.sink = fragments

    def open_log(self, log: "EventLogger") -> None:
        """Record in `log` from now on. Call it before `send` is given to the application."""
        self.log = log
        self.loop.call_later(log.flush_interval_s, self._tend_log)
        self.send = self.make_send()

    @property
    def is_busy(self) -> bool:
        """Whether an atomic action is in progress while the event loop runs."""
        return False

    def published(self, snapshot: SnapshotId) -> None:
        """Notify the application and its outboxes that `snapshot` was published."""
        for outbox in self.outboxes:
            outbox.published(snapshot)

    def wake(self) -> None:
        """Something is in the mailbox, or there is room again: continue."""
        raise NotImplementedError

    def on_frame(self, incoming: IncomingEndpoint, frame: wire.Messages | wire.Marked) -> None:
        """Take a frame from a link, checked in full before it counts as received: of one that is a
        ProtocolViolation nothing is taken."""
        item: Item
        rider: MarkerArrival | None = None
        if isinstance(frame, wire.Messages):
            batch = frame.batch
            size = len(batch.encoded) + FRAME_EXTRA_BYTES
            if frame.marker is not None:
                size += FRAME_EXTRA_BYTES
                rider = MarkerArrival(incoming, frame.marker, None)
            item = Delivery(incoming, incoming.decode(batch), batch, size)
        else:
            item = MarkerArrival(incoming, frame.marker, FRAME_EXTRA_BYTES)
        if incoming.session.accept(frame.sequence):
            if rider is not None:
                self.mailbox.append(rider)
            self.mailbox.append(item)
            self.wake()

    def on_ack(self, outgoing: OutgoingEndpoint, sequence: int) -> None:
        """Take an acknowledgement from a link."""
        outgoing.session.acknowledge(sequence)
        if not self.has_room:
            self.flush()
            self.wake()

    def initiate(self, snapshot: SnapshotId) -> None:
        """Begin `snapshot` at the next boundary between atomic actions."""
        self.mailbox.appendleft(snapshot)
        self.wake()

    def abandon(self, snapshot: SnapshotId) -> None:
        """Stop recording `snapshot`."""
        self.recorder.abandon(snapshot)
        self.captures.abandon(snapshot)
        for outbox in self.outboxes:
            outbox.abandon(snapshot)

    def forget_through(self, last_number: int) -> None:
        """Stop recording every snapshot up to `last_number`. Which of them were published is
        unknown, so the next one records everything."""
        self.recorder.settle(last_number)
        self.captures.forget_through(last_number)

    def fail(self, error: BaseException) -> None:
        """Stop permanently: no further step is taken."""
        if self.error is not None:
            return
        self.error = failure_of(self.process, error)
        self.captures.close()
        self._fail(self.error)

    def failure_in(self, where: str, error: BaseException) -> ApplicationError:
        """Return how this process fails because of an error in a handler; if that has forked, the
        child is ended here."""
        if forks.is_child:
            leave(self.process, where)
        failure = ApplicationError(f"process {self.process}: {where} raised {describe(error)}")
        failure.__cause__ = error
        return failure

    def step(self, item: MarkerArrival | SnapshotId) -> None:
        """Handle a marker, or a request to initiate: one atomic step."""
        began = time.perf_counter()
        self.flush()
        if self.error is not None:
            return
        for outgoing in self._outgoing:
            self.recorder.sent(outgoing.channel.target, outgoing.sent_count)
        snapshot = item if isinstance(item, SnapshotId) else item.marker.snapshot
        self._cutting = snapshot
        is_first = self.recorder.phase(snapshot) is Phase.IDLE
        if isinstance(item, SnapshotId):
            source, effects = None, self.recorder.initiate(item)
        else:
            source = item.incoming.source
            effects = self.recorder.marker(source, item.marker)
        if is_first:
            self._announce_cut(snapshot, effects)
            self.captures.record_cut(snapshot, source, time.perf_counter() - began)
        elif source is not None:
            self.captures.record_marker(snapshot, source)
        if self.log is not None:
            took_s = time.perf_counter() - began
            self.log.step(snapshot, source, effects, is_cut=is_first, took_s=took_s)
        self._carry_out(effects)
        if not isinstance(item, SnapshotId):
            size = item.frame_bytes
            if size is not None and (sequence := item.incoming.session.handle(size)):
                item.incoming.acknowledge(sequence)

    def flush(self) -> None:
        """Write everything that the application has sent, in as few frames as possible; a message
        that cannot be sent fails this process."""
        self._is_flush_scheduled = False
        if forks.is_child:  # of a program with a loop of its own
            leave(self.process, "its program")
        has_room, is_blocked = True, False
        for outgoing in self._outgoing:
            if outgoing.pending:
                try:
                    outgoing.flush()
                except BaseException as error:  # of a value in a message, too
                    self.fail(error)
            if outgoing.session.unacknowledged_bytes >= WINDOW_BYTES:
                has_room = False
                is_blocked = is_blocked or self._is_too_full(outgoing)
        self.has_room, self.is_blocked = has_room, is_blocked
        if self.log is not None and self.error is None and not self.is_busy:
            self.log.on_boundary()

    def _is_too_full(self, outgoing: OutgoingEndpoint) -> bool:
        """Return whether to wait for the target before handling more; fail where that cannot
        help."""
        if not outgoing.is_on_cycle:
            return outgoing.is_full
        if (size := outgoing.session.unacknowledged_bytes) >= LIMIT_BYTES:
            self.fail(
                ApplicationError(
                    f"channel {outgoing.channel}: {size:,} bytes were sent that "
                    f"{outgoing.channel.target} has not handled yet, and the limit is "
                    f"{LIMIT_BYTES:,}: send less in one action, or less for each message "
                    "received"
                )
            )
        return False

    def schedule_flush(self) -> None:
        """Flush at the end of the next turn of the loop. It polls its sockets once more in between,
        and messages that have arrived by then are answered in the same frames. With many channels
        that is a sixth more messages."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self.loop.call_soon(self.loop.call_soon, self.flush)

    def make_send(self) -> Send:
        """Return the function that applications call to send."""
        log = self.log
        record, codes = (None, {}) if log is None else (log.record, log.sending)
        return make_send(self.process, self.outgoing, record, codes)

    def close_logs(self) -> None:
        """Finish the event log and the fragments, if any; this process takes no more actions."""
        if self.log is not None:
            self.log.is_time = True
            if self.error is None and not self.is_busy:
                self.flush()
            self.log.close()
            self.log = None
        if self.captures.sink is not None:
            self.captures.sink.close()
            self.captures.sink = None

    def _tend_log(self) -> None:
        """Flush the event log, now or after the action in progress."""
        if self.log is not None and self.error is None:
            self.log.is_time = True
            if not self.is_busy:
                self.flush()
            self.loop.call_later(self.log.flush_interval_s, self._tend_log)

    def _announce_cut(self, snapshot: SnapshotId, effects: list[Effect]) -> None:
        """Notify the logs, which record what belongs to the same cut, and the application."""
        progress = self.recorder.progress(snapshot)
        recorded = [effect.fragment.state for effect in effects if isinstance(effect, Recorded)]
        for state in recorded if progress is None else [progress.state]:
            if self.on_cut is not None:
                self.on_cut(snapshot, state)
            for outbox in self.outboxes:
                outbox.cut(snapshot)
            if isinstance(self.subject, Process):
                self._notify_application(self.subject, snapshot)

    def _notify_application(self, process: Process, snapshot: SnapshotId) -> None:
        try:
            try:
                returned: object = process.on_cut(snapshot)  # type: ignore[func-returns-value]
            finally:
                if forks.is_child:
                    leave(self.process, "on_cut()")
            if returned is not None:
                raise TypeError("it returned a value: it is a plain function and returns None")
            if any(outgoing.pending for outgoing in self._outgoing):
                raise TypeError(
                    "it sent a message: a snapshot must not change the behaviour of a process"
                )
        except BaseException as error:
            raise self.failure_in("on_cut()", error) from error

    def _capture(self) -> ProcessState:
        self._codec.check_opened(self.subject, self.outboxes)
        return self.captures.begin(self._cutting, is_immediate=self.on_cut is not None)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendMarker(target, marker):
                    self._send_marker(self.outgoing[target], marker)
                case Recorded(fragment):
                    self.captures.recorded(fragment)
                case NotRecorded(snapshot, detail):
                    self.captures.abandon(snapshot)
                    self.report(control.SnapshotDeclined(snapshot, detail))
                case _:
                    assert_never(effect)

    def _send_marker(self, outgoing: OutgoingEndpoint, marker: Marker) -> None:
        wait_s = self.marker_wait_s
        outgoing.send_marker(marker, may_wait=wait_s > 0)
        if wait_s:
            self.loop.call_later(wait_s, outgoing.release, marker)

    def _replay(self, start: Start) -> None:
        """Put the recorded messages of every channel into the mailbox."""
        for record in start.incoming:
            incoming = self.incoming[record.source]
            for batch in record.batches:
                self.mailbox.append(Delivery(incoming, incoming.decode(batch), batch, None))
                self.replayed_count += batch.count
