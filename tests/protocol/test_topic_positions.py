"""The start of a reader of a Kafka topic: each combination of stored and held offsets."""

import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.protocol.topic_positions import HeldTopic, check_end, check_id, starts

HELD = HeldTopic("pay", "A", first={0: 3, 1: 0}, ends={0: 9, 1: 4})
TRIMMED = HeldTopic("pay", "A", first={0: 3, 1: 2}, ends={0: 9, 1: 4})
AGAIN = "topic pay was deleted and created again"
ABSENT = "the brokers do not have topic pay any more.*if it still exists, start this again"
GONE_0 = "topic pay does not have the next record of partition 0 any more, offset "
GONE_1 = "topic pay does not have the next record of partition 1 any more, offset "
Positions = dict[int, int]


@pytest.mark.parametrize(
    ("held", "stored", "expected"),
    [
        pytest.param(HELD, None, {0: 3, 1: 0}, id="first join"),
        pytest.param(TRIMMED, None, {0: 3, 1: 2}, id="first join, records deleted"),
        pytest.param(HELD, {0: 5, 1: 1}, {0: 5, 1: 1}, id="continue"),
        pytest.param(HELD, {0: 3, 1: 4}, {0: 3, 1: 4}, id="at the first and at the end"),
        pytest.param(HELD, {0: 5}, {0: 5, 1: 0}, id="partition added"),
        pytest.param(TRIMMED, {0: 5}, GONE_1 + "0", id="partition added, 0 deleted"),
        pytest.param(HELD, {}, GONE_0 + "0", id="all partitions added"),
        pytest.param(HELD, {0: 2, 1: 1}, GONE_0 + "2", id="below the first"),
        pytest.param(HELD, {0: 5, 1: 5}, GONE_1 + "5", id="beyond the end"),
        pytest.param(HELD, {0: 5, 1: 1, 2: 0}, {0: 5, 1: 1}, id="partition gone, nothing read"),
        pytest.param(HELD, {0: 5, 1: 1, 2: 7}, "partition 2 any more, offset 7", id="and read"),
    ],
)
def test_where_a_reader_of_the_same_topic_starts(
    held: HeldTopic, stored: Positions | None, expected: Positions | str
) -> None:
    """A reader continues, or the error names the record that is lost."""
    if isinstance(expected, str):
        with pytest.raises(NotConsistent, match=expected):
            starts(held, stored)
    else:
        assert starts(held, stored) == expected


@pytest.mark.parametrize(("now", "words"), [("A", AGAIN), ("", AGAIN), (None, ABSENT)])
def test_a_reader_of_another_topic_is_refused(now: str | None, words: str) -> None:
    """One message names the topic and the way out."""
    with pytest.raises(NotConsistent, match=f"{words}.*create a new pipeline in another directory"):
        check_id("pay", now, "B")


def test_an_id_is_compared_if_it_is_known() -> None:
    """Positions that Stillframe 0.2 stored have none: then the topic must exist."""
    assert [check_id("pay", "A", known) for known in ("A", "")] == ["A", "A"]
    with pytest.raises(UsageError, match="there is no topic pay: create it first"):
        check_id("pay", None, "")


def test_a_topic_that_ends_before_a_cut_is_refused() -> None:
    """It lost records, although the positions of its readers may still be there."""
    check_end(HELD, {0: 9, 1: 4})
    with pytest.raises(NotConsistent, match=r"ended at offset 5 in partition 1 .* ends at 4 now"):
        check_end(HELD, {0: 9, 1: 5})
