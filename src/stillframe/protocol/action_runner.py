"""Runs a real ``Process`` one atomic action at a time, without a loop.

The messages that it sends are returned: the caller decides when they arrive. The simulator and the
replay of a trace consist of these.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, get_type_hints

import msgspec

from stillframe.errors import (
    ApplicationError,
    ProtocolViolation,
    StillframeError,
    UsageError,
    describe,
    repr_of,
    text_of,
)
from stillframe.model import (
    DECODING_ERRORS,
    Channel,
    ProcessId,
    ProcessState,
    SnapshotId,
    decoded,
)
from stillframe.ordered_sets import with_ordered_sets
from stillframe.outbox import Due
from stillframe.process import Message, Process, attach
from stillframe.topology import Topology

START, RECEIVE, PUBLISHED = "start", "receive", "on_published"
Sent = tuple[ProcessId, bytes]
"""A message in transit: its target, and the message as MessagePack."""


class ActionRunner:
    """A process of a topology, on a copy of its start state, or in the recorded state `encoded`.
    UsageError if that process is an ``ExternalProcess``: its loop cannot be stepped through."""

    def __init__(
        self, process_id: ProcessId, topology: Topology, encoded: bytes | None = None
    ) -> None:
        start = topology.processes[process_id]
        if not isinstance(start, Process):
            raise UsageError(
                f"process {process_id} runs its own event loop (stillframe.join): only "
                "subclasses of stillframe.Process can be stepped through"
            )
        self.id = process_id
        self.process = copy.deepcopy(start)
        self.wants_snapshot = False
        self._codec = topology.codecs[process_id]
        self._encode = msgspec.msgpack.Encoder().encode
        accepts = topology.accepts[process_id]
        self._decoder = msgspec.msgpack.Decoder(union_of(accepts)) if accepts else None
        description = topology.description
        self._accepted_by = {t: topology.accepts[t] for t in description.outgoing(process_id)}
        self._sent: list[Sent] = []
        """What was sent since the last action ended; with an action that raises it is discarded."""
        attach(
            self.process,
            process_id=process_id,
            incoming=description.incoming(process_id),
            outgoing=description.outgoing(process_id),
            send=self._send,
            snapshot=self._want_snapshot,
        )
        if encoded is not None:
            self._codec.restore(self.process, encoded)
        self._outboxes = self._codec.open_outboxes(self.process, process_id, "")
        self.committed: list[Due[Any]] = []
        """What its outboxes would have committed since the caller cleared it. Nothing is committed
        here: every commit is taken to have succeeded at once."""

    @property
    def is_notified(self) -> bool:
        """Whether a published snapshot makes a difference to this process."""
        is_own = type(self.process).on_published is not Process.on_published
        return is_own or bool(self._outboxes)

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the process's own actions."""
        return tuple(action.name for action in self.process.actions)

    def decode(self, encoded: bytes) -> Message:
        """Return a message that this process is to receive; ProtocolViolation if it accepts none
        like it."""
        if self._decoder is None:
            raise ProtocolViolation(f"process {self.id} accepts no message")
        try:
            message: Message = decoded(self._decoder.decode, encoded)
        except DECODING_ERRORS as error:
            raise ProtocolViolation(
                f"process {self.id}: a message does not fit: {text_of(error)}"
            ) from error
        return message

    def receive(self, messages: Iterable[tuple[Channel, Message]]) -> list[Sent]:
        """Accept messages, one or several, in one atomic action; return what it sent. Raises
        ApplicationError if the handler did; UsageError if it sent an invalid message, or waits for
        something outside."""
        return self._act(RECEIVE, messages)

    def act(self, action: str, arguments: Sequence[Any] = ()) -> list[Sent]:
        """Take one of the process's actions, with JSON values as arguments; return what it sent.
        UsageError if a value does not fit the annotation of its parameter; else as ``receive``."""
        if not arguments:
            return self.perform(action)
        handler = getattr(self.process, action)
        try:
            hints = get_type_hints(handler)
            fitted = [
                decoded(msgspec.convert, value, hints.get(name, Any))
                for name, value in zip(
                    inspect.signature(handler).parameters, arguments, strict=False
                )
            ]
        except (NameError, TypeError, *DECODING_ERRORS) as error:
            given = repr_of([*arguments])[:200]
            raise UsageError(
                f"process {self.id}: {action}() does not take {given}: {text_of(error)}",
                process=self.id,
            ) from None
        return self.perform(action, *fitted, *arguments[len(fitted) :])

    def perform(self, handler: str, *arguments: Any) -> list[Sent]:
        """Call a handler other than ``receive``: one atomic action; return what it sent. Raises as
        ``receive``."""
        sent = self._act(handler, [arguments])
        if handler == PUBLISHED:
            for outbox in self._outboxes:
                outbox.published(*arguments)
                if (due := outbox.due()) is not None:
                    self.committed.append(due)
                    outbox.forget(due)
        return sent

    def _act(self, handler: str, calls: Iterable[tuple[object, ...]]) -> list[Sent]:
        try:
            for arguments in calls:
                self._call(handler, *arguments)
            return self._sent
        finally:
            self._sent = []

    def cut(self, snapshot: SnapshotId) -> None:
        """Notify the process that its state was recorded for `snapshot`; UsageError if its
        ``on_cut`` sent something, ApplicationError if it raised."""
        for outbox in self._outboxes:
            outbox.cut(snapshot)
        if self.perform("on_cut", snapshot):
            raise UsageError(
                f"process {self.id}: on_cut() sent a message: a snapshot must not change what a "
                "process does"
            )

    def capture(self) -> ProcessState:
        """Record the current state; UsageError if a field cannot be recorded."""
        self._codec.check_opened(self.process, self._outboxes)
        return ProcessState(self.id, self._codec.kind.__name__, self._codec.capture(self.process))

    def _call(self, handler: str, *arguments: object) -> None:
        try:
            returned = getattr(self.process, handler)(*arguments)
            if inspect.iscoroutine(returned):
                self._run_through(returned)
            elif returned is not None:
                raise TypeError("it returned a value: a handler returns None")
        except (StillframeError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit() and cancellation end the action as well
            where = ""
            if handler == RECEIVE:
                where = f" on {repr_of(arguments[1])} of channel {arguments[0]}"
            raise ApplicationError(
                f"process {self.id}: {handler}() raised {describe(error)}{where}", process=self.id
            ) from error

    def _run_through(self, coroutine: Any) -> None:
        """Run an ``async`` handler from its start to its end: it is one atomic action."""
        try:
            coroutine.send(None)
        except StopIteration:
            return
        except RuntimeError as error:
            if "no running event loop" not in text_of(error):
                raise
        coroutine.close()
        raise UsageError(
            f"process {self.id}: an async handler waited: there is no event loop here, so only "
            "handlers that never wait can be stepped through"
        )

    def _send(self, target: ProcessId, message: Message) -> None:
        accepted = self._accepted_by.get(target)
        if accepted is None:
            raise UsageError(
                f"process {self.id} has no channel to {repr_of(target)}; "
                f"outgoing: {', '.join(self._accepted_by) or 'none'}"
            )
        if type(message) not in accepted:
            names = ", ".join(sorted(kind.__name__ for kind in accepted))
            raise UsageError(
                f"channel {Channel(self.id, target)}: {target} accepts {names or 'no message'}, "
                f"not {type(message).__name__}; add it to the annotation of its receive()"
            )
        try:
            self._sent.append((target, self._encode(with_ordered_sets(message))))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"channel {Channel(self.id, target)}: {repr_of(message)} cannot be encoded: "
                f"{text_of(error)}"
            ) from error

    def _want_snapshot(self) -> None:
        self.wants_snapshot = True


def union_of(kinds: tuple[type[Message], ...]) -> Any:
    """Return the type of a message that is of one of these classes, for a decoder."""
    return reduce(or_, kinds)
