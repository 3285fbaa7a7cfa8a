"""Follows one system, while it runs and afterwards, and tells the page what is new.

It asks the running system over the socket for commands, and reads what the store holds; the system
knows nothing of it, and nothing is asked while nobody looks.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from stillframe.errors import StillframeError, Unavailable
from stillframe.model import ProcessId, SnapshotId
from stillframe.pages.store_documents import diff_document, snapshot_document
from stillframe.protocol.holdup import SENTENCE_COUNT_MAX
from stillframe.runtime.commands import Observed, observe
from stillframe.runtime.os_process import is_stopped
from stillframe.runtime.running import supervisor_of
from stillframe.runtime.waves import WAVE_COUNT_MAX
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Description
from stillframe.watch import picture
from stillframe.watch.acting import act
from stillframe.watch.families import Families
from stillframe.watch.feed import Feed, encoded
from stillframe.watch.happenings import Happenings
from stillframe.watch.measuring import SYSTEM, Measuring
from stillframe.watch.metrics import Known, tell_system, tell_tracing, tell_watching
from stillframe.watch.shelf import Shelf
from stillframe.watch.traced import Tracing
from stillframe.watch.verdicts import Judge, Judged
from stillframe.watch.wishes import Wish

LOOK_S = 0.5
"""So long after one look at the running system comes the next, in seconds."""
LOOK_SOON_S = 0.1
"""The same while a snapshot is under way."""
READ_S = 0.5
"""So long after one look at the store comes the next, in seconds."""
PAUSE_S_MIN = 0.02
"""The same at least when traces are made of snapshots that come quickly."""
LOOK_S_MAX = 5.0
"""A system that has not answered by then does not, in seconds."""
FRESH_S = 0.1
"""What the system said is told again to whoever scrapes if it is not older, in seconds."""
HAPPENING_COUNT_MAX = 200
"""So many happenings are kept for those who come later."""
JUDGED_COUNT_MAX = 300
"""Of so many snapshots the verdicts are kept; so many points a line of totals has."""
OVERLAP_COUNT_MAX = 64
"""The snapshot that was published last is among so many with the highest numbers."""
BACKLOG_COUNT_MAX = 50
"""When more snapshots than this wait for a verdict, the oldest get none."""


class Observer:
    """What is known of one system.

    Args:
        store: open for reading.
        judge: says what is in a snapshot.
        log: directory of the event log; None if there is none.
        tracing: makes traces of the snapshots; None if nobody wants any.

    Attributes:
        feed: tells the page.
        observed: the last answer of the running system; None if there was none.
        unheard: how its processes are then: stopped; starting, if its supervisor takes no commands
            yet, or no more; silent, if it did not answer, or nothing that can be read.
        why_not: why there was none, for people.
        judged: the latest verdicts, by snapshot.
        happenings: the last of them, the oldest first.
    """

    def __init__(
        self, store: Store, judge: Judge, log: Path | None, tracing: Tracing | None = None
    ) -> None:
        self.store = store
        self.log = log
        self.feed = Feed()
        self.observed: Observed | None = None
        self.unheard = picture.STOPPED
        self.why_not = ""
        self.judged: dict[str, Judged] = {}
        self.shelf = Shelf(store)
        self.happenings: deque[dict[str, Any]] = deque(maxlen=HAPPENING_COUNT_MAX)
        self._history = Happenings(store.path)
        self.observed_at = 0.0
        self._judge = judge
        self._tracing = tracing
        self._naive: deque[tuple[float, dict[str, int | float | str]]] = deque(
            maxlen=JUDGED_COUNT_MAX
        )
        self._waiting: deque[SnapshotId] = deque(maxlen=BACKLOG_COUNT_MAX)
        self._news = asyncio.Event()
        self._is_wanted = asyncio.Event()
        self._documents = ThreadPoolExecutor(1, thread_name_prefix="documents")
        self._looking, self._reading = asyncio.Lock(), asyncio.Lock()
        self._looked = self._read_began = -FRESH_S
        self._is_first = True
        self._savepoints: dict[str, SnapshotId] = {}
        self.measuring = Measuring()

    @property
    def description(self) -> Description:
        """The topology that the system has now."""
        return self.store.description

    async def run(self) -> None:
        """Follow the system until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_again_and_again())
                tasks.create_task(self._read_again_and_again())
                tasks.create_task(self._judge_one_by_one())
                if self._tracing is not None:
                    tasks.create_task(self._trace_again_and_again(self._tracing))
        finally:
            self.feed.close()

    def want(self) -> None:
        """Somebody looks: go on if nothing was asked for a while."""
        self._is_wanted.set()

    async def first(self) -> list[bytes]:
        """Return what a page that comes now must be told besides what holds."""
        self.feed.hold("about", self.about())
        rows = await self.rows_before(None)
        history = {
            "naive": [[at, totals] for at, totals in self._naive],
            "judged": [picture.judged_document(judged) for judged in self.judged.values()],
            "happenings": list(self.happenings),
        }
        return [encoded("snapshots", self._listed(rows)), encoded("past", history)]

    async def rows_before(self, number: int | None) -> list[dict[str, Any]]:
        """Return what the list says of the newest snapshots, or of those with lower numbers."""
        return await asyncio.to_thread(self.shelf.rows_before, number)

    async def snapshot(self, name: str) -> Any:
        """Return the document of the snapshot that `name` names."""
        return await self._reader(self._document, name)

    def _document(self, name: str) -> dict[str, Any]:
        return snapshot_document(self.store, self.store.find(name), log=self.log)

    async def comparison(self, first: str, second: str) -> Any:
        """Return the document that compares two snapshots."""
        ids = self.store.find(first), self.store.find(second)
        return await self._reader(diff_document, self.store, *ids)

    async def _reader(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Make a document apart from everything else: a few large ones must not stop the news."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._documents, make, *arguments)

    async def act(self, wish: Wish) -> dict[str, Any]:
        """Do what somebody wishes; see ``acting.act``."""
        return await act(self.store, wish)

    def about(self) -> dict[str, Any]:
        """Return what does not change while the system runs."""
        description = self.description
        places = {process: index for index, process in enumerate(description.processes)}
        return {
            "kind": "system",
            "store": str(self.store.path),
            "processes": [[name, kind] for name, kind in description.processes.items()],
            "channels": [[places[c.source], places[c.target]] for c in description.channels],
        }

    async def metrics(self) -> Families:
        """Look at the system, unless that was done just now, and at the store, and return what is
        known; whoever asks meanwhile waits for the same look."""
        asked = time.monotonic()
        async with self._looking:
            if time.monotonic() - self._looked >= FRESH_S:
                await self._look()
        async with self._reading:
            if self._read_began < asked:
                await self._read()
        judged = max(self.judged.values(), key=lambda judged: judged.at, default=None)
        known = Known(
            description=self.description,
            epoch=self.store.epoch if self.observed is None else self.observed.epoch,
            observed=self.observed,
            unheard=self.unheard,
            at=self.measuring.looked_at,
            dead=self._history.dead,
            tally=self._history.tally,
            snapshots=self.measuring.snapshots,
            channels=self.measuring.channels,
            judged=judged,
            snapshot_count=self.shelf.count,
            savepoint_count=len(self._savepoints),
        )
        families = Families()
        tell_system(families, known)
        troubles = {"judge": judged is not None and bool(judged.why_not)}
        if self._tracing is not None:
            troubles["traces"] = self._tracing.sender.is_troubled
            tell_tracing(families, self._tracing)
        tell_watching(families, self.measuring.watching(self.feed.listener_count, **troubles))
        return families

    async def look(self) -> None:
        """Ask the running system how it is, and tell the page."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        before, began = self.observed, time.monotonic()
        observed, unheard, why_not = None, picture.SILENT, ""
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                observed = self._merged(await observe(self.store.path, self._waves_after))
        except Unavailable as error:
            unheard, why_not = self._presence(), str(error)
        except TimeoutError:
            why_not = f"the system did not answer in {LOOK_S_MAX:.0f} s"
        except StillframeError as error:
            why_not = f"the system cannot be asked: {error}"
        # All at once: whoever is told meanwhile hears of this look, or of the one before.
        self.observed, self.unheard, self.why_not = observed, unheard, why_not
        self.observed_at = time.time()
        self._looked = time.monotonic()
        is_silent = observed is None and unheard == picture.SILENT
        self.measuring.looked(observed, self._looked - began, is_trouble=is_silent)
        self.feed.hold("about", self.about())
        same = before is not None and self.observed is not None and before.is_running
        if not same or before is None or before.epoch != self.observed_epoch:
            before = None
        self.feed.hold("system", self._system(before))
        if self.observed is not None and self.observed.waves:
            self.feed.hold("wave", picture.wave_document(self.observed.waves[-1]))

    def _presence(self) -> str:
        """Return how the processes of a system are that took no question: there was no socket, or
        it hung up."""
        supervisor = supervisor_of(self.store.path)
        if supervisor is None:
            return picture.STOPPED
        return picture.SILENT if is_stopped(supervisor) else picture.STARTING

    @property
    def _waves_after(self) -> float:
        """When the last snapshot ended whose markers we know of."""
        waves = () if self.observed is None else self.observed.waves
        return max((wave.ended_at or 0.0 for wave in waves), default=0.0)

    def _merged(self, observed: Observed) -> Observed:
        """Return an answer with the waves that were told before and are not told again."""
        known = () if self.observed is None else self.observed.waves
        waves = {wave.snapshot: wave for wave in (*known, *observed.waves)}
        latest = tuple(waves.values())[-WAVE_COUNT_MAX:]
        return msgspec.structs.replace(observed, waves=latest)

    @property
    def observed_epoch(self) -> int | None:
        """The epoch of the last answer."""
        return None if self.observed is None else self.observed.epoch

    def _system(self, before: Observed | None) -> dict[str, Any]:
        observed, description = self.observed, self.description
        dead: frozenset[ProcessId] = self._history.dead
        document: dict[str, Any] = {
            "at": self.observed_at,
            "epoch": self.observed_epoch,
            "is_running": observed is not None and observed.is_running,
            "unheard": self.unheard if observed is None else "",
            "why_not": self.why_not,
            "statuses": picture.statuses(description, observed, dead, unheard=self.unheard),
        }
        if observed is None or not observed.is_running:
            return document
        naive = picture.exactly(picture.naive_totals(description, observed))
        if naive:
            self._naive.append((self.observed_at, naive))
        return document | {
            "channels": picture.channel_columns(description, observed, before),
            "under_way": picture.under_way(observed)[:SENTENCE_COUNT_MAX],
            "naive": naive,
            "quantities_trouble": picture.quantities_trouble(observed),
        }

    def _listed(self, rows: list[dict[str, Any]], gone: list[str] | None = None) -> dict[str, Any]:
        return {"count": self.shelf.count, "rows": rows, "gone": gone or []}

    async def _look_again_and_again(self) -> None:
        while True:
            self._is_wanted.clear()
            if not self.feed.listener_count:
                await self._is_wanted.wait()
            await self.look()
            is_moving = self.observed is not None and bool(self.observed.under_way)
            await asyncio.sleep(LOOK_SOON_S if is_moving else LOOK_S)

    async def _trace_again_and_again(self, tracing: Tracing) -> None:
        """Look so often that the system knows the way of the markers of all that ended since."""
        pause_s = LOOK_S
        while True:
            async with self._reading:
                await self._read()
            ended = dict(self._history.ended)
            await self.look()
            if not self.measuring.troubles[SYSTEM]:
                count = await asyncio.to_thread(tracing.follow, ended, self.observed)
                is_close = count > WAVE_COUNT_MAX // 4
                pause_s = max(pause_s / 2, PAUSE_S_MIN) if is_close else min(pause_s * 1.2, LOOK_S)
            await asyncio.sleep(pause_s)

    async def _read_again_and_again(self) -> None:
        while True:
            async with self._reading:
                await self._read()
            await asyncio.sleep(READ_S)

    async def _read(self) -> None:
        """Look what is new in the store, and tell the page."""
        self._read_began = time.monotonic()
        is_first, savepoints = self._is_first, self._savepoints
        new, gone, happenings, named = await asyncio.to_thread(self._read_store)
        told = {known["sentence"] for known in self.happenings if known["kind"] == "trouble"}
        happenings = [h for h in happenings if h["sentence"] not in told]
        self.happenings.extend(happenings)
        if happenings:
            self.feed.say("happenings", happenings)
        if (new or gone or named != savepoints) and not is_first:
            changed = {*named.values(), *savepoints.values()}
            chosen = dict.fromkeys((*new[-BACKLOG_COUNT_MAX:], *sorted(changed)))
            there = await asyncio.to_thread(self.shelf.rows, chosen)
            self.feed.say("snapshots", self._listed(there, [str(s) for s in gone]))
        for snapshot in gone:
            self.judged.pop(str(snapshot), None)
        if new:
            self._waiting.extend(new[-BACKLOG_COUNT_MAX:])
            self._news.set()
        self._is_first, self._savepoints = False, named
        self.feed.open()

    def _read_store(
        self,
    ) -> tuple[list[SnapshotId], list[SnapshotId], list[dict[str, Any]], dict[str, SnapshotId]]:
        """Look what is new in the store; what cannot be read is told as something that happened."""
        happenings: list[dict[str, Any]] = []
        new: list[SnapshotId] = []
        gone: list[SnapshotId] = []
        named: dict[str, SnapshotId] = {}
        entries: list[Entry] = []
        is_trouble = False
        try:
            happenings = self._history.look()
            is_trouble = self._history.is_damaged
            new, gone = self.shelf.look()
            named = self.store.savepoints
            entries = self.shelf.entries(new[-OVERLAP_COUNT_MAX:] if self._is_first else new)
        except StillframeError as error:
            is_trouble = True
            happenings.append({"at": time.time(), "kind": "trouble", "sentence": str(error)})
        self.measuring.read(entries, is_new=not self._is_first, is_trouble=is_trouble)
        return new, gone, happenings, named

    async def _judge_one_by_one(self) -> None:
        while True:
            self._news.clear()
            while self._waiting:
                snapshot = self._waiting.pop()  # the newest first: that is what people look at
                judged = await asyncio.to_thread(self._judge.judge, snapshot)
                if judged is not None:
                    self.judged[judged.snapshot] = judged
                    while len(self.judged) > JUDGED_COUNT_MAX:
                        del self.judged[next(iter(self.judged))]
                    self.feed.say("judged", picture.judged_document(judged))
            await self._news.wait()
