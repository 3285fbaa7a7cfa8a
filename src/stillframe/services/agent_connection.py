"""The connection of an agent to the collector. It never delays or fails a request."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stillframe.errors import ProtocolViolation, Refused, StillframeError, describe, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.protocol import wire
from stillframe.protocol.calls import InstanceFragment
from stillframe.protocol.handshake import Challenge, Declined
from stillframe.protocol.handshake import Welcome as Greeted
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.certificates import explain_unreadable
from stillframe.runtime.network.connection import Credentials, OutboundConnection, protocol_of
from stillframe.services import control
from stillframe.services.agent import Agent

FRAGMENT_COUNT_MAX = 4
"""How many fragments wait for the connection. Older ones belong to observations that are over."""
ACKNOWLEDGE_S = 0.25
"""How often answers are acknowledged."""
CONNECT_TIMEOUT_S = 5.0
RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
PROTOCOL = "observations 2"
"""What agents and collectors say to each other. Each version has another number."""
_FIRST_PROTOCOL = "observations 1"
_decode: Callable[[bytes], control.ToAgent] = msgspec.msgpack.Decoder(control.ToAgent).decode


class _CollectorConnection(OutboundConnection):
    """One connection to the collector. `welcomed` is called when the agent takes part."""

    def __init__(
        self,
        me: Credentials,
        agent: Agent,
        waiting: deque[InstanceFragment],
        welcomed: Callable[[], None],
    ) -> None:
        super().__init__(me, None)
        self.closed = asyncio.Event()
        self.error: StillframeError | None = None
        self.was_answered = False
        self.must_rename = False
        self.has_left = False
        self._is_leaving = False
        self._agent = agent
        self._waiting = waiting
        self._welcomed = welcomed

    def take(self, frame: wire.Frame) -> None:
        """Act on a message of the collector."""
        if isinstance(frame, wire.Control):
            try:
                message = _decode(frame.encoded)
            except DECODING_ERRORS as error:
                raise ProtocolViolation(f"the message cannot be read: {text_of(error)}") from error
            self._act(message)
        elif self._greeted(frame) is not None:
            self.was_answered = True
            self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
            agent = self._agent
            self.send(
                control.Join(
                    agent.rules.name,
                    agent.rules.colour,
                    agent.rules.retirement_count,
                    agent.was_connected,
                    agent.rules.began_with(),
                )
            )

    def _greeted(self, frame: wire.Frame) -> Greeted | None:
        """Take a frame of the handshake."""
        try:
            return self.greet(frame)
        except Refused:
            if isinstance(frame, Challenge):
                raise Refused(
                    "it has another secret: give this service, as secret=, the one that "
                    "'stillframe observe' has in STILLFRAME_SECRET or the file of --secret-file"
                ) from None
            if isinstance(frame, Declined) and frame.reason.startswith("the topologies differ"):
                # Later ones name their own protocol.
                raise Refused(other_protocol(PROTOCOL, _FIRST_PROTOCOL)) from None
            raise

    def _act(self, message: control.ToAgent) -> None:
        agent = self._agent
        if self._is_leaving and not isinstance(message, control.Ended):
            return  # it is about the instance that has ended
        match message:
            case control.Ended():
                self.has_left = self._is_leaving
                self.close()
            case control.Welcome():
                self.is_open = agent.was_connected = True
                self._welcomed()
                self.flush()
            case control.Rename():
                self.must_rename = True
                self.close()
            case control.Begin(start):
                agent.report(agent.rules.start(start))
            case control.Settle(settlement):
                agent.report(agent.rules.settle(settlement))
                agent.stored(settlement.observation)
            case control.Acknowledged(acknowledgement):
                agent.report(agent.rules.acknowledged(acknowledgement))

    def send(self, message: control.FromAgent) -> None:
        """Send a message."""
        if self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def flush(self) -> None:
        """Send what waits."""
        while self._waiting and self.is_open:
            try:
                self.send(control.Captured(self._waiting.popleft()))
            except Exception as error:  # noqa: BLE001 - no request fails because of it
                self.crashed(error)
                self.close()

    def say_goodbye(self) -> None:
        """Send the farewell of the agent, as the last message."""
        self._is_leaving, self.is_open = True, False
        self.send(control.Goodbye(self._agent.farewell()))

    def acknowledge(self) -> None:
        """Send the acknowledgements that are due."""
        if self.is_open:
            for instance, acknowledgement in self._agent.rules.acknowledgements().items():
                self.send(control.Forward(instance, acknowledgement))

    def broken(self, error: StillframeError) -> None:
        """Keep why the connection ends."""
        self.error = error

    def crashed(self, error: Exception) -> None:
        """Keep an unexpected error."""
        self.error = StillframeError(describe(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that it was closed."""
        self.is_open = False
        self.closed.set()
        super().connection_lost(exc)


class CollectorLink:
    """Keeps an agent connected to the collector.

    Args:
        agent: the agent; its `on_fragment` becomes this one's.
        collector: the address of the collector.
        certificates: the directory of certificates; needed unless the address is a loopback one.
        warn: takes a sentence about a connection that failed, and then one when the agent is
            connected.
    """

    def __init__(
        self,
        agent: Agent,
        collector: Address,
        *,
        certificates: str | None = None,
        warn: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._address = collector
        self._certificates = certificates
        self._warn = warn
        self._waiting: deque[InstanceFragment] = deque(maxlen=FRAGMENT_COUNT_MAX)
        self._connection: _CollectorConnection | None = None
        self._last_warning = ""
        self._is_open = asyncio.Event()
        self.has_tried = asyncio.Event()
        """Is set when the first attempt to connect has ended, well or not."""
        agent.on_fragment = self._report

    def _report(self, fragment: InstanceFragment) -> None:
        self._waiting.append(fragment)
        if self._connection is not None:
            self._connection.flush()

    @property
    def waiting_count(self) -> int:
        """How many fragments wait for a connection."""
        return len(self._waiting)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.abort()

    def start(self) -> asyncio.Task[None]:
        """Begin to connect in the running event loop. A connection of an earlier one is forgotten,
        and so is that of the process that this one was forked from."""
        self._connection = None
        self._is_open = asyncio.Event()
        self.has_tried = asyncio.Event()
        return asyncio.get_running_loop().create_task(self.run())

    async def leave(self) -> bool:
        """Say goodbye, once there is a connection. Return whether the collector has stored it; at
        once if there has been no connection under this name."""
        if self._connection is None and not self._agent.was_connected:
            return False
        await self._is_open.wait()
        if not await self._agent.until_idle():
            return False
        connection = self._connection
        if connection is None or not connection.is_open:
            return False
        connection.say_goodbye()
        await connection.closed.wait()
        return connection.has_left

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        retry_s = RETRY_S_MIN
        while True:
            connection = await self._connect()
            if connection is not None:
                try:
                    with _every(ACKNOWLEDGE_S, connection.acknowledge):
                        await connection.closed.wait()
                except asyncio.CancelledError:
                    connection.abort()
                    raise
                self._connection = None
                self._is_open.clear()
                if connection.has_left:
                    return
                if connection.must_rename:
                    self._agent.rename()
                elif (why := self._failure(connection)) is not None:
                    self._warn_once(why)
                if self._agent.was_connected:
                    retry_s = RETRY_S_MIN
            self.has_tried.set()
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)

    async def _connect(self) -> _CollectorConnection | None:
        agent = self._agent
        # A certificate is for a service: its instances have new names whenever they start.
        me = Credentials(agent.service, 0, PROTOCOL, agent.secret, self._certificates)
        connection = _CollectorConnection(me, agent, self._waiting, self._welcomed)
        try:
            protocol = protocol_of(connection, self._certificates, is_listening=False)
        except OSError as error:
            self._warn_once(explain_unreadable(Path(self._certificates or ""), error))
            return None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: protocol, self._address.host, self._address.port
                )
        except (OSError, ValueError) as error:
            self._warn_once(
                f"the collector at {self._address} cannot be reached: {describe(error)}"
            )
            return None
        self._connection = connection
        return connection

    def _failure(self, connection: _CollectorConnection) -> str | None:
        """Return why a connection has failed; None if it has not."""
        error = connection.error
        if connection.was_answered or isinstance(error, Refused):
            where = f"the connection to the collector at {self._address} was closed"
            return None if error is None else f"{where}: {error}"
        why = "" if error is None else f" ({error})"
        return (
            f"the connection to {self._address} was closed before a collector had answered{why}: "
            "check that 'stillframe observe' listens at this address, and that both ends have "
            "certificates, or neither"
        )

    def _welcomed(self) -> None:
        """Say that the agent is connected, if there was a warning."""
        self._is_open.set()
        self.has_tried.set()
        if self._last_warning:
            self._last_warning = ""
            self._warn(f"connected to the collector at {self._address} as {self._agent.rules.name}")

    def _warn_once(self, warning: str) -> None:
        """Warn, unless the last warning was the same."""
        if warning != self._last_warning:
            self._last_warning = warning
            self._warn(warning)


def other_protocol(service: str, collector: str) -> str:
    """Return why an agent and a collector of two versions cannot speak with each other."""
    return (
        f"this service speaks {service!a}, and the collector {collector!a}: use the same "
        "version of stillframe in both, so upgrade the one with the lower number; the service runs "
        "on, unobserved"
    )


@contextlib.contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at this interval while the body runs."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def repeat() -> None:
        nonlocal timer
        timer = loop.call_later(seconds, repeat)
        act()

    timer = loop.call_later(seconds, repeat)
    try:
        yield
    finally:
        timer.cancel()
