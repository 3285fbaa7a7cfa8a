"""The browser in which pages are shown."""

from tests.browser import browser, page, page_of_the_file, pytest_runtest_teardown

__all__ = ["browser", "page", "page_of_the_file", "pytest_runtest_teardown"]
