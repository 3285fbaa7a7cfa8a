"""The watched object, a system, a pipeline or services, as the server and the page see it.

``Target`` is the only interface between the two: its implementations are ``SystemTarget``,
``PipelineTarget`` and ``ObservationTarget``.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from stillframe.errors import UsageError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.watch.metrics import MetricSet, PollCounters
from stillframe.watch.snapshot_list import Numbered, SnapshotList

POLL_S, POLL_PENDING_S = 0.5, 0.1
"""Time between two polls of what runs, and while a snapshot is pending, in seconds."""
FRESH_S = 0.1
"""A scrape uses the last poll if it is not older, in seconds."""
EVENT_COUNT_MAX = 200
"""How many events are kept for pages that connect later."""
NEW_COUNT_MAX = 50
"""Of how many new snapshots at once the rows are published; a page asks for the others."""
BACKLOG_COUNT_MAX = 200
"""A subscriber with more unread events than this is disconnected."""
KEEPALIVE_S = 10.0
"""Time without an event after which a subscriber gets a comment instead, in seconds."""


class TriggerSnapshot(msgspec.Struct, frozen=True, tag="take", forbid_unknown_fields=True):
    """Take a snapshot, from any initiator if that is None; with a name it becomes a savepoint."""

    initiator: str | None = None
    name: str | None = None


class CreateSavepoint(msgspec.Struct, frozen=True, tag="keep", forbid_unknown_fields=True):
    """Keep an existing snapshot under a name, as a savepoint."""

    snapshot: str
    name: str


class Restore(msgspec.Struct, frozen=True, tag="restore", forbid_unknown_fields=True):
    """Roll back to a snapshot, or to a savepoint by its name."""

    snapshot: str


Action = TriggerSnapshot | CreateSavepoint | Restore

_decode = msgspec.json.Decoder(Action).decode


def decode_action(body: bytes) -> Action:
    """Return the action in the untrusted `body` of a request; raise UsageError if it is none."""
    try:
        action: Action = _decode(body)
    except DECODING_ERRORS as error:
        raise UsageError(f"this action cannot be read: {text_of(error)}") from error
    return action


def action_result(sentence: str, *, is_done: bool = True, **more: str) -> dict[str, Any]:
    """Return the result of an action as the page shows it."""
    return {"is_done": is_done, "sentence": sentence, **more}


class EventStream:
    """Server-sent events: one stream that any number of open pages read. A page that connects later
    first receives the retained events. One that does not keep up is disconnected: it connects again
    and receives what is retained then."""

    def __init__(self) -> None:
        self._retained: dict[str, bytes] = {}
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._is_open = asyncio.Event()

    @property
    def subscriber_count(self) -> int:
        """The number of current subscribers."""
        return len(self._queues)

    def open(self) -> None:
        """Let subscribers in. Until then they wait, because the initial events are incomplete."""
        self._is_open.set()

    def retain(self, kind: str, document: Any) -> None:
        """Publish an event, if it is new, and keep it for later subscribers; it replaces that of
        its kind."""
        event = encode_event(kind, document)
        if self._retained.get(kind) != event:
            self._retained[kind] = event
            self._send(event)

    def publish(self, kind: str, document: Any) -> None:
        """Send an event to the current subscribers. Before the stream opens there is no need: it is
        found among the initial events."""
        if self._is_open.is_set():
            self._send(encode_event(kind, document))

    async def subscribe(
        self, initial: Callable[[], Awaitable[list[bytes]]], subscribed: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the retained events, those that `initial` returns, and then all that were published
        since the call, until the subscriber falls behind or the stream is closed. What is published
        while `initial` works may come twice; `subscribed` is called before."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            subscribed()
            await self._is_open.wait()
            events = await initial()
            for event in (*self._retained.values(), *events):
                yield event
            while True:
                try:
                    next_event = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
                except TimeoutError:
                    next_event = b": keep-alive\n\n"
                if next_event is None:
                    return
                yield next_event
        finally:
            self._queues.discard(queue)

    def close(self) -> None:
        """Disconnect all subscribers."""
        self.open()
        for queue in tuple(self._queues):
            queue.put_nowait(None)
        self._queues.clear()

    def _send(self, event: bytes) -> None:
        for queue in tuple(self._queues):
            if queue.qsize() >= BACKLOG_COUNT_MAX:
                self._queues.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)


def encode_event(kind: str, document: Any) -> bytes:
    """Return an event as it is sent. Encoded JSON has no line breaks, so one line is enough."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))


class Target(ABC):
    """A watched system, pipeline or services, with the list of its snapshots or observations.

    It has the stream of events that the open pages receive, and the last ones of its history, the
    oldest first. `concerns` are the parts that may fail while it is watched, as the metric of
    errors names them.
    """

    def __init__(self, snapshots: SnapshotList[Any], *concerns: str) -> None:
        self.stream = EventStream()
        self.snapshots = snapshots
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENT_COUNT_MAX)
        self.polls = PollCounters(*concerns)
        self._is_wanted = asyncio.Event()
        self._polling = asyncio.Lock()
        self._documents = ThreadPoolExecutor(1, thread_name_prefix="documents")

    @abstractmethod
    async def run(self) -> None:
        """Follow the target until this is cancelled."""

    @abstractmethod
    async def perform(self, action: Action) -> dict[str, Any]:
        """Do it, and return whether it was done, and the result in a sentence. Raises Unavailable
        if nothing runs that could do it, or something else is in its way, and UsageError if there
        is no such process or snapshot, or a name is used."""

    def wake(self) -> None:
        """Poll now: a page has connected, or something was done."""
        self._is_wanted.set()

    async def initial_events(self) -> list[bytes]:
        """Return the events that a new page gets besides the retained ones."""
        self.stream.retain("about", self._describe())
        rows = await self.snapshots_before(None)
        return [
            encode_event("snapshots", self._snapshots_document(rows)),
            encode_event("past", self._past()),
        ]

    async def snapshots_before(self, number: int | None) -> list[dict[str, Any]]:
        """Return rows of the newest snapshots, or of those with lower numbers."""
        return await asyncio.to_thread(self.snapshots.rows_before, number)

    async def snapshot(self, name: str) -> Any:
        """Return the document of the snapshot that `name` names."""
        return await self._in_document_thread(self._snapshot_document, name)

    async def comparison(self, first: str, second: str) -> Any:
        """Return the document that compares two snapshots."""
        return await self._in_document_thread(self._comparison_document, first, second)

    async def poll(self) -> None:
        """Poll the target, and publish how it is."""
        async with self._polling:
            await self._poll()

    async def metrics(self) -> MetricSet:
        """Return all metrics as of now. Scrapes at the same time share one poll."""
        await self._refresh()
        metrics = MetricSet()
        await self._collect(metrics)
        self.polls.collect(metrics, page_count=self.stream.subscriber_count)
        return metrics

    @abstractmethod
    async def _poll(self) -> None: ...

    @abstractmethod
    async def _collect(self, metrics: MetricSet) -> None:
        """Add the metrics of the target as of the last poll."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """Return what does not change while the target runs: its graph."""

    @abstractmethod
    def _snapshot_document(self, name: str) -> dict[str, Any]: ...

    @abstractmethod
    def _comparison_document(self, first: str, second: str) -> dict[str, Any]: ...

    def _past(self) -> dict[str, Any]:
        return {"naive": [], "predicates": [], "events": list(self.events)}

    async def _refresh(self) -> None:
        async with self._polling:
            if time.monotonic() - self.polls.finished_s >= FRESH_S:
                await self._poll()

    async def _in_document_thread(self, make: Callable[..., Any], *arguments: str) -> Any:
        """Make documents one at a time: a few large ones must not delay the events."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._documents, make, *arguments)

    def _snapshots_document(
        self, rows: list[dict[str, Any]], gone: Iterable[object] = ()
    ) -> dict[str, Any]:
        return {"count": self.snapshots.count, "rows": rows, "gone": [*map(str, gone)]}

    async def _publish_rows(self, snapshots: Iterable[Numbered], gone: Iterable[Numbered]) -> None:
        """Publish the rows of these snapshots, and the deleted ones."""
        rows = await asyncio.to_thread(self.snapshots.rows, snapshots)
        self.stream.publish("snapshots", self._snapshots_document(rows, gone))

    def _publish_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Keep and publish new events; an error that the page knows already is left out."""
        known = {event["sentence"] for event in self.events if event["kind"] == "error"}
        new = [event for event in events if event["sentence"] not in known]
        if new:
            self.events.extend(new)
            self.stream.publish("events", new)

    def _publish_errors(self, sentences: Iterable[str]) -> None:
        now = time.time()
        self._publish_events({"at": now, "kind": "error", "sentence": s} for s in sentences)
