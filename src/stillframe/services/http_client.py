"""Observations of calls that services make with httpx.

The transport reads a whole answer before it returns, so that accepting the answer is one step with
the caller: between the two, httpx does not suspend. It does not read an answer that has no length,
such as a stream of events, or that is too long: it accepts its start, and observations are partial
until the caller has closed it. The same holds for the body of a request.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from stillframe.errors import UsageError, check_kind
from stillframe.protocol.activities import Lock
from stillframe.protocol.calls import AnswerHeader
from stillframe.services.agent import BODY_BYTES_MAX, Agent, Message, OutgoingCall
from stillframe.services.headers import NAME
from stillframe.services.targets import target_at

_OF_GATEWAYS = (502, 503, 504)
"""With these, a gateway says that it had no answer."""
_WITHOUT_BODY = (204, 304)
_NAME = NAME.encode()
_CONNECTIONS = "connections of httpx"
"""The name of the connections of a pool, among the locks of an instance."""
_NOTHING_WAS_SENT = (httpx.PoolTimeout, httpx.ConnectTimeout, httpx.ConnectError)


class ObservedTransport(httpx.AsyncBaseTransport):
    """A transport whose requests and answers take part in observations.

    Args:
        agent: the agent of this instance.
        transport: the transport that carries them.

    Raises:
        UsageError: the agent is none, or the transport is not one of ``httpx.AsyncClient``.

    Example:
        ``httpx.AsyncClient(transport=ObservedTransport(agent))``
    """

    def __init__(self, agent: Agent, transport: httpx.AsyncBaseTransport | None = None) -> None:
        check_kind("agent", agent, Agent, "what attach has returned")
        wanted = httpx.AsyncBaseTransport | None
        check_kind("transport", transport, wanted, "a transport of httpx.AsyncClient")
        self._agent = agent
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._callers: dict[str, asyncio.Task[Any]] = {}
        agent.pools.add(self)

    def connections(self) -> Lock | None:
        """Return the tasks that have the connections of the pool, and those that wait for one; None
        if none waits. httpx has no function for this, and other transports have no such pool."""
        pool = getattr(self._transport, "_pool", None)
        found: dict[bool, list[str]] = {True: [], False: []}
        for one in getattr(pool, "_requests", ()):
            texts = (text for name, text in one.request.headers if name.lower() == _NAME)
            task = self._callers.get(next(texts, b"").decode("latin-1"))
            found[one.is_queued()].append("" if task is None else self._agent.activity_of(task))
        waiting = tuple(filter(None, found[True]))
        return Lock(_CONNECTIONS, tuple(found[False]), waiting) if waiting else None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer."""
        if not isinstance(request, httpx.Request):
            # The clients of other libraries take any transport.
            library = type(request).__module__.partition(".")[0]
            advice = "make the client with httpx"
            if library == "httpx2":
                advice = "call httpx2.alias_httpx() before anything imports httpx, or " + advice
            raise UsageError(
                f"ObservedTransport is for httpx.AsyncClient, not for a client of {library}: "
                f"{advice}"
            )
        agent, target, path = self._agent, target_of(request.url), request.url.path
        is_whole = target in agent.targets and _is_whole(request.headers)
        body = await request.aread() if is_whole else b""
        message = Message(method=request.method, path=path, body=body)
        timeout_s = request.extensions.get("timeout", {}).get("read")
        # A task that sends a body part by part does other things meanwhile.
        call, header = agent.request(
            target,
            message,
            timeout_s=timeout_s,
            is_whole=is_whole,
            activity=None if is_whole or target not in agent.targets else "",
        )
        # A gateway may have copied it from a request that it serves.
        request.headers.pop(NAME, None)
        if header is None:
            try:
                return await self._transport.handle_async_request(request)
            finally:
                call.close()
        request.headers[NAME] = header
        if (task := asyncio.current_task()) is not None and is_whole:
            self._callers[header] = task
        try:
            with (
                contextlib.nullcontext()
                if is_whole
                else agent.partial_while(lambda: f"the body of the request {path} crosses the cut")
            ):
                response = await self._transport.handle_async_request(request)
            if is_answer_whole := response.is_closed or _is_answer_whole(request, response):
                await _read(response)
        except _NOTHING_WAS_SENT:
            # A transport of another kind may have sent an earlier attempt.
            if type(self._transport) is httpx.AsyncHTTPTransport:
                call.close()
            else:
                call.stop_waiting()
            raise
        except BaseException:
            call.stop_waiting()
            raise
        finally:
            # httpx copies the headers of a request that it repeats at another address.
            del request.headers[NAME]
            self._callers.pop(header, None)
        self._end(call, response)
        if not is_answer_whole:
            response.stream = _UncolouredStream(agent, response.stream, path)
        return response

    def _end(self, call: OutgoingCall, response: httpx.Response) -> None:
        answer = self._header(response)
        if answer is None:
            status = response.status_code
            call.stop_waiting(was_answered=status not in _OF_GATEWAYS, status=status)
        else:
            call.accept_answer(answer)

    def _header(self, response: httpx.Response) -> AnswerHeader | None:
        text = response.headers.get(NAME)
        if text is None:
            return None
        header = self._agent.headers.decode(AnswerHeader, text)
        if header is None:
            self._agent.ignored_count += 1
        return header

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Refuse a client of a thread, which has no steps of the event loop."""
        raise UsageError("ObservedTransport is for httpx.AsyncClient, and not for httpx.Client")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class _UncolouredStream(httpx.AsyncByteStream):
    """The body of an answer whose parts carry no colour."""

    def __init__(self, agent: Agent, stream: object, path: str) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream
        self._partial = contextlib.ExitStack()
        self._partial.enter_context(
            agent.partial_while(lambda: f"the answer of {path} crosses the cut")
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        """Close it; observations may be complete again."""
        try:
            await self._stream.aclose()
        finally:
            self._partial.close()


async def _read(response: httpx.Response) -> None:
    """Read a body as it is, and put it back."""
    if not response.is_closed:
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        parts = [part async for part in stream]
        await stream.aclose()
        response.stream = httpx.ByteStream(b"".join(parts))


def _is_whole(headers: httpx.Headers) -> bool:
    """Return whether a body is short enough to be read before it is accepted."""
    length = headers.get("content-length", "")
    if not length:
        return "transfer-encoding" not in headers
    return length.isascii() and length.isdigit() and int(length) <= BODY_BYTES_MAX


def _is_answer_whole(request: httpx.Request, response: httpx.Response) -> bool:
    has_body = request.method != "HEAD" and response.status_code not in _WITHOUT_BODY
    has_length = "content-length" in response.headers
    return not has_body or (has_length and _is_whole(response.headers))


def target_of(url: httpx.URL) -> str:
    """Return the address to which a request is sent, as ``host:port``."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return target_at(url.host, port)
