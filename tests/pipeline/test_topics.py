"""Which records of a topic count."""

from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.metadata import Segment
from stillframe.pipeline.topics import (
    Counting,
    Label,
    TopicRecord,
    counting_on,
    decode_label,
    has_joined,
    join_topic,
)

TOPIC = Topic(name="unique", topic="t", servers="a:1", source="dedup", targets=("sums",))
WRITER = "0123456789abcdef"


def counting(*segments: tuple[int, int], first_offsets: dict[int, int] | None = None) -> Counting:
    """Return what decides on a timeline of (epoch, first micro-batch)."""
    record = TopicRecord(writer=WRITER, first_offsets=first_offsets or {})
    return Counting(TOPIC, record, tuple(Segment(*segment) for segment in segments))


def test_a_label_is_read_back_and_keeps_its_order_as_bytes() -> None:
    """Readers compare labels with bounds, as bytes."""
    writer = bytes.fromhex(WRITER)
    labels = [Label(writer, epoch, batch) for epoch in (1, 2, 300) for batch in (0, 9, 2**40)]
    assert [decode_label(label.encoded) for label in labels] == labels
    assert sorted(label.encoded for label in labels) == [label.encoded for label in labels]
    assert decode_label(b"") is None
    assert decode_label(labels[0].encoded + b"0") is None


def test_records_of_the_timeline_count_and_no_others() -> None:
    """A micro-batch counts in the epoch that ran it, unless a restore took it back."""
    one = counting((1, 0), (3, 13))
    counted = [(epoch, batch) for epoch in range(5) for batch in range(20)]
    counted = [at for at in counted if one.counts(one.label(*at))]
    assert counted == [(1, n) for n in range(13)] + [(3, n) for n in range(13, 20)]


def test_the_bounds_in_sql_are_those_of_the_timeline() -> None:
    """The condition names the present epoch and its first label, that of each other one, and the
    one after its last."""
    text = counting((1, 0), (3, 13)).condition()
    for epoch, batch in ((1, 0), (1, 13), (3, 13)):
        assert f"X'{Label(bytes.fromhex(WRITER), epoch, batch).encoded.hex()}'" in text
    assert f"startswith(get(headers, size(headers) - 1).value, X'{WRITER}00000003')" in text
    assert "WHEN offset <" not in text
    assert counting((1, 0), (3, 13), first_offsets={0: 0, 1: 0}).condition() == text
    adopting = counting((1, 0), first_offsets={0: 5, 2: 7, 3: 0}).condition()
    firsts = "cast(split('5,0,7', ',') AS array<bigint>)"
    assert f"WHEN offset < get({firsts}, partition) THEN true" in adopting


def test_records_from_before_the_writer_joined_are_known_by_their_offsets() -> None:
    """A partition that was added later has none."""
    one = counting((1, 0), first_offsets={0: 5})
    assert one.is_adopted(0, 4)
    assert not one.is_adopted(0, 5)
    assert not one.is_adopted(1, 0)


def test_a_writer_joins_once(tmp_path: Path) -> None:
    """Who joins later finds the first offsets and the id of the first time."""
    assert not has_joined(tmp_path, TOPIC)
    join_topic(tmp_path, TOPIC, {1: 4, 0: 3})
    first = counting_on(tmp_path, TOPIC, [Segment(1, 0)])
    assert has_joined(tmp_path, TOPIC)
    join_topic(tmp_path, TOPIC, {0: 99})
    assert counting_on(tmp_path, TOPIC, [Segment(1, 0)]) == first
    assert first.record.first_offsets == {0: 3, 1: 4}
    assert len(first.record.writer_id) == 8


@pytest.mark.parametrize("damage", [b'"0":-1', b'"x":1', b'"0":1e3', b'"0":9223372036854775808'])
def test_first_offsets_that_cannot_be_are_damage(tmp_path: Path, damage: bytes) -> None:
    """A changed file is found by its checksum, or by what it says."""
    join_topic(tmp_path, TOPIC, {0: 3})
    path = tmp_path / "topics" / "unique.json"
    path.write_bytes(path.read_bytes().replace(b'"0":3', damage))
    with pytest.raises(Damaged, match="unique"):
        counting_on(tmp_path, TOPIC, [Segment(1, 0)])
