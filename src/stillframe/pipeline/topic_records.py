"""The records of a topic that count: those of now, those up to a cut, those in flight at a cut.

At a cut they are the records of the micro-batches of the source up to that of the cut, with
offsets below the ends that the snapshot recorded. What the source wrote later is not among them,
nor what it wrote on a timeline that the snapshot is not on. If other programs write the topic, the
ends alone decide.
"""

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterator, Mapping

import msgspec

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, KafkaRecord, is_counted
from stillframe.pipeline.known_topics import KnownTopics, held_topic, known_id, present_id
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest, TopicCut
from stillframe.pipeline.topics import Counting, counting_on, has_joined
from stillframe.protocol.topic_positions import check_end, starts
from stillframe.storage.location import Location


class TopicSelection(msgspec.Struct, frozen=True):
    """Some records of a topic: those that count in a range of offsets of each partition. Without a
    source in the pipeline there is no `counting`, and all count. They are of the topic with this
    id."""

    topic: Topic
    topic_id: str
    counting: Counting | None
    ranges: dict[int, tuple[int, int]]

    def records(self) -> Generator[KafkaRecord, None, None]:
        """Yield the records, those of one partition in their order."""
        name = self.topic.topic
        with Broker(self.topic.servers, is_bulk=True) as reader:
            check = functools.partial(present_id, reader, name, self.topic_id)
            for record in reader.records(name, self.ranges, check=check):
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
        UsageError: there is no such channel or target.
        NotConsistent: Kafka has deleted records that were in flight, or from `start` on; or the
            topic was created again.
        Unavailable: Kafka does not answer, or the source has not joined.
    """
    topic = described.dataflow.topic(channel)
    cut = topic_cut(described, channel) if isinstance(described, Manifest) else None
    stored = start or None
    topic_id = (cut and cut.topic_id) or known_id(root, topic)
    with Broker(topic.servers, is_bulk=True) as reader:
        held = held_topic(reader, topic.topic, topic_id)
    ends = held.ends if cut is None else cut.ends
    if cut is not None:
        check_end(held, ends)
        if target is not None:
            at = positions_of(cut, target) or held.first
            in_flight = {p: at.get(p, 0) for p, end in ends.items() if at.get(p, 0) < end}
            wanted = {**in_flight, **(start or {})}
            stored, ends = {**held.first, **wanted}, {p: ends[p] for p in ends if p in wanted}
    begins = starts(held, stored)
    ranges = {p: (begins[p], end) for p, end in ends.items() if begins[p] < end}
    decides = counting_at(root, described, topic)
    return TopicSelection(topic, held.topic_id, decides, ranges)


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
        known = KnownTopics(root, [topic], lambda _: reader)

        def begins(reached: Mapping[int, int] | None) -> dict[int, int]:
            held = held_topic(reader, topic.topic, known.id_of(topic))
            return starts(held, reached or start or None)

        for records in reader.follow(topic.topic, begins, check=known.compare):
            # Read after the records: a restore is in here before any record of its epoch is there.
            if records and (now := read_metadata(root)).epoch != metadata.epoch:
                metadata, counting = now, counting_at(root, now, topic)
            for record in records:
                if is_counted(counting, record):
                    yield record
