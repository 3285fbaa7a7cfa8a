"""The public class of a pipeline: create it once, open it anywhere, snapshot and restore it."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stillframe.durable_files import partial_path
from stillframe.errors import (
    Damaged,
    StillframeError,
    UsageError,
    check_count,
    check_seconds,
)
from stillframe.model import Abandoned, SnapshotId, check_process_id
from stillframe.pipeline import (
    coordinator,
    restore,
    retention,
    service,
    snapshot_manifest,
    topic_records,
    topic_service,
)
from stillframe.pipeline.coordinator import TIMEOUT_S, periodically
from stillframe.pipeline.cut_view import PipelineView, QueryStates
from stillframe.pipeline.dataflow import Dataflow, Log, Topic, dataflow
from stillframe.pipeline.joined import Joined
from stillframe.pipeline.kafka import KafkaRecord
from stillframe.pipeline.locks import COORDINATOR, Busy, Lock, coordinating
from stillframe.pipeline.log import LogBatch, LogReader
from stillframe.pipeline.metadata import (
    PIPELINE_FILE,
    Metadata,
    check_place,
    check_savepoint_name,
    create_metadata,
    initial_metadata,
    read_metadata,
    with_ends,
    write_metadata,
)
from stillframe.pipeline.progress import Progress, ProgressReader
from stillframe.pipeline.service import JoinedService
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topic_service import JoinedTopicService
from stillframe.pipeline.topics import Counting
from stillframe.protocol.aligner import Mode
from stillframe.public_names import public_attribute
from stillframe.storage.files import names
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.owned import PROBE, check_conditional_writes
from stillframe.storage.reading import is_there
from stillframe.store.layout import explain_io_errors, first_names

Outcome = Manifest | Abandoned
_Service = TypeVar("_Service", JoinedService, JoinedTopicService)
_BATCH_MAX = 2**63 - 1


def _ignore(progress: Progress) -> None:
    """Do nothing: no progress was asked for."""


class Pipeline:
    """A pipeline, which may be used by any number of programs at once.

    Args:
        path: its directory, or an address such as ``s3://bucket/shop``. The attribute is an
            absolute ``Path``, or an ``ObjectPath``.

    Raises:
        UsageError: there is no pipeline, so create it with ``Pipeline.create``.
        Damaged, StoreError: its description was changed or cannot be read.
    """

    def __init__(self, path: str | Path | ObjectPath) -> None:
        # As a union it would break the typed code of users, whose pipelines are in directories.
        self.path: Any = locate(path).absolute()
        read_metadata(self.path)

    @classmethod
    def create(
        cls,
        path: str | Path | ObjectPath,
        *,
        queries: Iterable[str] = (),
        services: Mapping[str, type] = {},
        channels: Iterable[Log | Topic],
        name: str | None = None,
    ) -> "Pipeline":
        """Make a pipeline, or open the existing one if its description is the same.

        Args:
            path: its directory. On a cluster, one that every machine sees under the same path. Or
                an address such as ``s3://bucket/shop``; with queries it must be in S3 or HDFS.
            queries: the names of the streaming queries.
            services: name -> the dataclass or Struct class whose fields are that service's state.
            channels: the channels between them, made with ``stillframe.pipeline.channel`` and
                ``stillframe.pipeline.kafka_channel``.
            name: the prefix of its snapshot ids; None for the directory's stem.

        Raises:
            UsageError: parts do not fit together; or the directory holds another pipeline, or
                something else; or there are queries, and Spark cannot write there.
            StoreError: the disk is full or failed.
        """
        root = locate(path).absolute()
        described = dataflow(queries=queries, services=services, channels=channels)
        chosen = check_process_id(root.stem if name is None else name, "a pipeline")
        with explain_io_errors(root, "made into a pipeline"):
            if isinstance(root, ObjectPath):
                _create_objects(root, initial_metadata(chosen, described))
                return cls._opened(root, described)
            root.mkdir(parents=True, exist_ok=True)
            lock = Lock(root / COORDINATOR)
            # An existing one is not touched: programs start even while a snapshot is pending.
            if not (root / PIPELINE_FILE).exists() and lock.acquire():
                try:
                    if not (root / PIPELINE_FILE).exists():
                        _check_free(root)
                        write_metadata(root, initial_metadata(chosen, described))
                finally:
                    lock.release()
        return cls._opened(root, described)

    @classmethod
    def _opened(cls, root: Location, described: Dataflow) -> "Pipeline":
        pipeline = cls(root)
        _check_alike(root, pipeline.dataflow, described)
        return pipeline

    @overload
    def join_service(
        self, name: str, *, state: object, kind: type[_Service]
    ) -> contextlib.AbstractContextManager[_Service]: ...

    @overload
    def join_service(
        self, name: str, *, state: object
    ) -> contextlib.AbstractContextManager[JoinedService]: ...

    def join_service(
        self, name: str, *, state: object, kind: type[Joined[Any]] | None = None
    ) -> contextlib.AbstractContextManager[Any]:
        """Take the place of the service `name`: this program reads and writes its channels.

        ``with shop.join_service("books", state=books) as me`` gives a ``JoinedService``, or a
        ``JoinedTopicService`` if its channels are topics of Kafka. A type checker cannot see the
        channels: give ``kind=JoinedTopicService`` for that. When the body ends without an
        error the service has left, and later snapshots contain the state that it had then. A signal
        that ends the program in the body counts as a crash: let its handler call ``leave``.

        With topics of Kafka a crash costs nothing but the actions that were not committed: the
        service continues after its last transaction when it is started again. It needs
        the extra ``kafka``, and creates a topic for its ledger.

        Args:
            name: of the service, as the pipeline declares it.
            state: the object whose fields are recorded. After a restore, and after the service has
                left, or crashed and has topics of Kafka, its fields are set to their recorded
                values before the body begins.
            kind: the class that `me` must have. None: the one that its channels need.

        Raises:
            UsageError: there is no such service, the state is of another class, its channels need
                another `kind`, or a topic does not exist or does not keep its records; or at the
                end, a field holds a value that cannot be restored.
            Unavailable: another program runs this service; or Kafka does not answer.
            NotAtRest: it crashed in this epoch, and its state is lost: restore the pipeline first.
            NotConsistent: records of its ledger were deleted: restore the pipeline first.
        """
        has_topics = self.dataflow.topics_of(name)
        needed = JoinedTopicService if has_topics else JoinedService
        if kind not in (None, needed):
            what = "topics of Kafka" if has_topics else "logs"
            raise UsageError(f"the channels of {name} are {what}: give kind={needed.__name__}")
        # As a union it would break the typed code of users, whose service is of one kind.
        joining: Any = topic_service.join if has_topics else service.join
        joined: contextlib.AbstractContextManager[Any] = joining(
            name, pipeline=self.path, state=state
        )
        return joined

    def records(
        self,
        channel: str,
        *,
        start: int | None = None,
        snapshot: SnapshotId | str | None = None,
        target: str | None = None,
    ) -> Iterator[LogBatch]:
        """Return an iterator over the records of a channel, in batches, without Spark.

        It is for logs: ``topic_records`` is the same for topics of Kafka. Memory holds one batch of
        at most 65,536 records at a time. Programs may append meanwhile: the iterator ends at the
        entry that was the last one when it was made.

        Args:
            channel: its name.
            start: the entry to start at, such as one more than the ``position`` of the last batch
                that was read; None for the oldest one that exists.
            snapshot: an id or the name of a savepoint, to read only what was appended before the
                barrier of that snapshot, on its timeline; None for the log as it is now.
            target: a participant that reads the channel: yields only the records that were in
                flight to it at the cut of `snapshot`.

        Raises:
            UsageError: there is no such channel, snapshot or target, or `start` was trimmed; or
                `target` is given without `snapshot`.
            Damaged: a file of the log was changed or is missing.
        """
        described = self._described(snapshot)
        if any(topic.name == channel for topic in described.dataflow.topics):
            raise UsageError(f"channel {channel} is a topic of Kafka: use topic_records")
        reader = LogReader(self.path, described.dataflow.log(channel), described.segments[channel])
        first = reader.first_kept()
        if isinstance(described, Manifest):
            cut = None if target is None else described.cut(channel, target)
            end = described.barriers[channel]
            first = first if cut is None else min(cut.position, end)
        elif target is not None:
            raise UsageError("target requires snapshot: give both")
        else:
            reader.check_whole(first)
            end = reader.tail(first)
        return reader.batches(first if start is None else max(start, 0), end)

    def topic_records(
        self,
        channel: str,
        *,
        start: Mapping[int, int] | None = None,
        snapshot: SnapshotId | str | None = None,
        target: str | None = None,
        follow: bool = False,
    ) -> Iterator[KafkaRecord]:
        """Return an iterator over the records that count of a topic of Kafka, without Spark.

        Records that a restore took out of the timeline are left out, and so are records of open and
        aborted transactions. Those of one partition keep their order. Memory holds about 16 MiB
        of records at most. Nothing is committed to Kafka: store the offsets yourself.

        Args:
            channel: its name.
            start: partition -> the offset to start at. Others were added since you stored the
                offsets, and start at 0. Without it, all start at the oldest record.
            snapshot: an id or the name of a savepoint, to read only what was written up to its cut,
                on its timeline. If other programs write the topic, what was there when it was
                taken. None for all records up to the present end.
            target: a query that reads the channel: yields only the records that were in flight to
                it at the cut of `snapshot`.
            follow: whether to wait for further records, and never end. After a restore of the
                pipeline, only records of the new timeline are yielded, whose ``label.epoch`` is the
                new epoch. Undo what came of earlier ones that are not on the ``timeline`` any more.

        Raises:
            UsageError: there is no such Kafka channel, snapshot or target; or `target` is given
                without `snapshot`, or `follow` with it.
            NotConsistent: Kafka has deleted records that were in flight, or from `start` on; the
                topic was created again; or another program has written into it.
            Unavailable: Kafka does not answer, or the query that writes the topic has not joined.
        """
        if target is not None and snapshot is None:
            raise UsageError("target requires snapshot: give both")
        if not follow:
            described = self._described(snapshot)
            found = topic_records.select(self.path, described, channel, target=target, start=start)
            return found.records()
        if snapshot is not None:
            raise UsageError("a snapshot has no further records: leave out follow or snapshot")
        self.dataflow.topic(channel)
        return topic_records.follow(self.path, channel, start)

    def topic_filter(self, channel: str, *, snapshot: SnapshotId | str | None = None) -> Counting:
        """Return the filter for the records of a topic of Kafka that count, for other programs.

        ``condition()`` is SQL for Spark. ``ranges()`` has the same as bytes, for any language:
        compare the value of the last header, if its key is ``stillframe``. Each restore of the
        pipeline needs a new filter.

        Args:
            channel: its name.
            snapshot: for what was written up to the cut of this one; None for all that counts now.

        Raises:
            UsageError: there is no such Kafka channel or snapshot; or other programs write the
                topic, so that every record counts.
            Unavailable: the query that writes the topic has not joined the pipeline.
        """
        described = self._described(snapshot)
        topic = described.dataflow.topic(channel)
        found = topic_records.counting_at(self.path, described, topic)
        if found is None:
            raise UsageError(
                f"channel {channel} has no source in the pipeline, so that every record counts: "
                "read it without a filter"
            )
        return found

    def view(
        self,
        snapshot: SnapshotId | str | None = None,
        *,
        query_states: QueryStates | None = None,
    ) -> PipelineView:
        """Return a snapshot as predicates take it: states, and records in flight.

        Args:
            snapshot: an id or a savepoint's name; None for ``latest``.
            query_states: reads the states of queries, which need Spark:
                ``functools.partial(stillframe.spark.query_state, spark, shop)``.

        Raises:
            UsageError: there is no such snapshot.
        """
        manifest = self.latest() if snapshot is None else self.find(snapshot)
        return PipelineView(self.path, manifest, query_states)

    def _described(self, snapshot: SnapshotId | str | None) -> Metadata | Manifest:
        return read_metadata(self.path) if snapshot is None else self.find(snapshot)

    @property
    def dataflow(self) -> Dataflow:
        """Its queries, services and channels."""
        return read_metadata(self.path).dataflow

    @property
    def epoch(self) -> int:
        """The number of restores, plus 1."""
        return read_metadata(self.path).epoch

    def __repr__(self) -> str:
        return f"<pipeline {self.path}>"

    def timeline(self, query: str) -> dict[int, range]:
        """Return the current timeline of a query: epoch -> the numbers of its micro-batches.

        For a service that reads and writes topics of Kafka they are the numbers of its
        transactions.

        All others belong to timelines that a restore abandoned. A sink of your own can tell them
        apart if it stores epoch and number with each record. The range of the current epoch is
        open: it ends at the largest number that a column of 64 bits holds.

        Raises:
            UsageError: there is no such query or service.
        """
        metadata = read_metadata(self.path)
        if query not in metadata.dataflow.versioned:
            metadata.dataflow.check_participant(query, "query")
        return {
            segment.epoch: range(segment.first, _BATCH_MAX if end is None else end)
            for segment, end in with_ends(metadata.batches[query])
        }

    def snapshot(
        self,
        mode: str | Mode | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        progress: Callable[[Progress], None] = _ignore,
        report: Callable[[str], object] = lambda words: sys.stderr.write(f"{words}\n"),
    ) -> Outcome:
        """Take a snapshot while everything keeps running.

        Args:
            mode: ``aligned``: channels are empty at the cut, and each query waits for the barriers
                of all its channels. ``unaligned``: records at once; records in transit belong to
                the snapshot, whatever the backlog; required on cycles. ``at-least-once``: nothing
                is delayed, and a restore delivers some records twice; the snapshot records which.
                ``retained``: the newest cut that Spark and Kafka retain; only services that read
                and write logs record, at once. None for ``retained`` if there is a topic of Kafka,
                and else ``aligned``.
            timeout_s: it is abandoned if no participant makes progress for this many seconds. So an
                aligned snapshot waits while queries read a backlog.
            progress: called repeatedly while it is pending.
            report: receives a warning if, in mode ``retained``, the queries retain hardly enough
                for a cut, or if one runs with neither ``start_query`` nor ``to_channel``. By
                default it goes to standard error.

        Returns:
            the published snapshot, or why it was abandoned and who was missing.

        Raises:
            UsageError: there is no such mode, or it does not fit the dataflow.
            Unavailable: another snapshot is being taken, or the pipeline is being restored.
            StoreError: the disk is full or failed.
        """
        return self._take(mode, None, timeout_s, progress, report)

    def savepoint(
        self,
        name: str,
        mode: str | Mode | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        progress: Callable[[Progress], None] = _ignore,
        report: Callable[[str], object] = lambda words: sys.stderr.write(f"{words}\n"),
    ) -> Outcome:
        """Take a snapshot that is kept under a name until it is deleted; as ``snapshot``.

        Raises:
            UsageError: the name is not allowed, looks like the id of a snapshot, or is in use.
        """
        check_savepoint_name(name)
        return self._take(mode, name, timeout_s, progress, report)

    def _take(
        self,
        mode: str | Mode | None,
        name: str | None,
        timeout_s: float,
        progress: Callable[[Progress], None],
        report: Callable[[str], object],
    ) -> Outcome:
        chosen = self._mode(mode)
        with coordinating(self.path, "a snapshot", is_patient=False):
            return coordinator.take_snapshot(
                self.path, chosen, name, timeout_s, progress=progress, report=report
            )

    @contextlib.contextmanager
    def snapshot_every(
        self,
        interval_s: float,
        *,
        mode: str | Mode | None = None,
        timeout_s: float = TIMEOUT_S,
        keep: int | None = None,
        happened: Callable[[Outcome | StillframeError], None] = lambda outcome: None,
    ) -> Iterator[None]:
        """Take a snapshot every `interval_s` seconds while the body runs.

        Only one is pending at a time: a slow one delays the next.

        Args:
            interval_s: from the start of one to the start of the next.
            mode: as for ``snapshot``.
            timeout_s: as for ``snapshot``.
            keep: how many snapshots stay, besides the savepoints; older ones are deleted and the
                logs are trimmed. None keeps all.
            happened: called in a separate thread with each outcome, or with the error. If it
                raises, no more snapshots are taken, and the error is raised at the end of the body.

        Raises:
            UsageError: there is no such mode, or `interval_s` or `keep` is out of range.
        """
        check_seconds("interval_s", interval_s)
        check_count("keep", keep or 0, 0)
        chosen = self._mode(mode)
        ended = threading.Event()
        failure: list[Exception] = []

        def go() -> None:
            try:
                take_in_time()
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                failure.append(error)

        def take_in_time() -> None:
            for _ in periodically(interval_s, ended.wait):
                try:
                    happened(self.snapshot(chosen, timeout_s=timeout_s))
                    if keep is not None and (damaged := self.keep(keep)):
                        happened(Damaged(sentence_on_damaged(damaged)))
                except Busy:
                    continue  # another program takes one now, which will do
                except StillframeError as error:
                    happened(error)

        # No worker of a pool: Python waits for these before it exits, even if the body never ends.
        thread = threading.Thread(target=go, name="snapshots", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failure:
            raise failure[0]

    def snapshots(self) -> list[Manifest]:
        """Return all published snapshots, the oldest first.

        Raises:
            Damaged, StoreError: a manifest was changed or cannot be read.
        """
        ids = snapshot_manifest.published_ids(self.path)
        read = functools.partial(snapshot_manifest.read_manifest, self.path, is_known=True)
        return [read(snapshot) for snapshot in ids]

    def find(self, snapshot: SnapshotId | str) -> Manifest:
        """Return the snapshot with that id, or the savepoint of that name.

        Raises:
            UsageError: there is neither; the error lists those that exist.
        """
        return snapshot_manifest.find(self.path, snapshot)

    def latest(self) -> Manifest:
        """Return the newest snapshot on the current timeline: the newest one of this epoch, or else
        the one from which this epoch began.

        Raises:
            UsageError: there is none.
        """
        metadata = read_metadata(self.path)
        for snapshot in reversed(snapshot_manifest.published_ids(self.path)):
            manifest = snapshot_manifest.read_manifest(self.path, snapshot, is_known=True)
            if manifest.epoch == metadata.epoch or manifest.snapshot == metadata.restored_from:
                return manifest
        either = ", or restore the newest consistent point"
        either = "" if metadata.dataflow.in_memory else either
        raise UsageError(
            f"{self.path} has no snapshot to restore",
            path=self.path,
            remedy=f"take one while it runs{either}",
        )

    def _mode(self, mode: str | Mode | None) -> Mode:
        return self.dataflow.default_mode if mode is None else parse_mode(mode)

    def restore(
        self,
        snapshot: SnapshotId | str | None = None,
        *,
        newest_consistent: bool = False,
        progress: Callable[[int], None] = lambda size: None,
    ) -> Manifest:
        """Restore the stopped pipeline to a snapshot; then start its programs again as usual.

        Args:
            snapshot: an id or a savepoint's name; None for ``latest``.
            newest_consistent: restore to the newest consistent point instead, which needs no
                earlier snapshot: a new one is taken in mode ``retained``, while all programs are
                kept from starting, and restored at once.
            progress: called with the length of each file that was verified.

        Returns:
            the snapshot.

        Raises:
            Unavailable: a query or service is running; or a snapshot or restore is in progress.
            Damaged, NotConsistent: the snapshot is not what was published, or no consistent point
                was found; nothing was changed.
            UsageError: there is no such snapshot, or it is of another dataflow; or the newest
                consistent point of a pipeline with services is wanted.
            StoreError: the disk is full or failed; the pipeline is as it was.
        """
        if newest_consistent:
            if snapshot is not None:
                raise UsageError("give either a snapshot or newest_consistent=True, not both")
            return restore.restore_newest_consistent(self.path, progress)
        manifest = self.latest() if snapshot is None else self.find(snapshot)
        restore.restore(self.path, manifest, progress)
        return manifest

    def fork(
        self,
        snapshot: SnapshotId | str,
        target: str | Path | ObjectPath,
        *,
        name: str | None = None,
        progress: Callable[[int], None] = lambda size: None,
    ) -> "Pipeline":
        """Make a second pipeline that continues from a snapshot, alongside this one, which may run.

        Args:
            snapshot: an id or a savepoint's name.
            target: a directory that is empty or new, or an address where nothing is.
            name: the prefix of its snapshot ids; None for the directory's stem.
            progress: called with the length of each file that was verified.

        Raises:
            UsageError: there is no such snapshot, or the target is not empty.
            Damaged, NotConsistent: the snapshot is not what was published.
            StoreError: the disk is full or failed.
        """
        root = locate(target).absolute()
        restore.fork(self.path, self.find(snapshot), root, name, progress)
        return Pipeline(root)

    def delete(self, *snapshots: SnapshotId | str) -> list[SnapshotId]:
        """Delete snapshots, and the log entries kept for them alone: all of these, or none.

        Args:
            snapshots: ids, or names of savepoints.

        Returns:
            as ``keep``.

        Raises:
            UsageError: there is no such snapshot, or the current epoch began from it and has no
                other one that stays, or a system of processes, which starts there.
            Unavailable: a snapshot or restore is in progress.
        """
        with coordinating(self.path, "deleting snapshots"):
            found = dict.fromkeys(snapshot_manifest.find_id(self.path, one) for one in snapshots)
            return retention.drop(self.path, found)

    def keep(self, count: int) -> list[SnapshotId]:
        """Delete all but the newest `count` snapshots; savepoints stay, and so do snapshots whose
        manifest is damaged.

        Returns:
            those whose manifest is damaged. Until they are deleted by their ids, the logs are not
            trimmed.

        Raises:
            UsageError: `count` is below 0.
            Unavailable: a snapshot or restore is in progress.
        """
        check_count("count", count, 0)
        with coordinating(self.path, "deleting snapshots"):
            return retention.keep(self.path, count)

    def status(self) -> Progress | None:
        """Return the progress of the pending snapshot; None if there is none."""
        return ProgressReader(self.path).read(read_metadata(self.path))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the method that had this name in the last release."""
            return public_attribute("stillframe.pipeline.Pipeline", name, load=lambda _: self)


def sentence_on_damaged(damaged: list[SnapshotId]) -> str:
    """Return a sentence on the consequence of damaged snapshots that stay."""
    return (
        f"{', '.join(map(str, damaged))}: the manifest is damaged, so the entries that it needs "
        "are unknown, and the logs are not trimmed: delete it by its id"
    )


def parse_mode(mode: str | Mode) -> Mode:
    """Return the mode of that name; UsageError lists the modes."""
    try:
        return Mode(mode)
    except ValueError:
        names = ", ".join(str(one) for one in Mode)
        raise UsageError(f"there is no mode {mode!r}; the modes are {names}") from None


def _create_objects(root: ObjectPath, metadata: Metadata) -> None:
    """Make a pipeline in an object store, unless there is one."""
    check_place(root, metadata.dataflow)
    if not is_there(root / PIPELINE_FILE):
        _check_free(root)
        check_conditional_writes(root)
        with contextlib.suppress(FileExistsError):
            create_metadata(root, metadata)


def _check_alike(root: Location, found: Dataflow, described: Dataflow) -> None:
    if found == described:
        return
    parts = {
        "queries": (found.queries, described.queries),
        "services": (found.services, described.services),
        "channels": ((found.logs, found.topics), (described.logs, described.topics)),
    }
    changed = ", ".join(name for name, (old, new) in parts.items() if old != new)
    raise UsageError(
        f"{root} already contains a pipeline with different {changed}: give another directory, "
        "or pass the existing definition"
    )


def _check_free(root: Location) -> None:
    left_by_a_crash = {COORDINATOR, partial_path(Path(PIPELINE_FILE)).name}
    found = set(names(root)) - left_by_a_crash
    foreign = sorted(name for name in found if not name.startswith(PROBE))
    if foreign:
        raise UsageError(
            f"{root} is not empty and is not a pipeline; it contains {first_names(foreign)}: give "
            "an empty or new directory"
        )
