"""A program that has taken the place of a service, whatever the channels of its pipeline are."""

import abc
import contextlib
import time
from collections.abc import Iterator
from typing import Generic, TypeVar, overload

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.locks import Lock, participant_lock
from stillframe.pipeline.metadata import Metadata, begin_taking_part
from stillframe.pipeline.pending_snapshot import ServiceState
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location

Records = TypeVar("Records")
"""What a service receives in one action."""


class Left(BaseException):
    """The last action of a service that leaves has finished. This ends the body of
    ``join_service``; error handlers in it should not catch it."""


class Joined(abc.ABC, Generic[Records]):
    """A service's view of its pipeline: ``for`` to receive, ``append`` to send."""

    def __init__(self, name: str, codec: StateCodec, state: object) -> None:
        self.id = name
        self._codec = codec
        self._state = state
        self._is_leaving = False

    def __iter__(self) -> Iterator[tuple[str, Records]]:
        """Yield channel and records as they were appended, one atomic action a turn, endlessly."""
        while True:
            received = self.receive()
            assert received is not None
            yield received

    def boundary(self) -> None:
        """End the current action and begin another: here the state may be recorded.

        Call it between actions if you write your own loop; ``for`` does so automatically.
        """
        self._end_action()

    def leave(self) -> None:
        """Leave after the current action: the body of ``join_service`` ends at the next
        ``boundary``, ``receive`` or turn of ``for``.

        It may be called from a signal handler or another thread. A service that is to stop then
        leaves, and its state is kept.
        """
        self._is_leaving = True

    @overload
    def receive(self, timeout_s: None = None) -> tuple[str, Records]: ...

    @overload
    def receive(self, timeout_s: float) -> tuple[str, Records] | None: ...

    def receive(self, timeout_s: float | None = None) -> tuple[str, Records] | None:
        """End the current action, and begin another with the next records and their channel.

        The incoming channels are read round-robin.

        Args:
            timeout_s: how long to wait for records, in seconds; None for no limit.

        Returns:
            channel and records; None if none arrived in time.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._end_action()
        while True:
            if (received := self._take()) is not None:
                return received
            if until is not None and time.monotonic() >= until:
                return None
            self._wait()
            self._between_actions()

    def state(self) -> ServiceState:
        """Return the state as it is now, encoded; UsageError if that, or to read it back, is
        impossible."""
        return encoded_state(self._codec, self._state)

    def _check_leaving(self) -> None:
        if self._is_leaving:
            raise Left

    def _end_action(self) -> None:
        """End the action of the body."""
        self._between_actions()

    @abc.abstractmethod
    def _between_actions(self) -> None:
        """Do what is due between two actions."""

    @abc.abstractmethod
    def _take(self) -> tuple[str, Records] | None:
        """Return the next records and their channel; None if there are none now."""

    @abc.abstractmethod
    def _wait(self) -> None:
        """Wait a little while for records."""


def encoded_state(codec: StateCodec, state: object) -> ServiceState:
    """Return a state, encoded; UsageError if that, or to read it back, is impossible."""
    encoded = codec.capture(state)
    codec.check(encoded)
    return ServiceState(codec.kind.__name__, encoded)


def codec_of(metadata: Metadata, name: str, state: object) -> StateCodec:
    """Return the codec of a service's state; UsageError if the pipeline has no such service, or its
    state is of another class."""
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
    return codec


@contextlib.contextmanager
def holding_place(root: Location, name: str) -> Iterator[Lock]:
    """Hold the lock of a service while the body runs; Unavailable if another program does."""
    begin_taking_part(root)
    lock = participant_lock(root, name)
    if not lock.acquire():
        raise Unavailable(
            f"another program runs service {name}",
            path=root,
            process=name,
            remedy="stop that one first",
        )
    try:
        yield lock
    finally:
        lock.release()
