"""A snapshot becomes start states: counts go on, and recorded messages come first."""

import msgspec
import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    IncomingRecord,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.restore import Start, start_states
from stillframe.topology import Description, Topology


class Ping(Message):
    """Anything."""


class Player(Process):
    """Takes pings."""

    def receive(self, channel: Channel, message: Ping) -> None:
        """Take it."""


class Judge(Player):
    """Another class."""


DESCRIPTION = Topology(
    {"A": Player(), "B": Player(), "C": Judge()}, [("A", "B"), ("B", "A"), ("A", "C"), ("C", "A")]
).description
TWO = Batch.of(4, [msgspec.msgpack.encode(Ping())] * 2)
ONE = Batch.of(6, [msgspec.msgpack.encode(Ping())])
SNAPSHOT = Snapshot(
    SnapshotId("A", 1),
    1,
    0.0,
    0.0,
    GlobalState(
        (
            ProcessState("A", "Player", b"a"),
            ProcessState("B", "Player", b"b"),
            ProcessState("C", "Judge", b"c"),
        ),
        (
            ChannelState(Channel("A", "B"), 6, 3, (TWO, ONE)),
            ChannelState(Channel("A", "C"), 9, 9, ()),
            ChannelState(Channel("B", "A"), 0, 0, ()),
            ChannelState(Channel("C", "A"), 5, 5, ()),
        ),
    ),
)


def without(description: Description, process: str) -> Description:
    """Return a description that lacks a process and its channels."""
    return msgspec.structs.replace(
        description,
        processes={name: kind for name, kind in description.processes.items() if name != process},
        channels=tuple(c for c in description.channels if process not in (c.source, c.target)),
    )


def test_each_process_gets_its_part() -> None:
    """Its class and state, its counts per target, and per source what came and what comes first."""
    assert start_states(SNAPSHOT, DESCRIPTION) == {
        "A": Start(
            "Player",
            b"a",
            {"B": 6, "C": 9},
            (IncomingRecord("B", 0, ()), IncomingRecord("C", 5, ())),
        ),
        "B": Start("Player", b"b", {"A": 0}, (IncomingRecord("A", 3, (TWO, ONE)),)),
        "C": Start("Judge", b"c", {"A": 5}, (IncomingRecord("A", 9, ()),)),
    }


def test_counts_of_both_ends_meet() -> None:
    """What a target has and will be given is what its source has sent: nothing lost or twice."""
    starts = start_states(SNAPSHOT, DESCRIPTION)
    for target, start in starts.items():
        for record in start.incoming:
            replayed = sum(batch.count for batch in record.batches)
            sent = starts[record.source].sent_counts[target]
            assert record.received_count + replayed == sent


def test_books_that_do_not_balance_are_refused() -> None:
    """No process is started from a snapshot that contradicts itself."""
    wrong = ChannelState(Channel("A", "B"), 6, 3, (TWO,))
    state = msgspec.structs.replace(SNAPSHOT.state, channels=(wrong, *SNAPSHOT.state.channels[1:]))
    with pytest.raises(NotConsistent, match="channel A->B"):
        start_states(msgspec.structs.replace(SNAPSHOT, state=state), DESCRIPTION)


def test_another_topology_is_refused_with_the_difference() -> None:
    """The error says which processes or channels only one of the two has."""
    processes = DESCRIPTION.processes
    fewer = tuple(c for c in DESCRIPTION.channels if c != Channel("A", "C"))
    replaced = msgspec.structs.replace
    for description, found in (
        (without(DESCRIPTION, "C"), r"only in the snapshot: process C \(Judge\)"),
        (
            replaced(DESCRIPTION, processes={**processes, "D": "Player"}),
            r"only in the topology: process D \(Player\)",
        ),
        (
            replaced(DESCRIPTION, processes={**processes, "B": "Judge"}),
            r"process B \(Judge\).*process B \(Player\)",
        ),
        (replaced(DESCRIPTION, channels=fewer), "only in the snapshot: channel A->C"),
    ):
        with pytest.raises(UsageError, match=found):
            start_states(SNAPSHOT, description)


def test_a_process_that_is_there_twice_is_refused() -> None:
    """Each process has one state."""
    twice = (SNAPSHOT.state.processes[0], *SNAPSHOT.state.processes)
    state = msgspec.structs.replace(SNAPSHOT.state, processes=twice)
    with pytest.raises(UsageError, match="different topology"):
        start_states(msgspec.structs.replace(SNAPSHOT, state=state), DESCRIPTION)
