"""Executions to draw: the one that every lecture uses, and others by chance, with snapshots."""

import random

from hypothesis import strategies as st

from stillframe.model import Channel, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace

SNAPSHOT = SnapshotId("P1", 1)
BF = MessageId(Channel("P1", "P2"), 1)
IG = MessageId(Channel("P3", "P2"), 1)
HD = MessageId(Channel("P2", "P1"), 1)
EK = MessageId(Channel("P1", "P3"), 1)
TRIANGLE = [Channel(a, b) for a in ("P1", "P2", "P3") for b in ("P1", "P2", "P3") if a != b]

LABELS = ("", "A", "pay", "received the answer of everybody", "収支が合う", "</text><script>x")


def lecture() -> Trace:
    """P1 takes a snapshot after B; its marker is quick to P3 (after I) and slow to P2 (after H)."""
    return Trace(
        ["P1", "P2", "P3"],
        [
            Event("P1", "A"),
            Event("P1", "B", sent=(BF,)),
            MarkerStep("P1", SNAPSHOT, is_cut=True, targets=("P2", "P3")),
            Event("P3", "I", sent=(IG,)),
            MarkerStep("P3", SNAPSHOT, "P1", is_cut=True, targets=("P1", "P2")),
            Event("P2", "F", accepted=(BF,)),
            Event("P1", "C"),
            Event("P2", "G", accepted=(IG,)),
            Event("P2", "H", sent=(HD,)),
            MarkerStep("P1", SNAPSHOT, "P3"),
            MarkerStep("P2", SNAPSHOT, "P1", is_cut=True, targets=("P1", "P3")),
            MarkerStep("P2", SNAPSHOT, "P3"),
            Event("P1", "D", accepted=(HD,)),
            MarkerStep("P1", SNAPSHOT, "P2"),
            Event("P3", "J"),
            MarkerStep("P3", SNAPSHOT, "P2"),
            Event("P1", "E", sent=(EK,)),
            Event("P3", "K", accepted=(EK,)),
        ],
        TRIANGLE,
    )


class Chance:
    """Processes that do anything, over channels that keep order, with Chandy-Lamport snapshots."""

    def __init__(self, seed: int, process_count: int, labels: tuple[str, ...]) -> None:
        self._random = random.Random(seed)
        self._labels = labels
        self._names = [f"P{number}" for number in range(1, process_count + 1)]
        self._queues: dict[Channel, list[MessageId | SnapshotId]] = {
            Channel(source, target): [] for source in self._names for target in self._names
        }
        self._counts = dict.fromkeys(self._queues, 0)
        self._recorded: dict[SnapshotId, set[str]] = {}
        self.steps: list[Step] = []

    def run(self, step_count: int, snapshot_count: int) -> Trace:
        """Take so many steps, during which so many snapshots are initiated; return the trace."""
        due = sorted(self._random.randrange(max(1, step_count)) for _ in range(snapshot_count))
        for number in range(step_count):
            full = [channel for channel, queue in self._queues.items() if queue]
            if due and due[0] <= number:
                due.pop(0)
                process = self._random.choice(self._names)
                self._record(process, SnapshotId(process, len(self._recorded) + 1), None)
            elif full and self._random.random() < 0.6:
                self._deliver(self._random.choice(full))
            else:
                self._act(self._random.choice(self._names), ())
        channels = [channel for channel in self._queues if channel.source != channel.target]
        return Trace(self._names, self.steps, channels)

    def _deliver(self, channel: Channel) -> None:
        item = self._queues[channel].pop(0)
        if isinstance(item, SnapshotId):
            self._record(channel.target, item, channel.source)
        else:
            self._act(channel.target, (item,))

    def _act(self, process: str, accepted: tuple[MessageId, ...]) -> None:
        sent = []
        for target in self._random.sample(self._names, self._random.choice((0, 0, 1, 1, 1, 0))):
            channel = Channel(process, target)
            self._counts[channel] += 1
            sent.append(MessageId(channel, self._counts[channel]))
            self._queues[channel].append(sent[-1])
        label = self._random.choice(self._labels)
        self.steps.append(Event(process, label, accepted=accepted, sent=tuple(sent)))

    def _record(self, process: str, snapshot: SnapshotId, source: str | None) -> None:
        recorded = self._recorded.setdefault(snapshot, set())
        is_cut = process not in recorded
        recorded.add(process)
        targets = tuple(name for name in self._names if name != process) if is_cut else ()
        for target in targets:
            self._queues[Channel(process, target)].append(snapshot)
        self.steps.append(MarkerStep(process, snapshot, source, is_cut, targets))


def by_chance(
    seed: int,
    process_count: int,
    step_count: int,
    snapshot_count: int = 0,
    labels: tuple[str, ...] = LABELS,
) -> Trace:
    """Return the execution that `seed` gives."""
    return Chance(seed, process_count, labels).run(step_count, snapshot_count)


def traces(*, step_count_max: int = 60) -> st.SearchStrategy[Trace]:
    """Draw executions of 1 to 6 processes, with up to three snapshots."""
    return st.builds(
        by_chance,
        st.integers(0, 2**32),
        st.integers(1, 6),
        st.integers(0, step_count_max),
        st.integers(0, 3),
    )
