"""What the page is told, as it happens: one line of server-sent events for each piece of news.

A page that comes later is told first what still holds. One that does not keep up is let go: it
connects again, and is told what holds then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

BEHIND_COUNT_MAX = 200
"""A listener for whom more is waiting than this does not keep up."""
ALIVE_S = 10.0
"""After so long without news a listener is told that there is none, in seconds."""

_STILL_THERE = b": still there\n\n"


class Feed:
    """Tells any number of listeners what happens.

    Attributes:
        listener_count: how many listen now.
    """

    def __init__(self) -> None:
        self._holding: dict[str, bytes] = {}
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._is_open = asyncio.Event()

    @property
    def listener_count(self) -> int:
        """How many listen now."""
        return len(self._queues)

    def open(self) -> None:
        """Let listeners in. Until then they wait, because `first` is not complete yet."""
        self._is_open.set()

    def hold(self, kind: str, document: Any) -> None:
        """Say something that holds until the same kind is said again; once is enough if it is the
        same."""
        event = encoded(kind, document)
        if self._holding.get(kind) != event:
            self._holding[kind] = event
            self._tell(event)

    def say(self, kind: str, document: Any) -> None:
        """Send news to the current listeners; those that wait for the feed to open get them from
        `first`."""
        if self._is_open.is_set():
            self._tell(encoded(kind, document))

    async def listen(
        self, first: Callable[[], Awaitable[list[bytes]]], heard: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield what holds, what `first` returns, and then what was said since the call, until the
        listener is too far behind or goes. What is said while `first` works may come twice.

        Args:
            first: returns what this listener must be told besides what holds.
            heard: called when there is one more listener.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            heard()
            await self._is_open.wait()
            events = await first()
            for event in (*self._holding.values(), *events):
                yield event
            while True:
                try:
                    event_or_end = await asyncio.wait_for(queue.get(), ALIVE_S)
                except TimeoutError:
                    event_or_end = _STILL_THERE
                if event_or_end is None:
                    return
                yield event_or_end
        finally:
            self._queues.discard(queue)

    def close(self) -> None:
        """Let everybody go."""
        self.open()
        for queue in tuple(self._queues):
            queue.put_nowait(None)
        self._queues.clear()

    def _tell(self, event: bytes) -> None:
        for queue in tuple(self._queues):
            if queue.qsize() >= BEHIND_COUNT_MAX:
                self._queues.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)


def encoded(kind: str, document: Any) -> bytes:
    """Return an event as it travels. JSON has no line breaks of its own, so one line is enough."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(document))
