"""Systems of operating-system processes, watched by their events."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stillframe.imports import load_topology
from stillframe.model import Snapshot
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store

Kind = TypeVar("Kind", bound=events.Event)


def program(name: str) -> str:
    """Return the reference of a topology of ``programs.py``."""
    return f"tests.runtime.programs:{name}"


def new_store(directory: Path, name: str) -> Store:
    """Make a store for a topology of ``programs.py``."""
    description = load_topology(program(name)).description
    return Store.create(directory / "store", description=description, reference=program(name))


class Watch:
    """What happened so far; ``until`` waits for more."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._news = asyncio.Event()

    def emit(self, event: events.Event) -> None:
        """Take an event."""
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for events until `condition` holds."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def until_epoch(self, epoch: int) -> events.SystemRunning:
        """Wait until the system runs in `epoch`."""
        await self.until(lambda: any(e.epoch == epoch for e in self.of(events.SystemRunning)))
        return next(e for e in self.of(events.SystemRunning) if e.epoch == epoch)


async def take(system: Supervisor) -> Snapshot:
    """Take a snapshot that must be published, and read it from the store."""
    outcome = await system.snapshot()
    assert isinstance(outcome, SnapshotEntry), str(outcome)
    return system.store.load(outcome.id)
