"""Finds a consistent cut that Spark and Kafka retain anyway, and records it: mode ``retained``.

Spark keeps the offsets and the state of the last micro-batches of each query, the ledger of a
service those of its last transactions, and Kafka keeps the records. So no barrier is needed,
nothing waits, and it does not matter whether a participant runs: the newest consistent cut is there
and has to be found (``protocol.recovery_line``). The version of a query is its micro-batch, that of
a service its transaction. What it has consumed is known from its offsets and the labels of the
records before them; in a log, from its entries.

A service that reads and writes logs keeps its state in memory. It is asked, records its state at
the end of an action, and puts the barrier on its logs; that is its only version. Until then it
reads nothing that was appended after the request. So what it has read does not follow from what
another service did after its own recording, and versions of the queries in between can be chosen to
fit. If one of them has not committed what a service has read, the cut is there as soon as it has.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from stillframe.errors import NotConsistent, StillframeError, StoreError
from stillframe.model import Reason, SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.dataflow import Dataflow, Topic
from stillframe.pipeline.kafka import Broker, at_once, brokers
from stillframe.pipeline.known_topics import KnownTopics
from stillframe.pipeline.ledger import VERSION_COUNT, Ledger, find_ledger
from stillframe.pipeline.locks import is_running
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.pending_snapshot import ParticipantFragment, QueryState
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.snapshot_manifest import TopicCut, pinned_path, pinning_directory
from stillframe.pipeline.stopped import ServiceRecord, beginning_of
from stillframe.pipeline.topics import Counting, TopicPositions, counting, has_joined
from stillframe.protocol.recovery_line import Edge, Line, NoLine, newest_line
from stillframe.storage.files import mapped
from stillframe.storage.location import Location

_ATTEMPT_COUNT = 5
_COMMIT_POLL_S = 0.1
RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""The setting for how many micro-batches of a query Spark keeps; 100 by default."""
RETAIN_MIN = 2
"""With one, a query that has read from the newest micro-batch of another one fits no cut."""
_NOTHING = START - 1
_RECORDED, _LATER = 0, 1
"""The version of a service with its state in memory, and what it did after that."""
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
_ROOM = 4
"""How many times what a cut needed a query should retain."""


class RetainedCut(msgspec.Struct, frozen=True):
    """A consistent cut that was found and recorded.

    Attributes:
        fragments: what each query and service recorded.
        topics: where the cut lies on each topic.
        staleness_s: how long ago the first micro-batch was planned, or the first transaction
            committed, that is not part of it. If a participant has neither, how long ago the first
            record that it has not read arrived in a topic. 0 if there is nothing of all that.
        data_age_s: how long ago the first record arrived in a topic that its target has not read at
            the cut; 0 if there is none. None without topics.
        warning: a sentence if a query retains hardly enough for a cut to be found; else None.
    """

    fragments: dict[str, ParticipantFragment]
    topics: tuple[TopicCut, ...]
    staleness_s: float
    data_age_s: float | None = None
    warning: str | None = None


class NotFound(msgspec.Struct, frozen=True):
    """The reason why there is no cut: whom it is about, and a sentence."""

    participant: str
    sentence: str
    reason: Reason = Reason.NOT_RECORDED
    may_come: bool = False
    """Whether there is a cut as soon as a query commits what a service has read from it."""


class _TooLate(Exception):
    """A search took too long; it has the reason."""

    def __init__(self, found: NotFound) -> None:
        super().__init__(found.sentence)
        self.found = found


def record(
    root: Location,
    metadata: Metadata,
    snapshot: SnapshotId,
    recorded: Mapping[str, ParticipantFragment],
    until: float,
) -> RetainedCut | NotFound:
    """Find the newest consistent cut, and pin the checkpoints in the place of a pending snapshot.

    Args:
        root: the pipeline.
        metadata: of the pipeline.
        snapshot: the pending snapshot.
        recorded: what the services with states in memory have recorded for it.
        until: when nothing more is read (``time.monotonic``).

    Raises:
        NotConsistent: a topic holds a record that its writer has not written.
        Unavailable: Kafka does not answer.
        Damaged, StoreError: a checkpoint was edited, or cannot be read or pinned.
    """
    attempt, awaited = 0, None
    while (attempt := attempt + 1) <= _ATTEMPT_COUNT:
        with brokers() as broker_of:
            search = _Search(root, metadata, recorded, broker_of, until)
            try:
                found = search.cut(snapshot)
                if isinstance(found, NotFound):
                    if not found.may_come or time.monotonic() > until:
                        return found
                    attempt, awaited = 0, found
                    time.sleep(_COMMIT_POLL_S)
                    continue
                awaited = None
                if all(search.pin(fragment) for fragment in found.fragments.values()):
                    return found
            except _TooLate as error:
                return awaited or error.found
            except StoreError:
                # Spark deletes what is old, and the start of a query what the run before has left.
                if attempt == _ATTEMPT_COUNT or search.has_same():
                    raise
    slow = ", ".join(metadata.dataflow.queries)
    sentence = f"Spark deletes micro-batches of {slow} faster than they are copied"
    return NotFound(slow, f"{sentence}: raise {RETAIN}")


class _Participant(Protocol):
    """A query or service, and the `versions` that it retains, in rising order."""

    name: str
    versions: list[int]

    def log_positions(self, version: int) -> dict[str, int]:
        """Return its position on each log that it reads."""

    def topic_positions(self, version: int, *, is_earlier: bool = False) -> TopicPositions:
        """Return its position on the partitions of each topic that it is declared to read. With
        `is_earlier` it has read everything before that; else it has read nothing after it."""

    def next_began_at(self, version: int) -> float | None:
        """Return when the version after this one began, finished or not; None if it has not."""

    def chosen_at(self, version: int) -> float | None:
        """Return when a version began; None if that is not known."""

    def recorded(self, version: int) -> dict[str, Any]:
        """Return its state in a version, as members of a fragment."""

    def pin(self, root: Location, fragment: ParticipantFragment) -> bool:
        """Let the files of a version stay; return whether all of them were still there."""


class _Query:
    """A query retains the micro-batches of its checkpoint."""

    def __init__(self, root: Location, metadata: Metadata, name: str) -> None:
        self.name = name
        self._starts = metadata.starts[name]
        self._topics = metadata.dataflow.incoming_topics(name)
        self._run = current_run(root, metadata.epoch, name)
        self.checkpoint = self._run.checkpoint
        self.versions = checkpoint.retained_batches(self.checkpoint)
        first = metadata.batches[name][-1].first - 1
        self.beginning = max(first, checkpoint.oldest_adopted(self.checkpoint))
        """The oldest version that it had at first in this epoch."""
        self._lines: dict[int, list[str]] = {}

    def read_ahead(self) -> None:
        """Read the newest plan, which a search looks at first."""
        if self.versions:
            self._source_lines(self.versions[-1])

    def check_declared(self, topics: Iterable[Topic]) -> None:
        """Raise NotConsistent if the query has read one of these `topics` of the pipeline without
        being a target of it: nothing says up to where."""
        version = self.versions[-1] if self.versions else START
        if version == START:
            return
        found = checkpoint.positions_in(self._source_lines(version), is_earlier=False)
        own = {topic.topic for topic in self._topics}
        if other := [one for one in topics if one.topic in found.keys() - own]:
            raise NotConsistent(
                f"query {self.name} is no target of channel {other[0].name}, and has read its "
                f"topic {other[0].topic} in micro-batch {version}, so no cut can be consistent",
                remedy=f"create a pipeline in another directory in which {self.name} is a target "
                "of the channel, and let each query join it with start_query(adopt=...)",
            )

    def _source_lines(self, version: int) -> list[str]:
        if version not in self._lines:
            self._lines[version] = checkpoint.source_lines(self.checkpoint, version)
        return self._lines[version]

    def has_same(self, other: "_Query") -> bool:
        """Return whether the same is retained as at another time."""
        return (self.checkpoint, self.versions) == (other.checkpoint, other.versions)

    def log_positions(self, version: int) -> dict[str, int]:
        """See ``_Participant``."""
        if version == START or not self._starts:
            return self._starts
        found = checkpoint.committed(self.checkpoint, version).positions
        if missing := [log for log in self._starts if log not in found]:
            raise NotConsistent(
                f"query {self.name} is declared to read the channel {missing[0]}, but its "
                f"micro-batch {version} has not read that log: read every declared channel "
                "(stillframe.spark.read_channels)"
            )
        return found

    def topic_positions(self, version: int, *, is_earlier: bool = False) -> TopicPositions:
        """See ``_Participant``."""
        found = checkpoint.positions_in(self._source_lines(version), is_earlier=is_earlier)
        if version != START and (missing := [t for t in self._topics if t.topic not in found]):
            raise NotConsistent(
                f"query {self.name} is declared to read the channel {missing[0].name}, but its "
                f"micro-batch {version} has not read the topic {missing[0].topic}: read every "
                "declared channel (stillframe.spark.counted)"
            )
        return {topic.name: found.get(topic.topic, {}) for topic in self._topics}

    def next_began_at(self, version: int) -> float | None:
        """See ``_Participant``: when Spark planned the next micro-batch."""
        return checkpoint.planned_at(self.checkpoint, version + 1)

    def chosen_at(self, version: int) -> float | None:
        """See ``_Participant``."""
        return checkpoint.planned_at(self.checkpoint, version)

    def recorded(self, version: int) -> dict[str, Any]:
        """See ``_Participant``."""
        batch = None if version == START else version
        number = self._run.number
        return {"query": QueryState(batch) if number is None else QueryState(batch, number)}

    def pin(self, root: Location, fragment: ParticipantFragment) -> bool:
        """See ``_Participant``."""
        version = fragment.version
        if version == START and not checkpoint.has_started(self.checkpoint):
            return True
        target = pinned_path(pinning_directory(root, fragment.snapshot), self.name, fragment.query)
        checkpoint.pin(self.checkpoint, version, target)
        # Old files that Spark deleted before they were listed were not missed.
        return checkpoint.is_retained(self.checkpoint, version)


class _Service:
    """A service retains the version with which it began in this epoch, and those in its ledger."""

    def __init__(self, name: str, beginning: ServiceRecord, ledger: Ledger | None) -> None:
        assert beginning.state is not None
        first = beginning.state.version
        assert first is not msgspec.UNSET
        self.name = name
        self._ledger = ledger
        self._beginning = beginning
        found = [] if ledger is None else ledger.versions()
        self._entries = {one.version: one for one in found if one.version != first}
        self.versions = [first, *self._entries]

    def log_positions(self, version: int) -> dict[str, int]:
        """See ``_Participant``."""
        return {}

    def topic_positions(self, version: int, *, is_earlier: bool = False) -> TopicPositions:
        """See ``_Participant``."""
        if version in self._entries:
            return self._entries[version].positions
        return self._beginning.topic_positions or {}

    def next_began_at(self, version: int) -> float | None:
        """See ``_Participant``: when the next transaction was committed."""
        later = next((one for number, one in self._entries.items() if number > version), None)
        return None if later is None else later.recorded_at

    def chosen_at(self, version: int) -> float | None:
        """See ``_Participant``."""
        return self._entries[version].recorded_at if version in self._entries else None

    def recorded(self, version: int) -> dict[str, Any]:
        """See ``_Participant``."""
        if version not in self._entries:
            return {"service": self._beginning.state}
        assert self._ledger is not None
        return {"service": self._ledger.state(self._entries[version])}

    def pin(self, root: Location, fragment: ParticipantFragment) -> bool:
        """See ``_Participant``: the fragment has all of it."""
        return True


class _Recorded:
    """A service with its state in memory has one version: what it recorded for this snapshot."""

    def __init__(self, fragment: ParticipantFragment) -> None:
        self.name = fragment.participant
        self.fragment = fragment
        self.versions = [_RECORDED]

    def log_positions(self, version: int) -> dict[str, int]:
        """See ``_Participant``."""
        return self.fragment.positions

    def topic_positions(self, version: int, *, is_earlier: bool = False) -> TopicPositions:
        """See ``_Participant``."""
        return {}

    def next_began_at(self, version: int) -> float | None:
        """See ``_Participant``."""
        return None

    def chosen_at(self, version: int) -> float | None:
        """See ``_Participant``."""
        return self.fragment.recorded_at

    def recorded(self, version: int) -> dict[str, Any]:
        """See ``_Participant``."""
        one = self.fragment
        return {"recorded_at": one.recorded_at, "service": one.service, "system": one.system}

    def pin(self, root: Location, fragment: ParticipantFragment) -> bool:
        """See ``_Participant``: the fragment has all of it."""
        return True


class _Search:
    """The search for a cut through the versions of all participants."""

    def __init__(
        self,
        root: Location,
        metadata: Metadata,
        recorded: Mapping[str, ParticipantFragment],
        broker_of: Callable[[Topic], Broker],
        until: float,
    ) -> None:
        self._root = root
        self._recorded = {name: _Recorded(fragment) for name, fragment in recorded.items()}
        self._until = until
        self._metadata = metadata
        self._broker_of = broker_of
        self._participants: dict[str, _Participant] = {}
        self._readers = {
            log.name: LogReader(root, log, metadata.segments[log.name])
            for log in metadata.dataflow.logs
        }
        self._known = KnownTopics(root, metadata.dataflow.topics, broker_of)
        self._kept: dict[str, int] = {}
        self._countings: dict[str, Counting] = {}

    def cut(self, snapshot: SnapshotId) -> RetainedCut | NotFound:
        """Return the newest cut."""
        self._known.compare()
        try:
            found = self._found(snapshot)
        except NotConsistent:
            # A topic that was created again since explains that.
            self._known.compare()
            raise
        # All that was found is of these topics if they are still there.
        self._known.compare()
        return found

    def _found(self, snapshot: SnapshotId) -> RetainedCut | NotFound:
        flow = self._metadata.dataflow
        if (absent := self._read_versions()) is not None:
            return absent
        versions = {name: self._usable(one) for name, one in self._participants.items()}
        for name, usable in versions.items():
            if not usable:
                return NotFound(
                    name,
                    f"{flow.described(name)} has not consumed the records yet that were in its "
                    "topics before it joined the pipeline: wait until it has",
                )
        line = newest_line(versions, self._edges(), self._consumed)
        if isinstance(line, NoLine):
            return self._not_found(line)
        topics = tuple(at_once(lambda topic: self._topic_cut(topic, line), flow.topics))
        arrived = self._arrivals(line, topics)
        left_out = self._left_out(line, arrived)
        now = time.time()
        participants = self._participants.items()
        return RetainedCut(
            fragments={name: self._fragment(snapshot, name, line, now) for name, _ in participants},
            topics=topics,
            staleness_s=max(0.0, now - min(left_out, default=now)),
            data_age_s=max(0.0, now - min(arrived.values(), default=now)) if topics else None,
            warning=self._shortage(line) if flow.topics else None,
        )

    def _left_out(self, line: Line, arrived: Mapping[str, float]) -> list[float]:
        """Return when that began which is not in a cut: for each participant its next version, or
        else the first record that has `arrived` and is not read."""

        def next_began_at(name: str) -> float | None:
            return self._participants[name].next_began_at(line.versions[name])

        began = zip(line.versions, self._mapped(next_began_at, line.versions), strict=True)
        found = (arrived.get(name) if at is None else at for name, at in began)
        return [at for at in found if at is not None]

    def _arrivals(self, line: Line, topics: Iterable[TopicCut]) -> dict[str, float]:
        """Return when the first record arrived, by its timestamp, that each target has not read."""
        found: dict[str, float] = {}
        for cut in topics:
            for target in cut.positions:
                for at in self._arrived_at(cut, target, line.versions[target]):
                    found[target] = min(at, found.get(target, at))
        return found

    def _arrived_at(self, cut: TopicCut, target: str, version: int) -> list[float]:
        """Return when the first records of a topic arrived that a target has not read. If they
        cannot be read, it is when its version began: they have arrived since."""
        read = cut.positions[target]
        ranges = {p: (read.get(p, 0), read.get(p, 0) + 1) for p, end in cut.ends.items()}
        unread = {p: one for p, one in ranges.items() if one[0] < cut.ends[p]}
        topic = self._metadata.dataflow.topic(cut.channel)
        try:
            records = list(self._broker_of(topic).records(topic.topic, unread))
        except StillframeError:
            at = self._participants[target].chosen_at(version)
            return [] if at is None else [at]
        return [one.timestamp_ms / 1000 for one in records if one.timestamp_ms > 0]

    def _shortage(self, line: Line) -> str | None:
        queries = [one for one in self._participants.values() if isinstance(one, _Query)]
        return shortage(
            line.needed_counts,
            {one.name: one.versions for one in queries},
            {one.name: one.beginning for one in queries},
        )

    def _not_found(self, line: NoLine) -> NotFound:
        sentence = _sentence(self._metadata.dataflow, line)
        if line.participant not in self._recorded or line.limited_by in self._recorded:
            return NotFound(line.participant, sentence)
        # It has read what is not committed.
        if is_running(self._root, line.limited_by):
            return NotFound(line.participant, sentence, Reason.DEADLINE, may_come=True)
        return NotFound(line.limited_by, sentence, Reason.NOT_AT_REST)

    def pin(self, fragment: ParticipantFragment) -> bool:
        """Let the files stay that a participant recorded; return whether all were still there."""
        self._check_time(fragment.participant, "its checkpoint was still being copied")
        return self._participants[fragment.participant].pin(self._root, fragment)

    def _check_time(self, name: str, doing: str) -> None:
        """End the search if it takes too long; `doing` says what took the time."""
        if time.monotonic() > self._until:
            described = self._metadata.dataflow.described(name)
            sentence = f"{doing}, for {described}: give the snapshot more time"
            raise _TooLate(NotFound(name, sentence, Reason.DEADLINE))

    def has_same(self) -> bool:
        """Return whether each query that was looked at still retains the same."""
        queries = [one for one in self._participants.values() if isinstance(one, _Query)]
        return all(one.has_same(_Query(self._root, self._metadata, one.name)) for one in queries)

    def _absent(self, name: str) -> NotFound:
        described = self._metadata.dataflow.described(name)
        return NotFound(name, f"{described} has not joined the pipeline: start it")

    def _read_versions(self) -> NotFound | None:
        """Find out what each participant retains. NotFound if one has not joined the pipeline."""
        flow = self._metadata.dataflow
        written = [topic for topic in flow.topics if topic.source is not None]
        for topic, one in zip(written, self._mapped(self._counting, written), strict=True):
            if one is None:
                assert topic.source is not None
                return self._absent(topic.source)
            self._countings[topic.name] = one
        # Brokers answer while an object store does.
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self._look_at_topics)
            retained = self._mapped(
                lambda name: _Query(self._root, self._metadata, name), flow.queries
            )
            queries = list(retained)
            # What is there is known before more is read: if that is gone, it is looked for again.
            self._participants.update(zip(flow.queries, queries, strict=True))
            for _ in self._mapped(_Query.read_ahead, queries):
                pass
            looking.result()
        for query in queries if flow.topics else ():
            query.check_declared(flow.topics)
        for name in flow.participants:
            if name not in self._participants:
                if (service := self._service(name)) is None:
                    return self._absent(name)
                self._participants[name] = service
        return None

    def _mapped(self, look: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
        return mapped(self._root, look, list(items))

    def _counting(self, topic: Topic) -> Counting | None:
        """Return what decides which records of a topic count; None if its source has not joined."""
        if not has_joined(self._root, topic):
            return None
        return counting(self._root, self._metadata, topic)

    def _service(self, name: str) -> _Participant | None:
        """Return what a service retains; None if it has not joined."""
        root, metadata = self._root, self._metadata
        if name in self._recorded:
            return self._recorded[name]
        if (beginning := beginning_of(root, metadata, name)) is None:
            return None
        self._check_time(name, "its ledger was still being read")
        broker = self._broker_of(metadata.dataflow.topics_of(name)[0])
        ledger = find_ledger(root, name, metadata.epoch, broker)
        if ledger is not None and not ledger.has_begun():
            ledger = None
        return _Service(name, beginning, ledger)

    def _edges(self) -> Iterable[Edge]:
        flow = self._metadata.dataflow
        for channel in flow.channels:
            if channel.source is not None:
                for target in channel.targets:
                    yield Edge(channel.name, channel.source, target)

    def _look_at_topics(self) -> None:
        """Ask each broker once about the topics whose labels are looked at."""
        read: dict[Broker, list[str]] = {}
        for topic in self._metadata.dataflow.topics:
            if topic.source is not None and topic.targets:
                read.setdefault(self._broker_of(topic), []).append(topic.topic)
        for broker, topics in read.items():
            broker.look_at(topics)

    def _usable(self, participant: _Participant) -> list[int]:
        """Return the versions of a participant that can be in a cut: those that have consumed all
        that was in its topics before their writers joined."""
        adopting = [
            one
            for one in self._countings.values()
            if participant.name in one.topic.targets and any(one.record.first_offsets.values())
        ]
        if not adopting:
            return participant.versions

        def has_all(version: int) -> bool:
            positions = participant.topic_positions(version, is_earlier=True)
            return all(
                positions[one.topic.name].get(partition, 0) >= offset
                for one in adopting
                for partition, offset in one.record.first_offsets.items()
            )

        # Positions only rise.
        versions = participant.versions
        first = next((i for i, v in enumerate(versions) if has_all(v)), len(versions))
        return versions[first:]

    def _consumed(self, edge: Edge, version: int) -> int:
        """Return the newest version of the source that the target has read from."""
        target = self._participants[edge.target]
        newest = self._participants[edge.source].versions[-1]
        if edge.channel in self._readers:
            self._check_time(edge.target, f"channel {edge.channel} was still being read")
            position = target.log_positions(version)[edge.channel]
            if (source := self._recorded.get(edge.source)) is not None:
                return _RECORDED if position <= source.fragment.barriers[edge.channel] else _LATER
            return self._consumed_of_log(edge.channel, position)
        one = self._countings[edge.channel]
        positions = target.topic_positions(version)[edge.channel]
        found = self._broker_of(one.topic).newest_batch_before(
            one,
            positions,
            newest,
            check=lambda: self._check_time(
                edge.target, f"topic {one.topic.topic} was still being read"
            ),
        )
        return _NOTHING if found is None else found

    def _first_kept(self, log: str) -> int:
        """Return the first entry of a log that was not trimmed. A search holds the lock that
        trimming needs."""
        if log not in self._kept:
            self._kept[log] = self._readers[log].first_kept()
        return self._kept[log]

    def _consumed_of_log(self, log: str, position: int) -> int:
        # What was trimmed is before a snapshot, so it is in every newer cut.
        reader, first = self._readers[log], self._first_kept(log)
        for number in range(position - 1, first - 1, -1):
            if (batch := reader.entry(number).content.batch) is not None:
                return batch
        return _NOTHING

    def _fragment(
        self, snapshot: SnapshotId, name: str, line: Line, now: float
    ) -> ParticipantFragment:
        participant, version = self._participants[name], line.versions[name]
        return ParticipantFragment(
            snapshot=snapshot,
            participant=name,
            positions=participant.log_positions(version),
            barriers={
                log.name: self._end_in_log(log.name, version)
                for log in self._metadata.dataflow.outgoing(name)
            },
            **{"recorded_at": now, **participant.recorded(version)},
        )

    def _end_in_log(self, log: str, version: int) -> int:
        """Return the position after the last entry that is not of a later micro-batch of the
        writer."""
        reader = self._readers[log]
        if (source := self._recorded.get(reader.log.source)) is not None:
            return source.fragment.barriers[log]
        first = max(self._metadata.segments[log][-1].first, self._first_kept(log))
        end = reader.tail(first)
        for number in range(end - 1, first - 1, -1):
            batch = reader.entry(number).content.batch
            if batch is not None and batch <= version:
                break
            # Before the first records of an epoch, a barrier has no micro-batch.
            if batch is not None:
                end = number
        return end

    def _topic_cut(self, topic: Topic, line: Line) -> TopicCut:
        positions = {}
        for target in topic.targets:
            one, version = self._participants[target], line.versions[target]
            positions[target] = one.topic_positions(version, is_earlier=True)[topic.name]
        broker = self._broker_of(topic)
        # Of a source in the pipeline the labels decide, and what is committed of a transaction may
        # be so a moment later in another topic. Of other programs only the ends do.
        ask = broker.committed_offsets if topic.source is None else broker.end_offsets
        return TopicCut(topic.name, positions, ask(topic.topic), self._known.id_of(topic))


def shortage(
    needed_counts: Mapping[str, int],
    versions: Mapping[str, list[int]],
    beginnings: Mapping[str, int],
) -> str | None:
    """Return a warning about the query that needed most of what it retains for a line. There is
    none if that was half of it or less, or if Spark still keeps that with which the query began
    the epoch."""
    deleting = [name for name, retained in versions.items() if retained[0] > beginnings[name]]
    if not deleting:
        return None
    name = max(deleting, key=lambda one: (needed_counts[one] / len(versions[one]), one))
    needed, count = needed_counts[name], len(versions[name])
    if needed * 2 <= count:
        return None
    return (
        f"the cut needed the newest {needed} of the {count} micro-batches that Spark retains of "
        f"query {name}; the next snapshots may find none: raise {RETAIN} of {name} to "
        f"{_ROOM * needed}"
    )


def _sentence(flow: Dataflow, line: NoLine) -> str:
    if line.limited_by in flow.in_memory:
        more = f"raise {RETAIN} of it, or " if line.participant in flow.queries else ""
        return (
            f"before all services had recorded their states, {flow.described(line.participant)} "
            f"read so much that follows from what {line.limited_by} wrote after its recording that "
            f"it retains nothing from before: {more}end the actions of the services sooner"
        )
    if line.participant in flow.in_memory:
        return (
            f"service {line.participant} has read on channel {line.edge.channel} from micro-batch "
            f"{line.wanted} of {line.edge.source}, and the newest that can be in a cut is "
            f"{line.chosen}, because {flow.described(line.limited_by)} has not committed more: "
            "start it if it does not run, and take another snapshot"
        )
    if line.participant in flow.services:
        return (
            f"{line}. At most the newest {VERSION_COUNT} transactions of a service are looked at: "
            f"wait until {line.limited_by} has caught up"
        )
    count = (
        "" if line.needed_count is None else f" from {line.retained_count} to {line.needed_count}"
    )
    return f"{line}: raise {RETAIN} of {line.participant}{count}"
