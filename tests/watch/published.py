"""Stores with snapshots that no system has taken."""

import contextlib
from pathlib import Path

from stillframe import Topology
from stillframe.model import Channel, ChannelState, GlobalState, ProcessState, Snapshot, SnapshotId
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.calm import CalmAccount

PAIR = Topology({"A": CalmAccount(), "B": CalmAccount()}, [("A", "B")])
REFERENCE = "tests.watch.published:PAIR"
BEGAN_AT = 1_700_000_000.0


def new_store(directory: Path) -> Store:
    """Make a store for the snapshots of two accounts, open for writing."""
    store = Store.create(directory / "store", description=PAIR.description, reference=REFERENCE)
    store.raise_epoch(None)
    return store


def publish(store: Store, number: int, *, lost: int = 0) -> None:
    """Publish snapshot A-`number`, in which A has `lost` less than it should."""
    kind = CalmAccount.__name__
    codec = StateCodec(CalmAccount)
    states = [CalmAccount(1000 - number - lost), CalmAccount(1000 + number)]
    at = BEGAN_AT + number
    processes = tuple(
        ProcessState(name, kind, codec.capture(state))
        for name, state in zip("AB", states, strict=True)
    )
    channel = ChannelState(Channel("A", "B"), number, number, ())
    state = GlobalState(processes, (channel,))
    store.publish(Snapshot(SnapshotId("A", number), store.epoch, at, at + 0.5, state))


def a_store(directory: Path, count: int = 3) -> Path:
    """Make a store with so many snapshots, of a system that does not run; return where it is."""
    with contextlib.closing(new_store(directory)) as made:
        for number in range(1, count + 1):
            publish(made, number)
    return local(made.path)
