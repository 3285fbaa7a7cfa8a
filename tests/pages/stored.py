"""Stores with the snapshots of a log of chance, and with what people should not put into one."""

import random
from dataclasses import field
from pathlib import Path

import msgspec

from stillframe import Channel, Message, Process, Topology
from stillframe.eventlog.segments import ACCEPTED, RECORDED, SENT
from stillframe.keyed import Keyed
from stillframe.model import Batch, ChannelState, GlobalState, ProcessState, Snapshot, SnapshotId
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store
from tests import eventlogs
from tests.eventlogs import Log, Row

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\u202eevil\u2066\x00\x1b[31m",
    "]]>&lt;&#0;'\"",
    "e\u0301" * 3000,
)


class Note(Message):
    """Says something."""

    text: str
    amount: int = 1


class Teller(Process):
    """Holds something."""

    balance: int = 100
    note: str = ""
    accounts: Keyed[str, int] = field(default_factory=Keyed)

    def receive(self, channel: Channel, message: Note) -> None:
        """Take it."""


CODEC = StateCodec(Teller)


def state_of(process: str, number: int = 0) -> ProcessState:
    """Return what a process recorded: the same for the same name and number."""
    chance = random.Random(f"{process} {number}")
    teller = Teller(balance=chance.randrange(1000), note=chance.choice(HOSTILE))
    teller.accounts["a"], teller.accounts[chance.choice(HOSTILE)] = number, 7
    return ProcessState(process, "Teller", CODEC.capture(teller))


def channel_of(source: str, target: str, sent: int, received: int) -> ChannelState:
    """Return a channel with the messages that these counts say."""
    held = [
        msgspec.msgpack.encode(Note(HOSTILE[number % len(HOSTILE)], number))
        for number in range(received + 1, sent + 1)
    ]
    batches = (Batch.of(received + 1, held),) if held else ()
    return ChannelState(Channel(source, target), sent, received, batches)


def written(seed: int, directory: Path) -> Log:
    """Write the log of an execution by chance, in parts and row groups by chance; return it."""
    chance = random.Random(seed)
    log = eventlogs.Execution(chance).log()
    eventlogs.write(log, directory, 1, chance)
    return log


def snapshots_of(log: Log) -> list[Snapshot]:
    """Return what a store would hold of the snapshots in a log, counted row by row."""
    names = {str(row.snapshot) for rows in log.values() for row in rows if row.snapshot}
    return [_snapshot(log, SnapshotId.parse(name)) for name in sorted(names)]


def _snapshot(log: Log, snapshot: SnapshotId) -> Snapshot:
    channels = []
    for source in sorted(log):
        for target in sorted({*log} - {source}):
            way = source, target
            sent = len(numbers_before(log[source], SENT, way, str(snapshot)))
            received = len(numbers_before(log[target], ACCEPTED, way, str(snapshot)))
            channels.append(channel_of(source, target, sent, received))
    states = tuple(state_of(process, snapshot.number) for process in sorted(log))
    at = float(snapshot.number)
    return Snapshot(snapshot, 1, at, at + 0.5, GlobalState(states, tuple(channels)))


def numbers_before(
    rows: list[Row], kind: str, channel: tuple[str, str], snapshot: str
) -> list[int]:
    """Return the messages of a channel in the rows before a cut."""
    found: list[int] = []
    for row in rows:
        if row.kind == RECORDED and row.snapshot == snapshot:
            return found
        if row.kind == kind and row.channel == channel:
            found.append(int(row.number or 0))
    raise AssertionError(f"{snapshot} has no cut")


def store_of(path: Path, snapshots: list[Snapshot]) -> Store:
    """Make a store of snapshots of tellers that are all connected; return it open for reading."""
    names = [state.process for state in snapshots[0].state.processes]
    store = Store.create(path, description=Topology.mesh({n: Teller() for n in names}).description)
    store.raise_epoch(None)
    for snapshot in snapshots:
        store.publish(snapshot)
    store.close()
    return Store.open(path)


def large(process_count: int, message_count: int) -> Snapshot:
    """Return a snapshot of many processes, all connected, with many messages on a fifth of the
    channels."""
    names = [f"P{number}" for number in range(process_count)]
    ways = [(a, b) for a in names for b in names if a != b]
    full = {*ways[::5]}
    channels = tuple(
        channel_of(a, b, 5 + (message_count // len(full) if (a, b) in full else 0), 5)
        for a, b in sorted(ways)
    )
    states = tuple(state_of(name) for name in sorted(names))
    return Snapshot(SnapshotId("P0", 1), 1, 1.0, 1.5, GlobalState(states, channels))
