"""The page of a snapshot in a real browser: it shows what the store and the log hold."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, expect

from stillframe.json_values import plain
from stillframe.model import Snapshot
from stillframe.pages import self_contained_page
from stillframe.pages.snapshot_documents import (
    diff_document,
    pipeline_diff_document,
    pipeline_snapshot_document,
    snapshot_document,
)
from stillframe.pages.values import printable
from stillframe.store.store import Store
from stillframe.store.tables import fields_of, messages_of
from tests.browser import check_accessible, check_everybody_can_use
from tests.cli.pipelines import commit, resting_shop, sell
from tests.nightly import by_night
from tests.pages.stored import HOSTILE, large, snapshots_of, store_of, written

pytestmark = pytest.mark.slow

SEED = 219
"""Of an execution of four processes with three snapshots, of which each caught messages."""
LARGE_BYTES_MAX = 6_000_000
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path, list[Snapshot]]:
    """A store, the event log of the same system, and the snapshots."""
    directory = tmp_path_factory.mktemp("logged")
    snapshots = snapshots_of(written(SEED, directory / "log"))
    assert [each.state.message_count for each in snapshots] == [20, 16, 12]
    return store_of(directory / "store", snapshots), directory / "log", snapshots


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Iterator[Show]:
    """Return what opens a document as a file, at an address in it; no script of it may run."""
    numbers = itertools.count()

    def show(document: dict[str, Any], fragment: str = "") -> Page:
        path = tmp_path / f"page-{next(numbers)}.html"
        path.write_text(self_contained_page.render(document, title=HOSTILE[1]), encoding="utf-8")
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    def fail(dialog: Dialog) -> None:
        pytest.fail(f"a script ran: {dialog.message}")

    page.on("dialog", fail)
    yield show
    page.remove_listener("dialog", fail)


def open_all(page: Page, entries: str) -> None:
    """Open all `entries` as a click does, also those that are made meanwhile."""
    page.evaluate(
        """async (entries) => {
            for (;;) {
                const closed = [...document.querySelectorAll(entries)].filter(one => !one.open);
                if (closed.length === 0) return;
                const opened = closed.map(
                    one => new Promise(done => one.addEventListener("toggle", done, {once: true})));
                for (const one of closed) one.querySelector(":scope > summary").click();
                await Promise.all(opened);
            }
        }""",
        entries,
    )


STATES = "section[aria-labelledby=states] .entry"
CHANNELS = "section[aria-labelledby=channels] .entry"


def as_text(value: Any) -> str:
    """Return the JSON that a page shows of a value, written by another library than ours."""
    text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
    return printable(text[:2000])


def texts(page: Page, selector: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    found: list[list[str]] = page.locator(selector).evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return found


def test_states_are_those_of_the_store(
    show: Show, logged: tuple[Store, Path, list[Snapshot]]
) -> None:
    """Every field of every process, hostile ones as text; of keyed fields every key."""
    store, _, snapshots = logged
    page = show(snapshot_document(store, snapshots[0].id))
    open_all(page, STATES)
    for state in snapshots[0].state.processes:
        fields = fields_of(state)
        rows = f"table[aria-label='state of {state.process}'] > tbody > tr"
        shown = dict(texts(page, rows))
        assert shown["balance"] == as_text(fields["balance"])
        assert shown["note"].startswith(as_text(fields["note"]))
        assert shown["note"] == as_text(fields["note"]) or "characters more" in shown["note"]
        keys = dict(texts(page, f"{rows} .keys tr"))
        assert {key.partition(" … ")[0]: value for key, value in keys.items()} == {
            as_text(key): as_text(value) for key, value in fields["accounts"].items()
        }
    assert page.locator("img, main script, iframe").count() == 0


def test_channels_are_those_of_the_store(
    show: Show, logged: tuple[Store, Path, list[Snapshot]]
) -> None:
    """Each message with its number and fields; the empty channels are counted, and listed."""
    store, _, snapshots = logged
    snapshot = max(snapshots, key=lambda each: each.state.message_count)
    description = store.description_of(snapshot.id)
    page = show(snapshot_document(store, snapshot.id))
    open_all(page, CHANNELS)
    for state in snapshot.state.channels:
        if state.message_count:
            rows = texts(page, f"table[aria-label='messages on {state.channel}'] tbody tr")
            expected = [
                (f"{m.number:,}", m.kind, f"amount {m.fields['amount']}")
                for m in messages_of(state, description)
            ]
            assert [(row[0], row[1]) for row in rows] == [each[:2] for each in expected]
            assert all(row[2].endswith(e[2]) for row, e in zip(rows, expected, strict=True))
    empty = {row[0] for row in texts(page, "table[aria-label='empty channels'] tbody tr")}
    assert empty == {str(s.channel) for s in snapshot.state.channels if not s.message_count}


SHOWN = """() => {
    const keys = (name) => [...document.querySelectorAll(".picture ." + name)]
        .map(one => one.dataset.key);
    return {
        sentence: document.querySelector(".sentence").textContent,
        address: location.hash,
        now: [...new Set(keys("now"))].sort(),
        later: [...new Set(keys("later"))].sort(),
    };
}"""


def gone_through(page: Page, count: int) -> list[dict[str, Any]]:
    """Make so many steps on, the first and the last with the mouse, those between in the page
    itself; return what it shows after each."""
    on = page.get_by_role("button", name="one step on")

    def step() -> dict[str, Any]:
        on.click()
        shown: dict[str, Any] = page.evaluate(SHOWN)
        return shown

    first = step()
    steps = f"(on, count) => Array.from({{length: count}}, () => (on.click(), ({SHOWN})()))"
    between = on.evaluate(steps, count - 2)
    return [first, *between, step()]


def test_the_recording_is_gone_through(
    show: Show, logged: tuple[Store, Path, list[Snapshot]]
) -> None:
    """On and back; at each step its sentence, what it draws is marked, and the address names it."""
    store, log, snapshots = logged
    document = snapshot_document(store, snapshots[0].id, log=log)
    steps = document["steps"]
    page = show(document)
    name = document["id"]
    keys = [set(step["keys"]) for step in steps]
    assert gone_through(page, len(steps)) == [
        {
            "sentence": step["sentence"],
            "address": f"#snapshot={name}&step={number}",
            "now": sorted(keys[number - 1]),
            "later": sorted(set().union(*keys[number:]) - set().union(*keys[:number])),
        }
        for number, step in enumerate(steps, 1)
    ]
    expect(page.get_by_role("button", name="one step on")).to_be_disabled()
    page.get_by_role("button", name="one step back").click()
    expect(page.locator(".sentence")).to_have_text(steps[-2]["sentence"])
    page.get_by_role("button", name="to the start").click()
    assert page.locator(".picture .now, .picture .later").count() == 0
    assert page.evaluate("location.hash") == f"#snapshot={name}"


def test_an_address_opens_a_step(show: Show, logged: tuple[Store, Path, list[Snapshot]]) -> None:
    """Also one that is typed in later; a step that there is not is the nearest that there is."""
    store, log, snapshots = logged
    document = snapshot_document(store, snapshots[0].id, log=log)
    steps = document["steps"]
    page = show(document, f"#snapshot={document['id']}&step=3")
    expect(page.locator(".sentence")).to_have_text(steps[2]["sentence"])
    page.evaluate("location.hash = '#step=2'")
    expect(page.locator(".sentence")).to_have_text(steps[1]["sentence"])
    page.evaluate("location.hash = '#step=99999'")
    expect(page.locator(".sentence")).to_have_text(steps[-1]["sentence"])
    page.evaluate("location.hash = '#step=<b>'")
    expect(page.locator(".sentence")).to_contain_text("The whole cut")


def test_the_keyboard_is_enough(show: Show, logged: tuple[Store, Path, list[Snapshot]]) -> None:
    """Arrows go through the steps, Tab reaches the diagram, and Enter opens a state."""
    store, log, snapshots = logged
    document = snapshot_document(store, snapshots[0].id, log=log)
    page = show(document)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sentence")).to_have_text(document["steps"][1]["sentence"])
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".sentence")).to_have_text(document["steps"][0]["sentence"])
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
        if page.evaluate("document.activeElement.closest('.entry') !== null"):
            break
    assert any("picture" in each for each in seen)
    entry = page.locator(".entry").first
    was_open = entry.get_attribute("open")
    page.keyboard.press("Enter")
    assert entry.get_attribute("open") != was_open


@pytest.mark.parametrize("what", ["with a log", "without a log", "compared"])
def test_everybody_can_use_it(
    show: Show, logged: tuple[Store, Path, list[Snapshot]], what: str
) -> None:
    """Axe finds nothing, with everything open, and nothing is wider than the window."""
    store, log, snapshots = logged
    first, last = snapshots[0].id, snapshots[-1].id
    document = {
        "with a log": snapshot_document(store, first, log=log),
        "without a log": snapshot_document(store, first),
        "compared": diff_document(store, first, last),
    }[what]
    page = show(document, "#step=2")
    open_all(page, "details")
    check_everybody_can_use(page)


def test_without_a_log_the_page_says_what_is_not_known(
    show: Show, logged: tuple[Store, Path, list[Snapshot]]
) -> None:
    """And how to get it; each message that is drawn was held."""
    store, _, snapshots = logged
    page = show(snapshot_document(store, snapshots[0].id))
    expect(page.get_by_text("or which marker arrived first")).to_be_visible()
    expect(page.get_by_text("--event-log DIR").first).to_be_visible()
    assert page.locator(".controls").count() == 0


def test_a_snapshot_of_a_pipeline_is_shown(show: Show, tmp_path: Path) -> None:
    """States of services and queries, the channels with how many records were on them, and who
    recorded unaligned."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 3, 1)
    shop.snapshot()
    page = show(pipeline_snapshot_document(shop.latest(), is_current=True))
    open_all(page, STATES)
    open_all(page, CHANNELS)
    till = dict(texts(page, "table[aria-label='state of till'] > tbody > tr"))
    assert till["sold"] == "18"
    expect(page.get_by_text("aligned (books unaligned)")).to_be_visible()
    expect(page.get_by_text("1 channel held 2 records.")).to_be_visible()
    expect(page.get_by_text("2 records, which").first).to_be_visible()
    assert page.locator(".cut-panel").count() == 0
    check_accessible(page)


def test_two_snapshots_of_a_pipeline_are_compared(show: Show, tmp_path: Path) -> None:
    """What the till sold since, and the records that are on its channel since; what is not compared
    is said."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 3, 1)
    shop.snapshot()
    sell(shop, 40)
    shop.snapshot()
    page = show(pipeline_diff_document(shop.path, shop.find("shop-1"), shop.find("shop-2")))
    expect(page.get_by_text("compare it with stillframe.spark.diff")).to_be_visible()
    till = page.locator("details", has=page.locator("summary", has_text="till")).first
    till.locator("summary").first.click()
    expect(till.locator("table[aria-label='till sold']")).to_contain_text("18")
    expect(till.locator("table[aria-label='till sold']")).to_contain_text("58")
    expect(page.get_by_text("held 2, then 3")).to_be_visible()
    check_accessible(page)


@pytest.mark.nightly(part="hostile")
def test_the_page_of_a_large_snapshot_is_bounded(show: Show, tmp_path: Path) -> None:
    """50 processes, 2,450 channels and thousands of messages, at night 10^5: a file of some MB,
    with the first of everything, how much more there is, and a filter."""
    store = store_of(tmp_path / "store", [large(50, by_night(100_000, check=10_000))])
    count = by_night("99,960", check="9,800")
    document = snapshot_document(store, store.entries()[0].id)
    page = show(document)
    expect(page.get_by_role("heading", name="Channels")).to_be_visible()
    assert (tmp_path / "page-0.html").stat().st_size < LARGE_BYTES_MAX
    channels = page.locator("section[aria-labelledby=channels]")
    expect(channels.get_by_text(f"490 channels held {count} messages.")).to_be_visible()
    expect(channels.get_by_role("button", name="Show more channels (390)")).to_be_visible()
    page.get_by_label("Filter").last.fill("no such channel")
    expect(channels.get_by_role("status")).to_have_text("0 of 490 channels")
    page.get_by_label("Filter").last.fill("p49->")
    found = sum(c["message_count"] > 0 and c["source"] == "P49" for c in document["channels"])
    expect(channels.get_by_role("status")).to_have_text(f"{found} of 490 channels")
    open_all(page, CHANNELS)
    total = sum(len(c["messages"]) + c["messages_left_out_count"] for c in document["channels"])
    assert f"{total:,}" == f"{document['message_count']:,}" == count
    expect(page.locator(".cut-panel > .left-out")).to_contain_text(f"of {count} messages are drawn")


def test_what_differs_is_what_diff_finds(
    show: Show, logged: tuple[Store, Path, list[Snapshot]]
) -> None:
    """Field by field, key by key, and channel by channel with its counts."""
    store, _, snapshots = logged
    first, last = snapshots[0], snapshots[-1]
    document = diff_document(store, first.id, last.id)
    page = show(document)
    open_all(page, STATES)
    open_all(page, CHANNELS)
    assert document["fields"]
    assert document["channels"]
    befores, afters = (
        {state.process: fields_of(state) for state in each.state.processes}
        for each in (first, last)
    )
    for process, before in befores.items():
        after = afters[process]
        rows = texts(page, f"table[aria-label='{process} balance'] tbody tr")
        assert [row[1:] for row in rows] == [[str(before["balance"]), str(after["balance"])]] * (
            before["balance"] != after["balance"]
        )
        keys = texts(page, f"table[aria-label='{process} accounts'] tbody tr")
        old, new = before["accounts"], after["accounts"]
        assert len(keys) == sum(old.get(key) != new.get(key) for key in old | new)
    counts = {s.channel: s for s in first.state.channels}
    for state in last.state.channels:
        rows = texts(page, f"table[aria-label='counts of {state.channel}'] tbody tr")
        if rows:
            assert rows[0][1:3] == [
                f"{counts[state.channel].sent_count:,}",
                f"{state.sent_count:,}",
            ]
