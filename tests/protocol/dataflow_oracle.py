"""What must be true of a run of ``dataflow_world``, recounted from its logs; and every run."""

from collections import Counter
from random import Random
from typing import NamedTuple

from stillframe.protocol.aligner import Mode
from tests.protocol.dataflow_world import (
    Barrier,
    Item,
    Part,
    ParticipantStatus,
    Published,
    Scene,
    Steps,
    World,
    tokens_of,
)


class Explored(NamedTuple):
    """Every run of a scene: how many different worlds and runs there are, and what came out.

    `on_channels` and `doubled` count the different snapshots that had any such token.
    """

    world_count: int
    run_count: int
    snapshot_count: int
    on_channels: int
    doubled: int


class Found(NamedTuple):
    """What a snapshot says of its channels: tokens on them, and tokens that will come twice."""

    on_channels: tuple[tuple[str, ...], ...]
    doubled: tuple[tuple[str, ...], ...]


def explore(scene: Scene) -> Explored:
    """Run a scene in every possible order, and check every end, and every restore."""
    steps = Steps(scene)
    run_counts: dict[World, int] = {}
    found: dict[tuple[Published, tuple[tuple[Item, ...], ...]], Found] = {}

    def runs_from(world: World) -> int:
        known = run_counts.get(world)
        if known is None:
            following = list(steps.after(world))
            if not following:
                found.update(check_end(steps, world))
            known = run_counts[world] = sum(map(runs_from, following)) or 1
        return known

    run_count = runs_from(steps.first())
    return Explored(
        len(run_counts),
        run_count,
        len(found),
        sum(any(one.on_channels) for one in found.values()),
        sum(any(one.doubled) for one in found.values()),
    )


def run(steps: Steps, world: World, chance: Random) -> World:
    """Run to the end in one order."""
    while following := list(steps.after(world)):
        world = chance.choice(following)
    return world


def check_end(
    steps: Steps, world: World
) -> dict[tuple[Published, tuple[tuple[Item, ...], ...]], Found]:
    """Check a world in which nothing can happen any more; return its snapshots."""
    scene = steps.scene
    assert sum(scene.outcomes) == len(world.published), "a snapshot waits for ever"
    assert [s.read for s in world.statuses] == unbroken(steps), "a token was lost or doubled"
    found = {}
    for published in world.published:
        found[published, world.logs] = one = check_cut(steps, world, published)
        restored = run(steps, restored_to(steps, world, published), Random(0))
        expected = [
            tuple(sorted((*read, *extra)))
            for read, extra in zip(unbroken(steps), doubles(steps, one.doubled), strict=True)
        ]
        assert [s.read for s in restored.statuses] == expected, "the restored run ends elsewhere"
    return found


def check_cut(steps: Steps, world: World, published: Published) -> Found:
    """Check a snapshot against the logs: states, barriers, and the books of every channel."""
    scene, parts = steps.scene, published.parts
    cut_logs = _cut_logs(steps, world, published)
    for who, part in enumerate(parts):
        before = tuple(
            token
            for log, position in zip(steps.incoming[who], part.positions, strict=True)
            for token in tokens_of(world.logs[log][:position])
        )
        assert part.read == tuple(sorted(before)), "a state is not of the records before the cut"
        _check_sent(steps, who, part, cut_logs)
    on_channels, doubled = [], []
    for who, part in enumerate(parts):
        for log, position in zip(steps.incoming[who], part.positions, strict=True):
            barrier = len(cut_logs[log])
            assert world.logs[log].count(Barrier(published.snapshot)) == 1
            assert world.logs[log][barrier] == Barrier(published.snapshot)
            on_channels.append(tokens_of(world.logs[log][position:barrier]))
            doubled.append(tokens_of(world.logs[log][barrier:position]))
            if scene.mode is not Mode.AT_LEAST_ONCE:
                assert position <= barrier, "a target had read what its source had not sent"
            if scene.mode is not Mode.UNALIGNED and who in _held(steps, world):
                assert not on_channels[-1], "a barrier was not waited for"
    if all(len(log.targets) == 1 for log in steps.logs) and not any(doubled):
        _check_conserved(steps, parts, on_channels)
    return Found(tuple(on_channels), tuple(doubled))


def restored_to(steps: Steps, world: World, published: Published) -> World:
    """Return the world that goes on from a snapshot, without asking for another."""
    cut_logs = _cut_logs(steps, world, published)
    return World(
        logs=tuple(cut_logs),
        statuses=tuple(
            ParticipantStatus(
                tuple(
                    min(position, len(cut_logs[log]))
                    for log, position in zip(steps.incoming[who], part.positions, strict=True)
                ),
                part.read,
                part.sent_count,
            )
            for who, part in enumerate(published.parts)
        ),
        begun_count=len(steps.scene.outcomes),
        restart_count=steps.scene.restart_count_max,
    )


def unbroken(steps: Steps) -> list[tuple[str, ...]]:
    """Return what each participant has read in the end if nothing happens to it."""
    reads: list[list[str]] = [[] for _ in steps.names]
    arriving = [
        (who, f"{name}{number}")
        for who, name in enumerate(steps.names)
        for number in range(steps.scene.own_counts.get(name, 0))
    ]
    _flow(steps, arriving, reads)
    return [tuple(sorted(read)) for read in reads]


def doubles(steps: Steps, doubled: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    """Return what each participant reads more, given what its channels announce, in order."""
    reads: list[list[str]] = [[] for _ in steps.names]
    announced = iter(doubled)
    arriving = []
    for who, logs in enumerate(steps.incoming):
        for _ in logs:
            for token in next(announced):
                reads[who].append(token)
                arriving.append((who, f"{token}.{steps.names[who]}"))
    _flow(steps, arriving, reads)
    return reads


def _flow(steps: Steps, sent: list[tuple[int, str]], reads: list[list[str]]) -> None:
    """Let tokens flow on from who sends them until they rest, and note who reads them."""
    while sent:
        who, token = sent.pop()
        log = steps.route(who, token)
        for target, incoming in enumerate(steps.incoming):
            if log in incoming:
                reads[target].append(token)
                sent.append((target, f"{token}.{steps.names[target]}"))


def _cut_logs(steps: Steps, world: World, published: Published) -> list[tuple[Item, ...]]:
    cut_logs = list(world.logs)
    for who, part in enumerate(published.parts):
        for log, barrier in zip(steps.outgoing[who], part.barriers, strict=True):
            cut_logs[log] = world.logs[log][:barrier]
    return cut_logs


def _check_sent(steps: Steps, who: int, part: Part, cut_logs: list[tuple[Item, ...]]) -> None:
    """What stands on a participant's logs before its barriers is what its state has sent."""
    name = steps.names[who]
    sent = [f"{name}{number}" for number in range(part.sent_count)]
    sent += [f"{token}.{name}" for token in part.read]
    for log in steps.outgoing[who]:
        mine = sorted(token for token in sent if steps.route(who, token) == log)
        assert sorted(tokens_of(cut_logs[log])) == mine, "a state is not that at the barrier"


def _held(steps: Steps, world: World) -> set[int]:
    """Return who could be held all along; one that was restarted may have recorded before."""
    impatient = steps.scene.impatient
    return {
        who
        for who, status in enumerate(world.statuses)
        if status.is_patient and steps.names[who] not in impatient
    }


def _check_conserved(
    steps: Steps, parts: tuple[Part, ...], on_channels: list[tuple[str, ...]]
) -> None:
    """Every token is in exactly one place: not yet sent, on a channel, or at rest."""
    places: Counter[str] = Counter()
    for who, part in enumerate(parts):
        name = steps.names[who]
        own_count = steps.scene.own_counts.get(name, 0)
        places.update(f"{name}{number}" for number in range(part.sent_count, own_count))
        sent = [f"{name}{number}" for number in range(part.sent_count)]
        sent += [f"{token}.{name}" for token in part.read]
        places.update(t.split(".")[0] for t in sent if steps.route(who, t) is None)
    places.update(token.split(".")[0] for tokens in on_channels for token in tokens)
    everything = {
        f"{name}{number}"
        for name, count in steps.scene.own_counts.items()
        for number in range(count)
    }
    assert places == Counter(everything), "tokens are not conserved"
