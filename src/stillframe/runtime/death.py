"""How a process died, in words."""

import asyncio
import contextlib
import signal

import msgspec

from stillframe.model import ProcessId
from stillframe.runtime import control, events

_EXIT_WAIT_S = 1.0


class Death(msgspec.Struct, frozen=True):
    """A process whose connection ended; `failure` is what it said last, if it said why."""

    process: ProcessId
    failure: control.Failure | None


async def describe_death(
    death: Death, child: asyncio.subprocess.Process | None
) -> events.ProcessDied:
    """Return what is known of a death; `child` is the process, if we had started it."""
    if death.failure is not None:
        return events.ProcessDied(death.process, death.failure.detail, death.failure.story)
    if child is None:
        return events.ProcessDied(death.process, "its connection to the coordinator ended")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_WAIT_S):
            await child.wait()
    code = child.returncode
    if code is None:
        cause = "its connection to the coordinator ended"
    elif code < 0:
        cause = f"it was ended by {signal.Signals(-code).name}"
    else:
        cause = f"it exited with code {code}"
    return events.ProcessDied(death.process, cause)
