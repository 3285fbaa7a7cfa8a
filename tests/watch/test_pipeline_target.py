"""What is told of a pipeline as it happens, and what is done when somebody wishes it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stillframe.errors import StoreError, Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.pending_snapshot import pending_request
from stillframe.pipeline.service import join
from stillframe.watch import pipeline_target, topic_probe
from stillframe.watch.metrics import exposition
from stillframe.watch.pipeline_target import PipelineTarget
from stillframe.watch.target import CreateSavepoint, Restore, TriggerSnapshot
from tests.cli.pipelines import Till, add_up, commit, resting_shop, sales
from tests.pipeline.money import changed
from tests.pipeline.topics_shop import Shop
from tests.watch.heard import WAIT_S, Heard


def watching(shop: Pipeline, act: Callable[[Heard], Awaitable[None]]) -> Heard:
    """Watch a pipeline while something is done."""

    async def go() -> Heard:
        heard = Heard(target := PipelineTarget(shop.path))
        following = asyncio.ensure_future(target.run())
        listening = asyncio.ensure_future(heard.listen())
        await heard.until(lambda: "system" in heard.last and "snapshots" in heard.last)
        await act(heard)
        following.cancel()
        await asyncio.gather(following, listening, return_exceptions=True)
        return heard

    return asyncio.run(go())


def test_a_snapshot_is_taken_listed_and_shown(tmp_path: Path) -> None:
    """As the command takes it, with who recorded unaligned; its document has every state and what
    was on the channels."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 0, 1)

    async def act(heard: Heard) -> None:
        done = await heard.target.perform(TriggerSnapshot())
        assert done["is_done"], done
        assert done["snapshot"] == "shop-1"
        await heard.until(lambda: heard.last["snapshots"]["count"] == 1)
        document = await heard.target.snapshot("shop-1")
        assert (document["kind"], document["noun"]) == ("snapshot", "record")
        assert [one["process"] for one in document["processes"]] == ["audit", "books", "till"]
        assert document["processes"][0]["fields"][0] == {"name": "after micro-batch", "text": "0"}
        assert document["processes"][2]["fields"][0] == {"name": "sold", "text": "18"}
        assert document["is_current"]

    heard = watching(shop, act)
    (row,) = heard.last["snapshots"]["rows"]
    assert (row["id"], row["savepoints"]) == ("shop-1", [])
    assert row["mode"] == "aligned (books unaligned)"


def test_what_was_on_a_channel_is_in_the_document(tmp_path: Path) -> None:
    """Record by record, and a changed byte is named instead."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    assert not isinstance(shop.snapshot("unaligned"), Abandoned)

    async def act(heard: Heard) -> None:
        document = await heard.target.snapshot("shop-1")
        sold = document["channels"][0]
        assert sold["channel"] == "sales: till->books"
        assert (sold["message_count"], sold["sent_count"], sold["received_count"]) == (2, 3, 1)
        assert [one["fields"][0]["text"] for one in sold["messages"]] == ["6", "7"]
        assert [one["number"] for one in sold["messages"]] == [2, 3]
        for file in (shop.path / "channels" / "sales" / "epoch-1" / "data").iterdir():
            changed(file)
        (sold, *_) = (await heard.target.snapshot("shop-1"))["channels"]
        assert sold["messages"] == []
        assert ".parquet" in sold["error"]

    watching(shop, act)


def test_two_snapshots_are_compared(tmp_path: Path) -> None:
    """As far as their manifests tell; one that is not there is named."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    for _ in range(2):
        assert not isinstance(shop.snapshot(), Abandoned)
        add_up(shop, 1)

    async def act(heard: Heard) -> None:
        document = await heard.target.comparison("shop-1", "shop-2")
        assert (document["kind"], document["noun"]) == ("comparison", "record")
        assert document["channels"][0]["before"] == [3, 1, 2]
        assert document["channels"][0]["after"] == [3, 2, 1]
        with pytest.raises(UsageError, match="shop-9"):
            await heard.target.comparison("shop-1", "shop-9")

    watching(shop, act)


@pytest.mark.slow
def test_who_holds_a_snapshot_up_is_told(tmp_path: Path) -> None:
    """With a sentence; when it is over, it is listed."""
    shop = resting_shop(tmp_path / "shop.pipeline")

    async def act(heard: Heard) -> None:
        with join("till", pipeline=shop.path, state=Till()) as till:
            taking = asyncio.ensure_future(heard.target.perform(TriggerSnapshot(name="before")))
            await heard.until(lambda: heard.last["system"]["pending"])
            (one,) = heard.last["system"]["pending"]
            assert one["sentences"][0].startswith("till has not recorded")
            assert one["stragglers"] == ["till"]
            assert heard.last["system"]["running"] == ["till"]
            till.boundary()
            assert (await taking)["is_done"]
        await heard.until(lambda: heard.last["snapshots"]["count"] == 1)
        assert heard.last["snapshots"]["rows"][0]["savepoints"] == ["before"]
        await heard.until(lambda: "service till left" in str(heard.sentences))

    heard = watching(shop, act)
    assert heard.sentences[:2] == ["epoch 1 began from the initial states", "service till runs"]


@pytest.mark.slow
def test_what_is_given_up_elsewhere_is_told_with_who_was_missing(tmp_path: Path) -> None:
    """Nothing on the disk says it afterwards."""
    shop = resting_shop(tmp_path / "shop.pipeline")

    class Enough(Exception):
        pass

    is_told = threading.Event()

    def go_on(_: object) -> None:
        if is_told.is_set():
            raise Enough

    async def act(heard: Heard) -> None:
        with join("till", pipeline=shop.path, state=Till()):
            taking = asyncio.ensure_future(asyncio.to_thread(shop.snapshot, progress=go_on))
            await heard.until(
                lambda: [o["stragglers"] for o in heard.last["system"]["pending"]] == [["till"]]
            )
            is_told.set()
            with pytest.raises(Enough):
                await taking
            await heard.until(lambda: "was abandoned" in str(heard.sentences))

    heard = watching(shop, act)
    (told,) = (sentence for sentence in heard.sentences if "abandoned" in sentence)
    assert told.startswith("snapshot shop-1 was abandoned; missing: audit, books, till: till has")


def test_a_restore_is_done_when_nothing_runs_and_refused_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says who runs, and afterwards what to start."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.1)
    shop = resting_shop(tmp_path / "shop.pipeline")
    shop.savepoint("before")

    async def act(heard: Heard) -> None:
        with join("till", pipeline=shop.path, state=Till()) as till:
            till.append("sales", sales(8))
            with pytest.raises(Unavailable, match="till is running"):
                await heard.target.perform(Restore("before"))
        done = await heard.target.perform(Restore("before"))
        assert done["sentence"].endswith("start its programs again: audit, books, till")
        await heard.until(lambda: heard.last["system"]["epoch"] == 2)
        assert heard.last["system"]["channels"]["sent"] == [3, 1]

    heard = watching(shop, act)
    assert "epoch 2 began from snapshot shop-1" in heard.sentences
    assert not any("runs" in sentence and "till" not in sentence for sentence in heard.sentences)


def test_what_cannot_be_wished_is_refused(tmp_path: Path) -> None:
    """A pipeline has no initiator to choose, and names are given when a snapshot is taken."""
    shop = resting_shop(tmp_path / "shop.pipeline")

    async def act(heard: Heard) -> None:
        with pytest.raises(UsageError, match="sources of its dataflow"):
            await heard.target.perform(TriggerSnapshot(initiator="till"))
        with pytest.raises(UsageError, match="take a savepoint"):
            await heard.target.perform(CreateSavepoint("shop-1", "name"))

    watching(shop, act)


def test_nothing_stays_held_when_the_watcher_ends(tmp_path: Path) -> None:
    """A snapshot that somebody wished for is abandoned with it."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    refused: list[BaseException] = []

    async def act(heard: Heard) -> None:
        async def take() -> None:
            try:
                await heard.target.perform(TriggerSnapshot())
            except Unavailable as error:
                refused.append(error)

        taking.append(asyncio.ensure_future(take()))
        await heard.until(lambda: heard.last.get("system", {}).get("pending"))

    taking: list[asyncio.Future[None]] = []

    async def go() -> None:
        heard = Heard(target := PipelineTarget(shop.path))
        following = asyncio.ensure_future(target.run())
        listening = asyncio.ensure_future(heard.listen())
        await act(heard)
        following.cancel()
        await asyncio.gather(following, listening, return_exceptions=True)
        await taking[0]

    with join("till", pipeline=shop.path, state=Till()):
        asyncio.run(go())
        assert pending_request(shop.path) is None
    assert "was abandoned" in str(refused)


def test_trouble_is_told_once_and_does_not_end_it(tmp_path: Path) -> None:
    """A damaged item is named; the rest goes on."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    changed(shop.path / "channels" / "sales" / "epoch-1" / f"{2:020d}.json")

    async def act(heard: Heard) -> None:
        add = threading.Thread(target=add_up, args=(shop, 1))
        add.start()
        await heard.until(lambda: heard.last["system"]["channels"]["sent"] == [None, 2])
        add.join()

    heard = watching(shop, act)
    assert sum("00002.json" in sentence for sentence in heard.sentences) == 1
    assert "00002.json" in heard.last["system"]["explanation"]


def test_polls_that_fail_keep_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates stay relative to samples that were taken, however long the pipeline cannot be read."""
    target = PipelineTarget(resting_shop(tmp_path / "shop.pipeline").path)

    def fail() -> None:
        raise StoreError("the disk failed")

    async def go() -> None:
        await target.poll()
        samples = [*target._earlier]
        assert len(samples) == 1
        monkeypatch.setattr(target._probe, "sample", fail)
        for _ in range(3):
            await target.poll()
        assert target.polls.errors == {"pipeline": True}
        assert [*target._earlier] == samples

    asyncio.run(go())


def test_while_nobody_looks_it_looks_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those who come later are told what happened."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    monkeypatch.setattr(pipeline_target, "POLL_IDLE_S", 0.05)

    class Remembers(PipelineTarget):
        async def poll(self) -> None:
            await super().poll()
            if self.events:
                begun.set()
            if len(self.events) >= 2:
                remembered.set()

    begun, remembered = asyncio.Event(), asyncio.Event()

    async def go() -> list[str]:
        target = Remembers(shop.path)
        following = asyncio.ensure_future(target.run())
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
            with join("till", pipeline=shop.path, state=Till()):
                await remembered.wait()
        heard = Heard(target)
        listening = asyncio.ensure_future(heard.listen())
        await heard.until(lambda: len(heard.sentences) >= 2)
        following.cancel()
        await asyncio.gather(following, listening, return_exceptions=True)
        return heard.sentences

    assert asyncio.run(go())[:2] == ["epoch 1 began from the initial states", "service till runs"]


def test_its_metrics_say_who_runs_and_who_is_behind(tmp_path: Path) -> None:
    """As Prometheus reads them."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 3, 1)
    assert not isinstance(shop.snapshot("unaligned"), Abandoned)
    text = exposition(asyncio.run(PipelineTarget(shop.path).metrics()), "")[0].decode()
    for line in (
        "stillframe_up 0.0",
        'stillframe_participant_up{participant="till"} 0.0',
        'stillframe_query_last_batch_number{query="audit"} 3.0',
        'stillframe_log_appended_records{log="sales"} 3.0',
        'stillframe_log_lag_records{log="sales",target="books"} 2.0',
        'stillframe_log_lag_entries{log="sales",target="books"} 3.0',
        'stillframe_watch_error{about="pipeline"} 0.0',
        "stillframe_last_snapshot_number 1.0",
        "stillframe_last_snapshot_messages 2.0",
        "stillframe_snapshots_pending 0.0",
    ):
        assert f"\n{line}\n" in text


def test_a_pipeline_with_topics_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A click takes a snapshot in mode retained, whose staleness is in its row, and whose place on
    the topics is in its document. The metrics say who is behind."""
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()

    async def act(heard: Heard) -> None:
        done = await heard.target.perform(TriggerSnapshot())
        assert done["is_done"], done
        assert done["sentence"].endswith("with a staleness of 0.00 s")
        await heard.until(lambda: heard.last["snapshots"]["count"] == 1)
        document = await heard.target.snapshot("shop-1")
        assert document["verdict"].endswith("at one cut; records in transit are in Kafka")
        assert document["topics"] == [
            {
                "channel": "orders: other programs to dedup",
                "positions": "0: 6, 1: 6",
                "ends": "0: 8, 1: 8",
            },
            {"channel": "totals: sums to the end", "positions": "", "ends": "0: 2, 1: 2"},
            {
                "channel": "unique: dedup to sums",
                "positions": "0: 4, 1: 4",
                "ends": "0: 6, 1: 6",
            },
        ]

        shop.lose("sums")
        await heard.target.perform(TriggerSnapshot())
        found = await heard.target.comparison("shop-1", "shop-2")
        fields = {one["field"]: one["after"]["text"] for one in found["fields"]}
        assert fields == {"after micro-batch": "0", "read unique up to": '"0: 2, 1: 2"'}

    watching(shop.pipeline, act)
    row, _ = PipelineTarget(shop.path).snapshots.rows(
        one.snapshot for one in shop.pipeline.snapshots()
    )
    assert (row["mode"], row["staleness_s"], row["message_count"]) == ("retained", 0.0, None)
    text = exposition(asyncio.run(PipelineTarget(shop.path).metrics()), "")[0].decode()
    for line in (
        'stillframe_topic_end_offset{channel="orders"} 16.0',
        'stillframe_topic_read_offset{channel="orders",target="dedup"} 12.0',
        'stillframe_topic_lag_records{channel="unique",target="sums"} 8.0',
        "stillframe_last_snapshot_staleness_seconds 0.0",
        'stillframe_watch_error{about="pipeline"} 0.0',
    ):
        assert f"\n{line}\n" in text
    assert "stillframe_last_snapshot_messages" not in text


def test_without_kafka_the_rest_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an event and in the metrics; the lag is unknown, the micro-batches are not."""
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    shop.brokers.why_away = "connection refused"

    async def act(heard: Heard) -> None:
        await heard.until(lambda: any("connection refused" in one for one in heard.sentences))
        assert heard.last["system"]["batches"][:2] == [2, 1]
        with pytest.raises(Unavailable, match="connection refused"):
            await heard.target.perform(TriggerSnapshot())

    heard = watching(shop.pipeline, act)
    assert "connection refused" in heard.last["system"]["explanation"]
    text = exposition(asyncio.run(PipelineTarget(shop.path).metrics()), "")[0].decode()
    assert '\nstillframe_watch_error{about="pipeline"} 1.0\n' in text
    assert '\nstillframe_query_last_batch_number{query="dedup"} 2.0\n' in text
    assert "stillframe_topic" not in text
