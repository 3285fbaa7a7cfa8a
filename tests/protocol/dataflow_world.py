"""A dataflow in memory, driven by the barrier rules as ``pipeline.member`` drives them on disk.

A participant looks where its logs end, then asks the rules, then acts; others may act in between.
When it records, the barriers are on its logs before its part is handed in. It may be stopped and
started again at any moment; from then on it may be one that cannot be held. The coordinator asks,
and publishes or gives up. Every token is read, sent on to one log, and comes to rest where no log
leads on, so that none is ever lost or doubled unless a rule is wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from stillframe.pipeline.dataflow import Dataflow, Log, channel, dataflow
from stillframe.protocol.aligner import Mode, Reading, may_record, read_end

SCHEMA = pa.schema([("token", pa.string())])


class Barrier(NamedTuple):
    """The barrier of a snapshot, by its number."""

    snapshot: int


class Tokens(NamedTuple):
    """What one action appended to one log."""

    tokens: tuple[str, ...]


Item = Barrier | Tokens


class Part(NamedTuple):
    """What a participant recorded: positions and barriers in the order of its logs' names."""

    positions: tuple[int, ...]
    barriers: tuple[int, ...]
    read: tuple[str, ...]
    sent_count: int


class Published(NamedTuple):
    """A snapshot: its number, and the parts in the order of the participants."""

    snapshot: int
    parts: tuple[Part, ...]


class ParticipantStatus(NamedTuple):
    """Where a participant stands. What is not committed is lost when it is stopped.

    `tails` is where it saw its logs end, `ends` up to where its next action may read; `unhanded` is
    a part that it recorded and has not handed in.
    """

    positions: tuple[int, ...]
    read: tuple[str, ...] = ()
    sent_count: int = 0
    tails: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    unhanded: tuple[int, Part] | None = None
    is_patient: bool = True


class World(NamedTuple):
    """Everything at one moment; two worlds that are equal go on alike."""

    logs: tuple[tuple[Item, ...], ...]
    statuses: tuple[ParticipantStatus, ...]
    request: int | None = None
    begun_count: int = 0
    parts: tuple[Part | None, ...] = ()
    published: tuple[Published, ...] = ()
    restart_count: int = 0


class MayRecord(Protocol):
    """The first rule's signature."""

    def __call__(self, mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
        """Decide as ``aligner.may_record`` does, rightly or wrongly."""


@dataclass(frozen=True)
class Rules:
    """The two functions that decide; a mutant replaces one."""

    may_record: MayRecord = may_record
    read_end: Callable[[Mode, Reading], int | None] = read_end


@dataclass(frozen=True)
class Scene:
    """What is run: a dataflow, the mode of its snapshots, and what may happen.

    `own_counts` says how many tokens a participant puts in; `outcomes` of each snapshot in turn
    whether it is published or, at any moment, given up; `is_batched` whether an action reads all
    there is or one item; `hop_count_max` how often a token is sent on.
    """

    flow: Dataflow
    mode: Mode
    own_counts: Mapping[str, int]
    outcomes: tuple[bool, ...] = (True,)
    is_batched: bool = True
    impatient: frozenset[str] = frozenset()
    restart_count_max: int = 0
    hop_count_max: int = 9
    rules: Rules = field(default_factory=Rules)


def flow_of(*logs: str) -> Dataflow:
    """Return the dataflow of some logs, each written as ``"a>b"`` or ``"a>b,c"``."""
    described = []
    for text in logs:
        source, targets = text.split(">")
        name = f"{source}-{targets.replace(',', '-')}"
        described.append(channel(name, SCHEMA, source=source, targets=targets.split(",")))
    names = {name for log in described for name in (log.source, *log.targets)}
    return dataflow(queries=names, services={}, channels=described)


class Steps:
    """What can happen next in a world of one scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.names = scene.flow.participants
        self.logs: tuple[Log, ...] = scene.flow.logs
        places = {log.name: place for place, log in enumerate(self.logs)}
        self.incoming = [
            tuple(places[log.name] for log in scene.flow.incoming(name)) for name in self.names
        ]
        self.outgoing = [
            tuple(places[log.name] for log in scene.flow.outgoing(name)) for name in self.names
        ]
        self.sources = [self.names.index(log.source) for log in self.logs]
        self._initiators = scene.flow.initiators()

    def first(self) -> World:
        """Return the world before anything happened."""
        return World(
            logs=((),) * len(self.logs),
            statuses=tuple(
                ParticipantStatus((0,) * len(logs), is_patient=name not in self.scene.impatient)
                for name, logs in zip(self.names, self.incoming, strict=True)
            ),
        )

    def after(self, world: World) -> Iterator[World]:
        """Yield every world that can come next."""
        yield from self._coordinated(world)
        for who, status in enumerate(world.statuses):
            if status.unhanded is not None:
                yield self._handed_in(world, who, *status.unhanded)
            elif status.ends is not None:
                yield from self._acted(world, who, status.ends)
            else:
                tails = tuple(
                    max(len(world.logs[log]), position)
                    for log, position in zip(self.incoming[who], status.positions, strict=True)
                )
                if tails != status.tails:
                    yield _with(world, who, status._replace(tails=tails))
                decided = self._considered(world, who) if status.tails is not None else None
                if decided is not None:
                    yield decided
            if world.restart_count < self.scene.restart_count_max and status.tails is not None:
                for is_patient in {False, status.is_patient}:
                    stopped = status._replace(tails=None, unhanded=None, is_patient=is_patient)
                    # The plan of an action may outlive its participant; then it is carried out.
                    for ends in {None, None if status.unhanded else status.ends}:
                        yield _with(world, who, stopped._replace(ends=ends))._replace(
                            restart_count=world.restart_count + 1
                        )

    def _coordinated(self, world: World) -> Iterator[World]:
        outcomes = self.scene.outcomes
        if world.request is None:
            if world.begun_count < len(outcomes):
                yield world._replace(
                    request=world.begun_count,
                    begun_count=world.begun_count + 1,
                    parts=(None,) * len(self.names),
                )
        elif not outcomes[world.request]:
            yield world._replace(request=None, parts=())
        else:
            parts = tuple(part for part in world.parts if part is not None)
            if len(parts) == len(self.names):
                done = Published(world.request, parts)
                yield world._replace(request=None, parts=(), published=(*world.published, done))

    def _considered(self, world: World, who: int) -> World | None:
        """Do what ``pipeline.member.consider`` does; None if nothing comes of it."""
        status = world.statuses[who]
        tails = status.tails
        assert tails is not None
        if world.request is None or world.parts[who] is not None:
            return self._planned(world, who, tails)
        mode = self.scene.mode if status.is_patient else Mode.UNALIGNED
        found = {
            self.logs[log].name: self._reading(world, log, position, tail)
            for log, position, tail in zip(self.incoming[who], status.positions, tails, strict=True)
        }
        rules = self.scene.rules
        if rules.may_record(mode, found, is_initiator=self.names[who] in self._initiators):
            return self._recorded(world, who, world.request)
        limits = [rules.read_end(mode, reading) for reading in found.values()]
        return self._planned(
            world,
            who,
            tuple(tail if end is None else end for tail, end in zip(tails, limits, strict=True)),
        )

    def _reading(self, world: World, log: int, position: int, tail: int) -> Reading:
        """Do what ``pipeline.part.readings`` does: barriers of other snapshots do not count."""
        assert world.request is not None
        items = world.logs[log]
        while position < tail and isinstance(items[position], Barrier):
            if items[position] == Barrier(world.request):
                return Reading(position, position)
            position += 1
        for number in range(position, tail):
            if items[number] == Barrier(world.request):
                return Reading(position, number)
        source = self.sources[log]
        part = world.parts[source]
        barrier = None if part is None else part.barriers[self.outgoing[source].index(log)]
        return Reading(position, barrier)

    def _recorded(self, world: World, who: int, snapshot: int) -> World:
        logs = list(world.logs)
        barriers = []
        for log in self.outgoing[who]:
            if not logs[log] or logs[log][-1] != Barrier(snapshot):
                logs[log] = (*logs[log], Barrier(snapshot))
            barriers.append(len(logs[log]) - 1)
        status = world.statuses[who]
        part = Part(status.positions, tuple(barriers), status.read, status.sent_count)
        return _with(
            world._replace(logs=tuple(logs)), who, status._replace(unhanded=(snapshot, part))
        )

    def _handed_in(self, world: World, who: int, snapshot: int, part: Part) -> World:
        if world.request == snapshot:
            parts = (*world.parts[:who], part, *world.parts[who + 1 :])
            world = world._replace(parts=parts)
        status = world.statuses[who]
        assert status.tails is not None
        handed = _with(world, who, status._replace(unhanded=None))
        idle = _with(world, who, status._replace(unhanded=None, tails=None))
        return self._planned(handed, who, status.tails) or idle

    def _planned(self, world: World, who: int, ends: tuple[int, ...]) -> World | None:
        status = world.statuses[who]
        if self.scene.is_batched:
            ends = self._without_trailing_barriers(world, who, ends)
        can_read = any(map(int.__lt__, status.positions, ends))
        can_send = status.sent_count < self.scene.own_counts.get(self.names[who], 0)
        return _with(world, who, status._replace(ends=ends)) if can_read or can_send else None

    def _without_trailing_barriers(
        self, world: World, who: int, ends: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Do what ``spark.scan_planner`` does: no batch begins only to step over a barrier."""
        earlier = []
        for log, start, end in zip(
            self.incoming[who], world.statuses[who].positions, ends, strict=True
        ):
            number = max(start, end)
            while number > start and isinstance(world.logs[log][number - 1], Barrier):
                number -= 1
            earlier.append(number)
        return tuple(earlier)

    def _acted(self, world: World, who: int, ends: tuple[int, ...]) -> Iterator[World]:
        status = world.statuses[who]._replace(tails=None, ends=None)
        name = self.names[who]
        if status.sent_count < self.scene.own_counts.get(name, 0):
            sent = status._replace(sent_count=status.sent_count + 1)
            yield self._appended(world, who, sent, [f"{name}{status.sent_count}"])
        choices = []
        if self.scene.is_batched:
            choices = [tuple(map(max, status.positions, ends))]
        else:
            for place, (position, end) in enumerate(zip(status.positions, ends, strict=True)):
                if position < end:
                    before, after = status.positions[:place], status.positions[place + 1 :]
                    choices.append((*before, position + 1, *after))
        for positions in choices:
            if positions == status.positions:
                continue
            tokens = [
                token
                for log, start, end in zip(
                    self.incoming[who], status.positions, positions, strict=True
                )
                for token in tokens_of(world.logs[log][start:end])
            ]
            read = tuple(sorted((*status.read, *tokens)))
            moved = status._replace(positions=positions, read=read)
            yield self._appended(world, who, moved, [f"{token}.{name}" for token in tokens])

    def _appended(
        self, world: World, who: int, status: ParticipantStatus, tokens: list[str]
    ) -> World:
        logs = list(world.logs)
        for log in self.outgoing[who]:
            if mine := tuple(token for token in tokens if self.route(who, token) == log):
                logs[log] = (*logs[log], Tokens(mine))
        return _with(world._replace(logs=tuple(logs)), who, status)

    def route(self, who: int, token: str) -> int | None:
        """Return the log to which a participant sends a token; None if it stays where it is."""
        outgoing = self.outgoing[who]
        if not outgoing or token.count(".") > self.scene.hop_count_max:
            return None
        return outgoing[sum(map(ord, token)) % len(outgoing)]


def tokens_of(items: tuple[Item, ...]) -> tuple[str, ...]:
    """Return the tokens of some items, without the barriers between them."""
    return tuple(token for item in items if isinstance(item, Tokens) for token in item.tokens)


def _with(world: World, who: int, status: ParticipantStatus) -> World:
    statuses = world.statuses
    return world._replace(statuses=(*statuses[:who], status, *statuses[who + 1 :]))
