"""Puts what several processes did, each in its own order, into one order in which it could be."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from stillframe.errors import NotConsistent
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import MarkerStep, MessageId, Step


class MarkerId(NamedTuple):
    """Which marker: its channel, and the snapshot that it is of."""

    channel: Channel
    snapshot: SnapshotId


class Merging:
    """Puts lines into one order, in turns.

    Args:
        lines: process -> what it did, which is taken out as far as it can have happened.
    """

    def __init__(self, lines: dict[ProcessId, deque[Step]]) -> None:
        self._lines = lines
        self._sent: set[MessageId | MarkerId] = set()

    def steps(self) -> Iterator[Step]:
        """Yield everything that can have happened: what was accepted was sent before.

        Raises:
            NotConsistent: processes wait for each other's messages in a circle.
        """
        ready = deque(self._lines)
        waiting: dict[ProcessId, set[ProcessId]] = {process: set() for process in self._lines}
        while ready:
            process = ready.popleft()
            if not (line := self._lines[process]):
                continue
            if (awaited := self._awaited(line[0])) is not None:
                waiting[awaited.channel.source].add(process)
                continue
            step = line.popleft()
            sent = _sent_in(step)
            self._sent |= sent
            yield step
            ready.append(process)
            for target in {one.channel.target for one in sent} & waiting[process]:
                waiting[process].remove(target)
                ready.append(target)
        self._check_rest()

    def _awaited(self, step: Step) -> MessageId | MarkerId | None:
        """Return what must be sent before `step`; None if it can come now."""
        return next((one for one in _accepted_in(step) if one not in self._sent), None)

    def _check_rest(self) -> None:
        """Check that each line that is left waits for what is in no line, or for a line that does.

        Raises:
            NotConsistent: some wait for each other.
        """
        for first in self._lines:
            path = [first]
            while (line := self._lines[path[-1]]) and (awaited := self._awaited(line[0])):
                source = awaited.channel.source
                if not any(awaited in _sent_in(step) for step in self._lines[source]):
                    break
                if source in path:
                    circle = ", ".join(path[path.index(source) :])
                    raise NotConsistent(
                        f"no execution is like that: each of {circle} accepts first what another "
                        "of them sends after that"
                    )
                path.append(source)


def _accepted_in(step: Step) -> tuple[MessageId | MarkerId, ...]:
    if not isinstance(step, MarkerStep):
        return step.accepted
    if step.source is None:
        return ()
    return (MarkerId(Channel(step.source, step.process), step.snapshot),)


def _sent_in(step: Step) -> set[MessageId | MarkerId]:
    if not isinstance(step, MarkerStep):
        return {*step.sent}
    return {MarkerId(Channel(step.process, target), step.snapshot) for target in step.targets}
