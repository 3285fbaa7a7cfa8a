"""Where accepting and answering are one step with an endpoint of FastAPI, and where they are not.

Each kind of endpoint is served by a real server. The loop runs a callback as soon as something
suspends; so a callback that was run between two moments shows that they are not one step.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import fastapi
import httpx
import pytest
from fastapi.middleware import Middleware
from fastapi.responses import StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from stillframe.protocol.calls import InstanceFragment
from stillframe.services.agent import BODY_BYTES_MAX, Agent, Message
from stillframe.services.attach import observe_application
from stillframe.services.headers import NAME
from stillframe.services.http_client import ObservedTransport
from tests.services.deployment import SECRET, address, listening, served


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

    def __init__(self, middleware: Any = None) -> None:
        self.app = fastapi.FastAPI()
        self.agent = Agent("S", dict, secret=SECRET)
        observe_application(self.app, self.agent)
        if middleware is not None:
            self.app.add_middleware(middleware)
        self.accepting, self.answering = Step(), Step()
        self.was_accepted_before: bool | None = None
        self.was_answered_later: bool | None = None
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
        """Note that the endpoint runs: all of it is one step."""
        self.was_accepted_before = self.accepting.is_over
        self.answering.begin()


async def call(watched: Watched, path: str, body: dict[str, int] | None = None) -> httpx.Response:
    """Call an endpoint as another service does; return the answer, which was accepted in one step
    with the caller."""
    listener = listening()
    target = address(listener)
    agent = Agent("C", dict, secret=SECRET, targets=[target])
    accept_answer, returning = agent.rules.accept_answer, Step()

    def accepted(*arguments: Any) -> Any:
        returning.begin()
        return accept_answer(*arguments)

    agent.rules.accept_answer = accepted  # type: ignore[method-assign,assignment]
    async with (
        served(watched.app, listener),
        httpx.AsyncClient(transport=ObservedTransport(agent)) as client,
    ):
        response = await client.post(f"http://{target}{path}", json=body or {"x": 1})
        assert not returning.is_over
        assert NAME in response.headers
    return response


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


def notes_while(watched: Watched) -> list[tuple[str, ...]]:
    """Let each observation that begins while an endpoint runs be seen; return what they note."""
    notes: list[tuple[str, ...]] = []
    watched.agent.on_fragment = lambda fragment: notes.append(fragment.notes)
    return notes


def capture(watched: Watched) -> None:
    """Begin an observation at the agent."""
    rules = watched.agent.rules
    watched.agent.report(rules.meet(rules.colour + 1))


def test_an_endpoint_in_a_thread_may_be_torn() -> None:
    """An observation that begins meanwhile says so, and no other."""
    watched = Watched()
    notes = notes_while(watched)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        @watched.app.post("/it")
        def it() -> dict[str, int]:
            asyncio.run_coroutine_threadsafe(captured(), loop).result()
            return {}

        async def captured() -> None:
            capture(watched)

        await call(watched, "/it")

    asyncio.run(run())
    capture(watched)
    assert notes == [("/it runs in a thread, so the state may be torn",), ()]


def test_a_body_that_is_too_long_is_not_accepted_in_one_step() -> None:
    """It is passed on whole, and named."""
    watched = Watched()
    notes = notes_while(watched)
    lengths = []

    @watched.app.post("/it")
    async def it(request: fastapi.Request) -> dict[str, int]:
        lengths.append(len(await request.body()))
        capture(watched)
        return {}

    body = {"x" * BODY_BYTES_MAX: 1, "y" * BODY_BYTES_MAX: 2}
    asyncio.run(call(watched, "/it", body))
    assert lengths[0] > 2 * BODY_BYTES_MAX
    assert notes == [("the body of /it is too long to be accepted in one step",)]


def test_middleware_inside_may_suspend() -> None:
    """Every observation names it."""
    watched = Watched()
    watched.app.user_middleware.append(Middleware(Outside))
    notes = notes_while(watched)

    @watched.app.post("/it")
    async def it() -> dict[str, int]:
        capture(watched)
        return {}

    asyncio.run(call(watched, "/it"))
    assert notes == [("Outside is inside the middleware that takes part in observations",)]


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


def test_the_answer_to_a_call_whose_endpoint_raises_is_accepted() -> None:
    """Though the outermost middleware makes it."""
    watched = Watched()

    @watched.app.post("/it")
    async def it() -> None:
        raise ValueError("a bug")

    listener = listening()
    target = address(listener)
    agent = Agent("C", dict, secret=SECRET, targets=[target])

    async def run() -> None:
        async with (
            served(watched.app, listener),
            httpx.AsyncClient(transport=ObservedTransport(agent)) as client,
        ):
            response = await client.post(f"http://{target}/it")
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

    listener = listening()
    target = address(listener)
    agent = Agent("C", dict, secret=SECRET, targets=[target])

    async def run() -> list[InstanceFragment | None]:
        async with (
            served(watched.app, listener),
            httpx.AsyncClient(transport=ObservedTransport(agent)) as client,
        ):
            async with client.stream("GET", f"http://{target}/events") as response:
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
    assert ours.notes == theirs.notes == ("the answer of /events crosses the cut",)
    assert ours.calls == ()
    assert after.notes == ()


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
    assert during.notes == ("the body of the request / crosses the cut",)
    assert after.notes == ()


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
    assert [call.target for call in fragment.calls] == ["orders:80"]


@pytest.mark.parametrize("header", ["1;5;A-1;1;forged", "x" * 10_000], ids=["forged", "long"])
def test_an_unsigned_header_has_no_effect(header: str) -> None:
    """It is counted; the request is served."""
    watched = Watched()
    watched.app.post("/it")(_marking(watched))
    listener = listening()

    async def run() -> httpx.Response:
        async with served(watched.app, listener), httpx.AsyncClient() as client:
            return await client.post(
                f"http://{address(listener)}/it", headers={NAME: header}, json={}
            )

    assert asyncio.run(run()).status_code == 200
    assert watched.agent.rules.colour == 0
    fragment = watched.agent.rules.meet(1)
    assert fragment is not None
    assert fragment.state.ignored_count == 1


def test_a_state_that_cannot_be_captured_fails_no_request() -> None:
    """The observation says why it lacks it."""

    def broken() -> object:
        raise ValueError("no state")

    agent = Agent("S", broken, secret=SECRET, carries=lambda message: {"EUR": message.body[99]})
    assert agent.amounts(Message(method="POST", path="/it", body=b"")) == {}
    fragment = agent.rules.meet(1)
    assert fragment is not None
    assert fragment.notes == (
        "carries raised IndexError: index out of range for POST /it",
        "its state could not be captured: ValueError: no state",
    )


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
    assert [one.notes for one in fragments if one is not None] == [
        ("the database of orders is shared outside of calls",)
    ] * 2
