"""The watcher, in a thread or as a program, and what it answers when its metrics are scraped."""

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from tests.watch.servers import served, shown

STILLFRAME = Path(sys.executable).with_name("stillframe")
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Result = TypeVar("Result")
Key = tuple[str, frozenset[tuple[str, str]]]
SCRAPE_EVERY_S = 0.1
"""While something is awaited: each scrape costs the watcher what a test beside it lacks."""
ONLY_UP = ("_total", "_bucket", "_count", "_sum")


class Scrape:
    """The samples of one scrape.

    Attributes:
        samples: the values, by name and labels.
    """

    def __init__(self, text: str, *, is_open: bool) -> None:
        self.samples: dict[Key, float] = {}
        parse: Callable[[str], Iterable[Metric]] = parse_open if is_open else parse_plain
        for family in parse(text):
            assert family.documentation
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = sample.value

    def of(self, name: str, **labels: str) -> float:
        """Return one value."""
        return self.samples["stillframe_" + name, frozenset(labels.items())]

    def all_of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the values of a metric."""
        return {labels: v for (n, labels), v in self.samples.items() if n == "stillframe_" + name}

    def check_follows(self, before: "Scrape") -> None:
        """Check that nothing that only goes up has gone down, or away."""
        for key, value in before.samples.items():
            if key[0].endswith(ONLY_UP):
                assert self.samples[key] >= value, key


class Watcher:
    """A watcher that serves.

    Attributes:
        link: where.
    """

    def __init__(self, link: str) -> None:
        self.link = link
        self._last: Scrape | None = None

    async def scrape(
        self, accept: str = OPEN_METRICS, headers: Mapping[str, str] | None = None
    ) -> Scrape:
        """Scrape, and check that all counters have only gone up since this did so last."""
        text, kind = await asyncio.to_thread(self._get, {"Accept": accept, **(headers or {})})
        is_open = accept == OPEN_METRICS
        assert kind.startswith("application/openmetrics-text" if is_open else "text/plain")
        scrape = Scrape(text, is_open=is_open)
        if self._last is not None:
            scrape.check_follows(self._last)
        self._last = scrape
        return scrape

    async def until(self, name: str, value: float, **labels: str) -> Scrape:
        """Scrape until a metric has a value."""
        while True:
            scrape = await self.scrape()
            key = ("stillframe_" + name, frozenset(labels.items()))
            if scrape.samples.get(key) == value:
                return scrape
            await asyncio.sleep(SCRAPE_EVERY_S)

    def _get(self, headers: dict[str, str]) -> tuple[str, str]:
        url = f"{self.link.partition('?')[0]}metrics"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.read().decode(), answer.headers["Content-Type"]


class WatcherProgram(Watcher):
    """A watcher that is a program.

    Attributes:
        process: what runs it.
    """

    def __init__(self, link: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(link)
        self.process = process


@contextlib.asynccontextmanager
async def watching(store: Path, *, otlp: str | None = None) -> AsyncIterator[Watcher]:
    """Watch a system from a thread while the body runs, as ``stillframe watch`` does."""
    with shown(store, otlp=otlp) as watched, contextlib.ExitStack() as stack:
        try:
            link = await _beside(lambda: stack.enter_context(served(watched)))
            yield Watcher(link)
        finally:
            await _beside(stack.close)


async def _beside(work: Callable[[], Result]) -> Result:
    """Work in a thread, because the system runs in this event loop and must go on meanwhile. If
    this is cancelled, it ends when the work has ended."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait([working])


@contextlib.asynccontextmanager
async def watching_program(store: Path, *options: str) -> AsyncIterator[WatcherProgram]:
    """Run ``stillframe watch`` while the body runs; what it says goes where this test says it."""
    process = await asyncio.create_subprocess_exec(
        *(str(STILLFRAME), "watch", str(store), "--listen", "127.0.0.1:0", "--json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            _, words = await process.communicate()
            raise AssertionError(words.decode())
        yield WatcherProgram(json.loads(line)["link"], process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
