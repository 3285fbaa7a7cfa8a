"""Observations over gRPC: real servers, real clients, every kind of call, and every total exact."""

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi
import grpc
import httpx
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import given
from hypothesis import strategies as st

from stillframe.detect.call_waits import find_call_deadlock
from stillframe.errors import NotConsistent
from stillframe.protocol.calls import (
    CallId,
    Collector,
    InstanceFragment,
    MessageHeader,
    Observation,
)
from stillframe.protocol.calls import RequestHeader as Request
from stillframe.services.agent import GRPC, Agent, Message
from stillframe.services.attachment import observe_application
from stillframe.services.grpc_client import ObservedChannel
from stillframe.services.grpc_messages import with_header, without_header
from stillframe.services.grpc_server import ObservedCalls
from stillframe.services.headers import LENGTH_MAX, NAME, HeaderCodec
from stillframe.services.http_client import ObservedTransport
from tests.nightly import Figure, by_night, seeds
from tests.ports import free_port
from tests.services.deployment import SECRET, address, find, listening, observed
from tests.services.grpc_bank import (
    KINDS,
    SERVICE,
    GrpcDeployment,
    amount_of,
    method_of,
    served,
)
from tests.services.mistakes import (
    answer_without_colour,
    capture_behind,
    capture_behind_message,
    message_without_colour,
    request_without_colour,
)
from tests.services.servers import served as served_app

TARGET = "bank:1"
ONE = Int64Value(value=1)
CODEC = HeaderCodec(SECRET)
STREAMS = tuple(kind for kind in KINDS if "stream" in kind)


# --- totals


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("observations over gRPC", 1, night=3))
def test_every_total_is_exact(seed: int, figure: Figure) -> None:
    """With money in requests, answers, errors, and messages of streams in both directions."""
    count = by_night(100, check=8)
    found = asyncio.run(observed(GrpcDeployment(seed), count))
    figure("calls in a cut", sum(found.values()))


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("cancelled calls over gRPC", 1, night=3))
def test_every_total_with_cancelled_calls_is_exact(seed: int, figure: Figure) -> None:
    """What they have taken along is found wherever it was, and is counted as lost."""
    deployment = GrpcDeployment(seed, timeout_s=0.06)
    asyncio.run(observed(deployment, by_night(100, check=4)))
    figure("cancelled calls", deployment.cancelled_count)
    assert deployment.cancelled_count > 0


@pytest.mark.parametrize(
    "mistake",
    [
        request_without_colour,
        answer_without_colour,
        message_without_colour,
        capture_behind,
        capture_behind_message,
    ],
)
def test_a_mistake_is_found(mistake: Callable[[Any], None]) -> None:
    """By the check of each cut, since control messages are late."""
    with pytest.raises(NotConsistent, match="sent it after its own cut"):
        find(mistake, GrpcDeployment(1))


# --- steps


class Audit:
    """Whether the loop did anything else between the step of an application and that of its
    agent."""

    def __init__(self, agent: Agent) -> None:
        self.torn: list[str] = []
        self.count = 0
        self._steps = 0
        self._accepted_in = self._sent_in = -1
        rules: Any = agent.rules
        for name in ("accept", "accept_message", "accept_answer"):
            setattr(rules, name, self._accepting(getattr(rules, name)))
        for name in ("request", "send", "answer"):
            setattr(rules, name, self._sending(name, getattr(rules, name)))

    def _begin(self) -> int:
        def over() -> None:
            self._steps += 1

        asyncio.get_running_loop().call_soon(over)
        return self._steps

    def _accepting(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def accepted(*arguments: Any, **settings: Any) -> Any:
            self._accepted_in = self._begin()
            return rule(*arguments, **settings)

        return accepted

    def _sending(self, name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*arguments: Any, **settings: Any) -> Any:
            self.count += 1
            if self._sent_in != self._steps:
                self.torn.append(name)
            return rule(*arguments, **settings)

        return sent

    def given(self, what: str) -> None:
        """Check that what the application is given was accepted in this step."""
        self.count += 1
        if self._accepted_in != self._steps:
            self.torn.append(what)

    def changes(self) -> None:
        """Record that the application changes its state to send something in this step."""
        self._sent_in = self._begin()


def audited(audit: Audit) -> dict[str, Callable[..., Any]]:
    """Return handlers of all kinds, by generators and by the context."""

    async def unary_unary(request: Int64Value, _: Any) -> Int64Value:
        audit.given("request")
        await asyncio.sleep(0)
        audit.changes()
        return request

    async def unary_stream(request: Int64Value, _: Any) -> AsyncIterator[Int64Value]:
        audit.given("request")
        for _number in range(2):
            await asyncio.sleep(0)
            audit.changes()
            yield request
        audit.changes()

    async def stream_unary(requests: AsyncIterator[Int64Value], _: Any) -> Int64Value:
        audit.given("request")
        async for _request in requests:
            audit.given("message")
            await asyncio.sleep(0)
        audit.changes()
        return ONE

    async def stream_stream(_: Any, context: Any) -> None:
        audit.given("request")
        while (request := await context.read()) is not grpc.aio.EOF:
            audit.given("message")
            await asyncio.sleep(0)
            audit.changes()
            await context.write(request)
        audit.changes()

    return {one.__name__: one for one in (unary_unary, unary_stream, stream_unary, stream_stream)}


async def call(channel: Any, kind: str, audit: Audit) -> list[int]:
    """Call a method as an application does; return what it answers."""

    async def parts() -> AsyncIterator[Int64Value]:
        for number in range(2):
            await asyncio.sleep(0)
            audit.changes()
            yield Int64Value(value=number)

    method = method_of(channel, kind)
    audit.changes()
    made = method(parts()) if kind.startswith("stream") else method(ONE)
    if kind.endswith("unary"):
        answer = await made
        audit.given("answer")
        return [answer.value]
    found = []
    async for message in made:
        audit.given("message")
        found.append(message.value)
    audit.given("answer")
    return found


ANSWERS = {
    "unary_unary": [1],
    "unary_stream": [1, 1],
    "stream_unary": [1],
    "stream_stream": [0, 1],
}


class Outside(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that suspends before the handler, and looks at messages."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return a handler that passes on."""
        handler = await continuation(handler_call_details)
        if handler.unary_unary is None:
            return handler

        async def passed(request: Int64Value, context: Any) -> Any:
            assert isinstance(request, Int64Value)
            await asyncio.sleep(0)
            response = await handler.unary_unary(request, context)
            await asyncio.sleep(0)
            assert isinstance(response, Int64Value)
            return response

        return grpc.unary_unary_rpc_method_handler(
            passed,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


@pytest.mark.parametrize("outside", [(), (Outside(),)], ids=["", "interceptor outside"])
@pytest.mark.parametrize("kind", KINDS)
def test_agents_and_applications_share_their_steps(kind: str, outside: Any) -> None:
    """At both ends of every kind of call."""
    server, client = Agent("S", dict, secret=SECRET), Agent("C", dict, secret=SECRET)
    client.targets = frozenset([TARGET])
    serving, calling = Audit(server), Audit(client)

    async def run() -> list[int]:
        async with connected(
            client, audited(serving), [*outside, ObservedCalls(server)]
        ) as channel:
            return await call(channel, kind, calling)

    assert asyncio.run(run()) == ANSWERS[kind]
    assert (serving.torn, calling.torn) == ([], [])
    assert min(serving.count, calling.count) >= 2
    assert (server.ignored_count, client.ignored_count) == (0, 0)


@contextlib.asynccontextmanager
async def connected(
    client: Agent, methods: dict[str, Callable[..., Any]], around: list[Any], **settings: Any
) -> AsyncIterator[Any]:
    """Serve methods while the body runs; yield a channel of an agent to them."""
    async with (
        served(methods, around) as address,
        ObservedChannel(client, grpc.aio.insecure_channel(address, **settings), TARGET) as channel,
    ):
        yield channel


async def connect(channel: Any) -> None:
    """Let a channel connect."""
    channel.get_state(try_to_connect=True)
    await channel.channel_ready()


def agents() -> tuple[Agent, Agent]:
    """Return the agents of a server and of a client."""
    server = Agent("S", dict, secret=SECRET, carries=amount_of)
    return server, Agent("C", dict, secret=SECRET, targets=[TARGET], carries=amount_of)


def captured(agent: Agent) -> InstanceFragment:
    """Begin an observation at an agent, and return its fragment."""
    fragment = agent.rules.meet(agent.rules.colour + 1)
    assert fragment is not None
    return fragment


def test_calls_have_the_parameters_of_grpc() -> None:
    """By position where grpc has them so, and by name."""
    server, client = agents()
    seen = []

    async def stream_unary(requests: AsyncIterator[Int64Value], context: Any) -> Int64Value:
        seen.append(dict(context.invocation_metadata())["mine"])
        assert context.time_remaining() is not None
        return Int64Value(value=sum([request.value async for request in requests]))

    async def run() -> None:
        methods = {"stream_unary": stream_unary}
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            method = method_of(channel, "stream_unary")
            assert await method(iter([ONE]), 9, (("mine", "1"),), None, True) == ONE
            metadata = grpc.aio.Metadata(("mine", "2"))
            answer = await method(
                request_iterator=iter([ONE]), timeout=9, metadata=metadata, wait_for_ready=True
            )
            assert answer == ONE

    asyncio.run(run())
    assert seen == ["1", "2"]


def test_an_answer_that_a_task_keeps_is_not_accepted_in_one_step() -> None:
    """So a task has to change the state itself, and ``gather`` must be given such tasks."""
    server, client = agents()
    calling = Audit(client)

    async def run() -> None:
        async with connected(client, {"unary_unary": echo}, [ObservedCalls(server)]) as channel:
            pay = method_of(channel, "unary_unary")

            async def paid() -> None:
                calling.changes()
                await pay(ONE)
                calling.given("answer in a coroutine")

            calling.changes()
            await asyncio.gather(pay(ONE))
            calling.given("answer in a task")
            await asyncio.gather(paid(), paid())
            other = asyncio.Event()
            calling.changes()
            both = asyncio.gather(pay(ONE), other.wait())
            while not client.open_ends:  # noqa: ASYNC110 - an agent has no event for it
                await asyncio.sleep(0)
            while client.open_ends:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0)
            reasons.append(captured(client).partial)
            other.set()
            await both
            del both
            await asyncio.sleep(0)
            reasons.append(captured(client).partial)

    reasons: list[tuple[str, ...]] = []
    asyncio.run(run())
    assert calling.torn == ["answer in a task"]
    assert reasons == [(f"a task keeps the answer of /{SERVICE}/unary_unary",), ()]


# --- handlers in threads, and interceptors inside


def in_threads(during: Callable[[], None]) -> dict[str, Callable[..., Any]]:
    """Return handlers of all kinds that are ordinary functions."""

    def unary_unary(request: Int64Value, context: Any) -> Int64Value:
        during()
        context.set_trailing_metadata((("mine", "1"),))
        return request

    def unary_stream(request: Int64Value, _: Any) -> Iterator[Int64Value]:
        during()
        for _number in range(2):
            yield request

    def stream_unary(requests: Iterator[Int64Value], context: Any) -> Int64Value:
        during()
        if sum(request.value for request in requests) != 1:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT)
        return ONE

    def stream_stream(requests: Iterator[Int64Value], _: Any) -> Iterator[Int64Value]:
        during()
        yield from requests

    return {one.__name__: one for one in (unary_unary, unary_stream, stream_unary, stream_stream)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_in_a_thread_may_be_torn(kind: str) -> None:
    """An observation that begins meanwhile says so, and no other. It takes part all the same."""
    server, client = agents()
    reasons: list[tuple[str, ...]] = []
    answered: list[InstanceFragment] = []

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()

        async def capture() -> None:
            reasons.append(captured(server).partial)

        def during() -> None:
            asyncio.run_coroutine_threadsafe(capture(), loop).result()

        async with connected(client, in_threads(during), [ObservedCalls(server)]) as channel:
            found = await call(channel, kind, Audit(Agent("none", dict, secret=SECRET)))
        answered.append(captured(client))
        return found

    assert asyncio.run(run()) == ANSWERS[kind]
    assert reasons == [(f"/{SERVICE}/{kind} runs in a thread, so the state may be torn",)]
    assert captured(server).partial == ()
    assert answered[0].calls == ()
    assert answered[0].targets == {TARGET: True}
    assert (server.ignored_count, client.ignored_count) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_in_a_thread_that_makes_steps_is_not_torn(kind: str) -> None:
    """If neither requests nor answers are streams. Before the first step an observation is partial
    if it is not known yet that the handler makes steps."""
    server, client = agents()
    fragments: list[InstanceFragment] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def capture() -> None:
            fragments.append(captured(server))

        def during() -> None:
            asyncio.run_coroutine_threadsafe(capture(), loop).result()
            with server.step(EUR=2):
                pass
            asyncio.run_coroutine_threadsafe(capture(), loop).result()

        async with connected(client, in_threads(during), [ObservedCalls(server)]) as channel:
            for _ in range(2):
                await call(channel, kind, Audit(Agent("none", dict, secret=SECRET)))

    asyncio.run(run())
    seen = [
        (one.partial, sum(not served.number for served in one.served), one.state.held)
        for one in (*fragments, captured(server))
    ]
    torn, held = (f"/{SERVICE}/{kind} runs in a thread, so the state may be torn",), {"EUR": 2}
    if kind in STREAMS:
        assert seen == [(torn, 1, {}), (torn, 1, held)] * 2 + [((), 0, {})]
    else:
        assert seen == [(torn, 1, {}), ((), 1, held), ((), 0, {}), ((), 1, held), ((), 0, {})]


def test_a_step_of_a_handler_in_a_thread_needs_no_header() -> None:
    """What it holds for the answer to a stranger leaves the system with it."""
    server = Agent("S", dict, secret=SECRET)

    async def run() -> Int64Value:
        loop = asyncio.get_running_loop()

        async def capture() -> dict[str, int]:
            return dict(captured(server).state.held)

        def unary_unary(request: Int64Value, _: Any) -> Int64Value:
            with server.step(EUR=2):
                pass
            helds.append(asyncio.run_coroutine_threadsafe(capture(), loop).result())
            return request

        async with (
            served({"unary_unary": unary_unary}, [ObservedCalls(server)]) as at,
            grpc.aio.insecure_channel(at) as channel,
        ):
            answer: Int64Value = await method_of(channel, "unary_unary")(ONE)
            return answer

    helds: list[dict[str, int]] = []
    assert asyncio.run(run()) == ONE
    assert [*helds, captured(server).state.held] == [{"EUR": 2}, {}]


def test_an_error_of_a_handler_in_a_thread_is_an_answer() -> None:
    """Since its trailing metadata has the header."""
    server, client = agents()

    async def run() -> None:
        methods = in_threads(lambda: None)
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method_of(channel, "stream_unary")(iter([ONE, ONE]))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            made = method_of(channel, "unary_unary")(ONE)
            assert await made == ONE
            assert (await made.trailing_metadata())["mine"] == "1"

    asyncio.run(run())
    assert captured(client).calls == ()


def test_interceptors_inside_may_suspend() -> None:
    """Every observation while a call is served names its path."""
    server, client = agents()
    reasons: list[tuple[str, ...]] = []

    async def unary_unary(request: Int64Value, _: Any) -> Int64Value:
        reasons.append(captured(server).partial)
        return request

    async def run() -> None:
        interceptors = [ObservedCalls(server), Outside()]
        async with connected(client, {"unary_unary": unary_unary}, interceptors) as channel:
            assert await method_of(channel, "unary_unary")(ONE) == ONE

    asyncio.run(run())
    path = f"/{SERVICE}/unary_unary"
    assert reasons == [(f"{path} has interceptors inside the one that takes part",)]
    assert captured(server).partial == ()


class Replacing(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that sends other messages than the handler does."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return a handler that adds one."""
        handler = await continuation(handler_call_details)

        async def more(request: Int64Value, context: Any) -> AsyncIterator[Int64Value]:
            async for response in handler.unary_stream(request, context):
                yield Int64Value(value=response.value + 1)

        return grpc.unary_stream_rpc_method_handler(
            more,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def test_a_message_that_an_interceptor_makes_has_no_header() -> None:
    """The receiver counts it, and its observations are partial until the call ends."""
    server, client = agents()
    around = [Replacing(), ObservedCalls(server)]

    async def run() -> None:
        async with connected(client, audited(Audit(server)), around) as channel:
            made = method_of(channel, "unary_stream")(ONE)
            assert (await made.read()).value == 2
            path = f"/{SERVICE}/unary_stream"
            assert captured(client).partial == (f"a message of the stream {path} has no header",)
            while await made.read() is not grpc.aio.EOF:
                pass
            assert captured(client).partial == ()

    asyncio.run(run())
    assert client.ignored_count == 2


class Counting(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """An interceptor of a channel that looks at requests and answers."""

    seen = 0

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Int64Value
    ) -> Any:
        """Pass on."""
        assert isinstance(request, Int64Value)
        made = await continuation(client_call_details, request)
        self.seen += (await made).value
        return made


def test_interceptors_of_a_channel_see_messages() -> None:
    """And the call is accepted in one step with its caller."""
    server, client = agents()
    interceptor, calling = Counting(), Audit(client)

    async def run() -> list[int]:
        async with connected(
            client,
            audited(Audit(server)),
            [ObservedCalls(server)],
            interceptors=[interceptor],
        ) as channel:
            return await call(channel, "unary_unary", calling)

    assert asyncio.run(run()) == [1]
    assert (interceptor.seen, calling.torn) == (1, [])


# --- errors


async def refusing(_: Any, context: Any) -> None:
    """Answer with an error, and trailing metadata."""
    await context.abort(grpc.StatusCode.NOT_FOUND, "none", (("mine", "1"),))


async def raising(_: Any, context: Any) -> None:
    """Raise an error."""
    context.set_trailing_metadata((("mine", "1"),))
    raise ValueError("a bug")


async def coding(_: Any, context: Any) -> Int64Value:
    """Set a status."""
    context.set_trailing_metadata((("mine", "1"),))
    context.set_code(grpc.StatusCode.DATA_LOSS)
    return ONE


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (refusing, grpc.StatusCode.NOT_FOUND),
        (raising, grpc.StatusCode.UNKNOWN),
        (coding, grpc.StatusCode.DATA_LOSS),
        (None, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_an_error_is_an_answer(handler: Any, code: grpc.StatusCode) -> None:
    """It has a header in its trailing metadata, beside that of the application."""
    server, client = agents()
    methods = {"unary_unary": handler} if handler else {}

    async def run() -> None:
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method_of(channel, "unary_unary")(ONE)
        assert caught.value.code() is code
        metadata = dict(caught.value.trailing_metadata())
        assert NAME in metadata
        assert handler is None or metadata["mine"] == "1"

    asyncio.run(run())
    ours, theirs = captured(client), captured(server)
    assert (ours.calls, ours.targets) == ((), {TARGET: True})
    assert [(call.number, call.details.status) for call in theirs.served] == [(1, code.value[0])]


def test_an_error_after_messages_of_a_stream_is_accepted_after_them() -> None:
    """So none of them is missing."""
    server, client = agents()

    async def unary_stream(_: Any, context: Any) -> AsyncIterator[Int64Value]:
        for _number in range(20):
            yield ONE
        await context.abort(grpc.StatusCode.DATA_LOSS)

    async def run() -> None:
        methods = {"unary_stream": unary_stream}
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            made = method_of(channel, "unary_stream")(ONE)
            assert [await made.read() for _ in range(20)] == [ONE] * 20
            with pytest.raises(grpc.aio.AioRpcError):
                await made.read()

    asyncio.run(run())
    assert captured(client).calls == ()


class Endless:
    """A method that never answers."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def unary_unary(self, _: Any, __: Any) -> None:
        """Wait."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.over.set()

    async def stream_stream(self, requests: AsyncIterator[Int64Value], _: Any) -> Any:
        """Answer the messages, and wait."""
        try:
            async for request in requests:
                yield request
                self.begun.set()
        finally:
            self.over.set()


async def cancelled(channel: Any, endless: Endless) -> None:
    """Cancel the task that waits for an answer."""
    made = method_of(channel, "unary_unary")(ONE)

    async def wait() -> None:
        await made

    task = asyncio.create_task(wait())
    await endless.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(asyncio.CancelledError):
        await made


async def overdue(channel: Any, _: Endless) -> None:
    """Wait until the deadline."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method_of(channel, "unary_unary")(ONE, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def forgotten(channel: Any, endless: Endless) -> None:
    """Drop a call."""
    made = method_of(channel, "unary_unary")(ONE)
    await endless.begun.wait()
    del made
    gc.collect()
    await asyncio.sleep(0)


async def left(channel: Any, endless: Endless) -> None:
    """Close the channel, as the end of a client does."""
    made = method_of(channel, "stream_stream")()
    await made.write(ONE)
    assert await made.read() == ONE
    await endless.begun.wait()
    await channel.close()
    with pytest.raises(asyncio.CancelledError):
        await made.read()


@pytest.mark.parametrize("end", [cancelled, overdue, forgotten, left])
def test_a_call_without_an_answer_is_unresolved(end: Any) -> None:
    """The server has ended it, too, if it was cancelled there."""
    server, client = agents()

    async def run() -> None:
        endless = Endless()
        methods = {
            "unary_unary": endless.unary_unary,
            "stream_stream": endless.stream_stream,
        }
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            await end(channel, endless)
            fragment = captured(client)
            assert [call.is_awaited for call in fragment.calls] == [False]
            assert [call.was_answered for call in fragment.calls] == [False]
            assert (fragment.calls[0].details.deadline is not None) == (end is overdue)
        await endless.over.wait()

    asyncio.run(run())
    assert [call.number for call in captured(server).served] == [1]


def test_an_answer_that_arrives_with_a_cancellation_is_not_given() -> None:
    """Neither then nor later, since the call is unresolved."""
    server, client = agents()

    async def run() -> None:
        methods = {"unary_unary": echo}
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            await connect(channel)
            made = method_of(channel, "unary_unary")(ONE)

            async def wait() -> None:
                await made

            task = asyncio.create_task(wait())
            made._call_response.add_done_callback(lambda _: task.cancel())
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(asyncio.CancelledError):
                await made

    asyncio.run(run())
    assert [call.is_awaited for call in captured(client).calls] == [False]


def test_a_status_has_a_colour() -> None:
    """The caller captures before it sees it, and accepts the answer later."""
    server, client = agents()

    async def unary_unary(request: Int64Value, _: Any) -> Int64Value:
        captured(server)
        return request

    async def run() -> None:
        methods = {"unary_unary": unary_unary}
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            made = method_of(channel, "unary_unary")(ONE)
            assert await made.code() is grpc.StatusCode.OK
            assert client.rules.colour == 1
            assert len(captured(client).calls) == 1
            assert await made == await made == ONE
            assert await made.details() == ""

    asyncio.run(run())
    assert captured(client).calls == ()


def test_a_call_to_a_server_that_ends_is_unresolved() -> None:
    """Its status is one that the client makes."""
    server, client = agents()

    async def run() -> None:
        endless, stopping = Endless(), asyncio.Event()

        async def serve(ready: asyncio.Future[str]) -> None:
            methods = {"unary_unary": endless.unary_unary}
            async with served(methods, [ObservedCalls(server)]) as address:
                ready.set_result(address)
                await stopping.wait()

        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(ready))
        plain = grpc.aio.insecure_channel(await ready)
        async with ObservedChannel(client, plain, TARGET) as channel:
            made = method_of(channel, "unary_unary")(ONE)
            await endless.begun.wait()
            stopping.set()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await made
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await serving

    asyncio.run(run())
    assert [call.is_awaited for call in captured(client).calls] == [False]


REPEATED = {
    "name": [{}],
    "retryPolicy": {
        "maxAttempts": 3,
        "initialBackoff": "0.2s",
        "maxBackoff": "0.2s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}
REPEATING = [("grpc.service_config", json.dumps({"methodConfig": [REPEATED]}))]
NOTHING_LISTENS = "failed to connect to all addresses"


async def ended(channel: Any, kind: str, **settings: Any) -> grpc.aio.AioRpcError:
    """Return the error of a call to a method of a kind."""
    request = iter([ONE]) if kind.startswith("stream_") else ONE
    made = method_of(channel, kind)(request, **settings)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (made.read() if kind.endswith("_stream") else made)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_while_nothing_listens_was_not_sent(kind: str) -> None:
    """Whether it is the first one or not, and also if it waits for a connection until it ends."""
    _, client = agents()

    async def run() -> None:
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{free_port()}")
        async with ObservedChannel(client, plain, TARGET) as channel:
            for _ in range(2):
                error = await ended(channel, kind)
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert error.details().startswith(NOTHING_LISTENS)
            error = await ended(channel, kind, timeout=0.05, wait_for_ready=True)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())
    found = [(one.is_awaited, one.was_answered, one.was_sent) for one in captured(client).calls]
    assert found == [(False, False, False)] * 3


@pytest.mark.parametrize("is_early", [True, False], ids=["first", "connected"])
def test_a_call_that_was_sent_before_nothing_listens_is_unresolved(*, is_early: bool) -> None:
    """It is repeated in vain, and its status is that of a call which was not sent."""
    _, client = agents()

    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # no settings of HTTP/2
            await reader.readuntil(b"unary_unary")
            server.close()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        plain = grpc.aio.insecure_channel(address, options=REPEATING)
        async with ObservedChannel(client, plain, TARGET) as channel:
            if not is_early:
                await connect(channel)
            error = await ended(channel, "unary_unary")
            assert error.details().startswith(NOTHING_LISTENS)

    asyncio.run(run())
    assert [(one.is_awaited, one.was_sent) for one in captured(client).calls] == [(False, True)]


def test_a_status_that_a_server_sends_is_no_proof() -> None:
    """A gateway may pass on the words of another client, which may have sent the call."""
    _, client = agents()

    async def unary_unary(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"{NOTHING_LISTENS}; last error: none")

    async def run() -> None:
        async with connected(client, {"unary_unary": unary_unary}, []) as channel:
            for _ in range(2):
                assert (await ended(channel, "unary_unary")).details().startswith(NOTHING_LISTENS)

    asyncio.run(run())
    assert [one.was_sent for one in captured(client).calls] == [True, True]


async def overdue_early(_: Any, made: Any) -> None:
    """Let the time-out of a call pass."""
    assert 0 < made.time_remaining() <= 0.1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def cancelled_early(_: Any, made: Any) -> None:
    """Cancel a call."""
    assert made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made
    assert await made.code() is grpc.StatusCode.CANCELLED


async def left_early(channel: Any, made: Any) -> None:
    """Close the channel of a call."""
    await channel.close()
    with pytest.raises(asyncio.CancelledError):
        await made


@pytest.mark.parametrize("end", [overdue_early, cancelled_early, left_early])
def test_a_call_ends_while_its_channel_connects(end: Any) -> None:
    """As other calls do."""
    _, client = agents()
    over: list[Any] = []

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            plain = grpc.aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}")
            async with ObservedChannel(client, plain, TARGET) as channel:
                made = method_of(channel, "unary_unary")(ONE, timeout=0.1)
                made.add_done_callback(over.append)
                assert (made.done(), made.cancelled()) == (False, False)
                await end(channel, made)
                assert (made.done(), made.cancelled()) == (True, end is not overdue_early)

    asyncio.run(run())
    assert len(over) == 1
    assert [one.is_awaited for one in captured(client).calls] == [False]


# --- others


async def echo(request: Int64Value, _: Any) -> Int64Value:
    """Answer with the request."""
    return request


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_takes_no_part_works(kind: str) -> None:
    """It ignores the field. Its own messages are counted, and the target is named."""
    client = agents()[1]
    unused = Audit(Agent("none", dict, secret=SECRET))

    def silent() -> None:
        pass

    async def run() -> list[int]:
        async with connected(client, in_threads(silent), []) as channel:
            return await call(channel, kind, unused)

    assert asyncio.run(run()) == ANSWERS[kind]
    fragment = captured(client)
    assert fragment.targets == {TARGET: False}
    assert [(call.was_answered, call.details.status) for call in fragment.calls] == [(True, 0)]
    assert client.ignored_count == (2 if kind.endswith("stream") else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_that_takes_no_part_works(kind: str) -> None:
    """It is given no header."""
    server = agents()[0]
    unused = Audit(Agent("none", dict, secret=SECRET))

    async def run() -> list[int]:
        async with (
            served(in_threads(lambda: None), [ObservedCalls(server)]) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            return await call(channel, kind, unused)

    assert asyncio.run(run()) == ANSWERS[kind]
    assert captured(server).served == ()


def test_no_header_is_sent_to_a_target_that_is_not_listed() -> None:
    """Neither with the call nor in a message."""
    client = Agent("C", dict, secret=SECRET, targets=["other:1"])
    seen: list[Any] = []

    async def stream_unary(requests: AsyncIterator[Int64Value], context: Any) -> Int64Value:
        seen.extend(name for name, _ in context.invocation_metadata() if name == NAME)
        seen.extend([request.SerializeToString() async for request in requests])
        return ONE

    async def run() -> None:
        async with connected(client, {"stream_unary": stream_unary}, []) as channel:
            assert await method_of(channel, "stream_unary")(iter([ONE])) == ONE

    asyncio.run(run())
    assert seen == [ONE.SerializeToString()]
    fragment = captured(client)
    assert (fragment.targets, fragment.calls) == ({TARGET: False}, ())


def message(number: int, colour: int = 0, stream: str = "C-1#1>") -> str:
    """Return the header of a message of a client."""
    return CODEC.encode(MessageHeader(colour, "C-1", 1 + number, number), stream)


@pytest.mark.parametrize(
    "headers",
    [
        [message(1), None],
        [message(1), "1;5;C-1;2;2;forged"],
        [message(1), message(1, colour=5)],
        [message(2), message(1, colour=5)],
        [message(1), message(2, colour=5, stream="C-1#2>")],
        [message(1), message(2, colour=5, stream="C-1#1<")],
    ],
    ids=["missing", "forged", "repeated", "old", "of another stream", "of an answer"],
)
def test_a_message_without_a_new_header_of_its_stream_is_ignored(headers: list[Any]) -> None:
    """It is counted, the application is given it, and observations are partial until the end."""
    server = agents()[0]
    reasons: list[tuple[str, ...]] = []

    async def stream_unary(requests: AsyncIterator[Int64Value], _: Any) -> Int64Value:
        found = [request.value async for request in requests]
        assert server.rules.colour == 0
        reasons.append(captured(server).partial)
        return Int64Value(value=sum(found))

    async def run() -> int:
        async with (
            served({"stream_unary": stream_unary}, [ObservedCalls(server)]) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            body = ONE.SerializeToString()
            bodies = [with_header(body, header) if header else body for header in headers]
            method = channel.stream_unary(f"/{SERVICE}/stream_unary")
            header = CODEC.encode(Request(0, CallId("C-1", 1)))
            answer = await method(iter(bodies), metadata=((NAME, header),))
            value: int = Int64Value.FromString(answer).value
            return value

    assert asyncio.run(run()) == 2
    assert server.ignored_count == 1
    assert reasons == [(f"a message of the stream /{SERVICE}/stream_unary has no header",)]
    assert captured(server).partial == ()


@pytest.mark.parametrize("header", ["1;5;A-1;1;forged", "x" * 5_000], ids=["forged", "long"])
def test_an_unsigned_header_of_a_call_has_no_effect(header: str) -> None:
    """It is counted; the call is served."""
    server = agents()[0]

    async def run() -> None:
        async with (
            served({"unary_unary": echo}, [ObservedCalls(server)]) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            assert await method_of(channel, "unary_unary")(ONE, metadata=((NAME, header),)) == ONE

    asyncio.run(run())
    assert (server.ignored_count, server.rules.colour) == (1, 0)


def test_a_call_that_a_handler_makes_names_the_call_that_it_serves() -> None:
    """And its name, but no field of its message."""
    server, client = agents()
    server.targets = frozenset([TARGET])
    fragments: list[InstanceFragment] = []

    async def last(request: Int64Value, _: Any) -> Int64Value:
        fragments.append(captured(server))
        return request

    async def run() -> None:
        async with connected(server, {"unary_unary": last}, []) as second:

            async def first(request: Int64Value, _: Any) -> Any:
                return await method_of(second, "unary_unary")(request)

            methods = {"unary_unary": first}
            async with connected(client, methods, [ObservedCalls(server)]) as channel:
                await method_of(channel, "unary_unary")(ONE)

    asyncio.run(run())
    [made], [served] = fragments[0].calls, fragments[0].served
    assert made.serving == CallId(client.rules.name, 1)
    assert made.details.name == f"GRPC /{SERVICE}/unary_unary"
    assert made.details.activity == served.details.activity != ""


def test_no_field_of_a_message_is_stored() -> None:
    """Even if it is JSON."""
    agent = Agent("C", dict, secret=SECRET, stored_fields=["amount"])

    async def run() -> None:
        for method in (GRPC, "POST"):
            agent.request(TARGET, Message(method=method, path="/it", body=b'{"amount": 1}'))

    asyncio.run(run())
    assert [call.details.fields for call in captured(agent).calls] == [{}, {"amount": "1"}]


def test_an_agent_takes_part_over_http_and_grpc() -> None:
    """In one process, as one instance."""
    server, client = agents()
    app, listener = fastapi.FastAPI(), listening()
    client.targets = frozenset([TARGET, address(listener)])
    fragments: list[InstanceFragment] = []

    @app.post("/it")
    async def it() -> None:
        async with connected(client, {"unary_unary": last}, [ObservedCalls(server)]) as channel:
            await method_of(channel, "unary_unary")(ONE)

    async def last(request: Int64Value, _: Any) -> Int64Value:
        fragments.append(captured(server))
        return request

    async def run() -> None:
        observe_application(app, server)
        transport = ObservedTransport(client)
        async with served_app(app, listener), httpx.AsyncClient(transport=transport) as http:
            assert (await http.post(f"http://{address(listener)}/it")).status_code == 200

    asyncio.run(run())
    assert [one.details.name for one in fragments[0].served] == [
        "POST /it",
        f"GRPC /{SERVICE}/unary_unary",
    ]


def test_an_agent_connects_before_the_first_call() -> None:
    """If the interceptor is made in the event loop; otherwise with the first call."""
    server = agents()[0]
    started: list[str] = []
    server.start = lambda: started.append("once")

    async def run() -> None:
        ObservedCalls(server)

    asyncio.run(run())
    assert started == ["once"]
    interceptor = ObservedCalls(server)
    assert started == ["once"]

    async def called() -> None:
        async with (
            served({"unary_unary": echo}, [interceptor]) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            await method_of(channel, "unary_unary")(ONE)

    asyncio.run(called())
    assert started == ["once", "once"]


def test_an_agent_of_a_process_that_only_calls_connects() -> None:
    """With its first call."""
    client = agents()[1]
    started: list[str] = []
    client.start = lambda: started.append("once")

    async def run() -> None:
        async with connected(client, {"unary_unary": echo}, []) as channel:
            assert started == []
            await method_of(channel, "unary_unary")(ONE)

    asyncio.run(run())
    assert started == ["once"]


# --- the field


@given(st.binary(max_size=40), st.text(st.characters(max_codepoint=0x7F), max_size=LENGTH_MAX))
def test_a_header_is_read_from_the_end_of_a_message(body: bytes, header: str) -> None:
    """And nothing of the message is changed, even if it has such an end itself."""
    assert without_header(with_header(body, header)) == (body, header)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, LENGTH_MAX))
def test_a_parser_ignores_the_header(value: int, length: int) -> None:
    """It is an unknown field."""
    body = Int64Value(value=value).SerializeToString()
    assert without_header(body) == (body, None)
    assert Int64Value.FromString(with_header(body, "x" * length)).value == value


def test_a_task_waits_for_a_call_while_it_awaits_it() -> None:
    """It may have made the call and do something else: then it is not blocked."""
    server, client = agents()

    async def run() -> list[str]:
        endless = Endless()
        methods = {"unary_unary": endless.unary_unary}
        async with connected(client, methods, [ObservedCalls(server)]) as channel:
            made = method_of(channel, "unary_unary")(ONE)

            async def wait() -> None:
                await made

            await endless.begun.wait()
            found = [captured(client).calls[0].details.activity]
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            found.append(captured(client).calls[0].details.activity)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return found

    before, during = asyncio.run(run())
    assert before == ""
    assert during.startswith(f"{client.rules.name}/")


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
def test_a_deadlock_of_calls_is_found_where_each_has_one_answer(kind: str) -> None:
    """Although grpc waits for it in another task. A wait for a message of a stream is not found,
    because any task of the server may send one."""
    a, b = (Agent(name, dict, secret=SECRET, targets=["a:1", "b:1"]) for name in "ab")
    lock, begun = a.lock("x"), asyncio.Event()
    collector = Collector()
    for agent in (a, b):
        collector.joined(agent.rules.name, 0)

    async def last(request: Int64Value, _: Any) -> Int64Value:
        begun.set()
        async with lock:
            return request

    async def run() -> Observation:
        async with (
            served({"unary_unary": last}, [ObservedCalls(a)]) as at,
            ObservedChannel(b, grpc.aio.insecure_channel(at), "a:1") as to_a,
        ):

            async def unary_unary(request: Int64Value, _: Any) -> Any:
                return await method_of(to_a, "unary_unary")(request)

            async def unary_stream(request: Int64Value, _: Any) -> AsyncIterator[Any]:
                yield await method_of(to_a, "unary_unary")(request)

            methods = {"unary_unary": unary_unary, "unary_stream": unary_stream}
            async with (
                served(methods, [ObservedCalls(b)]) as at_b,
                ObservedChannel(a, grpc.aio.insecure_channel(at_b), "b:1") as to_b,
            ):

                async def pay() -> None:
                    async with lock:
                        made = method_of(to_b, kind)(ONE)
                        await (made if kind == "unary_unary" else made.read())

                paying = asyncio.create_task(pay())
                await begun.wait()
                await asyncio.sleep(0)
                collector.begin()
                collector.add(captured(a))
                result = collector.add(captured(b))
                paying.cancel()
                await asyncio.gather(paying, return_exceptions=True)
                assert result is not None
                return result[0]

    found = find_call_deadlock(asyncio.run(run()))
    assert (found is not None) == (kind == "unary_unary")


def test_a_server_without_aio_fails_calls_and_logs_why(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot take part, and its thread must not end."""
    agent = Agent("A", dict, secret=SECRET)
    server = grpc.server(ThreadPoolExecutor(1), interceptors=[ObservedCalls(agent)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(2):
                with pytest.raises(grpc.RpcError, match="Error in service handler"):
                    channel.unary_unary("/bank.Bank/Pay")(b"", wait_for_ready=True)
    finally:
        server.stop(None).wait()
    assert "cannot have ObservedCalls: use grpc.aio.server" in caplog.text
