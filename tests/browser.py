"""A real browser for tests: Debian's Chromium without a screen, driven by Playwright.

A test takes ``page``, the one page of its file, or opens its own with ``a_page`` if it needs other
settings. Either fails the test if anything is written to its console as an error, if one of its
scripts throws, or if a request fails. Playwright keeps an event loop running in the thread of the
test: what a test runs in ``asyncio`` needs another thread or process.

The fixture ``browser`` is one Chromium for all files that use it: they run one after the other
(``tests/costs.py``). It ends with the last of them, so that later tests can run event loops.
"""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from tests import costs

ARGUMENTS = [
    "--no-sandbox",  # root has no other way, and only pages of ours are opened
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 120_000
"""How long a test waits for what a page should show, even on a busy machine."""
expect.set_options(timeout=WAIT_MS)
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
FORMS = tuple(itertools.product(SCHEMES, (WIDE, NARROW)))
"""Colour schemes and windows in which a state of a page is checked."""


def find_chromium() -> str:
    """Return where Chromium is."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("Chromium is missing: './check' installs it on Debian (apt install chromium)")
    return path


@contextlib.contextmanager
def a_browser() -> Iterator[Browser]:
    """Start Chromium, and end it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class _Shared:
    """The browser of all tests, while one is needed."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._browser: Browser | None = None

    def started(self) -> Browser:
        """Return it, started if it is not."""
        if self._browser is None:
            self._browser = self._open.enter_context(a_browser())
        return self._browser

    def close(self) -> None:
        """End it."""
        self._browser = None
        self._open.close()


_SHARED = _Shared()


@pytest.fixture(scope="module")
def browser() -> Browser:
    """One Chromium for all tests of the group."""
    return _SHARED.started()


@pytest.fixture(scope="module")
def page_of_the_file(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for the tests of a file, with what went wrong in it."""
    with _opened(browser, viewport=WIDE, color_scheme="light") as opened:
        yield opened


@pytest.fixture
def page(page_of_the_file: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page of the file, empty, as wide and as light as at first, with the mouse in its corner;
    nothing may go wrong in it."""
    page, troubles = page_of_the_file
    page.goto("about:blank")
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    page.mouse.move(0, 0)
    yield page
    found, troubles[:] = troubles[:], []
    assert found == []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the browser behind the last test of the group."""
    if nextitem is None or costs.group_of(nextitem) != costs.group_of(item):
        _SHARED.close()


@contextlib.contextmanager
def a_page(browser: Browser, *, lost_connections: bool = False, **options: Any) -> Iterator[Page]:
    """Open an empty page in a context of its own; at the end nothing may have gone wrong in it.

    Args:
        browser: which.
        lost_connections: whether the server may go; the browser writes that to the console.
        options: of the context: ``viewport``, ``color_scheme`` and others of Playwright's.
    """
    with _opened(browser, lost_connections=lost_connections, **options) as (page, troubles):
        yield page
    assert troubles == []


@contextlib.contextmanager
def _opened(
    browser: Browser, *, lost_connections: bool = False, **options: Any
) -> Iterator[tuple[Page, list[str]]]:
    """Open a page; yield it with the list of what goes wrong in it."""
    troubles: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if lost_connections and "ERR_" in message.text:
            return
        if message.type in ("error", "warning"):
            troubles.append(f"console: {message.text} ({message.location})")

    with contextlib.closing(browser.new_context(**options)) as context:
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
        yield page, troubles


def check_accessible(page: Page, *, within: str = "html") -> None:
    """Run axe on a part of the page: it finds no violation."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    # Only the violations travel: the other results have a row for each element.
    found = AxeResults(
        page.evaluate(
            """within => axe.run(within, {resultTypes: ["violations"]})
                .then(({violations}) => ({violations}))""",
            within,
        )
    )
    assert found.violations_count == 0, found.generate_report()


def check_everybody_can_use(page: Page, *, within: str = "html") -> None:
    """Check a state of the page in each colour scheme at each width: axe finds no violation, and
    nothing is wider than the window."""
    for scheme, size in FORMS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        check_accessible(page, within=within)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
