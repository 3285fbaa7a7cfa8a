"""Hosts without sockets and without a clock: queues in memory, and time that jumps.

Real hosts, the real frame reader, and nothing that depends on the machine: what happens next is
decided by whoever holds the network, so a run is a function of its seed.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from stillframe.errors import StillframeError
from stillframe.model import Channel, ProcessId
from stillframe.process import Process, attach
from stillframe.protocol import wire
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.process.endpoints import IncomingEndpoint, OutgoingEndpoint
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.topology import Topology

MARKER = wire.Kind.MARKER
MARKED_MESSAGES = wire.Kind.MARKED_MESSAGES


class VirtualScheduler:
    """The part of an event loop that hosts use; its time goes on only when it is told to."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = count()
        self._now = 0.0

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> None:
        """Call in the next ``run_one``, behind what is there already."""
        self._ready.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> None:
        """Call when the time has come."""
        heapq.heappush(self._timers, (self._now + delay, next(self._order), callback, args))

    def time(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._now

    def add_reader(self, fd: int, callback: Callable[..., Any], /, *args: Any) -> None:
        """Refuse: descriptors are real, and their time is not ours."""
        raise NotImplementedError

    def remove_reader(self, fd: int, /) -> None:
        """Do nothing: there are none."""

    def run_one(self) -> bool:
        """Call what is due first; False if nothing is due now."""
        if not self._ready:
            return False
        callback, args = self._ready.popleft()
        callback(*args)
        return True

    def run_all(self) -> None:
        """Call until nothing is due now; an ``every(ms=0)`` action would never let this end."""
        while self.run_one():
            pass

    def pass_time(self, seconds: float) -> None:
        """Let time go by within a call, as work does."""
        self._now += seconds

    def advance(self) -> None:
        """Let time jump to the next timer, and call it."""
        due, _, callback, args = heapq.heappop(self._timers)
        self._now = max(self._now, due)
        callback(*args)


class Written(NamedTuple):
    """A frame on its way, and in which turn of the network it was written."""

    turn: int
    frame: bytes | bytearray

    @property
    def kind(self) -> int:
        """The kind of the frame."""
        return self.frame[4]


class MemoryTransport:
    """One direction of a connection: a queue of frames."""

    def __init__(self, turn: Callable[[], int]) -> None:
        self.queue: deque[Written] = deque()
        self._turn = turn

    def write(self, data: bytes | bytearray, /) -> None:
        """Put a frame at the end."""
        self.queue.append(Written(self._turn(), data))

    def is_closing(self) -> bool:
        """Return False: it takes everything until it is replaced."""
        return False

    def close(self) -> None:
        """Do nothing: what is on its way arrives."""

    def abort(self) -> None:
        """Lose what is on its way."""
        self.queue.clear()


def parse(reader: wire.FrameReader, data: bytes | bytearray) -> Iterator[wire.Frame]:
    """Give `data` to `reader` as a socket would, and yield the frames that are complete."""
    while data:
        free = reader.writable()
        size = min(len(free), len(data))
        free[:size] = data[:size]
        reader.written(size)
        data = data[size:]
        while (frame := reader.next_frame()) is not None:
            yield frame


class MemoryLink:
    """One channel between two hosts, with a connection that can be cut."""

    def __init__(self, source: HandlerHost, target: HandlerHost, turn: Callable[[], int]) -> None:
        self._source, self._target, self._turn = source, target, turn
        self._outgoing: OutgoingEndpoint = source.outgoing[target.process]
        self._incoming: IncomingEndpoint = target.incoming[source.process]
        self.forth = self.back = MemoryTransport(turn)
        self.connect()

    def connect(self) -> None:
        """Begin a new connection, as a handshake would."""
        self.forth, self.back = MemoryTransport(self._turn), MemoryTransport(self._turn)
        self._forth_reader, self._back_reader = wire.FrameReader(), wire.FrameReader()
        self._forth_reader.open(*wire.CHANNEL_KINDS, frame_bytes_max=wire.FRAME_BYTES_MAX)
        self._back_reader.open(wire.Kind.ACK, frame_bytes_max=64)
        self._incoming.attach(self.back)
        self._outgoing.attach(self.forth, self._incoming.session.received)

    def disconnect(self, torn_bytes: int = 0) -> None:
        """Lose everything on its way, but for the first `torn_bytes` bytes of the next frame."""
        if self.forth.queue:
            torn = self.forth.queue[0].frame[:torn_bytes]
            assert list(parse(self._forth_reader, torn)) == []
        self.forth.abort()
        self.back.abort()
        self._outgoing.detach(self.forth)
        self._incoming.detach(self.back)

    def has_messages(self) -> bool:
        """Return whether a message of the application is on its way."""
        return any(written.kind != MARKER for written in self.forth.queue)

    def has_marker_first(self) -> bool:
        """Return whether the next frame to arrive is a marker by itself."""
        return bool(self.forth.queue) and self.forth.queue[0].kind == MARKER

    def deliver(self) -> Written:
        """Hand the next frame to the target."""
        written = self.forth.queue.popleft()
        for frame in parse(self._forth_reader, written.frame):
            assert isinstance(frame, wire.Messages | wire.Marked)
            self._target.on_frame(self._incoming, frame)
        return written

    def deliver_acknowledgements(self) -> None:
        """Hand all acknowledgements to the source."""
        while self.back.queue:
            for frame in parse(self._back_reader, self.back.queue.popleft().frame):
                assert isinstance(frame, wire.Ack)
                self._source.on_ack(self._outgoing, frame.sequence)


class MemoryNetwork:
    """The hosts of a topology of plain-function processes, linked in memory.

    Args:
        topology: fresh, since its processes run here.
        report: takes what a process would tell the coordinator.
        starts: where each process begins; None for a fresh start.
        marker_wait_s: how long a marker may wait for messages to ride on.
    """

    def __init__(
        self,
        topology: Topology,
        report: Callable[[ProcessId, control.FromProcess], None],
        starts: dict[ProcessId, Start] | None = None,
        *,
        marker_wait_s: float = 0.0,
    ) -> None:
        self.topology = topology
        self._marker_wait_s = marker_wait_s
        self.scheduler = VirtualScheduler()
        self.turn = 0
        self.hosts = {
            name: self._host(name, report, starts[name] if starts else None)
            for name in topology.processes
        }
        self.links = {
            channel: MemoryLink(
                self.hosts[channel.source], self.hosts[channel.target], lambda: self.turn
            )
            for channel in topology.description.channels
        }

    def begin(self, *processes: ProcessId, is_fresh: bool = True) -> None:
        """Let `processes` begin."""
        for name in processes:
            self.hosts[name].begin(is_fresh=is_fresh)

    def link(self, source: ProcessId, target: ProcessId) -> MemoryLink:
        """Return what carries the channel."""
        return self.links[Channel(source, target)]

    def _host(
        self,
        name: ProcessId,
        report: Callable[[ProcessId, control.FromProcess], None],
        start: Start | None,
    ) -> HandlerHost:
        process = self.topology.processes[name]
        assert isinstance(process, Process)
        return hosted(
            self.topology,
            name,
            process,
            start=start,
            report=lambda message: report(name, message),
            fail=_give_up,
            scheduler=self.scheduler,
            marker_wait_s=self._marker_wait_s,
        )


def hosted(
    topology: Topology,
    name: ProcessId,
    process: Process,
    *,
    fail: Callable[[StillframeError], None],
    scheduler: Any,
    report: Callable[[control.FromProcess], None] = lambda message: None,
    start: Start | None = None,
    marker_wait_s: float = 0.0,
) -> HandlerHost:
    """Return the host of a process that has its place in a topology; it has not begun."""
    host = HandlerHost(
        topology,
        name,
        process,
        start,
        report=report,
        fail=fail,
        loop=scheduler,
        marker_wait_s=marker_wait_s,
    )
    attach(
        process,
        process_id=name,
        incoming=tuple(host.incoming),
        outgoing=tuple(host.outgoing),
        send=host.send,
        snapshot=lambda: report(control.SnapshotRequested()),
    )
    return host


def _give_up(error: StillframeError) -> None:
    raise error
