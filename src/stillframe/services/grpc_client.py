"""Observations of calls that services make with ``grpc.aio``.

A channel is wrapped, since interceptors of grpc do not see the bytes of messages. The header of a
request is made in the step in which the application makes the call, and that of a message of a
stream in the step in which the application sends it. An answer is accepted in the step in which
``await`` or the end of the stream returns to the application.

A call that ends while nothing listens was not sent. No status proves that: a server can send the
same one, and grpc may have sent the call before and repeat it in vain. A channel without any
connection, from before the call begins until it has ended, does (`_Absence`). So a call does
not begin while its channel connects, since nothing would tell whether it was sent.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NamedTuple, Self

import grpc

from stillframe.errors import UsageError, check_kind
from stillframe.protocol.calls import AnswerHeader
from stillframe.services.agent import Agent, OutgoingCall
from stillframe.services.grpc_messages import (
    Deserializer,
    Messages,
    Metadata,
    Serializer,
    header_in,
)
from stillframe.services.headers import NAME
from stillframe.services.targets import target_named

_OF_CLIENTS = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)
"""With these, a client or a gateway says that it had no answer."""
_FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE
"""The state of a channel that could not connect, until it has a connection."""
_CONNECTING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_STATUS = {
    "code": grpc.StatusCode.CANCELLED,
    "details": "",
    "initial_metadata": None,
    "trailing_metadata": None,
    "wait_for_connection": None,
}
"""What does not end a call that waits for it, and what a call has that was cancelled."""


class ObservedChannel(grpc.aio.Channel):  # type: ignore[misc]
    """A channel whose requests, answers and messages take part in observations.

    Args:
        agent: the agent of this instance.
        channel: the channel that carries them.
        target: its target, as one of the targets of the agent. Calls to another one have no header.

    Raises:
        UsageError: the agent is none, or the channel is not one of ``grpc.aio``.

    Example:
        ``ObservedChannel(agent, grpc.aio.insecure_channel("orders:50051"), "orders:50051")``
    """

    def __init__(self, agent: Agent, channel: grpc.aio.Channel, target: str) -> None:
        check_kind("agent", agent, Agent, "what connected_agent has returned")
        check_kind("channel", channel, grpc.aio.Channel, "a channel of grpc.aio")
        self._agent = agent
        self._channel = channel
        self._connection = _Connection(channel)
        with contextlib.suppress(UsageError):  # then it is not one of them
            target = target_named(target)
        self._target = target

    def _method(
        self,
        kind: str,
        method: str,
        request_serializer: Serializer = None,
        response_deserializer: Deserializer = None,
        **settings: Any,
    ) -> "_Method":
        return _Method(
            *(self._agent, self._channel, self._connection, self._target, kind),
            *(method, request_serializer, response_deserializer, settings),
        )

    def unary_unary(self, *arguments: Any, **settings: Any) -> Any:
        """Return a function that makes calls with one request and one answer."""
        return self._method("unary_unary", *arguments, **settings)

    def unary_stream(self, *arguments: Any, **settings: Any) -> Any:
        """Return a function that makes calls with one request and a stream of answers."""
        return self._method("unary_stream", *arguments, **settings)

    def stream_unary(self, *arguments: Any, **settings: Any) -> Any:
        """Return a function that makes calls with a stream of requests and one answer."""
        return self._method("stream_unary", *arguments, **settings)

    def stream_stream(self, *arguments: Any, **settings: Any) -> Any:
        """Return a function that makes calls with streams of requests and of answers."""
        return self._method("stream_stream", *arguments, **settings)

    async def __aenter__(self) -> Self:
        """Return this channel, which is closed at the end."""
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)

    async def close(self, grace: float | None = None) -> None:
        """Close it, and cancel calls that are open after `grace` seconds."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> Any:  # noqa: FBT001, FBT002 - grpc's
        """Return the state of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: Any) -> None:
        """Wait until the connection is in another state."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until it is connected."""
        await self._channel.channel_ready()


class _Method(NamedTuple):
    """A method of a service: it makes calls."""

    agent: Agent
    channel: Any
    connection: "_Connection"
    target: str
    kind: str
    path: str
    serializer: Serializer
    deserializer: Deserializer
    settings: dict[str, Any]

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Metadata = None,
        *settings: Any,
        request_iterator: Any = None,
        **more_settings: Any,
    ) -> Any:
        """Make a call: of one request, or of an iterator of requests, or of none that are written
        later. The parameters are those of grpc."""
        agent, kind = self.agent, self.kind
        is_streamed = kind.startswith("stream_")
        if request is None:
            request = request_iterator
        messages = Messages(self.path, self.serializer, self.deserializer, is_answering=False)
        body = b"" if is_streamed else messages.encode(request)
        call, header = agent.request(
            self.target,
            messages.to_observe(body, is_answer=False),
            timeout_s=timeout,
            is_streamed=is_streamed,
            activity="",
        )
        if header is not None:
            messages.call = call
            metadata = (*(metadata or ()), (NAME, header))
        if not is_streamed:
            messages.keep(request, body)
        elif header is not None and request is not None:
            request = _sent(messages, request)
        make = getattr(self.channel, kind)
        method = make(self.path, messages.serialize, messages.deserialize, **self.settings)

        def make_call(timeout_s: float | None) -> Any:
            if is_streamed:
                return method(request, timeout_s, metadata, *settings, **more_settings)
            return method(request, timeout=timeout_s, metadata=metadata, **more_settings)

        attempt = _Attempt(self.connection, make_call)
        try:
            made = make_call(timeout) if header is None else attempt.begin(timeout)
        except BaseException:
            if header is None:
                call.close()
            else:
                call.stop_waiting()
            raise
        if header is None:
            made.add_done_callback(lambda _: call.close())
            return made
        observed = _StreamedAnswer if kind.endswith("_stream") else _UnaryAnswer
        return observed(agent, call, messages, attempt, made)


class _Absence:
    """A time in which a channel has no connection, so no call is sent. It ends when the state of
    the channel changes.

    grpc puts that change into the same queue as the ends of calls, and before a call can be sent.
    The state is asked, too, since it changes even earlier.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._change = asyncio.ensure_future(channel.wait_for_state_change(_FAILED))
        self._change.add_done_callback(_retrieve)

    def lasts(self) -> bool:
        """Return whether there was no connection until now."""
        return not self._change.done() and self._channel.get_state() is _FAILED


class _Connection:
    """The connection of a channel, when a call begins."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._absence: _Absence | None = None

    def is_connecting(self) -> bool:
        """Return whether the channel will have a connection soon, or will fail to get one."""
        return self._channel.get_state() in _CONNECTING

    async def decided(self) -> None:
        """Wait until the channel has connected, or could not; cancelled if it was closed."""
        while (state := self._channel.get_state(try_to_connect=True)) in _CONNECTING:
            await self._channel.wait_for_state_change(state)
        if state is grpc.ChannelConnectivity.SHUTDOWN:
            raise asyncio.CancelledError

    def absence(self) -> _Absence | None:
        """Return the present time without a connection; None if there may be one."""
        if self._channel.get_state() is not _FAILED:
            self._absence = None
        elif self._absence is None or not self._absence.lasts():
            self._absence = _Absence(self._channel)
        return self._absence


class _Attempt:
    """A call that grpc makes, at once or later."""

    def __init__(self, connection: _Connection, make: Callable[[float | None], Any]) -> None:
        self.connection = connection
        self._make = make
        self._absence: _Absence | None = None

    def begin(self, timeout_s: float | None) -> Any:
        """Return the call of grpc, or one that begins when the channel has tried to connect."""
        if self.connection.is_connecting():
            return _LaterCall(self, timeout_s)
        return self.make(timeout_s)

    def make(self, timeout_s: float | None) -> Any:
        """Return the call of grpc."""
        self._absence = self.connection.absence()
        return self._make(timeout_s)

    def may_be_sent(self) -> bool:
        """Return whether the call, which has ended, may have been sent."""
        return self._absence is None or not self._absence.lasts()


class _LaterCall:
    """A call that grpc makes when the channel has connected, or could not. It has what the calls of
    grpc have."""

    def __init__(self, attempt: _Attempt, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._attempt = attempt
        self._deadline = None if timeout_s is None else loop.time() + timeout_s
        self._made: Any = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._making = loop.create_task(self._make())
        self._making.add_done_callback(self._is_made)

    async def _make(self) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                await self._attempt.connection.decided()
        self._made = self._attempt.make(self.time_remaining())
        return self._made

    def _is_made(self, making: asyncio.Task[Any]) -> None:
        _retrieve(making)
        for callback in self._callbacks:
            self.add_done_callback(callback)

    def __getattr__(self, name: str) -> Any:
        if self._made is not None:
            return getattr(self._made, name)

        async def later(*arguments: Any) -> Any:
            is_status = name in _STATUS
            if is_status and self.cancelled():
                return _STATUS[name]
            making = asyncio.shield(self._making) if is_status else self._making
            return await getattr(await making, name)(*arguments)

        return later

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the answer."""
        made = yield from self._making.__await__()
        return (yield from made.__await__())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await anext(aiter(await self._making))

    def time_remaining(self) -> float | None:
        """Return how long the call may last yet."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call a function when the call has ended."""
        if self._made is not None:
            self._made.add_done_callback(callback)
        elif self._making.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> bool:
        """Cancel the call."""
        return bool((self._made or self._making).cancel())

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return bool((self._made or self._making).cancelled())

    def done(self) -> bool:
        """Return whether it has ended."""
        return bool((self._made or self._making).done())


def _retrieve(task: "asyncio.Future[Any]") -> None:
    """Take the error of a task, which nothing else may ask for."""
    if not task.cancelled():
        task.exception()


class _ObservedCall:
    """A call that grpc has made, and its end. It has all that grpc's calls have."""

    def __init__(
        self, agent: Agent, call: OutgoingCall, messages: Messages, attempt: _Attempt, made: Any
    ) -> None:
        self._agent = agent
        self._call = call
        self._messages = messages
        self._attempt = attempt
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._was_cancelled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __del__(self) -> None:
        """Stop waiting for an answer that nothing can accept any more."""
        if self._call.is_open:
            # The garbage collector may run in any thread, after the loop was closed, too.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call.stop_waiting)

    async def write(self, request: Any) -> None:
        """Send the next message of the request."""
        if not self._made.done():
            self._messages.send(request)
        await self._watch(self._made.write(request))

    async def done_writing(self) -> None:
        """End the stream of the request."""
        await self._watch(self._made.done_writing())

    async def code(self) -> grpc.StatusCode:
        """Return the status."""
        return await self._with_status(self._made.code())

    async def details(self) -> str | None:
        """Return the text of the status."""
        details: str | None = await self._with_status(self._made.details())
        return details

    async def trailing_metadata(self) -> Any:
        """Return the trailing metadata."""
        return await self._with_status(self._made.trailing_metadata())

    async def _with_status(self, awaitable: Awaitable[Any]) -> Any:
        """Return a part of the status, which the application sees before it is given an answer."""
        found = await awaitable
        header = header_in(self._agent, AnswerHeader, await self._made.trailing_metadata())
        if header is not None and self._call.is_open:
            self._call.meet(header)
        return found

    async def _watch(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of an operation. End the call if it is over."""
        try:
            return await awaitable
        except grpc.aio.AioRpcError as error:
            self._end(error.trailing_metadata(), error.code())
            raise
        except asyncio.CancelledError:
            if self._call.is_open:
                self._was_cancelled = True
                self._call.stop_waiting()
            raise

    def _end(self, metadata: Metadata, code: grpc.StatusCode) -> None:
        """Accept the answer, if it has a header."""
        if not self._call.is_open:
            return
        header = header_in(self._agent, AnswerHeader, metadata)
        if header is None:
            was_sent = self._attempt.may_be_sent()
            was_answered = was_sent and code not in _OF_CLIENTS
            status = code.value[0] if was_answered else None
            self._call.stop_waiting(was_answered=was_answered, was_sent=was_sent, status=status)
        else:
            self._call.accept_answer(header)


class _UnaryAnswer(_ObservedCall):
    """A call with one answer."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the answer."""
        return self._answer().__await__()

    async def _answer(self) -> Any:
        if self._was_cancelled:
            # The answer may have arrived all the same.
            raise asyncio.CancelledError
        with self._call.awaited():
            answer = await self._watch(self._made)
        self._end(await self._made.trailing_metadata(), grpc.StatusCode.OK)
        return answer


class _StreamedAnswer(_ObservedCall):
    """A call whose answer is a stream."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return the messages of the answer."""
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._watch(anext(aiter(self._made)))
        except StopAsyncIteration:
            self._end(await self._made.trailing_metadata(), grpc.StatusCode.OK)
            raise
        self._messages.accept()
        return message

    async def read(self) -> Any:
        """Return the next message of the answer."""
        message = await self._watch(self._made.read())
        if message is grpc.aio.EOF:
            self._end(await self._made.trailing_metadata(), grpc.StatusCode.OK)
        else:
            self._messages.accept()
        return message


def _sent(messages: Messages, requests: Any) -> Any:
    """Return the messages of a stream; each gets its header when it is asked for."""
    if isinstance(requests, AsyncIterable):
        return _Sent(messages, aiter(requests))
    return map(messages.send, requests)


class _Sent:
    """The messages of the stream of a request, each with its header made when it is asked for."""

    def __init__(self, messages: Messages, requests: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._requests = requests

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._messages.send(await anext(self._requests))
