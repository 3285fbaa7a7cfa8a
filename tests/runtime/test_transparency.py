"""A snapshot never changes what the application does: runs with and without, compared by seed."""

import hashlib
import random
from collections import Counter
from dataclasses import field

import msgspec
import pytest

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import Abandoned, Snapshot, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.restore import start_states
from stillframe.runtime import control
from tests.nightly import seeds
from tests.runtime.memory import MARKED_MESSAGES, MARKER, MemoryLink, MemoryNetwork

PROCESS_COUNT = 4
FOR_EVER_S = 1e9
SNAPSHOT_COUNT = 6
ACTION_COUNT = 4


class Word(Message):
    """What the sender had come to, and how many more messages may come of it."""

    chain: bytes
    hops: int


class Chain(Process):
    """Hashes all that it receives, so that the least difference in order shows for ever."""

    chain: bytes = b""
    step_count: int = 0
    action_count: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    _history: dict[int, bytes] = field(default_factory=dict)

    def start(self) -> None:
        """Send the first words."""
        self.sent = dict.fromkeys(self.outgoing, 0)
        self.received = dict.fromkeys(self.incoming, 0)
        for turn in range(len(self.outgoing)):
            self._say(turn, hops=3)

    def receive(self, channel: Channel, message: Word) -> None:
        """Take a step, and pass a word or two on; which and where to depends on the chain."""
        self.received[channel.source] += 1
        self._step(channel.source.encode() + message.chain)
        if message.hops:
            for turn in range(1 + (self.chain[0] < 40)):
                self._say(self.chain[1 + turn], message.hops - 1)

    @every(ms=7)
    def act(self) -> None:
        """Say several things at once, a limited number of times."""
        if self.action_count < ACTION_COUNT:
            self.action_count += 1
            self._step(b"act")
            for turn in range(3):
                self._say(self.chain[turn], hops=3)

    def _step(self, happened: bytes) -> None:
        self.chain = hashlib.sha256(self.chain + happened).digest()[:8]
        self.step_count += 1
        self._history[self.step_count] = self.chain

    def _say(self, choice: int, hops: int) -> None:
        target = self.outgoing[choice % len(self.outgoing)]
        self.sent[target] += 1
        self.send(target, Word(self.chain, hops))


def chains() -> Topology:
    """Return a fresh mesh of chains."""
    return Topology.mesh({f"P{number}": Chain() for number in range(1, PROCESS_COUNT + 1)})


class Run:
    """One run by seed: chance sees only messages of the application, never a marker.

    In each turn chance picks a channel; what one turn wrote there is delivered together, with the
    markers in between, since a marker may have cut it into two frames. Who initiates, when, and
    how long a marker stays at the head of its channel or waits for messages to ride on, is drawn
    from a chance of its own.
    """

    def __init__(self, seed: int, *, snapshot_count: int, markers_ride: bool = False) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self._other_chance = random.Random(seed + 1)
        self._snapshot_count = snapshot_count
        self.topology = chains()
        self.network = MemoryNetwork(
            self.topology, self._report, marker_wait_s=FOR_EVER_S if markers_ride else 0.0
        )
        self._assembler = Assembler(self.topology.description, epoch=1)
        self.snapshots: list[Snapshot] = []
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        """Go on until nothing of the application is on its way and every snapshot has ended."""
        self.network.begin(*self.network.hosts)
        self._settle()
        while links := [link for link in self.network.links.values() if link.has_messages()]:
            self.network.turn += 1
            choice = self._chance.randrange(len(links) + 1)
            if choice == len(links) and not self._has_acted():
                self.network.scheduler.advance()
            else:
                self._deliver_turn(links[min(choice, len(links) - 1)])
            self._perhaps_initiate()
            self._settle()
            self._perhaps_initiate()
            self._move_markers()
        while self._assembler.pending:
            self._move_markers()

    def states(self) -> dict[str, tuple[bytes, int, int, dict[str, int]]]:
        """Return what every process has come to, and what it had received."""
        return {
            name: (
                host.subject.chain,
                host.subject.step_count,
                host.subject.action_count,
                dict(host.recorder._received_counts),
            )
            for name, host in self.network.hosts.items()
            if isinstance(host.subject, Chain)
        }

    def _has_acted(self) -> bool:
        counts = [p.action_count for p in self.topology.processes.values() if isinstance(p, Chain)]
        return min(counts) == ACTION_COUNT

    def _deliver_turn(self, link: MemoryLink) -> None:
        turn = next(written.turn for written in link.forth.queue if written.kind != MARKER)
        while link.forth.queue and (link.has_marker_first() or link.forth.queue[0].turn == turn):
            self.seen["rode"] += link.deliver().kind == MARKED_MESSAGES

    def _settle(self) -> None:
        self.network.scheduler.run_all()
        for link in self.network.links.values():
            link.deliver_acknowledgements()
        for host in self.network.hosts.values():
            assert host.has_room, "full channels delay actions: send less"

    def _move_markers(self) -> None:
        for host in self.network.hosts.values():
            for outgoing in host.outgoing.values():
                if outgoing._waiting is not None and self._other_chance.random() < 0.3:
                    outgoing.release(outgoing._waiting)
                    self.seen["waited in vain"] += 1
        for link in self.network.links.values():
            if link.has_marker_first() and self._other_chance.random() < 0.5:
                link.deliver()
        self.network.scheduler.run_all()

    def _perhaps_initiate(self) -> None:
        if self._snapshot_count and self._other_chance.random() < 0.2:
            initiator = self._other_chance.choice(sorted(self.network.hosts))
            snapshot = SnapshotId(initiator, self._snapshot_count)
            self._snapshot_count -= 1
            self.seen["overlapping"] += bool(self._assembler.pending)
            self._assembler.begin(snapshot, now=0.0, timeout_s=1.0)
            host = self.network.hosts[initiator]
            self.seen["cut between sending and leaving"] += any(
                outgoing.pending for outgoing in host.outgoing.values()
            )
            host.initiate(snapshot)

    def _report(self, process: str, message: control.FromProcess) -> None:
        assert isinstance(message, control.FragmentComplete), message
        outcome = self._assembler.add(message.fragment, now=0.0)
        assert not isinstance(outcome, Abandoned), str(outcome)
        if outcome is not None:
            self.snapshots.append(outcome)
            self.seen["caught"] += outcome.state.message_count


def check_snapshot(snapshot: Snapshot, plain: Run) -> None:
    """Check that each recorded state is one of the run without snapshots, and that what processes
    say of their channels is what was recorded of the channels."""
    where = f"SEED={plain.seed}, snapshot {snapshot.id}"
    states = {s.process: msgspec.msgpack.decode(s.encoded) for s in snapshot.state.processes}
    for name, process in plain.topology.processes.items():
        assert isinstance(process, Chain)
        happened = process._history.get(states[name]["step_count"], b"")
        assert states[name]["chain"] == happened, where
    for state in snapshot.state.channels:
        source, target = state.channel.source, state.channel.target
        assert states[source]["sent"][target] == state.sent_count, where
        assert states[target]["received"][source] == state.received_count, where


@pytest.mark.slow
@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize("markers_ride", [False, True])
@pytest.mark.parametrize("first", seeds("transparency", 0, night=20))
def test_snapshots_do_not_change_what_the_application_does(first: int, markers_ride: bool) -> None:
    """With the same seed, a run with overlapping snapshots ends as the run without any, and every
    state that was recorded is one that its process had in the run without."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 50):
        plain = Run(seed, snapshot_count=0)
        observed = Run(seed, snapshot_count=SNAPSHOT_COUNT, markers_ride=markers_ride)
        plain.run()
        observed.run()
        assert observed.states() == plain.states(), f"SEED={seed}"
        assert len(observed.snapshots) == SNAPSHOT_COUNT, f"SEED={seed}"
        for snapshot in observed.snapshots:
            check_snapshot(snapshot, plain)
        seen += observed.seen
    assert seen["caught"] > 1000
    assert seen["overlapping"] > 20
    assert seen["cut between sending and leaving"] > 5
    if markers_ride:
        assert min(seen["rode"], seen["waited in vain"]) > 50


@pytest.mark.slow
def test_every_snapshot_can_be_gone_on_from() -> None:
    """Hosts that start from a snapshot receive what its channels held, first and in order, and go
    on: nothing that was sent is lost."""
    replayed_count = 0
    for seed in range(20):
        run = Run(seed, snapshot_count=SNAPSHOT_COUNT)
        run.run()
        for snapshot in run.snapshots:
            topology = chains()
            starts = start_states(snapshot, topology.description)
            network = MemoryNetwork(topology, lambda process, message: None, starts)
            network.begin(*network.hosts, is_fresh=False)
            for state in snapshot.state.channels:
                host = network.hosts[state.channel.target]
                received = host.recorder._received_counts[state.channel.source]
                assert received == state.sent_count, f"SEED={seed} {snapshot.id} {state.channel}"
                replayed_count += state.message_count
            network.scheduler.run_all()
            while any(link.forth.queue for link in network.links.values()):
                for link in network.links.values():
                    while link.forth.queue:
                        assert link.deliver().kind != MARKER
                    network.scheduler.run_all()
            for channel in topology.description.channels:
                sent = network.hosts[channel.source].outgoing[channel.target].sent_count
                received = network.hosts[channel.target].recorder._received_counts[channel.source]
                assert sent == received, f"SEED={seed} {snapshot.id} {channel}"
    assert replayed_count > 500
