"""The page of an observation says who waits for whom, and what it leaves out."""

import msgspec

from stillframe.protocol.activities import Lock
from stillframe.protocol.calls import CallId, CallPlace, Observation, TimedOutCall
from stillframe.store.observations import ObservationManifest, StoredObservation, TimedOutCalls
from stillframe.watch.observation_document import (
    DISC_COUNT_MAX,
    EDGE_COUNT_MAX,
    ROW_COUNT_MAX,
    TEXT_CHARS_MAX,
    Row,
    Summary,
    deadlock_events,
    events_between,
    summarize,
)
from tests.watch.observed import AT, SECRET, TOOK_S, Call, crowd, observed, ring

NO_CALLS = TimedOutCalls({}, 0)
A, B, C = "bank-0000000a", "bank-0000000b", "vault-0000000c"


def stored(observation: Observation) -> StoredObservation:
    """Return an observation with its manifest, as it would be in a store."""
    number = observation.number
    manifest = ObservationManifest(
        number=number,
        initiated_at=AT + number,
        completed_at=AT + number + TOOK_S,
        is_exact=observation.is_exact,
        baseline=observation.baseline,
        instance_count=len(observation.fragments),
        open_count=sum(one.record.is_awaited for one in observation.calls),
        unresolved_count=sum(not one.record.is_awaited for one in observation.calls),
        partial=observation.partial,
        disconnected=observation.disconnected,
    )
    return StoredObservation(manifest, observation)


def summary_of(observation: Observation, timed_out: TimedOutCalls = NO_CALLS) -> Summary:
    """Return the summary of an observation, after a check that it holds no field of a body and no
    state."""
    summary = summarize(stored(observation), timed_out)
    assert SECRET not in msgspec.json.encode(summary.document).decode()
    return summary


def waits(document: Row) -> dict[tuple[str, str], Row]:
    """Return the edges of the graph, by the names of their ends."""
    graph = document["graph"]
    names = [name for name, _ in graph["processes"]]
    ends = [(names[caller], names[server]) for caller, server in graph["channels"]]
    assert len(set(ends)) == len(ends)
    return dict(zip(ends, graph["waits"], strict=True))


def test_an_edge_has_all_calls_between_two_instances() -> None:
    """How many, where they are, and since when the oldest has been open; a call that no instance
    has accepted leads to its address."""
    calls = [
        Call(A, B, 1, age_s=2.0),
        Call(A, B, 2, age_s=5.0),
        Call(A, B, 3, age_s=None),
        Call(A, None, 4, age_s=1.0),
        Call(A, B, 5, is_awaited=False),
    ]
    document = summary_of(observed(1, calls, others=[C])).document
    assert document["graph"]["processes"] == [
        ["127.0.0.1:8000", "address"],
        [A, "bank"],
        [B, "bank"],
        [C, "vault"],
    ]
    edges = waits(document)
    assert edges[A, B] == {
        "count": 3,
        "since": AT + 1 + TOOK_S - 5.0,
        "places": {"being served": 3},
        "is_in_ring": False,
    }
    assert edges[A, "127.0.0.1:8000"]["places"] == {"request in transit": 1}
    assert len(edges) == 2
    assert [one["call"] for one in document["calls"]["rows"]] == [f"{A}#{n}" for n in (2, 1, 4, 3)]
    (unresolved,) = document["unresolved"]["rows"]
    assert unresolved["known"] == f"was accepted by {B}, which still serves it"


def test_calls_that_timed_out_are_listed_although_the_observation_has_none() -> None:
    """The newest first, with the number of those that are left out or not kept."""
    listed = {
        CallId(A, number): TimedOutCall(
            *(1, "127.0.0.1:8000", "POST /pay", AT + number, CallPlace.ANSWERED, (B,), 409)
        )
        for number in range(1, ROW_COUNT_MAX + 2)
    }
    document = summary_of(observed(2, []), TimedOutCalls(listed, len(listed) + 5)).document
    newest, *others = document["timed_out"]["rows"]
    assert newest == {
        "call": f"{A}#{ROW_COUNT_MAX + 1}",
        "callee": B,
        "name": "POST /pay",
        "since": AT + ROW_COUNT_MAX + 1,
        "status": 409,
        "accepted": "yes",
        "known": f"was accepted by {B} and answered; the answer did not arrive",
    }
    assert (len(others), document["timed_out"]["left_out_count"]) == (ROW_COUNT_MAX - 1, 6)


def test_a_deadlock_is_in_the_graph_and_in_words() -> None:
    """With the earliest time-out; a call beside the ring is not of it."""
    found = summary_of(ring(3, [A, B, C], deadline=AT + 9))
    assert {ends for ends, edge in waits(found.document).items() if edge["is_in_ring"]} == {
        (A, B),
        (B, C),
        (C, A),
    }
    deadlock = found.document["deadlock"]
    assert deadlock["ends_at"] == AT + 9
    assert sorted(map(len, (deadlock["waits"]["rows"], found.document["graph"]["ring"]))) == [3, 3]
    assert {A, B, C} < set(deadlock["sentence"].split())
    assert summary_of(observed(1, [Call(A, B)])).document["deadlock"] is None


def test_an_address_is_no_instance_of_a_ring() -> None:
    """Even if it has the name of one."""
    both = observed(1, [Call(A, B, serves=CallId(B, 1)), Call(B, A, serves=CallId(A, 1))])
    lost = observed(1, [Call(A, None, 2, target=B)])
    calls = both.calls + lost.calls
    graph = summary_of(msgspec.structs.replace(both, calls=calls)).document["graph"]
    assert graph["processes"] == [[A, "bank"], [B, "bank"], [B, "address"]]
    assert [edge["is_in_ring"] for edge in graph["waits"]] == [True, True, False]
    assert graph["ring"] == [0, 1]


def test_a_large_system_is_shown_as_services() -> None:
    """Every part has a limit, and what is left out is counted."""
    found = summary_of(crowd(1, instance_count=300, call_count=900))
    graph = found.document["graph"]
    assert graph["is_by_service"]
    assert [kind for _, kind in graph["processes"]].count("10 instances") == 30
    edges = waits(found.document)
    assert len(edges) == EDGE_COUNT_MAX
    assert graph["edges_left_out_count"] > 0
    assert any(caller == server for caller, server in edges)
    assert all(sum(edge["places"].values()) == edge["count"] > 0 for edge in edges.values())
    for name, count in (("instances", 300), ("calls", 900)):
        part = found.document[name]
        assert len(part["rows"]) == ROW_COUNT_MAX
        assert part["left_out_count"] == count - ROW_COUNT_MAX
    assert len(found.document["calls"]["rows"][0]["name"]) == TEXT_CHARS_MAX
    assert len(msgspec.json.encode(found.document)) < 200_000


def test_of_many_services_those_with_the_most_calls_are_shown() -> None:
    """A deadlock is never left out."""
    names = [f"service{index}-{index:08x}" for index in range(100)]
    quiet = ring(1, [A, B, C])
    calls = [Call(name, name, n, age_s=1.0) for name in names for n in (1, 2, 3)]
    busy = observed(1, calls)
    both = msgspec.structs.replace(
        busy, calls=quiet.calls + busy.calls, fragments=quiet.fragments | busy.fragments
    )
    graph = summary_of(both).document["graph"]
    shown = [name for name, _ in graph["processes"]]
    assert len(shown) == DISC_COUNT_MAX
    assert {"bank", "vault"} < set(shown)
    assert len(graph["ring"]) == 2
    assert graph["discs_left_out_count"] == 102 - DISC_COUNT_MAX


def test_amounts_have_a_place() -> None:
    """Those of unresolved calls and of open ones are told apart; large ones are not rounded."""
    calls = [Call(A, None, 1), Call(A, None, 2, is_awaited=False)]
    (row,) = summary_of(observed(1, calls)).document["amounts"]["rows"]
    assert (row["in_open_calls"], row["in_unresolved_calls"], row["in_states"]) == (2, 2, 100)
    assert row["total"] == 104


def test_events_say_what_has_changed() -> None:
    """Once, not with each observation."""
    exact = stored(observed(1, [])).manifest
    partial = stored(observed(2, [], partial=("x never answers", "y", "z"))).manifest
    assert [one["sentence"] for one in events_between(exact, partial)] == [
        "observation 2 is partial: x never answers; y; and 1 more reason"
    ]
    assert events_between(partial, partial) == []
    (again,) = events_between(partial, exact)
    assert again["sentence"] == "observation 1 is exact"
    disconnected = msgspec.structs.replace(exact, disconnected=(A,))
    assert [one["sentence"] for one in events_between(exact, disconnected)] == [
        f"{A} was disconnected"
    ]
    calm, stuck = summary_of(observed(1, [])), summary_of(ring(2, [A, B]))
    assert [one["kind"] for one in deadlock_events(calm, stuck)] == ["deadlock"]
    assert [one["kind"] for one in deadlock_events(stuck, calm)] == ["begin"]
    assert deadlock_events(stuck, stuck) == deadlock_events(None, calm) == []


def test_tasks_of_one_instance_are_one_step_of_a_ring() -> None:
    """They wait for each other's locks; the waits name them all."""
    calls = [Call(A, B, serves=CallId(B, 1)), Call(B, A, serves=CallId("other", 1))]
    observation = observed(1, calls)
    fragment = observation.fragments[B]
    lock = Lock("vault", ("other#1",), (f"{A}#1",))
    state = msgspec.structs.replace(fragment.state, locks=(lock,))
    blocked = msgspec.structs.replace(fragment, state=state)
    found = summary_of(
        msgspec.structs.replace(observation, fragments=observation.fragments | {B: blocked})
    )
    deadlock = found.document["deadlock"]
    assert deadlock["sentence"] in {f"{a} waits for {b} waits for {a}" for a, b in ((A, B), (B, A))}
    assert len(deadlock["waits"]["rows"]) == 3
