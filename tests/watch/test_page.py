"""The live page in a real browser, against a running demo."""

import contextlib
import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from stillframe.store.store import Store
from stillframe.watch.server import PAGE, page_file
from tests.browser import WAIT_MS, a_page, check_accessible
from tests.calm import BANK
from tests.cli.pipelines import add_up, resting_shop
from tests.watch.published import new_store, publish
from tests.watch.servers import a_server, a_system, is_there, running, until

pytestmark = pytest.mark.slow
WEIGHT_BYTES_MAX = 300_000
expect.set_options(timeout=WAIT_MS)


def newest(store: Path) -> str:
    """Return the id of the newest snapshot."""
    return str(Store.open(store).entries()[-1].id)


def status_of(page: Page, process: str) -> str:
    """Return what the figures below the graph say of a process."""
    row = page.locator(".tables tbody tr").filter(has=page.get_by_role("rowheader", name=process))
    return row.locator("td").nth(1).inner_text()


def test_a_snapshot_is_taken_kept_and_restored_by_clicking(
    tmp_path: Path, browser: Browser
) -> None:
    """Each of them is in the store afterwards, and on the page."""
    store = tmp_path / "store"
    with (
        a_system(tmp_path, "--every", "never", topology=BANK),
        a_server(store) as link,
        a_page(browser) as page,
    ):
        page.goto(link)
        expect(page.locator(".state")).to_have_text("runs · epoch 1")
        before = len(Store.open(store).entries())
        page.get_by_role("button", name="Take a snapshot").click()
        expect(page.locator(".bar .said")).to_contain_text("was taken in")
        assert len(Store.open(store).entries()) == before + 1
        taken = newest(store)
        row = page.locator(".snapshots tbody tr").filter(has_text=taken)
        expect(row).to_contain_text("nothing lost")
        page.get_by_role("button", name=f"Keep {taken} as a savepoint").click()
        page.get_by_label("Name").fill("good.one")
        page.get_by_role("button", name="Take it").click()
        expect(row).to_contain_text("good.one")
        assert str(Store.open(store).savepoints["good.one"]) == taken
        page.get_by_role("button", name="Take a savepoint").click()
        page.get_by_label("Name").fill("good.one")
        page.keyboard.press("Enter")
        expect(page.locator(".bar .said")).to_contain_text("there is a savepoint 'good.one'")
        page.get_by_role("button", name=f"Restore {taken}").click()
        page.get_by_role("button", name="Leave it").click()
        assert Store.open(store).epoch == 1
        page.get_by_role("button", name=f"Restore {taken}").click()
        page.get_by_role("button", name="Restore", exact=True).click()
        expect(page.locator(".state")).to_have_text("runs · epoch 2")
        assert str(Store.open(store).restored_from) == taken
        expect(page.locator(".happening.restore")).to_contain_text(
            f"epoch 2 began from snapshot {taken}"
        )


def test_a_killed_process_and_its_return_are_shown(tmp_path: Path, browser: Browser) -> None:
    """Its death is told with its cause, and the system runs again, in the next epoch."""
    store = tmp_path / "store"
    with (
        a_system(tmp_path, "--every", "300ms"),
        a_server(store) as link,
        a_page(browser) as page,
    ):
        page.goto(link)
        expect(page.locator(".state")).to_have_text("runs · epoch 1")
        page.get_by_text("Processes and channels in figures").click()
        until(lambda: status_of(page, "P3") in ("running", "busy"), "P3 runs")
        os.kill(running(store).children["P3"].pid, signal.SIGSTOP)
        until(lambda: status_of(page, "P3") == "silent", "P3 is silent")
        expect(page.locator(".under-way").first).to_contain_text("P3 does not answer")
        os.kill(running(store).children["P3"].pid, signal.SIGKILL)
        expect(page.locator(".happening.death")).to_contain_text("process P3 died")
        expect(page.locator(".state")).to_have_text("runs · epoch 2")
        until(lambda: status_of(page, "P3") in ("running", "busy"), "P3 is back")


def test_a_system_that_stands_still_is_not_said_to_have_ended(
    tmp_path: Path, browser: Browser
) -> None:
    """Nobody knows of its processes then; it goes on as if nothing had been."""
    with (
        a_system(tmp_path, "--every", "300ms") as system,
        a_server(tmp_path / "store") as link,
        a_page(browser) as page,
    ):
        page.goto(link)
        expect(page.locator(".state")).to_have_text("runs · epoch 1")
        system.send_signal(signal.SIGSTOP)
        expect(page.locator(".state")).to_have_text("does not answer")
        expect(page.locator(".graph .process.silent")).to_have_count(3)
        system.send_signal(signal.SIGCONT)
        expect(page.locator(".state")).to_have_text("runs · epoch 1")


def test_the_page_says_when_the_system_and_when_the_server_is_gone(
    tmp_path: Path, browser: Browser
) -> None:
    """What it shows then is said to be from before; nothing can be clicked that needs them."""
    store = tmp_path / "store"
    with a_page(browser, lost_connections=True) as page:
        with a_server_of_ended_system(tmp_path) as link:
            page.goto(link)
            expect(page.locator(".state")).to_have_text("does not run")
            expect(page.get_by_text("no system is running on the store")).to_be_visible()
            expect(page.locator(".snapshots tbody tr").first).to_contain_text(newest(store))
            expect(page.get_by_role("button", name="Take a snapshot")).to_be_disabled()
        expect(page.locator(".lost")).to_contain_text("is gone since")


def a_server_of_ended_system(directory: Path) -> AbstractContextManager[str]:
    """Serve the page of a system that has run and was stopped."""
    with a_system(directory, "--every", "200ms"):
        pass
    assert not is_there(directory / "store")
    return a_server(directory / "store")


def test_the_link_of_a_snapshot_leads_to_its_state(tmp_path: Path, browser: Browser) -> None:
    """From the list, by the address alone, and back; one that is not there is said not to be."""
    store = tmp_path / "store"
    with a_server_of_ended_system(tmp_path) as link, a_page(browser) as page:
        name = newest(store)
        page.goto(link)
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", name=f"Snapshot {name}")).to_be_visible()
        page.get_by_role("link", name="← The running system").click()
        expect(page.locator(".graph")).to_be_visible()
        page.goto(f"{link}#snapshot={name}")
        expect(page.get_by_role("heading", name=f"Snapshot {name}")).to_be_visible()
        page.goto(link)
        first = str(Store.open(store).entries()[0].id)
        page.get_by_role("button", name=f"Compare {first} with another").click()
        page.get_by_role("button", name=f"Compare {name} with {first}").click()
        expect(page).to_have_url(re.compile(f"#first={first}&second={name}$"))
        expect(page.get_by_role("heading", level=1).last).to_contain_text(first)
        expect(page.get_by_role("heading", level=1).last).to_contain_text(name)


def test_two_snapshots_of_a_pipeline_are_compared_by_clicking(
    tmp_path: Path, browser: Browser
) -> None:
    """The books have read one record more in the second."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    for _ in range(2):
        shop.snapshot()
        add_up(shop, 1)
    with a_server(shop.path) as link, a_page(browser) as page:
        page.goto(link)
        page.get_by_role("button", name="Compare shop-1 with another").click()
        page.get_by_role("button", name="Compare shop-2 with shop-1").click()
        expect(page).to_have_url(re.compile("#first=shop-1&second=shop-2$"))
        expect(page.get_by_text("held 2, then 1")).to_be_visible()
        expect(page.get_by_text("stillframe.spark.diff compares that")).to_be_visible()
        check_accessible(page)


def test_the_page_is_for_everybody(tmp_path: Path, browser: Browser) -> None:
    """The checker finds nothing, nothing is wider than the screen, and the keyboard is enough; in
    light and dark, on a desk and on a phone."""
    with a_system(tmp_path, "--every", "200ms"), a_server(tmp_path / "store") as link:
        for scheme, width in product(("light", "dark"), (1280, 360)):
            screen = {"width": width, "height": 800}
            with a_page(browser, color_scheme=scheme, viewport=screen) as page:
                page.goto(link)
                expect(page.locator(".chip").first).to_be_visible()
                expect(page.locator(".chart").first).to_be_visible()
                page.get_by_text("Processes and channels in figures").click()
                check_accessible(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.get_by_role("button", name="Take a savepoint").focus()
                page.keyboard.press("Enter")
                expect(page.get_by_role("dialog")).to_be_visible()
                check_accessible(page)
                page.keyboard.press("Escape")
                expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_comes_from_a_process_is_shown_as_text(tmp_path: Path, browser: Browser) -> None:
    """Whatever it says: it makes no element, and nothing of it runs."""
    hostile = "tests.watch.programs:hostile"
    with (
        a_system(tmp_path, "--every", "200ms", topology=hostile),
        a_server(tmp_path / "store") as link,
        a_page(browser) as page,
    ):
        page.on("dialog", lambda dialog: pytest.fail(f"something ran: {dialog.message}"))
        page.goto(link)
        expect(page.locator(".total strong").first).to_have_text("<b onclick=alert(3)>gold</b>")
        expect(page.locator(".total").nth(1)).to_contain_text("toString: 4 in")
        page.goto(f"{link}#snapshot={newest(tmp_path / 'store')}")
        expect(page.get_by_role("heading", name="Snapshot")).to_be_visible()
        assert "onerror=alert(1)" in page.locator("main").inner_text()
        assert "It took no part" not in page.locator("main").inner_text()
        assert page.locator("main img, main script, main [onclick]").count() == 0


def test_fifty_processes_are_in_the_graph(tmp_path: Path, browser: Browser) -> None:
    """In the order of their numbers, and each as it is."""
    with (
        a_system(tmp_path, "--every", "1s", topology="tests.watch.programs:ring"),
        a_server(tmp_path / "store") as link,
        a_page(browser) as page,
    ):
        page.goto(link)
        expect(page.locator(".graph .process.running")).to_have_count(50)
        ys = [
            page.locator(".graph .process", has_text=re.compile(f"^P{n} ")).first.bounding_box()
            for n in (1, 2, 10)
        ]
        assert [box["y"] for box in ys if box] == sorted(box["y"] for box in ys if box)


def test_of_many_snapshots_some_are_listed_and_older_ones_on_demand(
    tmp_path: Path, browser: Browser
) -> None:
    """The newest first, without a gap; the page never has all of them."""
    count = 260
    with contextlib.closing(new_store(tmp_path)) as store:
        for number in range(1, count + 1):
            publish(store, number)
    with a_server(tmp_path / "store") as link, a_page(browser) as page:
        page.goto(link)
        rows = page.locator(".snapshots tbody tr th")
        expect(page.get_by_text(f"{count} snapshots in the store")).to_be_visible()
        older = page.get_by_role("button", name="Show older ones")
        for shown in (25, 50, 75, 100, 125, 150):
            expect(rows).to_have_count(shown)
            assert rows.all_inner_texts() == [f"A-{count - n}" for n in range(shown)]
            older.click()


def test_what_came_while_somebody_was_in_the_list_is_shown_when_they_leave(
    tmp_path: Path, browser: Browser
) -> None:
    """With the mouse, the keyboard or a dialog; nothing else has to come."""
    with contextlib.closing(new_store(tmp_path)) as store:
        publish(store, 1)
        with a_server(tmp_path / "store") as address, a_page(browser) as page:
            page.goto(address)
            first = page.locator(".snapshots tbody tr").first
            come_later = page.get_by_text("; 1 newer than these come when you leave the list.")
            heading = page.get_by_role("heading", level=1).first
            link_of_first = first.get_by_role("link")
            open_dialog = "document.body.appendChild(document.createElement('dialog')).showModal()"
            ways: tuple[tuple[Callable[[], object], Callable[[], object]], ...] = (
                (first.hover, heading.hover),
                (link_of_first.focus, link_of_first.blur),
                (lambda: page.evaluate(open_dialog), lambda: page.keyboard.press("Escape")),
            )
            for number, (enter, leave) in enumerate(ways, start=1):
                expect(first).to_contain_text(f"A-{number}")
                enter()
                publish(store, number + 1)
                expect(come_later).to_be_visible()
                expect(first).to_contain_text(f"A-{number}")
                leave()
                expect(first).to_contain_text(f"A-{number + 1}")


def test_the_page_is_light() -> None:
    """All that it loads is under 300 kB, before any compression."""
    sizes = {name: len(page_file(name).encode()) for name in PAGE}
    assert sum(sizes.values()) < WEIGHT_BYTES_MAX, sizes
