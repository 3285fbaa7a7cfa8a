"""Labels count by epoch and micro-batch, and by their bytes, in the same way."""

import itertools

import pytest

from stillframe.pipeline import Counting, kafka_channel
from stillframe.pipeline.metadata import Segment
from stillframe.pipeline.topics import TopicRecord

TOPIC = kafka_channel("unique", topic="unique", servers="localhost:9092", source="dedup")
RECORD = TopicRecord(writer="00ff" * 4, first_offsets={})
TIMELINES = (
    (Segment(1, 0),),
    (Segment(1, 0), Segment(2, 3)),
    (Segment(2, 0),),
    (Segment(1, 0), Segment(3, 2), Segment(4, 4)),
)


@pytest.mark.parametrize("timeline", TIMELINES)
def test_bytes_decide_as_numbers_do(timeline: tuple[Segment, ...]) -> None:
    """On every timeline, without an end, and up to every cut."""
    for end in (None, *range(7)):
        counting = Counting(TOPIC, RECORD, timeline, end)
        ranges = counting.ranges()
        for epoch, batch in itertools.product(range(1, 6), range(8)):
            label = counting.label(epoch, batch)
            by_bytes = any(one.low <= label.encoded < one.high for one in ranges)
            assert counting.counts(label) == by_bytes, (end, label)
            if end is not None and batch >= end:
                assert not by_bytes
            if end is None or batch < end:
                assert by_bytes == Counting(TOPIC, RECORD, timeline).counts(label)


def test_up_to_the_start_nothing_counts() -> None:
    """The cut may lie before the first micro-batch of the writer."""
    assert Counting(TOPIC, RECORD, (Segment(1, 0),), 0).ranges() == []
