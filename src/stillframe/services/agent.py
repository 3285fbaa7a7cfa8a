"""The agent in each instance of a service: the rules of observations, in one event loop.

The middleware of a transport tells it of each request and answer. Everything here happens in the
thread of the event loop, between two suspensions of it, except what `Agent.step` guards.
"""

import asyncio
import contextlib
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

from stillframe.errors import UsageError, check_kind, class_name, describe, repr_of, utf8
from stillframe.model import DECODING_ERRORS, check_process_id
from stillframe.ordered_sets import with_ordered_sets
from stillframe.protocol.activities import (
    NUMBER_MAX,
    TEXT_LENGTH_MAX,
    TIME_MAX,
    Arrival,
    CallDetails,
    InstanceState,
    Lock,
    TaskWait,
)
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    AnswerHeader,
    CallId,
    Captured,
    End,
    Farewell,
    Instance,
    InstanceFragment,
    MessageHeader,
    RequestHeader,
    add_amounts,
    call_named,
)
from stillframe.services.headers import HeaderCodec
from stillframe.services.targets import target_named
from stillframe.services.task_waits import is_waiting, waits_of_tasks
from stillframe.services.thread_steps import ThreadSteps

SECRET_BYTES_MIN = 16
ERROR_COUNT_MAX = 20
"""How many different errors of `carries` an observation names."""
_EMPTY_MAP = b"\x80"
BODY_BYTES_MAX = 2**20
"""The longest body that is read before a request or an answer is accepted."""
FIELD_LENGTH_MAX = 200
"""How many characters of a field of a body are stored."""
NAME_LENGTH_MAX = 200
"""How many characters of a path are stored."""
_OF_CLIENTS = ("anyio", "asgiref", "asyncio", "httpx", "starlette", __name__.partition(".")[0])
"""The packages of functions that make a call and return its answer."""
STATUS_MAX = 999
"""The highest status of an answer that is recorded."""
GRPC = "GRPC"
"""The method of every message of gRPC."""
IDLE_POLL_S = 0.01
SERVING: ContextVar[CallId | None] = ContextVar("stillframe_serving", default=None)
"""The call that the current task serves."""


class MadeCall(msgspec.Struct, eq=False):
    """A call that the application has made: `Agent.calls` collects them. As text it is `call`.

    Attributes:
        call: its name, such as ``shop-1a2b3c4d#17``, which no other call ever has.
        target: the address to which the request was sent.
        name: what was called, such as ``POST /pay``.
        is_answered: whether its answer was received. An error that the other end has sent is one.
    """

    call: str
    target: str
    name: str
    is_answered: bool = False

    def __str__(self) -> str:
        return self.call


_COLLECTING: ContextVar[tuple[tuple[object, list[MadeCall]], ...]] = ContextVar(
    "stillframe_collecting", default=()
)
"""The agents whose calls are collected in the current context, and where."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request, an answer, or a message of a stream, as `carries` is given it.

    Attributes:
        method: the method of the request; `GRPC` for every message of gRPC.
        path: the path of the request, such as ``/pay`` or ``/shop.Orders/Pay``.
        body: the whole body of this message; for gRPC, the serialized message. It is empty for an
            error of gRPC.
        is_answer: whether it is an answer, or a message of a stream that a server sends.
        status: the status of the answer: that of HTTP, or the number of that of gRPC. It is 0 for a
            request and for a message of a stream.
        request_body: for an answer, the body of its request, unless that was a stream: a refusal
            gives back what the request has brought.
    """

    method: str
    path: str
    body: bytes
    is_answer: bool = False
    status: int = 0
    request_body: bytes = b""


Carries = Callable[[Message], Amounts]
"""Returns the conserved amounts of a message. It is the same function in every service."""


class Agent:
    """An agent, which takes the part of one instance in observations. `attach` and
    `connected_agent` make it.

    Args:
        service: the name of the service.
        state: an object whose fields are the state, or a function that returns the state. If it has
            a method `conserved`, that returns the conserved amounts in the state, by unit.
        secret: the secret that all instances of the system share.
        targets: the addresses of instances, as ``host:port`` or a target of gRPC. No other one is
            sent a header.
        carries: returns what a message conserves.
        stored_fields: the fields of JSON bodies of requests that observations may contain. No other
            part of a body is ever stored, and none of a message of gRPC.
        shared: names of databases, caches and files over which this service and another one pass
            data. No middleware sees that, so every observation is partial and has these names.
        on_fragment: takes the fragment of each observation. It must not block.

    Raises:
        UsageError: the secret is too short, a service cannot have this name, or one of the targets
            is not a target.
    """

    def __init__(
        self,
        service: str,
        state: object,
        *,
        secret: bytes,
        targets: Collection[str] = (),
        carries: Carries | None = None,
        stored_fields: Collection[str] = (),
        shared: Collection[str] = (),
        on_fragment: Callable[[InstanceFragment], None] = lambda fragment: None,
    ) -> None:
        if not isinstance(secret, bytes):
            raise UsageError(f"the secret is of type {type(secret).__name__}: give bytes")
        secret = secret.strip()  # as `stillframe observe` does
        for name, texts in (
            ("targets", targets),
            ("stored_fields", stored_fields),
            ("shared", shared),
        ):
            _check_texts(name, texts)
        if carries is not None and not callable(carries):
            raise UsageError(f"carries is {repr_of(carries)}: give a function")
        if len(secret) < SECRET_BYTES_MIN:
            raise UsageError(f"the secret has {len(secret)} bytes: use {SECRET_BYTES_MIN} or more")
        self.service = check_process_id(service, "a service")
        self.secret = secret
        self.was_connected = False
        self.rules = self._new_rules()
        self.headers = HeaderCodec(secret)
        self.targets = frozenset(map(target_named, targets))
        self.ignored_count = 0
        self._state = state
        self._carries = carries or _nothing
        self.on_fragment = on_fragment
        self.start: Callable[[], None] = lambda: None
        """Connects this process to the collector, unless it is connected. Middleware calls it in
        the event loop."""
        self.joined: Callable[[], Awaitable[bool]] = _is_not_connected
        """Waits for the collector for a moment. Returns whether it has answered."""
        self._is_loading = False
        self.say_goodbye: Callable[[], Awaitable[bool]] = _is_not_connected
        """Sends the `farewell` to the collector. Returns whether the collector has stored it."""
        self._stored_fields = tuple(stored_fields)
        self._always: dict[str, None] = {}
        for name in shared:
            self.mark_partial(f"{name} is shared outside of calls")
        self._activities: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = (
            weakref.WeakKeyDictionary()
        )
        self._activity_count = 0
        self._keeping: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = (
            weakref.WeakKeyDictionary()
        )
        self._locks: list[ObservedLock] = []
        self._held: dict[object, Mapping[str, int]] = {}
        self._reasons: dict[object, Callable[[], str]] = {}
        self._once: dict[str, None] = {}
        self.open_ends: set[CallEnd] = set()
        self.arrivals: dict[Arriving, None] = {}
        self.pools: weakref.WeakSet[Pool] = weakref.WeakSet()
        self._renamed: set[CallEnd] | None = None
        self.threads = ThreadSteps()

    def _new_rules(self) -> Instance:
        name = f"{self.service}-{secrets.token_hex(4)}"
        return Instance(name, self._capture, amounts=self._amounts)

    def rename(self) -> None:
        """Begin again as another instance: the collector has retired this one, or it has said
        goodbye. Open calls are forgotten."""
        self.rules = self._new_rules()
        self.was_connected = False
        if self.open_ends:
            self._renamed = set(self.open_ends)

    def stored(self, observation: int) -> None:
        """Record that an observation is stored."""
        is_over = self._renamed is not None and self.open_ends.isdisjoint(self._renamed)
        if is_over and observation >= self.rules.colour:
            self._renamed = None

    # --- what middleware calls

    def begin(self) -> None:
        """Connect to the collector before the application acts on anything, so that it is known
        which amounts its state begins with."""
        self.start()
        self.rules.began_with()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Let the application load its state while the body runs, until `loaded`: what it sends
        before does not connect it."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    async def loaded(self) -> None:
        """Join before the application serves anything, and say with which amounts it begins."""
        self._is_loading = False
        self.start()
        if self.was_connected:
            before = self.rules.began_with()
            self.rules.loaded()
            if self.rules.began_with() != before:
                self.mark_partial("it had joined before it had loaded its state")
        else:
            self.rules.loaded()
        await self.joined()

    async def until_idle(self) -> bool:
        """Wait until no call is open. Return whether nothing of the application can act any more;
        False if it was cancelled while a thread served it."""
        while self.open_ends or self.arrivals or self.threads.is_busy:  # noqa: ASYNC110 - rare
            await asyncio.sleep(IDLE_POLL_S)
        return not self.threads.has_abandoned

    def farewell(self) -> Farewell:
        """Return what this instance says when it ends in order. This process is another instance
        from now on."""
        with self.threads.between():
            said = self.rules.farewell()
            reasons = self._reasons_why_partial()
        self.rename()
        fragment = msgspec.structs.replace(said.fragment, partial=reasons)
        return msgspec.structs.replace(said, fragment=fragment)

    def request(
        self,
        target: str,
        message: Message,
        *,
        timeout_s: float | None = None,
        is_streamed: bool = False,
        is_whole: bool = True,
        activity: str | None = None,
    ) -> tuple["OutgoingCall", str | None]:
        """Open a call. Return it, and the header of its request unless the target is not one of
        `targets`.

        Args:
            target: the address to which the request is sent.
            message: the request.
            timeout_s: how long the caller waits at least.
            is_streamed: whether the request is a stream, whose messages follow.
            is_whole: whether `message` has the whole body.
            activity: the activity that waits for the answer from now on: empty if none does, None
                for the current task.
        """
        if not self._is_loading:
            self.start()
        self.threads.send()
        carries: Amounts | None = NOTHING
        if target in self.targets and not is_streamed:
            carries = self.amounts(message) if is_whole else self.unread_amounts()
        details = self._details(
            message,
            activity=self.activity() if activity is None else activity,
            timeout_s=timeout_s,
            has_unknown_amounts=carries is None,
        )
        carries = carries or NOTHING
        header = self.rules.request(
            utf8(target[:TEXT_LENGTH_MAX]), carries=carries, serving=SERVING.get(), details=details
        )
        text = self.headers.encode(header) if target in self.targets else None
        call = OutgoingCall(self, header.call, message.path)
        if text is not None:
            call.list_in(
                MadeCall(str(header.call), target, details.name),
                [made for agent, made in _COLLECTING.get() if agent is self],
            )
        return call, text

    def accept(
        self,
        header: RequestHeader,
        message: Message,
        *,
        is_streamed: bool = False,
        is_whole: bool = True,
        task: asyncio.Task[Any] | None = None,
    ) -> "IncomingCall":
        """Accept a request.

        Args:
            header: its header.
            message: the request.
            is_streamed: whether it is a stream, whose messages follow.
            is_whole: whether `message` has the whole body.
            task: the task that serves it; None for the current one.
        """
        brought: Amounts | None = NOTHING
        if not is_streamed:
            brought = self.amounts(message) if is_whole else self.unread_amounts()
        task = task or asyncio.current_task()
        ticket, fragment = self.rules.accept(
            header,
            brought=brought or NOTHING,
            details=self._details(
                message,
                activity="" if task is None else self.activity_of(task),
                has_unknown_amounts=brought is None,
            ),
        )
        self.report(fragment)
        return IncomingCall(self, header.call, ticket)

    def activity(self) -> str:
        """Return the activity that the current task is."""
        task = asyncio.current_task()
        return "" if task is None else self.activity_of(task)

    def activity_of(self, task: asyncio.Task[Any]) -> str:
        """Return the activity that a task is."""
        name = self._activities.get(task)
        if name is None:
            self._activity_count += 1
            name = self._activities[task] = f"{self.rules.name}/{self._activity_count}"
        return name

    def _details(
        self,
        message: Message,
        *,
        activity: str = "",
        timeout_s: float | None = None,
        has_unknown_amounts: bool = False,
    ) -> CallDetails:
        """Return what may be stored of a request."""
        began_at = time.time()
        deadline = None if timeout_s is None else began_at + timeout_s
        may_store = self._stored_fields and message.method != GRPC
        return CallDetails(
            name=utf8(f"{message.method} {message.path}"[:NAME_LENGTH_MAX]),
            activity=activity,
            began_at=began_at,
            deadline=deadline if deadline and 0 <= deadline <= TIME_MAX else None,
            fields=_fields_of(message.body, self._stored_fields) if may_store else {},
            has_unknown_amounts=has_unknown_amounts,
        )

    def amounts(self, message: Message) -> Amounts | None:
        """Return what a message conserves; None if `carries` fails, which is recorded. The text of
        its error may have a part of the body, so it is not."""
        if self._carries is _nothing:
            return NOTHING
        try:
            return amounts_in(self._carries(message))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - no request fails because of an observation
            if len(self._once) < ERROR_COUNT_MAX:
                self._once[f"carries raised {class_name(error)} for {message.method}"] = None
            return None

    def unread_amounts(self) -> Amounts | None:
        """Return the amounts of a message whose body was not read: unknown, if any message has
        amounts."""
        return NOTHING if self._carries is _nothing else None

    def mark_if_kept(self, path: str) -> None:
        """Make observations partial if the current task is one of a client, such as that of
        ``gather(client.post(...))``. The task keeps what was accepted until the application takes
        it. That is noticed when the task is deleted."""
        task = asyncio.current_task()
        if task is not None and self._carries is not _nothing and _is_of_client(task):
            self._keeping[task] = path

    @contextlib.contextmanager
    def partial_while(self, reason: Callable[[], str]) -> Iterator[None]:
        """Make observations partial while the body runs; `reason` says why, or nothing."""
        key = object()
        self._reasons[key] = reason
        try:
            yield
        finally:
            del self._reasons[key]

    def mark_partial(self, reason: str) -> None:
        """Make all later observations partial."""
        self._always[reason] = None

    def report(self, fragment: InstanceFragment | None) -> None:
        """Pass on a fragment, if there is one."""
        if fragment is not None:
            self.on_fragment(fragment)

    # --- what applications call

    async def leave(self) -> bool:
        """Say goodbye to the collector, so that observations stay exact without this instance.
        ASGI applications need not call it: the middleware does when they have shut down.

        Call it in the event loop that serves, after all calls and what stores the state, as the
        last thing before the loop ends. It waits for the collector for up to two seconds, and never
        fails. An application that serves calls afterwards is another instance.

        Returns:
            Whether the collector has confirmed it.

        Example:
            ``await server.stop(5); await agent.leave()``
        """
        return await self.say_goodbye()

    @contextlib.contextmanager
    def calls(self) -> Iterator[list[MadeCall]]:
        """Collect the calls that are made while the body runs: by the current task, and by tasks
        that it makes there, as `gather` does. Each request that was sent to one of `targets` is
        one, a repetition and a redirection as well. They are in the order of their requests.

        Example:
            ``with agent.calls() as made: await client.post(...)``
        """
        made: list[MadeCall] = []
        before = _COLLECTING.get()
        _COLLECTING.set((*before, (self, made)))
        try:
            yield made
        finally:
            _COLLECTING.set(before)

    def settled(self, call: MadeCall | str, returned: Amounts | None = None) -> None:
        """Say what became of a call whose answer was not received.

        Without amounts it took effect. With amounts it did not, or its answer was lost, and your
        code has given them back to the state. Call it in the event loop after the state has gained
        them, in the same step: no ``await`` in between. If the call was accepted all the same,
        observations say that these amounts were spent twice.

        Args:
            call: the call, or its name: also one of an earlier instance of this service.
            returned: the amounts that the state has gained, by unit.

        Raises:
            UsageError: its answer was received or may still be, this instance has made no such
                call, the amounts are not whole numbers, or it is called in another thread.

        Example:
            ``till.euros += 5; agent.settled(made[0], returned={"EUR": 5})``
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                "settled is called outside of the event loop: call it in the loop, in the step in "
                "which the state changes, such as in the startup of the application"
            ) from None
        if isinstance(call, MadeCall) and call.is_answered:
            raise UsageError(f"the answer to call {call} was received: there is nothing to settle")
        self.rules.settled(call_named(str(call)), amounts_in(returned or NOTHING))

    @contextlib.contextmanager
    def held(self, **amounts: int) -> Iterator[None]:
        """Declare amounts that a local variable of a handler holds while the body runs.

        Example:
            ``with agent.held(EUR=5): await client.post(...)``
        """
        key = object()
        self._held[key] = amounts_in(amounts)
        try:
            yield
        finally:
            del self._held[key]

    def lock(self, name: str, *, count_max: int = 1) -> "ObservedLock":
        """Return a lock that observations show. Make each one once.

        Args:
            name: its name. No other lock of this agent has it.
            count_max: how many tasks can have it at a time.

        Raises:
            UsageError: no task could ever have it, or there is one with this name.
        """
        check_kind("the name of the lock", name, str, "a string")
        if count_max < 1:
            raise UsageError(f"no task could have the lock {name!r}: give a count_max above 0")
        if any(name == one.name for one in self._locks):
            raise UsageError(
                f"the agent has a lock {name!r} already: make each lock once, where the "
                "application begins, and give each another name"
            )
        lock = ObservedLock(self, utf8(name), count_max)
        self._locks.append(lock)
        return lock

    @contextlib.contextmanager
    def step(self, **held: int) -> Iterator[None]:
        """Let a thread change the state in one step: no capture happens while the body runs. The
        body must not wait for anything.

        The first step of a function that serves a call in a thread accepts its request.

        Args:
            held: the amounts that such a function holds for its answer from this step on, by unit.
                The next step replaces them, and a step inside of this one adds to them. After a
                step that raises an error, the endpoint holds what it held before.

        In other threads use `held`. If amounts are given there, all later observations are partial.

        Example:
            ``with agent.step(EUR=5): till.euros -= 5``
        """
        with self.threads.step(amounts_in(held)):
            yield

    def _capture(self) -> Captured:
        """Return the state as bytes, which share nothing with it."""
        with self.threads.between() as held_by_threads:
            return self._capture_between_steps(held_by_threads)

    def _arrived(self) -> Iterator[Arrival]:
        """Yield the requests that have arrived and are not accepted."""
        for one in self.arrivals:
            header = self.headers.decode(RequestHeader, one.text)
            if header is not None and one.task is not None and not one.task.done():
                yield Arrival(str(header.call), self.activity_of(one.task))

    def _capture_between_steps(self, held_by_threads: list[Amounts]) -> Captured:
        partial = self._reasons_why_partial()
        encoded, conserved = _EMPTY_MAP, NOTHING
        try:
            fields = _encoder.encode(with_ordered_sets(self._fields()))
            msgspec.msgpack.decode(fields, type=dict[str, msgspec.Raw])
            conserved = self._conserved()
            encoded = fields
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the same
            partial += (utf8(f"its state could not be captured: {describe(error)}"),)
        pools = (one.connections() for one in self.pools)
        locks = (
            *(lock.record() for lock in self._locks if lock.is_held),
            *(lock for lock in pools if lock is not None),
        )
        state = InstanceState(
            encoded,
            self._held_with(held_by_threads),
            dict(conserved),
            locks,
            self._task_waits(),
            self.ignored_count,
            arrivals=tuple(self._arrived()),
        )
        return Captured(state, partial)

    def _reasons_why_partial(self) -> tuple[str, ...]:
        """Return why a cut at this moment may not show everything, apart from the state."""
        partial = [*self._always, *self._once, *map(_made, self._reasons.values())]
        partial += [f"a task keeps the answer of {path}" for path in self._keeping.values()]
        partial += [
            f"{name} made no step, so an earlier observation may have its effect too early"
            for name in self.threads.early
        ]
        self._once.clear()
        self.threads.early.clear()
        if self.threads.has_lost_amounts:
            partial.append("step was given amounts where no endpoint runs in a thread: use held")
        if self.threads.is_in_step:
            partial.append("a step of the event loop waits for something: use held there")
        if self._renamed is not None:
            partial.append("it was renamed while calls were open that have not ended")
        return tuple(utf8(one) for one in partial if one)

    def _held_with(self, held_by_threads: list[Amounts]) -> dict[str, int]:
        """Return the amounts that handlers hold, in the event loop and in threads."""
        held: dict[str, int] = {}
        for amounts in (*self._held.values(), *held_by_threads):
            add_amounts(held, amounts)
        return held

    def _conserved(self) -> dict[str, int]:
        """Return the amounts in the state, by code of the application."""
        state: Any = self._state
        return amounts_in(state.conserved()) if hasattr(state, "conserved") else {}

    def _amounts(self) -> Amounts | None:
        """Return all amounts that the instance has; None if they are not known, which the next
        fragment says."""
        with self.threads.between() as held_by_threads:
            found = self._held_with(held_by_threads)
            try:
                add_amounts(found, self._conserved())
                return amounts_in(found)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - no request fails because of it
                self._once[f"the amounts of its state are not known: {describe(error)}"] = None
                return None

    def _task_waits(self) -> tuple[TaskWait, ...]:
        name = self.activity_of
        found = waits_of_tasks(list(self._activities))
        return tuple(TaskWait(name(task), tuple(map(name, inner))) for task, inner in found.items())

    def _fields(self) -> Any:
        if callable(self._state):
            return self._state()
        if hasattr(self._state, "__dict__"):
            return vars(self._state)
        return self._state


class Pool(Protocol):
    """A pool of connections, for whose end requests may wait."""

    def connections(self) -> Lock | None:
        """Return the tasks that have its connections, and those that wait for one; None if none
        waits."""


class Arriving:
    """A request that is not accepted yet: the text of its header, and the task that has it."""

    def __init__(self, text: str, task: asyncio.Task[Any] | None) -> None:
        self.text = text
        self.task = task


class ObservedLock:
    """A lock that observations show: `Agent.lock` makes it. It is used as ``asyncio.Lock`` is, or
    as ``asyncio.Semaphore`` if several tasks can have it: any task may release it.

    Observations show the task that has acquired it, until a task releases it. A task that has ended
    since is not known to have it, nor is any if another one has released it.
    """

    def __init__(self, agent: Agent, name: str, count_max: int) -> None:
        self.name = name
        self._agent = agent
        self._count_max = count_max
        self._lock = asyncio.Lock() if count_max == 1 else asyncio.Semaphore(count_max)
        self._holders: list[asyncio.Task[Any] | None] = []
        self._waiting: list[asyncio.Task[Any]] = []

    @property
    def is_held(self) -> bool:
        """Whether a task has it."""
        return bool(self._holders)

    def record(self) -> Lock:
        """Return the tasks that have it, and those that wait for it: none after a release, until
        another task has acquired it."""
        name = self._agent.activity_of
        is_taken = len(self._holders) >= self._count_max
        waiting = [task for task in self._waiting if is_taken and is_waiting(task)]
        # `wait_for` acquires it in a task that ends at once, before Python 3.12.
        holders = ["" if one is None or one.done() else name(one) for one in self._holders]
        return Lock(self.name, tuple(holders), tuple(map(name, waiting)))

    def locked(self) -> bool:
        """Return whether a task that acquires it now has to wait."""
        return self._lock.locked()

    async def acquire(self) -> Literal[True]:
        """Wait until the current task has it."""
        task = _current_task()
        self._waiting.append(task)
        try:
            await self._lock.acquire()
        finally:
            self._waiting.remove(task)
        self._holders.append(task)
        return True

    def release(self) -> None:
        """Release it, for the task that has acquired it or for another one.

        Raises:
            RuntimeError: no task has it.
        """
        if not self._holders:
            raise RuntimeError(f"the lock {self.name!r} is not acquired")
        task = asyncio.current_task()
        if task in self._holders:
            self._holders.remove(task)
        else:
            # It may be released for any of those that have it.
            self._holders = [None] * (len(self._holders) - 1)
        self._lock.release()

    async def __aenter__(self) -> None:
        """Acquire it."""
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class CallEnd:
    """One end of an open call. It ends under the name of the instance under which it began."""

    def __init__(self, agent: Agent, end: End, sending: str, accepting: str) -> None:
        self.is_open = True
        self._agent = agent
        self._rules = agent.rules
        self._end = end
        self._sending = sending
        self._accepting = accepting
        self._accepted_count = 0
        self._is_mixed = False
        self._partial = contextlib.ExitStack()
        agent.open_ends.add(self)

    def _meet(self, colour: int) -> None:
        """Let an agent that has another name since the call began capture, if it must."""
        if self._rules is not self._agent.rules:
            self._agent.report(self._agent.rules.meet(colour))

    def send(self, message: Message) -> str:
        """Return the header of the next message of the stream."""
        amounts = self._agent.amounts(message)
        if amounts is None:
            self.mark_partial(
                f"the amounts of a message of the stream {message.path} are not known"
            )
        header = self._rules.send(self._end, carries=amounts or NOTHING)
        return self._agent.headers.encode(header, self._sending)

    def accept_message(self, text: str | None, path: str) -> None:
        """Accept the next message of the stream. One without a header of this stream that is new is
        ignored and counted, and makes observations partial until the call ends.

        Args:
            text: the header of the message, if it has one.
            path: the path of the request.
        """
        agent = self._agent
        header = agent.headers.decode(MessageHeader, text, self._accepting) if text else None
        if header is not None and header.number > self._accepted_count:
            self._accepted_count = header.number
            self._meet(header.colour)
            agent.report(self._rules.accept_message(self._end, header))
            agent.mark_if_kept(path)
            return
        agent.ignored_count += 1
        if not self._is_mixed:
            self._is_mixed = True
            self.mark_partial(f"a message of the stream {path} has no header")

    def mark_partial(self, reason: str) -> None:
        """Make observations partial until the call ends, for this reason."""
        self._partial.enter_context(self._agent.partial_while(lambda: reason))

    def _over(self) -> None:
        self.is_open = False
        self._agent.open_ends.discard(self)
        self._partial.close()


class OutgoingCall(CallEnd):
    """An open call at its caller."""

    def __init__(self, agent: Agent, call: CallId, path: str) -> None:
        super().__init__(agent, call, f"{call}>", f"{call}<")
        self._number = call.number
        self._path = path
        self._made: MadeCall | None = None
        self._lists: list[list[MadeCall]] = []

    def list_in(self, made: MadeCall, lists: list[list[MadeCall]]) -> None:
        """List the call for the application, unless its request is not sent."""
        self._made, self._lists = made, lists
        for one in lists:
            one.append(made)

    def meet(self, header: AnswerHeader) -> None:
        """Capture if the answer has a higher colour. It is accepted later."""
        self._meet(header.colour)
        self._agent.report(self._rules.meet(header.colour))

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Record that the current task waits for the other end while the body runs."""
        self._rules.set_activity(self._number, self._agent.activity())
        try:
            yield
        finally:
            self._rules.set_activity(self._number, "")

    def accept_answer(self, header: AnswerHeader) -> None:
        """Accept the answer."""
        self._over()
        if self._made is not None:
            self._made.is_answered = True
        self._meet(header.colour)
        self._agent.report(self._rules.accept_answer(self._number, header))
        self._agent.mark_if_kept(self._path)

    def stop_waiting(
        self, *, was_answered: bool = False, was_sent: bool = True, status: int | None = None
    ) -> None:
        """Mark the call as unresolved; `was_answered` by something without a header, or not sent
        for certain. An answer without a header has a `status`, also that of a gateway that had no
        answer."""
        self._over()
        self._rules.stop_waiting(
            self._number, was_answered=was_answered, was_sent=was_sent, status=_status_in(status)
        )

    def close(self) -> None:
        """Close a call to a target that takes no part, or whose request was not sent."""
        self._over()
        for made in self._lists:
            made[:] = [one for one in made if one is not self._made]
        self._rules.close(self._number)


class IncomingCall(CallEnd):
    """A call that is served."""

    def __init__(self, agent: Agent, call: CallId, ticket: int) -> None:
        super().__init__(agent, ticket, f"{call}<", f"{call}>")
        self._ticket = ticket

    def answer(
        self, message: Message | None, *, is_whole: bool = True, status: int | None = None
    ) -> str:
        """Return the header of the answer.

        Args:
            message: the answer; None if it is not sent, or has no message.
            is_whole: whether the answer has no other body, which follows.
            status: the status of an answer that has no message.
        """
        agent = self._agent
        carries = agent.amounts(message) if message is not None else NOTHING
        if not is_whole:
            carries = agent.unread_amounts()
        answer = self._rules.answer(
            self._ticket,
            carries=carries or NOTHING,
            has_unknown_amounts=carries is None,
            status=_status_in(status if message is None else message.status),
        )
        header = agent.headers.encode(answer)
        self._over()
        return header


def _status_in(status: object) -> int | None:
    """Return the status of an answer, which an application can set to anything."""
    if isinstance(status, int) and 0 <= status <= STATUS_MAX:
        return int(status)
    return None


def _is_of_client(task: asyncio.Task[Any]) -> bool:
    """Return whether what a task runs is a function of a client, and not of an application."""
    running: Any = task.get_coro()
    frame = getattr(running, "cr_frame", None) or getattr(running, "gi_frame", None)
    module = frame.f_globals.get("__name__", "") if frame is not None else ""
    return module.partition(".")[0] in _OF_CLIENTS


def _made(reason: Callable[[], str]) -> str:
    """Return why observations are partial, by code that may ask objects of the application."""
    try:
        return reason()
    except Exception as error:  # noqa: BLE001 - no request fails because of an observation
        return f"why it may be torn is unknown: {describe(error)}"


def _check_texts(name: str, texts: Any) -> None:
    is_one = isinstance(texts, str | bytes) or not isinstance(texts, Collection)
    if is_one or not all(isinstance(one, str) for one in texts):
        raise UsageError(f"{name} is {repr_of(texts)}: give a list of texts")


async def _is_not_connected() -> bool:
    """Return that no collector has stored the end of an agent that has none."""
    return False


def _nothing(_: Message) -> Amounts:
    """Return that a message carries nothing."""
    return NOTHING


def amounts_in(found: object) -> dict[str, int]:
    """Return amounts that an application gives.

    Raises:
        UsageError: they are not whole numbers up to `NUMBER_MAX`, by unit.
    """
    try:
        amounts = msgspec.convert(found, dict[str, int])
    except msgspec.ValidationError as error:
        raise UsageError(f"amounts are whole numbers by unit, and these are not: {error}") from None
    for unit, amount in amounts.items():
        if utf8(unit) != unit:
            raise UsageError(f"the unit {unit!r} is not UTF-8: use another name")
        if abs(amount) > NUMBER_MAX:
            raise UsageError(f"the amount of {unit} is above {NUMBER_MAX}: use a larger unit")
    return amounts


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "this runs in a task only"
    return task


def _fields_of(body: bytes, names: Collection[str]) -> dict[str, str]:
    """Return fields of a JSON object, each as JSON; none if the body is something else."""
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except DECODING_ERRORS:
        return {}
    return {
        name: bytes(found[name]).decode(errors="replace")[:FIELD_LENGTH_MAX]
        for name in names
        if name in found
    }


_encoder = msgspec.msgpack.Encoder()
