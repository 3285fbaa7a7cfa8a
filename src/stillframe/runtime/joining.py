"""Keeps one process of a system running on this machine, for as many epochs as the system lives.

Each epoch has an operating-system process of its own, as on the coordinator's machine: what an
epoch leaves in memory ends with it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stillframe.runtime.child import EXIT_NOT_LET_IN, Launch
from stillframe.runtime.children import LOG_END_S, Children
from stillframe.runtime.forking import ForkServer

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
STEADY_S = 10.0
"""A process that ran for so long did not fail in a row."""


async def stay_joined(
    launch: Launch, stop: asyncio.Future[None], emit: Callable[[str, str], None]
) -> int:
    """Run the process of `launch` until `stop` is done; return the code to exit with.

    Args:
        launch: what it must know; it is elsewhere than the coordinator.
        stop: done when somebody wants it to end.
        emit: takes what happens (``Started``, ``NotShared``, ``Ended``, ``Stopped``), and the same
            in words.
    """
    loop, process = asyncio.get_running_loop(), launch.me.process
    server = ForkServer(launch.reference)
    grace_s = LOG_END_S if launch.traces.are_written else 0.0
    children = Children(server, lambda _: None, grace_s=grace_s)
    pause_s, was_in = PAUSE_S_MIN, False
    try:
        while True:
            began = loop.time()
            emit("Started", f"looking for the coordinator at {launch.coordinator}")
            await _first(children.spawn(process), stop)
            if (detail := server.newly_unshared()) is not None:
                emit("NotShared", detail)
            if not stop.done():
                children.launch(launch)
                await _first(children.running[process].wait(), stop)
            if stop.done():
                emit("Stopped", "stopped; the system waits until it joins again")
                return 0
            was_in = was_in or children.running[process].returncode != EXIT_NOT_LET_IN
            if not was_in:
                return EXIT_NOT_LET_IN
            pause_s = PAUSE_S_MIN if loop.time() - began > STEADY_S else pause_s
            emit("Ended", f"this epoch is over for it; joining again in {pause_s:.1f} s")
            await _first(asyncio.sleep(pause_s), stop)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
    finally:
        await children.end()
        await server.close()


async def _first(wait: Coroutine[Any, Any, Any], stop: asyncio.Future[None]) -> None:
    waiting = asyncio.ensure_future(wait)
    try:
        await asyncio.wait({waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if waiting.done():
        waiting.result()
