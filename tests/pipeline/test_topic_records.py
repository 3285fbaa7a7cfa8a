"""Records of topics: those that count now, those up to a cut, and those in flight at it."""

import itertools
from collections.abc import Iterable

import pytest
from confluent_kafka import Producer

from stillframe.errors import NotConsistent, Unavailable, UsageError
from stillframe.pipeline import KafkaRecord
from stillframe.pipeline.topics import decode_label
from tests.topics import TopicShop

pytestmark = pytest.mark.slow


def values(records: Iterable[KafkaRecord]) -> list[str]:
    """Return the values of records, sorted."""
    return sorted((record.value or b"").decode() for record in records)


def after_a_restore(shop: TopicShop) -> str:
    """Let both queries go on after a snapshot, restore it, and let ``dedup`` go on once more;
    return the id of the snapshot."""
    snapshot = str(shop.snapshot().snapshot)
    shop.write("unique", "lost", batch=2)
    shop.commit("dedup", 2, orders={0: 3, 1: 3})
    shop.pipeline.restore(snapshot)
    shop.write("unique", "d", batch=2)
    shop.commit("dedup", 2, orders={0: 3, 1: 2})
    shop.write("unique", "zombie", batch=3, epoch=1)
    return snapshot


def test_a_record_has_all_that_kafka_has_of_it(topic_shop: TopicShop) -> None:
    """Its place, its headers and its label."""
    first = min(topic_shop.pipeline.topic_records("unique"), key=lambda one: one.partition)
    assert (first.partition, first.offset, first.key, first.value) == (0, 0, None, b"a")
    assert [name for name, _ in first.headers] == ["trace", "stillframe"]
    assert first.label is not None
    assert (first.label.epoch, first.label.batch) == (1, 0)
    assert first.timestamp_ms > 0


def test_a_snapshot_has_the_id_of_each_topic(topic_shop: TopicShop) -> None:
    """Kafka gives another one to each topic that is created."""
    manifest = topic_shop.snapshot()
    found = {cut.channel: cut.topic_id for cut in manifest.topics}
    broker = topic_shop.broker
    ids = broker.topic_ids(list(topic_shop.topics.values()))
    assert found == {name: ids[topic] for name, topic in topic_shop.topics.items()}
    assert len({*found.values()} - {""}) == 3


def test_only_the_records_of_the_present_timeline_are_read(topic_shop: TopicShop) -> None:
    """Neither those that a restore took out of it, nor those that a program of an older epoch
    wrote later."""
    assert values(topic_shop.pipeline.topic_records("unique")) == ["a", "b", "c"]
    after_a_restore(topic_shop)
    assert values(topic_shop.pipeline.topic_records("unique")) == ["a", "b", "c", "d"]


def test_up_to_a_cut_nothing_is_read_that_came_later(topic_shop: TopicShop) -> None:
    """It stays so after a restore: of the source only micro-batches up to that of the cut count,
    of other programs what was there when the snapshot was taken."""
    snapshot = after_a_restore(topic_shop)
    topic_shop.write("orders", "late")
    read = topic_shop.pipeline.topic_records
    assert values(read("unique", snapshot=snapshot)) == ["a", "b", "c"]
    assert values(read("totals", snapshot=snapshot)) == ["1", "2"]
    assert values(read("orders", snapshot=snapshot)) == ["a", "b", "c", "d", "e", "f"]
    assert values(read("orders")) == ["a", "b", "c", "d", "e", "f", "late"]


def test_in_flight_is_what_was_written_and_not_read_at_the_cut(topic_shop: TopicShop) -> None:
    """From the position of the target on, up to the micro-batch of the source."""
    snapshot = after_a_restore(topic_shop)
    read = topic_shop.pipeline.topic_records
    assert values(read("unique", snapshot=snapshot, target="sums")) == ["c"]
    assert values(read("orders", snapshot=snapshot, target="dedup")) == ["e", "f"]


def test_a_cut_before_the_newest_micro_batch_leaves_that_out(topic_shop: TopicShop) -> None:
    """Its records are in the topic, and are not part of the cut."""
    topic_shop.write("unique", "d", "e", batch=2)
    snapshot = topic_shop.snapshot()
    assert snapshot.last_batches["dedup"] == 1
    found = topic_shop.pipeline.topic_records("unique", snapshot=snapshot.snapshot, target="sums")
    assert values(found) == ["c"]


def test_records_from_before_the_writer_joined_count(topic_shop: TopicShop) -> None:
    """Whatever their headers, as of a pipeline that was there before; one that comes later without
    a label is another writer's, and an error."""
    other = TopicShop(topic_shop.pipeline.path.with_name("b"), servers_of(topic_shop))
    former = TopicShop(topic_shop.pipeline.path.with_name("c"), servers_of(topic_shop))
    former.join()
    former.topics = other.topics
    other.write("unique", "old")
    former.write("unique", "older", batch=3)
    other.join()
    assert values(other.pipeline.topic_records("unique")) == ["old", "older"]
    other.write("unique", "strange", "strange")
    with pytest.raises(NotConsistent, match=r"offset \d in partition \d.*has no label"):
        values(other.pipeline.topic_records("unique"))


def test_reading_starts_at_the_offsets_that_are_given(topic_shop: TopicShop) -> None:
    """Other partitions are read from their beginning."""
    assert values(topic_shop.pipeline.topic_records("unique", start={0: 1})) == ["b", "c"]


def servers_of(shop: TopicShop) -> str:
    """Return the address of the broker."""
    return shop.pipeline.dataflow.topic("orders").servers


def test_records_that_kafka_has_deleted_are_missed(topic_shop: TopicShop) -> None:
    """Those in flight must all be there; those up to a cut begin where the topic begins."""
    snapshot = topic_shop.snapshot().snapshot
    topic_shop.delete_records("orders", 0, 3)
    read = topic_shop.pipeline.topic_records
    assert values(read("orders", snapshot=snapshot)) == ["b", "d", "f"]
    with pytest.raises(NotConsistent, match=r"next record of partition 0 .* offset 2"):
        read("orders", snapshot=snapshot, target="dedup")
    with pytest.raises(NotConsistent, match=r"next record of partition 0 .* offset 2"):
        read("orders", start={0: 2})


def test_a_follower_waits_for_more_and_changes_the_timeline_with_a_restore(
    topic_shop: TopicShop,
) -> None:
    """After it has seen the new epoch, no record of the old one comes that does not count."""
    following = topic_shop.pipeline.topic_records("unique", follow=True)
    assert values(itertools.islice(following, 3)) == ["a", "b", "c"]
    snapshot = topic_shop.snapshot().snapshot
    topic_shop.write("unique", "lost", batch=2)
    topic_shop.commit("dedup", 2, orders={0: 3, 1: 3})
    [lost] = itertools.islice(following, 1)
    assert lost.value == b"lost"
    topic_shop.pipeline.restore(snapshot)
    topic_shop.write("unique", "zombie", "zombie", batch=3, epoch=1)
    topic_shop.write("unique", "d", "e", batch=2)
    new = list(itertools.islice(following, 2))
    assert values(new) == ["d", "e"]
    assert {one.label.epoch for one in new if one.label} == {2}
    assert lost.label is not None
    assert lost.label.batch not in topic_shop.pipeline.timeline("dedup")[1]


def test_a_follower_reads_partitions_that_are_added(
    topic_shop: TopicShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their first record on."""
    monkeypatch.setattr("stillframe.pipeline.kafka._PARTITIONS_S", 0.0)
    following = topic_shop.pipeline.topic_records("orders", follow=True)
    assert len(list(itertools.islice(following, 6))) == 6
    topic_shop.add_partition("orders", "new")
    [new] = itertools.islice(following, 1)
    assert (new.partition, new.offset, new.value) == (2, 0, b"new")


def test_the_filter_decides_as_the_iterator_does(topic_shop: TopicShop) -> None:
    """By its ranges of bytes, as a program in another language applies them."""
    snapshot = after_a_restore(topic_shop)
    topic = topic_shop.topics["unique"]
    ends = topic_shop.broker.end_offsets(topic)
    every = list(topic_shop.broker.records(topic, {p: (0, end) for p, end in ends.items()}))
    assert len(every) == 6
    for at in (None, snapshot):
        found = topic_shop.pipeline.topic_filter("unique", snapshot=at)
        ranges = found.ranges()
        counted = [
            record
            for record in every
            if any(one.low <= (record.headers[-1][1] or b"") < one.high for one in ranges)
        ]
        expected = topic_shop.pipeline.topic_records("unique", snapshot=at)
        assert values(counted) == values(expected)
        low = decode_label(ranges[0].low)
        assert low is not None
        assert (low.epoch, low.batch) == (ranges[0].epoch, ranges[0].first)
    assert [(one.epoch, one.first, one.end) for one in ranges] == [(1, 0, 2)]


def test_what_cannot_be_asked_is_refused(topic_shop: TopicShop) -> None:
    """The error says what to do instead."""
    shop = topic_shop.pipeline
    snapshot = topic_shop.snapshot().snapshot
    for wrong, words in (
        ({"channel": "orders", "target": "dedup"}, "target requires snapshot"),
        ({"channel": "order"}, "there are: orders, totals, unique"),
        ({"channel": "orders", "snapshot": snapshot, "target": "sums"}, "its targets are dedup"),
        ({"channel": "orders", "snapshot": snapshot, "follow": True}, "leave out follow"),
    ):
        with pytest.raises(UsageError, match=words):
            shop.topic_records(**wrong)
    with pytest.raises(UsageError, match="use topic_records"):
        shop.records("orders")
    with pytest.raises(UsageError, match="every record counts"):
        shop.topic_filter("orders")


def test_before_its_writer_has_joined_it_is_unknown_what_counts(topic_shop: TopicShop) -> None:
    """The query has to be started first."""
    other = TopicShop(topic_shop.pipeline.path.with_name("b"), servers_of(topic_shop))
    with pytest.raises(Unavailable, match="query dedup has not joined"):
        other.pipeline.topic_records("unique")
    with pytest.raises(Unavailable, match="query dedup has not joined"):
        other.pipeline.topic_filter("unique")


def test_a_transaction_that_is_open_during_a_snapshot_is_not_in_it(topic_shop: TopicShop) -> None:
    """Else the records in flight at its cut would become more, once it is committed."""
    topic = topic_shop.topics["orders"]
    producer = Producer(
        {"bootstrap.servers": servers_of(topic_shop), "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"uncommitted", partition=0)
    assert producer.flush() == 0
    snapshot = str(topic_shop.snapshot().snapshot)
    before = values(topic_shop.pipeline.topic_records("orders", snapshot=snapshot))
    producer.commit_transaction()
    followed = topic_shop.pipeline.topic_records("orders", follow=True)
    assert any(record.value == b"uncommitted" for record in followed)
    assert values(topic_shop.pipeline.topic_records("orders", snapshot=snapshot)) == before
