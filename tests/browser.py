"""A real browser for tests: Debian's Chromium without a screen, driven by Playwright.

A test takes ``a_page`` and gets a page that fails the test if anything is written to its console as
an error, if a script of it throws, or if a request fails. Playwright keeps an event loop running in
the thread of the test: what a test runs in ``asyncio`` goes into a thread or process of its own.

The fixture ``browser`` is one Chromium for all files that use it: they run one after the other
(``tests/costs.py``). It ends with the last of them, so that later tests can run event loops.
"""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

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
WAIT_MS = 30_000
"""So long a test waits for what a page should show."""


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


@pytest.fixture
def browser() -> Browser:
    """One Chromium for all tests of the group."""
    return _SHARED.started()


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
        yield page
    assert troubles == []


def check_accessible(page: Page) -> None:
    """Ask axe what on the page keeps people from using it: nothing may."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
