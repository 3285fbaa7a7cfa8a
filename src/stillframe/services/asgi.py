"""Observations of services that are ASGI applications, such as those of FastAPI and Starlette.

Accepting a request must be one step with the application's first step for it, and answering one
with its last. So the middleware is the innermost one. It reads the whole body first, and gives it
to the application without another suspension. It sees the answer in the step in which the
application makes it, and sends its start when the body is whole.

FastAPI runs dependencies that are ordinary functions in threads before it calls an endpoint. There
the request is accepted when the endpoint is called (`accept_where_endpoints_begin`): until then it
is in transit. An endpoint that runs in a thread and makes steps (`Agent.step`) accepts in its first
step. Observations are partial while one runs that makes none, while FastAPI passes a request on to
something that is not called so, and always if there is other middleware inside, which may suspend.

Something may suspend between the end of an endpoint of FastAPI and its answer, such as the end of a
dependency or a handler of errors. What the answer gives back is then in no state and in no message,
so observations are partial if messages carry amounts.

If the caller has disconnected early, a server reports that in place of the request, and frameworks
call an endpoint that does not read it all the same. Then the request is accepted there. Where
nothing tells whether the endpoint began, the request is accepted, too.

An application that raises is answered by the outermost middleware of its framework. Around that,
`ObservedErrors` gives the answer its header.

Some answers have no whole body: their headers are sent first, then parts of the body, as the
application makes them. So are those of an application that waits for something before the body. The
same holds for WebSockets. Their parts cannot carry a colour, so an observation that such a stream
crosses is partial and names it.
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

import msgspec

from stillframe.protocol.calls import RequestHeader
from stillframe.services.agent import (
    BODY_BYTES_MAX,
    SERVING,
    Agent,
    Arriving,
    IncomingCall,
    Message,
)
from stillframe.services.headers import NAME
from stillframe.services.thread_steps import IN_THREAD, ThreadCall

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
_NAME = NAME.encode()
_LENGTH = b"content-length"
_WITHOUT_BODY = (204, 304)
_METHODS_WITHOUT_BODY = ("GET", "HEAD")
_HTTP1 = ("1.0", "1.1")
_FailedCall = tuple[IncomingCall, Message]
"""A call whose application has ended without an answer, and its request."""
_FAILED = "stillframe.failed"
"""The name in a scope of the list of calls whose application has ended without an answer."""
_AGENT = "stillframe.agent"
"""The name in a scope of the agent that the request takes part by."""
_TWO_AGENTS = "an application and one that is mounted in it have an agent each: attach once"
_SERVED: ContextVar["_ServedCall | None"] = ContextVar("stillframe_served", default=None)
_ARRIVING: ContextVar[Arriving | None] = ContextVar("stillframe_arriving", default=None)
_OF_FRAMEWORKS = ("starlette.middleware.exceptions", "fastapi.middleware.asyncexitstack")
"""The modules of middleware that does not suspend."""


class ObservedApplication:
    """An ASGI application whose requests and answers take part in observations.

    Args:
        application: the application, without its other middleware.
        agent: the agent of this instance.
        accepts_in_endpoint: returns whether something uses `endpoint_begins` when the endpoint of a
            request begins, from its scope. Without it, a request is accepted before the application
            is called.
    """

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        agent: Agent,
        *,
        accepts_in_endpoint: Callable[[Scope], bool] | None = None,
    ) -> None:
        self._application = application
        self._agent = agent
        self._accepts_in_endpoint = accepts_in_endpoint
        self._inner = _inner_middleware(application)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection or a request."""
        kind = scope["type"]
        if kind != "lifespan":
            self._agent.begin()
        if (outer := scope.get(_AGENT)) is not None:
            if outer is not self._agent:
                # The outer one takes part, and the state of this one is captured in another step.
                outer.mark_partial(_TWO_AGENTS)
                self._agent.mark_partial(_TWO_AGENTS)
            await self._application(scope, receive, send)
            return
        scope[_AGENT] = self._agent
        if kind == "websocket":
            with self._agent.partial_while(
                lambda: f"a WebSocket on {scope['path']} crosses the cut"
            ):
                await self._application(scope, receive, send)
        elif kind == "lifespan":
            with self._agent.loading():
                await self._application(scope, receive, self._between_ends(send))
        elif kind != "http":
            await self._application(scope, receive, send)
        elif (header := self._header(scope)) is not None:
            with _arriving(self._agent, scope) as arriving:
                await self._serve(scope, receive, send, header, arriving)
        else:
            await self._serve_unobserved(scope, receive, send)

    def _between_ends(self, send: Send) -> Send:
        """Return a function that sends the events of a lifespan. An application has its state when
        it has started, and has sent its last message when it has shut down."""

        async def observed(event: Event) -> None:
            if event["type"] == "lifespan.startup.complete":
                await self._agent.loaded()
            elif event["type"] == "lifespan.shutdown.complete":
                await self._agent.leave()
            await send(event)

        return observed

    def _header(self, scope: Scope) -> RequestHeader | None:
        text = _text_in(scope)
        if text is None:
            return None
        header = self._agent.headers.decode(RequestHeader, text)
        if header is None:
            self._agent.ignored_count += 1
        return header

    async def _serve_unobserved(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request without a header. It is not a part of a call that the task serves, whose
        endpoint may have made this request."""
        threads = self._agent.threads
        call = threads.begin()
        tokens = _SERVED.set(None), IN_THREAD.set(call)

        async def answer(event: Event) -> None:
            threads.end(call)
            await send(event)

        try:
            await self._application(scope, receive, answer)
        finally:
            _SERVED.reset(tokens[0])
            IN_THREAD.reset(tokens[1])
            threads.end(call)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        header: RequestHeader,
        arriving: Arriving,
    ) -> None:
        agent = self._agent
        body, rest = await _read(receive, has_length=_LENGTH in dict(scope["headers"]))
        is_gone = rest is not None and rest["type"] == "http.disconnect"
        is_long = rest is not None and not is_gone
        # What a dependency does before the request is accepted is behind the cut as well.
        agent.report(agent.rules.meet(header.colour))
        request = Message(method=scope["method"], path=scope["path"], body=body)
        call = _ServedCall(
            agent,
            header,
            request,
            send,
            scope.get(_FAILED),
            arriving=arriving,
            is_whole=not is_long and not (is_gone and _has_body(scope)),
            may_have_acted=lambda: not is_gone or self._may_act_unnoticed(scope),
        )
        outer = scope.get("app")
        tokens = SERVING.set(header.call), _SERVED.set(call)
        with agent.partial_while(lambda: self._why_torn(scope, outer, call, is_long=is_long)):
            try:
                # Which endpoint serves the request is not known yet.
                with contextlib.ExitStack() as stack:
                    if not self._accepts_in_endpoint:
                        stack.enter_context(call.in_thread(None))
                        stack.enter_context(_noted_if_cancelled())
                    await self._application(scope, _replay(body, receive, rest), call.send)
            finally:
                SERVING.reset(tokens[0])
                _SERVED.reset(tokens[1])
                call.close()

    def _may_act_unnoticed(self, scope: Scope) -> bool:
        """Return whether an endpoint may have begun, of those that `endpoint_begins` is not for."""
        accepts = self._accepts_in_endpoint
        return accepts is None or ("endpoint" in scope and not accepts(scope))

    def _why_torn(self, scope: Scope, outer: Any, call: "_ServedCall", *, is_long: bool) -> str:
        """Return why a capture while a request is served may not be between two steps. `outer` is
        the application; the scope has one that is mounted in it, once that serves the request."""
        path: str = scope["path"]
        mounted: Any = scope.get("app")
        inner = self._inner
        if mounted is not outer and getattr(mounted, "user_middleware", None):
            inner = mounted.user_middleware[0].cls.__name__
        inner = inner or _middleware_of(scope.get("endpoint"), getattr(mounted, "routes", ()))
        if inner:
            return f"{inner} is inside the middleware that takes part in observations"
        if is_long:
            return f"the body of {path} is too long, or has no length, to be accepted in one step"
        if (endpoint := scope.get("endpoint")) is None:
            return ""
        if self._accepts_in_endpoint is not None and not self._accepts_in_endpoint(scope):
            return f"{path} is not a function that FastAPI calls, so it may act before it accepts"
        if _runs_in_thread(endpoint, scope["method"]) and not call.is_between_steps:
            return f"{path} runs in a thread, so the state may be torn"
        if call.is_answer_late:
            return f"the answer of {path} is not made yet"
        return ""


class _ServedCall:
    """The answer of one call."""

    def __init__(
        self,
        agent: Agent,
        header: RequestHeader,
        request: Message,
        send: Send,
        failed: list[_FailedCall] | None,
        *,
        arriving: Arriving,
        is_whole: bool,
        may_have_acted: Callable[[], bool],
    ) -> None:
        self._is_whole = is_whole
        self._may_have_acted = may_have_acted
        self._agent = agent
        self._failed = failed
        self._arriving = arriving
        self._header: RequestHeader | None = header
        self._incoming: IncomingCall | None = None
        self._request = request
        self._send = send
        self._start: Event | None = None
        self._stream: Any = None
        self._soon: asyncio.Handle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._task = asyncio.current_task()
        self._thread: ThreadCall | None = None
        self._has_ended = False

    @property
    def is_between_steps(self) -> bool:
        """Whether a capture is between two steps of a function that serves the request in a thread,
        or before the function begins."""
        return self._has_stepped or self._header is not None

    @property
    def _has_stepped(self) -> bool:
        return self._thread is not None and self._thread.has_stepped

    @property
    def is_answer_late(self) -> bool:
        """Whether the endpoint has ended, and something suspends before the answer, so what that
        gives back is in no state and in no message."""
        is_answered = self._incoming is None
        return self._has_ended and not is_answered and self._agent.unread_amounts() is None

    def end_endpoint(self) -> None:
        """Record that the endpoint has ended. Its answer follows, usually in the same step."""
        self._has_ended = True

    def accept(self) -> None:
        """Accept the request, unless it is accepted."""
        if self._header is not None:
            header, self._header = self._header, None
            self._agent.arrivals.pop(self._arriving, None)
            self._incoming = self._agent.accept(
                header, self._request, is_whole=self._is_whole, task=self._task
            )

    @contextlib.contextmanager
    def in_thread(self, function: object) -> Iterator[None]:
        """Let steps accept the request while the body runs a function in a thread; None stands for
        a function that is not known."""
        self._end_in_thread()
        self._thread = self._agent.threads.begin(self.accept, function)
        token = IN_THREAD.set(self._thread)
        try:
            yield
        finally:
            IN_THREAD.reset(token)

    def _end_in_thread(self) -> None:
        if self._thread is not None:
            self._agent.threads.end(self._thread)

    def _accept_if_acted(self) -> None:
        if self._may_have_acted() or self._has_stepped:
            self.accept()

    async def send(self, event: Event) -> None:
        """Send a part of the answer; the header with its start."""
        kind = event["type"]
        if kind == "http.response.start":
            self._start = event
            if _may_be_kept(event, self._request.method):
                self._soon = asyncio.get_running_loop().call_soon(self._send_start_aside)
                return
            # Its first part may come much later.
            await self._send_start(None)
            return
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._sending is not None:
            await self._sending
        if self._start is not None:
            is_whole = kind == "http.response.body" and not event.get("more_body", False)
            await self._send_start(bytes(event.get("body", b"")) if is_whole else None)
        await self._send(event)

    def _send_start_aside(self) -> None:
        """Send a start that is kept, since the application waits for something before its body."""
        if self._start is not None:
            self._sending = asyncio.get_running_loop().create_task(self._send_start(None))

    async def _send_start(self, body: bytes | None) -> None:
        """Send the start of the answer; None stands for a body whose parts follow."""
        start, self._start = self._start, None
        assert start is not None
        self._accept_if_acted()
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            await self._send(start)  # to a caller that has disconnected
            return
        if body is None:
            path = self._request.path
            self._stream = self._agent.partial_while(
                lambda: f"the answer of {path} crosses the cut"
            )
            self._stream.__enter__()
        header = incoming.answer(
            _answer_to(self._request, start, body or b""), is_whole=body is not None
        )
        self._end_in_thread()
        await self._send(_with_header(start, header))

    def close(self) -> None:
        """End the call, also if the application made no answer."""
        self._start = self._soon = None
        if self._sending is not None:
            self._sending.cancel()  # if it has ended, this does nothing
            self._sending = None
        if self._stream is not None:
            self._stream.__exit__(None, None, None)
        self._accept_if_acted()
        self._end_in_thread()
        if self._incoming is not None:
            incoming, self._incoming = self._incoming, None
            if self._failed is None:
                incoming.answer(None)
            else:
                self._failed.append((incoming, self._request))
                if self._agent.unread_amounts() is None:
                    incoming.mark_partial(f"an error of {self._request.path} is not answered yet")


class ObservedErrors:
    """An ASGI application with all of its middleware, whose answers to requests that failed take
    part in observations.

    Args:
        application: the application, which has an `ObservedApplication` inside.
        agent: the agent of this instance.
    """

    def __init__(self, application: Callable[..., Awaitable[None]], agent: Agent) -> None:
        self._application = application
        self._agent = agent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection or a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        failed: list[_FailedCall] = []

        async def with_header(event: Event) -> None:
            if failed and event["type"] == "http.response.start":
                incoming, request = failed.pop()
                event = _with_header(event, incoming.answer(_answer_to(request, event, b"")))
            await send(event)

        try:
            # Middleware before the `ObservedApplication` may wait.
            with _arriving(self._agent, scope, is_first=True):
                await self._application({**scope, _FAILED: failed}, receive, with_header)
        finally:
            while failed:
                failed.pop()[0].answer(None)


@contextlib.contextmanager
def _arriving(agent: Agent, scope: Scope, *, is_first: bool = False) -> Iterator[Arriving]:
    """List a request as arrived while the body runs, until it is accepted. Middleware may pass it
    on to another task, which lists it instead."""
    text, task = _text_in(scope) or "", asyncio.current_task()
    known = None if is_first else _ARRIVING.get()
    if known is not None and known.text == text:
        known.task = task
        yield known
        return
    arriving = Arriving(text, task)
    token = _ARRIVING.set(arriving)
    if text:
        agent.arrivals[arriving] = None
    try:
        yield arriving
    finally:
        agent.arrivals.pop(arriving, None)
        _ARRIVING.reset(token)


def _text_in(scope: Scope) -> str | None:
    """Return the header of a request."""
    for name, value in scope["headers"]:
        if name == _NAME:
            return str(value.decode("latin-1"))
    return None


def _answer_to(request: Message, start: Event, body: bytes) -> Message:
    """Return the answer to a request."""
    return msgspec.structs.replace(
        request,
        body=body,
        is_answer=True,
        status=start["status"],
        request_body=request.body,
    )


def _with_header(start: Event, header: str) -> Event:
    """Return the start of an answer with its header, and without one that an application has copied
    from another answer."""
    others = [one for one in start.get("headers", ()) if one[0].lower() != _NAME]
    return {**start, "headers": [*others, (_NAME, header.encode())]}


def _has_body(scope: Scope) -> bool:
    """Return whether a request may have a body, by its headers. HTTP/2 needs none for it."""
    headers = dict(scope["headers"])
    if _LENGTH in headers:
        return bool(headers[_LENGTH] != b"0")
    if scope["http_version"] in _HTTP1:
        return b"transfer-encoding" in headers
    return scope["method"] not in _METHODS_WITHOUT_BODY


def _may_be_kept(start: Event, method: str) -> bool:
    """Return whether the start of an answer can be kept until its body is whole."""
    if method == "HEAD" or start["status"] in _WITHOUT_BODY:
        return True
    return any(name.lower() == _LENGTH for name, _ in start.get("headers", ()))


@contextlib.contextmanager
def endpoint_begins(function: object, *, is_in_thread: bool) -> Iterator[None]:
    """Accept the request that the current task serves, in the step in which its endpoint begins.
    The body runs the endpoint.

    The steps of one that runs in a thread declare what it holds until the answer, unless it raises.

    Args:
        function: the endpoint.
        is_in_thread: whether it runs in a thread: then its first `Agent.step` may accept.
    """
    call = _SERVED.get()
    if call is None:
        with _noted_if_cancelled() if is_in_thread else contextlib.nullcontext():
            yield
    elif is_in_thread:
        with call.in_thread(function), _noted_if_cancelled():
            try:
                yield
            except BaseException:
                call.end_endpoint()
                raise
    else:
        call.accept()
        try:
            yield
        finally:
            call.end_endpoint()


@contextlib.contextmanager
def _noted_if_cancelled() -> Iterator[None]:
    """Record that a thread may run on if the task is cancelled that waits for it in the body."""
    try:
        yield
    except asyncio.CancelledError:
        if (call := IN_THREAD.get()) is not None:
            call.runs_on = True
        raise


def _middleware_of(endpoint: object, routes: Iterable[Any]) -> str:
    """Return the name of middleware that the route of an endpoint has."""
    for route in routes:
        if endpoint is not None and getattr(route, "endpoint", None) is endpoint:
            app = getattr(route, "app", None)
            return type(app).__name__ if hasattr(app, "app") else ""
    return ""


def _inner_middleware(application: Any) -> str:
    """Return the name of middleware that an application has, except that of its framework."""
    while not hasattr(application, "routes"):
        inner = getattr(application, "app", None)
        if inner is None:
            break
        kind = type(application)
        if kind.__module__ not in _OF_FRAMEWORKS:
            return kind.__name__
        application = inner
    return ""


def _runs_in_thread(endpoint: Any, method: str) -> bool:
    """Return whether an endpoint, or the method of it that serves a request, is an ordinary
    function: frameworks call that in a thread."""
    if inspect.isclass(endpoint):
        endpoint = getattr(endpoint, method.lower(), None) or getattr(endpoint, "get", None)
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    if not inspect.isroutine(endpoint):
        endpoint = type(endpoint).__call__
    return not inspect.iscoroutinefunction(endpoint) and not inspect.isasyncgenfunction(endpoint)


async def _read(receive: Receive, *, has_length: bool) -> tuple[bytes, Event | None]:
    """Return the whole body. If it is too long, or the client has disconnected, return the next
    event, too. So without a length: a client may send the rest when it has an answer."""
    parts: list[bytes] = []
    length = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return b"".join(parts), event
        parts.append(event.get("body", b""))
        length += len(parts[-1])
        if not event.get("more_body", False):
            return b"".join(parts), None
        if length > BODY_BYTES_MAX or not has_length:
            return b"".join(parts[:-1]), event


def _replay(body: bytes, receive: Receive, rest: Event | None) -> Receive:
    """Return a function that returns what was read, and then the rest."""
    events = [{"type": "http.request", "body": body, "more_body": rest is not None}]
    if rest is not None:
        events.append(dict(rest))
    events.reverse()

    async def replayed() -> Event:
        return events.pop() if events else await receive()

    return replayed
