"""EWD 864a: the white actions before the red ones, on random executions of real processes.

*EWD 864a*: E. W. Dijkstra, "The distributed snapshot of K. M. Chandy and L. Lamport", 1983.
"""

import re
from collections.abc import Callable
from itertools import count, groupby
from random import Random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Batch, Channel, Snapshot, SnapshotId
from stillframe.process import every
from stillframe.protocol.equivalent import _coloured, _interchange, equivalent, interchanges, prove
from stillframe.topology import Topology
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Position, Trace
from tests.protocol.paying import Account, System, Transfer

THREE = Topology.mesh({"P1": Account(), "P2": Account(), "P3": Account()})
SCHEDULES = st.lists(st.integers(0, 2**16), max_size=40)


def colours(trace: Trace, cut: Cut) -> dict[Position, bool]:
    """Return for every event of a trace, in its order, whether it is white."""
    return {p: p.index <= cut[trace.index_of[p.process]] for p, _ in trace.positions()}


@given(SCHEDULES, SCHEDULES)
def test_every_snapshot_lies_between_white_and_red(first: list[int], second: list[int]) -> None:
    """EWD 864a: the snapshot state is that between the white actions and the red ones of an
    equivalent computation; also in an epoch that began with a recorded state."""
    system = System(THREE)
    system.initiate("P1")
    system.run(first)
    for snapshot in system.snapshots:
        system.prove(snapshot)
    begun = System(THREE, system.snapshots[-1].state)
    begun.run(second)
    for snapshot in begun.snapshots:
        result = begun.prove(snapshot)
        cut = begun.trace.cut_of(snapshot.id)
        assert len(result.white) == sum(cut)
        assert len(result.red) == sum(begun.trace.end) - sum(cut)


@given(SCHEDULES)
def test_each_interchange_takes_one_inversion_away(schedule: list[int]) -> None:
    """EWD 864a: a red action and the white one right behind it are interchanged; each interchange
    lowers the number of inversions by one, and with none left all white actions come first."""
    system = System(THREE)
    system.run([*schedule, 1])
    trace = system.trace
    for snapshot in system.snapshots:
        is_white = colours(trace, trace.cut_of(snapshot.id))
        order = list(is_white)
        brute = sum(
            not is_white[first] and is_white[second]
            for index, first in enumerate(order)
            for second in order[index:]
        )
        left = []
        for step in interchanges(trace, trace.cut_of(snapshot.id)):
            index = order.index(step.red)
            assert order[index + 1] == step.white
            assert (is_white[step.red], is_white[step.white]) == (False, True)
            order[index : index + 2] = step.white, step.red
            left.append(step.inversion_count)
        result = equivalent(trace, trace.cut_of(snapshot.id))
        assert left == list(reversed(range(brute)))
        assert result.inversion_count == result.interchange_count == brute
        assert list(result.positions) == order


def test_chance_meets_what_matters() -> None:
    """Sometimes: messages were caught, snapshots overlapped, an action accepted several messages,
    and the order had to be changed; otherwise the tests above would show little."""
    caught = overlapped = joint = reordered = 0
    for seed in range(20):
        chance = Random(seed)
        system = System(THREE)
        system.run(chance.choices(range(2**16), k=40))
        caught += sum(snapshot.state.message_count for snapshot in system.snapshots)
        joint += sum(isinstance(s, Event) and len(s.accepted) > 1 for s in system.steps)
        reordered += sum(system.prove(s).inversion_count > 0 for s in system.snapshots)
        marks = [s.snapshot for s in system.steps if isinstance(s, MarkerStep) and s.is_cut]
        overlapped += len(list(groupby(marks))) > len(set(marks))
    assert min(caught, overlapped, joint, reordered) > 10


def caught() -> tuple[System, Snapshot]:
    """Return a system and its snapshot, in which messages are on P1->P2, P3->P1 and P3->P2."""
    system = System(THREE)
    system.act("P3")
    system.deliver(Channel("P3", "P2"))
    system.act("P1")
    system.initiate("P2")
    system.act("P2")
    system.deliver(Channel("P2", "P3"))
    system.deliver(Channel("P1", "P3"))
    system.run([])
    (snapshot,) = system.snapshots
    return system, snapshot


def with_channel(snapshot: Snapshot, source: str, target: str, **changes: object) -> Snapshot:
    """Return `snapshot` with something else about a channel."""
    channels = tuple(
        replace(state, **changes) if state.channel == Channel(source, target) else state
        for state in snapshot.state.channels
    )
    return replace(snapshot, state=replace(snapshot.state, channels=channels))


def with_balance(snapshot: Snapshot, name: str, balance: int) -> Snapshot:
    """Return `snapshot` with another balance of a process."""
    processes = tuple(
        replace(
            s,
            encoded=msgspec.msgpack.encode(
                msgspec.msgpack.decode(s.encoded) | {"balance": balance}
            ),
        )
        if s.process == name
        else s
        for s in snapshot.state.processes
    )
    return replace(snapshot, state=replace(snapshot.state, processes=processes))


def one(amount: int, first: int = 1, times: int = 1) -> tuple[Batch, ...]:
    """Return a batch of `times` transfers."""
    return (Batch.of(first, [msgspec.msgpack.encode(Transfer(amount))] * times),)


@pytest.mark.parametrize(
    ("corrupt", "where", "recorded", "replayed"),
    [
        (
            lambda s: with_balance(s, "P2", 101),
            "process P2",
            "Account {'balance': 101}",
            "Account {'balance': 102}",
        ),
        (
            lambda s: with_channel(s, "P1", "P2", batches=(), received_count=1),
            "channel P1->P2",
            "1 sent and 1 received",
            "1 sent and 0 received",
        ),
        (
            lambda s: with_channel(s, "P1", "P2", batches=one(3, times=2), sent_count=2),
            "channel P1->P2",
            "2 sent and 0 received",
            "1 sent and 0 received",
        ),
        (
            lambda s: with_channel(s, "P1", "P2", batches=one(30)),
            "channel P1->P2, message 1",
            "['Transfer', 30]",
            "['Transfer', 3]",
        ),
    ],
    ids=["balance", "dropped", "doubled", "amount"],
)
def test_a_corrupted_snapshot_is_found(
    corrupt: Callable[[Snapshot], Snapshot], where: str, recorded: str, replayed: str
) -> None:
    """A snapshot that is not the state between the colours is refused, with what is wrong in it."""
    system, snapshot = caught()
    assert system.prove(snapshot).inversion_count > 0
    failure = f"snapshot {snapshot.id} is not the state between its white and its red events: "
    difference = f"{where}: recorded as {recorded}, replayed as {replayed}"
    with pytest.raises(NotConsistent, match=re.escape(failure + difference)):
        system.prove(corrupt(snapshot))


def test_a_snapshot_whose_books_do_not_balance_is_refused() -> None:
    """A message that was dropped without touching the counts shows in the books already."""
    system, snapshot = caught()
    named = "channel P1->P2: 1 sent - 0 received = 1, but 0 messages were recorded"
    with pytest.raises(NotConsistent, match=named):
        system.prove(with_channel(snapshot, "P1", "P2", batches=()))


@given(SCHEDULES, st.sampled_from(["P1", "P2", "P3"]), st.booleans())
def test_a_cut_that_moved_by_one_event_is_found(
    schedule: list[int], name: str, is_earlier: bool
) -> None:
    """A snapshot fits no other cut: with one event more or less before it, it is refused."""
    system = System(THREE)
    system.run([0, 6, 12, 18, *schedule, 1])
    snapshot = system.snapshots[-1]
    at = next(
        index
        for index, step in enumerate(system.steps)
        if isinstance(step, MarkerStep) and step.is_cut
        if (step.process, step.snapshot) == (name, snapshot.id)
    )
    towards = range(at - 1, -1, -1) if is_earlier else range(at + 1, len(system.steps))
    events = [i for i in towards if isinstance(e := system.steps[i], Event) and e.process == name]
    assume(events)
    system.steps.insert(events[0], system.steps.pop(at))
    with pytest.raises(NotConsistent):
        system.prove(snapshot)


def lecture(order: str) -> Trace:
    """Return the lecture's example in some order: messages B to F, I to G, H to D, E to K."""
    process_of = {**dict.fromkeys("ABCDE", "P1"), **dict.fromkeys("FGH", "P2")}
    messages = {
        "BF": MessageId(Channel("P1", "P2"), 1),
        "IG": MessageId(Channel("P3", "P2"), 1),
        "HD": MessageId(Channel("P2", "P1"), 1),
        "EK": MessageId(Channel("P1", "P3"), 1),
    }
    return Trace(
        ["P1", "P2", "P3"],
        [
            Event(
                process_of.get(label, "P3"),
                label,
                accepted=tuple(m for pair, m in messages.items() if pair[1] == label),
                sent=tuple(m for pair, m in messages.items() if pair[0] == label),
            )
            for label in order
        ],
    )


def labels(trace: Trace, *positions: Position) -> str:
    """Return the labels of some events, in one string."""
    return "".join(trace.event(position).label for position in positions)


def test_the_lectures_example_step_by_step() -> None:
    """EWD 864a: white are A B, F G H and I; the others are red. From A B C F I J G H D E K, with
    six inversions, each white action moves to the front past the red ones before it."""
    trace, cut = lecture("ABCFIJGHDEK"), (2, 3, 1)
    told = [
        (labels(trace, step.red, step.white), step.inversion_count)
        for step in interchanges(trace, cut)
    ]
    assert told == [("CF", 5), ("CI", 4), ("JG", 3), ("CG", 2), ("JH", 1), ("CH", 0)]
    result = equivalent(trace, cut)
    assert (labels(trace, *result.white), labels(trace, *result.red)) == ("ABFIGH", "CJDEK")
    assert (len(result.white), result.inversion_count, result.interchange_count) == (6, 6, 6)


def test_a_red_message_accepted_in_a_white_action_is_named() -> None:
    """EWD 864a: no white action accepts a red message. With P3's cut before I, the message from I
    is red and G, a white action, accepts it: that is why the cut is not consistent."""
    trace, cut = lecture("ABCFIJGHDEK"), (2, 3, 0)
    named = (
        "message P3->P2 #1 is red: P3 sent it in event P3#1 (I), after its cut; and P2 accepted it "
        "in event P2#2 (G), a white action, before its own: the cut is not consistent"
    )
    for reorder in (equivalent, interchanges):
        with pytest.raises(NotConsistent, match=re.escape(named)):
            reorder(trace, cut)


def test_a_pair_that_does_not_commute_stops_the_interchanges() -> None:
    """EWD 864a: a red and a white neighbour can be interchanged because the white one does not
    accept what the red one sends; each pair is looked at, not only the cut."""
    trace = lecture("ABCFIJGHDEK")
    steps = _interchange(trace, _coloured(trace, (2, 3, 0)))
    assert [labels(trace, step.red, step.white) for step in (next(steps), next(steps))] == [
        "CF",
        "JG",
    ]
    named = "event P3#1 (I) and event P2#2 (G) cannot be interchanged: the second accepts message"
    with pytest.raises(NotConsistent, match=re.escape(named)):
        next(steps)


@pytest.mark.parametrize(("cut", "inversion_count"), [((0, 0, 0), 0), ((5, 3, 3), 0)])
def test_one_colour_needs_no_interchange(cut: Cut, inversion_count: int) -> None:
    """Where all events have one colour the order stays as it was."""
    trace = lecture("ABCFIJGHDEK")
    assert list(interchanges(trace, cut)) == []
    assert labels(trace, *equivalent(trace, cut).positions) == "ABCFIJGHDEK"
    assert equivalent(trace, cut).inversion_count == inversion_count


def test_a_cut_of_another_trace_is_refused() -> None:
    """A cut with a count that the trace does not have is a mistake of the caller."""
    for reorder in (equivalent, interchanges):
        with pytest.raises(UsageError, match="no cut has 4 events of P2"):
            reorder(lecture("ABCFIJGHDEK"), (2, 4, 1))


COUNTER = count(1)


class Moody(Account):
    """Does not always do the same: what it sends, keeps or leaves out depends on a counter."""

    @every(ms=0)
    def vary_message(self) -> None:
        """Send another amount each time: large enough that P1 sends something, too, or not."""
        self.send("P1", Transfer(next(COUNTER) % 2 * 100))

    @every(ms=0)
    def vary_amount(self) -> None:
        """Send another amount each time: nobody does anything else because of it."""
        self.send("P1", Transfer(-next(COUNTER)))

    @every(ms=0)
    def vary_state(self) -> None:
        """Keep another amount each time."""
        self.balance = next(COUNTER)

    @every(ms=0)
    def vary_sending(self) -> None:
        """Send something every other time."""
        if next(COUNTER) % 2:
            self.send("P1", Transfer(1))


def moody(action: str) -> System:
    """Return a system in which P2 took `action` before it recorded its state."""
    system = System(Topology.mesh({"P1": Account(), "P2": Moody(), "P3": Account()}))
    system.act("P2", action)
    system.initiate("P1")
    system.run([])
    return system


@pytest.mark.parametrize(
    ("action", "named"),
    [
        ("vary_message", r"event P2#1 \(vary_message\): the replay sends \['Transfer', \d+\] as "),
        ("vary_amount", r"message P2->P1 #1, but \['Transfer', -\d+\] was sent: process P2 is no"),
        (
            "vary_state",
            (
                r"is not a function of the messages that it accepts: process P2: recorded as Moody "
                r"\{'bal"
            ),
        ),
        ("vary_sending", r"event P2#1 \(vary_sending\): the replay sends .*: process P2, or one "),
    ],
)
def test_a_process_that_is_no_function_is_named(action: str, named: str) -> None:
    """A process that depends on something outside cannot be replayed, and the proof says which."""
    system = moody(action)
    with pytest.raises(NotConsistent, match=named):
        system.prove(system.snapshots[0])


def test_contents_need_not_be_known() -> None:
    """Without knowing what was sent, the two replays are compared with each other."""
    system = moody("vary_amount")
    with pytest.raises(NotConsistent, match=r"message P2->P1 #1, but .* was sent: process P2"):
        prove(system.trace, system.snapshots[0], system.topology)
    system, snapshot = caught()
    assert prove(system.trace, snapshot, THREE) == system.prove(snapshot)


def test_a_proof_needs_what_belongs_together() -> None:
    """A snapshot without a cut in the trace, and a fresh start where the epoch had none, are
    refused."""
    system, snapshot = caught()
    with pytest.raises(UsageError, match="snapshot P9-9 has no cut"):
        system.prove(replace(snapshot, id=SnapshotId("P9", 9)))
    begun = System(THREE, snapshot.state)
    begun.initiate("P1")
    begun.run([])
    assert begun.prove(begun.snapshots[0]).white
    named = r"event P1#1 \(restored\) restores P1->P2 #1, but the initial state has nothing"
    with pytest.raises(NotConsistent, match=named):
        prove(begun.trace, begun.snapshots[0], THREE)
