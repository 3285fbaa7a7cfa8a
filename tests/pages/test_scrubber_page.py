"""The snapshot to drag in a real browser: whatever is dragged where, what is shown to be recorded
is what the simulator records when the same happens at the same times."""

import random
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, ViewportSize

from stillframe.model import Channel, Snapshot, SnapshotId
from stillframe.pages import self_contained_page
from stillframe.pages.player_document import player_document
from stillframe.pages.scrubber_document import without_snapshot
from stillframe.sim.scenario import Played, play_text
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace
from tests.browser import check_accessible, check_everybody_can_use
from tests.diagram.scripts import played
from tests.nightly import by_night, seeds

pytestmark = pytest.mark.slow

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROOMY: ViewportSize = {"width": 1500, "height": 1200}
"""A window that is as high as the whole picture, so that a drag does not leave it."""


def show(page: Page, path: Path, script: Played) -> None:
    """Open the page of a script."""
    world = script.world
    document = player_document(world.epoch.trace(world.description), title=path.name, played=script)
    path.write_text(self_contained_page.render(document, title="test"), encoding="utf-8")
    page.goto(path.as_uri())


def by_chance(seed: int) -> Played:
    """Return a script by the clock: any events, any messages that keep the order of channels."""
    rng = random.Random(seed)
    names = iter(NAMES)
    ticks = {
        f"P{number}": sorted(rng.sample(range(12), rng.randint(3, 6)))
        for number in range(1, rng.randint(3, 4) + 1)
    }
    events = [(at, process, next(names)) for process, own in ticks.items() for at in own]
    lines, last = [], dict[tuple[str, str], tuple[int, int]]()
    accepting: set[str] = set()
    messages = []
    for sent, source, name in sorted(events):
        at, target, accepter = rng.choice(events)
        before = last.get((source, target), (-1, -1))
        is_possible = source != target and at > sent and at > before[1] and sent > before[0]
        if is_possible and accepter not in accepting:
            last[source, target] = sent, at
            accepting.add(accepter)
            messages.append(f"{name}>{accepter}")
            lines.append(f"{name}>{accepter} takes {at - sent}")
    actions = [
        (at, 1, f"{process} does {name}")
        for at, process, name in sorted(events)
        if name not in accepting
    ]
    system = [f"{p}: {' '.join(n for _, q, n in events if q == p)}" for p in ticks]
    if messages:
        system.append(f"messages: {' '.join(messages)}")
    initiator = rng.choice(("P1", "P2"))
    # Before or behind what is done in the same tick.
    begin = rng.randrange(5), rng.choice((0, 2)), f"{initiator} initiates {initiator}-1"
    run = [f"{at} {action}" for at, _, action in sorted([begin, *actions])]
    return play_text("\n".join(["system", *system, "----", "", "ticks", *lines, *run]))


LOOK = """() => {
    const all = (selector) => [...document.querySelectorAll(".scrubber " + selector)];
    const rows = (name) => all(`.${name} tbody tr`).map(
        row => [...row.children].map(cell => cell.textContent));
    const words = document.querySelector('[aria-label="initiation"]');
    return {
        initiation: words.getAttribute("aria-valuetext"),
        markers: all(".marker .handle").map(one => ({
            channel: one.getAttribute("aria-label").replace("marker ", ""),
            at: Number(one.getAttribute("aria-valuenow")),
            isThere: !one.classList.contains("away"),
        })),
        processes: rows("processes"),
        channels: rows("channels"),
        outcome: all(".outcome")[0].innerText,
    };
}"""


class Look:
    """What the page shows at one moment.

    Attributes:
        initiation: who initiates the snapshot, and when.
        arrivals: of each marker, the half tick of its arrival, as its handle says.
        markers: the channels of the markers that can be dragged.
        processes: what is recorded of each process, and when.
        channels: what is recorded of each channel.
        outcome: whether the system ever was in that state.
    """

    def __init__(self, page: Page) -> None:
        found: dict[str, Any] = page.evaluate(LOOK)
        self.initiation: str = found["initiation"]
        self.arrivals = {one["channel"]: round(2 * one["at"]) for one in found["markers"]}
        self.markers = [one["channel"] for one in found["markers"] if one["isThere"]]
        self.processes: dict[str, str] = dict(found["processes"])
        self.channels: dict[str, str] = dict(found["channels"])
        self.outcome: str = found["outcome"]

    @property
    def recorded(self) -> tuple[dict[str, str], str]:
        """What is recorded of each process and channel, and whether the system was ever so."""
        recorded = {
            name: words.partition("}")[0] + "}" * ("}" in words)
            for name, words in self.processes.items()
        }
        sentence = self.outcome.removesuffix(".")
        return recorded | self.channels, sentence[0].lower() + sentence[1:]


def half(words: str) -> int:
    """Return a time as the page says it, in half ticks or steps."""
    unit, at = words.rsplit(" ", 2)[1:]
    return round(2 * float(at)) + (unit == "step")


def simulated(script: Played, look: Look) -> tuple[dict[str, str], str]:
    """Let the simulator take the snapshot that was dragged, in ticks of half the length; return
    what each process and channel recorded, and whether the system was ever so."""
    process, _, initiated = look.initiation.partition(" initiates ")
    world = script.world
    description = world.description
    trace, _, _ = without_snapshot(world.epoch.trace(description), script)
    actions: list[tuple[int, str]] = [(half(initiated), f"{process} initiates {process}-1")]
    takes = []
    for _, event in trace.positions():
        assert event.at is not None
        if not event.accepted:
            actions.append((2 * round(event.at), f"{event.process} does {event.label}"))
        for message in event.sent:
            accepted = trace.event(trace.accepted_in(message) or pytest.fail("never accepted"))
            assert accepted.at is not None
            takes.append(
                f"{script.narrator.name(message)} takes {2 * round(accepted.at - event.at)}"
            )
    cuts = {name: half(words) for name, words in look.processes.items()}
    takes += [
        f"marker {channel} takes {arrival - cuts[channel.partition('->')[0]]}"
        for channel, arrival in look.arrivals.items()
    ]
    lines = [f"{tick} {action}" for tick, action in sorted(actions, key=lambda pair: pair[0])]
    again = play_text("\n".join([*script.blocks[0].commands, "----", "", "ticks", *takes, *lines]))
    snapshot = again.world.epoch.outcomes[SnapshotId(process, 1)]
    assert isinstance(snapshot, Snapshot)
    contents = again.narrator.contents(snapshot)
    recorded = {str(channel): "empty" for channel in description.channels}
    for line in contents[:-1]:
        name, _, state = line.strip().partition(" ")
        if state.startswith("{"):
            recorded[name] = state
        elif state.startswith("held "):
            recorded[name] = state.removeprefix("held ")
    # The cuts are where the page says, too: at the half ticks at which the simulator recorded.
    found = {
        step.process: step.at
        for step in again.world.epoch.steps
        if not isinstance(step, Event) and step.is_cut
    }
    assert found == cuts
    return recorded, contents[-1].strip()


def initiation(page: Page) -> Locator:
    """Return the handle of the initiation."""
    return page.get_by_role("slider", name="initiation")


def shown(page: Page) -> tuple[dict[str, str], str]:
    """Return what the page says to be recorded, and whether the system was ever so."""
    return Look(page).recorded


def marker(page: Page, channel: str) -> Locator:
    """Return the handle of a marker."""
    return page.get_by_role("slider", name=f"marker {channel}")


def drag(page: Page, handle: Locator, x: float, y: float) -> None:
    """Drag a handle by so many pixels."""
    grip = handle.locator(".grip")
    # A long picture is scrolled sideways in its own frame.
    grip.evaluate("grip => grip.scrollIntoView({block: 'nearest', inline: 'nearest'})")
    box = grip.bounding_box()
    assert box is not None
    begin = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    is_gripped = "([x, y]) => document.elementFromPoint(x, y)?.closest('.handle') != null"
    assert page.evaluate(is_gripped, begin), f"there is no handle at {begin}"
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move(begin[0] + x / 2, begin[1] + y / 2)
    page.mouse.move(begin[0] + x, begin[1] + y)
    page.mouse.up()


@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize("which", ["lecture", "lecture-ticks", *seeds("drag", 9, night=4)])
def test_whatever_is_dragged_is_what_the_simulator_records(
    page: Page, tmp_path: Path, which: str | int
) -> None:
    """Of the lecture by its steps and by the clock, and of executions by chance: the initiation and
    the markers anywhere, by pointer and by key."""
    script = played(which) if isinstance(which, str) else by_chance(which)
    show(page, tmp_path / "page.html", script)
    page.set_viewport_size(ROOMY)
    page.locator(".scrubber").evaluate("section => section.scrollIntoView()")
    rng = random.Random(which)
    look = Look(page)
    assert look.recorded == simulated(script, look)
    seen = set()
    for _ in range(by_night(14, check=6)):
        if rng.random() < 0.25:
            page.get_by_role("button", name="Reset").click()
            look = Look(page)
        handle = initiation(page) if rng.random() < 0.5 else marker(page, rng.choice(look.markers))
        if rng.random() < 0.6:
            drag(page, handle, rng.uniform(-200, 200), rng.choice((0, -150, 150)))
        else:
            handle.focus()
            for key in rng.choices(("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"), k=4):
                page.keyboard.press(key)
        look = Look(page)
        assert look.recorded == simulated(script, look)
        seen.add(str(look.recorded))
    assert len(seen) >= 3


@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize("which", ["lecture", "lecture-ticks", *seeds("drag", 5, 9, night=20)])
def test_it_begins_as_the_script_says(page: Page, tmp_path: Path, which: str | int) -> None:
    """And comes back to that by a button, whatever was dragged."""
    script = played(which) if isinstance(which, str) else by_chance(which)
    show(page, tmp_path / "page.html", script)
    (snapshot,) = script.world.epoch.outcomes.values()
    assert isinstance(snapshot, Snapshot)
    first = shown(page)
    said = [
        f"  {name} {words if '{' in words else f'held {words}'}"
        for name, words in first[0].items()
        if words != "empty"
    ]
    contents = script.narrator.contents(snapshot)
    assert sorted(said) == sorted(line for line in contents[:-1] if "empty" not in line)
    assert first[1] == contents[-1].strip()
    initiation(page).press("End")
    assert shown(page) != first
    page.get_by_role("button", name="Reset").click()
    assert shown(page) == first


def test_messages_of_the_same_name_are_not_taken_for_each_other(page: Page, tmp_path: Path) -> None:
    """Only the one that the channel held is thick."""
    channel = Channel("A", "B")
    first, second = MessageId(channel, 1), MessageId(channel, 2)
    steps: list[Step] = [
        Event("A", "pay", sent=(first,)),
        Event("B", "paid", accepted=(first,)),
        Event("A", "pay", sent=(second,)),
        MarkerStep("B", SnapshotId("B", 1), is_cut=True),
        Event("B", "paid", accepted=(second,)),
        MarkerStep("A", SnapshotId("B", 1), source="B", is_cut=True, targets=("B",)),
        MarkerStep("B", SnapshotId("B", 1), source="A"),
    ]
    trace = Trace(("A", "B"), steps, [channel, Channel("B", "A")])
    document = player_document(trace, title="pay")
    (tmp_path / "page.html").write_text(
        self_contained_page.render(document, title="pay"), encoding="utf-8"
    )
    page.goto((tmp_path / "page.html").as_uri())
    assert Look(page).channels == {"A->B": "pay→paid", "B->A": "empty"}
    assert page.locator(".scrubber svg .caught").count() == 1


def test_a_marker_overtakes_no_message_and_none_overtakes_it(page: Page, tmp_path: Path) -> None:
    """H>D was sent on P2->P1 before the marker, and comes at tick 9; E>K on P1->P3 behind it, and
    comes at tick 12."""
    show(page, tmp_path / "page.html", played("lecture-ticks"))
    page.locator(".scrubber").evaluate("section => section.scrollIntoView()")
    first = marker(page, "P2->P1")
    first.press("Home")
    assert first.get_attribute("aria-valuenow") == "9.5"
    drag(page, first, -400, 0)
    assert first.get_attribute("aria-valuenow") == "9.5"
    second = marker(page, "P1->P3")
    second.press("End")
    assert second.get_attribute("aria-valuenow") == "11.5"


def test_keys_move_the_snapshot_and_what_comes_of_it_is_announced(
    page: Page, tmp_path: Path
) -> None:
    """Left and right in time, up and down to another process; the player does not move with it."""
    show(page, tmp_path / "page.html", played("lecture-ticks"))
    initiation(page).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert initiation(page).get_attribute("aria-valuetext") == "P2 initiates at tick 4.5"
    announced = page.locator("#announcements").inner_text()
    assert announced.startswith("P2 initiates at tick 4.5: P1 {A, B, C}; P2 {F, G}; P3 {I}")
    assert page.locator(".play .place").inner_text() == "step 0 of 18"
    page.keyboard.press("Home")
    assert initiation(page).get_attribute("aria-valuenow") == "0.5"


def test_events_and_messages_are_coloured_by_what_is_dragged(page: Page, tmp_path: Path) -> None:
    """White before the cut, red after it, thick what a channel held."""
    show(page, tmp_path / "page.html", played("lecture-ticks"))
    for key in ("End", "Home"):
        initiation(page).press(key)
        white = page.locator(".scrubber .white text").all_text_contents()
        look = Look(page)
        states = [
            words.partition("}")[0].strip("{").split(", ") for words in look.processes.values()
        ]
        assert sorted(white) == sorted(label for labels in states for label in labels if label)
        held = [words for words in look.channels.values() if words != "empty"]
        assert page.locator(".scrubber svg .caught").count() == len(
            ", ".join(held).split(", ")
        ) * bool(held)


def test_a_process_that_no_marker_reaches_is_named(page: Page, tmp_path: Path) -> None:
    """Where channels go one way only, it matters who initiates."""
    system = "system\nP1: A\nP2: B\nmessages: A>B\nchannels: P1->P2\n----\n\n"
    show(
        page,
        tmp_path / "page.html",
        play_text(f"{system}ticks\n0 P1 initiates P1-1\n2 P1 does A\n"),
    )
    assert shown(page) == ({"P1": "{}", "P2": "{}", "P1->P2": "empty"}, "so it was after 0 events")
    initiation(page).press("ArrowDown")
    assert shown(page)[0]["P1"] == "never"
    assert shown(page)[1] == "the snapshot is never complete: no marker arrives at P1"
    check_accessible(page)


def test_nobody_is_kept_from_dragging(page: Page, tmp_path: Path) -> None:
    """In light and dark, and also on a narrow screen."""
    show(page, tmp_path / "page.html", played("lecture-ticks"))
    check_everybody_can_use(page)
