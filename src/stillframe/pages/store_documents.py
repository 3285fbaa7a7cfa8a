"""The JSON documents of the pages of a snapshot of a system, and of the difference of two.

Every part is bounded, and reports how much is left out: a snapshot may hold 10^5 messages and
values of many megabytes.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from stillframe.diagram import svg
from stillframe.diagram.scene import TEXT_ROW
from stillframe.diagram.shapes import Diagram
from stillframe.diagram.text_metrics import count
from stillframe.errors import Damaged, UsageError
from stillframe.model import ChannelState, ProcessId, Snapshot, SnapshotId
from stillframe.pages import cut_diagram
from stillframe.pages.cut_diagram import CutDiagram
from stillframe.pages.values import Budget, printable, show, show_fields, show_pair
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.store.diff import ChannelDifference, FieldDifference, diff_snapshots
from stillframe.store.manifest import Entry
from stillframe.store.reader import StoreReader
from stillframe.store.tables import fields_of, messages_of
from stillframe.topology import Description

SNAPSHOT, COMPARISON = "snapshot", "comparison"
"""The kinds of documents."""
STATE_CHARS_MAX = 1_500_000
"""Characters of states in a document, and as many of messages."""
MESSAGE_CHARS_MAX = 300
"""Characters of each field of a message."""
MESSAGES_MAX, CHANNEL_MESSAGES_MAX = 5000, 50
"""Messages in a document, and of one channel."""
CHANNELS_MAX = 10_000
KEYS_MAX = 200
"""Keys shown of a keyed field that differs."""

DIFF_WORDS = {
    "noun": "message",
    "note": "",
    "equal": "They record the same states and the same messages.",
    "same_count": "other messages",
}


def snapshot_document(
    store: StoreReader, snapshot: SnapshotId, *, log: Path | None = None
) -> dict[str, Any]:
    """Return the document of the page of a snapshot.

    Args:
        store: that holds it; what is read is verified.
        snapshot: which.
        log: the directory of the event log of the same system; None: there is none.

    Raises:
        UsageError: there is no such snapshot, or no event log.
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books of the snapshot do not balance.
        StoreError, OSError: a file cannot be read.
    """
    entry, loaded = store.entry(snapshot), store.load(snapshot)
    description = store.description_of(snapshot)
    cut = cut_diagram.load(loaded, log)
    return {
        "kind": SNAPSHOT,
        "noun": "message",
        "rest": "messages.parquet has every one",
        "verdict": _verdict(entry, cut),
        **entry_head(entry),
        "is_current": _is_current(store, snapshot),
        "verified": _verified(entry, loaded),
        **_processes(loaded, description),
        **_channels(loaded, description),
        "diagram": {
            "svg": svg.draw(_without_legend(cut.diagram), has_style=False),
            "legend": [
                {"sample": row.sample.value, "text": row.full} for row in cut.diagram.legend
            ],
            "left_out": cut.left_out,
            "note": cut.note,
        },
        "contradictions": cut.contradictions,
        "steps": cut.steps,
        "steps_left_out_count": cut.steps_left_out_count,
    }


def diff_document(store: StoreReader, before: SnapshotId, after: SnapshotId) -> dict[str, Any]:
    """Return the document of the page of the difference of two snapshots.

    Raises:
        UsageError: there is no such snapshot.
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books of one do not balance.
        StoreError: a file cannot be read.
    """
    heads = [entry_head(store.entry(snapshot)) for snapshot in (before, after)]
    found = diff_snapshots(store, before, after)
    kinds = [store.description_of(snapshot).processes for snapshot in (before, after)]
    keyed = {
        (process, field)
        for process in kinds[0].keys() & kinds[1].keys()
        for kind, field in found.keyed
        if kinds[0][process] == kind
    }
    return DIFF_WORDS | diff_parts(heads, kinds, found.fields, found.channels, keyed)


def diff_parts(
    heads: Sequence[dict[str, Any]],
    processes: Sequence[Mapping[ProcessId, Any]],
    fields: Sequence[FieldDifference],
    channels: Sequence[ChannelDifference],
    keyed: Collection[tuple[ProcessId, str]] = (),
) -> dict[str, Any]:
    """Return the document of the difference of two snapshots of any kind, except its texts.

    Args:
        heads: the properties of each of the two.
        processes: by name what each of the two has.
        fields: those of processes that differ.
        channels: those that differ.
        keyed: process and name of the fields of which only the keys that differ are given.
    """
    budget = Budget(STATE_CHARS_MAX)
    return {
        "kind": COMPARISON,
        "before": heads[0],
        "after": heads[1],
        "is_equal": not fields and not channels,
        "fields": [_field(each, keyed, budget) for each in budget.limit(fields)],
        "field_count": len(fields),
        "process_count": len({each.process for each in fields}),
        "only_before": sorted(processes[0].keys() - processes[1].keys()),
        "only_after": sorted(processes[1].keys() - processes[0].keys()),
        "channels": [
            {
                "channel": each.channel,
                "before": list(each.before),
                "after": list(each.after),
                "is_same_count": each.is_same_count,
            }
            for each in channels[:CHANNELS_MAX]
        ],
        "channel_count": len(channels),
    }


def entry_head(entry: Entry) -> dict[str, Any]:
    """Return the properties of a snapshot in the list of its store, for a page."""
    return outline(entry.id, entry) | {
        "pause_s": entry.pause_s,
        "capture_s": entry.capture_s,
        "process_count": entry.process_count,
        "channel_count": entry.channel_count,
        "message_count": entry.message_count,
        "bases": [str(base) for base in entry.bases],
        "chain_length": entry.chain_length,
        "savepoints": list(entry.savepoints),
        "excluded": {process: str(since) for process, since in entry.excluded.items()},
    }


def outline(snapshot: SnapshotId, found: Entry | Manifest) -> dict[str, Any]:
    """Return the properties that snapshots of systems and of pipelines share. Times are in seconds
    since 1970, durations in seconds."""
    return {
        "id": str(snapshot),
        "initiator": snapshot.initiator,
        "epoch": found.epoch,
        "initiated_at": found.initiated_at,
        "recorded_s": found.completed_at - found.initiated_at,
        "published_s": found.published_at - found.initiated_at,
        "bytes": found.bytes,
    }


def channel_row(
    name: str, ends: tuple[str, str], counts: tuple[int, int, int], messages: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a channel of a snapshot for a page.

    Args:
        name: of the channel.
        ends: its source and its target.
        counts: how many messages were sent, received and in the channel.
        messages: those that are shown, the first of the channel.
    """
    return {
        "channel": name,
        "source": ends[0],
        "target": ends[1],
        "sent_count": counts[0],
        "received_count": counts[1],
        "message_count": counts[2],
        "messages": messages,
        "messages_left_out_count": counts[2] - len(messages),
    }


def message_row(
    number: int, kind: str, fields: Mapping[str, Any], budget: Budget
) -> dict[str, Any]:
    """Return a message in a channel for a page."""
    shown = show_fields(fields, budget, chars_max=MESSAGE_CHARS_MAX)
    return {"number": number, "kind": kind, "fields": shown}


def _is_current(store: StoreReader, snapshot: SnapshotId) -> bool:
    try:
        current = store.current()
    except (Damaged, UsageError):  # a restore goes back to none that is not named
        return False
    return current is not None and current.id == snapshot


def _without_legend(drawn: Diagram) -> Diagram:
    """A page scrolls the diagram and not its legend, so the legend is not in it."""
    height = drawn.height - TEXT_ROW * (len(drawn.legend) + 1)
    return msgspec.structs.replace(drawn, legend=(), height=height)


def _verdict(entry: Entry, cut: CutDiagram) -> str:
    if cut.contradictions:
        return f"The event log contradicts it: {cut.contradictions[0]}"
    caught = count(entry.message_count, "message")
    processes = count(entry.process_count, "process")
    return f"Consistent: the states of {processes} and {caught} on their way, at one cut"


def _verified(entry: Entry, snapshot: Snapshot) -> list[str]:
    """What was verified when the snapshot was read, in sentences."""
    bases = f", and of {count(entry.chain_length, 'snapshot')} that it is based on"
    what = f"what the snapshot holds{bases if entry.chain_length else ''}"
    channels = count(len(snapshot.state.channels), "channel")
    books = "sent - received = in the channel, and the messages are those numbers, in order"
    return [
        f"every byte of {what} is what was written, by its SHA-256",
        f"the books balance on {channels}: {books}: the cut is consistent",
    ]


def _processes(snapshot: Snapshot, description: Description) -> dict[str, Any]:
    budget = Budget(STATE_CHARS_MAX)
    shown = []
    for state in budget.limit(snapshot.state.processes):
        keyed = description.keyed.get(state.kind, {})
        fields = show_fields(fields_of(state), budget, keyed=keyed)
        shown.append({"process": state.process, "kind": state.kind, "fields": fields})
    left_out = len(snapshot.state.processes) - len(shown)
    return {"processes": shown, "processes_left_out_count": left_out}


def _channels(snapshot: Snapshot, description: Description) -> dict[str, Any]:
    """The channels, those that held messages first."""
    ordered = sorted(snapshot.state.channels, key=lambda state: not state.message_count)
    full_count = sum(1 for state in ordered if state.message_count)
    most = max(1, min(CHANNEL_MESSAGES_MAX, MESSAGES_MAX // max(1, full_count)))
    budget = Budget(STATE_CHARS_MAX)

    def row(state: ChannelState) -> dict[str, Any]:
        messages = [
            message_row(message.number, message.kind, message.fields, budget)
            for message in budget.limit(islice(messages_of(state, description), most))
        ]
        ends = state.channel.source, state.channel.target
        counts = state.sent_count, state.received_count, state.message_count
        return channel_row(str(state.channel), ends, counts, messages)

    shown = [row(state) for state in ordered[:CHANNELS_MAX]]
    return {"channels": shown, "channels_left_out_count": len(ordered) - len(shown)}


def _field(
    found: FieldDifference, keyed: Collection[tuple[ProcessId, str]], budget: Budget
) -> dict[str, Any]:
    named = {"process": found.process, "field": printable(found.field)}
    values = found.before, found.after
    if (found.process, found.field) in keyed and all(isinstance(v, dict) for v in values):
        return named | _keys(*values, budget)
    before, after = show_pair(*values, budget)
    return named | {"before": before, "after": after}


def _keys(before: dict[Any, Any], after: dict[Any, Any], budget: Budget) -> dict[str, Any]:
    rows = []
    for key in budget.limit(list(before | after)[:KEYS_MAX]):
        row: dict[str, Any] = {"key": show(key, budget)}
        if key in before and key in after:
            row["before"], row["after"] = show_pair(before[key], after[key], budget)
        elif key in before:
            row["before"] = show(before[key], budget)
        else:
            row["after"] = show(after[key], budget)
        rows.append(row)
    return {
        "keys": rows,
        "keys_left_out_count": len(before | after) - len(rows),
        "added_count": len(after.keys() - before.keys()),
        "removed_count": len(before.keys() - after.keys()),
        "changed_count": len(before.keys() & after.keys()),
    }
