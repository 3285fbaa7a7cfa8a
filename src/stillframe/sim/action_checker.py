"""Checks that every choice had its effect, and that processes were notified of publications."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stillframe.model import Abandoned, Channel, ProcessId, Snapshot, SnapshotId
from stillframe.process import Process
from stillframe.protocol.action_runner import PUBLISHED, RECEIVE, START
from stillframe.protocol.replay import RESTORED
from stillframe.sim import choices
from stillframe.sim.epoch import Epoch, Taken
from stillframe.sim.invariants import Evidence, Invariant, Violation
from stillframe.sim.network import Fifo, Frame, Network
from stillframe.sim.world import World
from stillframe.trace import Event, MarkerStep, MessageId, Step

_Called = tuple[ProcessId, str, tuple[MessageId, ...]]
"""A process, the handler that was called, and the messages that it accepted."""
_Marked = tuple[ProcessId, ProcessId | None, SnapshotId | None]
"""The target of a marker, its source, and its snapshot."""


def choice_violations(known: Evidence) -> Iterator[Violation]:
    """Yield the choices that had another effect than they say, notices of publications aside."""
    epoch = known.epoch
    bounds = [*(taken.step_count for taken in epoch.taken), len(epoch.steps)]
    yield from _check_start(known, epoch.steps[: bounds[0]])
    arrived: dict[Channel, int] = {}
    for taken, (first, end) in zip(epoch.taken, pairwise(bounds), strict=True):
        fresh = list(_fresh(taken, arrived, known.world.network))
        if not taken.is_done:
            continue
        steps = epoch.steps[first:end]
        called, marked = _called(steps), _marked(steps)
        if called != (expected := _calls(taken, fresh)):
            yield Violation(
                Invariant.TAKEN,
                f"{_where(taken)}: {_named(called)} happened, not {_named(expected)}",
            )
        if marked != _markers(fresh):
            yield Violation(
                Invariant.TAKEN, f"{_where(taken)}: {len(marked)} markers came, not {len(fresh)}"
            )


def _fresh(
    taken: Taken, arrived: dict[Channel, int], network: Network
) -> Iterator[tuple[Channel, Frame]]:
    """Yield the frames that arrived for the first time, and remember them."""
    for channel, frame in taken.frames:
        if network is not Fifo or frame.sequence > arrived.get(channel, 0):
            arrived[channel] = frame.sequence
            yield channel, frame


def _calls(taken: Taken, fresh: Sequence[tuple[Channel, Frame]]) -> list[_Called]:
    """Return the handlers that must be called."""
    if isinstance(taken.choice, choices.Act):
        return [(taken.choice.process, taken.choice.action, ())]
    messages = [
        [MessageId(channel, frame.batch.first + index) for index in range(frame.batch.count)]
        for channel, frame in fresh
        if frame.batch is not None
    ]
    if not messages:
        return []
    target = messages[0][0].channel.target
    if len(messages) > 1:
        return [(target, RECEIVE, tuple(message for [message] in messages))]
    return [(target, RECEIVE, (message,)) for message in messages[0]]


def _markers(fresh: Sequence[tuple[Channel, Frame]]) -> list[_Marked]:
    return [(c.target, c.source, frame.marker) for c, frame in fresh if frame.batch is None]


def _called(steps: Sequence[Step]) -> list[_Called]:
    return [
        (step.process, step.handler, step.accepted)
        for step in steps
        if isinstance(step, Event) and step.handler != PUBLISHED
    ]


def _marked(steps: Sequence[Step]) -> list[_Marked]:
    return [
        (step.process, step.source, step.snapshot)
        for step in steps
        if isinstance(step, MarkerStep) and step.source is not None
    ]


def _check_start(known: Evidence, steps: Sequence[Step]) -> Iterator[Violation]:
    """An epoch begins with start(), or with the recorded states and messages, and nothing else."""
    start, processes = known.epoch.start, known.description.processes
    runners = known.world.runners
    called = [(process, handler) for process, handler, _ in _called(steps)]
    if start is None:
        expected = [
            (p, START) for p in processes if type(runners[p].process).start is not Process.start
        ]
    else:
        targets = [
            state.channel.target
            for state in start.state.channels
            for _ in range(state.message_count)
        ]
        expected = [*((p, RESTORED) for p in processes), *((t, RECEIVE) for t in targets)]
    if called != expected:
        yield Violation(
            Invariant.TAKEN,
            f"epoch {known.epoch.number} begins with {_pairs(called)}, not {_pairs(expected)}",
        )


def _where(taken: Taken) -> str:
    return f"'{taken.choice}' at {taken.at} s"


def _named(called: Sequence[_Called]) -> str:
    return _pairs([(process, handler) for process, handler, _ in called])


def _pairs(called: Sequence[tuple[ProcessId, str]]) -> str:
    return ", ".join(f"{handler} of {process}" for process, handler in called) or "no action"


def notice_violations(known: Evidence) -> Iterator[Violation]:
    """Yield the processes that recorded an abandoned snapshot after the notice of its end."""
    epoch = known.epoch
    heard: dict[tuple[SnapshotId, ProcessId], int] = {}
    for taken in epoch.taken:
        choice = taken.choice
        if isinstance(choice, choices.DeliverNotice) and isinstance(
            epoch.outcomes[choice.snapshot], Abandoned
        ):
            heard.setdefault((choice.snapshot, choice.process), taken.step_count)
    if not heard:
        return
    awaited: dict[tuple[SnapshotId, ProcessId], set[ProcessId | None]] = {
        key: {*known.description.incoming(key[1])} for key in heard
    }
    for count, step in enumerate(epoch.steps):
        if not isinstance(step, MarkerStep):
            continue
        key = (step.snapshot, step.process)
        if key not in heard:
            continue
        if count < heard[key]:
            awaited[key] -= {step.source}
        elif step.is_cut:
            yield Violation(
                Invariant.HEARD, f"process {step.process} recorded {step.snapshot} then"
            )
    for (snapshot, process), sources in awaited.items():
        if sources and process in epoch.fragments.get(snapshot, {}):
            yield Violation(
                Invariant.HEARD,
                f"process {process} handed in its part of {snapshot}, which lacked the markers "
                f"of {', '.join(sorted(map(str, sources)))} when it heard",
            )


# --- notices of publications


def publication_violations(known: Evidence, points: Sequence[Snapshot]) -> Iterator[Violation]:
    """Yield the notices of a snapshot that is no restore point yet, those given twice, and those
    out of order; `points` are the epoch's restore points, in their order."""
    order = {str(point.id): index for index, point in enumerate(points)}
    last: dict[ProcessId, int] = {}
    for count, event in _publications(known.epoch):
        name = _published_name(event)
        where = f"process {event.process} was told of snapshot {name}"
        index = order.get(name, -1)
        if index < 0 or known.epoch.ended_at[points[index].id] > count:
            yield Violation(Invariant.TOLD, f"{where}, which was no restore point then")
        elif index <= last.get(event.process, -1):
            yield Violation(Invariant.TOLD, f"{where} again, or after a later one")
        last[event.process] = index


def caused_violations(known: Evidence, points: Sequence[Snapshot]) -> Iterator[Violation]:
    """Yield the snapshots that contain a notice of another one, and a process before its cut of
    that one: the effect without its cause."""
    ids = {str(point.id): point.id for point in points}
    lines = {
        process: [
            (count, ids[_published_name(event)])
            for count, event in enumerate(events, 1)
            if event.handler == PUBLISHED
        ]
        for process, events in known.trace.lines.items()
    }
    for snapshot, outcome in known.epoch.outcomes.items():
        if not isinstance(outcome, Snapshot):
            continue
        cut = known.cut_of(snapshot)
        for process, reached in zip(lines, cut, strict=True):
            notices = [point for count, point in lines[process] if count <= reached]
            for point in notices[-1:]:
                behind = known.cut_of(point)
                late = [p for p, ours, its in zip(lines, cut, behind, strict=True) if ours < its]
                if late:
                    yield Violation(
                        Invariant.CAUSED,
                        f"snapshot {snapshot} shows {process} told of {point}, and "
                        f"{', '.join(late)} before what {point} shows",
                    )


def missing_notices(world: World, points: Sequence[Snapshot]) -> Violation | None:
    """Return a process that was not notified of all restore points of the last epoch."""
    expected = [str(point.id) for point in points]
    notices: dict[ProcessId, list[str]] = {}
    for _, event in _publications(world.epoch):
        notices.setdefault(event.process, []).append(_published_name(event))
    for name, runner in world.runners.items():
        is_told = type(runner.process).on_published is not Process.on_published
        found = notices.get(name, [])
        if name not in world.down and found != (expected if is_told else []):
            return Violation(
                Invariant.TOLD,
                f"process {name} was told of {', '.join(found) or 'nothing'}; the restore points "
                f"are {', '.join(expected) or 'none'}",
            )
    return None


def _publications(epoch: Epoch) -> Iterator[tuple[int, Event]]:
    for count, step in enumerate(epoch.steps):
        if isinstance(step, Event) and step.handler == PUBLISHED:
            yield count, step


def _published_name(event: Event) -> str:
    return str((event.fields or {}).get("snapshot"))
