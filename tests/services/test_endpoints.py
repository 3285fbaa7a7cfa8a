"""Where accepting and answering are one step with an endpoint of FastAPI or Starlette, and where
they are not: the table of docs/services.md.

Each kind of endpoint is served by a real server. The loop runs a callback as soon as something
suspends; so a callback that was run between two moments shows that they are not one step.
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Annotated, Any, NoReturn

import anyio.from_thread
import fastapi
import httpx
import pytest
from fastapi.middleware import Middleware
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.routing import Route

from stillframe.errors import UsageError
from stillframe.protocol.activities import NUMBER_MAX
from stillframe.protocol.calls import CallId, InstanceFragment, RequestHeader
from stillframe.protocol.wire import encode_control
from stillframe.services.agent import BODY_BYTES_MAX, Agent, Message
from stillframe.services.asgi import ObservedApplication
from stillframe.services.attachment import observe_application
from stillframe.services.control import Captured
from stillframe.services.headers import NAME, HeaderCodec
from stillframe.services.http_client import ObservedTransport
from tests.services.deployment import SECRET, address, listening
from tests.services.servers import SERVER, client_transport, served

HAS_GENERATORS = tuple(map(int, fastapi.__version__.split(".")[:2])) >= (0, 134)


class Step:
    """Tells whether the loop has done anything else since `begin`."""

    def __init__(self) -> None:
        self.is_over = False

    def begin(self) -> None:
        """Begin a step."""
        self.is_over = False
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.is_over = True


class Watched:
    """An application whose agent says when it accepts and answers, and a client of it."""

    def __init__(self, middleware: Any = None, app: Any = None, carries: Any = None) -> None:
        self.app: fastapi.FastAPI = fastapi.FastAPI() if app is None else app
        self.agent = Agent("S", dict, secret=SECRET, carries=carries)
        observe_application(self.app, self.agent)
        if middleware is not None:
            self.app.add_middleware(middleware)
        self.accepting, self.answering = Step(), Step()
        self.was_accepted_before: bool | None = None
        self.was_answered_later: bool | None = None
        self.partial: list[str] = []
        self._watch()

    def _watch(self) -> None:
        rules = self.agent.rules
        accept, answer = rules.accept, rules.answer

        def accepted(*arguments: Any, **settings: Any) -> Any:
            self.accepting.begin()
            return accept(*arguments, **settings)

        def answered(*arguments: Any, **settings: Any) -> Any:
            self.was_answered_later = self.answering.is_over
            return answer(*arguments, **settings)

        rules.accept = accepted  # type: ignore[method-assign]
        rules.answer = answered  # type: ignore[method-assign]

    def mark(self) -> None:
        """Record that the endpoint runs: all of it is one step."""
        self.was_accepted_before = self.accepting.is_over
        self.partial += (reason() for reason in self.agent._reasons.values())
        self.answering.begin()


def watch_answers(agent: Agent, step: Step) -> None:
    """Begin a step whenever an agent accepts an answer."""
    accept_answer = agent.rules.accept_answer

    def accepted(*arguments: Any) -> Any:
        step.begin()
        return accept_answer(*arguments)

    agent.rules.accept_answer = accepted  # type: ignore[method-assign,assignment]


def bank() -> fastapi.FastAPI:
    """Return an application that answers with a header."""
    watched = Watched()
    in_router(watched)
    return watched.app


@contextlib.asynccontextmanager
async def client_of(watched: Watched, agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an application while the body runs; yield a client of it, which has an agent."""
    listener = listening()
    target = address(listener)
    agent.targets = frozenset([target])
    async with (
        served(watched.app, listener),
        httpx.AsyncClient(
            transport=ObservedTransport(agent, client_transport()),
            base_url=f"http://{target}",
        ) as client,
    ):
        yield client


async def call(watched: Watched, path: str, body: dict[str, int] | None = None) -> httpx.Response:
    """Call an endpoint as another service does; return the answer. It was accepted in one step with
    the caller, unless it has no length."""
    agent = Agent("C", dict, secret=SECRET)
    returning = Step()
    watch_answers(agent, returning)
    async with (
        client_of(watched, agent) as client,
    ):
        response = await client.post(path, json=body or {"x": 1})
        assert returning.is_over == ("content-length" not in response.headers)
        assert NAME in response.headers
    return response


async def call_from_outside(watched: Watched) -> None:
    """Call an endpoint as a client without an agent does."""
    transport = httpx.ASGITransport(watched.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
        assert (await client.post("/it")).status_code == 200


def plain_dependency() -> int:
    """A dependency that FastAPI runs in a thread."""
    return 1


async def dependency() -> int:
    """A dependency that does not suspend."""
    return 1


async def closed_dependency() -> AsyncIterator[int]:
    """A dependency with an end."""
    yield 1


def plain_closed_dependency() -> Iterator[int]:
    """One that runs in a thread."""
    yield 1


def with_dependency(dependency: Callable[..., Any]) -> Callable[[Watched], None]:
    """Return what adds an endpoint with a dependency."""

    def add(watched: Watched) -> None:
        @watched.app.post("/it")
        async def it(given: int = fastapi.Depends(dependency)) -> dict[str, int]:
            watched.mark()
            return {"given": given}

    return add


def with_body(watched: Watched) -> None:
    """Add an endpoint whose body is decoded for it."""

    @watched.app.post("/it")
    async def it(body: dict[str, int]) -> dict[str, int]:
        watched.mark()
        return body


def with_request(watched: Watched) -> None:
    """Add an endpoint that reads the body itself."""

    @watched.app.post("/it")
    async def it(request: fastapi.Request) -> dict[str, int]:
        watched.mark()
        body: dict[str, int] = await request.json()
        return body


def with_background(watched: Watched) -> None:
    """Add an endpoint with a task that runs after the answer."""

    @watched.app.post("/it")
    async def it(tasks: fastapi.BackgroundTasks) -> dict[str, int]:
        tasks.add_task(dependency)
        watched.mark()
        return {}


def in_router(watched: Watched) -> None:
    """Add an endpoint that is in a router with a prefix."""
    router = fastapi.APIRouter(prefix="")
    router.post("/it")(_marking(watched))
    watched.app.include_router(router)


def _marking(watched: Watched) -> Callable[[], Any]:
    async def it() -> dict[str, int]:
        watched.mark()
        return {}

    return it


class Marking:
    """An object with an endpoint."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    async def it(self) -> dict[str, int]:
        """Mark."""
        self._watched.mark()
        return {}

    async def __call__(self) -> dict[str, int]:
        """Mark."""
        return await self.it()


def of_object(watched: Watched) -> None:
    """Add an endpoint that is a method of an object."""
    watched.app.post("/it")(Marking(watched).it)


def called_object(watched: Watched) -> None:
    """Add an endpoint that is an object."""
    watched.app.post("/it")(Marking(watched))


def with_arguments(watched: Watched) -> None:
    """Add an endpoint that has arguments already."""
    watched.app.post("/it")(functools.partial(Marking.it, Marking(watched)))


def mounted(watched: Watched) -> None:
    """Add an endpoint of another application of FastAPI."""
    inner = fastapi.FastAPI()
    inner.post("/it")(_marking(watched))
    watched.app.mount("/", inner)


def with_error_handler(watched: Watched) -> None:
    """Add an endpoint whose error becomes an answer."""

    @watched.app.post("/it")
    async def it() -> None:
        watched.mark()
        raise LookupError

    @watched.app.exception_handler(LookupError)
    async def answer(_: fastapi.Request, __: Exception) -> Response:
        return Response(status_code=404)


class Outside(BaseHTTPMiddleware):
    """Middleware that suspends, outside of that of an agent."""

    async def dispatch(
        self, request: fastapi.Request, call_next: RequestResponseEndpoint
    ) -> fastapi.Response:
        """Pass on."""
        return await call_next(request)


ONE_STEP: dict[str, Callable[[Watched], None]] = {
    "body": with_body,
    "request": with_request,
    "background task": with_background,
    "router": in_router,
    "method of an object": of_object,
    "object": called_object,
    "function with arguments": with_arguments,
    "mounted application of FastAPI": mounted,
    "error with a handler": with_error_handler,
    "dependency": with_dependency(dependency),
    "dependency with an end": with_dependency(closed_dependency),
    "dependency in a thread": with_dependency(plain_dependency),
    "dependency with an end in a thread": with_dependency(plain_closed_dependency),
}


@pytest.mark.parametrize("middleware", [None, Outside], ids=["", "middleware outside"])
@pytest.mark.parametrize("kind", ONE_STEP)
def test_an_endpoint_accepts_and_answers_in_one_step(kind: str, middleware: Any) -> None:
    """Whatever comes before it."""
    watched = Watched(middleware)
    ONE_STEP[kind](watched)
    asyncio.run(call(watched, "/it"))
    assert watched.was_accepted_before is False
    assert watched.was_answered_later is False
    assert watched.partial == [""]


def plain_route(watched: Watched) -> None:
    """Add an ordinary route of Starlette."""

    async def it(_: fastapi.Request) -> Response:
        watched.mark()
        return Response()

    watched.app.add_route("/it", it, ["POST"])


def with_class(watched: Watched) -> None:
    """Add an endpoint that is a class."""

    class It(HTTPEndpoint):
        async def post(self, _: fastapi.Request) -> Response:
            watched.mark()
            return Response()

    watched.app.router.routes.append(Route("/it", It))


def in_mount(watched: Watched) -> None:
    """Add a route of another application of Starlette."""
    inner = Watched(app=Starlette())
    inner.mark = watched.mark  # type: ignore[method-assign]
    inner.app.user_middleware.clear()
    plain_route(inner)
    watched.app.mount("/", inner.app)


ROUTES: dict[str, Callable[[Watched], None]] = {
    "route": plain_route,
    "class": with_class,
    "mounted application": in_mount,
}


@pytest.mark.parametrize("kind", ROUTES)
def test_an_application_of_starlette_accepts_and_answers_in_one_step(kind: str) -> None:
    """Its request is accepted before the application is called, which does not suspend."""
    watched = Watched(app=Starlette())
    ROUTES[kind](watched)
    asyncio.run(call(watched, "/it"))
    assert watched.was_accepted_before is False
    assert watched.was_answered_later is False
    assert watched.partial == [""]


def reasons_while(watched: Watched) -> list[tuple[str, ...]]:
    """Let each observation that begins while an endpoint runs be seen; return their reasons."""
    reasons: list[tuple[str, ...]] = []
    watched.agent.on_fragment = lambda fragment: reasons.append(fragment.partial)
    return reasons


def capture(watched: Watched) -> None:
    """Begin an observation at the agent."""
    rules = watched.agent.rules
    watched.agent.report(rules.meet(rules.colour + 1))


@pytest.mark.parametrize("kind", ROUTES)
def test_an_application_of_fastapi_may_pass_requests_on(kind: str) -> None:
    """Nothing tells when these begin, so an observation names them."""
    watched = Watched()
    reasons = reasons_while(watched)
    watched.mark = lambda: capture(watched)  # type: ignore[method-assign]
    ROUTES[kind](watched)
    asyncio.run(call(watched, "/it"))
    capture(watched)
    assert reasons == [
        ("/it is not a function that FastAPI calls, so it may act before it accepts",),
        (),
    ]


class InThread(HTTPEndpoint):
    """An endpoint that runs in a thread."""

    action: Callable[[], None]

    def post(self, _: fastapi.Request) -> Response:
        """Act."""
        type(self).action()
        return Response()


def thread_function(app: fastapi.FastAPI, action: Callable[[], None]) -> None:
    """Add an ordinary function."""

    @app.post("/it")
    def it() -> None:
        action()


def thread_method(app: Any, action: Callable[[], None]) -> None:
    """Add an ordinary method of an object."""
    app.post("/it")(ByCall(action).act)


def thread_partial(app: Any, action: Callable[[], None]) -> None:
    """Add a function with arguments."""
    app.post("/it")(functools.partial(ByCall.act, ByCall(action)))


def thread_object(app: Any, action: Callable[[], None]) -> None:
    """Add an object that is called."""
    app.post("/it")(ByCall(action))


def thread_route(app: Any, action: Callable[[], None]) -> None:
    """Add an ordinary function to Starlette."""

    def it(_: fastapi.Request) -> Response:
        action()
        return Response()

    app.add_route("/it", it, ["POST"])


def thread_class(app: Any, action: Callable[[], None]) -> None:
    """Add a class with an ordinary method to Starlette."""
    kind = type("It", (InThread,), {"action": staticmethod(action)})
    app.router.routes.append(Route("/it", kind))


class ByCall:
    """An object that acts when it is called."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def act(self) -> None:
        """Act."""
        self._action()

    def __call__(self) -> None:
        """Act."""
        self._action()


THREADS: dict[str, tuple[bool, Callable[[Any, Callable[[], None]], None]]] = {
    "function": (True, thread_function),
    "method": (True, thread_method),
    "partial": (True, thread_partial),
    "object": (True, thread_object),
    "route": (False, thread_route),
    "class": (False, thread_class),
}
"""Whether it is FastAPI, and what adds the endpoint."""


def capturing_in_thread(watched: Watched) -> Callable[[], None]:
    """Return a function for a thread that begins an observation in the running event loop."""
    loop = asyncio.get_running_loop()

    async def captured() -> None:
        capture(watched)

    return lambda: asyncio.run_coroutine_threadsafe(captured(), loop).result()


@pytest.mark.parametrize("kind", THREADS)
def test_an_endpoint_in_a_thread_may_be_torn(kind: str) -> None:
    """An observation that begins meanwhile says so, and no other."""
    is_fastapi, add = THREADS[kind]
    watched = Watched(app=None if is_fastapi else Starlette())
    reasons = reasons_while(watched)

    async def run() -> None:
        add(watched.app, capturing_in_thread(watched))
        await call(watched, "/it")

    asyncio.run(run())
    capture(watched)
    assert reasons == [("/it runs in a thread, so the state may be torn",), ()]


@pytest.mark.parametrize("kind", THREADS)
def test_an_endpoint_in_a_thread_that_makes_steps_is_not_torn(kind: str) -> None:
    """Its request is accepted in its first step. Before that only an observation of its first call
    is partial: then it is not known yet that it makes steps. Starlette accepts earlier."""
    is_fastapi, add = THREADS[kind]
    watched = Watched(app=None if is_fastapi else Starlette())
    fragments: list[InstanceFragment] = []
    watched.agent.on_fragment = fragments.append

    async def run() -> None:
        captured = capturing_in_thread(watched)

        def action() -> None:
            captured()
            with watched.agent.step(EUR=2):
                pass
            captured()

        add(watched.app, action)
        for _ in range(2):
            await call(watched, "/it")

    asyncio.run(run())
    capture(watched)
    seen = [
        (one.partial, sum(not served.number for served in one.served), one.state.held)
        for one in fragments
    ]
    torn, between = ("/it runs in a thread, so the state may be torn",), ((), 1, {"EUR": 2})
    second: tuple[tuple[str, ...], int, dict[str, int]] = (
        ((), 0, {}) if is_fastapi else (torn, 1, {})
    )
    assert seen == [(torn, 1, {}), between, second, between, ((), 0, {})]


def test_a_request_that_a_thread_sends_is_a_step_of_it() -> None:
    """So the request that its endpoint serves is accepted first: the thread passes it on."""
    watched, inner = Watched(), Watched()
    in_router(inner)
    fragments: list[InstanceFragment] = []
    watched.agent.on_fragment = fragments.append
    watched.agent.targets = frozenset(["inner:80"])
    request = watched.agent.rules.request

    def requested(*arguments: Any, **settings: Any) -> Any:
        capture(watched)
        return request(*arguments, **settings)

    watched.agent.rules.request = requested  # type: ignore[method-assign]

    async def run() -> None:
        transport = ObservedTransport(watched.agent, httpx.ASGITransport(inner.app))
        async with httpx.AsyncClient(transport=transport, base_url="http://inner") as client:

            @watched.app.post("/it")
            def it(passes_on: bool = True) -> None:
                if not passes_on:
                    with watched.agent.step():
                        return
                anyio.from_thread.run(client.post, "/it")

            await call(watched, "/it?passes_on=false")
            await call(watched, "/it")

    asyncio.run(run())
    assert [(one.partial, len(one.served)) for one in fragments] == [((), 2)]


def test_an_endpoint_in_a_thread_is_torn_once_a_call_has_made_no_step() -> None:
    """Until then the request is in transit before its first step. So an observation that met the
    first such call had its effect too early, and the next one says so."""
    watched = Watched()
    seen: list[tuple[tuple[str, ...], int]] = []
    watched.agent.on_fragment = lambda fragment: seen.append(
        (fragment.partial, sum(not served.number for served in fragment.served))
    )

    async def run() -> None:
        captured = capturing_in_thread(watched)

        @watched.app.post("/it")
        def it(makes_step: bool) -> None:
            if makes_step:
                with watched.agent.step():
                    return
            captured()

        for makes_step in (1, 0, 1, 0):
            await call(watched, f"/it?makes_step={makes_step}")
            if not makes_step:
                capture(watched)

    asyncio.run(run())
    torn = "/it runs in a thread, so the state may be torn"
    name = f"{run.__qualname__}.<locals>.it"
    early = f"{name} made no step, so an earlier observation may have its effect too early"
    assert seen == [((), 0), ((early,), 0), ((torn,), 1), ((), 0)]


def test_an_endpoint_may_have_no_hash() -> None:
    """Then it is never known that it makes steps."""

    @dataclasses.dataclass
    class It:
        step: Callable[[], contextlib.AbstractContextManager[None]]

        def __call__(self) -> None:
            with self.step():
                pass

    watched = Watched()
    watched.app.post("/it")(It(watched.agent.step))
    assert asyncio.run(call(watched, "/it")).status_code == 200


def test_a_step_inside_of_a_step_adds_to_what_is_held() -> None:
    """Since both are one step."""
    watched = Watched()

    @watched.app.post("/it")
    def it() -> None:
        with watched.agent.step(EUR=2), watched.agent.step(EUR=3, USD=1):
            pass
        seen.append(watched.agent.rules.meet(1))

    seen: list[InstanceFragment | None] = []
    asyncio.run(call(watched, "/it"))
    assert seen[0] is not None
    assert seen[0].state.held == {"EUR": 5, "USD": 1}


def test_a_step_of_the_event_loop_must_not_wait() -> None:
    """A capture can be inside of it then, and says so."""
    watched = Watched()
    reasons = reasons_while(watched)

    async def run() -> None:
        with watched.agent.step():
            capture(watched)

    asyncio.run(run())
    capture(watched)
    assert reasons == [("a step of the event loop waits for something: use held there",), ()]


def test_a_step_that_raises_holds_nothing_of_its_own() -> None:
    """The thread holds what it held before."""
    watched = Watched()
    fragments: list[InstanceFragment] = []
    watched.agent.on_fragment = fragments.append

    async def run() -> None:
        captured = capturing_in_thread(watched)

        @watched.app.post("/it")
        def it() -> None:
            step, caught = watched.agent.step, contextlib.suppress(LookupError)
            with step(EUR=2), caught, step(EUR=3):
                raise LookupError
            captured()
            with caught, step(USD=1):
                raise LookupError
            captured()

        await call(watched, "/it")

    asyncio.run(run())
    assert [one.state.held for one in fragments] == [{"EUR": 2}] * 2


def test_what_a_step_holds_needs_an_endpoint_in_a_thread() -> None:
    """Otherwise it is not known when it is held no more. The request may have no header."""
    watched = Watched()

    @watched.app.post("/it")
    def it() -> None:
        with watched.agent.step(EUR=2):
            pass

    asyncio.run(call_from_outside(watched))
    with watched.agent.step():
        pass
    reasons = reasons_while(watched)
    for _ in range(2):
        capture(watched)
        with watched.agent.step(EUR=2):
            pass
    assert reasons == [(), ("step was given amounts where no endpoint runs in a thread: use held",)]


def test_what_a_step_holds_for_a_request_without_a_header_is_held_until_its_answer() -> None:
    """With which it leaves the system."""
    watched = Watched()
    fragments: list[InstanceFragment] = []
    watched.agent.on_fragment = fragments.append

    async def capture_later() -> None:
        capture(watched)

    async def run() -> None:
        captured = capturing_in_thread(watched)

        @watched.app.post("/it")
        def it(tasks: fastapi.BackgroundTasks) -> None:
            tasks.add_task(capture_later)
            with watched.agent.step(EUR=2):
                pass
            captured()

        await call_from_outside(watched)

    asyncio.run(run())
    assert [one.state.held for one in fragments] == [{"EUR": 2}, {}]


@pytest.mark.parametrize("has_header", [True, False])
def test_what_a_step_holds_after_the_answer_is_lost(has_header: bool) -> None:
    """Since nothing tells when it is held no more."""
    watched = Watched()
    reasons = reasons_while(watched)

    def later() -> None:
        with watched.agent.step(EUR=2):
            pass

    @watched.app.post("/it")
    def it(tasks: fastapi.BackgroundTasks) -> None:
        tasks.add_task(later)

    asyncio.run(call(watched, "/it") if has_header else call_from_outside(watched))
    capture(watched)
    assert reasons == [("step was given amounts where no endpoint runs in a thread: use held",)]


def test_an_error_that_middleware_outside_has_not_answered_is_noted() -> None:
    """What its answer gives back is in no state then."""

    class Waiting(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: RequestResponseEndpoint) -> Any:
            try:
                return await call_next(request)
            except ValueError:
                capture(watched)
                raise

    watched = Watched(Waiting, carries=lambda _: {})
    reasons = reasons_while(watched)

    @watched.app.post("/it")
    async def it() -> None:
        raise ValueError("a bug")

    async def run() -> None:
        async with client_of(watched, Agent("C", dict, secret=SECRET)) as client:
            assert (await client.post("/it")).status_code == 500

    asyncio.run(run())
    capture(watched)
    assert reasons == [("an error of /it is not answered yet",), ()]


def leaving_a_dependency(watched: Watched, _: Callable[[], None]) -> None:
    """Add an endpoint with a dependency that ends before the answer."""

    async def ends() -> AsyncIterator[int]:
        yield 1
        capture(watched)

    @watched.app.post("/it")
    async def it(given: Annotated[int, fastapi.Depends(ends, scope="function")]) -> int:
        return given


def ending_with(captured: Callable[[], None]) -> Callable[[], Iterator[int]]:
    """Return a dependency whose end is `captured`."""

    def ends() -> Iterator[int]:
        try:
            yield 1
        finally:
            captured()

    return ends


def refusing(watched: Watched, captured: Callable[[], None]) -> None:
    """Add one whose refusal passes a dependency."""

    @watched.app.post("/it")
    async def it(given: Annotated[int, fastapi.Depends(ending_with(captured))]) -> int:
        raise fastapi.HTTPException(409, str(given))


def refusing_in_step(watched: Watched, captured: Callable[[], None]) -> None:
    """Add one that refuses in a step of a thread."""

    @watched.app.post("/it")
    def it(given: Annotated[int, fastapi.Depends(ending_with(captured))]) -> int:
        with watched.agent.step():
            raise fastapi.HTTPException(409, str(given))


def handling_in_thread(watched: Watched, captured: Callable[[], None]) -> None:
    """Add one whose error becomes an answer in a thread."""

    @watched.app.post("/it")
    async def it() -> None:
        raise LookupError

    @watched.app.exception_handler(LookupError)
    def answer(_: fastapi.Request, __: Exception) -> Response:
        captured()
        return Response(status_code=404)


def passing_a_route(watched: Watched, _: Callable[[], None]) -> None:
    """Add one whose route does something with the answer."""

    class Timed(APIRoute):
        def get_route_handler(self) -> Callable[[fastapi.Request], Any]:
            handler = super().get_route_handler()

            async def handled(request: fastapi.Request) -> Any:
                response = await handler(request)
                capture(watched)
                return response

            return handled

    router = fastapi.APIRouter(route_class=Timed)
    router.post("/it")(Marking(watched).it)
    watched.app.include_router(router)


def sending_late(watched: Watched, _: Callable[[], None]) -> None:
    """Add one whose answer does something before it is sent."""

    class Late(Response):
        async def __call__(self, *arguments: Any) -> None:
            capture(watched)
            await super().__call__(*arguments)

    @watched.app.post("/it")
    async def it() -> Response:
        return Late()


ANSWERED_LATER = [
    leaving_a_dependency,
    refusing,
    refusing_in_step,
    handling_in_thread,
    passing_a_route,
    sending_late,
]


@pytest.mark.parametrize("add", ANSWERED_LATER)
def test_what_runs_between_an_endpoint_and_its_answer_may_suspend(
    add: Callable[[Watched, Callable[[], None]], None],
) -> None:
    """What the answer gives back is in no state then, and in no message."""
    assert _reasons_before_answer(add, lambda _: {}) == [
        ("the answer of /it is not made yet",),
        (),
    ]


def test_an_answer_that_carries_nothing_may_be_made_late() -> None:
    """Since it gives nothing back."""
    assert _reasons_before_answer(sending_late, None) == [(), ()]


def _reasons_before_answer(
    add: Callable[[Watched, Callable[[], None]], None], carries: Any
) -> list[tuple[str, ...]]:
    watched = Watched(carries=carries)
    reasons = reasons_while(watched)

    async def run() -> None:
        add(watched, capturing_in_thread(watched))
        await call(watched, "/it")

    asyncio.run(run())
    capture(watched)
    return reasons


def test_an_application_has_one_agent() -> None:
    """It would accept each request twice."""
    watched = Watched()
    with pytest.raises(UsageError, match="attach once"):
        observe_application(watched.app, Agent("other", dict, secret=SECRET))


def test_a_call_that_was_never_sent_carries_nothing() -> None:
    """The application may give back what it would have carried."""
    agent = Agent("C", dict, secret=SECRET, carries=lambda _: {"EUR": 1})
    listener = listening()
    agent.targets = frozenset([address(listener)])
    listener.close()

    async def run() -> None:
        transport = ObservedTransport(agent)
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError):
                await client.post(f"http://{address_of_closed}/it")

    address_of_closed = next(iter(agent.targets))
    asyncio.run(run())
    fragment = agent.rules.meet(1)
    assert fragment is not None
    assert fragment.calls == ()


def test_the_rest_of_a_body_may_wait_for_an_answer() -> None:
    """A body without a length is passed on part by part. Until its end no task waits for an
    answer."""
    watched = Watched()
    begun = asyncio.Event()
    agent = Agent("C", dict, secret=SECRET)
    activities: list[str] = []

    @watched.app.post("/it")
    async def it(request: fastapi.Request) -> int:
        length = 0
        async for part in request.stream():
            length += len(part)
            begun.set()
        return length

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        await begun.wait()
        fragment = agent.rules.meet(agent.rules.colour + 1)
        assert fragment is not None
        activities.extend(call.details.activity for call in fragment.calls)
        yield b"two"

    async def run() -> None:
        async with client_of(watched, agent) as client:
            assert (await client.post("/it", content=parts())).json() == 6

    asyncio.run(run())
    assert activities == [""]


def test_a_request_of_a_mounted_application_is_accepted_once() -> None:
    """By the outer application. Each agent has a state, and the states are not captured in one
    step, so observations are partial."""
    outer, inner = Watched(), Watched()
    in_router(inner)
    outer.app.mount("/inner", inner.app)
    fragments: list[InstanceFragment] = []
    outer.agent.on_fragment = inner.agent.on_fragment = fragments.append

    async def run() -> None:
        for path in ("/inner/it", "/inner/it"):
            await call(outer, path)
        capture(outer)
        capture(inner)

    asyncio.run(run())
    partial = "an application and one that is mounted in it have an agent each: attach once"
    assert [(one.partial, len(one.served)) for one in fragments] == [
        ((partial,), 2),
        ((partial,), 0),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"secret": "a secret of a test"},
        {"targets": "bank:80"},
        {"shared": "the database"},
        {"stored_fields": [1]},
        {"carries": {"EUR": 1}},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_an_argument_of_another_type_is_refused(arguments: dict[str, Any]) -> None:
    """With its name, before anything is served."""
    name = next(iter(arguments))
    with pytest.raises(UsageError, match=rf"{name} is"):
        Agent("S", dict, **{"secret": SECRET, **arguments})


def test_a_client_of_threads_is_refused() -> None:
    """It has no steps of the event loop."""
    agent = Agent("C", dict, secret=SECRET)
    with pytest.raises(UsageError, match=r"give a transport of httpx\.AsyncClient"):
        ObservedTransport(agent, httpx.HTTPTransport())  # type: ignore[arg-type]
    client = httpx.Client(transport=ObservedTransport(agent))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not for httpx\.Client"):
        client.get("http://bank/it")


def test_a_client_of_another_library_is_refused() -> None:
    """Before anything of its request is sent; httpx2 has a way to be taken for httpx."""
    transport = ObservedTransport(Agent("C", dict, secret=SECRET))
    advice = {"httpx2": r"call httpx2\.alias_httpx\(\)", "other": "make the client with httpx"}
    for library, expected in advice.items():
        request: Any = type("Request", (), {"__module__": f"{library}._models"})()
        with pytest.raises(UsageError, match=f"not for a client of {library}: {expected}"):
            asyncio.run(transport.handle_async_request(request))


@pytest.mark.skipif(not HAS_GENERATORS, reason="needs a FastAPI whose endpoints can be generators")
def test_an_endpoint_that_is_a_generator_may_act_before_it_accepts() -> None:
    """FastAPI begins it with the answer; observations name it until it ends."""
    watched = Watched()
    reasons = reasons_while(watched)

    @watched.app.post("/it")
    async def it() -> AsyncIterator[dict[str, int]]:
        capture(watched)
        yield {}
        capture(watched)

    assert asyncio.run(call(watched, "/it")).text == "{}\n"
    capture(watched)
    early = "/it is not a function that FastAPI calls, so it may act before it accepts"
    assert reasons == [(early, "the answer of /it crosses the cut")] * 2 + [()]


def test_a_websocket_crosses_the_cut() -> None:
    """As long as it is open: its messages carry no colour."""
    watched = Watched()
    reasons = reasons_while(watched)

    @watched.app.websocket("/it")
    async def it(socket: fastapi.WebSocket) -> None:
        await socket.accept()
        capture(watched)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(_: Any) -> None:
        pass

    scope = {"type": "websocket", "path": "/it", "query_string": b"", "headers": []}
    asyncio.run(watched.app(scope, receive, send))
    capture(watched)
    assert reasons == [("a WebSocket on /it crosses the cut",), ()]


async def paid(client: httpx.AsyncClient) -> None:
    """Pay, and change the state in the step in which the answer is accepted."""
    await client.post("/it")


KEEPING: dict[str, tuple[bool, Callable[[httpx.AsyncClient], Awaitable[object]]]] = {
    "gather": (True, lambda client: asyncio.gather(client.post("/it"))),
    "create_task": (True, lambda client: asyncio.create_task(client.post("/it"))),
    "gather of wait_for": (
        True,
        lambda client: asyncio.gather(asyncio.wait_for(client.post("/it"), 60)),
    ),
    "gather of a function": (False, lambda client: asyncio.gather(paid(client))),
    "a call": (False, lambda client: client.post("/it")),
}
"""Whether a task of a client keeps the answer, and what makes the call."""


@pytest.mark.parametrize("form", KEEPING)
def test_an_answer_that_a_task_keeps_is_noted(form: str) -> None:
    """Until the task is deleted: the answer was accepted, and the application does not have it."""
    is_kept, pay = KEEPING[form]
    agent = Agent("C", dict, secret=SECRET, targets=["bank:80"], carries=lambda _: {})
    reasons: list[tuple[str, ...]] = []
    accept_answer = agent.rules.accept_answer

    def captured() -> None:
        fragment = agent.rules.meet(agent.rules.colour + 1)
        assert fragment is not None
        reasons.append(fragment.partial)

    def accepted(*arguments: Any) -> Any:
        # Before the task has ended another one that waits for it.
        asyncio.get_running_loop().call_soon(captured)
        return accept_answer(*arguments)

    agent.rules.accept_answer = accepted  # type: ignore[method-assign,assignment]

    async def run() -> None:
        transport = ObservedTransport(agent, httpx.ASGITransport(bank()))
        async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
            await pay(client)
            await asyncio.sleep(0)
            captured()

    asyncio.run(run())
    assert reasons == [("a task keeps the answer of /it",) if is_kept else (), ()]


def test_a_body_that_is_too_long_is_not_accepted_in_one_step() -> None:
    """It is passed on whole, and named."""
    watched = Watched()
    reasons = reasons_while(watched)
    lengths = []

    @watched.app.post("/it")
    async def it(request: fastapi.Request) -> dict[str, int]:
        lengths.append(len(await request.body()))
        capture(watched)
        return {}

    body = {"x" * BODY_BYTES_MAX: 1, "y" * BODY_BYTES_MAX: 2}
    asyncio.run(call(watched, "/it", body))
    assert lengths[0] > 2 * BODY_BYTES_MAX
    assert reasons == [
        ("the body of /it is too long, or has no length, to be accepted in one step",)
    ]


def test_middleware_inside_may_suspend() -> None:
    """Every observation names it."""
    watched = Watched()
    watched.app.user_middleware.append(Middleware(Outside))
    reasons = reasons_while(watched)

    @watched.app.post("/it")
    async def it() -> dict[str, int]:
        capture(watched)
        return {}

    asyncio.run(call(watched, "/it"))
    assert reasons == [("Outside is inside the middleware that takes part in observations",)]


def test_middleware_of_a_mounted_application_may_suspend() -> None:
    """While that serves a request."""
    watched = Watched()
    inner = fastapi.FastAPI(middleware=[Middleware(Outside)])
    watched.app.mount("/", inner)
    reasons = reasons_while(watched)

    @inner.post("/it")
    async def it() -> None:
        capture(watched)

    asyncio.run(call(watched, "/it"))
    capture(watched)
    assert reasons == [("Outside is inside the middleware that takes part in observations",), ()]


@pytest.mark.parametrize(
    ("path", "status"), [("/missing", 404), ("/refused", 409), ("/checked", 422)]
)
def test_a_request_that_no_endpoint_answers_is_answered(path: str, status: int) -> None:
    """With a header, so that its caller knows its fate."""
    watched = Watched()

    @watched.app.post("/refused")
    async def refused() -> None:
        raise fastapi.HTTPException(409)

    @watched.app.post("/checked")
    async def checked(number: int) -> None:
        raise AssertionError(number)

    assert asyncio.run(call(watched, path)).status_code == status


def without_body(watched: Watched) -> None:
    """Add an endpoint that does not read a body."""
    watched.app.post("/it")(_marking(watched))


BODY = [(b"content-length", b"1")]
EMPTY = [(b"content-length", b"0")]
DISCONNECTED: dict[str, tuple[Any, Callable[[Watched], None], Any, bool, bool | None]] = {
    "nothing to read": (None, without_body, [], True, False),
    "nothing to read over HTTP/2": (None, without_body, EMPTY, True, False),
    "unknown length over HTTP/2": (None, without_body, [], True, True),
    "does not read": (None, without_body, BODY, True, True),
    "reads": (None, with_body, BODY, False, None),
    "missing": (None, lambda _: None, [], False, None),
    "route in FastAPI": (None, plain_route, [], True, False),
    "Starlette": (Starlette, plain_route, [], True, False),
    "Starlette, with a body": (Starlette, plain_route, BODY, True, True),
}
"""An application, what adds the endpoint, headers of the request, whether the endpoint acts, and
whether the amounts of the call are unknown, if it is accepted."""


async def call_and_disconnect(
    watched: Watched, headers: Iterable[tuple[bytes, bytes]] = (), version: str = "1.1"
) -> None:
    """Call an endpoint as a server does whose client has disconnected."""
    header = HeaderCodec(SECRET).encode(RequestHeader(0, CallId("C-1", 1)))

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        pass

    scope = {
        "type": "http",
        "http_version": version,
        "method": "POST",
        "path": "/it",
        "root_path": "",
        "query_string": b"",
        "headers": [*headers, (NAME.encode(), header.encode())],
    }
    await watched.app(scope, receive, send)


def test_a_step_accepts_although_the_caller_has_disconnected() -> None:
    """Whether a thread had made it is known at the end."""
    watched = Watched()

    @watched.app.post("/it")
    def it() -> None:
        with watched.agent.step():
            pass

    async def run() -> None:
        await call(watched, "/it")
        await call_and_disconnect(watched)

    asyncio.run(run())
    fragment = watched.agent.rules.meet(watched.agent.rules.colour + 1)
    assert fragment is not None
    assert "C-1" in {served.call.caller for served in fragment.served}


@pytest.mark.parametrize("kind", DISCONNECTED)
def test_a_request_is_accepted_if_its_endpoint_runs_although_the_caller_has_disconnected(
    kind: str,
) -> None:
    """A server reports the disconnection in place of the body, and then frameworks may call the
    endpoint all the same."""
    make, add, headers, acts, is_unknown = DISCONNECTED[kind]
    watched = Watched(app=make and make(), carries=lambda _: {"EUR": 1})
    add(watched)
    fragments: list[InstanceFragment] = []
    watched.agent.on_fragment = fragments.append
    version = "2" if kind.endswith("HTTP/2") else "1.1"
    asyncio.run(call_and_disconnect(watched, headers, version))
    capture(watched)
    assert (watched.was_accepted_before is not None) == acts
    [fragment] = fragments
    assert [one.details.has_unknown_amounts for one in fragment.served] == [is_unknown] * acts


def test_the_answer_to_a_call_whose_endpoint_raises_is_accepted() -> None:
    """Though the outermost middleware makes it."""
    watched = Watched()

    @watched.app.post("/it")
    async def it() -> None:
        raise ValueError("a bug")

    agent = Agent("C", dict, secret=SECRET)

    async def run() -> None:
        async with (
            client_of(watched, agent) as client,
        ):
            response = await client.post("/it")
            assert response.status_code == 500

    asyncio.run(run())
    ours, theirs = agent.rules.meet(1), watched.agent.rules.meet(1)
    assert ours is not None
    assert theirs is not None
    assert ours.calls == ()
    assert [call.number for call in theirs.served] == [1]
    assert "S-" in next(iter(ours.received))


def test_an_answer_that_has_no_length_is_not_read() -> None:
    """A stream of events has no end. Observations are partial, and name it, until it is closed."""
    watched = Watched()
    may_end = asyncio.Event()

    @watched.app.get("/events")
    async def events() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            await may_end.wait()
            yield b"last"

        return StreamingResponse(parts())

    agent = Agent("C", dict, secret=SECRET)

    async def run() -> list[InstanceFragment | None]:
        async with (
            client_of(watched, agent) as client,
        ):
            async with client.stream("GET", "/events") as response:
                parts = response.aiter_bytes()
                assert await anext(parts) == b"first"
                found = [agent.rules.meet(1), watched.agent.rules.meet(1)]
                may_end.set()
                assert await anext(parts) == b"last"
            found.append(agent.rules.meet(2))
        return found

    ours, theirs, after = asyncio.run(run())
    assert ours is not None
    assert theirs is not None
    assert after is not None
    assert ours.partial == theirs.partial == ("the answer of /events crosses the cut",)
    assert ours.calls == ()
    assert after.partial == ()


def test_the_body_of_a_request_that_has_no_length_is_not_read() -> None:
    """It is sent as it comes, and observations are partial meanwhile."""
    seen: list[Any] = []
    agent = Agent("C", dict, secret=SECRET, targets=["orders:80"])

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(agent.rules.meet(1))
        seen.append(await request.aread())
        return httpx.Response(200)

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def run() -> None:
        transport = ObservedTransport(agent, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://orders/", content=parts())
        seen.append(agent.rules.meet(2))

    asyncio.run(run())
    during, body, after = seen
    assert body == b"onetwo"
    assert during.partial == ("the body of the request / crosses the cut",)
    assert after.partial == ()


@pytest.mark.parametrize(
    ("status", "recorded"), [(200, 200), (HTTPStatus.BAD_GATEWAY, 502), ("200", None), (-1, None)]
)
def test_the_status_of_an_answer_is_a_number_that_fits(status: Any, recorded: int | None) -> None:
    """An application can set it to anything."""
    agent = Agent("S", dict, secret=SECRET)
    message = Message(method="POST", path="/it", body=b"", is_answer=True, status=status)

    async def run() -> InstanceFragment | None:
        call = agent.accept(RequestHeader(0, CallId("C-1", 1)), message)
        call.answer(message)
        return agent.rules.meet(1)

    fragment = asyncio.run(run())
    assert fragment is not None
    assert [one.details.status for one in fragment.served] == [recorded]


def test_no_header_is_sent_to_hosts_that_are_not_listed() -> None:
    """Nor to one that a listed host redirects to."""
    seen = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(NAME in request.headers)
        if request.url.path == "/moved":
            return httpx.Response(307, headers={"location": "http://elsewhere/"})
        return httpx.Response(200)

    agent = Agent("C", dict, secret=SECRET, targets=["orders:80"])

    async def run() -> None:
        transport = ObservedTransport(agent, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            await client.get("http://orders/moved")

    asyncio.run(run())
    assert seen == [True, False]
    fragment = agent.rules.meet(1)
    assert fragment is not None
    assert fragment.targets == {"orders:80": False, "elsewhere:80": False}
    assert [(one.target, one.details.status) for one in fragment.calls] == [("orders:80", 307)]


@pytest.mark.parametrize("header", ["1;5;A-1;1;forged", "x" * 10_000], ids=["forged", "long"])
def test_an_unsigned_header_has_no_effect(header: str) -> None:
    """It is counted; the request is served."""
    watched = Watched()
    watched.app.post("/it")(_marking(watched))
    listener = listening()
    url = f"http://{address(listener)}/it"

    async def run() -> httpx.Response:
        async with served(watched.app, listener), httpx.AsyncClient() as client:
            return await client.post(url, headers={NAME: header}, json={})

    assert asyncio.run(run()).status_code == 200
    assert watched.agent.rules.colour == 0
    fragment = watched.agent.rules.meet(1)
    assert fragment is not None
    assert fragment.state.ignored_count == 1


class NoText(BaseException):
    """Like an exception of an application that formats what was never set."""

    def __str__(self) -> str:
        raise AttributeError("code")


def conserving(make: Callable[[], Any]) -> object:
    """Return a state whose conserved amounts are what a function returns, or raises."""

    class Till:
        def conserved(self) -> Any:
            return make()

    return Till()


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def make(*_: object) -> NoReturn:
        raise error

    return make


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (raising(ValueError("no state")), "ValueError: no state"),
        (raising(ValueError("c\udce9")), "ValueError: c\\udce9"),
        (raising(NoText()), "NoText (its str() raised AttributeError)"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (lambda *_: {"c\udce9": 1}, "U"),
        (lambda *_: {"a": "c\udce9"}, "U"),
    ],
)
def test_what_fails_in_the_code_of_an_application_fails_no_request(
    make: Callable[..., Any], name: str
) -> None:
    """Its state, its conserved amounts, those of a message, and a name or path that is not UTF-8:
    the observation can be sent, and says by the class of the error why it lacks them."""
    message = Message(method="POST", path="/c\udce9", body=b"")
    for state in (make, conserving(make)):
        agent = Agent("S", state, secret=SECRET, carries=make, shared=["c\udce9"])
        assert agent.amounts(message) is None
        asyncio.run(requested(agent, message))
        with agent.partial_while(raising(KeyError("c\udce9"))):
            fragment = agent.rules.meet(1)
        assert fragment is not None
        assert encode_control(Captured(fragment))
        [failure] = [one for one in fragment.partial if "could not be captured" in one]
        assert failure.startswith(f"its state could not be captured: {name}")
        kind = name.partition(":")[0].partition(" ")[0]
        assert any(one.startswith(f"carries raised {kind}") for one in fragment.partial)


async def requested(agent: Agent, message: Message) -> None:
    """Make a call to a target that takes no part, and lock."""
    call, _ = agent.request("c\udce9:80", message)
    call.stop_waiting()
    await agent.lock("c\udce9").acquire()


def test_what_is_held_is_captured() -> None:
    """As long as it is held."""
    agent = Agent("S", lambda: {"balance": 1}, secret=SECRET)
    with agent.held(EUR=5), agent.held(EUR=2, USD=1):
        held = agent.rules.meet(1)
    later = agent.rules.meet(2)
    assert held is not None
    assert later is not None
    assert [held.state.held, later.state.held] == [{"EUR": 7, "USD": 1}, {}]


def test_a_shared_database_is_named() -> None:
    """In every observation: no middleware sees what passes through it."""
    agent = Agent("S", dict, secret=SECRET, shared=["the database of orders"])
    fragments = [agent.rules.meet(1), agent.rules.meet(2)]
    assert [one.partial for one in fragments if one is not None] == [
        ("the database of orders is shared outside of calls",)
    ] * 2


def test_the_amounts_of_a_message_that_carries_fails_for_are_unknown() -> None:
    """The error is named without its text, which may have a part of the body."""

    def carries(message: Message) -> dict[str, int]:
        raise ValueError(message.body.decode())

    agent = Agent("C", dict, secret=SECRET, targets=["bank:80"], carries=carries)

    async def run() -> InstanceFragment | None:
        call, _ = agent.request("bank:80", Message(method="POST", path="/it", body=b"Ada"))
        fragment = agent.rules.meet(1)
        call.stop_waiting()
        return fragment

    fragment = asyncio.run(run())
    assert fragment is not None
    assert fragment.partial == ("carries raised ValueError for POST",)
    assert [one.details.has_unknown_amounts for one in fragment.calls] == [True]


@pytest.mark.parametrize("amount", [None, 0.5, "5", NUMBER_MAX + 1])
def test_an_amount_is_a_whole_number_that_fits(amount: Any) -> None:
    """Others are unknown, or an error of the handler that holds them."""
    agent = Agent("C", dict, secret=SECRET, carries=lambda message: {"EUR": amount})
    assert agent.amounts(Message(method="POST", path="/it", body=b"")) is None
    with (
        pytest.raises(UsageError, match=r"amounts are whole numbers|use a larger unit"),
        agent.held(EUR=amount),
    ):
        pass


@pytest.mark.parametrize("state", [None, [1], {1: 2}, 5])
def test_a_state_without_names_of_fields_is_noted(state: Any) -> None:
    """It is stored as one without fields, so that the observation can be."""
    fragment = Agent("S", lambda: state, secret=SECRET).rules.meet(1)
    assert fragment is not None
    assert fragment.state.encoded == b"\x80"
    assert "its state could not be captured" in fragment.partial[0]


def test_a_request_is_met_before_its_dependencies_run() -> None:
    """What a dependency does, such as a call, comes after the capture."""
    watched = Watched()
    colours = []

    def look() -> int:
        colours.append(watched.agent.rules.colour)
        return 1

    @watched.app.post("/it")
    async def it(found: Annotated[int, fastapi.Depends(look)]) -> int:
        return found

    agent = Agent("C", dict, secret=SECRET)
    agent.rules.meet(7)

    async def run() -> None:
        async with (
            client_of(watched, agent) as client,
        ):
            await client.post("/it")

    asyncio.run(run())
    assert colours == [7]


def test_a_refusal_can_give_back_what_its_request_has_brought() -> None:
    """Also if the outermost middleware makes the answer."""
    answers: list[Message] = []

    def carries(message: Message) -> dict[str, int]:
        if message.is_answer:
            answers.append(message)
        return {}

    watched = Watched(carries=carries)

    @watched.app.post("/refused")
    async def refused() -> None:
        raise fastapi.HTTPException(409)

    @watched.app.post("/raised")
    async def raised() -> None:
        raise ValueError("a bug")

    for path in ("/refused", "/raised"):
        asyncio.run(call(watched, path, {"amount": 5}))
    assert [one.status for one in answers] == [409, 500]
    fragment = watched.agent.rules.meet(1)
    assert fragment is not None
    assert [one.details.status for one in fragment.served] == [409, 500]
    assert [one.request_body for one in answers] == [b'{"amount":5}'] * 2


def test_raw_bytes_of_an_answer_can_be_read() -> None:
    """As a reverse proxy does."""
    agent = Agent("C", dict, secret=SECRET, targets=["bank:80"])

    async def run() -> bytes:
        transport = ObservedTransport(agent, httpx.ASGITransport(bank()))
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://bank") as client,
            client.stream("POST", "/it") as response,
        ):
            return b"".join([part async for part in response.aiter_raw()])

    assert asyncio.run(run())


@pytest.mark.skipif(SERVER == "granian", reason="granian itself keeps the start of every answer")
def test_the_start_of_an_answer_without_a_length_is_not_kept_back() -> None:
    """Its first part may come much later."""
    watched = Watched()
    may_begin = asyncio.Event()

    @watched.app.get("/events")
    async def events() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            await may_begin.wait()
            yield b"first"

        return StreamingResponse(parts())

    agent = Agent("C", dict, secret=SECRET)

    async def run() -> bytes:
        async with (
            client_of(watched, agent) as client,
            client.stream("GET", "/events") as response,
        ):
            may_begin.set()
            return await response.aread()

    assert asyncio.run(run()) == b"first"


def test_a_header_is_not_passed_on() -> None:
    """Neither one of a request to a host that is not listed, nor one of another answer."""
    seen = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(NAME in request.headers)
        return httpx.Response(200)

    async def run() -> list[Any]:
        agent = Agent("C", dict, secret=SECRET)
        transport = ObservedTransport(agent, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://elsewhere/", headers={NAME: "copied"})
        watched = Watched()

        @watched.app.post("/it")
        async def it() -> Response:
            return Response("x", headers={NAME: "copied"})

        response = await call(watched, "/it")
        return [seen, response.headers.get_list(NAME)]

    (was_sent,), headers = asyncio.run(run())
    assert not was_sent
    assert len(headers) == 1
    assert "copied" not in headers


@pytest.mark.parametrize("ends", ["with its body", "by an error"])
def test_the_start_of_an_answer_with_a_length_is_not_kept_back(ends: str) -> None:
    """If the application waits for something before its body. Observations are partial until it
    ends."""
    agent = Agent("S", dict, secret=SECRET)
    sent: list[str] = []
    reasons: list[tuple[str, ...]] = []
    started = asyncio.Event()

    def captured() -> None:
        fragment = agent.rules.meet(agent.rules.colour + 1)
        assert fragment is not None
        reasons.append(fragment.partial)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        length = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await started.wait()
        captured()
        if ends == "by an error":
            raise ValueError("a bug")
        await send({"type": "http.response.body", "body": b"four"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(event: Any) -> None:
        sent.append(event["type"])
        started.set()

    async def run() -> None:
        header = HeaderCodec(SECRET).encode(RequestHeader(0, CallId("C-1", 1)))
        headers = [(NAME.encode(), header.encode())]
        scope = {"type": "http", "method": "GET", "path": "/it", "headers": headers}
        with contextlib.suppress(ValueError):
            await ObservedApplication(application, agent)(scope, receive, send)

    asyncio.run(run())
    captured()
    assert reasons == [("the answer of /it crosses the cut",), ()]
    assert sent[:1] == ["http.response.start"]
    assert sent[1:] == ([] if ends == "by an error" else ["http.response.body"])


def test_a_file_that_the_server_sends_has_its_start_first() -> None:
    """As ``http.response.pathsend`` asks for."""
    sent: list[str] = []
    agent = Agent("S", dict, secret=SECRET)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        length = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.pathsend", "path": "/file"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(event: Any) -> None:
        sent.append(event["type"])

    async def run() -> None:
        request = Message(method="GET", path="/file", body=b"")
        caller = Agent("C", dict, secret=SECRET, targets=["s:80"])
        header = caller.request("s:80", request)[1]
        assert header is not None
        headers = [(NAME.encode(), header.encode())]
        scope = {"type": "http", "method": "GET", "path": "/file", "headers": headers}
        await ObservedApplication(application, agent)(scope, receive, send)

    asyncio.run(run())
    assert sent == ["http.response.start", "http.response.pathsend"]
