"""Samples where the topics of a pipeline end, in threads of their own: no page waits for Kafka."""

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from stillframe.errors import StillframeError, Unavailable
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, brokers
from stillframe.pipeline.known_topics import known_id, present_id
from stillframe.storage.location import Location

WAIT_S = 0.25
"""How long a sample waits for brokers that were asked at its beginning, in seconds."""
SLOW_S = 3.0
"""Time without an answer after which brokers are reported, in seconds."""
PARTITIONS_S = 60.0
"""How long the id of a topic and the numbers of its partitions are remembered, in seconds."""


class TopicEnds(msgspec.Struct, frozen=True):
    """The offset that the next record of each partition will have, by channel. A topic whose end is
    not known is left out, and `errors` say why."""

    offsets: dict[str, dict[int, int]]
    errors: tuple[str, ...] = ()


class TopicProbe:
    """Samples the topics of a pipeline repeatedly; one call at a time. Brokers that have not
    answered the last request are not sent another one."""

    def __init__(self, root: Location, topics: Iterable[Topic]) -> None:
        self.topics = tuple(topics)
        groups: dict[str, list[Topic]] = {}
        for topic in self.topics:
            groups.setdefault(topic.servers, []).append(topic)
        self._groups = [_ServersProbe(root, servers, group) for servers, group in groups.items()]

    def sample(self) -> TopicEnds:
        """Return where the topics end now, or where they ended at the last answer."""
        asked = [group for group in self._groups if group.ask()]
        until = time.monotonic() + WAIT_S
        for group in asked:
            group.wait(max(0.0, until - time.monotonic()))
        found = [group.found() for group in self._groups]
        return TopicEnds(
            offsets={name: ends for one in found for name, ends in one.offsets.items()},
            errors=tuple(error for one in found for error in one.errors),
        )


class _ServersProbe:
    """The topics of the same brokers."""

    def __init__(self, root: Location, servers: str, topics: Sequence[Topic]) -> None:
        self._root = root
        self._servers = servers
        self._topics = topics
        # Connections are closed when nothing refers to this any more.
        self._connections = contextlib.ExitStack()
        self._broker_of = self._connections.enter_context(brokers())
        self._partitions: dict[str, list[int]] = {}
        self._partitions_at = 0.0
        self._last = TopicEnds({})
        self._asked_at = 0.0
        self._answered = threading.Event()
        self._answered.set()

    def ask(self) -> bool:
        """Ask the brokers, unless they were asked and have not answered yet."""
        if not self._answered.is_set():
            return False
        self._answered.clear()
        self._asked_at = time.monotonic()
        # No worker of a pool: Python waits for these before it exits.
        threading.Thread(target=self._run, name="topic-ends", daemon=True).start()
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait for the answer."""
        self._answered.wait(timeout_s)

    def found(self) -> TopicEnds:
        """Return the last answer."""
        if self._answered.is_set() or time.monotonic() < self._asked_at + SLOW_S:
            return self._last
        slow = f"Kafka at {self._servers} has not answered for more than {SLOW_S:g} s"
        return TopicEnds({}, self._last.errors or (slow,))

    def _run(self) -> None:
        try:
            self._last = self._asked()
        finally:
            self._answered.set()

    def _asked(self) -> TopicEnds:
        offsets: dict[str, dict[int, int]] = {}
        errors: list[str] = []
        for topic in self._topics:
            try:
                offsets[topic.name] = self._ends(self._broker_of(topic), topic)
            except Unavailable as error:
                self._partitions.clear()
                return TopicEnds({}, (str(error),))  # each of the others would take as long
            except StillframeError as error:
                errors.append(f"channel {topic.name}: {error}")
        return TopicEnds(offsets, tuple(errors))

    def _ends(self, broker: Broker, channel: Topic) -> dict[int, int]:
        topic = channel.topic
        now = time.monotonic()
        if now > self._partitions_at + PARTITIONS_S:
            self._partitions.clear()
            self._partitions_at = now
        if topic not in self._partitions:
            present_id(broker, topic, known_id(self._root, channel))
            self._partitions[topic] = broker.partitions(topic)
        return broker.end_offsets(topic, partitions=self._partitions[topic])
