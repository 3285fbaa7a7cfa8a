"""The Kafka topics to which the positions of a pipeline belong.

    ROOT/topics/ids/unique.json     the id that Kafka gave the topic when it was created

One file decides for all positions on a topic, whatever stores them: ledgers, checkpoints of Spark,
records of services, snapshots, and readers outside the pipeline. It is written before the first of
them, and never changed. A pipeline of Stillframe 0.2 gets it at the next start of a participant.
The id is compared before a participant starts, before what it has read takes effect, for each
snapshot, and for the status of the pipeline.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from stillframe.errors import NotConsistent, StillframeError
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, brokers
from stillframe.pipeline.topics import TOPICS, write_once
from stillframe.protocol.topic_positions import HeldTopic, check_id, starts
from stillframe.storage.files import below, mapped
from stillframe.storage.location import Location
from stillframe.storage.reading import is_there
from stillframe.store.sealed_json import FORMAT, read_sealed

_IDS = "ids"
_log = logging.getLogger("stillframe.pipeline")


class TopicId(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``topics/ids/CHANNEL.json``, written once."""

    format: int = FORMAT
    topic_id: Annotated[str, msgspec.Meta(min_length=1)]


def known_id(root: Location, topic: Topic) -> str:
    """Return the id of the topic to which the positions of a channel belong. It is empty if no
    participant has joined yet, or if Stillframe 0.2 ran all of them."""
    path = _path(root, topic)
    return read_sealed(path, TopicId).topic_id if is_there(path) else ""


def held_topic(broker: Broker, topic: str, topic_id: str) -> HeldTopic:
    """Return the present content of a topic with this id; raises as ``present_id``. The id comes
    first: if the topic is created again meanwhile, the next comparison fails."""
    now = present_id(broker, topic, topic_id)
    return HeldTopic(topic, now, broker.first_offsets(topic), broker.end_offsets(topic))


def start_positions(
    reader: str, held: HeldTopic, stored: Mapping[int, int] | None
) -> dict[int, int]:
    """Return the offset at which a `reader`, such as "query sums", starts in each partition; as
    ``starts``. The log says where a first start misses records that were deleted."""
    found = starts(held, stored)
    for partition, offset in found.items():
        if stored is None and offset > 0:
            _log.warning(
                "%s starts at offset %d in partition %d of topic %s, where earlier records were "
                "deleted",
                reader,
                offset,
                partition,
                held.name,
            )
    return found


def present_id(broker: Broker, topic: str, topic_id: str) -> str:
    """Return the present id of a topic, if it is this one or none is known (empty); raises as
    ``KnownTopics.compare``."""
    now = broker.topic_ids([topic], known=[topic] if topic_id else [])[topic]
    return check_id(topic, now, topic_id)


class KnownTopics:
    """The topics of a participant, or of a whole pipeline, with the ids that they must have."""

    def __init__(
        self, root: Location, topics: Iterable[Topic], broker_of: Callable[[Topic], Broker]
    ) -> None:
        self._root = root
        self._broker_of = broker_of
        found = list(topics)
        ids = mapped(root, lambda topic: known_id(root, topic), found)
        self._ids = dict(zip(found, ids, strict=True))

    def adopt(self) -> None:
        """Compare the ids for a participant, and record those that were not known; raises as
        ``compare``."""
        new = [topic for topic, topic_id in self._ids.items() if not topic_id]
        self.compare("READ")
        for topic in new:
            if self._ids[topic]:
                write_once(_path(self._root, topic), TopicId(topic_id=self._ids[topic]))
                # Another participant may have been first.
                self._ids[topic] = known_id(self._root, topic)

    def compare(self, operation: str = "DESCRIBE") -> None:
        """Compare the ids with those that the topics have now. One that was not known must stay the
        same from now on. `operation` is what an error tells you to allow.

        Raises:
            NotConsistent: a topic was deleted, or created again.
            UsageError: there is no such topic.
            Unavailable: Kafka does not answer.
        """
        for topic, now in self._present(self._ids, operation):
            self._ids[topic] = check_id(topic.topic, now, self._ids[topic])

    def differences(self) -> Iterator[str]:
        """Yield what ``compare`` says of each topic that was deleted or created again; raises
        Unavailable if Kafka does not answer."""
        for topic, now in self._present([topic for topic, known in self._ids.items() if known]):
            try:
                check_id(topic.topic, now, self._ids[topic])
            except NotConsistent as error:
                yield str(error)

    def _present(
        self, topics: Iterable[Topic], operation: str = "DESCRIBE"
    ) -> Iterator[tuple[Topic, str | None]]:
        by_broker: dict[Broker, list[Topic]] = {}
        for topic in topics:
            by_broker.setdefault(self._broker_of(topic), []).append(topic)
        for broker, some in by_broker.items():
            known = {topic.topic for topic in some if self._ids[topic]}
            now = broker.topic_ids(
                [topic.topic for topic in some], known=known, operation=operation
            )
            yield from ((topic, now[topic.topic]) for topic in some)

    def id_of(self, topic: Topic) -> str:
        """Return the id that a topic must have; empty if it is not known."""
        return self._ids[topic]


def changed_topics(root: Location, topics: Iterable[Topic]) -> list[str]:
    """Return a sentence about each topic that was deleted or created again since a participant has
    joined; and one if its brokers do not say."""
    found: list[str] = []
    try:
        with brokers() as broker_of:
            found += KnownTopics(root, topics, broker_of).differences()
    except StillframeError as error:
        found.append(f"the ids of the topics were not compared: {error}")
    return found


def _path(root: Location, topic: Topic) -> Location:
    return below(root, TOPICS, _IDS, f"{topic.name}.json")
