"""The records of a topic that count: those of now, those up to a cut, those in flight at a cut.

At a cut they are the records of the micro-batches of the source up to that of the cut, with
offsets below the ends that the snapshot recorded. What the source wrote later is not among them,
nor what it wrote on a timeline that the snapshot is not on. If other programs write the topic, the
ends alone decide.
"""

import contextlib
import itertools
from collections.abc import Generator, Iterator, Mapping

import msgspec

from stillframe.errors import NotConsistent, Unavailable, UsageError
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, KafkaRecord, is_counted
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest, TopicCut
from stillframe.pipeline.topics import Counting, counting_on, has_joined
from stillframe.storage.location import Location


class TopicSelection(msgspec.Struct, frozen=True):
    """Some records of a topic: those that count in a range of offsets of each partition. Without a
    source in the pipeline there is no `counting`, and all count."""

    topic: Topic
    counting: Counting | None
    ranges: dict[int, tuple[int, int]]

    def records(self) -> Generator[KafkaRecord, None, None]:
        """Yield the records, those of one partition in their order."""
        with Broker(self.topic.servers, is_bulk=True) as reader:
            for record in reader.records(self.topic.topic, self.ranges):
                if is_counted(self.counting, record):
                    yield record

    def by_partition(self) -> "dict[int, TopicSelection]":
        """Return the selection of each partition."""
        return {
            partition: msgspec.structs.replace(self, ranges={partition: one})
            for partition, one in sorted(self.ranges.items())
        }

    def count(self, most: int | None = None) -> int:
        """Return how many they are: all are read, or at most `most` of them."""
        with contextlib.closing(self.records()) as records:
            return sum(1 for _ in itertools.islice(records, most))


def counting_at(root: Location, described: Metadata | Manifest, topic: Topic) -> Counting | None:
    """Return what decides whether a record of a topic counts, now or at the cut of a snapshot; None
    if other programs write the topic. Unavailable if its source has not joined."""
    if topic.source is None:
        return None
    if not has_joined(root, topic):
        raise Unavailable(
            f"{described.dataflow.described(topic.source)} has not joined the pipeline {root} "
            f"yet, so it is not known which records of topic {topic.topic} are its own",
            remedy="start it",
        )
    found = counting_on(root, topic, described.batches[topic.source])
    if isinstance(described, Metadata):
        return found
    return msgspec.structs.replace(found, end=described.fragment(topic.source).version + 1)


def select(
    root: Location,
    described: Metadata | Manifest,
    channel: str,
    *,
    target: str | None = None,
    start: Mapping[int, int] | None = None,
) -> TopicSelection:
    """Return the records of a topic that count: those of now, or those up to the cut of a snapshot;
    with a `target` those that were in flight to it. They begin at the offsets of `start`.

    Raises:
        UsageError: there is no such channel or target, or Kafka has deleted records from `start`
            on.
        NotConsistent: Kafka has deleted records that were in flight.
        Unavailable: Kafka does not answer, or the source has not joined.
    """
    topic = described.dataflow.topic(channel)
    cut = topic_cut(described, channel) if isinstance(described, Manifest) else None
    positions = {} if cut is None or target is None else positions_of(cut, target)
    with Broker(topic.servers, is_bulk=True) as reader:
        first, ends = reader.first_offsets(topic.topic), reader.end_offsets(topic.topic)
        if cut is not None:
            check_same(reader, topic, cut, ends)
            ends = cut.ends
    begins = _begins(topic, {p: first.get(p, 0) for p in ends}, start or {})
    for partition, position in positions.items():
        if position < first.get(partition, 0) and position < ends.get(partition, 0):
            raise NotConsistent(
                f"query {target} had read up to offset {position} in partition {partition} of "
                f"topic {topic.topic}, which has no record before offset {first[partition]} now",
                remedy="use a newer snapshot, and raise the topic's retention.ms",
            )
        if partition not in (start or {}):
            begins[partition] = position
    ranges = {p: (begins[p], end) for p, end in ends.items() if begins[p] < end}
    return TopicSelection(topic, counting_at(root, described, topic), ranges)


def topic_cut(manifest: Manifest, channel: str) -> TopicCut:
    """Return where the cut lies on a topic; it is one of the snapshot's channels."""
    return next(cut for cut in manifest.topics if cut.channel == channel)


def positions_of(cut: TopicCut, target: str) -> dict[int, int]:
    """Return the positions of a target at the cut; UsageError if it does not read the topic."""
    if target not in cut.positions:
        raise UsageError(
            f"{target!r} does not read channel {cut.channel!r}; its targets are "
            f"{', '.join(cut.positions) or 'none'}"
        )
    return cut.positions[target]


def follow(root: Location, channel: str, start: Mapping[int, int] | None) -> Iterator[KafkaRecord]:
    """Yield the records of a topic that count, and wait for more. After a restore only those of the
    new timeline are yielded."""
    metadata = read_metadata(root)
    topic = metadata.dataflow.topic(channel)
    counting = counting_at(root, metadata, topic)
    with Broker(topic.servers, is_bulk=True) as reader:
        begins = _begins(topic, reader.first_offsets(topic.topic), start or {})
        for records in reader.follow(topic.topic, begins):
            # Read after the records: a restore is in here before any record of its epoch is there.
            if records and (now := read_metadata(root)).epoch != metadata.epoch:
                metadata, counting = now, counting_at(root, now, topic)
            for record in records:
                if is_counted(counting, record):
                    yield record


def _begins(topic: Topic, first: dict[int, int], start: Mapping[int, int]) -> dict[int, int]:
    """Return the offsets to start at, by default the `first` ones that there are."""
    for partition, offset in start.items():
        if offset < first.get(partition, 0):
            raise UsageError(
                f"topic {topic.topic} has no record before offset {first[partition]} in partition "
                f"{partition} any more, and {offset} is the start"
            )
    return first | {partition: max(offset, 0) for partition, offset in start.items()}


def check_same(broker: Broker, topic: Topic, cut: TopicCut, held: Mapping[int, int]) -> None:
    """Raise NotConsistent if a topic, which ends at these offsets now, is not the one of the
    snapshot: it has another id, or ends before the cut."""
    remedy = "use a snapshot that was taken since"
    if cut.topic_id and broker.topic_id(topic.topic) != cut.topic_id:
        raise NotConsistent(
            f"topic {topic.topic} was deleted and created again after the snapshot was taken: the "
            "records of the snapshot are not in it",
            remedy=remedy,
        )
    for partition, end in cut.ends.items():
        if held.get(partition, 0) < end:
            raise NotConsistent(
                f"topic {topic.topic} ended at offset {end} in partition {partition} when the "
                f"snapshot was taken, and ends at {held.get(partition, 0)} now",
                remedy=f"the topic lost records or was made again; {remedy}",
            )
