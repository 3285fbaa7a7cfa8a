"""Every interleaving of a small system: all global states that it can reach, each checked once.

Breadth first, so that a run to a state is a shortest one. Interleavings in which all processes did
and saw the same are one history. The number of runs is counted all the same, since each history has
a known number of continuations. Different histories may reach the same global state (of processes,
channels, and recordings): these are counted, but not merged, since whether a recorded state is
right depends on the history.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from stillframe.cuts import CutView, observation_without
from stillframe.cuts import Predicate as CutPredicate
from stillframe.detect.view import yes_or_no
from stillframe.errors import (
    ApplicationError,
    StillframeError,
    UsageError,
    class_name,
    describe,
    repr_of,
)
from stillframe.model import Channel, ProcessId, Snapshot, SnapshotId
from stillframe.protocol.recorder import Phase, Recorder
from stillframe.sim import choices
from stillframe.sim.checker import DETERMINISM, check_run
from stillframe.sim.network import Fifo, Lossy, Network
from stillframe.sim.world import SnapshotRecorder, StateView, World, deliverable, disabled_reason
from stillframe.topology import Topology
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Trace

Property = Callable[[World], str]
"""Returns what is wrong with a world (*sometimes*: what is seen), or nothing. It must depend on the
history, not on the order in which concurrent steps happened to be taken."""
HISTORY_COUNT_MAX = 1_000_000

Predicate = Callable[[StateView], bool]
"""A condition on a global state: it is given a decoded copy, and returns True or False."""


@dataclass(frozen=True, kw_only=True)
class SmallSystem:
    """The steps to explore, once each, in any order that the processes and the channels allow.

    Attributes:
        topology: the system.
        acts: what each process does, in this order: actions such as ``"pay"`` or ``"pay(5)"``, and
            snapshots that it initiates, such as ``"initiates P1-1"`` or an ``Initiate``: before one
            action and after another. It does not initiate one whose marker came first.
        initiations: snapshots that are initiated at any time, whatever the order of the acts; see
            ``initiations``.
        network: what is assumed of every channel.
        recorder: the recording rules.
    """

    topology: Topology
    acts: Mapping[ProcessId, tuple[str | choices.Initiate, ...]] = field(default_factory=dict)
    initiations: tuple[choices.Initiate, ...] = ()
    network: Network = Fifo
    recorder: Callable[..., SnapshotRecorder] = Recorder


@functools.cache
def _planned(process: ProcessId, act: str | choices.Initiate) -> choices.Act | choices.Initiate:
    if isinstance(act, choices.Initiate):
        return act
    verb = "" if str(act).startswith("initiates ") else "does "
    choice = choices.parse_choice(f"{process} {verb}{act}")
    assert isinstance(choice, choices.Act | choices.Initiate), choice
    return choice


Run = tuple[choices.Choice, ...]


class Finding(NamedTuple):
    """A property that was found broken, or seen: `what` it says there, and a shortest `run` to it,
    for ``replay``."""

    what: str
    run: Run


@dataclass(frozen=True)
class Explored:
    """The result of an exploration.

    Attributes:
        state_count: how many global states the system can reach.
        history_count: in how many histories, unfinished ones included.
        end_count: in how many of these no step is enabled any more.
        run_count: in how many orders the steps of these can happen.
        broken: the invariants and *always* properties that do not hold somewhere.
        seen: the predicates and *sometimes* properties that hold somewhere.
    """

    state_count: int
    history_count: int
    end_count: int
    run_count: int
    broken: dict[str, Finding]
    seen: dict[str, Finding]


def initiations(topology: Topology, *processes: ProcessId) -> tuple[choices.Initiate, ...]:
    """Return what initiates a snapshot from each of these processes. If the markers of one do not
    reach all processes, some of the others initiate the snapshot too. UsageError if there is no
    such process."""
    return tuple(
        choices.Initiate(process, SnapshotId(first, number))
        for number, first in enumerate(processes, 1)
        for process in topology.description.initiators(first)
    )


def explore(
    system: SmallSystem,
    *,
    invariants: Mapping[str, Predicate] = {},
    predicates: Mapping[str, Predicate] = {},
    always: Mapping[str, Property] = {},
    sometimes: Mapping[str, Property] = {},
    history_count_max: int = HISTORY_COUNT_MAX,
    progress: Callable[[int], None] = lambda count: None,
) -> Explored:
    """Visit every history of `system`, and so every state that it can reach.

    Args:
        system: the steps to explore.
        invariants: conditions that must hold in every global state, by name.
        predicates: conditions that are sought: whether they hold in some global state.
        always: functions of a world that return what is wrong, or nothing.
        sometimes: functions of a world that return what is seen, or nothing.
        history_count_max: maximum number of histories.
        progress: called with the number of histories that were visited.

    Raises:
        UsageError: there is no such process or action; there are more than `history_count_max`
            histories; or a process does something else when the same run is repeated.
        ApplicationError: a handler, a condition or a function raised, a condition did not return
            True or False, or a function did not return text or None.
    """
    always = {**always, **_properties(invariants, "it does not hold", where=False)}
    sometimes = {**sometimes, **_properties(predicates, "it holds", where=True)}
    _check_acts(system)
    broken: dict[str, Finding] = {}
    seen: dict[str, Finding] = {}
    index_of = {history(replay(system, ())): 0}
    runs: list[Run] = [()]
    """A shortest run to each history."""
    following: list[list[int]] = []
    states = set()
    for index, run in enumerate(runs):  # grows meanwhile
        world = _play_again(system, run)
        states.add(global_state(world))
        for properties, kept in ((always, broken), (sometimes, seen)):
            for name, look in properties.items():
                if name not in kept and (what := _asked(look, world, name)):
                    kept[name] = Finding(what, run)
        following.append([])
        for choice in enabled_choices(system, world, run):
            longer = (*run, choice)
            reached = index_of.setdefault(history(_extend(system, run, choice)), len(runs))
            assert reached != index, choice
            if reached == len(runs):
                runs.append(longer)
            following[index].append(reached)
        if len(runs) > history_count_max:
            raise UsageError(
                f"there are more than {history_count_max:,} histories: reduce the actions, or "
                "raise the maximum"
            )
        progress(index)
    end_count = sum(not reached for reached in following)
    return Explored(len(states), len(runs), end_count, _count_runs(following), broken, seen)


def _check_acts(system: SmallSystem) -> None:
    world = replay(system, ())
    for process, acts in system.acts.items():
        for choice in [_planned(process, act) for act in acts]:
            if reason := disabled_reason(world, choice):
                raise UsageError(f"acts: {choice}: {reason}")
            if choice.process != process:
                raise UsageError(f"acts: {choice} is among those of {process}")
            if choice in system.initiations:
                raise UsageError(f"acts: {choice} is in initiations, too: leave it out of one")


def _asked(look: Property, world: World, name: str) -> str:
    try:
        found: object = look(world)
    except (KeyboardInterrupt, StillframeError):
        raise
    except BaseException as error:
        raise ApplicationError(f"{name} raised {describe(error)}") from error
    if not isinstance(found, str | None):
        raise ApplicationError(
            f"{name} returned {repr_of(found)}, a {class_name(found)}: return text, or None"
        )
    return str.__str__(found) if found is not None else ""


def _play_again(system: SmallSystem, run: Run) -> World:
    try:
        return replay(system, run)
    except ApplicationError:
        raise
    except UsageError as error:
        raise _other_result(str(error)) from error


def _extend(system: SmallSystem, run: Run, choice: choices.Choice) -> World:
    """Return the world after `run` and then `choice`, which was enabled when `run` was played
    before. What goes wrong in `choice` itself happens for the first time: a handler's mistake."""
    world = _play_again(system, run)
    if reason := disabled_reason(world, choice):
        raise _other_result(f"{choice}: {reason}")
    world.take(choice)
    return world


def _other_result(what: str) -> UsageError:
    return UsageError(f"repeated, the same choices had another result ({what}): {DETERMINISM}")


def _properties(
    conditions: Mapping[str, Predicate], words: str, *, where: bool
) -> dict[str, Property]:
    """Return properties that say `words` in states in which a condition is as `where` says."""

    def make(name: str, condition: Predicate) -> Property:
        place = "in a state that explore() visits"
        return lambda world: (
            f"{name}: {words}" if yes_or_no(condition, world.state(), name, place) is where else ""
        )

    return {name: make(name, condition) for name, condition in conditions.items()}


def replay(system: SmallSystem, run: Iterable[choices.Choice | str]) -> World:
    """Return the world after `run`, such as that of a ``Finding``. Raises UsageError if something
    in it is not possible."""
    world = World(system.topology, network=system.network, recorder=system.recorder)
    for choice in run:
        world.take(choice)
    return world


def enabled_choices(system: SmallSystem, world: World, run: Run) -> Iterator[choices.Choice]:
    """Yield every choice that is enabled after `run`."""
    if world.refusal:
        return
    for process in system.acts:
        yield from _next_act(system, world, run, process)
    for initiation in system.initiations:
        if initiation not in run and _is_idle(world, initiation.process, initiation.snapshot):
            yield initiation
    for arrival in deliverable(world):
        yield arrival
        if system.network is Lossy:
            # A later frame can be lost when it is first itself: no process can tell the difference.
            yield choices.Lose(arrival.channels[0], arrival.position)


def _next_act(
    system: SmallSystem, world: World, run: Run, process: ProcessId
) -> Iterator[choices.Choice]:
    """Yield what a process does next by its `acts`, if anything is left."""
    acts = [c for c in run if isinstance(c, choices.Act | choices.Initiate)]
    done = deque(c for c in acts if c.process == process and c not in system.initiations)
    for planned in [_planned(process, act) for act in system.acts[process]]:
        if done and done[0] == planned:
            done.popleft()
        elif isinstance(planned, choices.Act) or _is_idle(world, process, planned.snapshot):
            yield planned
            return


def _is_idle(world: World, process: ProcessId, snapshot: SnapshotId) -> bool:
    """Return whether a process has not met `snapshot`: after that it does not initiate it."""
    return world.recorders[process].phase(snapshot) is Phase.IDLE


def history(world: World) -> Hashable:
    """Return what every process did and saw, and what is in transit: equal for two runs that differ
    only in the order of concurrent steps."""
    lines: dict[ProcessId, list[bytes]] = {process: [] for process in world.runners}
    for step in world.steps:
        lines[step.process].append(_encoded(step))
    return (
        tuple(map(tuple, lines.values())),
        tuple(_encoded(memory.contents) for memory in world.channels.values()),
        world.refusal,
    )


def global_state(world: World) -> Hashable:
    """Return what distinguishes one global state from another, including the recordings."""
    epoch = world.epoch
    snapshots = sorted(epoch.initiated)
    recordings = tuple(
        (recorder.phase(snapshot).value, _encoded(recorder.progress(snapshot)))
        for recorder in world.recorders.values()
        for snapshot in snapshots
    )
    # How a snapshot ended; or else its fragments that are complete.
    outcomes = tuple(
        _encoded(epoch.outcomes.get(s) or sorted(epoch.fragments.get(s, {}).items()))
        for s in snapshots
    )
    return (
        tuple(runner.capture().encoded for runner in world.runners.values()),
        tuple(_encoded(memory.contents) for memory in world.channels.values()),
        tuple(zip(snapshots, outcomes, strict=True)),
        recordings,
        world.refusal,
    )


_encoded = msgspec.msgpack.Encoder(order="deterministic", enc_hook=str).encode


def _count_runs(following: list[list[int]]) -> int:
    """Return how many ways lead from the first history to any end; none leads back to itself."""
    counts: list[int | None] = [None] * len(following)
    stack = [0]
    while stack:
        index = stack[-1]
        if open_ := [i for i in following[index] if counts[i] is None]:
            stack.extend(open_)
            continue
        stack.pop()
        counts[index] = sum(counts[i] or 0 for i in following[index]) or 1
    return counts[0] or 0


# --- properties


def invariants_hold(world: World) -> str:
    """*Always*: the invariants of the checker."""
    violation = check_run(world)
    return "" if violation is None else str(violation)


def cuts_are_consistent(world: World) -> str:
    """*Always*: every cut that all processes have recorded is consistent, published or not."""
    for snapshot, trace in _cuts(world):
        for message in trace.orphans(trace.cut_of(snapshot)):
            return (
                f"the cut of snapshot {snapshot} is not consistent: message {message} was accepted "
                "before it and sent after it"
            )
    return ""


def snapshots_are_published(world: World) -> str:
    """*Always*: where no step is enabled any more, every snapshot was published."""
    if deliverable(world) and not world.refusal:
        return ""
    for snapshot in world.epoch.initiated:
        outcome = world.epoch.outcomes.get(snapshot)
        initiators = world.description.initiators(snapshot.initiator)
        if not outcome and any(_is_idle(world, process, snapshot) for process in initiators):
            continue  # a process that no marker reaches has yet to initiate it too
        if not isinstance(outcome, Snapshot):
            return f"snapshot {snapshot}: {outcome or world.refusal or 'it never ends'}"
    return ""


def a_channel_caught_a_message(world: World) -> str:
    """*Sometimes*: a published snapshot has a message in a channel."""
    for snapshot in world.epoch.published:
        for state in snapshot.state.channels:
            if state.message_count:
                return f"snapshot {snapshot.id} has {state.message_count} on {state.channel}"
    return ""


def a_recorded_state_need_not_occur(world: World) -> str:
    """*Sometimes*: what happened can happen in an order in which the system is never in the state
    that was recorded (Chandy & Lamport 1985, section 4)."""
    for snapshot, trace in _cuts(world):
        if isinstance(world.epoch.outcomes.get(snapshot), Snapshot):
            cut = trace.cut_of(snapshot)
            if observation_without(*_is_at(world, cut)) is not None:
                return f"the cut of snapshot {snapshot}, {cut}, need never be the current state"
    return ""


def snapshots_overlap(world: World) -> str:
    """*Sometimes*: two snapshots are pending."""
    return f"{', '.join(map(str, world.pending))} are pending" if world.pending[1:] else ""


def _cuts(world: World) -> Iterator[tuple[SnapshotId, Trace]]:
    """Yield every snapshot for which all processes have recorded their states."""
    cuts = Counter(s.snapshot for s in world.steps if isinstance(s, MarkerStep) and s.is_cut)
    if complete := [s for s, count in cuts.items() if count == len(world.runners)]:
        trace = world.trace()
        yield from ((snapshot, trace) for snapshot in complete)


def _is_at(world: World, cut: Cut) -> tuple[Trace, CutPredicate]:
    """Return the trace with recording steps as events and markers as messages, since they constrain
    the order, too. The second value tells whether the application's events of a cut of it are those
    of `cut`."""
    events: list[Event] = []
    event_counts: dict[ProcessId, list[int]] = {process: [0] for process in world.runners}
    for step in world.steps:
        counts = event_counts[step.process]
        counts.append(counts[-1] + isinstance(step, Event))
        events.append(step if isinstance(step, Event) else _as_event(step))

    def is_at(view: CutView) -> bool:
        return all(
            counts[view.count(process)] == expected
            for (process, counts), expected in zip(event_counts.items(), cut, strict=True)
        )

    return Trace(world.description.processes, events), is_at


def _as_event(step: MarkerStep) -> Event:
    number = -step.snapshot.number  # no message has such a number
    sources = () if step.source is None else (step.source,)
    accepted = tuple(MessageId(Channel(source, step.process), number) for source in sources)
    sent = tuple(MessageId(Channel(step.process, target), number) for target in step.targets)
    return Event(step.process, accepted=accepted, sent=sent)
