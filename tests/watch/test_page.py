"""The live page in a real browser, against a running demo."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from stillframe import Process, Topology
from stillframe.model import GlobalState, ProcessState, Snapshot, SnapshotId
from stillframe.pages.self_contained_page import bundle
from stillframe.protocol.stragglers import EndpointStatus, ProcessStatus
from stillframe.runtime.supervisor.admin_socket import SystemStatus, query_status
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.watch import system_target, topic_probe
from stillframe.watch.server import PAGE, page_file
from stillframe.watch.snapshot_list import SnapshotList, store_row
from tests.browser import NARROW, a_page, check_accessible, check_everybody_can_use
from tests.cli.pipelines import add_up, resting_shop
from tests.pipeline.topics_shop import Shop
from tests.shapes import same_shape
from tests.watch.observed import Call, crowd, observed
from tests.watch.observed import publish as publish_observations
from tests.watch.observed import ring as ring_of_calls
from tests.watch.programs import Shouting, calm, hostile, ring
from tests.watch.published import a_store, new_store, publish
from tests.watch.servers import a_system, page_of, running, served, shown, until

pytestmark = pytest.mark.slow
WEIGHT_BYTES_MAX = 300_000
Visit = Callable[[AbstractContextManager[str]], str]


class Running(NamedTuple):
    """A system that runs.

    Attributes:
        supervisor: its program.
        store: where its store is.
        link: its page.
    """

    supervisor: "subprocess.Popen[str]"
    store: Path
    link: str


@pytest.fixture(scope="module")
def running_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three accounts that pay each other; they take a snapshot when somebody wants one."""
    directory = tmp_path_factory.mktemp("system")
    with (
        a_system(directory, "--every", "never") as supervisor,
        page_of(directory / "store") as link,
    ):
        yield Running(supervisor, directory / "store", link)


@pytest.fixture
def system(page: Page, running_system: Running) -> Iterator[Running]:
    """The running system, on the page; the page is left afterwards."""
    page.goto(running_system.link)
    expect(page.locator(".state")).to_have_text(runs(running_system))
    yield running_system
    page.goto("about:blank")


@pytest.fixture
def visit(page: Page) -> Iterator[Visit]:
    """Return what serves a page of something; the page is left before its server ends."""
    with ExitStack() as servers:
        yield servers.enter_context
        page.goto("about:blank")


def runs(system: Running, *, later: int = 0) -> str:
    """Return what the page says of a system that runs, so many epochs later than it is now."""
    return f"runs · epoch {Store.open(system.store).epoch + later}"


def newest(store: Path) -> str:
    """Return the id of the newest snapshot."""
    return str(Store.open(store).entries()[-1].id)


def status_of(page: Page, process: str) -> str:
    """Return what the figures below the graph say of a process."""
    row = page.locator(".tables tbody tr").filter(has=page.get_by_role("rowheader", name=process))
    return row.locator("td").nth(1).inner_text()


def test_a_snapshot_is_taken_kept_and_restored_by_clicking(page: Page, system: Running) -> None:
    """Each of them is in the store afterwards, and on the page."""
    store = system.store
    before, epoch = len(Store.open(store).entries()), Store.open(store).epoch
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.locator(".bar .action-status")).to_contain_text("was taken in")
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
    expect(page.locator(".bar .action-status")).to_contain_text(
        "the savepoint 'good.one' already exists"
    )
    page.get_by_role("button", name=f"Restore {taken}").click()
    page.get_by_role("button", name="Leave it").click()
    assert Store.open(store).epoch == epoch
    page.get_by_role("button", name=f"Restore {taken}").click()
    page.get_by_role("button", name="Restore", exact=True).click()
    expect(page.locator(".state")).to_have_text(f"runs · epoch {epoch + 1}")
    assert str(Store.open(store).restored_from) == taken
    expect(page.locator(".event-entry.restore").first).to_contain_text(
        f"epoch {epoch + 1} began from snapshot {taken}"
    )


def test_a_killed_process_and_its_return_are_shown(page: Page, system: Running) -> None:
    """Its death is told with its cause, and the system runs again, in the next epoch."""
    again = runs(system, later=1)
    page.get_by_text("Processes and channels in figures").click()
    until(lambda: status_of(page, "P3") in ("running", "busy"), "P3 runs")
    os.kill(running(system.store).children["P3"].pid, signal.SIGSTOP)
    until(lambda: status_of(page, "P3") == "silent", "P3 is silent")
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.locator(".pending-snapshot").first).to_contain_text("P3 does not answer")
    os.kill(running(system.store).children["P3"].pid, signal.SIGKILL)
    expect(page.locator(".event-entry.death")).to_contain_text("process P3 died")
    expect(page.locator(".state")).to_have_text(again)
    until(lambda: status_of(page, "P3") in ("running", "busy"), "P3 is back")


def test_a_system_that_stands_still_is_not_said_to_have_ended(page: Page, system: Running) -> None:
    """Nobody knows of its processes then; it goes on as if nothing had been."""
    same = runs(system)
    system.supervisor.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator(".state")).to_have_text("does not answer")
        expect(page.locator(".graph .process.silent")).to_have_count(3)
    finally:
        system.supervisor.send_signal(signal.SIGCONT)
    expect(page.locator(".state")).to_have_text(same)


def test_the_page_says_when_the_system_and_when_the_server_is_gone(
    tmp_path: Path, browser: Browser
) -> None:
    """What it shows then is said to be from before; nothing can be clicked that needs them."""
    store = a_store(tmp_path)
    with a_page(browser, lost_connections=True) as page:
        with page_of(store) as link:
            page.goto(link)
            expect(page.locator(".state")).to_have_text("does not run")
            expect(page.get_by_text("no system is running on the store")).to_be_visible()
            expect(page.locator(".snapshots tbody tr").first).to_contain_text(newest(store))
            expect(page.get_by_role("button", name="Take a snapshot")).to_be_disabled()
        expect(page.locator(".connection-lost")).to_contain_text("was lost at")


def test_the_link_of_a_snapshot_leads_to_its_state(
    tmp_path: Path, page: Page, visit: Visit
) -> None:
    """From the list, by the address alone, and back; one that is not there is said not to be."""
    store = a_store(tmp_path)
    first, name = str(Store.open(store).entries()[0].id), newest(store)
    link = visit(page_of(store))
    page.goto(link)
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=f"Snapshot {name}")).to_be_visible()
    page.get_by_role("link", name="← The running system").click()
    expect(page.locator(".graph")).to_be_visible()
    page.goto(f"{link}#snapshot={name}")
    expect(page.get_by_role("heading", name=f"Snapshot {name}")).to_be_visible()
    page.goto(link)
    page.get_by_role("button", name=f"Compare {first} with another").click()
    page.get_by_role("button", name=f"Compare {name} with {first}").click()
    expect(page).to_have_url(re.compile(f"#first={first}&second={name}$"))
    expect(page.get_by_role("heading", level=1).last).to_contain_text(first)
    expect(page.get_by_role("heading", level=1).last).to_contain_text(name)


def test_two_snapshots_of_a_pipeline_are_compared_by_clicking(
    tmp_path: Path, page: Page, visit: Visit
) -> None:
    """The books have read one record more in the second."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    for _ in range(2):
        shop.snapshot()
        add_up(shop, 1)
    page.goto(visit(page_of(shop.path)))
    page.get_by_role("button", name="Compare shop-1 with another").click()
    page.get_by_role("button", name="Compare shop-2 with shop-1").click()
    expect(page).to_have_url(re.compile("#first=shop-1&second=shop-2$"))
    expect(page.get_by_text("held 2, then 1")).to_be_visible()
    expect(page.get_by_text("compare it with stillframe.spark.diff")).to_be_visible()
    check_accessible(page)


def test_a_pipeline_with_topics_is_shown_with_what_its_readers_have_left(
    tmp_path: Path, page: Page, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph begins and ends outside; a snapshot is found by a click, with its staleness, and
    the page says how to do without one. When Kafka is away it says so, and the rest stays."""
    monkeypatch.setattr(topic_probe, "WAIT_S", 60)
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    page.goto(visit(page_of(shop.path)))
    expect(page.locator(".badge", has_text="4 behind")).to_have_count(2)
    expect(page.locator("g.process.input")).to_contain_text("16 offsets")
    expect(page.locator("g.process.output")).to_contain_text("4 offsets")
    expect(page.get_by_text("--newest-consistent")).to_be_visible()
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.get_by_role("cell", name="retained, staleness 0 s")).to_be_visible()
    expect(page.get_by_text("ago with a staleness of 0 s.")).to_be_visible()
    page.get_by_text("Queries, services and channels in figures").click()
    check_everybody_can_use(page)
    page.get_by_role("link", name="shop-1").click()
    expect(page.get_by_role("cell", name="0: 6, 1: 6").first).to_be_visible()
    expect(page.get_by_text("records in transit are in Kafka")).to_be_visible()
    check_everybody_can_use(page)
    page.go_back()
    shop.brokers.why_away = "connection refused"
    expect(page.locator(".graph-panel > p").first).to_contain_text("connection refused")
    expect(page.locator(".badge", has_text="behind")).to_have_count(0)
    expect(page.locator("g.process", has_text="dedup")).to_contain_text("batch 2")


def test_the_page_is_for_everybody(page: Page, system: Running) -> None:
    """The checker finds nothing, nothing is wider than the screen, and the keyboard is enough; in
    light and dark, on a desk and on a phone."""
    expect(page.locator(".chip").first).to_be_visible()
    expect(page.locator(".chart").first).to_be_visible()
    page.get_by_text("Processes and channels in figures").click()
    check_everybody_can_use(page)
    page.get_by_role("button", name="Take a savepoint").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    check_everybody_can_use(page, within="dialog")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def told(topology: Topology) -> SystemStatus:
    """Return what a system says of itself whose processes all run, and were never sent anything."""
    description, end = topology.description, EndpointStatus(is_connected=True, unhandled_bytes=0)
    statuses = {
        name: ProcessStatus(
            is_busy=False,
            snapshots=(),
            incoming=dict.fromkeys(description.incoming(name), end),
            outgoing=dict.fromkeys(description.outgoing(name), end),
            quantities=dict(process.conserved()) if isinstance(process, Process) else {},
        )
        for name, process in topology.processes.items()
    }
    return SystemStatus(1, is_running=True, statuses=statuses)


def said(store: Path) -> SystemStatus:
    """Return what the system that runs on `store` says of itself."""
    with ThreadPoolExecutor(1) as thread:  # the browser's event loop runs in this one
        return thread.submit(asyncio.run, query_status(store)).result()


def test_what_is_told_looks_like_what_a_system_says(running_system: Running) -> None:
    """Of the same processes and channels, with the same quantities."""
    made_up = told(calm)
    until(lambda: said(running_system.store).statuses.keys() == calm.processes.keys(), "all answer")
    same_shape(made_up, said(running_system.store))


@pytest.fixture
def running_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Topology, str], Store]:
    """Return what makes a store whose system says of itself that it runs, and is not there."""

    def make(topology: Topology, reference: str) -> Store:
        async def observe(*_: object) -> SystemStatus:
            return told(topology)

        monkeypatch.setattr(system_target, "query_status", observe)
        description = topology.description
        store = Store.create(tmp_path / "store", description=description, reference=reference)
        store.raise_epoch(None)
        return store

    return make


def test_what_comes_from_a_process_is_shown_as_text(
    page: Page, visit: Visit, running_as_told: Callable[[Topology, str], Store]
) -> None:
    """Whatever it says: it makes no element, and nothing of it runs."""

    def fail(dialog: Dialog) -> None:
        pytest.fail(f"something ran: {dialog.message}")

    store = running_as_told(hostile, "tests.watch.programs:hostile")
    state = StateCodec(Shouting).capture(Shouting())
    states = tuple(ProcessState(name, "Shouting", state) for name in hostile.processes)
    taken = SnapshotId("P2", 1)
    store.publish(Snapshot(taken, store.epoch, 1.0, 1.5, GlobalState(states, ())))
    store.close()
    link = visit(page_of(local(store.path)))
    page.on("dialog", fail)
    try:
        page.goto(link)
        expect(page.locator(".total strong").first).to_have_text("<b onclick=alert(3)>gold</b>")
        expect(page.locator(".total").nth(1)).to_contain_text("toString: 4 in")
        page.goto(f"{link}#snapshot={taken}")
        expect(page.get_by_role("heading", name="Snapshot")).to_be_visible()
        assert "onerror=alert(1)" in page.locator("main").inner_text()
        assert "Excluded" not in page.locator("main").inner_text()
        assert page.locator("main img, main script, main [onclick]").count() == 0
    finally:
        page.remove_listener("dialog", fail)


def test_fifty_processes_are_in_the_graph(
    page: Page, visit: Visit, running_as_told: Callable[[Topology, str], Store]
) -> None:
    """In the order of their numbers, and each as it is."""
    store = running_as_told(ring, "tests.watch.programs:ring")
    store.close()
    page.goto(visit(page_of(local(store.path))))
    expect(page.locator(".graph .process.running")).to_have_count(50)
    ys = [
        page.locator(".graph .process", has_text=re.compile(f"^P{n} ")).first.bounding_box()
        for n in (1, 2, 10)
    ]
    assert [box["y"] for box in ys if box] == sorted(box["y"] for box in ys if box)


def long_list(store: Store, count: int) -> SnapshotList[SnapshotId]:
    """Return a list of many snapshots, which all look like the one that is there."""
    (entry,) = store.entries()
    like = store_row(entry)
    ids = [SnapshotId("A", number) for number in range(1, count + 1)]
    found = SnapshotList(
        store.path, lambda: ids, lambda one: like | {"id": str(one), "number": one.number}
    )
    found.poll()
    return found


def test_of_many_snapshots_some_are_listed_and_older_ones_on_demand(
    tmp_path: Path, page: Page, visit: Visit
) -> None:
    """The newest first, without a gap; the page never has all of them."""
    count = 260
    with shown(a_store(tmp_path, 1)) as watched:
        assert isinstance(watched, system_target.SystemTarget)
        watched.snapshots = long_list(watched.store, count)
        page.goto(visit(served(watched)))
    rows = page.locator(".snapshots tbody tr th")
    expect(page.get_by_text(f"{count} snapshots in the store")).to_be_visible()
    older = page.get_by_role("button", name="Show older snapshots")
    for row_count in (25, 50, 75, 100, 125, 150):
        expect(rows).to_have_count(row_count)
        assert rows.all_inner_texts() == [f"A-{count - n}" for n in range(row_count)]
        older.click()


def test_what_came_while_somebody_was_in_the_list_is_shown_when_they_leave(
    tmp_path: Path, page: Page, visit: Visit
) -> None:
    """With the mouse, the keyboard, a dialog or the address; nothing else has to come."""
    with closing(new_store(tmp_path)) as store:
        publish(store, 1)
        page.goto(visit(page_of(local(store.path))))
        first = page.locator(".snapshots tbody tr").first
        link = first.get_by_role("link")
        come_later = page.get_by_text("; 1 newer ones appear when you leave the list.")
        open_dialog = "document.body.appendChild(document.createElement('dialog')).showModal()"
        ways: tuple[tuple[Callable[[], object], Callable[[], object]], ...] = (
            (first.hover, page.get_by_role("heading", level=1).first.hover),
            (link.focus, link.blur),
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
        first.hover()
        publish(store, 5)
        expect(come_later).to_be_visible()
        page.evaluate("location.hash = '#snapshot=A-1'")
        page.get_by_role("link", name="← The running system").click()
        expect(first).to_contain_text("A-5")


def test_observations_of_services_are_shown_as_they_come(
    tmp_path: Path, page: Page, visit: Visit
) -> None:
    """Who waits for whom, in a picture and as text; a deadlock, and what no caller waits for. A
    large system does not make the page wider, and a table that is open stays open."""
    store, first, second = tmp_path / "seen", "bank-0000000a", "bank-0000000b"
    lost = Call(first, None, 2, is_awaited=False)
    publish_observations(store, observed(1, [Call(first, second), lost], partial=("<b>x</b>",)))
    page.goto(visit(page_of(store)))
    expect(page.locator(".state")).to_have_text("partial")
    expect(page.get_by_text("partial: <b>x</b>")).to_be_visible()
    expect(page.locator(".channel title")).to_have_text(
        f"{first} waits for {second}: 1 call, the oldest for 3.0 s (being served: 1)"
    )
    # The list of the ledger is not stored here, and another instance may be known to it.
    for table, known in (
        ("Calls whose callers do not wait", "was accepted by no instance"),
        ("Calls that timed out so far", "may have been accepted"),
    ):
        cell = page.get_by_role("region", name=table).get_by_role("cell")
        expect(cell.filter(has_text=known)).to_be_visible()
    expect(page.get_by_role("button", name="Take a snapshot")).to_be_hidden()
    for name in ("Who waits for whom, as text", "Open calls", "Instances"):
        summary = page.locator("summary", has_text=name)
        summary.focus()
        page.keyboard.press("Enter")
    publish_observations(store, ring_of_calls(2, [first, second]))
    expect(page.locator(".state")).to_have_text("deadlock")
    expect(page.locator(".process.ring")).to_have_count(2)
    expect(page.locator(".event-entry.deadlock")).to_contain_text("deadlock in observation 2")
    expect(page.get_by_role("cell", name=f"being served by {first}")).to_be_visible()
    expect(summary).to_be_focused()
    check_everybody_can_use(page)
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("heading", name="Observation 1")).to_be_visible()
    expect(page.locator(".process.ring")).to_have_count(0)
    page.get_by_role("link", name="← The newest observation").click()
    publish_observations(store, crowd(3, instance_count=300, call_count=900))
    expect(page.get_by_text("so it shows services")).to_be_visible()
    expect(page.get_by_text("and 700 rows more")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


GRAPH = """
const channels = [[0, 1], [1, 0]];
const graph = new Graph({ kind: "system", processes: [["A", ""], ["B", ""]], channels });
const countOf = (selector) => document.querySelectorAll(selector).length;
globalThis.black = [];
const watch = new MutationObserver(() => black.push(countOf(".process.cut")));
watch.observe(document.body, { subtree: true, attributes: true });
document.body.append(graph.root);
const arrivals = [["A", "B", 0.004], ["B", "A", 0.01]];
graph.playMarkers({ id: "A-1", duration_s: 0.01, cuts: { A: 0, B: 0.004 }, arrivals });
globalThis.flying = countOf(".flying-marker");
globalThis.isOver = () => graph.animation === null;
"""


@pytest.mark.parametrize(("motion", "flying"), [("no-preference", 2), ("reduce", 0)])
def test_the_markers_of_a_snapshot_fly_once(
    page: Page, motion: Literal["no-preference", "reduce"], flying: int
) -> None:
    """Processes turn black as they record, also for those who want no motion; then all is as
    before."""
    page.goto("about:blank")
    page.emulate_media(reduced_motion=motion)
    page.set_content(f"<body></body><script type=module>{bundle('graph.js')}{GRAPH}</script>")
    page.wait_for_function("globalThis.isOver?.()")
    assert page.evaluate("flying") == flying
    assert page.evaluate("Math.max(...black)") == 2
    expect(page.locator(".process.cut, .flying-marker")).to_have_count(0)
    expect(page.locator(".marker-caption")).to_contain_text(
        "A-1, which took 10 ms, shown 220 times"
    )
    page.emulate_media(reduced_motion="null")


def test_the_page_is_light() -> None:
    """All that it loads is under 300 kB, before any compression."""
    sizes = {name: len(page_file(name).encode()) for name in PAGE}
    assert sum(sizes.values()) < WEIGHT_BYTES_MAX, sizes
