"""Real processes that pay each other, with real recorders, over queues in memory; and a trace."""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from stillframe.model import Abandoned, Batch, Channel, GlobalState, Marker, Snapshot, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.protocol.action_runner import RECEIVE, ActionRunner, Sent
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.equivalent import Equivalent, prove
from stillframe.protocol.recorder import Effect, Phase, Recorded, Recorder, SendMarker
from stillframe.protocol.replay import RESTORED
from stillframe.topology import Topology
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace


class Transfer(Message):
    """So much money, on its way."""

    amount: int


class Account(Process):
    """Pays all its neighbours at once; passes half of a large payment on."""

    balance: int = 100
    action_count: int = 0

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Take the money, and pass on half of what is left of a large sum."""
        self.action_count += 1
        self.balance += message.amount
        if message.amount > 2:
            self.balance -= message.amount // 2
            self.send(self.outgoing[self.action_count % len(self.outgoing)], self.half(message))

    def half(self, message: Transfer) -> Transfer:
        """Return what is passed on."""
        return Transfer(message.amount // 2)

    @every(ms=0)
    def pay(self) -> None:
        """Send something on every channel, in one action."""
        self.action_count += 1
        for share, target in enumerate(self.outgoing, 3):
            self.balance -= share
            self.send(target, Transfer(share))


class System:
    """Real processes and real recorders over queues that keep order; whoever calls says what
    happens next, and a trace is kept."""

    def __init__(self, topology: Topology, start: GlobalState | None = None) -> None:
        self.topology, self.start = topology, start
        self.description = topology.description
        self.steps: list[Step] = []
        self.snapshots: list[Snapshot] = []
        self.contents: dict[MessageId, bytes] = {}
        self.assembler = Assembler(self.description, 1)
        self.queues: dict[Channel, deque[Batch | Marker]] = {
            channel: deque() for channel in self.description.channels
        }
        begin = {s.channel: s for s in start.channels} if start else {}
        encoded = {s.process: s.encoded for s in start.processes} if start else {}
        self.sent = {c: begin[c].sent_count if begin else 0 for c in self.queues}
        received = {c: begin[c].received_count if begin else 0 for c in self.queues}
        self.runners = {p: ActionRunner(p, topology, encoded.get(p)) for p in topology.processes}
        self.recorders = {
            name: Recorder(
                name,
                incoming={c.source: n for c, n in received.items() if c.target == name},
                outgoing={c.target: n for c, n in self.sent.items() if c.source == name},
                capture=runner.capture,
            )
            for name, runner in self.runners.items()
        }
        for name in encoded:
            singles = {
                MessageId(channel, single.first): single
                for channel, state in begin.items()
                for batch in state.batches
                for single in batch.singles()
                if channel.source == name
            }
            for message, single in singles.items():
                self.queues[message.channel].append(single)
            self.steps.append(Event(name, RESTORED, RESTORED, sent=tuple(singles)))

    @property
    def trace(self) -> Trace:
        """What happened so far."""
        return Trace(self.description.processes, self.steps, self.description.channels)

    def act(self, name: str, action: str = "pay") -> None:
        """Let a process do something by itself."""
        self._happened(name, action, (), self.runners[name].perform(action))

    def deliver(self, *channels: Channel) -> None:
        """Let the first message of each channel be accepted, all in one action; or one marker."""
        first = self.queues[channels[0]][0]
        name = channels[0].target
        if isinstance(first, Marker):
            self.queues[channels[0]].popleft()
            source = channels[0].source
            self._record(name, first.snapshot, source, lambda r: r.marker(source, first))
            return
        runner = self.runners[name]
        batches = [(channel, self.queues[channel].popleft()) for channel in channels]
        taken = [(c, batch) for c, batch in batches if isinstance(batch, Batch)]
        sent = runner.receive([(c, runner.decode(b.messages()[0])) for c, b in taken])
        accepted = tuple(MessageId(c, batch.first) for c, batch in taken)
        self._happened(name, RECEIVE, accepted, sent)
        for channel, batch in taken:
            self.recorders[name].receive(channel.source, batch)

    def initiate(self, name: str) -> None:
        """Let a process begin a snapshot."""
        snapshot = SnapshotId(name, len(self.steps) + 1)
        self.assembler.begin(snapshot, 0.0, timeout_s=1.0)
        self._record(name, snapshot, None, lambda recorder: recorder.initiate(snapshot))

    def ready(self, name: str) -> list[Channel]:
        """Return the channels into a process that have a message first."""
        into = [Channel(source, name) for source in self.description.incoming(name)]
        return [c for c in into if self.queues[c] and isinstance(self.queues[c][0], Batch)]

    def possible(self) -> list[Callable[[], None]]:
        """Return everything that could happen next."""
        found: list[Callable[[], None]] = []
        for name in self.runners:
            found += [partial(self.act, name), partial(self.initiate, name)]
            if len(channels := self.ready(name)) > 1:
                found.append(partial(self.deliver, *channels))
        return found + [partial(self.deliver, c) for c, queue in self.queues.items() if queue]

    def run(self, schedule: Iterable[int]) -> None:
        """Let something happen for each number, then deliver everything."""
        for number in schedule:
            choices = self.possible()
            choices[number % len(choices)]()
        while busy := [channel for channel, queue in self.queues.items() if queue]:
            self.deliver(busy[0])

    def prove(self, snapshot: Snapshot) -> Equivalent:
        """Prove what this system recorded."""
        return prove(self.trace, snapshot, self.topology, self.start, contents=self.contents)

    def _happened(
        self, name: str, handler: str, accepted: tuple[MessageId, ...], sent: list[Sent]
    ) -> None:
        ids = []
        for target, encoded in sent:
            channel = Channel(name, target)
            self.sent[channel] += 1
            self.queues[channel].append(Batch.of(self.sent[channel], [encoded]))
            ids.append(MessageId(channel, self.sent[channel]))
            self.contents[ids[-1]] = encoded
            self.recorders[name].sent(target, self.sent[channel])
        self.steps.append(Event(name, handler, handler, accepted, tuple(ids)))

    def _record(
        self,
        name: str,
        snapshot: SnapshotId,
        source: str | None,
        step: Callable[[Recorder], list[Effect]],
    ) -> None:
        before = self.recorders[name].phase(snapshot)
        effects = step(self.recorders[name])
        self.steps.append(MarkerStep(name, snapshot, source, before is Phase.IDLE))
        for effect in effects:
            if isinstance(effect, SendMarker):
                self.queues[Channel(name, effect.target)].append(effect.marker)
            elif isinstance(effect, Recorded):
                outcome = self.assembler.add(effect.fragment, 0.0)
                assert not isinstance(outcome, Abandoned), outcome
                self.snapshots += [outcome] if outcome is not None else []
