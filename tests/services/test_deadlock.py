"""Deadlocks of services: what an observation says of real tasks against what becomes of them."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

import fastapi
import httpx
import pytest

from stillframe.detect.call_waits import (
    CallDeadlock,
    call_deadlock,
    find_call_deadlock,
    waits_of,
)
from stillframe.errors import UsageError
from stillframe.protocol.activities import Lock
from stillframe.protocol.calls import (
    AnswerHeader,
    Collector,
    InstanceFragment,
    Observation,
    RequestHeader,
)
from stillframe.services.agent import SERVING, Agent, Message, ObservedLock
from stillframe.services.attachment import observe_application
from stillframe.services.http_client import ObservedTransport
from tests.nightly import Figure, by_night, seeds
from tests.services.deployment import SECRET, address, listening
from tests.services.servers import client_transport, served

NAMES = "ABC"
TARGETS = {name: f"{name.lower()}:1" for name in NAMES}
PROGRAM_COUNT = by_night(2_000, check=60)
TASK_COUNT_MAX = 5
STEP_COUNT_MAX = 4
IDLE_TURNS = 40
"""If no task progresses in this many turns of the event loop, none ever will: a wait between two
tasks takes a few turns."""

Program = tuple[tuple[str, "str | Program"], ...]
"""Steps: ``("lock", name)``; ``("call", program)``, or the name of an instance instead of "call";
``("aside", program)``, for a call by another task; ``("gather", program)``, or another of `JOINS`,
which waits for a new task for each step of the program; and ``("turn", "")``."""


async def in_group(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run in a group of tasks."""
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run)


async def in_turn(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await one task after the other."""
    for task in [asyncio.create_task(run) for run in runs]:
        await task


JOINS: dict[str, Callable[[Sequence[Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]] = {
    "gather": lambda runs: nothing(asyncio.gather(*runs)),
    "gather with limit": lambda runs: nothing(asyncio.wait_for(asyncio.gather(*runs), 3600)),
    "limits": lambda runs: nothing(asyncio.gather(*(asyncio.wait_for(one, 3600) for one in runs))),
    "group": in_group,
    "turn by turn": in_turn,
}
"""The ways in which a task waits for others."""


async def nothing(awaitable: Awaitable[object]) -> None:
    """Await something."""
    await awaitable


def some_program(chance: Random, depth: int = 0) -> Program:
    """Return a random program."""
    kinds = ["lock", "turn", "call", "call", "aside", *JOINS] if depth < 3 else ["lock", "turn"]
    steps: list[tuple[str, str | Program]] = []
    for _ in range(chance.randint(1, STEP_COUNT_MAX)):
        kind = chance.choice(kinds)
        if kind in ("call", "aside", *JOINS):
            steps.append((kind, some_program(chance, depth + 1)))
        else:
            steps.append((kind, chance.choice("xy") if kind == "lock" else ""))
    return tuple(steps)


class Services:
    """Instances in one event loop, whose tasks follow programs."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.collector = Collector()
        self.observations: list[Observation] = []
        self.unfinished: set[str] = set()
        self.activities: set[str] = set()
        self.turn_count = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.agents = {
            name: Agent(
                name,
                dict,
                secret=SECRET,
                targets=list(TARGETS.values()),
                on_fragment=self._take,
            )
            for name in NAMES
        }
        self.locks = {
            (name, lock): agent.lock(lock, count_max=count)
            for name, agent in self.agents.items()
            for lock, count in (("x", 1), ("y", 2), ("z", 1))
        }
        for agent in self.agents.values():
            self.collector.joined(agent.rules.name, 0)

    def _take(self, fragment: InstanceFragment) -> None:
        result = self.collector.add(fragment)
        if result is not None:
            self.observations.append(result[0])

    def begin(self, name: str, program: Program) -> None:
        """Begin a task of an instance that serves no call."""
        self.tasks.append(asyncio.create_task(self._run(self.agents[name], program)))

    async def _run(self, agent: Agent, program: Program) -> None:
        activity = agent.activity()
        self.unfinished.add(activity)
        self.activities.add(activity)
        held = []
        for kind, what in program:
            await asyncio.sleep(0)
            self.turn_count += 1
            if kind == "lock":
                lock = self.locks[agent.service, str(what)]
                await lock.acquire()
                held.append(lock)
            elif kind in JOINS:
                assert not isinstance(what, str)
                await JOINS[kind]([self._run(agent, (one,)) for one in what])
            elif kind == "aside":
                assert not isinstance(what, str)
                self.tasks.append(asyncio.create_task(self._run(agent, (("call", what),))))
            elif kind != "turn":
                assert not isinstance(what, str)
                name = kind if kind in NAMES else self.chance.choice(NAMES)
                await self._call(agent, name, what)
        for lock in held:
            lock.release()
        self.unfinished.discard(activity)
        self.turn_count += 1

    async def _call(self, agent: Agent, name: str, program: Program) -> None:
        message = Message(method="POST", path="/run", body=b"")
        call, text = agent.request(TARGETS[name], message)
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        assert text is not None
        serving = self._serve(self.agents[name], text, program, answered)
        self.tasks.append(asyncio.create_task(serving))
        header = agent.headers.decode(AnswerHeader, await answered)
        assert header is not None
        call.accept_answer(header)

    async def _serve(
        self, agent: Agent, text: str, program: Program, answered: asyncio.Future[str]
    ) -> None:
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        header = agent.headers.decode(RequestHeader, text)
        assert header is not None
        message = Message(method="POST", path="/run", body=b"")
        SERVING.set(header.call)
        incoming = agent.accept(header, message)
        await self._run(agent, program)
        answer = incoming.answer(message)
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        answered.set_result(answer)

    async def observe(self) -> Observation:
        """Take an observation while the tasks go on."""
        known = len(self.observations)
        start = self.collector.begin()
        agents = list(self.agents.values())
        self.chance.shuffle(agents)
        for agent in agents:
            for _ in range(self.chance.randint(0, 5)):
                await asyncio.sleep(0)
            agent.report(agent.rules.start(start))
        assert len(self.observations) > known
        return self.observations[-1]

    async def settle(self) -> None:
        """Wait until no task progresses."""
        idle, seen = 0, self.turn_count
        while idle < IDLE_TURNS:
            await asyncio.sleep(0)
            idle, seen = (idle + 1, seen) if seen == self.turn_count else (0, self.turn_count)

    async def close(self) -> None:
        """End all tasks. Those that wait for others are cancelled with them."""
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def members(found: CallDeadlock | None) -> set[str]:
    """Return all activities of a deadlock."""
    return set(found.waits) if found else set()


@pytest.mark.nightly(part="generated")
@pytest.mark.parametrize("seed", seeds("deadlocks of services", 1, night=2))
def test_alarms_are_right_and_none_is_missing(seed: int, figure: Figure) -> None:
    """An alarm while tasks go on names tasks that never end; at the end each task that did not end
    is named."""
    chance = Random(seed)
    alarms = deadlocks = 0

    async def run() -> None:
        nonlocal alarms, deadlocks
        services = Services(chance)
        early: set[str] = set()
        for _ in range(chance.randint(1, TASK_COUNT_MAX)):
            services.begin(chance.choice(NAMES), some_program(chance))
        for _ in range(3):
            found = members(find_call_deadlock(await services.observe()))
            early |= found & services.activities
            alarms += bool(found)
        await services.settle()
        # Tasks that only wait for others are not among its activities.
        final = members(find_call_deadlock(await services.observe())) & services.activities
        assert early <= services.unfinished
        assert final == services.unfinished
        deadlocks += bool(final)
        await services.close()

    for _ in range(PROGRAM_COUNT):
        asyncio.run(run())
    figure("deadlocks", deadlocks)
    figure("early alarms", alarms)
    assert deadlocks > 0
    assert alarms > 0


def test_a_ring_of_services_is_named() -> None:
    """The sentence says which instance waits for which, and for which lock."""

    async def run() -> Observation:
        services = Services(Random(1))
        for name, other in zip(NAMES, "BCA", strict=True):
            services.begin(name, (("lock", "x"), (other, (("lock", "x"),))))
        await services.settle()
        observation = await services.observe()
        await services.close()
        return observation

    verdict = call_deadlock(asyncio.run(run()))
    assert verdict.holds
    ring, _, waits = verdict.sentence.partition(": ")
    assert re.sub(r"-[0-9a-f]{8}", "", ring) == "A waits for B waits for C waits for A"
    assert waits.count("the lock 'x', which") == 3
    assert waits.count("POST /run") == 6


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ([(("lock", "x"), ("lock", "x"))], "a task of A waits for itself"),
        (
            [(("lock", "x"), ("turn", ""), ("lock", "z")), (("lock", "z"), ("lock", "x"))],
            "tasks of A wait for each other",
        ),
        (
            [(("lock", "y"), ("turn", ""), ("turn", ""), ("lock", "y"))] * 2,
            "tasks of A wait for each other",
        ),
    ],
    ids=["one task", "two locks", "a lock that two can hold"],
)
def test_a_ring_inside_an_instance_is_named(programs: list[Program], sentence: str) -> None:
    """The name of the instance is not repeated."""

    async def run() -> Observation:
        services = Services(Random(1))
        for program in programs:
            services.begin("A", program)
        await services.settle()
        observation = await services.observe()
        await services.close()
        return observation

    verdict = call_deadlock(asyncio.run(run()))
    ring, _, _ = verdict.sentence.partition(": ")
    assert re.sub(r"-[0-9a-f]{8}", "", ring) == sentence


def test_one_free_holder_is_enough() -> None:
    """A task is blocked only while both holders of the lock are blocked."""

    async def run() -> tuple[Observation, Observation]:
        services = Services(Random(1))
        progressing = (("lock", "y"), *(("turn", ""),) * IDLE_TURNS)
        stuck = (("lock", "y"), ("lock", "x"), ("lock", "x"))
        services.begin("A", stuck)
        services.begin("A", progressing)
        services.begin("A", (("turn", ""), *stuck))
        services.begin("A", (("turn", ""), ("turn", ""), ("lock", "y")))
        for _ in range(IDLE_TURNS // 2):
            await asyncio.sleep(0)
        early = await services.observe()
        await services.settle()
        late = await services.observe()
        await services.close()
        return early, late

    early, late = asyncio.run(run())
    [fragment] = [one for name, one in early.fragments.items() if name.startswith("A-")]
    [lock] = [lock for lock in fragment.state.locks if lock.name == "y"]
    assert [len(lock.holders), len(lock.waiting)] == [2, 2]
    assert len(members(find_call_deadlock(early))) == 1
    assert len(members(find_call_deadlock(late))) == 3


def test_a_lock_that_was_released_is_waited_for_by_nobody() -> None:
    """The waiting task can continue, although it has not run yet."""

    async def run() -> tuple[Lock, Lock]:
        agent = Agent("A", dict, secret=SECRET)
        lock = agent.lock("y", count_max=2)
        entered = asyncio.Event()

        async def hold() -> None:
            async with lock:
                entered.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        before = lock.record()
        lock.release()
        after = lock.record()
        holding.cancel()
        await asyncio.gather(holding, waiting, return_exceptions=True)
        return before, after

    before, after = asyncio.run(run())
    assert [len(before.holders), len(before.waiting)] == [2, 1]
    assert [len(after.holders), len(after.waiting)] == [1, 0]


def test_a_lock_is_released_by_a_task_that_has_accepted_a_request_since() -> None:
    """Its activity has the same name then, as in a dependency of FastAPI."""

    async def run() -> None:
        caller, agent = (Agent(name, dict, secret=SECRET, targets=["b:1"]) for name in "AB")
        message = Message(method="POST", path="/run", body=b"")
        text = caller.request("b:1", message)[1]
        header = agent.headers.decode(RequestHeader, text or "")
        assert header is not None
        lock = agent.lock("x")
        async with lock:
            before = agent.activity()
            agent.accept(header, message)
            assert lock.record().holders == (agent.activity(),) == (before,)
        assert not lock.is_held

    asyncio.run(run())


def test_two_copies_of_a_request_are_two_activities() -> None:
    """One of them holds a lock, and the other one waits for it, and not for itself."""

    async def run() -> Observation:
        services = Services(Random(1))
        agent, caller = services.agents["A"], services.agents["B"]
        message = Message(method="POST", path="/run", body=b"")
        _, text = caller.request(TARGETS["A"], message)
        header = agent.headers.decode(RequestHeader, text or "")
        assert header is not None
        lock = services.locks["A", "z"]

        async def serve() -> None:
            agent.accept(header, message)
            async with lock:
                await asyncio.Event().wait()

        services.tasks += [asyncio.create_task(serve()) for _ in range(2)]
        await asyncio.sleep(0)
        observation = await services.observe()
        await services.close()
        return observation

    observation = asyncio.run(run())
    [lock] = [one for part in observation.fragments.values() for one in part.state.locks]
    assert (len(lock.holders), len(lock.waiting)) == (1, 1)
    assert find_call_deadlock(observation) is None


def test_a_wait_for_a_lock_that_was_cancelled_is_over() -> None:
    """Although the task has not run yet."""

    async def run() -> Lock:
        agent = Agent("A", dict, secret=SECRET)
        lock = agent.lock("x")
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        assert len(lock.record().waiting) == 1
        waiting.cancel()
        found = lock.record()
        await asyncio.gather(waiting, return_exceptions=True)
        return found

    assert asyncio.run(run()).waiting == ()


def test_a_lock_that_no_task_can_have_is_refused() -> None:
    """When it is made."""
    with pytest.raises(UsageError, match="count_max above 0"):
        Agent("A", dict, secret=SECRET).lock("x", count_max=0)


def test_a_second_lock_with_one_name_is_refused() -> None:
    """Observations could not tell two of them apart, such as one for each request."""
    agent = Agent("A", dict, secret=SECRET)
    agent.lock("x")
    with pytest.raises(UsageError, match="lock 'x' already: make each lock once"):
        agent.lock("x")


async def used(lock: ObservedLock | asyncio.Lock | asyncio.Semaphore, count: int) -> list[object]:
    """Use a lock that `count` tasks can have at a time; return what its methods return."""
    found: list[object] = [lock.locked()]
    found += [await asyncio.wait_for(lock.acquire(), 60) for _ in range(count)]
    found.append(lock.locked())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lock.acquire(), 0)
    waiting = asyncio.create_task(lock.acquire())
    await asyncio.sleep(0)
    lock.release()
    found += [lock.locked(), await waiting, lock.locked()]
    asyncio.get_running_loop().call_soon(lock.release)
    async with lock:
        found.append(lock.locked())
    for _ in range(count - 1):
        lock.release()
    return [*found, lock.locked()]


@pytest.mark.parametrize(
    ("count", "kind"), [(1, asyncio.Lock), (2, lambda: asyncio.Semaphore(2))], ids=["lock", "many"]
)
def test_a_lock_is_used_as_those_of_asyncio(
    count: int, kind: Callable[[], asyncio.Lock | asyncio.Semaphore]
) -> None:
    """Another task may acquire it, as in ``wait_for`` before Python 3.12, and any may release
    it."""

    async def run() -> None:
        lock = Agent("A", dict, secret=SECRET).lock("x", count_max=count)
        assert await used(lock, count) == await used(kind(), count)
        assert not lock.is_held
        with pytest.raises(RuntimeError, match="the lock 'x' is not acquired"):
            lock.release()

    asyncio.run(run())


def test_a_holder_that_has_ended_is_not_known() -> None:
    """Another task releases the lock, so who waits for it may be blocked by none."""

    async def run() -> Observation:
        services = Services(Random(1))
        lock = services.locks["A", "x"]
        await asyncio.create_task(lock.acquire())
        services.begin("A", (("lock", "x"),))
        await services.settle()
        observation = await services.observe()
        lock.release()
        await asyncio.gather(*services.tasks)
        assert not lock.is_held
        return observation

    observation = asyncio.run(run())
    [lock] = [one for part in observation.fragments.values() for one in part.state.locks]
    assert (lock.holders, len(lock.waiting)) == (("",), 1)
    assert waits_of(observation) == {}


def test_holders_are_not_known_after_another_task_has_released_a_lock() -> None:
    """It may have released the one of either, who would be waited for wrongly."""

    async def run() -> list[tuple[str, ...]]:
        agent = Agent("A", dict, secret=SECRET)
        lock, done = agent.lock("y", count_max=2), asyncio.Event()

        async def hold() -> None:
            async with lock:
                await done.wait()

        holding = [asyncio.create_task(hold()) for _ in range(2)]
        await asyncio.sleep(0)
        found = [lock.record().holders]
        lock.release()
        found.append(lock.record().holders)
        await lock.acquire()
        found.append(lock.record().holders)
        lock.release()
        await lock.acquire()
        done.set()
        await asyncio.gather(*holding)
        return found

    both, other, mine = asyncio.run(run())
    assert len({*both}) == 2
    assert other == ("",)
    assert mine[0] == "" != mine[1]


def test_a_request_that_waits_for_a_connection_is_part_of_a_deadlock() -> None:
    """The task that has the only one waits for an endpoint, and that for a lock of the other
    task."""

    async def run() -> tuple[Observation, InstanceFragment | None]:
        listener, app = listening(), fastapi.FastAPI()
        agent = Agent("S", dict, secret=SECRET, targets=[target := address(listener)])
        lock = agent.lock("x")
        observe_application(app, agent)
        in_dependency(app, lock)
        collector = Collector()
        collector.joined(agent.rules.name, 0)
        limits = httpx.Limits(max_connections=1)
        transport = ObservedTransport(agent, httpx.AsyncHTTPTransport(limits=limits))
        held, go = asyncio.Event(), asyncio.Event()
        async with served(app, listener), httpx.AsyncClient(transport=transport) as client:

            async def order() -> None:
                await client.post(f"http://{target}/pay")

            async def hold() -> None:
                async with lock:
                    held.set()
                    await go.wait()
                    await order()

            holding = asyncio.create_task(hold())
            await held.wait()
            ordering = asyncio.create_task(order())
            while not lock.record().waiting:  # noqa: ASYNC110 - a lock has no event for it
                await asyncio.sleep(0)
            go.set()
            while transport.connections() is None:  # noqa: ASYNC110 - nor has httpx
                await asyncio.sleep(0)
            collector.begin()
            fragment = agent.rules.meet(1)
            assert fragment is not None
            result = collector.add(fragment)
            holding.cancel()
            await asyncio.gather(holding, ordering, return_exceptions=True)
        assert result is not None
        return result[0], agent.rules.meet(2)

    observation, after = asyncio.run(run())
    found = find_call_deadlock(observation)
    assert found is not None
    assert len(found.rings[0]) == 3
    assert "waits for the lock 'connections of httpx', which S-" in " ".join(
        map(str, found.waits.values())
    )
    assert after is not None
    assert after.state.locks == ()


async def pay() -> str:
    """Serve a request."""
    return "paid"


def in_dependency(app: fastapi.FastAPI, lock: ObservedLock) -> None:
    """Acquire a lock before the endpoint begins."""

    async def locked() -> AsyncIterator[None]:
        async with lock:
            yield

    app.post("/pay", dependencies=[fastapi.Depends(locked)])(pay)


def in_middleware(app: fastapi.FastAPI, lock: ObservedLock) -> None:
    """Acquire it in middleware outside of that of the agent."""

    @app.middleware("http")
    async def locked(request: fastapi.Request, call_next: Any) -> Any:
        async with lock:
            return await call_next(request)

    app.post("/pay")(pay)


def in_middleware_inside(app: fastapi.FastAPI, lock: ObservedLock) -> None:
    """Acquire it in middleware inside."""
    in_middleware(app, lock)
    app.user_middleware.append(app.user_middleware.pop(0))


def behind_middleware(app: fastapi.FastAPI, lock: ObservedLock) -> None:
    """Acquire it in another task than the one that has read the request."""

    @app.middleware("http")
    async def passing(request: fastapi.Request, call_next: Any) -> Any:
        return await call_next(request)

    in_dependency(app, lock)


def mounted(make: Callable[[fastapi.FastAPI, ObservedLock], None]) -> Any:
    """Return what makes an application that is mounted."""

    def in_mounted(app: fastapi.FastAPI, lock: ObservedLock) -> None:
        inner = fastapi.FastAPI()
        make(inner, lock)
        app.mount("", inner)

    return in_mounted


@pytest.mark.parametrize("server_count", [1, 2], ids=["one", "two"])
@pytest.mark.parametrize(
    "make",
    [
        in_dependency,
        in_middleware,
        in_middleware_inside,
        behind_middleware,
        mounted(in_dependency),
        mounted(in_middleware),
    ],
    ids=["dependency", "middleware", "inside", "behind", "mounted", "mounted middleware"],
)
def test_a_request_that_waits_before_its_endpoint_begins_is_part_of_a_deadlock(
    make: Callable[[fastapi.FastAPI, ObservedLock], None], server_count: int
) -> None:
    """It has arrived, and is not accepted. Two clients with the same request are no duplicate."""

    async def run() -> Observation:
        listener, app = listening(), fastapi.FastAPI()
        agent = Agent("S", dict, secret=SECRET, targets=[target := address(listener)])
        lock = agent.lock("x")
        observe_application(app, agent)
        make(app, lock)
        collector = Collector()
        collector.joined(agent.rules.name, 0)
        transport = ObservedTransport(agent, client_transport())

        async def hold() -> None:
            async with lock:
                await client.post(f"http://{target}/pay")

        async with served(app, listener), httpx.AsyncClient(transport=transport) as client:
            holding = asyncio.create_task(hold())
            others = [
                asyncio.create_task(client.post(f"http://{target}/pay"))
                for _ in range(server_count - 1)
            ]
            while len(lock.record().waiting) < server_count:  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(0)
            collector.begin()
            fragment = agent.rules.meet(1)
            assert fragment is not None
            result = collector.add(fragment)
            holding.cancel()
            await asyncio.gather(holding, *others, return_exceptions=True)
        # All have ended, so none is listed.
        assert agent.arrivals == {}
        assert result is not None
        return result[0]

    found = find_call_deadlock(asyncio.run(run()))
    assert found is not None
    assert len(found.rings[0]) == 2
    assert len(found.waits) == 2 * server_count
    sentences = sorted(map(str, found.waits.values()))
    assert re.fullmatch(
        r"S-\w+ runs S-\w+/\d+ and waits for the answer of S-\w+ to POST /pay \(S-\w+#\d\)",
        sentences[0],
    )
    assert re.fullmatch(
        r"S-\w+ serves POST /pay \(S-\w+#\d\) and waits for the lock 'x', which S-\w+/\d+ holds",
        sentences[-1],
    )
