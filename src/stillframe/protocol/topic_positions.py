"""Positions in Kafka topics: where a reader starts, given those that it has stored.

A position is the offset of the next record in a partition of one topic. A topic that is deleted and
created again has the same name and another id: the same offset is then that of another record. So
positions belong to the id of their topic, and are compared with it before they are used.
"""

from collections.abc import Container, Mapping

import msgspec

from stillframe.errors import NotConsistent, UsageError

_ANOTHER = "this pipeline cannot continue: create a new pipeline in another directory"
_LOST = (
    "restore a snapshot whose records the topic still has, or create a new pipeline in another "
    "directory; raise the topic's retention.ms"
)


class HeldTopic(msgspec.Struct, frozen=True):
    """The present content of a Kafka topic.

    Attributes:
        name: its name.
        topic_id: its id; empty if the brokers give none.
        first: the first offset that each partition still has.
        ends: the offset of the next record of each partition.
    """

    name: str
    topic_id: str
    first: Mapping[int, int] = {}
    ends: Mapping[int, int] = {}

    def without(self, partitions: Container[int]) -> "HeldTopic":
        """Return the same without some partitions."""

        def rest(offsets: Mapping[int, int]) -> dict[int, int]:
            return {p: offset for p, offset in offsets.items() if p not in partitions}

        return HeldTopic(self.name, self.topic_id, rest(self.first), rest(self.ends))


def check_id(topic: str, present: str | None, topic_id: str) -> str:
    """Return the `present` id of a topic; NotConsistent if it is not this one.

    An empty `topic_id`, of positions that Stillframe 0.2 stored, is not compared. Without a present
    id there is no such topic, which is a UsageError if no id is known."""
    if present is None:
        if not topic_id:
            raise UsageError(f"there is no topic {topic}: create it first")
        raise NotConsistent(
            f"the brokers do not have topic {topic} any more, to which the stored positions belong",
            remedy="if it still exists, start this again; if it was deleted, create a new pipeline "
            "in another directory",
        )
    if topic_id and present != topic_id:
        raise NotConsistent(
            f"topic {topic} was deleted and created again: the stored positions are those of "
            "the earlier topic, whose records are lost",
            remedy=_ANOTHER,
        )
    return present


def starts(held: HeldTopic, stored: Mapping[int, int] | None) -> dict[int, int]:
    """Return the offset at which a reader starts in each partition.

    It continues where it was. A partition that was added since starts at 0. A reader that has
    stored no positions starts at the first records that are left.

    Args:
        held: the topic now, whose id was compared.
        stored: the stored positions; None if there are none yet.

    Raises:
        NotConsistent: the topic does not hold a record to be read any more.
    """
    if stored is None:
        return dict(held.first)
    for partition in sorted(held.first.keys() | stored.keys()):
        position = stored.get(partition, 0)
        first, end = held.first.get(partition, 0), held.ends.get(partition, 0)
        if not first <= position <= end:
            raise record_lost(held.name, partition, position, f"it holds offsets {first} to {end}")
    return {partition: stored.get(partition, 0) for partition in held.first}


def check_end(held: HeldTopic, ends: Mapping[int, int]) -> None:
    """Raise NotConsistent if a topic has lost records before the `ends` of a cut."""
    for partition, end in ends.items():
        if held.ends.get(partition, 0) < end:
            raise NotConsistent(
                f"topic {held.name} ended at offset {end} in partition {partition} when the "
                f"snapshot was taken, and ends at {held.ends.get(partition, 0)} now",
                remedy=f"the topic lost records; {_LOST}",
            )


def record_lost(topic: str, partition: int, offset: int | None, found: str = "") -> NotConsistent:
    """Return the error about the next record of a partition, which Kafka does not have any more.
    Its offset, and what is `found` instead, may be unknown."""
    where = "" if offset is None else f", offset {offset}"
    return NotConsistent(
        f"topic {topic} does not have the next record of partition {partition} any more{where}"
        f"{found and f' ({found})'}",
        remedy=_LOST,
    )
