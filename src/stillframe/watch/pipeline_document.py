"""The document of a pipeline's page, from samples of the pipeline: pure.

Queries and services are the discs of its graph, and so is the end of each channel without a target,
and the beginning of each topic of Kafka that other programs write. A log or a topic is a channel to
each of its targets.
"""

from collections.abc import Sequence
from typing import Any

from stillframe.durable_files import shell_command
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.participant_logs import OVERDUE_S
from stillframe.pipeline.progress import Progress
from stillframe.protocol.aligner import Mode
from stillframe.watch.pipeline_probe import ABSENT, DEAD, PipelineSample

OUTPUT, INPUT = "output", "input"
"""The kinds and the statuses of the end of a channel, and of the beginning of a topic."""
ORPHANED = (
    "its deadline has passed and it still exists, because the program that took it has died; "
    "take another snapshot, which removes this one"
)


def channels_of(flow: Dataflow) -> list[tuple[str, str | None, str | None]]:
    """Return every channel as name, source and target. The target is None where a channel ends, and
    the source is None where other programs write a topic."""
    return [
        (channel.name, channel.source, target)
        for channel in flow.channels
        for target in (channel.targets or (None,))
    ]


def ends_of(flow: Dataflow) -> list[tuple[str, str]]:
    """Return the ends and the beginnings of channels that the graph shows, each with its kind."""
    outputs = [(channel.name, OUTPUT) for channel in flow.channels if not channel.targets]
    inputs = [(topic.name, INPUT) for topic in flow.topics if topic.source is None]
    return outputs + inputs


def describe(path: str, flow: Dataflow) -> dict[str, Any]:
    """Return what does not change while a pipeline runs: its graph."""
    kinds = dict.fromkeys(flow.queries, "query")
    kinds |= {service: f"service {kind}" for service, kind in flow.services.items()}
    places = {name: index for index, name in enumerate(flow.participants)}
    ends = ends_of(flow)
    end_places = {end: len(places) + index for index, end in enumerate(ends)}
    channels = channels_of(flow)
    newest = shell_command("pipeline", "restore", path, "--newest-consistent")
    return {
        "kind": "pipeline",
        "store": path,
        "processes": [
            *([name, kinds[name]] for name in flow.participants),
            *([name, kind] for name, kind in ends),
        ],
        "channels": [
            [
                end_places[name, INPUT] if source is None else places[source],
                end_places[name, OUTPUT] if target is None else places[target],
            ]
            for name, source, target in channels
        ],
        "names": [
            f"{name}: {source or 'other programs'} to {target or 'the end'}"
            for name, source, target in channels
        ],
        "logs": [name for name, _, _ in channels],
        "topics": [topic.name for topic in flow.topics],
        "columns": _columns(flow, ends),
        "participant_count": len(flow.participants),
        "restore_command": shell_command("pipeline", "restore", path),
        "newest_consistent_command": None if flow.in_memory else newest,
    }


def _columns(flow: Dataflow, ends: Sequence[tuple[str, str]]) -> list[int]:
    """Return the column of each participant, and then of each of the `ends`: an output is right of
    its source, and an input is left of its first target."""
    columns = assign_columns(flow)
    channels = {channel.name: channel for channel in flow.channels}
    found = [columns[name] for name in flow.participants]
    for name, kind in ends:
        channel = channels[name]
        if kind == OUTPUT and channel.source is not None:
            found.append(columns[channel.source] + 1)
        else:
            found.append(min(columns[target] for target in channel.targets) - 1)
    return [column - min(found) for column in found]


def assign_columns(flow: Dataflow) -> dict[str, int]:
    """Return the column of each query and service: the length of the longest path to it, without
    the edges that lead back in a cycle."""
    inside = [channel for channel in flow.channels if channel.source is not None]
    targets = {
        name: sorted({target for one in inside if one.source == name for target in one.targets})
        for name in flow.participants
    }
    finished: list[str] = []
    entered: set[str] = set()
    first = [n for n in flow.participants if not any(n in one.targets for one in inside)]
    for start in (*first, *flow.initiators(), *flow.participants):
        path = [(start, iter(targets[start]))] if start not in entered else []
        entered.add(start)
        while path:
            name, rest = path[-1]
            following = next((target for target in rest if target not in entered), None)
            if following is None:
                finished.append(name)
                path.pop()
            else:
                entered.add(following)
                path.append((following, iter(targets[following])))
    order = {name: place for place, name in enumerate(reversed(finished))}
    columns = dict.fromkeys(flow.participants, 0)
    for name, place in order.items():
        for target in targets[name]:
            if order[target] > place:
                columns[target] = max(columns[target], columns[name] + 1)
    return columns


def system_document(sample: PipelineSample, before: PipelineSample | None) -> dict[str, Any]:
    """Return how a pipeline is; rates are relative to the sample before, if there is one."""
    flow, progress = sample.metadata.dataflow, sample.progress
    participants = [sample.participants[name] for name in flow.participants]
    ends = ends_of(flow)
    running = [name for name in flow.participants if sample.is_running(name)]
    return {
        "at": sample.at,
        "epoch": sample.metadata.epoch,
        "is_running": bool(running),
        "running": running,
        "restored_from": sample.metadata.restored_from and str(sample.metadata.restored_from),
        "explanation": obstacles(sample),
        "statuses": [*(one.status for one in participants), *(kind for _, kind in ends)],
        "batches": [*(one.batch for one in participants), *(None for _ in ends)],
        "since": [*(one.since for one in participants), *(None for _ in ends)],
        "channels": channel_columns(sample, before),
        "pending": [] if progress is None else [pending_snapshot(progress, sample.at)],
        "barriers": [None] * len(channels_of(flow))
        if progress is None
        else barriers(flow, progress),
    }


def obstacles(sample: PipelineSample) -> str:
    """Return what keeps a pipeline from running, in sentences; empty if nothing does."""
    sentences = list(sample.errors)
    for name, one in sample.participants.items():
        if one.status == DEAD:
            sentences.append(
                f"service {name} died, and its state is lost: restore the pipeline from a "
                "snapshot and start its programs again"
            )
        elif one.status == ABSENT:
            sentences.append(f"service {name} has not joined yet")
    return "; ".join(sentences)


def channel_columns(sample: PipelineSample, before: PipelineSample | None) -> dict[str, list[Any]]:
    """Return the status of each channel, in the order of ``channels_of``. `sent` are the records
    since the pipeline was created, `rate` those per second, and `received` those that the target
    reports. `in_transit` are those that it has still to read, in `items` entries. Of a topic,
    `sent` and `received` are sums of offsets. None means unknown."""
    names = ("sent", "rate", "received", "in_transit", "items", "is_connected")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    flow = sample.metadata.dataflow
    topics = {topic.name for topic in flow.topics}
    for channel, _, target in channels_of(flow):
        figures = _topic_figures if channel in topics else _log_figures
        sent, received, behind, items = figures(sample, channel, target)
        values = (sent, _rate(channel, sample, before), received, behind, items, None)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


_Figures = tuple[int | None, int | None, int | None, int | None]
"""What was sent and received, and how far the target is behind, in records and in entries."""


def _log_figures(sample: PipelineSample, log: str, target: str | None) -> _Figures:
    now = sample.logs.get(log)
    reader = None if now is None or target is None else now.readers[target]
    position = None if reader is None else reader.position
    received = None if reader is None else reader.records
    sent = None if now is None else now.records
    return (
        sent,
        received,
        None if sent is None or received is None else max(0, sent - received),
        None if now is None or position is None else max(0, now.entries - position),
    )


def _topic_figures(sample: PipelineSample, channel: str, target: str | None) -> _Figures:
    now = sample.topics.get(channel)
    reader = None if now is None or target is None else now.readers.get(target)
    sent = None if now is None else now.end
    if reader is None:
        return sent, None, None, None
    return sent, reader.position, reader.behind, None


def _rate(channel: str, now: PipelineSample, before: PipelineSample | None) -> float | None:
    if before is None or now.at <= before.at:
        return None
    first, last = _sent(channel, before), _sent(channel, now)
    if first is None or last is None:
        return None
    return round(max(0, last - first) / (now.at - before.at), 1)


def _sent(channel: str, sample: PipelineSample) -> int | None:
    if channel in sample.topics:
        return sample.topics[channel].end
    return sample.logs[channel].records if channel in sample.logs else None


def pending_snapshot(progress: Progress, now: float) -> dict[str, Any]:
    """Return who has recorded for a pending snapshot, and who has not, why, and since when. The
    phases are those of processes: a participant that waits for the barriers of others is idle; one
    that has them and has not recorded is recording, and delays all others."""
    overdue = [ORPHANED] if now > progress.deadline_at + OVERDUE_S else []
    phases = dict.fromkeys(progress.recorded, "recorded")
    for one in progress.awaiting:
        phases[one.participant] = "recording" if one.is_straggler else "idle"
    return {
        "id": str(progress.snapshot),
        "mode": str(progress.mode),
        "initiated_at": progress.initiated_at,
        "deadline": progress.deadline_at,
        "missing": list(progress.awaited),
        "stragglers": [one.participant for one in progress.stragglers],
        "recorded": dict(sorted(progress.recorded.items())),
        "sentences": [
            *overdue,
            *(
                f"{one.sentence()}, for {_age(one.since or progress.initiated_at, now)}"
                for one in sorted(progress.awaiting, key=lambda one: not one.is_straggler)
            ),
        ],
        "phases": phases,
        "waits_for": {one.participant: [c.log for c in one.channels] for one in progress.awaiting},
    }


def barriers(flow: Dataflow, progress: Progress) -> list[list[Any] | None]:
    """Return the position of the pending snapshot's barrier on each channel. It is "ahead" with the
    number of entries before it; "passed"; or None if the source has not appended it, or the target
    is not asked to record."""
    behind = {(one.participant, c.log): c.behind for one in progress.awaiting for c in one.channels}
    pending = progress.awaited
    found: list[list[Any] | None] = []
    for log, source, target in channels_of(flow):
        if source not in progress.recorded:
            found.append(None)
        elif target in pending:
            found.append(["ahead", behind.get((target, log))])
        else:
            is_passed = target is None or target in progress.recorded
            found.append(["passed", None] if is_passed else None)
    return found


def _age(since: float, now: float) -> str:
    seconds = max(0.0, now - since)  # the clock of another machine may be ahead of ours
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def snapshot_mode(flow: Dataflow) -> Mode:
    """Return the mode of snapshots that are triggered on the page."""
    return Mode.UNALIGNED if flow.cycle() and not flow.topics else flow.default_mode


def events_between(
    before: PipelineSample | None, sample: PipelineSample
) -> Sequence[dict[str, Any]]:
    """Return the events between two samples: epochs, and participants that started or stopped."""
    events = []
    if before is None or before.metadata.epoch != sample.metadata.epoch:
        metadata = sample.metadata
        origin = (
            f"snapshot {metadata.restored_from}" if metadata.restored_from else "the initial states"
        )
        kind = "restore" if metadata.restored_from else "start"
        events.append(_event(sample.began_at, kind, f"epoch {metadata.epoch} began from {origin}"))
        before = None
    for name, one in sample.participants.items():
        earlier = None if before is None else before.participants.get(name)
        is_query = name in sample.metadata.dataflow.queries
        what = f"{'query' if is_query else 'service'} {name}"
        was_running = before is not None and earlier is not None and before.is_running(name)
        if one.status == DEAD and (earlier is None or earlier.status != DEAD):
            events.append(_event(sample.at, "death", f"{what} died, and its state is lost"))
        elif was_running and not sample.is_running(name):
            after = "" if one.batch is None else f" after micro-batch {one.batch:,}"
            rest = f"stopped{after}" if is_query else "left, and its state is on disk"
            events.append(_event(sample.at, "stop", f"{what} {rest}"))
        elif earlier is not None and not was_running and sample.is_running(name):
            events.append(_event(sample.at, "begin", f"{what} runs"))
    return events


def abandoned_event(progress: Progress, at: float) -> dict[str, Any]:
    """Return the event that a snapshot was abandoned, from its progress at the last poll."""
    missing = ", ".join(progress.awaited)
    sentence = f"snapshot {progress.snapshot} was abandoned"
    if missing:
        sentence += f"; missing: {missing}: {progress.straggler_sentence()}"
    return _event(at, "abandoned", sentence)


def _event(at: float, kind: str, sentence: str) -> dict[str, Any]:
    return {"at": at, "kind": kind, "sentence": sentence}
