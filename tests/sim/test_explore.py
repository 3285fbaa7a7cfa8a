"""Every interleaving of small systems: counted exactly, and checked against plain enumeration."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from stillframe.errors import ApplicationError, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.process import every
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.choices import parse_choice
from stillframe.sim.exploration import (
    Explored,
    Property,
    Run,
    SmallSystem,
    a_channel_caught_a_message,
    a_recorded_state_need_not_occur,
    cuts_are_consistent,
    explore,
    initiations,
    invariants_hold,
    replay,
    snapshots_are_published,
    snapshots_overlap,
)
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.systems import Account, Payment, pair
from stillframe.sim.world import StateView, World
from stillframe.topology import Topology

ALWAYS = {
    "promises": invariants_hold,
    "consistent": cuts_are_consistent,
    "published": snapshots_are_published,
}
SOMETIMES = {
    "caught": a_channel_caught_a_message,
    "never occurred": a_recorded_state_need_not_occur,
    "overlap": snapshots_overlap,
}
Recorders = type[Recorder] | type[LaiYangRecorder]
Counts = tuple[int, int, int, int]


def accounts(*names: str) -> dict[str, Account]:
    """Return accounts that pay everybody they have a channel to."""
    return {name: Account() for name in names}


def system(
    topology: Topology | None = None,
    pays: dict[str, int] | None = None,
    initiators: Sequence[tuple[str, str]] = (("P1", "P1-1"),),
    *,
    network: Network = Fifo,
    recorder: Recorders = Recorder,
) -> SmallSystem:
    """Return a small system of accounts: how often each pays, and who initiates which snapshot."""
    return SmallSystem(
        topology=topology or pair(),
        acts={name: ("pay",) * number for name, number in (pays or {}).items()},
        initiations=tuple(choices.Initiate(p, SnapshotId.parse(name)) for p, name in initiators),
        network=network,
        recorder=recorder,
    )


BOTH_PAY = {"P1": 1, "P2": 1}
S = SnapshotId("P1", 1)
P1_DOES = PAYS, INITIATES = choices.Act("P1", "pay"), choices.Initiate("P1", S)
Acts = dict[str, tuple[str | choices.Initiate, ...]]
TWO_INITIATORS = (("P1", "P1-1"), ("P2", "P2-2"))


def explored(small: SmallSystem) -> Explored:
    """Explore with all properties."""
    return explore(small, always=ALWAYS, sometimes=SOMETIMES)


def counts(found: Explored) -> Counts:
    """Return states, histories, finished histories, and runs."""
    return found.state_count, found.history_count, found.end_count, found.run_count


def test_acts_say_when_a_process_initiates_a_snapshot() -> None:
    """Before one of its actions and after another; a marker that comes first takes its place."""
    acts: Acts = {"P1": ("pay", "initiates P1-1", "pay"), "P2": (choices.Initiate("P2", S),)}

    def other_order(world: World) -> str:
        taken = [one.choice for one in world.epoch.taken if one.choice in P1_DOES]
        planned = [PAYS, INITIATES, PAYS] if INITIATES in taken else [PAYS, PAYS]
        return "" if taken == planned[: len(taken)] else str(taken)

    def initiated_by(*processes: str) -> Property:
        def look(world: World) -> str:
            taken = [one.choice for one in world.epoch.taken]
            by = {one.process for one in taken if isinstance(one, choices.Initiate)}
            return f"{S}" if world.epoch.published and by == {*processes} else ""

        return look

    small = SmallSystem(topology=pair(), acts=acts)
    seen = {who: initiated_by(*who.split()) for who in ("P1", "P2", "P1 P2")}
    found = explore(small, always={"order": other_order}, sometimes=seen)
    assert found.broken == {}
    assert found.seen.keys() == seen.keys()
    wrong: list[tuple[Acts, str]] = [
        ({"P2": (choices.Initiate("P1", S),)}, "P1 initiates P1-1 is among those of P2"),
        (acts, "P1 initiates P1-1 is in initiations, too"),
    ]
    for refused, why in wrong:
        with pytest.raises(UsageError, match=why):
            explore(
                SmallSystem(topology=pair(), acts=refused, initiations=initiations(pair(), "P1"))
            )


# --- plain enumeration: every schedule, one after the other, without any history


def following(small: SmallSystem, run: Run) -> Iterator[choices.Choice]:
    """Yield what the world accepts after `run`, tried one by one."""
    acted = [choice for choice in run if isinstance(choice, choices.Act)]
    tried: list[choices.Choice] = []
    for process, actions in small.acts.items():
        done = sum(choice.process == process for choice in acted)
        tried += [choices.Act(process, str(action)) for action in actions[done : done + 1]]
    tried += [initiation for initiation in small.initiations if initiation not in run]
    for channel in small.topology.description.channels:
        tried += [choices.Deliver((channel,), position) for position in range(4)]
        tried += [choices.Lose(channel)]
    step_count = len(replay(small, run).steps)
    for choice in tried:
        try:
            world = replay(small, (*run, choice))
        except UsageError:
            continue
        if isinstance(choice, choices.Initiate) and len(world.steps) == step_count:
            continue  # a marker was there before
        yield choice


def prefixes(small: SmallSystem, run: Run = ()) -> Iterator[tuple[Run, bool]]:
    """Yield every run, finished or not, and whether it is finished."""
    choice = None
    for choice in following(small, run):
        yield from prefixes(small, (*run, choice))
    yield run, choice is None


def plain_state(world: World) -> bytes:
    """Return all that a world holds now, in its own words."""
    epoch = world.epoch
    named = sorted(epoch.initiated)
    values = [
        [runner.capture() for runner in world.runners.values()],
        [memory.contents for memory in world.channels.values()],
        [str(name) for name in named],
        [[r.phase(s).name for s in named] for r in world.recorders.values()],
        [[r.progress(s) for s in named] for r in world.recorders.values()],
        [sorted(epoch.fragments.get(s, {}).items()) for s in named],
        [epoch.outcomes.get(s) for s in named],
        world.refusal,
    ]
    return msgspec.json.encode(values, enc_hook=repr)


TINY = {
    "nobody pays": (system(), (4, 4, 1, 1)),
    "both pay": (system(pays=BOTH_PAY), (63, 103, 16, 102)),
    "two snapshots": (system(initiators=TWO_INITIATORS), (18, 22, 3, 12)),
    "two snapshots, one pays": (
        system(pays={"P1": 1}, initiators=TWO_INITIATORS),
        (95, 130, 16, 173),
    ),
    "a chain, from its end": (
        system(
            Topology(accounts("P1", "P2"), [("P1", "P2")]),
            BOTH_PAY,
            (("P2", "P2-1"), ("P1", "P2-1")),
        ),
        (21, 84, 18, 98),
    ),
    "reordering": (system(pays={"P1": 1}, network=Reordering), (22, 24, 5, 10)),
    "reordering, with colours": (
        system(pays={"P1": 1}, network=Reordering, recorder=LaiYangRecorder),
        (21, 25, 5, 11),
    ),
    "lossy": (system(pays={"P1": 1}, network=Lossy), (33, 36, 14, 36)),
    "lossy, with colours": (
        system(pays={"P1": 1}, network=Lossy, recorder=LaiYangRecorder),
        (35, 38, 15, 38),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_runs_and_states_are_those_of_plain_enumeration(name: str) -> None:
    """As many runs as there are schedules, one by one; as many states as those pass through; and
    the figures are these."""
    small, expected = TINY[name]
    assert counts(explored(small)) == expected
    runs = list(prefixes(small))
    assert sum(is_end for _, is_end in runs) == expected[3]
    assert len({plain_state(replay(small, run)) for run, _ in runs}) == expected[0]


def was_never_present(world: World) -> str:
    """Return whether, in the very order of this run, the cut of a published snapshot was never the
    present: the property of a run that the one of histories stands for."""
    trace = world.epoch.trace(world.description)
    for name, outcome in world.epoch.outcomes.items():
        if not isinstance(outcome, Snapshot):
            continue
        counts = [0] * len(trace.processes)
        passed = [tuple(counts)]
        for position, _ in trace.positions():
            counts[trace.index_of[position.process]] += 1
            passed.append(tuple(counts))
        if trace.cut_of(name) not in passed:
            return str(name)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_what_is_found_is_what_some_run_shows_and_no_shorter_one(name: str) -> None:
    """Every property, always and sometimes, is found exactly if a run shows it, at its shortest."""
    small, _ = TINY[name]
    found = explored(small)
    lengths = {name: len(run) for name, (_, run) in (found.broken | found.seen).items()}
    looks = ALWAYS | SOMETIMES | {"never occurred": was_never_present}
    shown: dict[str, int] = {}
    for run, _ in prefixes(small):
        world = replay(small, run)
        for property_name, look in looks.items():
            if look(world):
                shown[property_name] = min(len(run), shown.get(property_name, len(run)))
    assert lengths == shown


RING = Topology.ring(accounts("P1", "P2", "P3"))
MESH = Topology.mesh(accounts("P1", "P2", "P3"))
FUNNEL = Topology(accounts("P1", "P2", "P3"), [("P1", "P3"), ("P2", "P3")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "expected", "seen"),
    [
        (system(pays={"P1": 2, "P2": 1}), (153, 377, 50, 944), {"caught", "never occurred"}),
        (
            system(pays=BOTH_PAY, initiators=TWO_INITIATORS),
            (510, 1048, 125, 4002),
            {"caught", "never occurred", "overlap"},
        ),
        (system(RING, {"P1": 1}), (19, 21, 3, 11), set()),
        (
            system(RING, {"P1": 1, "P2": 1, "P3": 1}),
            (297, 583, 52, 6752),
            {"caught", "never occurred"},
        ),
        (system(MESH), (38, 66, 6, 120), set()),
        (system(MESH, {"P2": 1}), (327, 743, 49, 11760), {"caught", "never occurred"}),
        (
            system(FUNNEL, {"P1": 1, "P2": 1, "P3": 1}, (("P1", "P1-1"), ("P2", "P1-1"))),
            (145, 762, 120, 10080),
            {"caught", "never occurred"},
        ),
    ],
    ids=["three payments", "two snapshots", "ring", "ring pays", "mesh", "mesh pays", "funnel"],
)
def test_on_channels_that_keep_order_everything_holds_in_every_run(
    small: SmallSystem, expected: Counts, seen: set[str]
) -> None:
    """Exactly so many states, histories and runs; and what must be possible is seen somewhere."""
    found = explored(small)
    assert counts(found) == expected
    assert found.broken == {}
    assert set(found.seen) == seen


def test_with_colours_order_makes_the_same_runs_as_with_markers() -> None:
    """On channels that keep order both rules cut in the same places."""
    small = system(pays=BOTH_PAY, recorder=LaiYangRecorder)
    found = explored(small)
    assert counts(found) == (63, 103, 16, 102)
    assert found.broken == {}


# --- where the assumptions do not hold


def test_chandy_lamport_fails_where_messages_overtake_markers() -> None:
    """The shortest run to an inconsistent cut, choice by choice: P1 initiates, P1 pays, the payment
    overtakes the marker, and the marker arrives."""
    found = explored(system(pays=BOTH_PAY, network=Reordering))
    assert counts(found) == (110, 200, 42, 210)
    what, run = found.broken["consistent"]
    assert run == tuple(
        map(
            parse_choice,
            ["P1 initiates P1-1", "P1 does pay", "deliver P1->P2 at 1", "deliver P1->P2"],
        )
    )
    assert what == (
        "the cut of snapshot P1-1 is not consistent: message P1->P2 #1 was accepted before it and "
        "sent after it"
    )


def test_lai_yang_holds_where_messages_overtake_markers() -> None:
    """The same system with colours: every property in every run; more runs, because a message's
    colour makes its target record earlier than a marker would."""
    found = explored(system(pays=BOTH_PAY, network=Reordering, recorder=LaiYangRecorder))
    assert counts(found) == (106, 209, 42, 231)
    assert found.broken == {}
    assert set(found.seen) == {"caught", "never occurred"}


@pytest.mark.parametrize(
    ("recorder", "expected"),
    [(Recorder, (177, 279, 95, 1056)), (LaiYangRecorder, (188, 293, 101, 1124))],
)
def test_where_messages_are_lost_a_snapshot_may_never_end_but_none_is_wrong(
    recorder: Recorders, expected: Counts
) -> None:
    """Losing the first marker is enough; what is published all the same keeps every promise."""
    found = explored(system(pays=BOTH_PAY, network=Lossy, recorder=recorder))
    assert counts(found) == expected
    assert set(found.broken) == {"published"}
    what, run = found.broken["published"]
    assert what == "snapshot P1-1: it never ends"
    assert list(map(str, run)) == ["P1 initiates P1-1", "lose P1->P2"]


def test_a_broken_property_has_a_shortest_run() -> None:
    """No run that breaks a property is shorter than the one that is given."""
    small = system(pays={"P1": 1}, network=Reordering)
    found = explored(small)
    for name, (what, run) in found.broken.items():
        assert ALWAYS[name](replay(small, run)) == what
        lengths = [len(p) for p, _ in prefixes(small) if ALWAYS[name](replay(small, p))]
        assert len(run) == min(lengths)
    assert set(found.broken) == {"consistent", "published"}


def test_what_is_seen_has_a_shortest_run() -> None:
    """A message is caught when P2 has paid before its cut, and P1 receives it after its own."""
    small = system(pays={"P2": 1})
    found = explored(small)
    what, run = found.seen["caught"]
    assert a_channel_caught_a_message(replay(small, run)) == what == "snapshot P1-1 has 1 on P2->P1"
    lengths = [len(p) for p, _ in prefixes(small) if a_channel_caught_a_message(replay(small, p))]
    assert len(run) == min(lengths) == 5


def test_every_published_snapshot_of_every_run_has_all_the_money() -> None:
    """A property of one's own: the accounts and the channels hold 200 together."""

    def money(world: World) -> str:
        for outcome in world.epoch.outcomes.values():
            if isinstance(outcome, Snapshot):
                balances = [
                    msgspec.msgpack.decode(state.encoded)["balance"]
                    for state in outcome.state.processes
                ]
                total = sum(balances) + outcome.state.message_count
                if total != 200:
                    return f"{total} in {outcome.id}"
        return ""

    small = system(pays=BOTH_PAY)
    assert explore(small, always={"money": money}, sometimes={}).broken == {}
    wrong = explore(
        small, always={"no end": lambda w: "end" if w.epoch.outcomes else ""}, sometimes={}
    )
    assert len(wrong.broken["no end"][1]) == 3


# --- what is not strongly connected


def test_a_process_that_a_marker_reached_initiates_no_more() -> None:
    """Else a choice would lead from a history to itself, and the search would never end."""
    chain = Topology(accounts("P1", "P2"), [("P1", "P2")])
    found = explored(system(chain, {}, (("P2", "P2-1"), ("P1", "P2-1"))))
    assert counts(found) == (5, 6, 2, 3)
    assert found.broken == {}


def test_a_snapshot_that_somebody_has_yet_to_initiate_is_no_snapshot_that_never_ends() -> None:
    """P1's marker has arrived and nothing is on its way, but P2 comes later."""
    initiators = (("P1", "P1-1"), ("P2", "P1-1"))
    found = explored(system(FUNNEL, {}, initiators))
    assert found.broken == {}
    late = replay(system(FUNNEL, {}, initiators), map(parse_choice, ["P1 initiates P1-1"]))
    late.take(parse_choice("deliver P1->P3"))
    assert snapshots_are_published(late) == ""
    never = explored(system(FUNNEL, {}, initiators, network=Lossy))
    assert "published" in never.broken


# --- limits


def test_too_many_histories_are_a_clear_error() -> None:
    """What to do about it is in the sentence; exactly as many as allowed are none too many."""
    small = system(pays=BOTH_PAY)
    with pytest.raises(
        UsageError, match="more than 102 histories: reduce the actions, or raise the max"
    ):
        explore(small, always={}, sometimes={}, history_count_max=102)
    assert explore(small, always={}, sometimes={}, history_count_max=103).history_count == 103


def test_progress_is_told_as_histories_are_visited() -> None:
    """Rising, up to the last."""
    told: list[int] = []
    explore(system(pays=BOTH_PAY), always={}, sometimes={}, progress=told.append)
    assert told == list(range(103))


def test_an_impossible_run_is_refused() -> None:
    """``play`` does what the world can do, and no more."""
    with pytest.raises(UsageError, match="0 messages and markers are on P1->P2"):
        replay(system(), [parse_choice("deliver P1->P2")])


class Stray(Account):
    """Pays a process that it has no channel to."""

    @every(ms=0)
    def pay(self) -> None:
        """Pay P9."""
        self.send("P9", Payment(1))


class Fickle(Account):
    """Pays in every second play."""

    plays: ClassVar[int] = 0

    @every(ms=0)
    def pay(self) -> None:
        """Pay, or not."""
        Fickle.plays += 1
        if Fickle.plays % 2:
            self.send("P2", Payment(1))


class NoTruth:
    """Is neither true nor false, and has no text."""

    def __bool__(self) -> bool:
        """Fail."""
        raise KeyError(self)

    __repr__ = __str__ = None  # type: ignore[assignment]


def test_a_mistake_of_a_handler_is_reported_as_it_is() -> None:
    """A message without a channel is no deviation of a repeated run."""
    small = system(Topology.mesh({"P1": Stray(), "P2": Account()}), {"P1": 1})
    with pytest.raises(UsageError, match=r"^process P1 has no channel to 'P9'; outgoing: P2$"):
        explore(small, always={}, sometimes={})


def test_a_process_that_does_something_else_when_repeated_is_reported() -> None:
    """It depends on more than its fields and messages."""
    small = system(Topology.mesh({"P1": Fickle(), "P2": Account()}), {"P1": 2})
    with pytest.raises(UsageError, match=r"had another result \(deliver P\d->P\d: 0 messages"):
        explore(small, always={}, sometimes={})


@pytest.mark.parametrize("found", [True, NoTruth(), 3])
def test_a_property_returns_text(found: Any) -> None:
    """Or None; anything else is an error of the application, without asking whether it is true."""
    small = system(pays=BOTH_PAY)
    with pytest.raises(ApplicationError, match=r"^odd returned .*: return text, or None$"):
        explore(small, always={"odd": lambda _: found}, sometimes={})
    with pytest.raises(ApplicationError, match=r"^odd raised SystemExit"):
        explore(small, always={"odd": lambda _: sys.exit()}, sometimes={})
    assert explore(small, always={"odd": lambda _: None}, sometimes={}).broken == {}  # type: ignore[dict-item,return-value]


# --- conditions of one's own


def total(state: StateView) -> int:
    """Return the money in a state: in the accounts and on the channels."""
    amounts = [one.balance for one in state.processes.values()]
    return sum(amounts + [message.amount for _, message in state.in_transit()])


def test_invariants_and_predicates_are_functions_of_a_global_state() -> None:
    """The first must hold everywhere, the second somewhere; each has a shortest run, to replay."""
    small = system(pays=BOTH_PAY)
    found = explore(
        small,
        invariants={
            "no money is lost": lambda state: total(state) == 200,
            "nobody is rich": lambda state: state.processes["P1"].balance <= 100,
        },
        predicates={
            "both have paid": lambda state: len([*state.in_transit()]) == 2,
            "someone is broke": lambda state: state.processes["P1"].balance == 0,
        },
    )
    assert {*found.broken} == {"nobody is rich"}
    assert {*found.seen} == {"both have paid"}
    what, run = found.broken["nobody is rich"]
    assert what == "nobody is rich: it does not hold"
    assert list(map(str, run)) == ["P2 does pay", "deliver P2->P1"]
    assert replay(small, run).state().processes["P1"].balance == 101
    assert list(map(str, found.seen["both have paid"].run)) == ["P1 does pay", "P2 does pay"]
    lines = map(str, run)
    assert replay(small, lines).steps == replay(small, run).steps


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda state: 1, "mine returned 1, a int, in a state that explore"),
        (lambda state: 1 / 0, "mine raised ZeroDivisionError: division by zero, in a state"),
    ],
)
def test_a_condition_that_is_none_is_reported(
    function: Callable[[StateView], Any], sentence: str
) -> None:
    """With its name and what it did."""
    for conditions in ({"invariants": {"mine": function}}, {"predicates": {"mine": function}}):
        with pytest.raises(ApplicationError, match=sentence):
            explore(system(), **conditions)  # type: ignore[arg-type]


def test_an_error_of_a_property_of_a_world_is_reported() -> None:
    """With its name, as that of a condition is."""
    for properties in ({"always": {"mine": lambda world: 1 / 0}}, {"sometimes": {"mine": len}}):
        with pytest.raises(ApplicationError, match=r"mine raised (ZeroDivisionError|TypeError): "):
            explore(system(), **properties)


@pytest.mark.parametrize(
    ("acts", "sentence"),
    [
        ({"P1": ("swim",)}, "acts: P1 does swim: P1 has no action 'swim'; it has pay"),
        ({"P9": ("pay",)}, "acts: P9 does pay: there is no process 'P9'; there are P1, P2"),
    ],
)
def test_actions_that_do_not_exist_are_reported(
    acts: dict[str, tuple[str, ...]], sentence: str
) -> None:
    """They are no deviation of a repeated run."""
    with pytest.raises(UsageError, match=f"^{sentence}$"):
        explore(SmallSystem(topology=pair(), acts=acts))


class Lender(Account):
    """Pays as much as it is told."""

    @every(ms=0)
    def pay(self, amount: int = 1) -> None:
        """Pay P2 this amount."""
        self.balance -= amount
        self.send("P2", Payment(amount))


def test_actions_are_explored_with_their_arguments() -> None:
    """As they are written."""
    topology = Topology({"P1": Lender(), "P2": Account()}, [("P1", "P2")])
    small = SmallSystem(topology=topology, acts={"P1": ("pay(5)", "pay")})
    found = explore(small, predicates={"all": lambda state: state.processes["P2"].balance == 106})
    assert list(map(str, found.seen["all"].run))[:2] == ["P1 does pay(5)", "P1 does pay"]


def test_initiations_leave_no_process_out() -> None:
    """Where markers do not reach all, more processes initiate."""
    funnel = initiations(FUNNEL, "P1", "P3")
    assert [str(one) for one in funnel if one.snapshot.number == 1] == [
        "P1 initiates P1-1",
        "P2 initiates P1-1",
    ]
    assert {one.process for one in funnel if one.snapshot.number == 2} == {"P1", "P2", "P3"}
    with pytest.raises(UsageError, match="P9"):
        initiations(FUNNEL, "P9")
