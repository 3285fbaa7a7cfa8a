"""Attach observations to a service: ``attach(app, service="orders", ...)``."""

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Collection
from numbers import Number
from typing import Any, Required, TypedDict

from starlette.middleware import Middleware

from stillframe.errors import UsageError, describe, repr_of
from stillframe.process import Message, check_names
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.certificates import check_own
from stillframe.services.agent import Agent, Carries
from stillframe.services.agent_connection import CollectorLink
from stillframe.services.asgi import ObservedApplication, ObservedErrors, Scope
from stillframe.storage.location import local_path

COLLECTOR_PORT = 8650
_SECOND_LOOP = "it is served by a second event loop, whose steps are not observed as one"
WARN_AFTER_S = 5.0
"""A loop that runs for this time after the task that connects was cancelled is not ending."""
LEAVE_S = 2.0
"""How long an instance that starts or ends waits for the collector."""
_log = logging.getLogger("stillframe.services")


class Settings(TypedDict, total=False):
    """The arguments of `attach` and `connected_agent` that all services of a system share.

    ``SETTINGS: Settings = {"collector": ..., "secret": ...}`` lets a type checker check
    ``attach(app, service="shop", state=till, **SETTINGS)``. Only these two are required.

    Attributes:
        collector, secret, targets, carries, stored_fields, shared, certificates: the arguments of
            `attach` with these names.
    """

    collector: Required[str]
    secret: Required[bytes]
    targets: Collection[str]
    carries: Carries | None
    stored_fields: Collection[str]
    shared: Collection[str]
    certificates: str | None


def attach(
    app: Any,
    *,
    service: str,
    state: object,
    collector: str,
    secret: bytes,
    targets: Collection[str] = (),
    carries: Carries | None = None,
    stored_fields: Collection[str] = (),
    shared: Collection[str] = (),
    certificates: str | None = None,
) -> Agent:
    """Let an application of FastAPI or Starlette take part in observations.

    Args:
        app: the application. It must not have begun to serve.
        service: the name of the service.
        state: an object whose fields are the state, or a function that returns the state. If it has
            a method `conserved`, that returns the conserved amounts in the state, by unit.
        collector: the address of ``stillframe observe``.
        secret: the secret that all instances of the system share.
        targets: the addresses of other instances, as ``host:port`` or a target of gRPC. No other
            one is sent a header.
        carries: returns what a message conserves.
        stored_fields: the fields of JSON bodies of requests that observations may contain. No other
            part of a body is ever stored, and none of a message of gRPC.
        shared: names of databases, caches and files over which this service and another one pass
            data. No middleware sees that, so every observation is partial and has these names.
        certificates: the directory of certificates of this service; needed unless the collector is
            on this machine.

    Returns:
        The agent of this process: for ``ObservedTransport``, for ``ObservedCalls`` and
        ``ObservedChannel`` of gRPC, for `Agent.held` and for `Agent.step`.

    Raises:
        UsageError: the application has no list of middleware, has begun to serve, or has an agent
            already. An argument is of another type, or the secret is too short. One of the targets
            is not a target. The collector is on another machine, and there are no certificates, or
            the certificate is not valid for this service.
    """
    if not hasattr(app, "user_middleware"):
        raise UsageError(
            f"{type(app).__name__} is not an application of Starlette or FastAPI: wrap it in "
            "ObservedApplication"
        )
    if app.middleware_stack is not None:
        raise UsageError("the application has begun to serve: attach before that")
    agent = connected_agent(
        service=service,
        state=state,
        collector=collector,
        secret=secret,
        targets=targets,
        carries=carries,
        stored_fields=stored_fields,
        shared=shared,
        certificates=certificates,
    )
    observe_application(app, agent)
    return agent


def observe_application(app: Any, agent: Agent) -> None:
    """Let an application of FastAPI or Starlette that has not begun to serve use an agent.

    Raises:
        UsageError: it uses one already.
    """
    if any(one.cls is ObservedApplication for one in app.user_middleware):
        raise UsageError("the application has an agent already: attach once")
    app.user_middleware.append(
        Middleware(ObservedApplication, agent=agent, accepts_in_endpoint=_hooked(app))
    )
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: ObservedErrors(build(), agent)


def connected_agent(
    *,
    service: str,
    state: object,
    collector: str,
    secret: bytes,
    targets: Collection[str] = (),
    carries: Carries | None = None,
    stored_fields: Collection[str] = (),
    shared: Collection[str] = (),
    certificates: str | None = None,
) -> Agent:
    """Return an agent that connects to the collector, for middleware of other servers. The
    arguments are those of `attach`."""
    _check_state(state)
    address = _address_of(collector)
    if certificates is not None:
        check_own(local_path(certificates), service)
    elif not address.is_loopback:
        raise UsageError(
            f"the collector {address} can be on another machine: on addresses other than 127.0.0.1 "
            "and ::1 TLS is required; give a directory of certificates as certificates= "
            "('stillframe certs' creates some)"
        )
    agent = Agent(
        service,
        state,
        secret=secret,
        targets=targets,
        carries=carries,
        stored_fields=stored_fields,
        shared=shared,
    )
    link = CollectorLink(agent, address, certificates=certificates, warn=_log.warning)
    started = _Started(agent, link)
    agent.start, agent.joined, agent.say_goodbye = started.start, started.joined, started.leave
    return agent


def _check_state(state: object) -> None:
    """Refuse a state that no observation could show."""
    if state is None or isinstance(state, type | Number | str | bytes | list | tuple):
        raise UsageError(
            f"state is {repr_of(state)}: give an object whose fields are the state, or a "
            "function that returns the state"
        )
    check_names(type(state), Message)
    if "conserved" in (held := getattr(state, "__dict__", {})):
        raise UsageError(
            f"the conserved of state is {repr_of(held['conserved'])}: make it a method of its "
            "class that returns amounts by unit, or rename it"
        )


def _address_of(collector: str) -> Address:
    """Return the address of the collector."""
    example = f"write for example 127.0.0.1:{COLLECTOR_PORT}"
    if not isinstance(collector, str):
        raise UsageError(f"collector is {repr_of(collector)}: {example}")
    scheme, separator, _ = collector.partition("://")
    if separator:
        raise UsageError(
            f"collector is {repr_of(collector)}: leave out {scheme + separator!r}, and {example}"
        )
    address = Address.parse(collector, port=COLLECTOR_PORT)
    if not address.port:
        raise UsageError(
            f"collector is {repr_of(collector)}: give the port at which 'stillframe observe' "
            f"listens; {example}"
        )
    return address


def _hooked(app: Any) -> Callable[[Scope], bool] | None:
    """Let FastAPI accept requests where endpoints begin; return which do, if this is FastAPI."""
    if not any(kind.__module__.startswith("fastapi.") for kind in type(app).__mro__):
        return None
    from stillframe.services import fastapi_endpoints  # noqa: PLC0415 - the service's own framework

    fastapi_endpoints.accept_where_endpoints_begin()
    return fastapi_endpoints.accepts_in_endpoint


class _Started:
    """Connects to the collector in the first step of each process's event loop. The rules are for
    one thread, so there is one such loop at a time."""

    def __init__(self, agent: Agent, link: CollectorLink) -> None:
        self._agent = agent
        self._link = link
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._others: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._partial = contextlib.ExitStack()

    def start(self) -> None:
        """Connect, unless this process does already. A second event loop has to wait until the
        first one is closed."""
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            # A server was forked after it had imported the application.
            self._pid, self._loop = os.getpid(), None
            self._agent.rename()
        task = self._task
        if loop is self._loop and task is not None and not (task.done() or task.cancelling()):
            return
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                self._add_second(loop)
                return
            self._loop = loop
            self._partial.close()
            self._others.clear()
        self._task = self._link.start()
        self._task.add_done_callback(self._on_ended)

    async def joined(self) -> bool:
        """Wait until the first attempt to connect has ended. Return whether it is connected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._link.has_tried.wait()
        return self._agent.was_connected

    async def leave(self) -> bool:
        """Say goodbye, if the current event loop is the one that connects. Return whether the
        collector has stored it."""
        task = self._task
        is_ours = self._pid == os.getpid() and asyncio.get_running_loop() is self._loop
        if task is None or not is_ours:
            return False
        name, was_connected = self._agent.rules.name, self._agent.was_connected
        has_left = False
        try:
            async with asyncio.timeout(LEAVE_S):
                has_left = await self._link.leave()
        except Exception as error:  # noqa: BLE001 - no shutdown fails because of an observation
            _log.debug("goodbye of %s: %s", name, describe(error))
        if self._task is task:
            self._task = None
        task.cancel()
        if was_connected and not has_left:
            _log.warning(
                "%s ends, and calls of it are still open, or the collector has not confirmed in "
                "time that it ended in order: unless the collector reports so, what it did last "
                "is unknown, and observations are not exact until 'stillframe baseline'",
                name,
            )
        return has_left

    def _add_second(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let observations be partial while a second event loop serves the application."""
        if not self._others:
            self._partial.enter_context(self._agent.partial_while(self._second_loop))
            _log.warning(
                "the application of %s is served by a second event loop in this process, and "
                "observations are partial: use one event loop, or a process for each",
                self._agent.service,
            )
        self._others.add(loop)

    def _on_ended(self, task: "asyncio.Task[None]") -> None:
        # A program that closes its event loop cancels all tasks first, which is no mistake.
        task.get_loop().call_later(WARN_AFTER_S, self._warn_of_end, task)

    def _warn_of_end(self, task: "asyncio.Task[None]") -> None:
        """Warn that the service is not connected, unless it has been started again."""
        if task is self._task:
            _log.warning(
                "the task that connects %s to the collector was cancelled: it connects again at "
                "the next request; cancel only tasks of your own, and not all of the event loop",
                self._agent.service,
            )

    def _second_loop(self) -> str:
        is_open = any(not other.is_closed() for other in self._others)
        return _SECOND_LOOP if is_open else ""
