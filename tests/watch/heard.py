"""What a page would hear of a target."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from stillframe.watch.target import Target

WAIT_S = 60


class Heard:
    """Listens to a target, and keeps the last news of each kind."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.last: dict[str, Any] = {}
        self.sentences: list[str] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Listen until this is cancelled."""
        target = self.target
        async for event in target.stream.subscribe(target.initial_events, target.wake):
            if event.startswith(b":"):
                continue
            kind, _, data = event.decode().partition("\n")
            document = json.loads(data.removeprefix("data: "))
            kind = kind.removeprefix("event: ")
            self.last[kind] = document
            if kind in ("past", "events"):
                told = document["events"] if kind == "past" else document
                self.sentences += [one["sentence"] for one in told]
            self._news.set()

    async def until(self, is_true: Callable[[], object]) -> None:
        """Wait until something was told."""
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                self._news.clear()
                await self._news.wait()
