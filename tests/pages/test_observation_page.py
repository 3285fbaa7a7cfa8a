"""The page of an observation in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from stillframe.pages import self_contained_page
from stillframe.pages.observation_document import observation_document
from stillframe.store.observations import ObservationReader
from tests.browser import check_everybody_can_use
from tests.store.call_samples import BANK, deadlocked, stored

pytestmark = pytest.mark.slow


def test_a_page_explains_an_observation(page: Page, tmp_path: Path) -> None:
    """Why it is partial, its deadlock, each call and its amounts; with the keyboard, for a screen
    reader, in light and dark; and no text of a service is run."""
    store = ObservationReader(stored(tmp_path / "seen", deadlocked()))
    path = tmp_path / "page.html"
    title = "<script>alert(1)</script>"
    path.write_text(
        self_contained_page.render(observation_document(store.load(1)), title=title),
        encoding="utf-8",
    )

    def fail(dialog: Dialog) -> None:
        pytest.fail(f"a script ran: {dialog.message}")

    page.on("dialog", fail)
    page.goto(path.as_uri())
    expect(page.get_by_text("partial: cards.example:443 has never answered")).to_be_visible()
    expect(page.get_by_text("gone-0000000e was disconnected")).to_be_visible()
    deadlock = page.get_by_role("region", name="Deadlock")
    expect(deadlock.locator("ol > li")).to_have_count(4)
    expect(deadlock).to_contain_text("The first known time-out is at 2023-11-14 22:13:27.000 UTC.")
    assert page.locator(".picture .blocked").count() == 4  # three calls and a lock
    assert page.evaluate("location.hash") == "#observation=1"
    page.get_by_label("Filter").first.fill("cards.example")
    expect(page.locator("section[aria-labelledby=calls] .entry")).to_have_count(1)
    page.get_by_label("Filter").first.fill("")
    page.get_by_label("Filter").first.press("Tab")
    page.keyboard.press("Enter")
    opened = page.get_by_role("table", name=f"call {BANK}#4")
    expect(opened).to_contain_text("waits until2023-11-14 22:13:29.000 UTC")
    unresolved = page.get_by_role("table", name="unresolved calls")
    expect(unresolved).to_contain_text("the answer did not arrive")
    expect(page.get_by_role("table", name="amounts")).to_contain_text("420")
    check_everybody_can_use(page)
    page.remove_listener("dialog", fail)
