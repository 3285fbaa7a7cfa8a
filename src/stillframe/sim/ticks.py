"""Executions by the clock: what is done at which tick, and how long what is sent takes."""

from collections import Counter, deque
from collections.abc import Callable, Iterable

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Channel
from stillframe.sim import choices
from stillframe.sim.network import Frame
from stillframe.sim.scripted import Note, Script
from stillframe.sim.world import World
from stillframe.topology import Topology

TickAction = choices.Act | choices.Initiate
"""What can be done at a tick; when something arrives is a matter of its delay."""
TICK_MAX = 1_000_000
ARRIVAL_COUNT_MAX = 100_000
"""After so many arrivals a run is taken for one that never ends: some systems never rest."""


def play(
    topology: Topology,
    actions: Iterable[tuple[int, TickAction]],
    delays: Iterable[int] = (),
    *,
    tick: Callable[[int, World], None] = lambda number, world: None,
) -> World:
    """Let things happen at given ticks, and everything that is sent arrive after its delay.

    Within one tick first arrives what is due, in the order of sending, then the actions are taken,
    and then arrives what they sent with a delay of 0. A channel keeps order: what was sent later
    never arrives earlier.

    Args:
        topology: the system.
        actions: what is done when, in ticks from 0; ticks must not go down.
        delays: for every message and marker, in the order of sending, how many ticks it takes; 1
            for those beyond the end.
        tick: is called after everything that happened in a tick.

    Returns:
        the world at the end: its snapshots are in ``world.epoch.outcomes``.

    Raises:
        UsageError: an action is not possible when it is due, or the run does not end; the tick is
            named.
    """
    world = World(topology)
    waiting = iter(delays)
    run_ticks(world, actions, lambda channel, frame: next(waiting, 1), tick=tick)
    return world


def run_ticks(
    world: World,
    actions: Iterable[tuple[int, TickAction]],
    delay: Callable[[Channel, Frame], int],
    *,
    script: Script | None = None,
    tick: Callable[[int, World], None],
) -> None:
    """Do in `world` what ``play`` does; what is on its way already is as if sent at tick 0.

    Args:
        world: where it happens; every connection is there.
        actions: what is done when.
        delay: says how many ticks something that was just sent takes.
        script: whose events may accept several messages together; None if none does.
        tick: is called after everything that happened in a tick.

    Raises:
        UsageError: an action is not possible when it is due, a connection is lost, or the run does
            not end.
    """
    _Ticks(world, actions, delay, script).run(tick)


class _Ticks:
    """A world in which time goes by in ticks."""

    def __init__(
        self,
        world: World,
        actions: Iterable[tuple[int, TickAction]],
        delay: Callable[[Channel, Frame], int],
        script: Script | None,
    ) -> None:
        self._world = world
        self._actions = deque(actions)
        self._check_actions()
        self._delay = delay
        self._script = script
        self._order = 0
        self._due: dict[Channel, deque[tuple[int, int]]] = {c: deque() for c in world.channels}
        self._number = 0
        self._arrival_count = 0

    def _check_actions(self) -> None:
        latest = 0
        for number, choice in self._actions:
            if not isinstance(choice, choices.Act | choices.Initiate):
                raise UsageError(
                    f"tick {number}: {choice}: at a tick a process acts or initiates a snapshot; "
                    "when something arrives is said by its delay"
                )
            if not latest <= number <= TICK_MAX:
                raise UsageError(
                    f"tick {number}: {choice}: ticks are 0 to {TICK_MAX:,} and must not go down, "
                    f"and the one before is {latest}"
                )
            latest = number

    def run(self, tick: Callable[[int, World], None]) -> None:
        self._note_what_is_there()
        following = self._next_tick(-1)
        while following is not None:
            self._number = following
            self._world.now = float(following)
            try:
                self._deliver_due()
                while self._actions and self._actions[0][0] == following:
                    self._take(self._actions.popleft()[1])
                self._deliver_due()
            except StillframeError as error:
                raise UsageError(f"tick {following}: {error}") from error
            tick(following, self._world)
            following = self._next_tick(following)

    def _next_tick(self, number: int) -> int | None:
        """Return when something happens next, after tick `number`; None if nothing does any more.

        What is due but waits for others, to be accepted with them, comes when they do.
        """
        heads = [queue[0][0] for queue in self._due.values() if queue and queue[0][0] > number]
        heads += [due for due, _ in self._actions][:1]
        return min(heads, default=None)

    def _deliver_due(self) -> None:
        """Deliver what is due, in the order of sending; only the head of a channel can be, so order
        is kept whatever the delays."""
        while arrival := self._next_arrival():
            self._arrival_count += 1
            if self._arrival_count > ARRIVAL_COUNT_MAX:
                raise UsageError(
                    f"the run does not end within {ARRIVAL_COUNT_MAX:,} arrivals: its processes "
                    "answer each other for ever"
                )
            self._take(arrival)
            for channel in arrival.channels:
                self._due[channel].popleft()

    def _next_arrival(self) -> choices.Deliver | None:
        heads = sorted(
            (queue[0][1], channel)
            for channel, queue in self._due.items()
            if queue and queue[0][0] <= self._number
        )
        due = {channel for _, channel in heads}
        arrivals = (self._arrival(channel, due) for _, channel in heads)
        return next((arrival for arrival in arrivals if arrival is not None), None)

    def _arrival(self, channel: Channel, due: set[Channel]) -> choices.Deliver | None:
        """Return what arrives with the head of `channel`; None if that must wait for others."""
        channels = (
            together(self._script, self._world, channel) if self._script is not None else (channel,)
        )
        return choices.Deliver(channels) if due.issuperset(channels) else None

    def _take(self, choice: choices.Choice) -> None:
        self._world.take(choice)
        self._note_sendings()

    def _note_what_is_there(self) -> None:
        """Take what is on its way already as sent now: what is older than `sendings` first."""
        sendings = self._world.sendings
        new = Counter(sendings)
        for channel, memory in self._world.channels.items():
            if not memory.is_connected:
                raise UsageError(
                    f"the connection of {channel} is lost: before time goes by in ticks, let it "
                    "'connect', or the system 'restart'"
                )
            sendings[:0] = [channel] * (len(memory) - new[channel])
        self._note_sendings()

    def _note_sendings(self) -> None:
        new = Counter(self._world.sendings)
        for channel in self._world.sendings:
            frame = self._world.channels[channel].contents[-new[channel]]
            new[channel] -= 1
            delay = self._delay(channel, frame)
            if not 0 <= delay <= TICK_MAX:
                raise UsageError(
                    f"channel {channel}: a delay of {delay} ticks: give 0 to {TICK_MAX:,}"
                )
            self._due[channel].append((self._number + delay, self._order))
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
