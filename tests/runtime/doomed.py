"""A supervisor that will be killed, or kills itself at a named moment of its second snapshot.

    python -m tests.runtime.doomed DIRECTORY TOPOLOGY [MOMENT [ORPHANED_S [FRAGMENTS]]]

It prints what its processes are to the operating system when the system runs, and takes a first
snapshot if there is a MOMENT; "waits" is none of a second.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillframe.runtime.control import ORPHANED_S, OutputDirs
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store import snapshot_directory
from stillframe.store.history import History, HistoryEvent, SnapshotBegan, SnapshotPublished
from stillframe.store.store import Store
from tests.runtime.watch import new_store, program, take


def die(*_: object) -> None:
    """End at once, as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def dies_after(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with an end to everything behind it."""

    def last(*arguments: Any) -> None:
        call(*arguments)
        die()

    return last


def dies_after_noting(kind: type[HistoryEvent]) -> None:
    """Die when the history says that something of `kind` happened."""
    append = History.append

    def last(history: History, what: HistoryEvent) -> None:
        append(history, what)
        if isinstance(what, kind):
            die()

    setattr(History, "append", last)  # noqa: B010 - mypy holds methods for constant


MOMENTS: dict[str, Callable[[], None]] = {
    "waits": lambda: None,
    "numbered": lambda: dies_after_noting(SnapshotBegan),
    "begun": lambda: setattr(Coordinator, "begin", dies_after(Coordinator.begin)),
    "a part is in": lambda: setattr(
        Coordinator, "_on_fragment", dies_after(Coordinator._on_fragment)
    ),
    "is written": lambda: setattr(snapshot_directory, "publish_directory", die),
    "published": lambda: setattr(Store, "publish", dies_after(Store.publish)),
    "said": lambda: dies_after_noting(SnapshotPublished),
}
"""What is put in the way of the second snapshot, so that it gets so far and no further."""


async def main(
    directory: str, name: str, moment: str = "", orphaned_s: str = "", fragments: str = ""
) -> None:
    """Run until killed."""
    store = new_store(Path(directory), name)
    orphaned_s_max = float(orphaned_s or ORPHANED_S)
    traces = OutputDirs(fragments=fragments or None)
    async with Supervisor(
        program(name), store, SupervisorConfig(orphaned_s=orphaned_s_max, outputs=traces)
    ) as system:
        if moment:
            await take(system)
        pids = [f"{process}={child.pid}" for process, child in system.children.items()]
        sys.stdout.write(" ".join(pids) + "\n")
        sys.stdout.flush()
        if moment:
            MOMENTS[moment]()
            if moment != "waits":
                await system.snapshot()
        await system.finished


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
