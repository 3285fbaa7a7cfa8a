"""The metrics of a system: what of all that is known of it goes to which metric."""

import importlib.metadata
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from stillframe.model import ProcessId, Reason, SnapshotId
from stillframe.runtime.commands import Observed
from stillframe.store.history import Tally
from stillframe.topology import Description
from stillframe.watch import picture
from stillframe.watch.families import Families, zero_of
from stillframe.watch.measured import ChannelNow, ChannelsMeasured, SnapshotsMeasured
from stillframe.watch.traced import Tracing
from stillframe.watch.verdicts import Judged

PROCESS_COUNT_MAX = 500
"""So many processes have series of their own."""
CHANNEL_COUNT_MAX = 1000
"""So many channels have."""
QUANTITY_COUNT_MAX = 32
"""So many conserved quantities have."""
OTHER = "OTHER"
"""The reason of what a newer version gave up for a reason that we do not know."""


class Known(NamedTuple):
    """What is known of a system at one moment.

    Attributes:
        description: its topology.
        epoch: the one that it is in, or was in when it ran last.
        observed: what it said; None if nothing.
        unheard: how its processes are if it said nothing.
        at: when.
        dead: the processes that have died since it ran last.
        tally: what happened since the store was made.
        snapshots: figures of what was published.
        channels: how many messages there were.
        judged: the last snapshot that was judged.
        snapshot_count: how many are in the store.
        savepoint_count: how many of them have names.
    """

    description: Description
    epoch: int
    observed: Observed | None
    unheard: str
    at: float
    dead: frozenset[ProcessId]
    tally: Tally
    snapshots: SnapshotsMeasured
    channels: ChannelsMeasured
    judged: Judged | None
    snapshot_count: int
    savepoint_count: int


class Watching(NamedTuple):
    """How the watcher itself is.

    Attributes:
        began_at: when it began.
        look_count: how often it has looked.
        looked_at: when the last time; 0 if it has not.
        look_s: how long that took.
        page_count: how many pages listen.
        troubles: what may go wrong, and whether it does.
    """

    began_at: float
    look_count: int
    looked_at: float
    look_s: float
    page_count: int
    troubles: Mapping[str, bool]


def tell_system(families: Families, known: Known) -> None:
    """Say what is known of a system."""
    observed = known.observed
    families.put("up", observed is not None and observed.is_running)
    families.put("epoch", known.epoch)
    families.put("restores_total", known.tally.restores)
    families.put("takeovers_total", known.tally.takeovers)
    families.put("channels", len(known.description.channels))
    _tell_processes(families, known)
    _tell_channels(families, known)
    _tell_snapshots(families, known)
    if known.judged is not None:
        _tell_findings(families, known.judged)


def tell_watching(families: Families, watching: Watching) -> None:
    """Say how the watcher itself is."""
    families.put("build_info", 1, importlib.metadata.version("stillframe"))
    families.put("watch_start_timestamp_seconds", watching.began_at)
    families.put("watch_looks_total", watching.look_count)
    if watching.look_count:
        families.put("watch_last_look_timestamp_seconds", watching.looked_at)
        families.put("watch_look_duration_seconds", watching.look_s)
    families.put("watch_pages", watching.page_count)
    families.put_all("watch_trouble", watching.troubles)


def tell_tracing(families: Families, tracing: Tracing) -> None:
    """Say how many traces there were."""
    families.put("traced_snapshots_total", tracing.traced_count)
    families.put("traced_snapshots_missed_total", tracing.missed_count)
    families.put("spans_total", tracing.sender.sent_count, "sent")
    families.put("spans_total", tracing.sender.dropped_count, "dropped")


def _tell_processes(families: Families, known: Known) -> None:
    processes = list(known.description.processes)
    statuses = picture.statuses(
        known.description, known.observed, known.dead, unheard=known.unheard
    )
    families.put_all("processes", {**zero_of(picture.STATUSES), **Counter(statuses)})
    under_way = () if known.observed is None else known.observed.under_way
    awaited = {process for snapshot in under_way for process in snapshot.missing}
    at_fault = {process for snapshot in under_way for process in snapshot.at_fault}
    families.put("awaited_processes", len(awaited))
    shown = dict(zip(processes[:PROCESS_COUNT_MAX], statuses, strict=False))
    families.put("left_out", len(processes) - len(shown), "process")
    for process, status in shown.items():
        families.put("process_up", status in (picture.RUNNING, picture.BUSY), process)
        families.put("process_busy", status == picture.BUSY, process)
        families.put("process_silent", status == picture.SILENT, process)
        families.put("process_awaited", process in awaited, process)
        families.put("process_holds_up", process in at_fault, process)
        families.put("process_deaths_total", known.tally.deaths.get(process, 0), process)
    others = sum(count for name, count in known.tally.deaths.items() if name not in shown)
    families.put("process_deaths_total", others, "")


def _tell_channels(families: Families, known: Known) -> None:
    now = known.channels.now(known.description, known.observed)
    shown = known.description.channels[:CHANNEL_COUNT_MAX]
    left_out = known.description.channels[CHANNEL_COUNT_MAX:]
    families.put("left_out", len(left_out), "channel")
    for channel in shown:
        if channel in now:
            _tell_channel(families, now[channel], channel.source, channel.target)
    others = [now[channel] for channel in left_out if channel in now]
    if others:
        _tell_channel(families, _added_up(others), "", "")


def _tell_channel(families: Families, now: ChannelNow, source: str, target: str) -> None:
    families.put("channel_sent_messages_total", now.sent, source, target)
    families.put("channel_received_messages_total", now.received, source, target)
    families.put("channel_in_transit_messages", now.in_transit, source, target)
    families.put("channel_unhandled_bytes", now.unhandled_bytes, source, target)
    families.put("channel_connected", now.is_connected, source, target)


def _added_up(channels: list[ChannelNow]) -> ChannelNow:
    in_transit = [now.in_transit for now in channels if now.in_transit is not None]
    unhandled = [now.unhandled_bytes for now in channels if now.unhandled_bytes is not None]
    connected = [now.is_connected for now in channels if now.is_connected is not None]
    return ChannelNow(
        sum(now.sent for now in channels),
        sum(now.received for now in channels),
        sum(in_transit) if in_transit else None,
        sum(unhandled) if unhandled else None,
        all(connected) if connected else None,
    )


def _tell_snapshots(families: Families, known: Known) -> None:
    tally, under_way = known.tally, () if known.observed is None else known.observed.under_way
    families.put("snapshots_begun_total", tally.begun)
    families.put("snapshots_published_total", tally.published)
    reasons = Counter(zero_of((*Reason.__members__, OTHER)))
    for name, count in tally.abandoned.items():
        reasons[name if name in Reason.__members__ else OTHER] += count
    families.put_all("snapshots_abandoned_total", {n.lower(): c for n, c in reasons.items()})
    families.put("snapshots_under_way", len(under_way))
    now = 0.0 if known.observed is None else known.observed.now
    oldest = min((snapshot.initiated_at for snapshot in under_way), default=now)
    families.put("oldest_snapshot_under_way_seconds", max(0.0, now - oldest))
    known.snapshots.tell(families)
    families.put("store_snapshots", known.snapshot_count)
    families.put("store_savepoints", known.savepoint_count)


def _tell_findings(families: Families, judged: Judged) -> None:
    families.put_all("predicate_holds", {n: v.holds for n, v in judged.verdicts.items()})
    for name in list(judged.totals)[:QUANTITY_COUNT_MAX]:
        families.put("conserved_amount", judged.totals[name], name)
        families.put("conserved_in_channels_amount", judged.in_channels[name], name)
    families.put("judged_snapshot_number", SnapshotId.parse(judged.snapshot).number)
    families.put("judged_snapshot_timestamp_seconds", judged.at)
