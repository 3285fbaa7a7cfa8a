"""What the page shows of a pipeline, from looks at it: pure.

Queries and services are its discs, and so is the end of each log that nobody reads. A log is a
channel to each of its targets.
"""

import shlex
from collections.abc import Sequence
from typing import Any

from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.member import OVERDUE_S
from stillframe.pipeline.progress import Awaited, Progress
from stillframe.protocol.aligner import Mode
from stillframe.watch.pipeline_look import ABSENT, BUSY, DEAD, RUNNING, Look

OUTPUT = "output"
"""How the end of a log is."""
LEFT_OVER = (
    "its deadline has passed and it is still there: the program that took it is gone; take "
    "another, which clears this one away"
)


def channels_of(flow: Dataflow) -> list[tuple[str, str, str | None]]:
    """Return every channel as log, source and target; the target is None where a log ends."""
    return [
        (log.name, log.source, target) for log in flow.logs for target in (log.targets or (None,))
    ]


def about(path: str, flow: Dataflow) -> dict[str, Any]:
    """Return what does not change while a pipeline runs."""
    kinds = dict.fromkeys(flow.queries, "query")
    kinds |= {service: f"service {kind}" for service, kind in flow.services.items()}
    ends = [log.name for log in flow.logs if not log.targets]
    places = {name: index for index, name in enumerate(flow.participants)}
    end_places = {log: len(places) + index for index, log in enumerate(ends)}
    columns = columns_of(flow)
    return {
        "kind": "pipeline",
        "store": path,
        "processes": [
            *([name, kinds[name]] for name in flow.participants),
            *([log, OUTPUT] for log in ends),
        ],
        "channels": [
            [places[source], end_places[log] if target is None else places[target]]
            for log, source, target in channels_of(flow)
        ],
        "names": [
            f"{log}: {source} to {'the end' if target is None else target}"
            for log, source, target in channels_of(flow)
        ],
        "logs": [log for log, _, _ in channels_of(flow)],
        "columns": [
            *(columns[name] for name in flow.participants),
            *(columns[flow.log(log).source] + 1 for log in ends),
        ],
        "participant_count": len(flow.participants),
        "restore_command": f"stillframe spark restore {shlex.quote(path)}",
    }


def columns_of(flow: Dataflow) -> dict[str, int]:
    """Return for each query and service how many others come before it on the longest way there,
    from left to right; what leads back in a cycle does not count."""
    targets = {
        name: sorted({target for log in flow.outgoing(name) for target in log.targets})
        for name in flow.participants
    }
    finished: list[str] = []
    entered: set[str] = set()
    for start in (*flow.initiators(), *flow.participants):
        ways = [(start, iter(targets[start]))] if start not in entered else []
        entered.add(start)
        while ways:
            name, rest = ways[-1]
            following = next((target for target in rest if target not in entered), None)
            if following is None:
                finished.append(name)
                ways.pop()
            else:
                entered.add(following)
                ways.append((following, iter(targets[following])))
    order = {name: place for place, name in enumerate(reversed(finished))}
    columns = dict.fromkeys(flow.participants, 0)
    for name, place in order.items():
        for target in targets[name]:
            if order[target] > place:
                columns[target] = max(columns[target], columns[name] + 1)
    return columns


def system_document(look: Look, before: Look | None) -> dict[str, Any]:
    """Return how a pipeline is.

    Args:
        look: at it just now.
        before: some seconds ago, in the same epoch; None if there was none.
    """
    flow = look.head.dataflow
    participants = [look.participants[name] for name in flow.participants]
    ends = [log.name for log in flow.logs if not log.targets]
    running = [name for name in flow.participants if runs(look, name)]
    document: dict[str, Any] = {
        "at": look.at,
        "epoch": look.head.epoch,
        "is_running": bool(running),
        "running": running,
        "restored_from": look.head.restored_from and str(look.head.restored_from),
        "why_not": trouble(look),
        "statuses": [*(one.status for one in participants), *(OUTPUT for _ in ends)],
        "batches": [*(one.batch for one in participants), *(None for _ in ends)],
        "since": [*(one.since for one in participants), *(None for _ in ends)],
        "channels": channel_columns(look, before),
        "under_way": [],
        "barriers": [None for _ in channels_of(flow)],
    }
    if look.progress is not None:
        document["under_way"] = [under_way(look.progress, look.at)]
        document["barriers"] = barriers(flow, look.progress)
    return document


def runs(look: Look, name: str) -> bool:
    """Return whether a program runs a query or service."""
    return look.participants[name].status in (RUNNING, BUSY)


def trouble(look: Look) -> str:
    """Return what keeps a pipeline from going on, for people; empty if nothing does."""
    sentences = list(look.troubles)
    for name, one in look.participants.items():
        if one.status == DEAD:
            sentences.append(
                f"service {name} died, and its state with it: restore the pipeline from a snapshot "
                "and start its programs again"
            )
        elif one.status == ABSENT:
            sentences.append(f"service {name} has not joined yet")
    return "; ".join(sentences)


def channel_columns(look: Look, before: Look | None) -> dict[str, list[Any]]:
    """Return for each channel, in the order of ``channels_of``, what is known of it.

    Returns:
        `sent`: records appended since the pipeline was made; `rate`: records appended in a second;
        `received`: records that its target has read, as far as it says; `in_transit`: records that
        it has still to read, and `items` in how many items of the log. None is what nobody knows.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("sent", "rate", "received", "in_transit", "items", "is_connected")
    }
    for log, _, target in channels_of(look.head.dataflow):
        now = look.logs.get(log)
        reading = None if now is None or target is None else now.readings[target]
        position = None if reading is None else reading.position
        received = None if reading is None else reading.records
        sent = None if now is None else now.records
        values = (
            sent,
            _rate(log, look, before),
            received,
            None if sent is None or received is None else max(0, sent - received),
            None if now is None or position is None else max(0, now.items - position),
            None,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def _rate(log: str, look: Look, before: Look | None) -> float | None:
    if before is None or log not in before.logs or log not in look.logs or look.at <= before.at:
        return None
    grown = look.logs[log].records - before.logs[log].records
    return round(max(0, grown) / (look.at - before.at), 1)


def under_way(progress: Progress, now: float) -> dict[str, Any]:
    """Return who has recorded for a snapshot under way, and who is awaited, for what, since when.

    Its phases are those of processes: whoever waits for the barriers of others is idle, whoever has
    them and has not recorded is recording, and holds up all others.
    """
    overdue = [LEFT_OVER] if now > progress.deadline_at + OVERDUE_S else []
    phases = dict.fromkeys(progress.recorded, "recorded")
    for one in progress.awaiting:
        phases[one.participant] = "idle" if one.since is None and one.has_joined else "recording"
    return {
        "id": str(progress.snapshot),
        "mode": str(progress.mode),
        "initiated_at": progress.initiated_at,
        "deadline": progress.deadline_at,
        "missing": list(progress.awaited),
        "at_fault": [one.participant for one in progress.culprits],
        "recorded": dict(sorted(progress.recorded.items())),
        "sentences": [
            *overdue,
            *(
                f"{one.sentence()}, for {_age(one.since or progress.initiated_at, now)}"
                for one in sorted(progress.awaiting, key=_holds_up, reverse=True)
            ),
        ],
        "phases": phases,
        "awaited": {one.participant: [c.log for c in one.channels] for one in progress.awaiting},
    }


def _holds_up(awaited: Awaited) -> bool:
    return awaited.since is not None or not awaited.has_joined


def barriers(flow: Dataflow, progress: Progress) -> list[list[Any] | None]:
    """Return for each channel where the barrier of the snapshot under way is on it.

    Returns:
        "ahead" and how many items the target is before it, None if only the target knows; "passed";
        None where its source has not put it.
    """
    awaited = {one.participant: one for one in progress.awaiting}
    found: list[list[Any] | None] = []
    for log, source, target in channels_of(flow):
        if source not in progress.recorded:
            found.append(None)
        elif target is None or target not in awaited:
            found.append(["passed", None])
        else:
            found.append(["ahead", _items_before(awaited[target], log)])
    return found


def _items_before(awaited: Awaited, log: str) -> int | None:
    for channel in awaited.channels:
        if channel.log == log and channel.position is not None and channel.barrier is not None:
            return max(0, channel.barrier - channel.position)
    return None


def _age(since: float, now: float) -> str:
    seconds = max(0.0, now - since)  # somebody else's clock may be ahead of ours
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def mode_for(flow: Dataflow) -> Mode:
    """Return the mode in which a snapshot is taken that somebody wishes on the page."""
    return Mode.UNALIGNED if flow.cycle() else Mode.ALIGNED


def happenings(look: Look, before: Look | None) -> Sequence[dict[str, Any]]:
    """Return what happened between two looks, in sentences: epochs, and who began, left or died."""
    if before is None or before.head.epoch != look.head.epoch:
        head = look.head
        whence = f"from snapshot {head.restored_from}" if head.restored_from else "afresh"
        kind = "restore" if head.restored_from else "start"
        found = [_told(look.began_at, kind, f"epoch {head.epoch} began {whence}")]
        before = None
    else:
        found = []
    for name, one in look.participants.items():
        earlier = None if before is None else before.participants.get(name)
        is_query = name in look.head.dataflow.queries
        what = f"{'query' if is_query else 'service'} {name}"
        ran = before is not None and earlier is not None and runs(before, name)
        if one.status == DEAD and (earlier is None or earlier.status != DEAD):
            found.append(_told(look.at, "death", f"{what} died, and its state with it"))
        elif ran and not runs(look, name):
            rest = (
                f"stopped{_after(one.batch)}" if is_query else "left, and its state is on the disk"
            )
            found.append(_told(look.at, "stop", f"{what} {rest}"))
        elif earlier is not None and not ran and runs(look, name):
            found.append(_told(look.at, "begin", f"{what} runs"))
    return found


def given_up(progress: Progress, at: float) -> dict[str, Any]:
    """Return that a snapshot was given up, from how far it was when it was last looked at."""
    missing = ", ".join(progress.awaited)
    sentence = f"snapshot {progress.snapshot} was given up"
    if missing:
        sentence += f"; missing: {missing}: {progress.culprit_sentence()}"
    return _told(at, "abandoned", sentence)


def _after(batch: int | None) -> str:
    return "" if batch is None else f" after micro-batch {batch:,}"


def _told(at: float, kind: str, sentence: str) -> dict[str, Any]:
    return {"at": at, "kind": kind, "sentence": sentence}
