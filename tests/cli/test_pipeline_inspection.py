"""Commands that look into the topics of a snapshot: what is in flight, what counts, predicates."""

import json

import pytest

from tests.cli.conftest import Call
from tests.topics import TopicShop

pytestmark = pytest.mark.slow


def test_topics_are_shown_with_what_is_in_flight(call: Call, topic_shop: TopicShop) -> None:
    """Counted in Kafka, without the records that came after the cut."""
    topic_shop.snapshot()
    topic_shop.write("unique", "later", batch=2)
    topic_shop.write("orders", "later")
    result = call("pipeline", "show", topic_shop.pipeline.path)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "orders dedup 0 2, 1 2 2" in lines
    assert "unique dedup sums 0 1, 1 1 1" in lines
    shown = json.loads(call("pipeline", "show", topic_shop.pipeline.path, "--json").stdout)
    assert shown["topics"][1] == {
        "channel": "unique",
        "topic": topic_shop.topics["unique"],
        "source": "dedup",
        "target": "sums",
        "positions": {"0": 1, "1": 1},
        "ends": {"0": 2, "1": 1},
        "record_count": 1,
    }


def test_what_cannot_be_counted_is_said(call: Call, topic_shop: TopicShop) -> None:
    """The rest of the snapshot is shown."""
    topic_shop.snapshot()
    topic_shop.delete_records("orders", 0, 3)
    result = call("pipeline", "show", topic_shop.pipeline.path, "--json")
    assert result.exit_code == 0
    counts = {one["channel"]: one["record_count"] for one in json.loads(result.stdout)["topics"]}
    assert counts == {"orders": None, "unique": 1}
    assert "orders to dedup: the records in flight are unknown" in result.stderr


def test_the_filter_is_printed(call: Call, topic_shop: TopicShop) -> None:
    """The SQL alone, or all that a program in another language needs."""
    path = topic_shop.pipeline.path
    expected = topic_shop.pipeline.topic_filter("unique")
    result = call("pipeline", "filter", path, "unique")
    assert (result.exit_code, result.stdout) == (0, f"{expected.condition()}\n")
    shown = json.loads(call("pipeline", "filter", path, "unique", "--json").stdout)
    writer = expected.record.writer
    assert shown["ranges"] == [
        {
            "epoch": 1,
            "first": 0,
            "end": None,
            "low": f"{writer}00000001{'0' * 16}",
            "high": f"{writer}00000002{'0' * 16}",
        }
    ]
    assert (shown["writer"], shown["first_offsets"]) == (writer, {"0": 0, "1": 0})
    assert (shown["header"], shown["condition"]) == ("stillframe", expected.condition())
    snapshot = str(topic_shop.snapshot().snapshot)
    cut = call("pipeline", "filter", path, "unique", "--snapshot", snapshot, "--json")
    assert json.loads(cut.stdout)["ranges"][0]["end"] == 2
    refused = call("pipeline", "filter", path, "orders")
    assert refused.exit_code == 2
    assert "every record counts" in refused.stderr


def test_a_pipeline_has_terminated_when_all_topics_are_consumed(
    call: Call, topic_shop: TopicShop
) -> None:
    """Those of other programs too, up to where they ended; Spark is not needed."""
    path = topic_shop.pipeline.path
    topic_shop.snapshot()
    result = call("pipeline", "detect", path, "termination")
    assert result.exit_code == 1
    assert "orders to dedup 2, unique to sums 1" in " ".join(result.stdout.split())
    topic_shop.commit("dedup", 2, orders={0: 3, 1: 3})
    topic_shop.commit("sums", 1, unique={0: 2, 1: 1})
    topic_shop.snapshot()
    result = call("pipeline", "detect", path, "termination")
    assert result.exit_code == 0
    assert "yes: termination holds in shop-2, and has since shop-2, of 2 snapshots" in " ".join(
        result.stdout.split()
    )
    assert call("pipeline", "detect", path, "termination", "--snapshot", "shop-1").exit_code == 1
    # Other programs can write orders at any time.
    assert call("pipeline", "detect", path, "deadlock").exit_code == 1


def test_a_snapshot_whose_records_are_deleted_is_left_out(
    call: Call, topic_shop: TopicShop
) -> None:
    """If it is an older one; of the newest one an answer is wanted."""
    path = topic_shop.pipeline.path
    topic_shop.snapshot()
    topic_shop.commit("dedup", 2, orders={0: 3, 1: 3})
    topic_shop.snapshot()
    topic_shop.delete_records("orders", 0, 3)
    result = call("pipeline", "detect", path, "termination", "--json")
    assert result.exit_code == 1
    assert "snapshot shop-1 is left out" in result.stderr
    assert json.loads(result.stdout)["snapshot_count"] == 1
    assert call("pipeline", "detect", path, "termination", "--snapshot", "shop-1").exit_code == 2
