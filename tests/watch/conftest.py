"""The browser in which pages are shown."""

from tests.browser import browser, pytest_runtest_teardown

__all__ = ["browser", "pytest_runtest_teardown"]
