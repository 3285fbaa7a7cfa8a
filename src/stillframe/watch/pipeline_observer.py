"""Follows one pipeline, while its programs run and afterwards, and tells the page what is new.

It reads the pipeline's files and asks for its locks, as the commands do; no program of the pipeline
knows of it, and Spark is not needed.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.model import Abandoned, SnapshotId
from stillframe.pages.pipeline_documents import pipeline_diff_document, pipeline_snapshot_document
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.progress import Progress
from stillframe.watch import pipeline_picture as picture
from stillframe.watch.families import Families
from stillframe.watch.feed import Feed, encoded
from stillframe.watch.metrics import Watching, tell_watching
from stillframe.watch.pipeline_acting import Over, act
from stillframe.watch.pipeline_look import Look, Looker
from stillframe.watch.pipeline_metrics import tell_pipeline
from stillframe.watch.pipeline_shelf import PipelineShelf
from stillframe.watch.wishes import Restore, Wish

LOOK_S = 0.5
"""So long after one look comes the next, in seconds."""
LOOK_SOON_S = 0.1
"""The same while a snapshot is under way."""
LOOK_SELDOM_S = 5.0
"""The same while nobody looks at the page: what happens then is told to those who come later."""
FRESH_S = 0.1
"""Whoever asks for metrics so long after a look is told what was seen then, in seconds."""
RATE_S = 5.0
"""Over so many seconds a rate is taken: a micro-batch appends all its records at once."""
PUBLISH_S = 1.0
"""A snapshot that is published is for a moment neither under way nor there."""
HAPPENING_COUNT_MAX = 200
"""So many happenings are kept for those who come later."""
NEW_COUNT_MAX = 50
"""Of so many new snapshots at once the rows are told; a page asks for the others."""


class PipelineObserver:
    """What is known of one pipeline.

    Args:
        path: its directory.

    Attributes:
        feed: tells the page.
        seen: how it was when somebody looked last; None if that could not be seen.
        shelf: its snapshots.
        happenings: the last of them, the oldest first.

    Raises:
        UsageError: there is no pipeline.
        Damaged, StoreError: its description was changed or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.pipeline = Pipeline(path)
        self.feed = Feed()
        self.seen: Look | None = None
        self.shelf = PipelineShelf(self.pipeline.path)
        self.happenings: deque[dict[str, Any]] = deque(maxlen=HAPPENING_COUNT_MAX)
        self._looker = Looker(self.pipeline.path)
        self._earlier: deque[Look] = deque()
        self._is_wanted = asyncio.Event()
        self._is_over = threading.Event()
        self._ended: tuple[Progress, float] | None = None
        self._told: set[SnapshotId] = set()
        self._is_restoring = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._documents = ThreadPoolExecutor(1, thread_name_prefix="documents")
        self._began_at = time.time()
        self._look_count = 0
        self._look_s = 0.0
        self._is_troubled = False

    async def run(self) -> None:
        """Follow the pipeline until this is cancelled."""
        try:
            while True:
                await self.look()
                with contextlib.suppress(TimeoutError):
                    self._is_wanted.clear()
                    async with asyncio.timeout(self._rest_s()):
                        await self._is_wanted.wait()
        finally:
            self._is_over.set()
            self.feed.close()

    def _rest_s(self) -> float:
        if not self.feed.listener_count:
            return LOOK_SELDOM_S
        return LOOK_S if self.seen is None or self.seen.progress is None else LOOK_SOON_S

    def want(self) -> None:
        """Somebody looks: go on if nothing was looked at for a while."""
        self._is_wanted.set()

    async def first(self) -> list[bytes]:
        """Return what a page that comes now must be told besides what holds."""
        past = {"naive": [], "judged": [], "happenings": list(self.happenings)}
        return [
            encoded("snapshots", self._listed(await self.rows_before(None))),
            encoded("past", past),
        ]

    async def rows_before(self, number: int | None) -> list[dict[str, Any]]:
        """Return what the list says of the newest snapshots, or of those with lower numbers."""
        return await asyncio.to_thread(self.shelf.rows_before, number)

    async def snapshot(self, name: str) -> Any:
        """Return the document of the snapshot that `name` names."""
        return await self._reader(self._document, name)

    def _document(self, name: str) -> dict[str, Any]:
        manifest = self.pipeline.find(name)
        is_current = False
        with contextlib.suppress(UsageError):  # there may be none of the present course
            is_current = manifest.snapshot == self.pipeline.latest().snapshot
        return pipeline_snapshot_document(manifest, is_current=is_current, root=self.pipeline.path)

    async def comparison(self, first: str, second: str) -> Any:
        """Return the document that compares two snapshots."""
        return await self._reader(self._comparison, first, second)

    async def _reader(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Make a document apart from everything else, and one at a time: it may be large."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._documents, make, *arguments)

    def _comparison(self, first: str, second: str) -> dict[str, Any]:
        before, after = self.pipeline.find(first), self.pipeline.find(second)
        return pipeline_diff_document(self.pipeline.path, before, after)

    async def act(self, wish: Wish) -> dict[str, Any]:
        """Do what somebody wishes; see ``pipeline_acting.act``."""
        # A restore holds the lock of everybody: who looks then would think that everybody runs.
        still = self._is_restoring if isinstance(wish, Restore) else contextlib.nullcontext()
        try:
            async with still:
                done, outcome = await asyncio.to_thread(act, self.pipeline, wish, self._is_over)
        except Over:
            raise Unavailable("'stillframe watch' ended, and the snapshot was given up") from None
        finally:
            self.want()
        if isinstance(outcome, Abandoned):
            self._told.add(outcome.snapshot)
            self._tell([{"at": time.time(), "kind": "abandoned", "sentence": str(outcome)}])
        return done

    async def metrics(self) -> Families:
        """Look at the pipeline, unless that was done just now, and return what is known."""
        if self.seen is None or time.time() - self.seen.at > FRESH_S:
            await self.look()
        families = Families()
        if self.seen is not None:
            await asyncio.to_thread(tell_pipeline, families, self.seen, self.shelf)
        tell_watching(families, self._watching())
        return families

    def _watching(self) -> Watching:
        return Watching(
            began_at=self._began_at,
            look_count=self._look_count,
            looked_at=0.0 if self.seen is None else self.seen.at,
            look_s=self._look_s,
            page_count=self.feed.listener_count,
            troubles={"pipeline": self._is_troubled},
        )

    async def look(self) -> None:
        """Look how the pipeline is, and tell the page."""
        async with self._looking:
            await self._look()
        self.feed.open()

    async def _look(self) -> None:
        before, trouble, began = self.seen, "", time.monotonic()
        try:
            async with self._is_restoring:
                self.seen = await asyncio.to_thread(self._looker.look)
        except (StillframeError, OSError) as error:
            trouble = str(error)
        self._look_count += 1
        self._look_s = time.monotonic() - began
        self._is_troubled = bool(trouble or (self.seen is not None and self.seen.troubles))
        await self._tell_of_snapshots()
        look = self.seen
        self._tell_trouble([trouble] if trouble else () if look is None else look.troubles)
        if look is None:
            return
        if not trouble:
            self._tell(picture.happenings(look, before))
            self._tell_given_up(look, before)
        document = picture.system_document(look, self._earlier_look(look))
        self.feed.hold("about", picture.about(str(self.pipeline.path), look.head.dataflow))
        self.feed.hold("system", document | {"why_not": trouble or document["why_not"]})

    def _earlier_look(self, look: Look) -> Look | None:
        """Return the look with which this one is compared, and keep this one."""
        while self._earlier and (
            self._earlier[0].head.epoch != look.head.epoch
            or (len(self._earlier) > 1 and self._earlier[1].at <= look.at - RATE_S)
        ):
            self._earlier.popleft()
        self._earlier.append(look)
        return self._earlier[0] if len(self._earlier) > 1 else None

    async def _tell_of_snapshots(self) -> None:
        try:
            new, gone = await asyncio.to_thread(self.shelf.look)
            rows = await asyncio.to_thread(self.shelf.rows, new[-NEW_COUNT_MAX:])
        except (StillframeError, OSError) as error:
            self._tell_trouble([str(error)])
            return
        if new or gone:
            self.feed.say("snapshots", self._listed(rows, [str(snapshot) for snapshot in gone]))

    def _tell_given_up(self, look: Look, before: Look | None) -> None:
        """Tell that a snapshot is neither under way any more nor published."""
        progress = None if before is None else before.progress
        now = None if look.progress is None else look.progress.snapshot
        if progress is not None and progress.snapshot != now:
            self._ended = progress, look.at
        if self._ended is None or look.at < self._ended[1] + PUBLISH_S:
            return
        ended, at = self._ended
        self._ended = None
        if ended.snapshot not in self.shelf.ids and ended.snapshot not in self._told:
            self._told.add(ended.snapshot)
            self._tell([picture.given_up(ended, at)])

    def _listed(self, rows: list[dict[str, Any]], gone: Iterable[str] = ()) -> dict[str, Any]:
        return {"count": len(self.shelf.ids), "rows": rows, "gone": list(gone)}

    def _tell_trouble(self, sentences: Iterable[str]) -> None:
        told = {known["sentence"] for known in self.happenings if known["kind"] == "trouble"}
        self._tell(
            {"at": time.time(), "kind": "trouble", "sentence": sentence}
            for sentence in sentences
            if sentence not in told
        )

    def _tell(self, happenings: Iterable[dict[str, Any]]) -> None:
        new = list(happenings)
        if new:
            self.happenings.extend(new)
            self.feed.say("happenings", new)
