"""What every link must do, whatever carries it: ``check_link(make_pair)``.

A link hands frames to hosts and takes frames from them. These checks see only the hosts at both
ends, and a hand that cuts the connection.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import Fragment, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.runtime import control
from stillframe.runtime.process.endpoints import FRAME_EXTRA_BYTES, WINDOW_BYTES
from stillframe.runtime.process.handlers import BURST_COUNT, HandlerHost
from tests.nightly import by_night

CALL_COUNT = by_night(1500, check=300)
"""So many messages come, each way, from one break of the connections to the next."""
FRAME_COUNT = by_night(3000, check=500)
"""So many frames without any room in them for a message."""


class Call(Message):
    """The message number `serial` of its channel."""

    serial: int
    filler: bytes


class C(Message):
    """The smallest message there can be."""


class Caller(Process):
    """Sends `limit` numbered calls, and checks that what it receives has no gap and no double."""

    limit: int = 0
    filler_bytes: int = 0
    sent_count: int = 0
    received_count: int = 0

    def receive(self, channel: Channel, message: Call) -> None:
        """Count the call if it is the next."""
        self.received_count += 1
        if message.serial != self.received_count:
            raise AssertionError(f"call {message.serial} came where {self.received_count} should")

    @every(ms=0)
    def call(self) -> None:
        """Send the next call."""
        if self.sent_count < self.limit:
            self.sent_count += 1
            self.send(self.outgoing[0], Call(self.sent_count, bytes(self.filler_bytes)))


class Receiver(Process):
    """Counts what comes, and sends nothing by itself."""

    received_count: int = 0

    def receive(self, channel: Channel, message: C) -> None:
        """Count."""
        self.received_count += 1


class LinkPair(Protocol):
    """Two hosts, A and B, linked both ways."""

    hosts: Mapping[str, HandlerHost]

    def begin(self, *processes: str) -> None:
        """Let `processes` begin; the others take frames in, but handle nothing."""

    async def cut(self, end: str) -> None:
        """Break all connections at the end of one process; they come back by themselves."""

    async def disconnect(self) -> None:
        """Break all connections; they stay broken until ``reconnect``."""

    async def reconnect(self) -> None:
        """Let connections come back."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let things go on until `condition` holds; raise if a host has failed."""


MakePair = Callable[[Topology], AbstractAsyncContextManager[LinkPair]]


def unacknowledged_bytes(pair: LinkPair, source: str, target: str) -> int:
    """Return how much of a channel is sent and not acknowledged."""
    return pair.hosts[source].outgoing[target].session.unacknowledged_bytes


async def check_order(make_pair: MakePair) -> None:
    """Both ways at once, everything comes, in order."""
    a, b = Caller(limit=3000, filler_bytes=10), Caller(limit=1000, filler_bytes=300)
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        pair.begin("A", "B")
        await pair.until(lambda: b.received_count == 3000 and a.received_count == 1000)


async def check_broken_connections(make_pair: MakePair) -> None:
    """Connections that break at either end, again and again, lose nothing and double nothing."""
    limit = 14 * CALL_COUNT
    a, b = Caller(limit=limit, filler_bytes=50), Caller(limit=limit, filler_bytes=50)
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        pair.begin("A", "B")
        for cut_number in range(1, 13):

            def has_gone_on(goal: int = CALL_COUNT * cut_number) -> bool:
                return min(a.received_count, b.received_count) >= goal

            await pair.until(has_gone_on)
            await pair.cut("AB"[cut_number % 2])
        await pair.until(lambda: a.received_count == b.received_count == limit)


async def check_back_pressure(make_pair: MakePair) -> None:
    """A target that handles nothing stops its source at the window, also across a new connection;
    when it goes on, everything comes."""
    a, b = Caller(limit=2000, filler_bytes=200), Caller()
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        pair.begin("A")
        await pair.until(lambda: not pair.hosts["A"].has_room)
        bound = WINDOW_BYTES + BURST_COUNT * (200 + FRAME_EXTRA_BYTES)
        assert WINDOW_BYTES <= unacknowledged_bytes(pair, "A", "B") <= bound
        await pair.disconnect()
        await pair.reconnect()
        received = pair.hosts["B"].incoming["A"].session
        sent = pair.hosts["A"].outgoing["B"].session
        await pair.until(lambda: received.received == sent.sequence)
        assert b.received_count == 0
        assert WINDOW_BYTES <= unacknowledged_bytes(pair, "A", "B") <= bound
        pair.begin("B")
        await pair.until(lambda: b.received_count == 2000)


async def check_lost_acknowledgements(make_pair: MakePair) -> None:
    """A source that waits for acknowledgements goes on after the connection that lost them."""
    a, b = Caller(limit=5000, filler_bytes=200), Caller()
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        pair.begin("A")
        sent = pair.hosts["A"].outgoing["B"].session
        received = pair.hosts["B"].incoming["A"].session
        await pair.until(
            lambda: not pair.hosts["A"].has_room and received.received == sent.sequence
        )
        await pair.disconnect()
        pair.begin("B")
        await pair.until(lambda: b.received_count == a.sent_count)
        assert unacknowledged_bytes(pair, "A", "B") >= WINDOW_BYTES
        await pair.reconnect()
        await pair.until(lambda: b.received_count == 5000)


async def check_smallest_frames(make_pair: MakePair) -> None:
    """The window moves on however little of a frame is message."""
    b = Receiver()
    async with make_pair(Topology.mesh({"A": Receiver(), "B": b})) as pair:
        pair.begin("A", "B")
        for number in range(1, FRAME_COUNT + 1):
            pair.hosts["A"].send("B", C())
            pair.hosts["A"].flush()

            def has_come(number: int = number) -> bool:
                return b.received_count == number

            await pair.until(has_come)
            assert unacknowledged_bytes(pair, "A", "B") < WINDOW_BYTES


async def check_markers(make_pair: MakePair) -> None:
    """Markers without end and not one message: the window moves on."""
    a, b = Caller(), Caller()
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        pair.begin("A", "B")
        for number in range(1, FRAME_COUNT + 1):
            snapshot = SnapshotId("A", number)
            pair.hosts["A"].initiate(snapshot)

            def has_ended(snapshot: SnapshotId = snapshot) -> bool:
                return all(
                    host.recorder.phase(snapshot) is Phase.RECORDED for host in pair.hosts.values()
                )

            await pair.until(has_ended)
            assert unacknowledged_bytes(pair, "A", "B") < WINDOW_BYTES
        a.limit = 1
        await pair.until(lambda: b.received_count == 1)


async def check_markers_among_messages(make_pair: MakePair) -> None:
    """Snapshots from both ends while messages flow, over connections that break: every part that
    is recorded fits the other, message by message."""
    limit = 20 * CALL_COUNT
    a, b = Caller(limit=limit, filler_bytes=20), Caller(limit=limit, filler_bytes=20)
    async with make_pair(Topology.mesh({"A": a, "B": b})) as pair:
        declined: list[control.SnapshotDeclined] = []
        parts = {name: _collect_parts(host, declined) for name, host in pair.hosts.items()}
        pair.begin("A", "B")
        for number in range(1, 41):
            snapshot = SnapshotId("AB"[number % 2], number)
            pair.hosts[snapshot.initiator].initiate(snapshot)
            if number % 10 == 0:
                await pair.cut("AB"[number // 10 % 2])

            def has_ended(snapshot: SnapshotId = snapshot) -> bool:
                assert not declined, declined
                return all(snapshot in part for part in parts.values())

            await pair.until(has_ended)
        await pair.until(lambda: a.received_count == b.received_count == limit)
    for snapshot, part in parts["A"].items():
        for one, other in ((part, parts["B"][snapshot]), (parts["B"][snapshot], part)):
            (record,) = other.incoming
            (sent_count,) = one.sent_counts.values()
            recorded_count = sum(batch.count for batch in record.batches)
            assert sent_count == record.received_count + recorded_count


def _collect_parts(
    host: HandlerHost, declined: list[control.SnapshotDeclined]
) -> dict[SnapshotId, Fragment]:
    """Return where the parts that `host` reports will be found; those that it could not record
    are in `declined`."""
    parts: dict[SnapshotId, Fragment] = {}

    def report(message: control.FromProcess) -> None:
        if isinstance(message, control.FragmentComplete):
            parts[message.fragment.snapshot] = message.fragment
        elif isinstance(message, control.SnapshotDeclined):
            declined.append(message)

    host.captures.report = report
    return parts


LINK_CHECKS: tuple[Callable[[MakePair], Awaitable[None]], ...] = (
    check_order,
    check_broken_connections,
    check_back_pressure,
    check_lost_acknowledgements,
    check_smallest_frames,
    check_markers,
    check_markers_among_messages,
)


async def check_link(make_pair: MakePair) -> None:
    """Run every check on links that `make_pair` makes."""
    for check in LINK_CHECKS:
        await check(make_pair)
