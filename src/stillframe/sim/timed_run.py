"""Executions by the clock: actions at given ticks, and a delay for every message and marker."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from stillframe.errors import ApplicationError, StillframeError, UsageError, check_kind
from stillframe.model import Channel
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Frame, Network, Reordering
from stillframe.sim.scripted_process import (
    RULES,
    Script,
    ScriptedMessage,
    message_name,
    scripted_topology,
)
from stillframe.sim.world import SnapshotRecorder, World
from stillframe.topology import Topology
from stillframe.trace import MessageId

TickAction = choices.Act | choices.Initiate
"""The choices that have a tick; arrivals follow from delays."""
TICK_MAX = 1_000_000
ARRIVAL_COUNT_MAX = 100_000
"""The maximum number of arrivals, since some systems never become idle."""


def play(
    system: Topology | Script,
    actions: Iterable[tuple[int, TickAction | str]],
    delays: Iterable[int | None] | Mapping[str, int | None] = (),
    *,
    network: Network = Fifo,
    recorder: Callable[..., SnapshotRecorder] = Recorder,
    tick: Callable[[int, World], None] = lambda number, world: None,
) -> World:
    """Play an execution by the clock, in virtual time.

    Within one tick, first everything due arrives, in the order of sending, then the actions are
    taken, and then everything that they sent with a delay of 0 arrives. A channel that keeps order
    delivers in that order, whatever the delays.

    Args:
        system: the processes and channels; those of a script with its channels and rules.
        actions: what happens at which tick, from 0 on and never decreasing: a choice, or its text,
            such as ``(2, "P1 does pay(5)")`` or ``(4, "P1 initiates P1-1")``.
        delays: in ticks, 1 by default, None for what never arrives; in the order of sending, or by
            name: ``"P1->P2 #3"`` is the third message of a channel, ``"marker P1->P2"`` its marker,
            ``"B>F"`` a message of a script.
        network: what is assumed of every channel of a topology.
        recorder: the recording rules of a topology.
        tick: called at the end of each tick in which something happens.

    Returns:
        The world at the end: see its ``trace``, ``state`` and ``recorded``.

    Raises:
        UsageError: an action is not possible when it is due, no message with a given name was sent,
            or the run does not end; the error names the tick.
        ApplicationError: a handler raised; the error names the tick and the process.
    """
    check_kind("system", system, Topology | Script, "a Topology, or a Script")
    script = system if isinstance(system, Script) else None
    if script is not None:
        network, recorder = script.network, RULES[script.rules]
    topology = system if isinstance(system, Topology) else scripted_topology(system)
    world = World(topology, network=network, recorder=recorder)
    taken = [
        (number, action if isinstance(action, choices.Choice) else choices.parse_choice(action))
        for number, action in actions
    ]
    if isinstance(delays, Mapping):
        run = TimedRun(world, taken, script=script, named=delays)
    else:
        run = TimedRun(world, taken, delays, script=script)
    for number in run.ticks():
        tick(number, world)
    if run.unmet:
        raise UsageError(f"delays: no message called {min(run.unmet)!r} can arrive")
    return world


class TimedRun:
    """A world in which time passes in ticks; frames in transit already count as sent at tick 0.

    `delays` are in ticks and in the order of sending, 1 after their end; `named` are those of
    messages and markers by name; None: it never arrives. `unmet` has the names in `named` that
    nothing had so far. Events of `script` may accept several messages together. After an error
    `cause` is the index of the action that failed, or that led to the arrival that did; None: no
    action did.
    """

    def __init__(
        self,
        world: World,
        actions: Iterable[tuple[int, choices.Choice]],
        delays: Iterable[int | None] = (),
        *,
        script: Script | None = None,
        named: Mapping[str, int | None] = {},
    ) -> None:
        self.cause: int | None = None
        self.unmet = {*named}
        self._world = world
        self._actions = tuple(actions)
        self._taken_count = 0
        self._delays = iter(delays)
        self._script = script
        self._named = named
        self._order = 0
        self._in_transit: dict[Channel, list[_TimedFrame]] = {c: [] for c in world.channels}
        self._number = 0
        self._arrival_count = 0

    def ticks(self) -> Iterator[int]:
        """Run to the end, and yield after each tick. UsageError if an action is not possible when
        it is due, a connection is lost, or the run does not end."""
        self._check_actions()
        self._plan_in_transit()
        following = self._next_tick(-1)
        while following is not None:
            self._number = following
            self._world.now = float(following)
            try:
                self._deliver_due()
                while self._due_action() == following:
                    self.cause = self._taken_count
                    self._take(self._actions[self.cause][1])
                    self._taken_count += 1
                self._deliver_due()
            except ApplicationError as error:
                where = f"tick {following}: {error}"
                raise ApplicationError(where, process=error.process) from error.__cause__
            except StillframeError as error:
                raise UsageError(f"tick {following}: {error}", process=error.process) from error
            yield following
            following = self._next_tick(following)

    def _check_actions(self) -> None:
        latest = 0
        for index, (number, choice) in enumerate(self._actions):
            self.cause = index
            if not isinstance(choice, choices.Act | choices.Initiate):
                raise UsageError(
                    f"tick {number}: {choice}: at a tick a process acts or initiates a snapshot; "
                    "delays determine when messages arrive"
                )
            if not latest <= number <= TICK_MAX:
                raise UsageError(
                    f"tick {number}: {choice}: ticks are 0 to {TICK_MAX:,} and must not go down, "
                    f"and the one before is {latest}"
                )
            latest = number
        self.cause = None

    def _due_action(self) -> int | None:
        """Return the tick of the next action."""
        count = self._taken_count
        return self._actions[count][0] if count < len(self._actions) else None

    def _next_tick(self, number: int) -> int | None:
        """Return the next tick after `number` in which something happens; None if there is none. A
        message that is due but is accepted together with others arrives when they do."""
        due = [frame.due for frame, _, _ in self._candidates()] + [self._due_action()]
        return min((tick for tick in due if tick is not None and tick > number), default=None)

    def _candidates(self) -> Iterator[tuple["_TimedFrame", Channel, int]]:
        """Yield the frames that can arrive, each with its channel and its position there: on a
        channel that keeps order only the oldest."""
        for channel, frames in self._in_transit.items():
            reach = frames if self._world.network is Reordering else frames[:1]
            for position, frame in enumerate(reach):
                yield frame, channel, position

    def _deliver_due(self) -> None:
        """Deliver the frames that are due, in the order of sending."""
        while arrival := self._next_arrival():
            self._arrival_count += 1
            if self._arrival_count > ARRIVAL_COUNT_MAX:
                raise UsageError(
                    f"the run does not end within {ARRIVAL_COUNT_MAX:,} arrivals: its processes "
                    "answer each other forever"
                )
            frames = [
                self._in_transit[channel].pop(arrival.position) for channel in arrival.channels
            ]
            self.cause = frames[-1].cause
            self._take(arrival)

    def _next_arrival(self) -> choices.Deliver | None:
        due = [
            (frame.order, channel, position)
            for frame, channel, position in self._candidates()
            if frame.due is not None and frame.due <= self._number
        ]
        ready = {channel for _, channel, _ in due}
        for _, channel, position in sorted(due):
            channels: tuple[Channel, ...] = (channel,)
            if self._script is not None:
                channels = together(self._script, self._world, channel, position)
            if ready.issuperset(channels):  # else it waits for the others
                return choices.Deliver(channels, position)
        return None

    def _take(self, choice: choices.Choice) -> None:
        self._world.take(choice)
        self._plan_sent()

    def _plan_in_transit(self) -> None:
        """Treat the frames in transit as sent now: those older than `sendings` first."""
        sendings = self._world.sendings
        new = Counter(sendings)
        for channel, memory in self._world.channels.items():
            if not memory.is_connected:
                raise UsageError(
                    f"the connection of {channel} is lost: use 'connect' or 'restart' before the "
                    "first tick"
                )
            sendings[:0] = [channel] * (len(memory) - new[channel])
        self._plan_sent()

    def _plan_sent(self) -> None:
        new = Counter(self._world.sendings)
        for channel in self._world.sendings:
            frame = self._world.channels[channel].contents[-new[channel]]
            new[channel] -= 1
            delay = self._delay(channel, frame)
            if delay is not None and not 0 <= delay <= TICK_MAX:
                raise UsageError(
                    f"channel {channel}: a delay of {delay} ticks: give 0 to {TICK_MAX:,}"
                )
            due = None if delay is None else self._number + delay
            self._in_transit[channel].append(_TimedFrame(due, self._order, self.cause))
            self._order += 1
        self._world.sendings.clear()

    def _delay(self, channel: Channel, frame: Frame) -> int | None:
        names = [f"marker {channel}"]
        if frame.batch is not None:
            message = self._world.runners[channel.target].decode(frame.batch.messages()[0])
            if isinstance(message, ScriptedMessage) and message.is_never_received:
                return None
            names = [message_name(message), str(MessageId(channel, frame.batch.first))]
        self.unmet.difference_update(names)
        in_order = next(self._delays, 1)
        return next((self._named[name] for name in names if name in self._named), in_order)


class _TimedFrame(NamedTuple):
    """A frame in transit: the tick at which it arrives, or None; its place in the order of sending;
    and the index of the action that led to it."""

    due: int | None
    order: int
    cause: int | None


def together(
    script: Script, world: World, channel: Channel, position: int = 0
) -> tuple[Channel, ...]:
    """Return the channels whose messages one event accepts together with that of `channel`."""
    frames = world.channels[channel].contents[position : position + 1]
    if not frames or frames[0].batch is None:
        return (channel,)
    message = world.runners[channel.target].decode(frames[0].batch.messages()[0])
    assert isinstance(message, ScriptedMessage), message
    sources = script.together(message) or (channel.source,)
    return tuple(sorted({Channel(source, channel.target) for source in sources}))
