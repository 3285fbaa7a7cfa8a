"""Chandy and Lamport's paper, sentence by sentence, run with the real recorder.

*C&L*: K. M. Chandy and L. Lamport, "Distributed Snapshots: Determining Global States of Distributed
Systems", ACM TOCS 3(1), 1985. EWD 864a is in test_paper_ewd864a.py; which rule of which module each
test is about, in test_paper_rules.py.
"""

from itertools import pairwise

import msgspec
import pytest

from stillframe.model import Abandoned, Batch, Channel, Marker, Reason, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.restore import start_states
from tests.protocol import oracle
from tests.protocol.execution import Execution, What, messages_in

S = SnapshotId("p", 1)
C, C_BACK = Channel("p", "q"), Channel("q", "p")
BOTH_WAYS = [("p", "q"), ("q", "p")]


def on_the_way(system: Execution, channel: Channel) -> list[object]:
    """Return what is on `channel`: messages as they are, markers as snapshot ids."""
    return [
        item.snapshot if isinstance(item, Marker) else messages_in([item])[0]
        for item in system.queues[channel]
    ]


def test_marker_sending_rule() -> None:
    """C&L 3.2: "p sends one marker along c after p records its state and before p sends further
    messages along c", for each channel c directed away from p."""
    system = Execution([("p", "q"), ("p", "r"), ("q", "p")], {"p": 0, "q": 0, "r": 0})
    system.send("p", "q", "before")
    system.initiate(S)
    system.send("p", "q", "after")
    assert on_the_way(system, C) == ["before", S, "after"]
    assert on_the_way(system, Channel("p", "r")) == [S]
    assert on_the_way(system, C_BACK) == []


def test_a_process_sends_one_marker_on_each_channel() -> None:
    """C&L 3.2: "p sends one marker along c": also if it was asked to begin and markers came on all
    its channels, before or after."""
    pairs = [(a, b) for a in "pqr" for b in "pqr" if a != b]
    system = Execution(pairs, dict.fromkeys("pqr", 0))
    for process in "prp":
        system.initiate(S, process)
    system.drain()
    system.initiate(S, "q")
    markers = [e.channel for e in system.log if e.what is What.MARKER_SENT]
    assert sorted(map(str, markers)) == sorted(f"{a}->{b}" for a, b in pairs)


def test_marker_receiving_rule_when_the_state_is_not_recorded() -> None:
    """C&L 3.2: "if q has not recorded its state then begin q records its state; q records the state
    c as the empty sequence end"."""
    system = Execution(BOTH_WAYS, {"p": "P", "q": "Q"})
    system.send("p", "q", "before")
    system.initiate(S)
    system.send("p", "q", "after")
    system.deliver("p", "q")
    assert system.recorders["q"].phase(S) is Phase.IDLE
    system.deliver("p", "q")
    system.states["q"] = "changed later"
    system.drain()
    assert system.recorded_states(S) == {"p": "P", "q": "Q"}
    assert system.recorded_messages(S)[C] == []


def test_marker_receiving_rule_when_the_state_is_recorded() -> None:
    """C&L 3.2: "else q records the state of c as the sequence of messages received along c after
    q's state was recorded and before q received the marker along c"."""
    system = Execution(BOTH_WAYS, {"p": 0, "q": 0})
    for message in ("received before", "first", "second"):
        system.send("p", "q", message)
    system.deliver("p", "q")
    system.initiate(S, "q")
    system.initiate(S, "p")
    system.send("p", "q", "behind the marker")
    system.drain()
    assert system.recorded_messages(S) == {C: ["first", "second"], C_BACK: []}


def test_the_marker_has_no_effect_on_the_underlying_computation() -> None:
    """C&L 3.1: "The marker has no effect on the underlying computation"."""
    logs = []
    for with_snapshots in (True, False):
        system = Execution(BOTH_WAYS, {"p": 0, "q": 0}, lambda state, amount: state + amount)
        for number in range(5):
            if with_snapshots:
                system.initiate(SnapshotId("q", number))
            system.send("p", "q", number)
            system.send("q", "p", -number)
        system.drain()
        actions = [e for e in system.log if e.what in (What.SENT, What.RECEIVED)]
        by_process = sorted(actions, key=lambda e: e.process)
        told = [(e.process, e.what, e.channel, e.message) for e in by_process]
        logs.append((told, system.states))
    assert logs[0] == logs[1]


def test_the_channel_must_keep_order() -> None:
    """C&L 2: "Channels are assumed ... to deliver messages in the order sent". Where a marker
    overtakes a message the recorded state is no global state, and the books say so."""
    system = Execution(BOTH_WAYS, {"p": 0, "q": 0})
    system.send("p", "q", "overtaken")
    system.initiate(S)
    system.queues[C].reverse()
    system.drain()
    outcome = system.outcomes[S]
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.NOT_CONSISTENT
    assert "channel p->q: 1 sent - 0 received = 1, but 0 messages were recorded" in outcome.detail


def single_token() -> Execution:
    """Return the system of C&L, example 2.1: the token is in p; True means to possess it."""
    return Execution(BOTH_WAYS, {"p": True, "q": False}, lambda state, token: True)


def pass_token(system: Execution, source: str, target: str) -> None:
    """Let `source` send the token."""
    assert system.states[source], "a process sends the token only while it possesses it"
    system.states[source] = False
    system.send(source, target, "token")


def token_places(system: Execution) -> list[str]:
    """Return where the recorded global state shows tokens, in the words of C&L 2, example 2.1."""
    in_processes = [f"in-{p}" for p, has in system.recorded_states(S).items() if has]
    names = {C: "in-c", C_BACK: "in-c'"}
    caught = [names[c] for c, tokens in system.recorded_messages(S).items() for _ in tokens]
    return in_processes + caught


def test_the_token_is_caught_in_the_channel() -> None:
    """C&L 2, example 2.1: in the global state in-c neither process has the token. q records its
    state then, and the token is recorded as the state of c."""
    system = single_token()
    pass_token(system, "p", "q")
    system.initiate(S, "q")
    system.deliver("p", "q")
    system.drain()
    assert token_places(system) == ["in-c"]


def test_there_are_never_two_tokens_nor_none() -> None:
    """C&L 3.1, example 3.1: a recorded state with two tokens, or with none, "is unreachable from
    the initial global state in a single-token conservation system". Whoever initiates in whichever
    global state, however the token moves while markers are on their way: there is one."""
    places: set[str] = set()
    for initiator in "pq":
        for passed_before in range(6):
            for choices in range(2**8):
                system = single_token()
                move_token(system, passed_before)
                system.initiate(S, initiator)
                for bit in range(8):
                    move(system, prefers_token=bool(choices >> bit & 1))
                system.drain()
                (place,) = token_places(system)
                places.add(place)
    assert places == {"in-p", "in-q", "in-c", "in-c'"}


def move_token(system: Execution, count: int) -> None:
    """Let the token do its next `count` events: sent by p, received by q, sent by q, ..."""
    for step in range(count):
        source, target = ("p", "q") if step % 4 < 2 else ("q", "p")
        if step % 2:
            system.deliver(source, target)
        else:
            pass_token(system, source, target)


def move(system: Execution, *, prefers_token: bool) -> None:
    """Let a holder pass the token on, or let something arrive."""
    holders = [process for process, has in system.states.items() if has]
    busy = [channel for channel, queue in system.queues.items() if queue]
    if holders and (prefers_token or not busy):
        pass_token(system, holders[0], "q" if holders[0] == "p" else "p")
    elif busy:
        channel = busy[-1] if prefers_token else busy[0]
        system.deliver(channel.source, channel.target)


def test_the_four_equations() -> None:
    """C&L 3.1, (1) to (4): n = n', m = m', n' >= m' and n >= m; the state of c "must be the
    (m' + 1)st, ..., n'th messages sent by p along c"."""
    caught = 0
    for _, snapshot, truth in oracle.random_snapshots(30):
        for state in snapshot.state.channels:
            n, m = len(truth.sent[state.channel]), len(truth.received[state.channel])
            assert (state.sent_count, state.received_count) == (n, m)
            assert n >= m
            recorded = [k for b in state.batches for k in range(b.first, b.last + 1)]
            assert recorded == list(range(m + 1, n + 1))
            caught += len(recorded)
    assert caught > 100


CHAIN = [("a", "b"), ("b", "c")]


@pytest.mark.parametrize(
    ("initiators", "recording"),
    [("a", "abc"), ("b", "bc"), ("c", "c"), ("ac", "abc"), ("cb", "bc"), ("abc", "abc")],
)
def test_termination_needs_a_path_from_an_initiator(initiators: str, recording: str) -> None:
    """C&L 3.3: "Termination in finite time is ensured if for every process q: q spontaneously
    records its state or there is a path from a process p, which spontaneously records its state,
    to q"; "the algorithm can be initiated by one or more processes"."""
    system = Execution(CHAIN, dict.fromkeys("abc", 0))
    snapshot = SnapshotId(initiators[0], 1)
    for process in initiators:
        system.initiate(snapshot, process)
    system.drain()
    touched = [p for p, r in system.recorders.items() if r.phase(snapshot) is not Phase.IDLE]
    assert touched == list(recording)
    assert (snapshot in system.outcomes) == (recording == "abc")


@pytest.mark.parametrize("initiator", "abcd")
def test_termination_on_a_strongly_connected_graph(initiator: str) -> None:
    """C&L 3.3: "if the graph is strongly connected and at least one process spontaneously records
    its state, then all processes will record their states in finite time"."""
    ring = [*pairwise("abcd"), ("d", "a")]
    system = Execution(ring, dict.fromkeys("abcd", 0))
    snapshot = SnapshotId(initiator, 1)
    system.initiate(snapshot)
    system.drain()
    assert {r.phase(snapshot) for r in system.recorders.values()} == {Phase.RECORDED}
    assert snapshot in system.outcomes


def test_the_recorded_states_are_assembled_to_the_global_state() -> None:
    """C&L 3.3: "The recorded process and channel states must be collected and assembled to form the
    recorded global state", which (C&L 2) is the set of the states of all processes and channels:
    as long as one is missing there is none."""
    system = Execution([*CHAIN, ("c", "a")], {"a": "A", "b": "B", "c": "C"})
    system.send("c", "a", "on its way")
    system.initiate(S, "a")
    system.deliver("a", "b")
    system.deliver("b", "c")
    assert {process for _, process in system.fragments} == {"b", "c"}
    assert (system.outcomes, system.assembler.missing(S)) == ({}, ("a",))
    system.drain()
    assert system.recorded_states(S) == {"a": "A", "b": "B", "c": "C"}
    assert {str(c): messages for c, messages in system.recorded_messages(S).items()} == {
        "a->b": [],
        "b->c": [],
        "c->a": ["on its way"],
    }


def nondeterministic() -> Execution:
    """Return the system of C&L, example 2.2: p: A -> B sends M, B -> A receives M'; q: C -> D sends
    M', D -> C receives M."""
    return Execution(BOTH_WAYS, {"p": "A", "q": "C"}, lambda state, _: {"B": "A", "D": "C"}[state])


def global_state(system: Execution) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """Return the states of p, q, c and c' as they are now; markers are no part of it."""
    c, c_back = (
        tuple(
            message for item in queue if isinstance(item, Batch) for message in messages_in([item])
        )
        for queue in (system.queues[C], system.queues[C_BACK])
    )
    return system.states["p"], system.states["q"], c, c_back


def test_the_recorded_state_need_not_have_occurred() -> None:
    """C&L 4, figures 7 and 8: "the global state S* recorded by the algorithm is not identical to
    any of the global states S0, S1, S2, S3 that occurred in the computation"."""
    system = nondeterministic()
    occurred = [global_state(system)]
    system.initiate(S)
    system.states["p"] = "B"
    system.send("p", "q", "M")
    occurred.append(global_state(system))
    system.states["q"] = "D"
    system.send("q", "p", "M'")
    occurred.append(global_state(system))
    system.deliver("q", "p")
    occurred.append(global_state(system))
    assert occurred == [
        ("A", "C", (), ()),
        ("B", "C", ("M",), ()),
        ("B", "D", ("M",), ("M'",)),
        ("A", "D", ("M",), ()),
    ]
    system.deliver("p", "q")
    system.deliver("q", "p")
    states, messages = system.recorded_states(S), system.recorded_messages(S)
    recorded = (states["p"], states["q"], tuple(messages[C]), tuple(messages[C_BACK]))
    assert recorded == ("A", "D", (), ("M'",))
    assert recorded not in occurred


def test_the_recorded_state_can_be_reached_and_left() -> None:
    """C&L 4, example 4.1: interchange "p sends M", a postrecording event, and "q sends M'", a
    prerecording one, and the recorded state lies between: S0 leads to it, and it leads to S3."""
    system = nondeterministic()
    system.states["q"] = "D"
    system.send("q", "p", "M'")
    assert global_state(system) == ("A", "D", (), ("M'",))
    system.states["p"] = "B"
    system.send("p", "q", "M")
    system.deliver("q", "p")
    assert global_state(system) == ("A", "D", ("M",), ())


def test_a_system_that_begins_in_the_recorded_state_can_reach_the_same_end() -> None:
    """C&L 4: the global state in which the algorithm ends can be reached from S*. A restore begins
    with S*, and what happened after the cuts can happen then: what is on the channels comes first,
    and what is sent goes on with the next number."""
    caught = 0
    for system, snapshot, truth in oracle.random_snapshots(30):
        starts = start_states(snapshot, system.description)
        balances = {p: msgspec.msgpack.decode(start.encoded) for p, start in starts.items()}
        sent_counts: dict[Channel, int] = {}
        on_the_way: dict[Channel, list[int]] = {}
        for process, start in starts.items():
            sent_counts |= {Channel(process, t): count for t, count in start.sent_counts.items()}
            for record in start.incoming:
                on_the_way[Channel(record.source, process)] = messages_in(record.batches)
        assert oracle.replay(balances, truth.red, on_the_way) == (system.states, {})
        for event in truth.red:
            if event.what is What.SENT and event.channel is not None:
                sent_counts[event.channel] += 1
                assert event.number == sent_counts[event.channel]
        caught += sum(map(len, on_the_way.values()))
    assert caught > 100
