"""Finds a consistent cut that Spark and Kafka retain anyway, and records it: mode ``retained``.

Spark keeps the offsets and the state of the last micro-batches of each query, and Kafka keeps the
records. So no barrier is needed, nothing waits, and it does not matter whether a query runs: the
newest consistent cut is there and has to be found (``protocol.recovery_line``). The version of a
query is its micro-batch. What it has consumed is known from its offsets and the labels of the
records before them; in a log, from its entries.
"""

import time
from collections.abc import Iterable, Mapping

import msgspec

from stillframe.errors import NotConsistent, StoreError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import brokers
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.pending_snapshot import ParticipantFragment, QueryState
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.snapshot_manifest import TopicCut, pinned_path, pinning_directory
from stillframe.pipeline.topics import Counting, counting, has_joined
from stillframe.protocol.recovery_line import Edge, Line, NoLine, newest_line
from stillframe.storage.location import Location

_ATTEMPT_COUNT = 5
RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""The setting for how many micro-batches of a query Spark keeps; 100 by default."""
RETAIN_MIN = 2
"""With one, a query that has read from the newest micro-batch of another one fits no cut."""
_NOTHING = START - 1
_ROOM = 4
"""How many times what a cut needed a query should retain."""


class RetainedCut(msgspec.Struct, frozen=True):
    """A consistent cut that was found and recorded.

    Attributes:
        fragments: what each query recorded.
        topics: where the cut lies on each topic.
        staleness_s: how long ago the first micro-batch was planned that is not part of it; 0 if
            the newest one of each query is.
        warning: a sentence if a query retains hardly enough for a cut to be found; else None.
    """

    fragments: dict[str, ParticipantFragment]
    topics: tuple[TopicCut, ...]
    staleness_s: float
    warning: str | None = None


class NotFound(msgspec.Struct, frozen=True):
    """The reason why there is no cut: whom it is about, and a sentence."""

    participant: str
    sentence: str


def record(root: Location, metadata: Metadata, snapshot: SnapshotId) -> RetainedCut | NotFound:
    """Find the newest consistent cut, and pin the checkpoints in the place of a pending snapshot.

    Raises:
        NotConsistent: a topic holds a record that its writer has not written.
        Unavailable: Kafka does not answer.
        Damaged, StoreError: a checkpoint was edited, or cannot be read or pinned.
    """
    queries = _retained(root, metadata)
    for attempt in range(1, 1 + _ATTEMPT_COUNT):
        try:
            found = _Search(root, metadata, queries).cut(snapshot)
            if isinstance(found, NotFound):
                return found
            if all(_pin(root, queries[name], one) for name, one in found.fragments.items()):
                return found
            queries = _retained(root, metadata)
        except StoreError:
            # Spark deletes what is old, and the start of a query what the run before has left.
            before, queries = queries, _retained(root, metadata)
            is_same = all(queries[name].has_same(one) for name, one in before.items())
            if is_same or attempt == _ATTEMPT_COUNT:
                raise
    slow = ", ".join(metadata.dataflow.queries)
    sentence = f"Spark deletes micro-batches of {slow} faster than they are copied"
    return NotFound(slow, f"{sentence}: raise {RETAIN}")


def _retained(root: Location, metadata: Metadata) -> dict[str, "_Query"]:
    return {name: _Query(root, metadata, name) for name in metadata.dataflow.queries}


class _Query:
    """A query and the versions that it retains."""

    def __init__(self, root: Location, metadata: Metadata, name: str) -> None:
        self.name = name
        self._starts = metadata.starts[name]
        self._topics = metadata.dataflow.incoming_topics(name)
        self.run = current_run(root, metadata.epoch, name)
        self.checkpoint = self.run.checkpoint
        self.versions = checkpoint.retained_batches(self.checkpoint)

    def has_same(self, other: "_Query") -> bool:
        """Return whether the same is retained as at another time."""
        return (self.checkpoint, self.versions) == (other.checkpoint, other.versions)

    def log_positions(self, version: int) -> dict[str, int]:
        """Return its position on each log that it reads."""
        if version == START:
            return self._starts
        return checkpoint.committed(self.checkpoint, version).positions

    def topic_positions(self, version: int) -> dict[str, dict[int, int]]:
        """Return its position on the partitions of each topic that it is declared to read."""
        found = checkpoint.topic_positions(self.checkpoint, version)
        if version != START and (missing := [t for t in self._topics if t.topic not in found]):
            raise NotConsistent(
                f"query {self.name} is declared to read the channel {missing[0].name}, but its "
                f"micro-batch {version} has not read the topic {missing[0].topic}: read every "
                "declared channel (stillframe.spark.counted)"
            )
        return {topic.name: found.get(topic.topic, {}) for topic in self._topics}

    def staleness_s(self, version: int, now: float) -> float:
        """Return how long ago the micro-batch after a version was planned, if it is committed."""
        if version == self.versions[-1]:
            return 0.0
        planned_at = checkpoint.planned_at(self.checkpoint, version + 1)
        return 0.0 if planned_at is None else max(0.0, now - planned_at)

    def state(self, version: int) -> QueryState:
        """Return what a fragment says of a version."""
        batch = None if version == START else version
        number = self.run.number
        return QueryState(batch) if number is None else QueryState(batch, number)


class _Search:
    """The search for a cut through the versions of these queries."""

    def __init__(self, root: Location, metadata: Metadata, queries: Mapping[str, _Query]) -> None:
        self._root = root
        self._metadata = metadata
        self._queries = queries
        self._readers = {
            log.name: LogReader(root, log, metadata.segments[log.name])
            for log in metadata.dataflow.logs
        }
        self._countings: dict[str, Counting] = {}

    def cut(self, snapshot: SnapshotId) -> RetainedCut | NotFound:
        """Return the newest cut."""
        flow = self._metadata.dataflow
        for topic in flow.topics:
            if topic.source is None:
                continue
            if not has_joined(self._root, topic):
                return NotFound(
                    topic.source, f"query {topic.source} has not joined the pipeline: start it"
                )
            self._countings[topic.name] = counting(self._root, self._metadata, topic)
        with brokers() as broker_of:
            self._broker_of = broker_of
            versions = {name: self._usable(query) for name, query in self._queries.items()}
            for name, usable in versions.items():
                if not usable:
                    return NotFound(
                        name,
                        f"query {name} has not consumed the records yet that were in its topics "
                        "before it joined the pipeline: wait until it has",
                    )
            line = newest_line(versions, list(self._edges()), self._consumed)
            if isinstance(line, NoLine):
                return NotFound(line.participant, _sentence(line))
            topics = tuple(self._topic_cut(topic, line) for topic in flow.topics)
        now = time.time()
        return RetainedCut(
            fragments={name: self._fragment(snapshot, name, line, now) for name in self._queries},
            topics=topics,
            staleness_s=max(q.staleness_s(line.versions[n], now) for n, q in self._queries.items()),
            warning=shortage(
                line.needed_counts, {name: query.versions for name, query in self._queries.items()}
            ),
        )

    def _edges(self) -> Iterable[Edge]:
        flow = self._metadata.dataflow
        for channel in flow.channels:
            if channel.source is not None:
                for target in channel.targets:
                    yield Edge(channel.name, channel.source, target)

    def _usable(self, query: _Query) -> list[int]:
        """Return the versions of a query that can be in a cut: those that have consumed all that
        was in its topics before their writers joined."""
        adopting = [
            one
            for one in self._countings.values()
            if query.name in one.topic.targets and any(one.record.first_offsets.values())
        ]
        if not adopting:
            return query.versions

        def has_all(version: int) -> bool:
            positions = query.topic_positions(version)
            return all(
                positions[one.topic.name].get(partition, 0) >= offset
                for one in adopting
                for partition, offset in one.record.first_offsets.items()
            )

        # Positions only rise.
        first = next((i for i, v in enumerate(query.versions) if has_all(v)), len(query.versions))
        return query.versions[first:]

    def _consumed(self, edge: Edge, version: int) -> int:
        """Return the newest micro-batch of the source that the target has read from."""
        target = self._queries[edge.target]
        newest = self._queries[edge.source].versions[-1]
        if edge.channel in self._readers:
            return self._consumed_of_log(edge.channel, target.log_positions(version))
        one = self._countings[edge.channel]
        positions = target.topic_positions(version)[edge.channel]
        found = self._broker_of(one.topic).newest_batch_before(one, positions, newest)
        return _NOTHING if found is None else found

    def _consumed_of_log(self, log: str, positions: Mapping[str, int]) -> int:
        reader = self._readers[log]
        for number in range(positions[log] - 1, -1, -1):
            if (batch := reader.entry(number).content.batch) is not None:
                return batch
        return _NOTHING

    def _fragment(
        self, snapshot: SnapshotId, name: str, line: Line, now: float
    ) -> ParticipantFragment:
        query, version = self._queries[name], line.versions[name]
        return ParticipantFragment(
            snapshot=snapshot,
            participant=name,
            recorded_at=now,
            positions=query.log_positions(version),
            barriers={
                log.name: self._end_in_log(log.name, version)
                for log in self._metadata.dataflow.outgoing(name)
            },
            query=query.state(version),
        )

    def _end_in_log(self, log: str, version: int) -> int:
        """Return the number of the first entry after those of a micro-batch of the writer."""
        reader = self._readers[log]
        number = reader.tail(self._metadata.segments[log][-1].first)
        while number > self._metadata.segments[log][-1].first:
            batch = reader.entry(number - 1).content.batch
            if batch is not None and batch <= version:
                break
            number -= 1
        return number

    def _topic_cut(self, topic: Topic, line: Line) -> TopicCut:
        positions = {
            target: self._queries[target].topic_positions(line.versions[target])[topic.name]
            for target in topic.targets
        }
        return TopicCut(topic.name, positions, self._broker_of(topic).end_offsets(topic.topic))


def shortage(needed_counts: Mapping[str, int], versions: Mapping[str, list[int]]) -> str | None:
    """Return a warning about the query that needed most of what it retains for a line, if that was
    more than half of it and Spark has deleted older ones."""
    deleting = [name for name, retained in versions.items() if retained[0] != START]
    if not deleting:
        return None
    name = max(deleting, key=lambda one: (needed_counts[one] / len(versions[one]), one))
    needed, count = needed_counts[name], len(versions[name])
    if needed * 2 <= count:
        return None
    return (
        f"the cut needed the last {needed} micro-batches of query {name}, and Spark retains "
        f"{count}; the next snapshots may find none: raise {RETAIN} of {name} to "
        f"{_ROOM * needed}"
    )


def _pin(root: Location, query: _Query, fragment: ParticipantFragment) -> bool:
    """Pin the checkpoint of a query; return whether all of it was still there."""
    state = fragment.query
    assert state is not None
    version = START if state.batch is None else state.batch
    if version == START and not checkpoint.has_started(query.checkpoint):
        return True
    target = pinned_path(pinning_directory(root, fragment.snapshot), query.name, state)
    checkpoint.pin(query.checkpoint, version, target)
    # Spark may have deleted files of an old version, of which none was missed.
    return checkpoint.is_retained(query.checkpoint, version)


def _sentence(line: NoLine) -> str:
    count = (
        "" if line.needed_count is None else f" from {line.retained_count} to {line.needed_count}"
    )
    return f"{line}: raise {RETAIN} of {line.participant}{count}"
