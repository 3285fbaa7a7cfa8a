"""The host that calls the plain-function handlers of a ``Process``, as fast as messages arrive.

Whatever a handler raises, including ``SystemExit``, fails the process and is reported: a message
that was not fully handled must not be skipped.
"""

from collections.abc import Callable
from operator import length_hint
from typing import TYPE_CHECKING, Any, cast

from stillframe.errors import ApplicationError, describe, repr_of
from stillframe.model import SnapshotId
from stillframe.process import Action, Message, Process
from stillframe.runtime.process.host import Delivery, Host, forks, leave

if TYPE_CHECKING:  # loaded only by the service of a pipeline
    from stillframe.runtime.process.pipeline_logs import PipelineLogs

SLICE_COUNT = 256
SLICE_S = 0.005
"""A batch is handled in slices of this many messages; after this time, others get their turn."""
BURST_COUNT = 64
"""The maximum burst of an ``every(ms=0)`` action before messages get their turn."""
RETURNED = (
    "it returned a value: a handler returns None, and one that awaits is declared 'async def'"
)
POLL_S = 0.01
"""How often a process polls for new records, and for the start of a snapshot."""
IDLE_RETRY_S = 0.001
"""When an ``every(ms=0)`` action that sent nothing is tried again."""


class HandlerHost(Host):
    """Runs a ``Process`` whose handlers are plain functions."""

    # True while a step is taken, and until ``begin``: nothing may come before ``start``.
    _is_stepping = True
    _burst_count = 1
    # For how long messages were handled since others last had their turn.
    _spent_s = 0.0
    _waiting: tuple[Callable[[], None], ...] = ()

    def begin(self, *, is_fresh: bool) -> None:
        """Call ``start`` on a fresh start, handle replayed messages, then act and receive."""
        process = self._application = cast(Process, self.subject)
        self._receive = process.receive
        self._is_stepping = False
        if is_fresh:
            self._call(process.start, "start")
            self.schedule_flush()
        self._commit()
        self._handle_replayed()
        self.wake()
        for action in process.actions:
            if action.period_ms == 0:
                self.loop.call_soon(self._act_freely, action)
            else:
                due = self.loop.time() + action.period_ms / 1000
                self.loop.call_later(action.period_ms / 1000, self._act_on_time, action, due)

    def read_logs(self, logs: "PipelineLogs") -> None:
        """Handle the records of a pipeline's logs too, from the next turn of the loop on."""
        self.on_cut = logs.recorded
        self.loop.call_soon(self._read_log, logs)

    def _read_log(self, logs: "PipelineLogs") -> None:
        """Take part in a snapshot of the pipeline, or handle the next records; repeat."""
        if self.error is not None:
            return
        try:
            found = logs.poll(self.initiate, may_read=self.has_room)
        except BaseException as error:
            self.fail(error)
            return
        if found is None:
            self.loop.call_later(POLL_S, self._read_log, logs)
        elif self._call(self._application.receive_records, "receive_records", *found):
            self.schedule_flush()
            self.loop.call_soon(self._read_log, logs)

    def _handle_replayed(self) -> None:
        """Deliver what was in transit at the cut, all of it before any action."""
        try:
            while self.replayed_count and self.error is None:
                item = self.mailbox.popleft()
                assert isinstance(item, Delivery)
                self._deliver(item, item.messages, 0)
                self._finish(item)
                self.replayed_count -= item.batch.count
        except BaseException as error:
            self.fail(error)

    def published(self, snapshot: SnapshotId) -> None:
        """Notify the application that `snapshot` was published, and commit what is safe now."""
        super().published(snapshot)
        self._call(self._application.on_published, "on_published", snapshot)
        self._commit()
        self.schedule_flush()

    def _commit(self) -> None:
        """Commit the entries of each outbox that are safe, and forget them, in one action."""
        for outbox in self.outboxes:
            due = outbox.due()
            if due is not None and self._call(outbox.commit, f"{outbox.name}.commit", due):
                outbox.forget(due)

    def wake(self) -> None:
        """Handle what is in the mailbox, as far as back-pressure allows."""
        if self._is_stepping or self.error is not None:
            return
        self._is_stepping = True
        began, deadline = self.loop.time(), 0.0
        try:
            while self.mailbox and self.error is None:
                if self.is_blocked and isinstance(self.mailbox[0], Delivery):
                    break
                item = self.mailbox.popleft()
                if not isinstance(item, Delivery):
                    self.step(item)
                    continue
                if item.batch.count <= SLICE_COUNT:
                    self._deliver(item, item.messages, 0)
                    self._finish(item)
                    if not self.mailbox:
                        break
                deadline = deadline or self.loop.time() + SLICE_S
                if item.batch.count > SLICE_COUNT:
                    self._deliver_in_slices(item, deadline)
                if self.loop.time() > deadline:
                    self.loop.call_soon(self.wake)
                    break
        except BaseException as error:
            self.fail(error)
        finally:
            self._is_stepping = False
        if not self._is_flush_scheduled:
            self.schedule_flush()
        if self._waiting and self.has_room:
            self._resume_actions()
        self._spend(self.loop.time() - began)

    def _spend(self, seconds: float) -> None:
        """Let others have their turn after a while, as if in a step. One read can hold thousands of
        small frames, and ``wake`` is called for each."""
        self._spent_s += seconds
        if self._spent_s > SLICE_S:
            self._is_stepping = True
            self.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Others had their turn."""
        self._spent_s, self._is_stepping = 0.0, False
        self.wake()

    def _resume_actions(self) -> None:
        """Resume the actions that had found no room."""
        for act in self._waiting:
            self.loop.call_soon(act)
        self._waiting = ()

    def _deliver_in_slices(self, item: Delivery, deadline: float) -> None:
        """Hand messages to the application until time runs out; the rest is returned to the
        mailbox."""
        messages, done = item.messages, 0
        while done < len(messages) and (not done or self.loop.time() < deadline):
            self._deliver(item, messages[done : done + SLICE_COUNT], done)
            done = min(done + SLICE_COUNT, len(messages))
        if done == len(messages):
            self._finish(item)
            return
        handled, rest = item.batch.split(done)
        self.recorder.receive(item.incoming.source, handled)
        self.mailbox.appendleft(Delivery(item.incoming, messages[done:], rest, item.frame_bytes))

    def _finish(self, item: Delivery) -> None:
        """Finish `item`: all its messages were handed over."""
        incoming, size = item.incoming, item.frame_bytes
        self.recorder.receive(incoming.source, item.batch)
        if size is not None and (sequence := incoming.session.handle(size)):
            incoming.acknowledge(sequence)

    def _deliver(self, item: Delivery, messages: list[Message], offset: int) -> None:
        receive, channel = self._receive, item.incoming.channel
        remaining = iter(messages)
        try:
            if self.log is None:
                for message in remaining:
                    if receive(channel, message) is not None:
                        raise TypeError(RETURNED)
            else:
                record, code = self.log.record, self.log.accepting[channel.source]
                for message in remaining:
                    record(code)
                    if receive(channel, message) is not None:
                        raise TypeError(RETURNED)
            if forks.is_child:
                leave(self.process, f"receive() on channel {channel}")
        except BaseException as error:
            if forks.is_child:
                leave(self.process, f"receive() on channel {channel}")
            index = len(messages) - length_hint(remaining) - 1
            raise ApplicationError(
                f"process {self.process}: receive() raised on message "
                f"{item.batch.first + offset + index} of channel {channel}, "
                f"{repr_of(messages[index])}: {describe(error)}"
            ) from error

    def _call(self, function: Callable[..., Any], name: str, *arguments: object) -> bool:
        """Take one atomic action; False if it failed, which ends this process."""
        if self.error is not None:
            return False
        if self.log is not None:
            self.log.action_started()
        try:
            if function(*arguments) is not None:
                raise TypeError(RETURNED)
            if forks.is_child:
                leave(self.process, f"{name}()")
        except BaseException as error:
            self.fail(self.failure_in(f"{name}()", error))
            return False
        return True

    def _act_freely(self, action: Action) -> None:
        """Take an ``every(ms=0)`` action in a burst, and repeat."""
        if not self.has_room:
            self._waiting += (lambda: self._act_freely(action),)
            return
        before = self._sent_total()
        function = getattr(self._application, action.name)
        for _ in range(self._burst_count):
            if not self._call(function, action.name):
                return
        self.flush()
        # How much one action sends is not known beforehand: feel for it, from one action up.
        self._burst_count = (
            min(BURST_COUNT, self._burst_count * 2)
            if self.has_room
            else max(1, self._burst_count // 2)
        )
        if self._sent_total() == before:
            self.loop.call_later(IDLE_RETRY_S, self._act_freely, action)
        else:
            self.loop.call_soon(self._act_freely, action)

    def _act_on_time(self, action: Action, due: float) -> None:
        """Take an action that is due, or was due when the channels were full; schedule the next."""
        if not self.has_room:
            self._waiting += (lambda: self._act_on_time(action, due),)
            return
        if not self._call(getattr(self._application, action.name), action.name):
            return
        self.schedule_flush()
        now, period_s = self.loop.time(), action.period_ms / 1000
        due += period_s * max(1, int((now - due) / period_s) + 1)
        self.loop.call_later(due - now, self._act_on_time, action, due)

    def _sent_total(self) -> int:
        return sum(outgoing.session.sequence for outgoing in self.outgoing.values())
