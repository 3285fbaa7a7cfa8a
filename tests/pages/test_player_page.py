"""The player in a real browser: what it shows at each step is what the simulator says of it."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from stillframe.diagram.cuts import Choice
from stillframe.model import Channel
from stillframe.pages import self_contained_page
from stillframe.pages.player_document import interchange_document, player_document
from stillframe.trace import Event, MessageId, Trace
from tests.browser import a_page, check_accessible, check_everybody_can_use
from tests.diagram.runs import HD, lecture
from tests.diagram.scripts import played, trace_of

pytestmark = pytest.mark.slow

LECTURE_BYTES_MAX = 300_000
Show = Callable[..., Page]


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Show:
    """Return what opens a document as a file, at an address in it."""
    numbers = itertools.count()

    def show(document: dict[str, Any], fragment: str = "") -> Page:
        return opened(page, tmp_path / f"page-{next(numbers)}.html", document, fragment)

    return show


def opened(page: Page, path: Path, document: dict[str, Any], fragment: str = "") -> Page:
    """Write a document to a file, and open it at an address in it."""
    path.write_text(self_contained_page.render(document, title="test"), encoding="utf-8")
    page.goto(f"{path.as_uri()}{fragment}")
    return page


def document_of(name: str, **options: Any) -> dict[str, Any]:
    """Return the document of a script."""
    return player_document(trace_of(name), title=name, played=played(name), **options)


def rows(page: Page) -> dict[str, str]:
    """Return what is said to be recorded of each process and channel."""
    found: list[list[str]] = page.locator(".play .recorded tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return {row[0]: row[1] for row in found}


def place(page: Page) -> str:
    """Return which step the page is at, in its words."""
    return page.locator(".play .place").inner_text()


def narrated(name: str, snapshot: str) -> list[dict[str, str]]:
    """Return what the narrator says to be recorded for a snapshot after each step: nothing else is
    asked, and nothing is computed."""
    trace = trace_of(name)
    now = {str(item): "not yet" for item in (*trace.processes, *trace.channels)}
    found = [dict(now)]
    for lines in played(name).narrator.narrated:
        line = lines[0]
        for channel, message in re.findall(rf"(\S+) keeps (\S+?) for {snapshot}\b", line):
            before = now[channel].partition(": ")[2]
            now[channel] = f"records: {before + ', ' if before else ''}{message}"
        if f" {snapshot}" in line.partition(":")[0]:
            process = line.split()[0]
            for state in re.findall(r"records its state (\{.*?\})", line):
                now[process] = state
            for channels in re.findall(r"records (\S+->.*) from now on", line):
                now |= dict.fromkeys(channels.split(", "), "records, nothing so far")
            for channel in re.findall(r"(\S+) is empty", line):
                now[channel] = "empty"
            for channel, held in re.findall(r"(\S+->\S+) held (.*)", line):
                now[channel] = "empty" if held == "nothing" else held
        found.append(dict(now))
    return found


WAYS = {
    "on": "document.querySelector('.play [aria-label=\"one step on\"]').click()",
    "back": "document.body.dispatchEvent("
    "new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))",
}
"""How a step is made in the page itself, where hundreds take no time."""


SHOWN = """() => {
    const all = (selector) => [...document.querySelectorAll(".play " + selector)];
    return {
        place: all(".place")[0].innerText,
        told: all(".rule-sentence, .rule li").map(one => one.innerText),
        rows: Object.fromEntries(all(".recorded tbody tr").map(
            row => [...row.children].map(cell => cell.textContent))),
        now: all(".stage-picture .now").map(one => Number(one.dataset.step)),
    };
}"""


def gone_through(page: Page, way: str, count: int) -> list[dict[str, Any]]:
    """Make so many steps, the first and the last with the mouse or the keyboard, those between in
    the page itself; return what it shows after each."""

    def step() -> dict[str, Any]:
        if way == "on":
            page.locator(".play").get_by_role("button", name="one step on").click()
        else:
            page.keyboard.press("ArrowLeft")
        shown: dict[str, Any] = page.evaluate(SHOWN)
        return shown

    first = step()
    between = page.evaluate(
        f"count => Array.from({{length: count}}, () => {{ {WAYS[way]}; return ({SHOWN})(); }})",
        count - 2,
    )
    return [first, *between, step()]


@pytest.mark.parametrize(
    ("name", "snapshot"),
    [("lecture", "P1-1"), ("two-initiators", "P1-1"), ("two-initiators", "P2-2"), ("token", "")],
)
def test_each_step_shows_what_is_recorded_by_then(show: Show, name: str, snapshot: str) -> None:
    """Forwards by the button and backwards by the key, with the sentence of the rule."""
    snapshot = snapshot or str(trace_of(name).snapshots[0])
    page = show(document_of(name), f"#snapshot={snapshot}")
    expected = narrated(name, snapshot)
    told = played(name).narrator.narrated
    count = len(told)
    assert rows(page) == expected[0]
    assert gone_through(page, "on", count) == [
        {
            "place": f"step {step} of {count}",
            "told": [line.strip() for line in lines],
            "rows": expected[step],
            "now": [step],
        }
        for step, lines in enumerate(told, 1)
    ]
    back = gone_through(page, "back", count)
    assert [shown["rows"] for shown in back] == expected[-2::-1]
    assert place(page) == f"step 0 of {count}"


def test_only_what_has_happened_is_to_be_seen(show: Show) -> None:
    """Events and marks appear one by one; the white ones are ringed when their state is
    recorded."""
    page = show(document_of("lecture"))
    for step in (0, 5, 11, 18, 5):
        page.get_by_label("step of the execution").fill(str(step))
        steps = page.locator(".play .stage-picture [data-step]:not(.away)").evaluate_all(
            "found => found.map(one => Number(one.dataset.step))"
        )
        assert sorted(steps) == list(range(1, step + 1))
        ringed = page.locator(
            ".play .stage-picture .white:not(.away) .recorded text"
        ).all_text_contents()
        assert sorted(ringed) == {0: [], 5: [*"ABI"], 11: [*"ABFGHI"], 18: [*"ABFGHI"]}[step]
    thick = page.locator(".play .stage-picture g:not(.away) > .message.caught")
    assert thick.count() == 0
    page.get_by_label("step of the execution").fill("18")
    assert thick.locator("title").all_text_contents() == [f"message {HD}: H→D"]


def test_an_address_names_snapshot_and_step(show: Show) -> None:
    """It is followed at the beginning and when it changes, and changes with the page; one that is
    nonsense does no harm."""
    page = show(document_of("two-initiators"), "#snapshot=P2-2&step=4")
    assert place(page) == "step 4 of 10"
    assert page.get_by_label("colours of").input_value() == "1"
    page.get_by_label("colours of").select_option("snapshot P1-1")
    page.get_by_role("button", name="one step back").click()
    expect(page).to_have_url(re.compile("#snapshot=P1-1&step=3$"))
    page.evaluate("location.hash = '#snapshot=P2-2&step=7'")
    expect(page.locator(".play .place")).to_have_text("step 7 of 10")
    assert page.get_by_role("heading", name="Recorded for P2-2").is_visible()
    page.evaluate("location.hash = '#snapshot=<img src=x onerror=alert(1)>&step=99e9'")
    expect(page.locator(".play .place")).to_have_text("step 10 of 10")
    page.evaluate("location.hash = '#step=no'")
    expect(page.locator(".play .place")).to_have_text("step 0 of 10")


def test_keys_are_enough(show: Show) -> None:
    """The arrows, Home and End from anywhere; the slider and the buttons with the focus; what is
    shown is announced."""
    page = show(document_of("lecture"))
    page.keyboard.press("End")
    assert place(page) == "step 18 of 18"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert place(page) == "step 1 of 18"
    expect(page.locator("#announcements")).to_have_text("P1 does A")
    focused = []
    for _ in range(12):
        page.keyboard.press("Tab")
        focused.append(
            page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")
        )
    assert {"one step on", "Play", "step of the execution", "one interchange on"} <= {*focused}
    page.get_by_label("step of the execution").focus()
    page.keyboard.press("ArrowRight")
    assert place(page) == "step 2 of 18"
    page.get_by_role("button", name="one interchange on").focus()
    page.keyboard.press("ArrowRight")
    assert place(page) == "step 2 of 18"
    assert page.locator(".changes .place").inner_text() == "interchange 1 of 2"


@pytest.fixture(scope="module")
def page_with_a_clock(browser: Browser) -> Iterator[Page]:
    """A page with a clock that a test can move on; so has every page of its context from then."""
    with a_page(browser) as page:
        page.clock.install()
        yield page


def test_it_plays_by_itself_until_the_end(page_with_a_clock: Page, tmp_path: Path) -> None:
    """And stops before, if told to; played again it begins again."""
    page = opened(page_with_a_clock, tmp_path / "page.html", document_of("lecture"))
    play_button = page.locator(".play .playing")
    play_button.click()
    page.clock.run_for(3_700)
    assert place(page) == "step 3 of 18"
    play_button.click()
    page.clock.run_for(5_000)
    assert place(page) == "step 3 of 18"
    play_button.click()
    page.clock.run_for(60_000)
    assert place(page) == "step 18 of 18"
    assert play_button.inner_text() == "Play"
    play_button.click()
    assert place(page) == "step 0 of 18"


def test_an_event_that_is_clicked_is_the_step_that_is_shown(show: Show) -> None:
    """The picture is a way to go back as well."""
    page = show(document_of("lecture"), "#step=18")
    page.locator('.stage-picture [data-step="6"]:not(.away) .dot').click()
    assert place(page) == "step 6 of 18"


def chips(page: Page) -> list[str]:
    """Return the row of events as it is shown."""
    return page.locator(".event-chip b").all_inner_texts()


def test_interchanges_go_on_until_all_white_precede_all_red(show: Show) -> None:
    """One pair at a time, with the inversions that are left; and back again to what happened."""
    page = show(document_of("lecture"))
    trace = trace_of("lecture")
    found = interchange_document(trace, Choice(trace.snapshots[0]))
    order = [label for _, label, _ in found["events"]]
    assert chips(page) == order
    before = [list(order)]
    for number, at in enumerate(found["swaps"], 1):
        order[at : at + 2] = order[at + 1], order[at]
        before.append(list(order))
        page.get_by_role("button", name="one interchange on").click()
        assert chips(page) == order
        assert {*page.locator(".event-chip.moved b").all_inner_texts()} == {*order[at : at + 2]}
        left = len(found["swaps"]) - number
        words = f"{left} inversion" if left else "No inversion is left"
        assert page.locator(".changes .left").inner_text().startswith(words)
    colours = [
        "red" in (chip.get_attribute("class") or "").split()
        for chip in page.locator(".event-chip").all()
    ]
    assert colours == sorted(colours)
    for order in reversed(before[:-1]):
        page.get_by_role("button", name="one interchange back").click()
        assert chips(page) == order


def test_interchanges_that_play_end_when_another_cut_is_chosen(
    page_with_a_clock: Page, tmp_path: Path
) -> None:
    """What is no longer on the page says nothing any more."""
    document = player_document(trace_of("lecture"), title="two", cuts=[(2, 2, 1)])
    page = opened(page_with_a_clock, tmp_path / "page.html", document, "#snapshot=P1-1")
    page.locator(".changes .playing").click()
    page.get_by_label("colours of").select_option("the selected cut")
    said = page.locator("#announcements").inner_text()
    page.clock.run_for(10_000)
    assert page.locator("#announcements").inner_text() == said
    assert page.locator(".changes .place").inner_text().startswith("interchange 0 of ")


def test_a_cut_that_is_not_consistent_shows_the_message_that_makes_it_so(show: Show) -> None:
    """In a sentence, in the row of events, in the picture and in the table of channels."""
    page = show(player_document(lecture(), title="cut", cuts=[(4, 2, 1)]), "#snapshot=cut&step=18")
    assert "message P2->P1 #1 is red" in page.locator(".changes .problem").inner_text()
    assert page.locator(".event-chip.broken b").all_inner_texts() == ["H", "D"]
    assert page.locator(".play .stage-picture g:not(.away) > .message.orphan").count() == 1
    assert rows(page)["P2->P1"].startswith("impossible: H→D arrived before the cut")
    check_accessible(page)


def test_what_clocks_imply_is_held_at_least(show: Show) -> None:
    """A message that taught its receiver nothing is in no clock, so no channel is called empty."""
    message = MessageId(Channel("a", "b"), 1)
    steps = [Event("a", "ask", sent=(message,)), Event("b", "answer", accepted=(message,))]
    trace = Trace(["a", "b"], steps, are_messages_implied=True)
    for cut, held in (((1, 0), "ask→answer"), ((0, 0), "nothing known")):
        page = show(player_document(trace, title="cut", cuts=[cut]), "#snapshot=cut&step=2")
        assert rows(page)["a->b"] == held
        expect(page.locator(".play .channels thead th").last).to_have_text("holds at least")
        assert "at least 1 message" in page.locator("header").inner_text()


def test_an_execution_without_snapshots_can_be_gone_through(show: Show) -> None:
    """There are no colours and no interchanges then; and one without events is no error."""
    page = show(player_document(Trace(["P1"], [Event("P1", "A")]), title="plain"))
    page.keyboard.press("ArrowRight")
    assert page.locator(".rule-sentence").inner_text() == "P1 does A"
    assert page.locator(".play .recorded tbody tr").count() == 0
    check_accessible(page)
    page = show(player_document(Trace(["P1"], []), title="empty"))
    assert page.locator(".rule").inner_text() == "Nothing happens in this execution."


def test_what_is_left_out_is_said(show: Show) -> None:
    """And steps are counted as they are shown."""
    trace = trace_of("lecture")
    page = show(player_document(trace, title="part", first=4, step_count_max=9))
    assert page.locator("header .warn").inner_text() == "steps 4 to 12 of 18 are shown"
    assert place(page) == "step 0 of 9"
    assert rows(page)["P1"] == "{A, B}"


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "</text><style>*{display:none}",
    "]]>&lt;&#0;",
    "a\u202eb\u2066c",
]


@pytest.mark.parametrize("label", HOSTILE)
def test_foreign_text_stays_text(show: Show, label: str) -> None:
    """As a name of a process, an event and a message; nothing runs, and nothing turns around."""
    other, message = "P2", MessageId(Channel(label, "P2"), 1)
    steps = [Event(label, label, sent=(message,)), Event(other, "x" + label, accepted=(message,))]
    trace = Trace([label, other], steps)
    page = show(player_document(trace, title=label, cuts=[(1, 0)]), "#step=2")
    html = page.content()
    assert page.locator("img, main script, main style").count() == 0
    for turning in "\u202e\u2066\u0000":
        assert turning not in html
    said = page.locator(".rule").inner_text()
    if label.isprintable():
        assert label in said
        assert page.locator("h1").inner_text() == label
    else:
        assert "\\u202e" in said


def test_nobody_is_kept_out(show: Show) -> None:
    """In light and dark, wide and narrow: at the beginning, in between with events that have just
    changed places, and at the end."""
    page = show(document_of("lecture"))
    check_everybody_can_use(page)
    page.get_by_label("step of the execution").fill("9")
    page.get_by_role("button", name="one interchange on").click()
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")
    check_everybody_can_use(page)
    page.get_by_label("step of the execution").fill("18")
    check_everybody_can_use(page)


def test_the_lecture_weighs_little() -> None:
    """So that it can be sent and opened anywhere."""
    text = self_contained_page.render(document_of("lecture"), title="lecture")
    assert len(text.encode()) < LECTURE_BYTES_MAX
