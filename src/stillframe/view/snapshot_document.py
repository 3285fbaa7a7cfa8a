"""Everything that a page shows of one snapshot, as plain JSON.

Nothing in it is without bounds: a snapshot may hold 10^5 messages and values of many megabytes, and
each place says what is not there, and how much that is.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import ChannelState, Snapshot, SnapshotId
from stillframe.pipeline.published import Manifest
from stillframe.store.decoded import fields_of, messages_of
from stillframe.store.manifest import Entry
from stillframe.store.reading import StoreReader
from stillframe.topology import Description
from stillframe.view import cut_picture, svg
from stillframe.view.cut_picture import CutPicture
from stillframe.view.legend import count
from stillframe.view.scene import TEXT_ROW
from stillframe.view.shapes import Diagram
from stillframe.view.shown import Budget, show_fields

KIND = "snapshot"
STATE_CHARS_MAX = 1_500_000
"""So many characters of states a document has, and so many of messages."""
MESSAGE_CHARS_MAX = 300
"""So many characters of each field of a message."""
MESSAGES_MAX, CHANNEL_MESSAGES_MAX = 5000, 50
"""So many messages a document has, and so many of one channel."""
CHANNELS_MAX = 10_000


def snapshot_document(
    store: StoreReader,
    snapshot: SnapshotId,
    *,
    log: Path | None = None,
) -> dict[str, Any]:
    """Return what a page shows of a snapshot.

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
    entry = store.entry(snapshot)
    loaded = store.load(snapshot)
    description = store.description_of(snapshot)
    cut = cut_picture.look(loaded, log)
    return {
        "kind": KIND,
        "noun": "message",
        "rest": "messages.parquet has every one",
        "verdict": _verdict(entry, cut),
        **head(entry),
        "is_current": _is_current(store, snapshot),
        "verified": list(_verified(entry, loaded)),
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


def _is_current(store: StoreReader, snapshot: SnapshotId) -> bool:
    try:
        current = store.current()
    except (Damaged, UsageError):  # a restore goes back to none that is not named
        return False
    return current is not None and current.id == snapshot


def _without_legend(drawn: Diagram) -> Diagram:
    """Return a diagram whose legend is not in it: a page scrolls the one and not the other."""
    height = drawn.height - TEXT_ROW * (len(drawn.legend) + 1)
    return msgspec.structs.replace(drawn, legend=(), height=height)


def head(entry: Entry) -> dict[str, Any]:
    """Return what the store's list says of a snapshot, for a page."""
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
    """Return what is said of a snapshot of a system and of one of a pipeline alike. Times are
    seconds since 1970, spans seconds."""
    return {
        "id": str(snapshot),
        "initiator": snapshot.initiator,
        "epoch": found.epoch,
        "initiated_at": found.initiated_at,
        "recorded_s": found.completed_at - found.initiated_at,
        "published_s": found.published_at - found.initiated_at,
        "bytes": found.bytes,
    }


def _verdict(entry: Entry, cut: CutPicture) -> str:
    if cut.contradictions:
        return f"The event log contradicts it: {cut.contradictions[0]}"
    caught = count(entry.message_count, "message")
    processes = count(entry.process_count, "process")
    return f"Consistent: the states of {processes} and {caught} on their way, at one cut"


def _verified(entry: Entry, snapshot: Snapshot) -> Iterator[str]:
    """Yield what was verified when the snapshot was read, in sentences."""
    chain = f", and of {count(entry.chain_length, 'snapshot')} that it is based on"
    yield (
        f"every byte of what the snapshot holds{chain if entry.chain_length else ''} is what was "
        "written, by its SHA-256"
    )
    yield (
        f"the books balance on {count(len(snapshot.state.channels), 'channel')}: sent - received = "
        "in the channel, and the messages are those numbers, in order: the cut is consistent"
    )


def _processes(snapshot: Snapshot, description: Description) -> dict[str, Any]:
    budget = Budget(STATE_CHARS_MAX)
    shown = []
    for state in snapshot.state.processes:
        if budget.is_spent:
            break
        keyed = description.keyed.get(state.kind, {})
        fields = show_fields(fields_of(state), budget, keyed=keyed)
        shown.append({"process": state.process, "kind": state.kind, "fields": fields})
    left_out = len(snapshot.state.processes) - len(shown)
    return {"processes": shown, "processes_left_out_count": left_out}


def _channels(snapshot: Snapshot, description: Description) -> dict[str, Any]:
    """Return the channels: those that held messages first."""
    ordered = sorted(snapshot.state.channels, key=lambda state: not state.message_count)
    full_count = sum(1 for state in ordered if state.message_count)
    most = max(1, min(CHANNEL_MESSAGES_MAX, MESSAGES_MAX // max(1, full_count)))
    budget = Budget(STATE_CHARS_MAX)
    shown = [_channel(state, description, budget, most) for state in ordered[:CHANNELS_MAX]]
    return {"channels": shown, "channels_left_out_count": len(ordered) - len(shown)}


def _channel(
    state: ChannelState, description: Description, budget: Budget, most: int
) -> dict[str, Any]:
    messages = []
    for message in islice(messages_of(state, description), most):
        if budget.is_spent:
            break
        fields = show_fields(message.fields, budget, chars_max=MESSAGE_CHARS_MAX)
        messages.append({"number": message.number, "kind": message.kind, "fields": fields})
    return {
        "channel": str(state.channel),
        "source": state.channel.source,
        "target": state.channel.target,
        "sent_count": state.sent_count,
        "received_count": state.received_count,
        "message_count": state.message_count,
        "messages": messages,
        "messages_left_out_count": state.message_count - len(messages),
    }
