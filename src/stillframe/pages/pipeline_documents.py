"""The JSON documents of the pages of a snapshot of a pipeline, and of the difference of two.

They contain what the manifests and logs hold. The states of queries are in Spark's checkpoints;
``stillframe.spark.diff`` compares those.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from stillframe.diagram.text_metrics import count
from stillframe.errors import StillframeError
from stillframe.model import ProcessState
from stillframe.pages.store_documents import (
    CHANNEL_MESSAGES_MAX,
    CHANNELS_MAX,
    SNAPSHOT,
    STATE_CHARS_MAX,
    channel_row,
    diff_parts,
    message_row,
    outline,
)
from stillframe.pages.values import Budget, show_fields, text_of
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.pending_snapshot import ParticipantFragment
from stillframe.pipeline.snapshot_manifest import ChannelCut, Manifest
from stillframe.store.diff import ChannelDifference, FieldDifference
from stillframe.store.tables import fields_of

VERIFIED = (
    "the manifest is what was written, by its SHA-256; checkpoints of queries were not read for "
    "this page, and of the logs at most the records that it shows"
)
ITEM_BYTES_MAX = 16 * 2**20
"""Records of an entry with longer files are not read for a page."""
DIFF_WORDS = {
    "noun": "record",
    "note": "Compared are the states of services, the micro-batches of queries, and what was sent "
    "and received on each channel. What queries hold is in their checkpoints: "
    "stillframe.spark.diff compares that.",
    "equal": "Their manifests tell no difference.",
    "same_count": "written in another epoch",
}


def pipeline_snapshot_document(
    manifest: Manifest, *, is_current: bool, root: Path | None = None
) -> dict[str, Any]:
    """Return the document of the page of a published snapshot of a pipeline.

    Args:
        manifest: of the snapshot, as it was read and verified.
        is_current: whether a restore goes back to it if no other is named.
        root: the pipeline, to show the first records that were on each channel; None for none.
    """
    budget = Budget(STATE_CHARS_MAX)
    fragments = [_participant(fragment, budget) for fragment in budget.limit(manifest.fragments)]
    records = Budget(STATE_CHARS_MAX)
    ordered = sorted(manifest.channels, key=lambda cut: not cut.record_count)
    return _head(manifest) | {
        "kind": SNAPSHOT,
        "noun": "record",
        "rest": "they are in the logs of the pipeline",
        "verdict": _verdict(manifest),
        "mode": str(manifest.mode),
        "bases": [],
        "savepoints": [] if manifest.name is None else [manifest.name],
        "is_current": is_current,
        "excluded": {},
        "contradictions": [],
        "verified": [VERIFIED],
        "processes": fragments,
        "processes_left_out_count": len(manifest.fragments) - len(fragments),
        "channels": [_channel(manifest, cut, root, records) for cut in ordered[:CHANNELS_MAX]],
        "systems": [
            {"name": cut.name, "store": cut.store, "snapshot": str(cut.snapshot)}
            for cut in manifest.systems
        ],
        "channels_left_out_count": max(0, len(ordered) - CHANNELS_MAX),
    }


def pipeline_diff_document(root: Path, before: Manifest, after: Manifest) -> dict[str, Any]:
    """Return the document of the page of the difference of two snapshots of a pipeline.

    A barrier is no difference: every snapshot puts its own into every log.

    Args:
        root: the pipeline, whose logs say which epochs have written records.
        before: of the earlier one, as it was read and verified.
        after: of the later one.
    """
    states = [
        {fragment.participant: _compared_state(fragment, m) for fragment in m.fragments}
        for m in (before, after)
    ]
    fields = [
        FieldDifference(participant, name, old.get(name), new.get(name))
        for participant in sorted(states[0].keys() | states[1].keys())
        for old, new in [(states[0].get(participant, {}), states[1].get(participant, {}))]
        for name in old | new
        if (name in old, text_of(old.get(name))) != (name in new, text_of(new.get(name)))
    ]
    channels = list(_channel_differences(root, before, after))
    return DIFF_WORDS | diff_parts([_head(before), _head(after)], states, fields, channels)


def _head(manifest: Manifest) -> dict[str, Any]:
    return outline(manifest.snapshot, manifest) | {
        "process_count": len(manifest.fragments),
        "channel_count": len(manifest.channels),
        "message_count": manifest.record_count,
    }


def _verdict(manifest: Manifest) -> str:
    participants = count(len(manifest.fragments), "participant")
    held = count(manifest.record_count, "record")
    what = f"he states of {participants} and {held} on their way, at one cut"
    if manifest.duplicate_count:
        twice = count(manifest.duplicate_count, "record")
        return f"T{what}; at least once: a restore receives {twice} twice"
    return f"Consistent: t{what}"


def _state(fragment: ParticipantFragment) -> tuple[str, dict[str, Any]]:
    """Return the kind of a participant, and its recorded state by name."""
    if fragment.service is not None:
        kind = fragment.service.kind
        state = ProcessState(fragment.participant, kind, fragment.service.encoded)
        return f"service {kind}", fields_of(state)
    batch = None if fragment.query is None else fragment.query.batch
    return "query", {"after micro-batch": batch}


def _participant(fragment: ParticipantFragment, budget: Budget) -> dict[str, Any]:
    kind, fields = _state(fragment)
    fields |= {f"read {log} up to": at for log, at in sorted(fragment.positions.items())}
    fields |= {f"barrier in {log} at": at for log, at in sorted(fragment.barriers.items())}
    return {"process": fragment.participant, "kind": kind, "fields": show_fields(fields, budget)}


def _channel(
    manifest: Manifest, cut: ChannelCut, root: Path | None, budget: Budget
) -> dict[str, Any]:
    """A channel for a page; if its records cannot be read, `error` says why."""
    shown: list[dict[str, Any]] = []
    error = ""
    if root is not None and cut.record_count:
        try:
            shown.extend(_records(root, manifest, cut, budget))
        except (StillframeError, OSError) as failure:
            error = str(failure)
    name, ends = _name(manifest, cut)
    return channel_row(name, ends, _figures(cut), shown) | {"error": error}


def _records(
    root: Path, manifest: Manifest, cut: ChannelCut, budget: Budget
) -> Iterator[dict[str, Any]]:
    reader = LogReader(root, manifest.dataflow.log(cut.log), manifest.segments[cut.log])
    room = CHANNEL_MESSAGES_MAX
    for item in reader.entries(cut.position, cut.barrier):
        sizes = (reader.data_path(item, file).stat().st_size for file in item.files)
        if room <= 0 or budget.is_spent or sum(sizes) > ITEM_BYTES_MAX:
            return
        rows = reader.table(item).slice(0, room).to_pylist()
        room -= len(rows)
        for number, row in enumerate(rows, start=sum(item.offsets) + 1):
            yield message_row(number, "record", row, budget)


def _name(manifest: Manifest, cut: ChannelCut) -> tuple[str, tuple[str, str]]:
    """Return the name of a channel, and its ends."""
    source = manifest.dataflow.log(cut.log).source
    return f"{cut.log}: {source}->{cut.target}", (source, cut.target)


def _figures(cut: ChannelCut | None) -> tuple[int, int, int]:
    if cut is None:
        return 0, 0, 0
    return sum(cut.sent_counts), sum(cut.received_counts), cut.record_count


def _compared_state(fragment: ParticipantFragment, manifest: Manifest) -> dict[str, Any]:
    """The state of a query is what it was after a micro-batch of an epoch."""
    _, fields = _state(fragment)
    if fragment.query is not None and (batch := fragment.query.batch) is not None:
        ran = [s for s in manifest.batches[fragment.participant] if s.first <= batch]
        fields["in epoch"] = ran[-1].epoch
    return fields


def _channel_differences(
    root: Path, before: Manifest, after: Manifest
) -> Iterator[ChannelDifference]:
    """Yield the channels on which the records were not the same: as many, of the same epochs."""
    cuts = [{(cut.log, cut.target): cut for cut in m.channels} for m in (before, after)]
    for key in sorted(cuts[0].keys() | cuts[1].keys()):
        sides = zip(cuts, (before, after), strict=True)
        found = [(each[key], manifest) for each, manifest in sides if key in each]
        counts = [(cut.sent_counts, cut.received_counts) for cut, _ in found]
        is_same = len(found) == 2 and counts[0] == counts[1]
        if not is_same or _written(root, *found[0]) != _written(root, *found[1]):
            figures = (_figures(each.get(key)) for each in cuts)
            yield ChannelDifference(_name(found[0][1], found[0][0])[0], *figures)


def _written(root: Path, cut: ChannelCut, manifest: Manifest) -> set[int]:
    """Return the epochs in which records were written into a log before the cut; also those of
    which the log does not say any more what was written."""
    segments = manifest.segments[cut.log]
    reader = LogReader(root, manifest.dataflow.log(cut.log), segments)
    end = max(cut.position, cut.barrier)
    bounds = pairwise([*(min(segment.first, end) for segment in segments), end])
    found = set()
    for segment, (first, last) in zip(segments, bounds, strict=True):
        try:
            has_records = first < last and reader.offsets_at(first) != reader.offsets_at(last)
        except (StillframeError, OSError):
            has_records = True
        if has_records:
            found.add(segment.epoch)
    return found
