"""The dashboard and the alerts ask for metrics and labels that there are, in a system that runs."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml

from stillframe.imports import load_topology
from stillframe.pipeline import retained
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.runtime.supervisor.admin_socket import serve_commands
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.observations import ObservationReader
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.watch.metrics import OBSERVATIONS
from stillframe.watch.observation_target import ObservationTarget
from stillframe.watch.pipeline_target import PipelineTarget
from tests.calm import BANK
from tests.pipeline.topics_shop import Shop
from tests.watch.endpoint import Endpoint
from tests.watch.observed import publish, ring
from tests.watch.scraping import watching

ROOT = Path(__file__).parent.parent.parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
PAGE = ROOT / "docs" / "metrics.md"
TIMEOUT_S = 120
OF_PROMETHEUS = {"instance", "job"}
"""The labels that it adds, to all that it scrapes."""


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of the dashboard, with how its series are called."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["expr"], ""


def rules() -> list[dict[str, Any]]:
    """Return the alerts of the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (alerts,) = [block for block in blocks if "alert:" in block]
    (group,) = yaml.safe_load(alerts)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def asked(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield what a query asks for: each metric, with the labels by which it chooses or groups."""
    found: list[Any] = []
    parsed = promql_parser.parse(query.replace("$__rate_interval", "5m"))
    promql_parser.walk(parsed, found.append)
    grouped = {
        label
        for part in found
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None
        for label in part.modifier.labels
    }
    found += [p.vector_selector for p in found if isinstance(p, promql_parser.MatrixSelector)]
    for part in found:
        if isinstance(part, promql_parser.VectorSelector):
            yield str(part.name), {m.name for m in part.matchers.matchers} | grouped


def choosing_metric() -> str:
    """Return the metric that a watcher must have to be selected."""
    (variable,) = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    found = re.fullmatch(r"label_values\((\w+), instance\)", variable["definition"])
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the labels of each metric that is scraped of a bank that runs, and of observations."""
    directory = tmp_path_factory.mktemp("bank")
    endpoint = Endpoint()

    async def main() -> dict[str, set[str]]:
        description = load_topology(BANK).description
        store = Store.create(directory / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store) as system,
            serve_commands(system),
            watching(local(store.path), otlp=endpoint.url) as watcher,
        ):
            assert isinstance(await system.snapshot(), SnapshotEntry)
            scrape = await watcher.until("evaluated_snapshot_number", 1)
            publish(directory / "seen", ring(1, "AB"))
            async with watching(directory / "seen", otlp=endpoint.url) as other:
                seen = await other.scrape()
        store.close()
        found: dict[str, set[str]] = {"up": set()}
        for name, labels in (*scrape.samples, *seen.samples):
            found.setdefault(name, set()).update(label for label, _ in labels)
        return found

    with endpoint.open(), pytest.MonkeyPatch.context() as patched:
        shop = Shop(directory / "shop.pipeline", patched)
        shop.run()
        shop.pipeline.snapshot()
        return asyncio.run(main()) | {name: set() for name in figures(shop)}


def figures(shop: Shop) -> dict[str, float]:
    """Return the metrics without labels of a pipeline."""
    metrics = asyncio.run(PipelineTarget(shop.path).metrics())
    samples = [one for family in metrics.collect() for one in family.samples]
    return {one.name: one.value for one in samples if not one.labels}


def check(query: str, told: dict[str, set[str]]) -> set[str]:
    """Check that what a query asks for is there; return the labels that its series may have."""
    metrics = list(asked(query))
    assert metrics, query
    for name, labels in metrics:
        assert name in told, f"{query} asks for {name}"
        assert labels <= told[name] | OF_PROMETHEUS, f"{query} asks for other labels of {name}"
    return set.union(*(told[name] for name, _ in metrics)) | OF_PROMETHEUS


@pytest.mark.slow
def test_every_panel_shows_what_there_is(told: dict[str, set[str]]) -> None:
    """Each query asks for metrics and labels of a real scrape, and so does each legend."""
    for query, legend in queries():
        may_have = check(query, told)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= may_have, legend
        assert 'instance="$instance"' in query
    assert choosing_metric() in told


@pytest.mark.slow
def test_every_alert_asks_for_what_there_is(told: dict[str, set[str]]) -> None:
    """And says only what its series have."""
    for rule in rules():
        may_have = check(rule["expr"], told)
        words = rule["annotations"]["summary"]
        assert set(re.findall(r"\{\{ \$labels\.(\w+) \}\}", words)) <= may_have
        assert re.fullmatch(r"Stillframe[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


QUERY = """
import json, os, sys, time
checkpoint, first, *ends = sys.argv[1:]
for step, _ in enumerate(sys.stdin):
    batch, is_planned = int(first) + step // 2, step % 2 == 0
    offsets = json.dumps({"shop-orders": {"0": int(ends[step // 2]), "1": int(ends[step // 2])}})
    plan = json.dumps({"batchTimestampMs": int(1000 * time.time())})
    path = f"{checkpoint}/{'offsets' if is_planned else 'commits'}/{batch}"
    with open(path, "x") as file:
        file.write(f"v1\\n{plan}\\n{offsets}" if is_planned else "v1\\n{}")
    print(flush=True)
"""
"""A program that plans a micro-batch, or commits it, for each line that it reads."""


@pytest.mark.parametrize("step_count", [0, 1])
def test_a_stopped_query_raises_an_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_count: int
) -> None:
    """In a micro-batch, and between two of them, when records arrive that it does not read. What it
    does once it runs again ends the alert."""
    (rule,) = [one for one in rules() if one["alert"] == "StillframeStale"]
    metric, limit = rule["expr"].split(" > ")
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    place = checkpoint_path(shop.path, shop.pipeline.epoch, "dedup")
    words = [sys.executable, "-c", QUERY, str(place), "3", "8", "10", "10"]

    def stale_s(later_s: float = 0.0) -> float:
        """Return what the metric shows if a snapshot is taken so much later."""
        with monkeypatch.context() as patched:
            now = time.time() + later_s
            clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic, sleep=time.sleep)
            patched.setattr(retained, "time", clock)
            shop.pipeline.snapshot(report=lambda words: None)
        return figures(shop)[metric]

    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as query:
        assert query.stdin is not None
        assert query.stdout is not None

        def go(count: int) -> None:
            """Let the query take some steps."""
            query.stdin.write(b"\n" * count)  # type: ignore[union-attr]
            query.stdin.flush()  # type: ignore[union-attr]

        def wait(count: int) -> None:
            """Wait until it has taken them."""
            for _ in range(count):
                assert query.stdout.readline()  # type: ignore[union-attr]

        go(2 + step_count)
        wait(2 + step_count)
        assert stale_s() < float(limit)
        query.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(query.pid, os.WUNTRACED)[1])
        shop.brokers.now_ms = int(1000 * time.time())
        shop.send("orders", 4)
        go(4 - step_count)
        assert stale_s(2 * float(limit)) > float(limit)
        query.send_signal(signal.SIGCONT)
        wait(4 - step_count)
        assert stale_s(2 * float(limit)) == 0.0
        query.stdin.close()


def test_every_metric_of_observations_has_a_panel() -> None:
    """None was forgotten."""
    of_panels = {name for query, _ in queries() for name, _ in asked(query)}
    assert {f"stillframe_{name}" for name in OBSERVATIONS} <= of_panels


def test_a_watcher_of_observations_can_be_selected(tmp_path: Path) -> None:
    """It has no metric of whether a system runs."""
    publish(tmp_path, ring(1, "AB"))
    metrics = asyncio.run(ObservationTarget(ObservationReader(tmp_path)).metrics())
    names = {one.name for family in metrics.collect() for one in family.samples}
    assert choosing_metric() in names


def test_the_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    """Nothing is hidden behind another one, or goes over the edge."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken
        assert columns[-1] < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize(
    "query", ["stillframe_ups", 'stillframe_up{system="x"}', "sum by (process) (stillframe_up)"]
)
def test_a_query_for_what_there_is_not_is_found(query: str) -> None:
    """The tests above have teeth."""
    with pytest.raises(AssertionError, match="asks for"):
        check(query, {"stillframe_up": set()})
