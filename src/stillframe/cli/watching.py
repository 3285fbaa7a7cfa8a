"""``stillframe run --until``: judges the snapshots of a running system as they are published."""

import asyncio
from pathlib import Path

from stillframe.cli.detection import Look, look_for
from stillframe.detect.predicate import Sighting
from stillframe.runtime import events
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology


class Watch:
    """Asks a stable predicate of each snapshot, in a thread beside the system.

    Of several that were published meanwhile it asks the newest: what held in another holds there.

    Args:
        name: the predicate, as ``detect`` takes it.
        path: of the store.
        topology: of the system.
    """

    def __init__(self, name: str, path: Path, topology: Topology) -> None:
        self.name = name
        self.newest: Sighting | None = None
        self._path = path
        self._topology = topology
        self._look: Look | None = None
        self._published: asyncio.Queue[Entry] = asyncio.Queue()

    def saw(self, event: events.Event) -> None:
        """Take notice of what happened to the system."""
        if isinstance(event, events.SnapshotPublished):
            self._published.put_nowait(event.entry)

    async def held(self) -> Sighting:
        """Return the first sighting in which the predicate holds.

        Raises:
            StillframeError: a snapshot cannot be judged.
        """
        while True:
            entry = await self._published.get()
            while not self._published.empty():
                entry = self._published.get_nowait()
            self.newest = await asyncio.to_thread(self._judge, entry)
            if self.newest.verdict.holds:
                return self.newest

    def judge_last(self) -> Sighting | None:
        """Return the newest sighting there is, when the system has stopped: its last snapshot may
        not have been judged. None if no snapshot was published at all."""
        entries = Store.open(self._path).entries()
        if entries and (self.newest is None or not self.newest.verdict.holds):
            self.newest = self._judge(entries[-1])
        return self.newest

    def _judge(self, entry: Entry) -> Sighting:
        if self._look is None:
            self._look = look_for(self.name, Store.open(self._path), lambda: self._topology)
        return self._look(entry)
