"""Observations of calls that services make with httpx.

The transport reads a whole answer before it returns, so that accepting the answer is one step with
the caller: between the two, httpx does not suspend. It does not read an answer that has no length,
such as a stream of events, or that is too long: it accepts its start, and observations are partial
until the caller has closed it. The same holds for the body of a request.

A client in a thread has no steps of the event loop. The function that serves a call in this thread
has held what a request carries since its last `Agent.step`, and holds what an answer carries until
its next one.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec

from stillframe.protocol.calls import AnswerHeader
from stillframe.services.agent import (
    BODY_BYTES_MAX,
    IN_THREAD,
    SERVING,
    Agent,
    Message,
    OutgoingCall,
)
from stillframe.services.headers import NAME
from stillframe.services.targets import target_at

_OF_GATEWAYS = (502, 503, 504)
"""With these, a gateway says that it had no answer."""
_WITHOUT_BODY = (204, 304)


class ObservedTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """A transport whose requests and answers take part in observations. It is for a client of
    either kind.

    Args:
        agent: the agent of this instance.
        transport: the transport that carries them, of the kind of the client.

    Example:
        ``httpx.AsyncClient(transport=ObservedTransport(agent))``
    """

    def __init__(
        self, agent: Agent, transport: httpx.AsyncBaseTransport | httpx.BaseTransport | None = None
    ) -> None:
        self._agent = agent
        self._transport = transport

    @functools.cached_property
    def _for_tasks(self) -> Any:
        return self._transport or httpx.AsyncHTTPTransport()

    @functools.cached_property
    def _for_threads(self) -> Any:
        return self._transport or httpx.HTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of a task and return its answer."""
        exchange = _Exchange(self._agent, request, is_in_thread=False)
        exchange.begin(await request.aread() if exchange.is_whole else b"")
        try:
            response: httpx.Response = await self._for_tasks.handle_async_request(request)
            if exchange.reads(response):
                await _read(response)
        except BaseException:
            exchange.fail()
            raise
        finally:
            exchange.remove_header()
        return exchange.end(response)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of a thread and return its answer."""
        agent = self._agent
        if not agent.has_started:
            request.headers.pop(NAME, None)
            response: httpx.Response = self._for_threads.handle_request(request)
            return response
        exchange = _Exchange(agent, request, is_in_thread=agent.is_in_thread)
        agent.in_loop(exchange.begin, request.read() if exchange.is_whole else b"")
        try:
            response = self._for_threads.handle_request(request)
            if exchange.reads(response):
                _read_in_thread(response)
        except BaseException:
            agent.in_loop(exchange.fail)
            raise
        finally:
            exchange.remove_header()
        ended: httpx.Response = agent.in_loop(exchange.end, response)
        return ended

    async def aclose(self) -> None:
        """Close the connections of tasks."""
        await self._for_tasks.aclose()

    def close(self) -> None:
        """Close the connections of threads."""
        self._for_threads.close()


class _Exchange:
    """A request and its answer. Everything but `reads` and `remove_header` is a step of the event
    loop."""

    def __init__(self, agent: Agent, request: httpx.Request, *, is_in_thread: bool) -> None:
        self._agent = agent
        self._request = request
        self._is_in_thread = is_in_thread
        self._target = target_of(request.url)
        self.is_whole = self._target in agent.targets and _is_whole(request.headers)
        self._has_header = False
        self._noted = contextlib.ExitStack()
        self._message: Message
        self._call: OutgoingCall

    def begin(self, body: bytes) -> None:
        """Open the call, and give the request its header."""
        agent, request = self._agent, self._request
        path = request.url.path
        self._message = Message(method=request.method, path=path, body=body)
        activity = None
        if self._is_in_thread:
            # The task that serves a call waits for its thread, which does nothing else.
            activity = str(SERVING.get()) if IN_THREAD.get() is not None else ""
        self._call, header = agent.request(
            self._target,
            self._message,
            timeout_s=request.extensions.get("timeout", {}).get("read"),
            is_whole=self.is_whole,
            activity=activity,
        )
        # A gateway may have copied it from a request that it serves.
        request.headers.pop(NAME, None)
        if header is None:
            return
        self._has_header = True
        request.headers[NAME] = header
        if not self.is_whole:
            self._note(f"the body of the request {path} crosses the cut")
        elif self._is_in_thread:
            agent.send_from_thread(self._message)

    def _note(self, text: str) -> None:
        self._noted.enter_context(self._agent.noted(lambda: text))

    def reads(self, response: httpx.Response) -> bool:
        """Return whether the answer is read before the application is given it."""
        return self._has_header and self._is_answer_whole(response) and not response.is_closed

    def _is_answer_whole(self, response: httpx.Response) -> bool:
        has_body = self._request.method != "HEAD" and response.status_code not in _WITHOUT_BODY
        has_length = "content-length" in response.headers
        return response.is_closed or not has_body or (has_length and _is_whole(response.headers))

    def remove_header(self) -> None:
        """Remove the header: httpx copies those of a request that it repeats at another address."""
        self._request.headers.pop(NAME, None)

    def fail(self) -> None:
        """End the call without an answer."""
        self._noted.close()
        if self._has_header:
            self._call.stop_waiting()
        else:
            self._call.close()

    def end(self, response: httpx.Response) -> httpx.Response:
        """Accept the answer, and return it."""
        self._noted.close()
        if not self._has_header:
            self._call.close()
            return response
        answer = self._header(response)
        if answer is None:
            self._call.stop_waiting(was_answered=response.status_code not in _OF_GATEWAYS)
        else:
            self._call.accept_answer(answer)
        if not self._is_answer_whole(response):
            self._note(f"the answer of {self._message.path} crosses the cut")
            response.stream = _NotedStream(self._agent, response.stream, self._noted)
        elif self._is_in_thread and answer is not None:
            self._agent.accept_in_thread(self._answer(response))
        return response

    def _header(self, response: httpx.Response) -> AnswerHeader | None:
        text = response.headers.get(NAME)
        if text is None:
            return None
        header = self._agent.headers.decode(AnswerHeader, text)
        if header is None:
            self._agent.ignored_count += 1
        return header

    def _answer(self, response: httpx.Response) -> Message:
        copied = httpx.Response(
            response.status_code, headers=response.headers, stream=response.stream
        )
        return msgspec.structs.replace(
            self._message,
            body=copied.read(),
            is_answer=True,
            status=response.status_code,
            request_body=self._message.body,
        )


class _NotedStream(httpx.AsyncByteStream, httpx.SyncByteStream):
    """The body of an answer whose parts carry no colour."""

    def __init__(self, agent: Agent, stream: Any, noted: contextlib.ExitStack) -> None:
        self._agent = agent
        self._stream = stream
        self._noted = noted

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def aclose(self) -> None:
        """Close it; observations may be complete again."""
        try:
            await self._stream.aclose()
        finally:
            self._noted.close()

    def close(self) -> None:
        """Close it; observations may be complete again."""
        try:
            self._stream.close()
        finally:
            self._agent.in_loop(self._noted.close)


async def _read(response: httpx.Response) -> None:
    """Read a body as it is, and put it back."""
    stream: Any = response.stream
    parts = [part async for part in stream]
    await stream.aclose()
    response.stream = httpx.ByteStream(b"".join(parts))


def _read_in_thread(response: httpx.Response) -> None:
    """Read a body as it is, and put it back."""
    stream: Any = response.stream
    parts = list(stream)
    stream.close()
    response.stream = httpx.ByteStream(b"".join(parts))


def _is_whole(headers: httpx.Headers) -> bool:
    """Return whether a body is short enough to be read before it is accepted."""
    length = headers.get("content-length", "")
    if not length:
        return "transfer-encoding" not in headers
    return length.isascii() and length.isdigit() and int(length) <= BODY_BYTES_MAX


def target_of(url: httpx.URL) -> str:
    """Return the address to which a request is sent, as ``host:port``."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return target_at(url.host, port)
