"""Observations of simulated services: no seed shows a wrong one, every order of a small system
neither, and rules with a mistake are found."""

from collections import Counter
from collections.abc import Collection
from functools import cache, partial

import pytest

from stillframe.errors import NotConsistent
from stillframe.protocol.calls import KEPT_COUNT_MAX, Collector, Instance
from stillframe.sim.service_judge import OUTSIDE, WrongObservation
from stillframe.sim.services import Services, ServicesConfig, explore_services, run_services
from tests.nightly import Figure, by_night, seeds
from tests.sim import service_mutants

STEP_COUNT = 600
PLAIN: frozenset[str] = frozenset()
LOSSES = frozenset({"stop", "lose", "double"})
DEATHS = LOSSES | {"kill", "disconnect"}
KINDS = {
    "plain": ServicesConfig(),
    "losses": ServicesConfig(faults=LOSSES),
    "deaths": ServicesConfig(faults=DEATHS, started_count_max=2),
    "retirements": ServicesConfig(
        faults=DEATHS,
        started_count_max=4,
        weights={"kill": 0.01, "disconnect": 0.005, "retire": 0.3, "hear": 0.4, "collect": 0.6},
    ),
    "starts": ServicesConfig(faults=LOSSES, started_count_max=3),
    "strangers": ServicesConfig(
        faults=DEATHS | {"restart"},
        started_count_max=4,
        weights={"start": 0.1, "connect": 0.01, "kill": 0.01, "disconnect": 0, "retire": 0.3}
        | {"hear": 0.4, "collect": 0.6},
    ),
    "restarts": ServicesConfig(faults=DEATHS | {"restart"}, started_count_max=2),
    "outside": ServicesConfig(faults=DEATHS | {"outside"}, started_count_max=2),
    "lost headers": ServicesConfig(faults=LOSSES | {"cache", "unread"}),
    "overflow": ServicesConfig(faults=LOSSES, kept_count_max=4),
    "overflow and deaths": ServicesConfig(faults=DEATHS, started_count_max=3, kept_count_max=3),
    "overflow of streams": ServicesConfig(has_streams=True, faults=LOSSES, kept_count_max=2),
    "streams": ServicesConfig(has_streams=True),
    "broken streams": ServicesConfig(has_streams=True, faults=DEATHS, started_count_max=2),
    "lost streams": ServicesConfig(has_streams=True, faults=LOSSES),
    "three": ServicesConfig(services={"A": 2, "B": 2, "C": 1}, faults=LOSSES),
    "goodbyes": ServicesConfig(
        faults=LOSSES | {"leave"}, started_count_max=4, is_durable=True, weights={"leave": 0.02}
    ),
    "goodbyes in memory": ServicesConfig(
        faults=LOSSES | {"leave"}, started_count_max=4, weights={"leave": 0.02}
    ),
    "goodbyes and deaths": ServicesConfig(
        faults=DEATHS | {"leave", "rebase", "restart"},
        started_count_max=6,
        is_durable=True,
        weights={"start": 0.05, "rebase": 0.3},
    ),
    "goodbyes of streams": ServicesConfig(
        has_streams=True,
        faults=LOSSES | {"leave", "kill", "rebase"},
        started_count_max=4,
        is_durable=True,
        weights={"leave": 0.02, "kill": 0.008, "start": 0.05, "rebase": 0.5},
    ),
    "returns": ServicesConfig(
        faults=LOSSES | {"leave", "settle"},
        started_count_max=4,
        is_durable=True,
        weights={"leave": 0.01, "stop": 0.2, "lose": 0.2},
    ),
    "returns and deaths": ServicesConfig(
        faults=DEATHS | {"leave", "rebase", "restart", "settle"},
        started_count_max=6,
        is_durable=True,
        weights={"start": 0.05, "rebase": 0.3, "stop": 0.2, "lose": 0.1},
    ),
    "returns of streams": ServicesConfig(
        has_streams=True,
        faults=LOSSES | {"leave", "kill", "rebase", "settle"},
        started_count_max=4,
        is_durable=True,
        weights={"kill": 0.008, "start": 0.05, "rebase": 0.5, "stop": 0.2},
    ),
}
SEED_COUNT = 15


def seeds_of(kind: str) -> range:
    """Return the seeds of a kind: a fixed range, and at night a longer one from a fresh seed."""
    (first,) = seeds(f"calls, {kind}", night=1) or (1,)
    return range(first, first + by_night(100 * SEED_COUNT, check=SEED_COUNT))


def check_places(world: Services, seen_next: Collection[str] = ()) -> None:
    """Check whether listed calls were accepted. The next observation may find out more of those
    that instances `seen_next` have accepted."""
    for call, one in world.collector.ledger.timed_out.items():
        accepted_by = {accepted.instance for accepted in world.judge.calls[call].acceptances}
        assert {*one.accepted_by} <= accepted_by
        assert one.was_accepted is not False or accepted_by <= {*seen_next}


def check_list(world: Services) -> None:
    """Check that the list of calls that timed out says what happened: each is there unless its
    caller has dropped it, and whether it was accepted is true, or unknown."""
    check_places(world)
    listed = world.collector.ledger.timed_out
    kept_count = world.config.kept_count_max
    for call, made in world.judge.calls.items():
        caller = world.instances[call.caller]
        if made.stopped_at and caller.is_alive and kept_count == KEPT_COUNT_MAX:
            assert call in listed or not caller.is_connected or made.target == OUTSIDE


@cache
def seen(kind: str) -> Counter[str]:
    """Run every seed of a kind to its end; return what was seen."""
    found: Counter[str] = Counter()
    for seed in seeds_of(kind):
        world = run_services(KINDS[kind], seed, STEP_COUNT)
        ledger = world.collector.ledger
        check_places(world, ledger.members | ledger.ends.keys())
        world.end()
        check_list(world)
        found += world.seen
        found["observations"] += len(world.observations)
        found["abandoned"] += len(world.abandoned)
    return found


@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_shows_a_wrong_observation(kind: str, figure: Figure) -> None:
    """Every cut is consistent, every call is where it really was, every total exact, and in the end
    nothing is kept."""
    found = seen(kind)
    figure("observations", f"{found['observations']:,}")
    figure("exact totals", f"{found['exact totals']:,}")
    assert found["observations"] > SEED_COUNT


EXPECTED = {
    "plain": ["request in transit", "being served", "answer in transit", "exact totals"],
    "losses": ["request in transit", "being served", "answer in transit", "doubled", "late"],
    "deaths": ["kill", "disconnect", "retire", "abandoned", "unknown", "complete", "partial"],
    "retirements": [
        "kill",
        "retire",
        "unknown",
        "complete",
        "request in transit",
    ],
    "starts": ["start", "connect", "partial", "exact totals"],
    "strangers": ["strangers retired", "connect", "unknown", "complete"],
    "restarts": ["restart", "unknown", "complete", "exact totals"],
    "outside": ["hidden", "outside", "close", "partial"],
    "lost headers": ["cache", "partial", "complete"],
    "overflow": ["partial", "unknown", "complete"],
    "overflow and deaths": ["partial", "unknown", "complete", "kill", "retire", "orphans"],
    "overflow of streams": ["partial", "complete", "messages lost"],
    "streams": ["exact totals", "pass", "messages in transit"],
    "broken streams": ["unknown", "messages in transit"],
    "lost streams": ["exact totals", "messages in transit", "messages lost"],
    "three": ["exact totals", "doubled", "duplicates"],
    "goodbyes": ["exact totals after goodbyes", "late", "doubled"],
    "goodbyes in memory": ["exact totals after goodbyes", "late", "doubled"],
    "goodbyes and deaths": ["exact totals after goodbyes", "exact since a decision", "orphans"],
    "goodbyes of streams": ["exact totals after goodbyes", "exact since a decision"],
    "returns": ["given back", "spent twice", "exact totals", "late", "doubled"],
    "returns and deaths": ["given back", "spent twice", "given back in vain", "exact totals"],
    "returns of streams": ["settle", "exact totals", "late"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_must_be_judged_happens(kind: str) -> None:
    """A judge that never sees a lost answer would not know one."""
    assert [what for what in EXPECTED[kind] if not seen(kind)[what]] == []


def small(*faults: str, replicas: int = 1, calls: int = 1, fault_count: int = 1) -> ServicesConfig:
    """Return a system in which A calls B while one observation is taken."""
    return ServicesConfig(
        services={"A": 1, "B": replicas},
        call_counts={"A": calls, "B": 0},
        observation_count_max=1,
        faults=frozenset(faults),
        fault_count_max=fault_count,
    )


@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize(
    ("config", "history_count"),
    [
        (small(), 922),
        (small("stop", "lose", fault_count=2), 1704),
        (small("cache"), 1037),
        *by_night(
            [
                (small(replicas=2), 11188),
                (small(calls=2), 119933),
                (small("kill"), 7275),
                (small("disconnect"), 15887),
                (small("double"), 30124),
                (small("leave", fault_count=2), 8917),
            ],
            check=[],
        ),
    ],
    ids=[
        "one call",
        "losses",
        "another answer",
        *by_night(
            ["replicas", "two calls", "death", "disconnection", "copy", "goodbyes"], check=[]
        ),
    ],
)
def test_no_order_of_a_small_system_shows_a_wrong_observation(
    config: ServicesConfig, history_count: int
) -> None:
    """The number of histories shows that none is left out."""
    assert explore_services(config) == history_count


MUTANTS: dict[type[Instance] | type[Collector], str] = {
    service_mutants.RequestsWithoutColour: "plain",
    service_mutants.AnswersWithoutColour: "plain",
    service_mutants.CapturesBehindRequests: "plain",
    service_mutants.CapturesBehindAnswers: "plain",
    service_mutants.OldColour: "plain",
    service_mutants.AnswersNotKept: "plain",
    service_mutants.UnresolvedNotKept: "losses",
    service_mutants.GapsAcknowledged: "losses",
    service_mutants.DeathsUnnoticed: "retirements",
    service_mutants.AnswersNeverDropped: "losses",
    service_mutants.CallsNeverDropped: "losses",
    service_mutants.ReturnsUnnoticed: "deaths",
    service_mutants.StrangersUnnoticed: "strangers",
    service_mutants.StrangersForgotten: "strangers",
    service_mutants.SettledAtOnce: "losses",
    service_mutants.LateUnnoticed: "losses",
    service_mutants.StragglersTaken: "deaths",
    service_mutants.MessagesWithoutColour: "streams",
    service_mutants.CapturesBehindMessages: "streams",
    service_mutants.MessagesNotKept: "streams",
    service_mutants.MessagesDroppedTooSoon: "streams",
    service_mutants.LostMessagesForgotten: "streams",
    service_mutants.RequestsHeardOnly: "plain",
    service_mutants.AnswersOfOthersTaken: "lost headers",
    service_mutants.BareAnswersForgotten: "lost headers",
    service_mutants.RetirementsUnnoticed: "retirements",
    service_mutants.LostAnswersMissed: "losses",
    service_mutants.RetiredRemembered: "retirements",
    service_mutants.DroppedAnswersUnsaid: "overflow",
    service_mutants.DroppedCallsUnsaid: "overflow",
    service_mutants.RetiredUncounted: "retirements",
    service_mutants.NotAcceptedForEver: "deaths",
    service_mutants.SilentAtOnce: "retirements",
    service_mutants.LostForgotten: "losses",
    service_mutants.DuplicatesForgotten: "three",
    service_mutants.PartialsForgotten: "plain",
    service_mutants.DisconnectionsForgotten: "deaths",
    service_mutants.StillMissing: "deaths",
    service_mutants.ColoursIgnored: "restarts",
    service_mutants.NoGoodbye: "goodbyes",
    service_mutants.AcknowledgesAtIntervalsOnly: "goodbyes",
    service_mutants.ExactWhileUnknown: "goodbyes and deaths",
    service_mutants.RestForgotten: "goodbyes",
    service_mutants.JoinersTakePart: "goodbyes and deaths",
    service_mutants.BaselinesUnsaid: "goodbyes and deaths",
    service_mutants.ReturnsForgotten: "returns",
    service_mutants.ReturnsBookedTwice: "returns",
    service_mutants.StatementsNeverDropped: "returns",
    service_mutants.DoubleSpendsUnsaid: "returns",
    service_mutants.ReturnsDoubted: "returns and deaths",
}
MUTANT_SEED_COUNT = 400


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_in_the_rules_is_found(mutant: type[Instance] | type[Collector]) -> None:
    """By the judge, or by the check of the rules themselves."""
    make = (
        partial(Services, rules=mutant)
        if issubclass(mutant, Instance)
        else partial(Services, collector=mutant)
    )
    for seed in range(1, MUTANT_SEED_COUNT):
        try:
            run_services(KINDS[MUTANTS[mutant]], seed, STEP_COUNT, make).end()
        except (WrongObservation, NotConsistent):
            return
    pytest.fail(f"{mutant.__name__} was not found")
