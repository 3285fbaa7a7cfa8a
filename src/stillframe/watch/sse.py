"""Server-sent events: one stream that any number of open pages read.

A page that connects later first receives the retained events. One that does not keep up is
disconnected: it connects again and receives what is retained then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

BACKLOG_COUNT_MAX = 200
"""A subscriber with more unread events than this is disconnected."""
KEEPALIVE_S = 10.0
"""Time without an event after which a subscriber gets a comment instead, in seconds."""

_KEEPALIVE = b": keep-alive\n\n"


class EventStream:
    """Sends events to all current subscribers."""

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
        """Publish an event and keep it for later subscribers; it replaces the last of its kind.
        An unchanged event is not sent again."""
        event = encode_event(kind, document)
        if self._retained.get(kind) != event:
            self._retained[kind] = event
            self._send(event)

    def publish(self, kind: str, document: Any) -> None:
        """Send an event to the current subscribers; those that wait for the stream to open find
        it among the initial events."""
        if self._is_open.is_set():
            self._send(encode_event(kind, document))

    async def subscribe(
        self, initial: Callable[[], Awaitable[list[bytes]]], subscribed: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the retained events, the initial ones, and then all that were published since the
        call, until the subscriber falls behind or the stream is closed. What is published while
        `initial` works may come twice.

        Args:
            initial: returns the events that this subscriber gets besides the retained ones.
            subscribed: called when there is one more subscriber.
        """
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
                    next_event = _KEEPALIVE
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
    """Return an event as it is sent. JSON has no line breaks of its own, so one line is enough."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))
