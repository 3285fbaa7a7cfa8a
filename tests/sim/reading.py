"""What the tests of the simulator read: the text of a script, and a snapshot as plain values."""

import msgspec

from stillframe.model import Snapshot, SnapshotId
from stillframe.sim.world import World

LECTURE_SCRIPT = """\
P1: A B C D E
P2: F G H
P3: I J K
messages: B>F I>G H>D E>K
channels: mesh
"""

Holds = tuple[dict[str, list[str]], dict[str, list[str]]]


def snapshot_of(world: World, name: str) -> Snapshot:
    """Return the snapshot `name`, which was published in the last epoch."""
    outcome = world.epoch.outcomes[SnapshotId.parse(name)]
    assert isinstance(outcome, Snapshot), outcome
    return outcome


def holds(world: World, name: str) -> Holds:
    """Return what a snapshot of scripted processes holds: the events that each had done, and the
    messages on every channel, as ``sender>event``."""
    state = snapshot_of(world, name).state
    state.check_books()
    done = {s.process: msgspec.msgpack.decode(s.encoded)["done"] for s in state.processes}
    channels = {
        str(s.channel): [
            ">".join(msgspec.msgpack.decode(message)[1:])
            for batch in s.batches
            for message in batch.messages()
        ]
        for s in state.channels
    }
    return done, channels


def not_empty(held: Holds) -> dict[str, list[str]]:
    """Return the channels that held something."""
    return {channel: messages for channel, messages in held[1].items() if messages}
