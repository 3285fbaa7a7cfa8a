"""Snapshots at a fixed interval, one at a time."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle

from stillframe.model import Abandoned, ProcessId
from stillframe.runtime import events
from stillframe.runtime.coordinator import PENDING_COUNT_MAX
from stillframe.runtime.supervisor import Supervisor
from stillframe.store.manifest import Entry


async def take_periodically(
    system: Supervisor,
    *,
    every_s: float,
    initiators: Sequence[ProcessId],
    emit: Callable[[events.Event], None],
) -> None:
    """Take a snapshot every `every_s` seconds until cancelled or until the system ends.

    One that is due while the one before is still under way is skipped, and said so: if snapshots
    take longer than the interval, they must not pile up. While the system is being restored none
    is due.

    Args:
        system: a system that runs.
        every_s: the interval, in seconds.
        initiators: who begins, in turn.
        emit: takes `SnapshotSkipped`.

    Raises:
        StillframeError: the system has ended.
    """
    loop = asyncio.get_running_loop()
    turns = cycle(initiators)
    due = loop.time()
    while True:
        await system.until_running()
        assert system.coordinator is not None
        result: asyncio.Future[Entry | Abandoned] | None = None
        under_way = system.coordinator.under_way
        if len(under_way) < PENDING_COUNT_MAX:
            result = system.coordinator.begin(next(turns))
            under_way = system.coordinator.under_way
        else:
            emit(events.SnapshotSkipped(under_way[0]))
        while True:
            due = max(due + every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if result is None or result.done():
                break
            emit(events.SnapshotSkipped(under_way[-1]))
