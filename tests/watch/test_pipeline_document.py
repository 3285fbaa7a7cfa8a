"""What the page shows of a pipeline: layers, lag, rates, where the barrier is, what happened."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.progress import Awaited, AwaitedChannel, Progress
from stillframe.protocol.aligner import Mode
from stillframe.watch import pipeline_document as document
from stillframe.watch import topic_probe
from stillframe.watch.pipeline_probe import LogSample, PipelineProbe, PipelineSample
from tests.cli.pipelines import add_up, make_shop, resting_shop
from tests.pipeline.money import Account, diamond, ring
from tests.pipeline.topics_shop import Shop

ROW = pa.schema([("amount", pa.int64())])


def look_at(pipeline: Pipeline) -> PipelineSample:
    """PipelineSample once."""
    return PipelineProbe(pipeline.path).sample()


def test_queries_and_services_stand_in_layers(tmp_path: Path) -> None:
    """Each to the right of all that lead to it; the way back of a cycle does not count."""
    assert document.assign_columns(diamond(tmp_path / "d.pipeline").dataflow) == {
        "mint": 0,
        "left": 1,
        "right": 1,
        "till": 2,
    }
    assert document.assign_columns(ring(tmp_path / "r.pipeline").dataflow) == {
        "a": 0,
        "b": 1,
        "c": 2,
    }


def test_the_longest_way_counts(tmp_path: Path) -> None:
    """Also where a shorter one leads to the same place."""
    logs = {"short": ("a", ["c"]), "first": ("a", ["b"]), "second": ("b", ["c"]), "end": ("c", [])}
    pipeline = Pipeline.create(
        tmp_path / "ways.pipeline",
        services=dict.fromkeys("abc", Account),
        channels=[
            channel(name, ROW, source=source, targets=targets)
            for name, (source, targets) in logs.items()
        ],
    )
    about = document.describe("ways", pipeline.dataflow)
    assert about["processes"][-1] == ["end", "output"]
    assert about["columns"] == [0, 1, 2, 3]
    assert dict(zip(about["names"], about["channels"], strict=True)) == {
        "end: c to the end": [2, 3],
        "first: a to b": [0, 1],
        "second: b to c": [1, 2],
        "short: a to c": [0, 2],
    }


def test_who_is_behind_and_how_fast_a_log_grows(tmp_path: Path) -> None:
    """The lag is what was appended less what was read; the rate is taken between two looks."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    before = look_at(shop)
    add_up(shop, 1)
    now = msgspec.structs.replace(look_at(shop), at=before.at + 4)
    columns = document.channel_columns(now, before)
    assert document.describe("", shop.dataflow)["names"] == [
        "sales: till to books",
        "totals: books to audit",
    ]
    assert columns["sent"] == [3, 2]
    assert columns["received"] == [2, 0]
    assert columns["in_transit"] == columns["items"] == [1, 2]
    assert columns["rate"] == [0.0, 0.2]
    assert document.channel_columns(now, None)["rate"] == [None, None]


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """It is not shown as empty."""
    sample = look_at(resting_shop(tmp_path / "shop.pipeline"))
    sample = msgspec.structs.replace(
        sample, logs={"totals": LogSample(0, 0, {})}, errors=("broken",)
    )
    sample = msgspec.structs.replace(sample, logs={})
    columns = document.channel_columns(sample, None)
    assert all(column == [None, None] for column in columns.values())
    assert document.obstacles(sample) == "broken"


def progress(awaiting: tuple[Awaited, ...], recorded: dict[str, float]) -> Progress:
    """Return one that began at 100."""
    return Progress(SnapshotId("shop", 3), Mode.ALIGNED, 100.0, 160.0, recorded, awaiting)


def test_where_the_barrier_stands(tmp_path: Path) -> None:
    """The page shows each barrier, and the number of entries that its target reads before it."""
    flow = make_shop(tmp_path / "shop.pipeline").dataflow
    books = Awaited("books", 101.0, (AwaitedChannel("sales", "till", 7, 7),))
    audit = Awaited("audit", None, (AwaitedChannel("totals", "books", 2, None),))
    now = progress((audit, books), {"till": 101.0})
    assert document.barriers(flow, now) == [["ahead", 0], None]
    told = document.pending_snapshot(now, 103.5)
    assert told["phases"] == {"till": "recorded", "books": "recording", "audit": "idle"}
    assert told["stragglers"] == ["books"]
    assert told["sentences"] == [
        "books has reached its barrier but has not recorded, for 2.5 s",
        "audit waits for the barrier on totals (from books), for 3.5 s",
    ]
    audit = Awaited("audit", 104.0, (AwaitedChannel("totals", "books", 2, 5),))
    now = progress((audit,), {"till": 101.0, "books": 104.0})
    assert document.barriers(flow, now) == [["passed", None], ["ahead", 3]]
    # In mode retained a query is not asked.
    assert document.barriers(flow, progress((), {"till": 101.0})) == [None, None]


def test_a_snapshot_whose_coordinator_is_gone_says_so() -> None:
    """When it is still there a while after its deadline."""
    now = progress((), {})
    assert document.ORPHANED not in document.pending_snapshot(now, 161.0)["sentences"]
    assert document.ORPHANED in document.pending_snapshot(now, 170.0)["sentences"]


def test_what_happened_between_two_looks(tmp_path: Path) -> None:
    """Beginnings, ends and deaths of queries and services, and epochs."""
    sample = look_at(resting_shop(tmp_path / "shop.pipeline"))

    def with_statuses(**statuses: str) -> PipelineSample:
        participants = {
            name: msgspec.structs.replace(one, status=statuses.get(name, one.status), batch=4)
            for name, one in sample.participants.items()
        }
        return msgspec.structs.replace(sample, participants=participants)

    def told(now: PipelineSample, before: PipelineSample | None) -> list[str]:
        return [one["sentence"] for one in document.events_between(before, now)]

    assert told(sample, None) == ["epoch 1 began from the initial states"]
    runs = with_statuses(audit="busy", till="running")
    assert told(runs, sample) == ["query audit runs", "service till runs"]
    assert told(runs, runs) == []
    over = with_statuses(audit="stopped", till="dead")
    assert told(over, runs) == [
        "query audit stopped after micro-batch 4",
        "service till died, and its state is lost",
    ]
    metadata = msgspec.structs.replace(
        sample.metadata, epoch=2, restored_from=SnapshotId("shop", 1)
    )
    assert told(msgspec.structs.replace(sample, metadata=metadata), runs) == [
        "epoch 2 began from snapshot shop-1"
    ]
    assert "restore the pipeline" in document.obstacles(over)


def test_a_cycle_is_photographed_unaligned(tmp_path: Path) -> None:
    """No other mode ends there."""
    assert document.snapshot_mode(ring(tmp_path / "r.pipeline").dataflow) is Mode.UNALIGNED
    assert document.snapshot_mode(diamond(tmp_path / "d.pipeline").dataflow) is Mode.ALIGNED


def test_topics_begin_and_end_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that other programs write begins left of its first target, and one that no query reads
    ends right of its source; a snapshot is found among what is retained."""
    flow = Shop(tmp_path / "shop.pipeline", monkeypatch).pipeline.dataflow
    about = document.describe("shop", flow)
    assert about["processes"] == [
        ["dedup", "query"],
        ["sums", "query"],
        ["totals", "output"],
        ["orders", "input"],
    ]
    assert about["columns"] == [1, 2, 3, 0]
    assert dict(zip(about["names"], about["channels"], strict=True)) == {
        "orders: other programs to dedup": [3, 0],
        "totals: sums to the end": [1, 2],
        "unique: dedup to sums": [0, 1],
    }
    assert about["topics"] == ["orders", "totals", "unique"]
    assert about["newest_consistent_command"].endswith("restore shop --newest-consistent")
    assert document.snapshot_mode(flow) is Mode.RETAINED


def test_a_topic_is_read_as_far_as_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are offsets; without an answer of Kafka nothing is known."""
    monkeypatch.setattr(topic_probe, "WAIT_S", 60)
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    probe = PipelineProbe(shop.path)
    before = probe.sample()
    shop.send("orders", 8)
    now = msgspec.structs.replace(probe.sample(), at=before.at + 4)
    columns = document.channel_columns(now, before)
    assert columns["sent"] == [24, 4, 12]
    assert columns["received"] == [12, None, 8]
    assert columns["in_transit"] == [12, None, 4]
    assert columns["items"] == [None] * 3
    assert columns["rate"] == [2.0, 0.0, 0.0]
    shop.brokers.why_away = "gone"
    away = probe.sample()
    columns = document.channel_columns(away, now)
    assert all(column == [None] * 3 for column in columns.values())
    found = document.system_document(away, now)
    assert "does not answer as it should: gone" in found["explanation"]
    assert found["statuses"] == ["stopped", "stopped", "output", "input"]
    assert found["batches"] == [2, 1, None, None]
