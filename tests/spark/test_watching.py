"""The live page of a pipeline that runs on Spark, in a real browser."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Locator, Page, expect
from pyspark.sql import DataFrame, SparkSession, functions

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.locks import is_running
from stillframe.pipeline.service import join
from stillframe.spark.queries import read_channels, start_query
from tests.browser import a_browser, a_page, check_accessible, check_everybody_can_use
from tests.spark.flows import wait_until
from tests.watch.servers import a_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PURCHASES = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
SUMS = pa.schema([("customer", pa.string()), ("total", pa.int64())])


@dataclass
class Till:
    """Counts what it has sold."""

    sold_count: int = 0


class Selling:
    """Runs the till in a thread; it sells as much as it is told to."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._wanted = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sell)
        self._thread.start()

    def sell(self, count: int) -> None:
        """Sell so many more, one after the other."""
        self._wanted += count

    def end(self) -> None:
        """Leave."""
        self._is_over.set()
        self._thread.join()

    def _sell(self) -> None:
        state = Till()
        with join("till", pipeline=self._pipeline.path, state=state) as me:
            while not self._is_over.wait(0.01):
                if state.sold_count < self._wanted:
                    sold = {"customer": [f"c{state.sold_count % 3}"], "amount": [1]}
                    me.append("purchases", pa.table(sold, schema=PURCHASES))
                    state.sold_count += 1
                me.boundary()


def make_shop(path: Path) -> Pipeline:
    """Make a pipeline: one query adds purchases up, another hands them to a sink."""
    return Pipeline.create(
        path,
        services={"till": Till},
        queries=["sums", "mails"],
        channels=[
            channel("purchases", PURCHASES, source="till", targets=["sums", "mails"]),
            channel("totals", SUMS, source="sums"),
        ],
    )


@contextlib.contextmanager
def running(spark: SparkSession, shop: Pipeline, gate: threading.Event) -> Iterator[Selling]:
    """Run the queries and the till; micro-batches of the mails wait for `gate`."""

    def send(frame: DataFrame, number: int) -> None:
        gate.wait(300)

    purchases = read_channels(spark, shop, "sums", "purchases")
    sums = purchases.groupBy("customer").agg(functions.sum("amount").alias("total"))
    mails = read_channels(spark, shop, "mails", "purchases")
    selling = Selling(shop)
    queries = [
        start_query(sums, shop, "sums", output_mode="update"),
        start_query(mails, shop, "mails", output_mode="append", each_batch=send),
    ]
    try:
        yield selling
    finally:
        gate.set()
        selling.end()
        for query in queries:
            query.stop()
        wait_until(lambda: not any(is_running(shop.path, name) for name in ("sums", "mails")))


def cells(page: Page, log: str) -> Locator:
    """Return the figures of a log: records a second, appended, read, behind, items behind."""
    row = page.locator(".tables tr").filter(has=page.get_by_role("cell", name=log, exact=True))
    return row.locator("td.number")


def test_a_pipeline_is_watched_photographed_and_taken_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its graph has queries and logs; the lag goes to 0; a click takes a snapshot; a query that
    does not come to the end of its micro-batch is said to hold the next one up; what is stopped is
    restored by clicking."""
    shop = make_shop(tmp_path / "shop.pipeline")
    gate = threading.Event()
    gate.set()
    with (
        a_server(shop.path) as link,
        a_browser() as browser,
        a_page(browser, color_scheme="light") as page,
    ):
        page.goto(link)
        expect(page.locator(".state")).to_have_text("stopped · epoch 1")
        page.get_by_text("Queries, services and channels in figures").click()
        with running(spark, shop, gate) as selling:
            expect(page.locator(".state")).to_have_text("running · epoch 1")
            for name in ("till", "sums", "mails", "purchases", "totals"):
                expect(page.locator(".graph").get_by_text(name, exact=True).first).to_be_visible()
            selling.sell(60)
            for log in ("purchases: till to sums", "purchases: till to mails"):
                expect(cells(page, log).nth(1)).to_have_text("60")
                expect(cells(page, log).nth(2)).to_have_text("60")
                expect(cells(page, log).nth(3)).to_have_text("0")
            page.get_by_role("button", name="Take a snapshot").click()
            expect(page.locator(".bar .action-status")).to_contain_text("was recorded in")
            expect(page.get_by_role("link", name="shop-1")).to_be_visible()
            assert [str(one.snapshot) for one in shop.snapshots()] == ["shop-1"]

            gate.clear()
            selling.sell(10)
            expect(cells(page, "purchases: till to sums").nth(3)).to_have_text("0")
            expect(cells(page, "purchases: till to mails").nth(1)).to_have_text("70")
            expect(cells(page, "purchases: till to mails").nth(3)).not_to_have_text("0")
            page.get_by_role("button", name="Take a savepoint").click()
            page.get_by_label("Name").fill("held-up")
            page.keyboard.press("Enter")
            expect(page.locator(".pending-snapshot")).to_contain_text(
                "mails has not recorded: it is in micro-batch"
            )
            expect(page.locator(".process.straggler").filter(has_text="mails")).to_have_count(1)
            check_everybody_can_use(page)

            page.get_by_role("button", name="Restore shop-1").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text(f"stillframe pipeline restore {shop.path} shop-1")
            expect(dialog).to_contain_text("Stop them before restoring")
            dialog.get_by_role("button", name="Close").click()
            gate.set()
            page.get_by_role("heading", level=1).first.click()  # whoever is in the list holds it
            expect(page.locator(".snapshots tbody tr").first).to_contain_text("held-up")
            expect(cells(page, "purchases: till to mails").nth(3)).to_have_text("0")
        expect(page.locator(".state")).to_have_text("stopped · epoch 1")
        page.get_by_role("button", name="Restore shop-1").click()
        page.get_by_role("button", name="Restore", exact=True).click()
        expect(page.locator(".state")).to_have_text("stopped · epoch 2")
        expect(page.locator(".event-entry.restore")).to_contain_text("began from snapshot shop-1")
        expect(cells(page, "purchases: till to sums").nth(1)).to_have_text("60")
        page.get_by_role("link", name="shop-2").click()
        expect(page.get_by_role("heading", name="Snapshot shop-2")).to_be_visible()
        expect(page.get_by_role("rowheader", name="after micro-batch").first).to_be_visible()
        check_accessible(page)
    assert shop.epoch == 2
