"""``stillframe run --until``: judges the snapshots of a running system as they are published."""

import asyncio
import contextlib
import threading
from pathlib import Path

from stillframe.detect.predicate import Sighting
from stillframe.detect.registry import Evaluate, if_present, resolve_predicate
from stillframe.runtime import events
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

LAST_LOOK_S = 5.0
"""So long the last answer may take, in seconds; the system has stopped already."""


class Watch:
    """Asks a stable predicate of each snapshot, in a thread beside the system.

    That thread may take as long as it likes: nobody waits for it when the system is to stop.

    Args:
        name: the predicate, as ``detect`` takes it.
        path: of the store.
        topology: of the system.
    """

    def __init__(self, name: str, path: Path, topology: Topology) -> None:
        self.name = name
        self.sightings: list[Sighting] = []
        self._path = path
        self._topology = topology
        self._look: Evaluate | None = None
        self._epoch = 0
        self._published: asyncio.Queue[Entry] = asyncio.Queue()
        self._asking = threading.Lock()

    def saw(self, event: events.Event) -> None:
        """Take notice of what happened to the system."""
        match event:
            case events.SnapshotPublished(entry):
                self._published.put_nowait(entry)
            case events.EpochBegan(epoch):
                self._epoch = epoch  # what held before a restore need not hold any more

    async def held(self) -> Sighting:
        """Return the first sighting in which the predicate holds.

        Raises:
            StillframeError: a snapshot cannot be judged.
        """
        while True:
            entry = await self._published.get()
            seen = await self._beside(entry)
            if seen is not None and seen.verdict.holds and seen.epoch == self._epoch:
                return seen

    def look_at_last(self) -> bool:
        """Judge the last snapshot when the system has stopped; return whether that was done.

        What takes longer than a few seconds, also of one before, is not waited for.

        Raises:
            StillframeError: it cannot be judged.
        """
        failures: list[BaseException] = []

        def go() -> None:
            try:
                entries = Store.open(self._path).entries()
                with self._asking:
                    if entries and all(seen.snapshot != entries[-1].id for seen in self.sightings):
                        self._judge(entries[-1])
            except BaseException as error:  # noqa: BLE001 - raised again where somebody sees it
                failures.append(error)

        thread = threading.Thread(target=go, name="predicate", daemon=True)
        thread.start()
        thread.join(LAST_LOOK_S)
        if failures:
            raise failures[0]
        return not thread.is_alive()

    async def _beside(self, entry: Entry) -> Sighting | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sighting | None] = loop.create_future()

        def finish(seen: Sighting | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(seen)
            else:
                done.set_exception(error)

        def go() -> None:
            seen, failure = None, None
            with self._asking:
                try:
                    seen = self._judge(entry)
                except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                    failure = error
            with contextlib.suppress(RuntimeError):  # the system has stopped meanwhile
                loop.call_soon_threadsafe(finish, seen, failure)

        threading.Thread(target=go, name="predicate", daemon=True).start()
        return await done

    def _judge(self, entry: Entry) -> Sighting | None:
        """Ask of a snapshot; None if it was dropped while one before was asked of."""
        if self._look is None:
            self._look = resolve_predicate(
                self.name, Store.open(self._path), lambda: self._topology
            )
        seen = if_present(entry, self._look)
        if seen is not None:
            self.sightings.append(seen)
        return seen
