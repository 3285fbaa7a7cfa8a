"""The commands about pipelines: ``stillframe pipeline snapshot`` and so on.

None needs Spark or Java: all that is asked and answered is in the directory of the pipeline."""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Annotated, Any

import msgspec
import typer
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
from rich.text import Text

from stillframe.cli import output, quantities
from stillframe.cli.command import Commands, argument, end_with_failure, flag, option, signals
from stillframe.cli.options import INTERVAL, KEEP, KEPT, StepTimeout
from stillframe.durable_files import shell_command
from stillframe.errors import (
    Damaged,
    NotConsistent,
    StillframeError,
    Unavailable,
    UsageError,
)
from stillframe.json_values import plain
from stillframe.model import Abandoned, SnapshotId
from stillframe.pipeline.coordinator import abandoned_snapshots, periodically
from stillframe.pipeline.known_topics import changed_topics
from stillframe.pipeline.locks import coordinator_lock
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.pending_snapshot import ParticipantFragment, is_being_published
from stillframe.pipeline.pipeline import Pipeline, sentence_on_damaged
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.query_batches import unseen_sentences
from stillframe.pipeline.restore import repeated_batch_counts
from stillframe.pipeline.snapshot_manifest import ChannelCut, Manifest, listing, published_ids
from stillframe.protocol.aligner import Mode
from stillframe.storage.location import Location
from stillframe.store.history import SnapshotAbandoned

_TIMES = ("initiated_at", "completed_at", "published_at")
_COUNTS = ("record_count", "duplicate_count")
Taking = Callable[..., Manifest | Abandoned]
"""Takes a snapshot of a pipeline, and calls its argument `progress` meanwhile."""
PROGRESS_COLUMNS = ("participant", "what", "since", "for")
NEWEST_CONSISTENT = "--newest-consistent"
RETAINED_STATUS = (
    "no snapshot is pending: with topics of Kafka as channels, a snapshot is found among the "
    "micro-batches that Spark keeps, and waits for no participant"
)
LINE_COUNT_MAX = 10
"""Awaited participants shown in the moving lines; the table has all."""
POLL_S = 0.1
CHANNEL_COLUMNS: output.Columns[dict[str, Any]] = {
    "channel": itemgetter("channel"),
    "from": itemgetter("source"),
    "to": itemgetter("target"),
    "sent": itemgetter("sent_count"),
    "received": itemgetter("received_count"),
    "on it": itemgetter("record_count"),
    "duplicates": itemgetter("duplicate_count"),
}

IN_FLIGHT_MAX = 1_000_000
"""How many records in flight on a topic are counted: all of them have to be read for that."""
TOPIC_COLUMNS: output.Columns[dict[str, Any]] = {
    "channel": itemgetter("channel"),
    "from": itemgetter("source"),
    "to": itemgetter("target"),
    "read up to": lambda row: _positions_cell(row["positions"]),
    "in flight": itemgetter("record_count"),
}

app = Commands()

PipelinePath = Annotated[
    Location,
    typer.Argument(
        metavar="PIPELINE", help="Directory of the pipeline, or address, as s3://bucket/dir."
    ),
]
MODE = typer.Option(
    None,
    help="When participants record. With aligned, they first wait for the barriers of all "
    "channels. With unaligned, they record at once, with the records in transit. With "
    "at-least-once, nothing is delayed, but a restore delivers some records twice. With retained, "
    "nothing is delayed either: the newest consistent cut is found among the micro-batches that "
    "Spark keeps, and only services with logs record.  "
    "[default: retained if a channel is a topic of Kafka, else aligned]",
    show_default=False,
)
_SNAPSHOT = "Id of a snapshot, such as shop-17, or name of a savepoint."
SNAPSHOT = argument(
    "SNAPSHOT", f"{_SNAPSHOT}  [default: the newest of the present timeline]", default=None
)


@app.add(
    "pipeline snapshot shop.pipeline --mode unaligned",
    "pipeline snapshot shop.pipeline --interval 1m --keep 10",
)
def snapshot(
    path: PipelinePath,
    mode: Mode | None = MODE,
    interval: str | None = option(
        "DURATION", "Take snapshots at this interval until Ctrl-C: 10s, 5m.", *INTERVAL
    ),
    keep: int | None = KEEP,
    timeout: StepTimeout = "1m",
) -> None:
    """Take a snapshot of all queries, services and channels of a running pipeline and print its
    id. Exit 1 if a participant is missing. Ctrl-C abandons the snapshot and releases all
    participants."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    every_s = None if interval is None else quantities.parse_duration("--interval", interval)
    pipeline = Pipeline(path)
    taking = functools.partial(pipeline.snapshot, mode, timeout_s=timeout_s)
    if every_s is None:
        _take_once(pipeline, taking)
        _keep(pipeline, keep)
        return
    flow = pipeline.dataflow
    flow.check_mode(flow.default_mode if mode is None else mode)
    with _ended_like_ctrl_c(), contextlib.suppress(KeyboardInterrupt):
        for _ in periodically(every_s, time.sleep):
            # One that is abandoned, or cannot be taken just now, does not end the command.
            try:
                _, is_ended = _take(pipeline, taking)
                if is_ended:
                    return
                _keep(pipeline, keep)
            except StillframeError as error:
                output.say(f"FAIL: {error}")


@app.add("pipeline savepoint shop.pipeline before-upgrade")
def savepoint(
    path: PipelinePath,
    name: str = argument("NAME", "Name of the savepoint."),
    mode: Mode | None = MODE,
    timeout: StepTimeout = "1m",
) -> None:
    """Take a snapshot and keep it under a name until it is deleted."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    pipeline = Pipeline(path)
    _take_once(pipeline, functools.partial(pipeline.savepoint, name, mode, timeout_s=timeout_s))


def _take_once(pipeline: Pipeline, taking: Taking) -> None:
    is_published, _ = _take(pipeline, taking)
    if not is_published:
        end_with_failure()


def _keep(pipeline: Pipeline, count: int | None) -> None:
    if count is not None and (damaged := pipeline.keep(count)):
        output.say(sentence_on_damaged(damaged))


class Interrupted(msgspec.Struct, frozen=True):
    """A snapshot that was abandoned because the command was ended."""

    snapshot: SnapshotId | None
    missing: tuple[str, ...]
    reason: str = "interrupted"

    def __str__(self) -> str:
        which = "the snapshot" if self.snapshot is None else f"snapshot {self.snapshot}"
        missing = f"; missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{which} was abandoned: {self.reason}{missing}; no participant is delayed"


def _take(pipeline: Pipeline, taking: Taking) -> tuple[bool, bool]:
    """Take a snapshot, say how it went, and return whether it is published, and whether the command
    was ended meanwhile."""
    last: Progress | None = None
    began_at = time.time()
    is_ended = False
    outcome: Manifest | Abandoned | Interrupted
    try:
        with _ended_like_ctrl_c(), moving() as draw:

            def progress(now: Progress) -> None:
                nonlocal last
                last = now
                draw(now)

            outcome = taking(progress=progress)
    except KeyboardInterrupt:
        is_ended = True
        outcome = Interrupted(last.snapshot, last.awaited) if last else Interrupted(None, ())
        newest = pipeline.snapshots()[-1:]
        if newest and newest[0].initiated_at >= began_at:
            outcome = newest[0]  # too late: it was published a moment before
    if not isinstance(outcome, Manifest):
        output.answer({"published": None, "abandoned": outcome})
        output.report(f"FAIL: {outcome}")
        return False, is_ended
    document = {"published": document_of(outcome), "abandoned": None}
    output.answer(document, lambda: output.put_lines([str(outcome.snapshot)]))
    output.say(published(outcome))
    return True, is_ended


def _ended_like_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM end the body as Ctrl-C does: a pending snapshot must not delay queries
    afterwards."""
    return signals(signal.default_int_handler, signal.SIGTERM)


def published(manifest: Manifest) -> str:
    """Say what a published snapshot is."""
    kind = "snapshot" if manifest.name is None else f"savepoint {manifest.name}, snapshot"
    # Records in a topic of Kafka are not counted.
    count = (
        ""
        if manifest.topics
        else f"{quantities.count(manifest.record_count, 'record')} in transit, "
    )
    age = f"{_staleness(manifest)}, " if manifest.staleness_s is not None else ""
    doubled = f"; {twice(manifest)}" if manifest.duplicate_count else ""
    return (
        f"{kind} {manifest.snapshot}: {manifest.mode_words}, epoch {manifest.epoch}, {age}{count}"
        f"recorded in {quantities.duration(manifest.completed_at - manifest.initiated_at)}, "
        f"published after {quantities.duration(manifest.published_at - manifest.initiated_at)}"
        f"{doubled}"
    )


def _staleness(manifest: Manifest) -> str:
    age_s = manifest.data_age_s
    age = "" if age_s is None else f", data age {quantities.duration(age_s)}"
    return f"staleness {quantities.duration(manifest.staleness_s or 0.0)}{age}"


def twice(manifest: Manifest) -> str:
    """Say what a restore of a snapshot receives twice."""
    return f"a restore receives {quantities.count(manifest.duplicate_count, 'record')} twice"


@app.add("pipeline status shop.pipeline --watch")
def status(
    path: PipelinePath,
    watch: bool = flag("--watch", "Follow the snapshot until it ends. Exit 1 if it was abandoned."),
) -> None:
    """Show the progress of the pending snapshot: which participants have recorded, which have
    not, and what they wait for. Name queries that run without Stillframe, and topics that were
    created again."""
    pipeline = Pipeline(path)
    found = pipeline.status()
    warnings = unseen_sentences(pipeline.path, read_metadata(pipeline.path))
    warnings += changed_topics(pipeline.path, pipeline.dataflow.topics)
    for words in warnings:
        output.report(words)
    if found is None:
        output.answer({"snapshot": None, "warnings": warnings})
        flow = pipeline.dataflow
        is_found = flow.default_mode is Mode.RETAINED and not flow.in_memory
        output.report(RETAINED_STATUS if is_found else "no snapshot is pending")
        return
    if watch:
        _watch(pipeline, found)
        return
    now = time.time()
    what = {name: ("has recorded", at) for name, at in found.recorded.items()}
    for one in found.awaiting:
        sentence = one.sentence().removeprefix(f"{one.participant} ")
        # Until the barriers of others are there it has been waiting since the beginning.
        what[one.participant] = sentence, one.since or found.initiated_at
    rows = [
        (name, sentence, quantities.moment(since), _age(since, now))
        for name, (sentence, since) in sorted(what.items())
    ]
    document = plain(found) | {
        "mode": str(found.mode),
        "awaiting": [plain(one) | {"sentence": one.sentence()} for one in found.awaiting],
        "stragglers": [one.participant for one in found.stragglers],
        "warnings": warnings,
    }
    output.answer(document, lambda: output.put_table("", PROGRESS_COLUMNS, rows, texts=2))
    output.report(_progress_summary(found, now))
    if why := _left_over(pipeline, found):
        output.report(f"FAIL: {why}")


def _watch(pipeline: Pipeline, first: Progress) -> None:
    now: Progress | None = first
    why = ""
    with moving() as draw:
        while True:
            if now is not None and now.snapshot == first.snapshot:
                draw(now)
            elif not is_being_published(pipeline.path, first.snapshot):
                break
            if why := _left_over(pipeline, first):
                break
            time.sleep(POLL_S)
            now = pipeline.status()
    is_published = first.snapshot in (manifest.snapshot for manifest in pipeline.snapshots())
    output.answer({"snapshot": first.snapshot, "is_published": is_published})
    if is_published:
        output.report(f"snapshot {first.snapshot} is published")
        return
    is_over = now is None or now.snapshot != first.snapshot
    end_with_failure(f"snapshot {first.snapshot} was abandoned" if is_over else why)


@contextlib.contextmanager
def moving() -> Iterator[Callable[[Progress], None]]:
    """Give what draws progress on a terminal, line over line, and wipes it away at the end; where
    words do not go to a terminal it draws nothing."""
    console = output.words()
    if not output.is_lively(console):
        yield lambda progress: None
        return
    with Live(console=console, transient=True) as live:
        yield lambda progress: live.update(Text("\n".join(progress_lines(progress, time.time()))))


def progress_lines(progress: Progress, now: float) -> list[str]:
    """Return a sentence on the progress of a snapshot at the time `now`."""
    awaiting = progress.awaiting[:LINE_COUNT_MAX]
    shown = [
        f"  {awaited.sentence()}, for {_age(awaited.since or progress.initiated_at, now)}"
        for awaited in awaiting
    ]
    left_out = len(progress.awaiting) - len(awaiting)
    more = [f"  and {left_out:,} more are awaited"] if left_out else []
    return [_progress_summary(progress, now), *shown, *more]


def _progress_summary(progress: Progress, now: float) -> str:
    recorded_count = len(progress.recorded)
    count = recorded_count + len(progress.awaiting)
    return (
        f"snapshot {progress.snapshot}, {progress.mode}, begun {_age(progress.initiated_at, now)} "
        f"ago: {recorded_count} of {count} have recorded"
        + (f" ({', '.join(sorted(progress.recorded))})" if recorded_count else "")
    )


def _age(since: float, now: float) -> str:
    # Somebody else's clock may be ahead of ours.
    return quantities.duration(max(0.0, now - since))


def _left_over(pipeline: Pipeline, progress: Progress) -> str:
    """Say that the snapshot was left behind, because its coordinator was killed; else nothing
    is said."""
    # Only after the deadline, because asking for the lock could be in the way of the next snapshot.
    if time.time() <= progress.deadline_at:
        return ""
    is_free = coordinator_lock(pipeline.path).is_free()
    words = (
        "has terminated, and its deadline has passed: take another snapshot, which removes this one"
    )
    return f"the program that took snapshot {progress.snapshot} {words}" if is_free else ""


@app.add("pipeline list shop.pipeline", name="list")
def list_snapshots(path: PipelinePath) -> None:
    """List the snapshots of a pipeline in the order of publishing, and the last abandoned ones.
    Marks show those of the present timeline and the one that the present epoch started from."""
    pipeline = Pipeline(path)
    metadata = read_metadata(pipeline.path)
    manifests, damages = listing(pipeline.path)
    unreadable: list[str] = []
    abandoned: tuple[SnapshotAbandoned, ...] = ()
    try:
        abandoned = abandoned_snapshots(pipeline.path)
    except Damaged as error:
        unreadable.append(str(error))
    marks = {manifest.snapshot: _timeline_mark(manifest, metadata) for manifest in manifests}
    latest = next((m.snapshot for m in reversed(manifests) if marks[m.snapshot]), None)
    document = {
        "pipeline": pipeline.path,
        "name": metadata.name,
        "epoch": metadata.epoch,
        "restored_from": metadata.restored_from,
        "latest": latest,
        "snapshots": [
            document_of(manifest) | {"is_current": bool(marks[manifest.snapshot])}
            for manifest in manifests
        ],
        "abandoned": [
            {name: getattr(one, name) for name in ("snapshot", "reason", "missing", "detail")}
            for one in abandoned
        ],
        "damaged": [{"id": one, "detail": str(damage)} for one, damage in damages.items()],
    }
    began = f", which started from {metadata.restored_from}" if metadata.restored_from else ""
    end = f"a restore starts from {latest}"
    if latest is None:
        command = shell_command("pipeline", "snapshot", path)
        end = f"there is nothing to restore: take a snapshot with '{command}'"
        if not metadata.dataflow.in_memory:
            command = shell_command("pipeline", "restore", path, NEWEST_CONSISTENT)
            end = f"{end}, or restore the newest consistent point with '{command}'"

    def put() -> None:
        if manifests:
            output.put_table("", _list_columns(manifests, marks), manifests, texts=6)
        output.report(*map(str, abandoned))
        output.report(
            f"{quantities.count(len(manifests), 'snapshot')}; pipeline {metadata.name} is in epoch "
            f"{metadata.epoch}{began}; {end}"
        )

    output.answer(document, put)
    if damages or unreadable:
        end_with_failure(*map(str, damages.values()), *unreadable)


def _list_columns(
    manifests: list[Manifest], marks: Mapping[SnapshotId, str]
) -> output.Columns[Manifest]:
    """Return the columns of the list; staleness and age of the data if any snapshot has them."""
    staleness: dict[str, Callable[[Manifest], object]] = {}
    if any(manifest.staleness_s is not None for manifest in manifests):
        staleness["staleness"] = lambda manifest: _duration_cell(manifest.staleness_s)
    if any(manifest.data_age_s is not None for manifest in manifests):
        staleness["data age"] = lambda manifest: _duration_cell(manifest.data_age_s)
    return {
        "snapshot": attrgetter("snapshot"),
        "name": attrgetter("name"),
        "timeline": lambda manifest: marks[manifest.snapshot],
        "mode": attrgetter("mode"),
        "unaligned": lambda manifest: ", ".join(manifest.unaligned),
        "published": lambda manifest: quantities.moment(manifest.published_at),
        "epoch": lambda manifest: str(manifest.epoch),
        "recorded in": lambda m: quantities.duration(m.completed_at - m.initiated_at),
        **staleness,
        "in transit": lambda manifest: None if manifest.topics else manifest.record_count,
        "duplicates": attrgetter("duplicate_count"),
        "size": lambda manifest: quantities.size(manifest.bytes),
    }


@app.add("pipeline delete shop.pipeline shop-3 shop-4", "pipeline delete shop.pipeline --keep 10")
def delete(
    path: PipelinePath,
    snapshots: list[str] | None = argument(
        "SNAPSHOT...", "Ids of snapshots, or names of savepoints.", default=None
    ),
    keep: int | None = option("N", KEPT, "--keep", min=0),
) -> None:
    """Delete the given snapshots, all or none, and the channel data kept only for them. The
    snapshot that the present epoch started from is kept."""
    names = snapshots or []
    if bool(names) == (keep is not None):
        raise UsageError("give either the snapshots to delete or --keep N")
    pipeline = Pipeline(path)
    before = published_ids(pipeline.path)
    damaged = pipeline.delete(*names) if keep is None else pipeline.keep(keep)
    left = published_ids(pipeline.path)
    dropped = [snapshot for snapshot in before if snapshot not in left]
    output.answer({"deleted": dropped, "left": left})
    words = f" ({', '.join(map(str, dropped))})" if dropped else ""
    output.report(
        f"deleted {quantities.count(len(dropped), 'snapshot')}{words}; "
        f"{quantities.count(len(left), 'snapshot')} left"
    )
    if damaged:
        output.say(sentence_on_damaged(damaged))


def document_of(manifest: Manifest) -> dict[str, Any]:
    """Return what JSON says of a snapshot."""
    return {
        "id": manifest.snapshot,
        **{name: getattr(manifest, name) for name in ("name", "epoch", *_TIMES, *_COUNTS)},
        "mode": str(manifest.mode),
        "unaligned": manifest.unaligned,
        **{
            name: value
            for name in ("staleness_s", "data_age_s")
            if (value := getattr(manifest, name)) is not None
        },
        "byte_count": manifest.bytes,
    }


def _duration_cell(duration_s: float | None) -> str | None:
    return None if duration_s is None else quantities.duration(duration_s)


def _timeline_mark(manifest: Manifest, metadata: Metadata) -> str:
    # What is marked is what ``Pipeline.latest`` chooses among.
    if manifest.snapshot == metadata.restored_from:
        return "began here"
    return "present" if manifest.epoch == metadata.epoch else ""


@app.add("pipeline show shop.pipeline shop-17")
def show(path: PipelinePath, name: str | None = SNAPSHOT) -> None:
    """Show the contents of a snapshot: micro-batches of queries, fields of services, and record
    counts of channels."""
    pipeline = Pipeline(path)
    manifest = pipeline.latest() if name is None else pipeline.find(name)
    channels = [_channel_document(manifest, cut) for cut in manifest.channels]
    topics = list(_topic_documents(pipeline, manifest))
    if output.wants_json():
        participants = [_fragment_document(fragment) for fragment in manifest.fragments]
        found = {"participants": participants, "channels": channels, "topics": topics}
        output.put_json(document_of(manifest) | found)
        return
    output.report(f"{published(manifest)}, begun {quantities.moment(manifest.initiated_at)}")
    title = "participants, positions in items"
    output.put_table(title, PARTICIPANT_COLUMNS, manifest.fragments, texts=5)
    if channels or not topics:
        output.put_table("channels, counts in records", CHANNEL_COLUMNS, channels, texts=3)
    if topics:
        title = "topics of Kafka, partition and offset, counts in records"
        output.put_table(title, TOPIC_COLUMNS, topics, texts=4)
    output.report(
        f"at most {output.VALUE_LENGTH_MAX} characters of each state are shown (--json has all)"
    )


def _topic_documents(pipeline: Pipeline, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield what JSON says of a topic for each of its targets. The records in flight are counted in
    Kafka; if it cannot be read, a sentence on stderr says why."""
    view = pipeline.view(manifest.snapshot)
    for cut in manifest.topics:
        for target, positions in sorted(cut.positions.items()):
            count = None
            try:
                count = view.in_flight_count(cut.channel, target, most=IN_FLIGHT_MAX + 1)
                if count > IN_FLIGHT_MAX:
                    count = None
                    output.say(
                        f"{cut.channel} to {target}: more than {IN_FLIGHT_MAX:,} records are in "
                        "flight; they were not counted further"
                    )
            except (NotConsistent, Unavailable, UsageError) as error:
                output.say(f"{cut.channel} to {target}: the records in flight are unknown: {error}")
            topic = manifest.dataflow.topic(cut.channel)
            yield {
                "channel": cut.channel,
                "topic": topic.topic,
                "source": topic.source,
                "target": target,
                "positions": {str(p): offset for p, offset in sorted(positions.items())},
                "ends": {str(p): offset for p, offset in sorted(cut.ends.items())},
                "record_count": count,
            }


def _fragment_document(fragment: ParticipantFragment) -> dict[str, Any]:
    """Return what JSON says of a participant: of a service its fields, of a query its batch."""
    service, query = fragment.service, fragment.query
    return {
        "participant": fragment.participant,
        "kind": "query" if service is None else "service",
        "recorded_at": fragment.recorded_at,
        "positions": fragment.positions,
        "barriers": fragment.barriers,
        "batch": query and query.batch,
        "state": service and service.fields(),
    }


def _state_cell(fragment: ParticipantFragment) -> str:
    document = _fragment_document(fragment)
    if fragment.service is not None:
        return output.cell(document["state"])
    batch = document["batch"]
    return "no micro-batch yet" if batch is None else f"after micro-batch {batch}"


def _positions_cell(positions: Mapping[str, int]) -> str:
    return ", ".join(f"{log} {position:,}" for log, position in sorted(positions.items()))


PARTICIPANT_COLUMNS: output.Columns[ParticipantFragment] = {
    "participant": attrgetter("participant"),
    "kind": lambda one: "query" if one.service is None else f"service {one.service.kind}",
    "state": _state_cell,
    "read up to": lambda fragment: _positions_cell(fragment.positions),
    "barrier put at": lambda fragment: _positions_cell(fragment.barriers),
}


def _channel_document(manifest: Manifest, cut: ChannelCut) -> dict[str, Any]:
    return {
        "channel": cut.log,
        "source": manifest.dataflow.log(cut.log).source,
        **cut.document(),
    }


@app.add(
    "pipeline restore shop.pipeline shop-17", f"pipeline restore shop.pipeline {NEWEST_CONSISTENT}"
)
def restore(
    path: PipelinePath,
    name: str | None = SNAPSHOT,
    newest_consistent: bool = flag(
        NEWEST_CONSISTENT,
        "Restore to the newest consistent point among the micro-batches that Spark keeps. No "
        "earlier snapshot is needed.",
    ),
) -> None:
    """Verify a snapshot and restore the stopped pipeline from it, completely or not at all. Then
    start its programs again."""
    pipeline = Pipeline(path)
    began = time.monotonic()
    if newest_consistent:
        if name is not None:
            raise UsageError(f"give either a snapshot or {NEWEST_CONSISTENT}")
        with output.status("looking for the newest consistent point"):
            manifest = pipeline.restore(newest_consistent=True)
    else:
        manifest = pipeline.latest() if name is None else pipeline.find(name)
        with _verifying(manifest) as verified:
            pipeline.restore(str(manifest.snapshot), progress=verified)
    seconds = time.monotonic() - began
    which = f" was restored from snapshot {manifest.snapshot} in {quantities.duration(seconds)}"
    document = {"epoch": pipeline.epoch, "seconds": seconds}
    if not newest_consistent:
        _answer_restored(manifest, path, which, document)
        return
    counts = repeated_batch_counts(pipeline.path, manifest)
    found = {"staleness_s": manifest.staleness_s, "repeated_batch_counts": counts}
    _answer_restored(manifest, path, which, document | found, newest_sentence(manifest, counts))


def newest_sentence(manifest: Manifest, repeated: Mapping[str, int]) -> str:
    """Say which newest consistent point was found, and what queries repeat after it."""
    parts = []
    for query, count in sorted(repeated.items()):
        batch = manifest.last_batches.get(query)
        place = "at its start" if batch is None else f"after micro-batch {batch:,}"
        again = f", which repeats {count:,} committed micro-batch{'' if count == 1 else 'es'}"
        parts.append(f"{query} continues {place}{again if count else ''}")
    age = quantities.duration(manifest.staleness_s or 0.0)
    first = f"; the first repeated one was planned {age} ago" if any(repeated.values()) else ""
    return f"newest consistent point: {'; '.join(parts)}{first}"


@app.add("pipeline fork shop.pipeline shop-17 trial.pipeline")
def fork(
    path: PipelinePath,
    snapshot: str = argument("SNAPSHOT", _SNAPSHOT),
    target: Location = argument("TARGET", "Directory of the second pipeline: a new or empty one."),
    name: str | None = option(
        "NAME",
        "Name of the second pipeline.  [default: the name of TARGET without its suffix]",
    ),
) -> None:
    """Create a second pipeline that continues from a snapshot. Both can run at the same time, and
    neither reads what the other writes."""
    pipeline = Pipeline(path)
    manifest = pipeline.find(snapshot)
    with _verifying(manifest) as verified:
        second = pipeline.fork(str(manifest.snapshot), target, name=name, progress=verified)
    metadata = read_metadata(second.path)
    which = f", called {metadata.name}, continues from snapshot {manifest.snapshot} of {path}"
    made = {"pipeline": second.path, "name": metadata.name, "epoch": metadata.epoch}
    _answer_restored(manifest, target, which, made)


def _answer_restored(
    manifest: Manifest, path: Location, which: str, document: dict[str, Any], *found: str
) -> None:
    """Say what was `found`, which pipeline continues from a snapshot, what to do next, and what to
    expect."""
    document["snapshot"] = manifest.snapshot
    counts = {"duplicate_count": manifest.duplicate_count, "byte_count": manifest.bytes}
    output.answer(document | counts)
    names = ", ".join(manifest.dataflow.participants)
    output.report(
        *found,
        f"epoch {document['epoch']}: pipeline {path}{which}, its "
        f"{quantities.size(manifest.bytes)} of checkpoints verified",
        f"next, start its programs with the pipeline {path}; each continues from there: {names}",
    )
    if manifest.duplicate_count:
        output.report(f"it was taken in mode {manifest.mode}: {twice(manifest)}")


@contextlib.contextmanager
def _verifying(manifest: Manifest) -> Iterator[Callable[[int], None]]:
    """Give what moves a bar, on a terminal, by the length of a file that was verified."""
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    what = f"verifying snapshot {manifest.snapshot}"
    with output.progress_bar(what, *columns, total=manifest.bytes) as update:
        yield lambda byte_count: update(advance=byte_count)
