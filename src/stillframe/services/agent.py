"""The agent in each instance of a service: the rules of observations, in one event loop.

The middleware of a transport tells it of each request and answer. Everything here happens in the
thread of the event loop, between two suspensions of it, except what `Agent.step` guards.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

from stillframe.errors import UsageError, describe
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    AnswerHeader,
    CallId,
    Captured,
    Instance,
    InstanceFragment,
    RequestHeader,
)
from stillframe.services.headers import HeaderCodec

SECRET_BYTES_MIN = 16
BODY_BYTES_MAX = 2**20
"""The longest body that is read before a request or an answer is accepted."""
SERVING: ContextVar[CallId | None] = ContextVar("stillframe_serving", default=None)
"""The call that the current task serves."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request or an answer, as `carries` is given it.

    Attributes:
        method: the method of the request.
        path: the path of the request.
        body: the whole body of this message.
        is_answer: whether it is an answer.
        status: the status of the answer; 0 for a request.
    """

    method: str
    path: str
    body: bytes
    is_answer: bool = False
    status: int = 0


Carries = Callable[[Message], Amounts]
"""Returns the conserved amounts of a message. It is the same function in every service."""


class Agent:
    """Takes the part of one instance in observations.

    Args:
        service: the name of the service.
        state: an object whose fields are the state, or a function that returns the state.
        secret: the secret that all instances of the system share.
        targets: the addresses of instances, as ``host:port``. No other host is sent a header.
        carries: returns what a message conserves.
        on_fragment: takes the fragment of each observation. It must not block.

    Raises:
        UsageError: the secret is too short.
    """

    def __init__(
        self,
        service: str,
        state: object,
        *,
        secret: bytes,
        targets: Collection[str] = (),
        carries: Carries = lambda message: NOTHING,
        on_fragment: Callable[[InstanceFragment], None] = lambda fragment: None,
    ) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise UsageError(f"the secret has {len(secret)} bytes: use {SECRET_BYTES_MIN} or more")
        self.service = service
        self.secret = secret
        self.was_connected = False
        self.rules = self._new_rules()
        self.headers = HeaderCodec(secret)
        self.targets = frozenset(targets)
        self.ignored_count = 0
        self._state = state
        self._carries = carries
        self.on_fragment = on_fragment
        self._held: dict[object, Mapping[str, int]] = {}
        self._notes: dict[object, Callable[[], str]] = {}
        self._once: dict[str, None] = {}
        self._step = threading.RLock()

    def _new_rules(self) -> Instance:
        return Instance(f"{self.service}-{secrets.token_hex(4)}", self._capture)

    def rename(self) -> None:
        """Begin again as another instance: the collector has retired this one. Open calls are
        forgotten."""
        self.rules = self._new_rules()
        self.was_connected = False

    # --- what middleware calls

    def request(self, target: str, message: Message) -> tuple["OutgoingCall", str | None]:
        """Open a call. Return it, and the header of its request unless the target is not one of
        `targets`."""
        carries = self.amounts(message) if target in self.targets else NOTHING
        header = self.rules.request(target, carries=carries, serving=SERVING.get())
        text = self.headers.encode(header) if target in self.targets else None
        return OutgoingCall(self, self.rules, header.call.number), text

    def accept(self, header: RequestHeader, message: Message) -> "IncomingCall":
        """Accept a request."""
        rules = self.rules
        ticket, fragment = rules.accept(header, brought=self.amounts(message))
        self.report(fragment)
        return IncomingCall(self, rules, ticket)

    def amounts(self, message: Message) -> Amounts:
        """Return what a message conserves; nothing if `carries` fails, which is noted."""
        try:
            return self._carries(message)
        except Exception as error:  # noqa: BLE001 - no request fails because of an observation
            what = f"carries raised {describe(error)} for {message.method} {message.path}"
            self._once[what] = None
            return NOTHING

    @contextlib.contextmanager
    def noted(self, note: Callable[[], str]) -> Iterator[None]:
        """Make observations partial while the body runs; `note` says why, or nothing."""
        key = object()
        self._notes[key] = note
        try:
            yield
        finally:
            del self._notes[key]

    def report(self, fragment: InstanceFragment | None) -> None:
        """Pass on a fragment, if there is one."""
        if fragment is not None:
            self.on_fragment(fragment)

    # --- what applications call

    @contextlib.contextmanager
    def held(self, **amounts: int) -> Iterator[None]:
        """Declare amounts that a local variable of a handler holds while the body runs.

        Example:
            ``with agent.held(EUR=5): await client.post(...)``
        """
        key = object()
        self._held[key] = amounts
        try:
            yield
        finally:
            del self._held[key]

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Let a thread change the state in one step: no capture happens while the body runs. The
        body must not wait for anything."""
        with self._step:
            yield

    def _capture(self) -> Captured:
        """Return the state as bytes, which share nothing with it."""
        held: dict[str, int] = {}
        for amounts in self._held.values():
            for unit, amount in amounts.items():
                held[unit] = held.get(unit, 0) + amount
        notes = [*self._once, *(note() for note in self._notes.values())]
        self._once.clear()
        encoded = b""
        with self._step:
            try:
                encoded = _encoder.encode(self._fields())
            except Exception as error:  # noqa: BLE001 - the same
                notes.append(f"its state could not be captured: {describe(error)}")
        return Captured((encoded, held), tuple(filter(None, notes)))

    def _fields(self) -> Any:
        if callable(self._state):
            return self._state()
        if hasattr(self._state, "__dict__"):
            return vars(self._state)
        return self._state


class OutgoingCall(NamedTuple):
    """An open call. It ends under the name of the instance under which it began."""

    agent: Agent
    rules: Instance
    number: int

    def accept_answer(self, header: AnswerHeader) -> None:
        """Accept the answer."""
        self.agent.report(self.rules.accept_answer(self.number, header))

    def stop_waiting(self, *, was_answered: bool = False) -> None:
        """Mark the call as unresolved; `was_answered` by something without a header."""
        self.rules.stop_waiting(self.number, was_answered=was_answered)

    def close(self) -> None:
        """Close a call to a target that takes no part."""
        self.rules.close(self.number)


class IncomingCall(NamedTuple):
    """A call that is served."""

    agent: Agent
    rules: Instance
    ticket: int

    def answer(self, message: Message | None) -> str:
        """Return the header of the answer. None stands for one that is not sent."""
        carries = self.agent.amounts(message) if message is not None else NOTHING
        return self.agent.headers.encode(self.rules.answer(self.ticket, carries=carries))


_encoder = msgspec.msgpack.Encoder()
