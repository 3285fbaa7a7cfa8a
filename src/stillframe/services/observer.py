"""The collector: it listens for agents, takes observations, and hands them on to be stored."""

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from stillframe.errors import (
    ProtocolViolation,
    Refused,
    StillframeError,
    StoreError,
    describe,
    text_of,
)
from stillframe.model import DECODING_ERRORS
from stillframe.protocol import wire
from stillframe.protocol.activities import NUMBER_MAX, InstanceState, service_of
from stillframe.protocol.calls import (
    UNIT_COUNT_MAX,
    Amounts,
    Baseline,
    CallLedger,
    Collector,
    Farewell,
    InstanceFragment,
    Missing,
    Observation,
    Settlement,
    check_farewell,
    check_fragment,
)
from stillframe.protocol.handshake import NONCE_BYTES, Hello, Listener
from stillframe.protocol.handshake import Welcome as Greeted
from stillframe.runtime.network.acceptor import Acceptor
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import InboundConnection
from stillframe.services import control
from stillframe.services.agent import NAME_LENGTH_MAX
from stillframe.services.agent_connection import PROTOCOL, other_protocol
from stillframe.services.headers import COLOUR_MAX

UNSENT_BYTES_MAX = 2**24
"""An agent that has so much to read is sent no more acknowledgements."""
FAREWELL_BYTES_MAX = 2**22
"""The ledger keeps a farewell until all of it is settled."""
UNPROVED_COUNT_MAX = 100
"""How many agents that have another secret or protocol are remembered, so that each is reported
once."""
Membership = Literal["joined", "left", "ended"]
_decode: Callable[[bytes], control.FromAgent] = msgspec.msgpack.Decoder(control.FromAgent).decode


class ObserverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a collector.

    Attributes:
        secret: the secret that all instances of the system share.
        interval_s: how often an observation is taken.
        timeout_s: an observation that takes longer is abandoned.
        retire_s: an instance that is disconnected for longer, or that others have heard of for
            longer and that never connected, must not connect under its name.
        certificates: the directory of certificates; needed unless agents connect over loopback.
    """

    secret: bytes
    interval_s: float = 1.0
    timeout_s: float = 10.0
    retire_s: float = 300.0
    certificates: str | None = None


class _OtherProtocol(Refused):
    """An agent of another version of stillframe."""


class _AgentConnection(InboundConnection):
    """The collector's end of the connection to one agent."""

    def __init__(self, observer: "Observer", listener: Listener) -> None:
        super().__init__(listener)
        self.instance: str | None = None
        self.has_joined = False
        self.frame_bytes = 0
        self._observer = observer
        self._claimed = ""
        self._service: str | None = None

    def take(self, frame: wire.Frame) -> None:
        """Pass on a message of the agent."""
        if not isinstance(frame, wire.Control):
            if isinstance(frame, Hello):
                self._claimed = frame.source
                if frame.topology_hash != PROTOCOL:
                    raise _OtherProtocol(other_protocol(frame.topology_hash, PROTOCOL))
            name = self.authenticate(frame)
            if name is not None:
                self._service = name
                self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
                self.write_greeting(Greeted(0))
            return
        try:
            self.frame_bytes = len(frame.encoded)
            message = _decode(frame.encoded)
        except DECODING_ERRORS as error:
            raise ProtocolViolation(f"its message cannot be read: {text_of(error)}") from error
        if isinstance(message, control.Join):
            name, service = message.instance, self._service
            if name == service or service_of(name) != service:
                raise Refused(f"{name!a} is not the name of an instance of {service}")
        self._observer.on_message(self, message)

    def send(self, message: control.ToAgent) -> None:
        """Send a message to the agent."""
        if self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Report why a stranger is refused, or an agent is disconnected."""
        detail = f"the connection of {self.instance or self.peer} was closed: {error}"
        if self._service is not None:
            self._observer.warn(detail)
            return
        self.decline(error)
        if isinstance(error, _OtherProtocol):
            self._observer.on_refused(f"{self._who()} was refused: {error}")
        else:
            self._observer.acceptor.refused(detail)

    def crashed(self, error: Exception) -> None:
        """Report a bug."""
        self._observer.warn(f"a bug in stillframe: {describe(error)}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the agent is disconnected. One with another secret says nothing before."""
        is_ours = self._is_aborted or self.transport is None
        if self._claimed and self._service is None and not is_ours:
            self._observer.on_refused(
                f"{self._who()} has closed its connection before it had proved that it knows the "
                "secret: give it, as secret=, the one that this collector has in STILLFRAME_SECRET "
                "or the file of --secret-file"
            )
        super().connection_lost(exc)
        self._observer.on_lost(self)

    def _who(self) -> str:
        host = self.peer.rpartition(":")[0]
        return f"an agent of {self._claimed[:NAME_LENGTH_MAX]!a} at {host}"


class Observer:
    """Takes observations of the services whose agents are connected.

    Args:
        config: the settings.
        ledger: what the collector before knew, if there was one.
        number: the newest observation that is stored.
        publish: stores an observation and the ledger after it, before instances forget what is
            settled. It takes when the observation was initiated and completed, in seconds since
            1970. After a StillframeError the observation is abandoned, and nothing is settled. It
            is called in another thread, and nothing else is stored meanwhile.
        store: stores the ledger, after each other change of it.
        abandoned: takes the number of an observation that was abandoned, and why.
        warn: takes a sentence about a connection.
        member: takes the name of an instance, and whether it joined, left, or ended in order.
    """

    def __init__(
        self,
        config: ObserverConfig,
        *,
        ledger: CallLedger | None = None,
        number: int = 0,
        publish: Callable[[Observation, tuple[float, float], CallLedger], object],
        store: Callable[[CallLedger], None],
        abandoned: Callable[[int, str], None],
        warn: Callable[[str], None],
        member: Callable[[str, Membership], None] = lambda name, change: None,
    ) -> None:
        self.warn = warn
        self.collector = Collector(ledger, number)
        # Those of the collector before may all connect at the same time.
        expected_count = len(self.collector.ledger.members)
        self.acceptor = Acceptor(self._answer, warn, expected_count=expected_count)
        self._config = config
        self._publish = publish
        self._store = store
        self._abandoned = abandoned
        self._member = member
        self._initiated_at = 0.0
        self._connections: dict[str, _AgentConnection] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended = asyncio.Event()
        self._refused: deque[str] = deque(maxlen=UNPROVED_COUNT_MAX)
        self._publishing: asyncio.Task[None] | None = None
        self._postponed: list[tuple[_AgentConnection | None, Callable[[], None]]] = []

    async def open(self, listen: Address) -> Address:
        """Listen for agents; return the address with its port. Those that were connected to the
        collector before have the time of `retire_s` to connect again."""
        ledger = self.collector.ledger
        for name in tuple(ledger.members):
            self.collector.left(name)
        for name in ledger.disconnected.keys() - ledger.retired:
            self._retire_later(name)
        return await self.acceptor.open(listen, self._config.certificates)

    async def run(self) -> None:
        """Take an observation at each interval, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._config.interval_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if self._connections:
                await self.observe()

    async def observe(self) -> None:
        """Take one observation, and wait for its end."""
        self._ended.clear()
        self._initiated_at = time.time()
        start = self.collector.begin()
        for connection in self._connections.values():
            connection.send(control.Begin(start))
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await self._ended.wait()
        except TimeoutError:
            if (missing := self.collector.abandon()) is not None:
                names = ", ".join(missing.instances)
                self._end(missing, f"no fragment of {names} in {self._config.timeout_s:g} s")
            if self._publishing is not None:
                await self._ended.wait()

    async def rebase(self, baseline: Baseline, until: float = math.inf) -> tuple[str, ...] | None:
        """Begin a new baseline, because an operator has decided that what is unknown does not
        matter any more. An observation that is pending is abandoned; one that is being stored is
        stored before.

        Args:
            baseline: who has decided it, when and why.
            until: a time, in seconds since 1970, after which it does not begin any more.

        Returns:
            The instances that were gone. They must not connect again under their names. None if it
            was too late.

        Raises:
            StoreError: it could not be stored. Then it has not begun.
        """
        loop = asyncio.get_running_loop()
        rebased: asyncio.Future[tuple[str, ...] | None] = loop.create_future()

        def begin() -> None:
            if rebased.cancelled():
                return
            try:
                rebased.set_result(self._rebase(baseline) if time.time() <= until else None)
            except Exception as error:  # noqa: BLE001 - it is for the operator
                rebased.set_exception(error)

        self._change(begin)
        return await rebased

    def _rebase(self, baseline: Baseline) -> tuple[str, ...]:
        before = _copy_of(self.collector.ledger)
        if (missing := self.collector.abandon()) is not None:
            self._end(missing, "a new baseline begins")
        gone = self.collector.rebase(baseline)
        try:
            self._store(self.collector.ledger)
        except Exception:
            self.collector.ledger = before
            raise
        for name in self._timers.keys() & self.collector.ledger.retired:
            self._timers.pop(name).cancel()
        return gone

    async def close(self) -> None:
        """Accept nothing more, and disconnect every agent, when what is being stored is stored."""
        self.acceptor.close()
        if self._publishing is not None:
            await self._publishing
        for timer in self._timers.values():
            timer.cancel()
        # They are members until a collector that starts again misses them.
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _answer(self) -> _AgentConnection:
        return _AgentConnection(
            self,
            Listener(
                secret=self._config.secret,
                epoch=0,
                topology_hash=PROTOCOL,
                target=None,
                sources=None,
                nonce=secrets.token_bytes(NONCE_BYTES),
            ),
        )

    # --- messages

    def on_message(self, connection: _AgentConnection, message: control.FromAgent) -> None:
        """Act on a message of an agent."""
        match message:
            case control.Join(instance, colour):
                if connection.has_joined:
                    raise ProtocolViolation(f"{instance} has joined already")
                connection.has_joined = True
                self._check_counted(colour, self.collector.number)
                self._check_counted(
                    message.retirement_count, self.collector.ledger.retirement_count
                )
                _check_amounts(message.began_with)
                self._change(lambda: self._join(connection, message), connection)
            case control.Captured(fragment) if fragment.instance == connection.instance:
                self._take(message)
            case control.Goodbye(farewell) if farewell.fragment.instance == connection.instance:
                self._check_counted(farewell.fragment.observation, self.collector.number)
                check_farewell(farewell)
                _check_amounts(farewell.amounts)
                if connection.frame_bytes > FAREWELL_BYTES_MAX:
                    raise ProtocolViolation(
                        f"its farewell has {connection.frame_bytes:,} bytes: the most are "
                        f"{FAREWELL_BYTES_MAX:,}"
                    )
                self._change(lambda: self._end_in_order(connection, farewell), connection)
            case control.Forward(instance, acknowledgement):
                self._check_counted(acknowledgement.colour, self.collector.number)
                target = self._connections.get(instance)
                if target is None or target.unsent_bytes > UNSENT_BYTES_MAX:
                    return
                if acknowledgement.caller == connection.instance:
                    # Without it, the next observation settles the answers.
                    target.send(control.Acknowledged(acknowledgement))

    def _check_counted(self, count: int, known: int) -> None:
        """Refuse what no collector has counted to: the next numbers would be out of range."""
        if count > max(known, COLOUR_MAX):
            raise ProtocolViolation(f"no collector has counted to {count}")

    def _join(self, connection: _AgentConnection, join: control.Join) -> None:
        name, ledger = join.instance, self.collector.ledger
        is_unknown = name not in ledger.disconnected and name not in self._connections
        if name in ledger.retired or (join.was_connected and is_unknown):
            connection.send(control.Rename())
            connection.close()
            return
        earlier = self._connections.pop(name, None)
        if earlier is not None:
            earlier.instance = None
            earlier.close()
            self._left(name)
        if name in self._timers:
            self._timers.pop(name).cancel()
        connection.instance = name
        self._connections[name] = connection
        start = self.collector.joined(
            name, join.colour, join.retirement_count, began_with=join.began_with
        )
        # If that fails, the connection is closed, and the agent tries again.
        self._store(self.collector.ledger)
        self._member(name, "joined")
        connection.send(control.Welcome())
        if start is not None:
            connection.send(control.Begin(start))

    def _end_in_order(self, connection: _AgentConnection, farewell: Farewell) -> None:
        name = farewell.fragment.instance
        if self._connections.get(name) is not connection:
            return
        before = _copy_of(self.collector.ledger)
        missing = self.collector.ended(farewell)
        try:
            self._store(self.collector.ledger)
        except Exception:
            # It is not confirmed, and the instance is gone when its connection is.
            self.collector.ledger = before
            if missing is not None:
                self._end(missing, f"the end of {name} could not be stored")
            raise
        del self._connections[name]
        self._member(name, "ended")
        if missing is not None:
            self._end(missing, f"{name} has ended")
        connection.send(control.Ended())
        connection.close()

    def _take(self, message: control.Captured) -> None:
        fragment = msgspec.structs.replace(message.fragment, state=_state_of(message.fragment))
        self._check_counted(fragment.observation, self.collector.number)
        check_fragment(fragment)
        # Only the last fragment changes it.
        is_last = self.collector.awaited == (fragment.instance,)
        before = _copy_of(self.collector.ledger) if is_last else self.collector.ledger
        try:
            result = self.collector.add(fragment)
        except Exception as error:  # noqa: BLE001 - the collector must survive it
            self._give_up(fragment.observation, error, before)
            return
        if result is None:
            return
        publishing = self._publish_aside(*result, before)
        self._publishing = asyncio.get_running_loop().create_task(publishing)

    # --- storing

    async def _publish_aside(
        self, observation: Observation, settlement: Settlement, before: CallLedger
    ) -> None:
        """Store an observation in another thread. For the rules it is one step: what else changes
        the ledger is postponed."""
        times = self._initiated_at, time.time()
        try:
            await asyncio.to_thread(self._publish, observation, times, self.collector.ledger)
        except Exception as error:  # noqa: BLE001 - the collector must survive it
            self._give_up(observation.number, error, before)
        else:
            for name, connection in self._connections.items():
                connection.send(control.Settle(settlement.of(name)))
            for name in self.collector.retirable - self._timers.keys():
                self._retire_later(name)
        self._publishing = None
        self._ended.set()
        postponed, self._postponed = self._postponed, []
        for origin, change in postponed:
            try:
                change()
            except Exception as error:  # noqa: BLE001 - the others are to happen
                self._fail(origin, error)

    def _give_up(self, number: int, error: Exception, before: CallLedger) -> None:
        """Abandon an observation. What it would have settled is in the next one again."""
        self.collector.ledger = before
        self._ended.set()
        is_ours = isinstance(error, StillframeError)
        self._abandoned(number, str(error) if is_ours else describe(error))

    def _change(self, change: Callable[[], None], origin: _AgentConnection | None = None) -> None:
        """Change the ledger for a connection, or for none: now, or when the observation that is
        being stored is stored."""
        if self._publishing is None:
            change()
        else:
            self._postponed.append((origin, change))

    def _fail(self, origin: _AgentConnection | None, error: Exception) -> None:
        """Report why something that was postponed has failed, and close its connection."""
        if origin is None:
            self.warn(describe(error))
            return
        if isinstance(error, StillframeError):
            origin.broken(error)
        else:
            origin.crashed(error)
        origin.close()

    # --- disconnections

    def on_refused(self, sentence: str) -> None:
        """Report an agent that tries again and again in vain: once, unless there were many others
        since."""
        if sentence not in self._refused:
            self._refused.append(sentence)
            self.acceptor.refused(sentence)

    def on_lost(self, connection: _AgentConnection) -> None:
        """Record that an agent is disconnected."""
        self._change(lambda: self._lost(connection), connection)

    def _lost(self, connection: _AgentConnection) -> None:
        name = connection.instance
        if name is not None and self._connections.get(name) is connection:
            del self._connections[name]
            self._left(name)
            self._retire_later(name)

    def _left(self, name: str) -> None:
        missing = self.collector.left(name)
        self._try_to_store()
        self._member(name, "left")
        if missing is not None:
            self._end(missing, f"{name} was disconnected")

    def _end(self, missing: Missing, why: str) -> None:
        self._ended.set()
        self._abandoned(missing.number, why)

    def _retire_later(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(
            self._config.retire_s, self._change, lambda: self._retire(name)
        )

    def _retire(self, name: str) -> None:
        if self._timers.pop(name, None) is None:
            return  # it has joined meanwhile
        self.collector.retire(name)
        self._try_to_store()

    def _try_to_store(self) -> None:
        """Store the ledger. If that fails it is stored with the next observation; until then a
        collector that starts again would report once more who was disconnected."""
        try:
            self._store(self.collector.ledger)
        except StoreError as error:
            self.warn(str(error))


def _copy_of(ledger: CallLedger) -> CallLedger:
    """Return a copy; the calls and fragments in it do not change."""
    fields = msgspec.structs.asdict(ledger)
    copied: dict[str, Any] = {
        name: value.copy() if isinstance(value, dict | set) else value
        for name, value in fields.items()
    }
    nested = ("disconnected", "strangers", "ended", "returned", "effects", "double_spent")
    for name in nested:
        copied[name] = {one: dict(amounts) for one, amounts in copied[name].items()}
    return CallLedger(**copied)


def _check_amounts(amounts: Amounts | None) -> None:
    """Raise a ProtocolViolation if no instance could have these amounts."""
    if amounts is None:
        return
    if len(amounts) > UNIT_COUNT_MAX:
        raise ProtocolViolation(f"its amounts have more than {UNIT_COUNT_MAX} units")
    for unit, amount in amounts.items():
        if abs(amount) > NUMBER_MAX:
            raise ProtocolViolation(
                f"its amount of {unit!a} is above {NUMBER_MAX}: use a larger unit"
            )


def _state_of(fragment: InstanceFragment) -> InstanceState:
    try:
        state = msgspec.convert(fragment.state, InstanceState)
        msgspec.msgpack.decode(state.encoded, type=dict[str, msgspec.Raw])
    except DECODING_ERRORS as error:
        raise ProtocolViolation(f"its state cannot be read: {text_of(error)}") from error
    return state
