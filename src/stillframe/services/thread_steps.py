"""Steps of threads, between which an instance captures.

A capture can be between any two instructions of a thread. So a thread changes the state in steps,
and captures wait for the end of a step.

A function that serves a call in a thread accepts the request in its first step: until then the
request is in transit. Whether a function makes steps is known when it has made some. Before that
the request is accepted when the function begins, and so it is once a call has made none.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from stillframe.errors import text_of
from stillframe.protocol.calls import NOTHING, Amounts, add_amounts

IN_THREAD: ContextVar["ThreadCall | None"] = ContextVar("stillframe_in_thread", default=None)
"""The call that a function in a thread serves."""


class ThreadCall:
    """A call that a function in a thread serves.

    Args:
        accept: accepts the request in the event loop, unless it is accepted.
        function: the function; None if it is not known.

    Attributes:
        has_stepped: whether the thread has made a step.
        is_in_transit: whether the request is in transit until the first step.
        is_early: whether an observation has begun while it was. If the thread makes no step, its
            effect is in that observation too early.
        held: the amounts that the thread holds since its last step.
        runs_on: whether the thread may still run when the call has ended: it cannot be cancelled.
    """

    def __init__(self, accept: Callable[[], None], function: object) -> None:
        self.accept = accept
        self.function = function
        self.has_stepped = False
        self.is_in_transit = False
        self.is_early = False
        self.held: Amounts = NOTHING
        self.runs_on = False


def _nothing() -> None:
    """Accept nothing."""


class ThreadSteps:
    """The steps of the threads of one instance.

    Attributes:
        has_lost_amounts: whether a thread that serves no call, or one that has ended, has declared
            amounts in a step. It is not known when it holds them no more.
        has_abandoned: whether a thread may still run of a call that was cancelled.
        early: the names of functions that have made no step in a call, for which the request was in
            transit for an observation.
    """

    def __init__(self) -> None:
        self.has_lost_amounts = False
        self.has_abandoned = False
        self._lock = threading.RLock()
        self._depth = 0
        self._calls: set[ThreadCall] = set()
        self.early: set[str] = set()
        self._stepping: weakref.WeakSet[Any] = weakref.WeakSet()
        self._not_always: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_in_step(self) -> bool:
        """Whether a step is being made. In the body of `between` the event loop makes it itself: it
        has not ended, and waits for something."""
        return self._depth > 0

    @property
    def is_busy(self) -> bool:
        """Whether a call is served that a thread may serve."""
        return bool(self._calls)

    # --- in a thread

    @contextlib.contextmanager
    def step(self, amounts: Amounts) -> Iterator[None]:
        """Make a step while the body runs; from then on the thread holds these amounts. If the body
        raises an error, it holds those from before the step."""
        call = IN_THREAD.get()
        with self._lock:
            before = NOTHING if call is None else call.held
            if call not in self._calls:
                self.has_lost_amounts |= bool(amounts)
            else:
                call.has_stepped = True
                held = dict(call.held) if self._depth else {}
                add_amounts(held, amounts)
                call.held = held
            self._depth += 1
            try:
                yield
            except BaseException:
                if call is not None:
                    call.held = before
                raise
            finally:
                self._depth -= 1

    # --- in the event loop

    def begin(self, accept: Callable[[], None] = _nothing, function: object = None) -> ThreadCall:
        """Begin a call that a function serves in a thread, and accept it unless the function has
        made a step in each of its calls. The host sets `IN_THREAD`.

        Without arguments any thread can begin one.

        Args:
            accept: accepts the request, unless it is accepted. A request without a header is not
                accepted: what its function holds for the answer leaves the system with it.
            function: the function; None if it is not known.
        """
        call = ThreadCall(accept, function)
        plain = _plain(function)
        with contextlib.suppress(TypeError):  # it has no hash
            call.is_in_transit = plain in self._stepping and plain not in self._not_always
        if not call.is_in_transit:
            accept()
        self._calls.add(call)
        return call

    def end(self, call: ThreadCall) -> None:
        """End a call, in the step in which it is answered. Doing so twice changes nothing."""
        self._calls.discard(call)
        self.has_abandoned |= call.runs_on
        call.accept = _nothing  # it refers to the host, which refers to the call
        if call.function is None:
            return
        plain = _plain(call.function)
        with contextlib.suppress(TypeError):  # no weak reference is possible, or it has no hash
            (self._stepping if call.has_stepped else self._not_always).add(plain)
        if call.is_early and not call.has_stepped:
            self.early.add(text_of(getattr(plain, "__qualname__", type(plain).__name__)))

    def send(self) -> None:
        """Record that the current context sends a request: that is a step of a function that serves
        a call, although it has made none."""
        call = IN_THREAD.get()
        if call is not None and call in self._calls:
            call.has_stepped = True
            call.accept()

    @contextlib.contextmanager
    def between(self) -> Iterator[list[Amounts]]:
        """Let no other thread make a step while the body runs. Yield what the threads hold."""
        with self._lock:
            calls = list(self._calls)  # in one step: a thread may begin a call
            for call in calls:
                if call.has_stepped:
                    call.accept()
                elif call.is_in_transit:
                    call.is_early = True
            yield [call.held for call in calls]


def _plain(function: Any) -> Any:
    """Return the function of a method: an application may make another method for each call."""
    return getattr(function, "__func__", function)
