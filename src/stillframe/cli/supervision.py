"""Keeps a system running until it is asked to stop, and stops it with one last snapshot."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

from stillframe.cli import quantities
from stillframe.cli.narration import Narrator
from stillframe.cli.watching import Watch
from stillframe.errors import StillframeError, Unavailable
from stillframe.model import Abandoned, ProcessId
from stillframe.pipeline.pipeline import Pipeline
from stillframe.protocol.aligner import Mode
from stillframe.runtime.supervisor.admin_socket import NOTICE_S, serve_commands
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically

WRITE_S = 5.0
"""How long writing the last snapshot may take, in seconds, after all processes recorded it."""
NOT_NEEDED = "to go on from a snapshot does not need it"
_AS_YOU_WISH = "no last snapshot: as you wish"
RETRY_S = 0.01
"""How long to wait, in seconds, before trying again while a pipeline takes another snapshot."""


class Plan(SupervisorConfig, frozen=True, kw_only=True):
    """How to run a system: what the options say.

    Attributes:
        every_s: the interval of periodic snapshots in seconds; None for none.
        initiators: who initiates them, in turn.
        for_s: how long to run, in seconds; None until a signal, or until `until` holds.
        is_json: whether to write events as JSON to stdout.
        until: the stable predicate whose truth ends the run, if any.
        keep_count: all but this many newest snapshots are removed; None keeps all.
    """

    every_s: float | None
    initiators: tuple[ProcessId, ...] = ()
    for_s: float | None = None
    is_json: bool = False
    until: str | None = None
    keep_count: int | None = None


class Stop:
    """SIGINT, SIGTERM and SIGHUP as futures: the first signal asks to stop, the second to hurry.

    A terminal that is closed sends SIGHUP twice, from its shell and from the kernel: SIGHUP only
    asks to stop. It stays ignored where ``nohup`` lets it be.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        self.urged: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.ask)

    def ask(self) -> None:
        """Ask to stop, as the first signal does."""
        if not self.asked.done():
            self.asked.set_result(None)

    def _signalled(self) -> None:
        if self.asked.done() and not self.urged.done():
            self.urged.set_result(None)
        self.ask()


async def keep_running(
    system: Supervisor, plan: Plan, narrator: Narrator, watch: Watch | None
) -> bool:
    """Start `system`, run it as `plan` says, and stop it; `watch` says whether it may be over.

    Returns:
        False if work was lost that the last snapshot should have kept.

    Raises:
        StillframeError: it cannot start, or cannot go on.
    """
    stop = Stop()
    narrator.on_unwritten = stop.ask
    # Print this only now: once it is read, a signal must stop the system in order.
    narrator.say(f"this command supervises the system of {system.store.path} until it is stopped")
    for damage in system.store.history.damages:
        narrator.say(f"warning: {damage}; {NOT_NEEDED}")
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.ensure_future(stack.enter_async_context(system))
        await _first(starting, stop.asked, timeout_s=NOTICE_S)
        if not starting.done() and not stop.asked.done():
            narrator.say(f"waiting for {system.waiting_for}")
            await _first(starting, stop.asked)
        if not starting.done() and system.is_taking_over:
            # These processes hold work that no snapshot has: they come back before they are ended.
            awaited = f"waiting for {system.waiting_for}, to stop after one last snapshot"
            narrator.say(f"{awaited}; Ctrl-C stops without it")
            await _first(starting, stop.urged)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            if system.is_taking_over:
                narrator.say(_AS_YOU_WISH)
            return True
        starting.result()
        await stack.enter_async_context(serve_commands(system))
        stack.enter_context(narrator.showing())
        async with _periodic_snapshots(system, plan, narrator), _watching(watch) as held:
            await _first(system.finished, stop.asked, *held, timeout_s=plan.for_s)
            for ended in (system.finished, *held):
                if ended.done():
                    ended.result()
        return await _take_last(system, plan, stop, narrator)


@contextlib.asynccontextmanager
async def _periodic_snapshots(
    system: Supervisor, plan: Plan, narrator: Narrator
) -> AsyncIterator[None]:
    if plan.every_s is None or plan.pipeline is not None:
        yield
        return
    taking = asyncio.ensure_future(
        trigger_periodically(
            system,
            every_s=plan.every_s,
            initiators=plan.initiators,
            emit=narrator.emit,
        )
    )
    try:
        yield
    finally:
        taking.cancel()
        # If the system has ended, that is what it says too.
        with contextlib.suppress(asyncio.CancelledError, StillframeError):
            await taking


@contextlib.asynccontextmanager
async def _watching(watch: Watch | None) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Give what ends when the predicate holds; nothing if none is asked for."""
    held = [] if watch is None else [asyncio.ensure_future(watch.held())]
    try:
        yield [*held]
    finally:
        for watching in held:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, StillframeError):
                await watching


async def _take_last(system: Supervisor, plan: Plan, stop: Stop, narrator: Narrator) -> bool:
    """Take the last snapshot; return False if there is none that can be restored, which is said."""
    narrator.say("stopping after one last snapshot; Ctrl-C stops without it")
    taking = asyncio.ensure_future(_last_snapshot(system, plan))
    # Those in progress may take as long as it, and both have deadlines: only the disk has none.
    limit_s = 2 * plan.timeout_s + WRITE_S
    await _first(taking, stop.urged, timeout_s=limit_s)
    if taking.done():
        error = taking.exception()
        if system.finished.done():
            system.finished.result()
        if error is None and not isinstance(taking.result(), Abandoned):
            return True
        why = str(taking.result() if error is None else error)
    else:
        taking.cancel()
        if stop.urged.done():
            narrator.say(_AS_YOU_WISH)
            return True
        why = f"it took longer than {quantities.duration(limit_s)}"
    narrator.say(f"no last snapshot: {why}; {_loss(system, plan)}")
    return False


def _loss(system: Supervisor, plan: Plan) -> str:
    """Say what a system that has no last snapshot loses."""
    if plan.pipeline is not None:
        return f"what was done since the newest snapshot of {plan.pipeline} is lost"
    try:
        current = system.store.current()
    except StillframeError as error:
        return f"what was done since the last snapshot is lost: {error}"
    since = "all that was done" if current is None else f"what was done since {current.id}"
    return f"{since} is lost"


async def _last_snapshot(system: Supervisor, plan: Plan) -> object:
    if plan.pipeline is None:
        return await system.last_snapshot(plan.initiators[0])
    loop, pipeline = asyncio.get_running_loop(), Pipeline(plan.pipeline)
    until = loop.time() + plan.timeout_s
    while True:
        try:
            return await asyncio.to_thread(
                pipeline.snapshot, Mode.UNALIGNED, timeout_s=plan.timeout_s
            )
        except Unavailable:
            # Another snapshot is being taken, and it began before the system was to stop.
            if loop.time() > until:
                raise
            await asyncio.sleep(RETRY_S)


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
