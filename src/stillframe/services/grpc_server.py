"""Observations of services that ``grpc.aio`` serves.

An interceptor replaces the handler of each call. Accepting a request is one step with the first
step of the handler, and answering it with the last. A message of a stream is accepted in the step
in which the handler is given it, and its header is made in the step in which the handler sends it.

An ordinary function as a handler runs in a thread. If neither requests nor answers are streams, and
it makes steps (`Agent.step`), the request is accepted in the first of them. Otherwise the agent
accepts and answers in the event loop, before and after it, and observations are partial while it
runs. They are partial, too, while a call is served that passes other interceptors between this one
and its handler, which may suspend.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import operator
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import grpc

from stillframe.errors import UsageError, check_kind
from stillframe.protocol.calls import RequestHeader
from stillframe.services.agent import SERVING, Agent, IncomingCall, Message
from stillframe.services.grpc_messages import Messages, header_in
from stillframe.services.headers import NAME
from stillframe.services.thread_steps import IN_THREAD, ThreadCall

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""The functions that make a handler, by whether requests and answers are streams."""
_LOOP_POLL_S = 1.0
"""How often a thread that waits for a step of the event loop looks whether there is any more."""


class ObservedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that lets the calls of a server take part in observations.

    It must be the last one, so that no other can suspend between it and a handler. Make it in the
    event loop: then the agent connects to the collector before the first call.

    Args:
        agent: the agent of this instance.

    Example:
        ``grpc.aio.server(interceptors=[ObservedCalls(agent)])``
    """

    def __init__(self, agent: Agent) -> None:
        check_kind("agent", agent, Agent, "what connected_agent has returned")
        self._agent = agent
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            agent.begin()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Coroutine[Any, Any, grpc.RpcMethodHandler | None]:
        """Return the handler of a call; one that takes part if the call has a header."""
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError(
                "a server of grpc.server cannot have ObservedCalls: use grpc.aio.server"
            ) from error
        return self._handler(continuation, handler_call_details)

    async def _handler(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        agent = self._agent
        agent.begin()
        has_others = _has_others(continuation)
        handler = await continuation(handler_call_details)
        header = header_in(agent, RequestHeader, handler_call_details.invocation_metadata)
        if header is None:
            return handler and _unobserved(agent, handler)
        path = handler_call_details.method
        served = _ServedCall(agent, header, path, handler or _UNIMPLEMENTED)
        if has_others:
            served.reasons.append(f"{path} has interceptors inside the one that takes part")
        return served.handler()


def _unobserved(agent: Agent, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """Return a handler for a call without a header, in whose thread steps can declare amounts."""
    function = handler.unary_unary
    if function is None or inspect.iscoroutinefunction(function):
        return handler

    def run(request: Any, context: Any) -> Any:
        call = agent.threads.begin()
        token = IN_THREAD.set(call)
        try:
            return function(request, context)
        finally:
            IN_THREAD.reset(token)
            agent.threads.end(call)

    return grpc.unary_unary_rpc_method_handler(
        run,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


class _ServedCall:
    """One call, from its first step to its last."""

    def __init__(
        self, agent: Agent, header: RequestHeader, path: str, handler: grpc.RpcMethodHandler
    ) -> None:
        self.messages = Messages(
            path, handler.response_serializer, handler.request_deserializer, is_answering=True
        )
        self.reasons: list[str] = []
        self._agent = agent
        self._header = header
        self._path = path
        self._is_streamed = handler.request_streaming
        self._streams_answers = handler.response_streaming
        self._function = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._incoming: IncomingCall | None = None
        self._is_accepted = False
        self._in_thread: ThreadCall | None = None
        self._partial = contextlib.ExitStack()

    def handler(self) -> grpc.RpcMethodHandler:
        """Return what the server calls for this call."""
        if inspect.isasyncgenfunction(self._function):
            run: Callable[..., Any] = self._generate
        elif inspect.iscoroutinefunction(self._function):
            run = self._run
        else:
            run = self._generate_in_thread if self._streams_answers else self._run_in_thread
            if self._is_streamed or self._streams_answers:
                self.reasons.append(self._torn())
        return _MAKERS[self._is_streamed, self._streams_answers](
            run,
            request_deserializer=self.messages.deserialize,
            response_serializer=self.messages.serialize,
        )

    # --- handlers in the event loop

    async def _run(self, request: Any, context: Any) -> Any:
        observed = _Context(self, context)
        if self._is_streamed:
            request = _Requests(self.messages, request)
        self._accept()
        try:
            response = await self._function(request, observed)
            self._finish(observed, response)
        except BaseException as error:
            self._fail(observed, error)
            raise
        return response

    async def _generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        observed = _Context(self, context)
        if self._is_streamed:
            request = _Requests(self.messages, request)
        self._accept()
        try:
            async with contextlib.aclosing(self._function(request, observed)) as responses:
                async for response in responses:
                    yield self.messages.send(response)
            self._finish(observed)
        except BaseException as error:
            self._fail(observed, error)
            raise

    # --- handlers in a thread

    def _run_in_thread(self, request: Any, context: Any) -> Any:
        observed = _ContextInThread(self, context)
        if self._is_streamed:
            request = self._requests_in_thread(request)
            self.in_loop(self._begin_streamed)
        else:
            self.in_loop(self._begin_in_thread)
        tokens = IN_THREAD.set(self._in_thread), SERVING.set(self._header.call)
        try:
            response = self._function(request, observed)
            self.in_loop(self._finish, observed, response)
        except BaseException as error:
            self.in_loop(self._fail, observed, error)
            raise
        finally:
            IN_THREAD.reset(tokens[0])
            SERVING.reset(tokens[1])
        return response

    def _generate_in_thread(self, request: Any, context: Any) -> Iterator[Any]:
        observed = _ContextInThread(self, context)
        if self._is_streamed:
            request = self._requests_in_thread(request)
        self.in_loop(self._begin_streamed)
        # Not reset: another thread may run the rest. All of them are those of grpc.
        IN_THREAD.set(self._in_thread)
        try:
            for response in self._function(request, observed):
                yield self.in_loop(self.messages.send, response)
            self.in_loop(self._finish, observed)
        except BaseException as error:
            self.in_loop(self._fail, observed, error)
            raise

    def _requests_in_thread(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self.in_loop(self.messages.accept)
            yield request

    def in_loop(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a step of the event loop, and return what it returns."""
        if threading.get_ident() == self._loop_thread:
            # The garbage collector has closed a generator in the thread of the loop.
            return act(*arguments)
        result: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def step() -> None:
            try:
                result.set_result(act(*arguments))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread
                result.set_exception(error)

        self._loop.call_soon_threadsafe(step)
        while not concurrent.futures.wait([result], _LOOP_POLL_S).done:
            if self._loop.is_closed():
                raise RuntimeError("the event loop was closed")
        return result.result()

    # --- steps of the event loop

    def _torn(self) -> str:
        return f"{self._path} runs in a thread, so the state may be torn"

    def _begin_in_thread(self) -> None:
        self._agent.report(self._agent.rules.meet(self._header.colour))
        call = self._in_thread = self._agent.threads.begin(self._accept, self._function)
        torn = self._torn()
        self._partial.enter_context(
            self._agent.partial_while(
                lambda: torn if self._is_accepted and not call.has_stepped else ""
            )
        )

    def _begin_streamed(self) -> None:
        self._in_thread = self._agent.threads.begin(self._accept, None)

    def _end_in_thread(self) -> None:
        """Accept the request, unless it is accepted. It is answered in the same step."""
        self._accept()
        if self._in_thread is not None:
            self._agent.threads.end(self._in_thread)
            self._partial.close()

    def _accept(self) -> None:
        if self._is_accepted:
            return
        self._is_accepted = True
        body = b"" if self._is_streamed else self.messages.arrived
        message = self.messages.to_observe(body, is_answer=False)
        call = self._agent.accept(
            self._header, message, is_streamed=self._is_streamed, task=self._task
        )
        self._incoming = self.messages.call = call
        if self._in_thread is None:
            SERVING.set(self._header.call)
        for reason in self.reasons:
            call.mark_partial(reason)

    def _finish(self, context: "_AnyContext", response: Any = None) -> None:
        """Answer a call whose handler has returned."""
        self._end_in_thread()
        code = context.code()
        if _number_of(code):
            context.set_trailing_metadata(self.with_error(code, context.trailing_metadata()))
            return
        if self._incoming is None:
            return
        message = None
        if not self._streams_answers:
            body = self.messages.encode(response)
            self.messages.keep(response, body)
            message = self._answer(body)
        incoming, self._incoming = self._incoming, None
        header = incoming.answer(message, status=0)
        context.set_trailing_metadata((*context.trailing_metadata(), (NAME, header)))

    def _fail(self, context: "_AnyContext", error: BaseException) -> None:
        """End a call whose handler has raised an error, or was cancelled."""
        self._end_in_thread()
        if isinstance(error, Exception):
            code = context.code() or grpc.StatusCode.UNKNOWN
            context.set_trailing_metadata(self.with_error(code, context.trailing_metadata()))
        elif self._incoming is not None:
            incoming, self._incoming = self._incoming, None
            incoming.answer(None)

    def with_error(self, code: Any, metadata: Any) -> tuple[Any, ...]:
        """Answer the call with an error, unless it is answered. Return trailing metadata with the
        header of the answer."""
        self._end_in_thread()
        if self._incoming is None:
            return tuple(metadata)
        incoming, self._incoming = self._incoming, None
        message = self._answer(b"", status=_number_of(code))
        return (*metadata, (NAME, incoming.answer(message)))

    def _answer(self, body: bytes, *, status: int = 0) -> Message:
        request_body = b"" if self._is_streamed else self.messages.arrived
        return self.messages.to_observe(
            body, is_answer=True, status=status, request_body=request_body
        )


class _Requests:
    """The messages of the stream of a request, each accepted when the handler is given it."""

    def __init__(self, messages: Messages, requests: AsyncIterable[Any]) -> None:
        self._messages = messages
        self._requests = requests
        self._iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            # A handler that reads by its context makes no iterator.
            self._iterator = aiter(self._requests)
        request = await anext(self._iterator)
        self._messages.accept()
        return request


class _AnyContext:
    """The context of a call, as its handler is given it. It has all that grpc's has."""

    def __init__(self, served: _ServedCall, context: Any) -> None:
        self._served = served
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Context(_AnyContext):
    """The context of a handler in the event loop."""

    async def read(self) -> Any:
        """Return the next message of the request."""
        message = await self._context.read()
        if message is not grpc.aio.EOF:
            self._served.messages.accept()
        return message

    async def write(self, message: Any) -> None:
        """Send a message of the answer."""
        await self._context.write(self._served.messages.send(message))

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """Answer with an error."""
        metadata = trailing_metadata or self._context.trailing_metadata()
        await self._context.abort(code, details, self._served.with_error(code, metadata))

    async def abort_with_status(self, status: Any) -> None:
        """Answer with an error."""
        await self.abort(status.code, status.details, status.trailing_metadata)


class _ContextInThread(_AnyContext):
    """The context of an ordinary function. The one of grpc does not return what was set."""

    def __init__(self, served: _ServedCall, context: Any) -> None:
        super().__init__(served, context)
        self._code: Any = None
        self._metadata: tuple[Any, ...] = ()

    def code(self) -> Any:
        """Return the status that was set."""
        return self._code

    def set_code(self, code: Any) -> None:
        """Set the status."""
        self._code = code
        self._context.set_code(code)

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return the trailing metadata that was set."""
        return self._metadata

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Set the trailing metadata."""
        self._metadata = tuple(metadata)
        self._context.set_trailing_metadata(self._metadata)

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """Answer with an error."""
        metadata = trailing_metadata or self._metadata
        metadata = self._served.in_loop(self._served.with_error, code, metadata)
        self._context.abort(code, details, metadata)


def _has_others(continuation: Any) -> bool:
    """Return whether other interceptors follow: grpc passes on an iterator of them."""
    arguments: tuple[Any, ...] = getattr(continuation, "args", ())
    return bool(arguments) and operator.length_hint(arguments[0]) > 0


def _number_of(code: Any) -> int:
    """Return the number of a status; 0 if there is none."""
    if isinstance(code, grpc.StatusCode):
        code, _ = code.value
    return int(code or 0)


async def _unimplemented(_: Any, context: Any) -> None:
    """Answer a call of a method that no handler serves, as grpc does, and with a header."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


_UNIMPLEMENTED = grpc.stream_stream_rpc_method_handler(_unimplemented)
