"""Executions by the clock: what is done at which tick, and how long what is sent takes."""

from collections import Counter, deque
from collections.abc import Callable, Iterable

from stillframe.errors import UsageError
from stillframe.model import Channel
from stillframe.sim import choices
from stillframe.sim.network import Frame
from stillframe.sim.scripted import Note, Script
from stillframe.sim.world import World
from stillframe.topology import Topology

TICK_MAX = 1_000_000


def play(
    topology: Topology,
    actions: Iterable[tuple[int, choices.Move]],
    delays: Iterable[int] = (),
    *,
    tick: Callable[[int, World], None] = lambda number, world: None,
) -> World:
    """Let things happen at given ticks, and everything that is sent arrive after its delay.

    Within one tick first arrives what is due, in the order of sending, and then the actions are
    taken. A channel keeps order: what was sent later never arrives earlier.

    Args:
        topology: the system.
        actions: what is done when, in ticks from 0; ticks must not go down.
        delays: for every message and marker, in the order of sending, how many ticks it takes; 1
            for those beyond the end.
        tick: is called after everything that happened in a tick.

    Raises:
        UsageError: an action is not possible when it is due.
    """
    world = World(topology)
    waiting = deque(delays)
    run_ticks(world, actions, lambda channel, frame: waiting.popleft() if waiting else 1, tick=tick)
    return world


def run_ticks(
    world: World,
    actions: Iterable[tuple[int, choices.Move]],
    delay: Callable[[Channel, Frame], int],
    *,
    script: Script | None = None,
    tick: Callable[[int, World], None],
) -> None:
    """Do in `world` what ``play`` does.

    Args:
        world: where it happens.
        actions: what is done when.
        delay: says how many ticks something that was just sent takes.
        script: whose events may accept several messages together; None if none does.
        tick: is called after everything that happened in a tick.

    Raises:
        UsageError: an action is not possible when it is due, or it never ends.
    """
    _Ticks(world, actions, delay, script).run(tick)


class _Ticks:
    """A world in which time goes by in ticks."""

    def __init__(
        self,
        world: World,
        actions: Iterable[tuple[int, choices.Move]],
        delay: Callable[[Channel, Frame], int],
        script: Script | None,
    ) -> None:
        self._world = world
        self._actions = deque(actions)
        ticks = [number for number, _ in self._actions]
        if ticks != sorted(ticks):
            raise UsageError(f"the ticks of actions must not go down: {ticks}")
        self._delay = delay
        self._script = script
        self._order = 0
        self._due: dict[Channel, deque[tuple[int, int]]] = {c: deque() for c in world.channels}
        self._number = 0

    def run(self, tick: Callable[[int, World], None]) -> None:
        self._note_sendings()
        while self._actions or any(self._due.values()):
            self._world.now = float(self._number)
            has_happened = self._deliver_due()
            while self._actions and self._actions[0][0] <= self._number:
                self._take(self._actions.popleft()[1])
                has_happened = True
            tick(self._number, self._world)
            if not self._actions and not has_happened and not self._is_due_later():
                return
            self._number += 1
            if self._number > TICK_MAX:
                raise UsageError(f"the run does not end within {TICK_MAX:,} ticks")

    def _is_due_later(self) -> bool:
        return any(queue and queue[0][0] > self._number for queue in self._due.values())

    def _deliver_due(self) -> bool:
        """Deliver what is due, in the order of sending; return whether anything was."""
        has_happened = False
        while True:
            heads = sorted(
                (queue[0][1], channel)
                for channel, queue in self._due.items()
                if queue and queue[0][0] <= self._number
            )
            for _, channel in heads:
                if arrival := self._arrival(channel, {c for _, c in heads}):
                    self._take(arrival)
                    for arrived in arrival.channels:
                        self._due[arrived].popleft()
                    has_happened = True
                    break
            else:
                return has_happened

    def _arrival(self, channel: Channel, due: set[Channel]) -> choices.Deliver | None:
        """Return what arrives with the head of `channel`; None if that must wait for others."""
        channels = (
            together(self._script, self._world, channel) if self._script is not None else (channel,)
        )
        return choices.Deliver(channels) if due.issuperset(channels) else None

    def _take(self, choice: choices.Choice) -> None:
        self._world.take(choice)
        self._note_sendings()

    def _note_sendings(self) -> None:
        new = Counter(self._world.sendings)
        for channel in self._world.sendings:
            queue = self._due[channel]
            frame = self._world.channels[channel].contents[-new[channel]]
            new[channel] -= 1
            delay = self._delay(channel, frame)
            if not 0 <= delay <= TICK_MAX:
                raise UsageError(f"a delay of {delay} ticks: give 0 to {TICK_MAX:,}")
            earliest = queue[-1][0] if queue else 0
            queue.append((max(self._number + delay, earliest), self._order))
            self._order += 1
        self._world.sendings.clear()


def together(script: Script, world: World, channel: Channel) -> tuple[Channel, ...]:
    """Return the channels whose next messages one event accepts together with that of `channel`."""
    frames = world.channels[channel].contents
    if not frames or frames[0].batch is None:
        return (channel,)
    note = world.performers[channel.target].decode(frames[0].batch.messages()[0])
    assert isinstance(note, Note), note
    senders = [sender for sender, accepting in script.messages if accepting == note.event]
    return tuple(sorted({Channel(script.process_of(s), channel.target) for s in senders}))
