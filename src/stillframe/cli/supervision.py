"""Keeps a system running until it is asked to stop, and stops it with one last snapshot."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import msgspec

from stillframe.cli import quantities
from stillframe.cli.narration import Narrator
from stillframe.cli.watching import Watch
from stillframe.errors import StillframeError
from stillframe.model import ProcessId
from stillframe.pipeline.pipeline import Pipeline
from stillframe.protocol.aligner import Mode
from stillframe.protocol.policy import Policy
from stillframe.runtime.commands import serve_commands
from stillframe.runtime.periodic import take_periodically
from stillframe.runtime.site import ALL_HERE, Site
from stillframe.runtime.supervisor import Supervisor
from stillframe.runtime.traces import NO_TRACES, Traces

LAST_SNAPSHOT_S = 5.0
"""So long may the last snapshot take, in seconds; whoever pressed Ctrl-C wants to be gone."""


class Plan(msgspec.Struct, frozen=True):
    """How to run a system: what the options say.

    `every_s` None takes no periodic snapshots; `for_s` None runs until somebody says stop, or until
    the stable predicate `until` holds, if there is one.
    `pipeline` is the directory of one in which processes of the system are services: then it takes
    the snapshots. `site` is what of the system is on this machine. With `may_migrate` it may go on
    from a snapshot that was taken of other code.
    All but the newest `keep_count` snapshots are removed; None keeps all.
    `traces` are what the processes write of themselves.
    `policy` and `tolerated_count` are about snapshots that are abandoned, as ``Supervisor`` has it.
    """

    every_s: float | None
    initiators: tuple[ProcessId, ...]
    timeout_s: float
    for_s: float | None
    is_json: bool
    pipeline: Path | None = None
    until: str | None = None
    marker_wait_s: float = 0.0
    may_migrate: bool = False
    keep_count: int | None = None
    site: Site = ALL_HERE
    policy: Policy = Policy.ABANDON
    tolerated_count: int | None = None
    traces: Traces = NO_TRACES


class Stop:
    """SIGINT, SIGTERM and SIGHUP as futures: the first signal asks to stop, the second to hurry."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        self.urged: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        wanted = self.urged if self.asked.done() else self.asked
        if not wanted.done():
            wanted.set_result(None)


async def keep_running(
    system: Supervisor, plan: Plan, narrator: Narrator, watch: Watch | None
) -> None:
    """Start `system`, run it as `plan` says, and stop it; `watch` says whether it may be over.

    Raises:
        StillframeError: it cannot start, or cannot go on.
    """
    stop = Stop()
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.ensure_future(stack.enter_async_context(system))
        await _first(starting, stop.asked)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        starting.result()
        await stack.enter_async_context(serve_commands(system))
        stack.enter_context(narrator.showing())
        async with _periodic_snapshots(system, plan, narrator), _watching(watch) as held:
            await _first(system.finished, stop.asked, *held, timeout_s=plan.for_s)
            for ended in (system.finished, *held):
                if ended.done():
                    ended.result()
        await _take_last(system, plan, stop, narrator)


@contextlib.asynccontextmanager
async def _periodic_snapshots(
    system: Supervisor, plan: Plan, narrator: Narrator
) -> AsyncIterator[None]:
    if plan.every_s is None or plan.pipeline is not None:
        yield
        return
    taking = asyncio.ensure_future(
        take_periodically(
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


async def _take_last(system: Supervisor, plan: Plan, stop: Stop, narrator: Narrator) -> None:
    narrator.say("stopping after one last snapshot; Ctrl-C stops without it")
    taking = asyncio.ensure_future(_last_snapshot(system, plan))
    await _first(taking, stop.urged, timeout_s=LAST_SNAPSHOT_S)
    if taking.done():
        # What became of it was told by an event, unless the system could not even begin it.
        if (error := taking.exception()) is not None:
            narrator.say(f"no last snapshot: {error}")
        if system.finished.done():
            system.finished.result()
        return
    taking.cancel()
    limit = quantities.duration(LAST_SNAPSHOT_S)
    why = "as you wish" if stop.urged.done() else f"it took longer than {limit}"
    narrator.say(f"no last snapshot: {why}")


def _last_snapshot(system: Supervisor, plan: Plan) -> Awaitable[object]:
    if plan.pipeline is None:
        return system.snapshot(plan.initiators[0])
    pipeline = Pipeline(plan.pipeline)
    return asyncio.to_thread(pipeline.snapshot, Mode.UNALIGNED, timeout_s=LAST_SNAPSHOT_S)


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
