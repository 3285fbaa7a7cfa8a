"""Executions by the clock: actions at given ticks, and a delay for every message and marker."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Channel
from stillframe.sim import choices
from stillframe.sim.network import Frame
from stillframe.sim.scripted_process import Script, ScriptedMessage
from stillframe.sim.world import World
from stillframe.topology import Topology

TickAction = choices.Act | choices.Initiate
"""The choices that have a tick; arrivals follow from delays."""
TICK_MAX = 1_000_000
ARRIVAL_COUNT_MAX = 100_000
"""The maximum number of arrivals, since some systems never become idle."""


def play(
    topology: Topology,
    actions: Iterable[tuple[int, TickAction]],
    delays: Iterable[int] = (),
    *,
    tick: Callable[[int, World], None] = lambda number, world: None,
) -> World:
    """Take `actions` at their ticks, from 0 on and never decreasing, and deliver every message and
    marker after its delay; return the world at the end.

    `delays` are in ticks and in the order of sending, 1 for those beyond their end. Within one
    tick, first everything due arrives, in the order of sending, then the actions are taken, and
    then everything that they sent with a delay of 0 arrives. Channels keep order, whatever the
    delays. `tick` is called at the end of each. UsageError, with the tick, if an action is not
    possible when it is due, or the run does not end.
    """
    world = World(topology)
    waiting = iter(delays)
    for number in TimedRun(world, actions, lambda channel, frame: next(waiting, 1)).ticks():
        tick(number, world)
    return world


class TimedRun:
    """A world in which time passes in ticks; frames in flight already count as sent at tick 0.

    `delay` returns the delay of a frame that was just sent, in ticks. Events of `script` may accept
    several messages together.
    """

    def __init__(
        self,
        world: World,
        actions: Iterable[tuple[int, TickAction]],
        delay: Callable[[Channel, Frame], int],
        script: Script | None = None,
    ) -> None:
        self._world = world
        self._actions = deque(actions)
        self._delay = delay
        self._script = script
        self._order = 0
        self._due: dict[Channel, deque[tuple[int, int]]] = {c: deque() for c in world.channels}
        self._number = 0
        self._arrival_count = 0
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

    def ticks(self) -> Iterator[int]:
        """Run to the end, and yield after each tick. UsageError if an action is not possible when
        it is due, a connection is lost, or the run does not end."""
        self._plan_in_flight()
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
            yield following
            following = self._next_tick(following)

    def _next_tick(self, number: int) -> int | None:
        """Return the next tick after `number` in which something happens; None if there is none. A
        message that is due but is accepted together with others arrives when they do."""
        heads = [queue[0][0] for queue in self._due.values() if queue and queue[0][0] > number]
        heads += [due for due, _ in self._actions][:1]
        return min(heads, default=None)

    def _deliver_due(self) -> None:
        """Deliver the frames that are due, in the order of sending. Only the head of a channel can
        be, so order is kept whatever the delays."""
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
        for _, channel in heads:
            channels: tuple[Channel, ...] = (channel,)
            if self._script is not None:
                channels = together(self._script, self._world, channel)
            if due.issuperset(channels):  # else it waits for the others
                return choices.Deliver(channels)
        return None

    def _take(self, choice: choices.Choice) -> None:
        self._world.take(choice)
        self._plan_sent()

    def _plan_in_flight(self) -> None:
        """Treat the frames in flight as sent now: those older than `sendings` first."""
        sendings = self._world.sendings
        new = Counter(sendings)
        for channel, memory in self._world.channels.items():
            if not memory.is_connected:
                raise UsageError(
                    f"the connection of {channel} is lost: before time goes by in ticks, let it "
                    "'connect', or the system 'restart'"
                )
            sendings[:0] = [channel] * (len(memory) - new[channel])
        self._plan_sent()

    def _plan_sent(self) -> None:
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
    message = world.runners[channel.target].decode(frames[0].batch.messages()[0])
    assert isinstance(message, ScriptedMessage), message
    senders = [sender for sender, accepting in script.messages if accepting == message.event]
    return tuple(sorted({Channel(script.process_of(s), channel.target) for s in senders}))
