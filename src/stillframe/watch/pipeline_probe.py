"""Samples how a pipeline is, from its files alone and cheaply: it never reads a whole log.

Of each log it reads the newest entry and the one at the position of each target: an entry says how
many records come before it. What has not changed since the last sample is not read again.
"""

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stillframe.errors import StillframeError
from stillframe.pipeline import checkpoint
from stillframe.pipeline.dataflow import Dataflow, Log, Topic
from stillframe.pipeline.locks import is_running, poll_s
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import (
    PIPELINE_FILE,
    Metadata,
    ObjectMetadata,
    read_metadata,
    read_object_metadata,
)
from stillframe.pipeline.progress import Progress, ProgressReader
from stillframe.pipeline.query_runs import of_current_checkpoint
from stillframe.pipeline.stopped import service_status
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.reading import is_there
from stillframe.storage.storage import Version
from stillframe.watch.topic_probe import TopicProbe

RUNNING, BUSY, STOPPED, DEAD, ABSENT = "running", "busy", "stopped", "dead", "absent"
"""The statuses of a query or service. An absent service has not joined; a dead one has lost its
state; a stopped one, as any query, resumes from the state on the disk."""

_ATTEMPT_COUNT = 6


class ParticipantSample(msgspec.Struct, frozen=True):
    """A sample of a query or service: its status, its position on each log that it reads, and the
    last committed micro-batch of a query. Times, of the commit or of the report, are in seconds
    since 1970. `topic_positions` are those of a query on the partitions of each topic of Kafka, by
    the name of the topic."""

    status: str
    positions: dict[str, int] = {}
    batch: int | None = None
    since: float | None = None
    topic_positions: dict[str, dict[int, int]] = {}


class ReaderSample(msgspec.Struct, frozen=True):
    """The position of one target in a log; `records` is None if the entry that gives it was
    deleted."""

    position: int | None
    records: int | None


class LogSample(msgspec.Struct, frozen=True):
    """The records appended to a log since the pipeline was created, and read by each target."""

    entries: int
    records: int
    readers: dict[str, ReaderSample]


class TopicReaderSample(msgspec.Struct, frozen=True):
    """The committed position of one target on a topic, as the sum over the partitions, and how many
    records it is behind the end, including those that do not count."""

    position: int
    behind: int


class TopicSample(msgspec.Struct, frozen=True):
    """The end of a topic of Kafka, as the sum over the partitions, and its targets; one that has
    not planned any micro-batch is left out."""

    end: int
    readers: dict[str, TopicReaderSample]


class PipelineSample(msgspec.Struct, frozen=True):
    """A sample of a pipeline; its time and the start of its epoch are in seconds since 1970.
    `progress` is that of the pending snapshot, and `errors` are sentences about what could not be
    read. Topics whose end is not known are left out."""

    at: float
    metadata: Metadata
    began_at: float
    participants: dict[str, ParticipantSample]
    logs: dict[str, LogSample]
    progress: Progress | None
    errors: tuple[str, ...] = ()
    topics: dict[str, TopicSample] = {}

    def is_running(self, name: str) -> bool:
        """Return whether a program runs a query or service."""
        return self.participants[name].status in (RUNNING, BUSY)


class PipelineProbe:
    """Samples a pipeline repeatedly; one call at a time."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._known: tuple[ObjectMetadata, Version] | None = None
        self._identity: tuple[int, int] | None = None
        self._metadata: Metadata | None = None
        self._began_at = 0.0
        self._logs: dict[str, _LogProbe] = {}
        self._topics: TopicProbe | None = None
        self._were_running: set[str] = set()
        self._progress = ProgressReader(root)

    def sample(self) -> PipelineSample:
        """Return how the pipeline is now; raises as ``read_metadata``."""
        metadata = self._read_metadata()
        errors: list[str] = []
        names = metadata.dataflow.participants
        participants = {name: self._participant(metadata, name, errors) for name in names}
        logs = {}
        for log in metadata.dataflow.logs:
            with _collecting(errors):
                logs[log.name] = self._logs[log.name].sample(
                    {target: participants[target].positions.get(log.name) for target in log.targets}
                )
        topics = self._sample_topics(metadata.dataflow, participants, errors)
        progress = None
        with _collecting(errors):
            progress = self._progress.read(metadata)
        return PipelineSample(
            at=time.time(),
            metadata=metadata,
            began_at=self._began_at,
            participants=participants,
            logs=logs,
            progress=progress,
            errors=tuple(errors),
            topics=topics,
        )

    def _sample_topics(
        self, flow: Dataflow, participants: dict[str, ParticipantSample], errors: list[str]
    ) -> dict[str, TopicSample]:
        if not flow.topics:
            return {}
        if self._topics is None or self._topics.topics != flow.topics:
            self._topics = TopicProbe(self._root, flow.topics)
        ends = self._topics.sample()
        errors.extend(ends.errors)
        return {
            topic.name: _topic_sample(topic, ends.offsets[topic.name], participants)
            for topic in flow.topics
            if topic.name in ends.offsets
        }

    def _read_metadata(self) -> Metadata:
        if isinstance(self._root, ObjectPath):
            self._known = read_object_metadata(self._root, self._known)
            before, self._metadata = self._metadata, self._known[0]
            if before is None or before.epoch != self._metadata.epoch:
                # When that began is not known: it is changed for each snapshot.
                self._began_at = time.time()
                self._logs = self._probes(self._metadata)
            return self._metadata
        path = self._root / PIPELINE_FILE
        status = path.stat() if path.exists() else None
        identity = None if status is None else (status.st_ino, status.st_mtime_ns)
        if self._metadata is None or status is None or identity != self._identity:
            metadata = read_metadata(self._root)
            self._metadata, self._identity = metadata, identity
            self._began_at = 0.0 if status is None else status.st_mtime
            self._logs = self._probes(metadata)
        return self._metadata

    def _probes(self, metadata: Metadata) -> "dict[str, _LogProbe]":
        return {log.name: _LogProbe(self._root, log, metadata) for log in metadata.dataflow.logs}

    def _participant(self, metadata: Metadata, name: str, errors: list[str]) -> ParticipantSample:
        runs = False
        with _collecting(errors):
            runs = self._is_running(name)
        with _collecting(errors):
            if name in metadata.dataflow.queries:
                start = metadata.starts[name]
                reads_topics = bool(metadata.dataflow.incoming_topics(name))
                look = functools.partial(
                    _query_sample, start=start, runs=runs, reads_topics=reads_topics
                )
                return of_current_checkpoint(self._root, metadata.epoch, name, look)
            found = service_status(self._root, metadata, name)
            status = DEAD if found.is_dead else STOPPED if found.has_joined else ABSENT
            status = RUNNING if runs else status
            return ParticipantSample(status, found.positions, since=found.since)
        return ParticipantSample(RUNNING if runs else STOPPED)

    def _is_running(self, name: str) -> bool:
        """Return whether a program runs a participant, and so holds its lock without interruption;
        one that takes a snapshot holds the locks of stopped participants for moments."""
        attempts = 1 if name in self._were_running else _ATTEMPT_COUNT
        for attempt in range(attempts):
            if not is_running(self._root, name):
                self._were_running.discard(name)
                return False
            if attempt + 1 < attempts:
                time.sleep(poll_s(self._root))
        self._were_running.add(name)
        return True


def _topic_sample(
    topic: Topic, ends: dict[int, int], participants: dict[str, ParticipantSample]
) -> TopicSample:
    """Return how a topic is, given the end of each partition."""
    readers = {}
    for target in topic.targets:
        positions = participants[target].topic_positions.get(topic.topic)
        if positions is not None:
            behind = (max(0, end - positions.get(partition, 0)) for partition, end in ends.items())
            readers[target] = TopicReaderSample(sum(positions.values()), sum(behind))
    return TopicSample(sum(ends.values()), readers)


class _LogProbe:
    def __init__(self, root: Location, log: Log, metadata: Metadata) -> None:
        self._reader = LogReader(root, log, metadata.segments[log.name])
        self._tail = 0
        self._totals: dict[int, int] = {0: 0}

    def sample(self, positions: dict[str, int | None]) -> LogSample:
        """Return how the log is, given the position of each target."""
        known = [position for position in positions.values() if position is not None]
        start = max([self._tail, *known])
        if not (self._exists(start) or (start and self._exists(start - 1))):
            start = max(start, self._reader.first_kept())
        self._tail = tail = self._reader.tail(start)
        totals = {0: 0, tail: self._total(tail) or 0}
        for position in known:
            total = self._total(position)
            if total is not None:
                totals[position] = total
        self._reader.forget(tail)
        self._totals = totals
        readers = {
            target: ReaderSample(position, None if position is None else totals.get(position))
            for target, position in positions.items()
        }
        return LogSample(tail, totals[tail], readers)

    def _total(self, position: int) -> int | None:
        """Return the number of records before a position; None if the entry was trimmed."""
        if position in self._totals:
            return self._totals[position]
        if not self._exists(position - 1):
            return None
        return sum(self._reader.offsets_at(position))

    def _exists(self, number: int) -> bool:
        return is_there(self._reader.entry_path(number))


@functools.lru_cache(maxsize=1024)
def _topic_positions_after(directory: Location, batch: int) -> dict[str, dict[int, int]]:
    """Return a query's positions on topics after a committed micro-batch, which never change."""
    return checkpoint.topic_positions(directory, batch)


@functools.lru_cache(maxsize=1024)
def _batches_of(
    directory: Path,
    changed: tuple[int, int],  # noqa: ARG001 - identifies what is in it
) -> tuple[checkpoint.Committed | None, int | None, float | None]:
    """Return a query's last committed micro-batch, its last planned one, and when the first was."""
    done = checkpoint.last_committed(directory)
    since = None if done is None else checkpoint.committed_at(directory, done.batch)
    return done, checkpoint.planned_batch(directory), since


def _query_sample(
    directory: Location, *, start: dict[str, int], runs: bool, reads_topics: bool
) -> ParticipantSample:
    """Return how a query is, given its positions on logs at the start of the epoch."""
    if isinstance(directory, Path):
        done, planned, since = _batches_of(directory, checkpoint.changed_at(directory))
    else:
        done, since = checkpoint.last_committed(directory), None
        planned = checkpoint.planned_batch(directory)
    batch = None if done is None else done.batch
    is_busy = planned is not None and (batch is None or planned > batch)
    status = (BUSY if is_busy else RUNNING) if runs else STOPPED
    positions = start if done is None else done.positions
    topic_positions: dict[str, dict[int, int]] = {}
    if reads_topics and batch is None:
        topic_positions = checkpoint.topic_positions(directory, checkpoint.START)
    elif reads_topics and batch is not None:
        topic_positions = _topic_positions_after(directory, batch)
    return ParticipantSample(status, positions, batch, since, topic_positions)


@contextlib.contextmanager
def _collecting(errors: list[str]) -> Iterator[None]:
    """Collect the error of what cannot be read, so that the rest is shown."""
    try:
        yield
    except StillframeError as error:
        errors.append(str(error))
