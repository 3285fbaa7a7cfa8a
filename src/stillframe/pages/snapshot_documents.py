"""The JSON documents of the pages of a snapshot of a system or of a pipeline, and of two compared.

Every part is bounded, and reports how much is left out: a snapshot may hold 10^5 messages and
values of many megabytes. Those of a pipeline contain what its manifests and logs hold. The states
of queries are in Spark's checkpoints; ``stillframe.spark.diff`` compares those.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec

from stillframe.diagram import svg
from stillframe.diagram.scene import TEXT_ROW
from stillframe.diagram.text_metrics import count
from stillframe.errors import Damaged, StillframeError, UsageError, text_of
from stillframe.json_values import json_text, plain
from stillframe.model import Channel, ProcessId, Snapshot, SnapshotId
from stillframe.pages import cut_diagram
from stillframe.pages.values import Budget, printable, show, show_fields, show_pair
from stillframe.pipeline.pending_snapshot import ParticipantFragment
from stillframe.pipeline.snapshot_manifest import ChannelCut, Manifest, TopicCut
from stillframe.storage.files import byte_count
from stillframe.storage.location import Location
from stillframe.store.diff import ChannelDifference, FieldDifference, diff_snapshots
from stillframe.store.manifest import SnapshotEntry
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
ITEM_BYTES_MAX = 16 * 2**20
"""Records of an entry of a log with longer files are not read for a page."""
ENTRY_HEAD = (
    *("pause_s", "capture_s", "process_count", "channel_count", "message_count"),
    *("bases", "chain_length", "savepoints", "excluded"),
)
"""The properties that a page shows of a snapshot in a store besides those of all snapshots."""
PIPELINE_VERIFIED = (
    "the SHA-256 of the manifest is right; of the logs only the records shown here were read, and "
    "of the checkpoints of queries nothing"
)
DIFF_WORDS = {
    "noun": "message",
    "note": "",
    "equal": "They record the same states and the same messages.",
    "same_count": "other messages",
}
PIPELINE_DIFF_WORDS = {
    "noun": "record",
    "note": "This compares the states of services, the micro-batches of queries, and the counts of "
    "each log. The state of queries is in their checkpoints: compare it with "
    "stillframe.spark.diff.",
    "equal": "Their manifests do not differ.",
    "same_count": "written in another epoch",
}


def snapshot_document(
    store: StoreReader, snapshot: SnapshotId, *, log: Location | None = None
) -> dict[str, Any]:
    """Return the document of the page of a snapshot, verified, with its cut from the event log in
    the directory `log` if there is one. Raises as ``StoreReader.load`` and ``cut_diagram.load``."""
    entry, loaded = store.entry(snapshot), store.load(snapshot)
    description = store.description_of(snapshot)
    cut = cut_diagram.load(loaded, log)
    if cut.contradictions:
        verdict = f"The event log contradicts it: {cut.contradictions[0]}"
    else:
        caught = count(entry.message_count, "message")
        processes = count(entry.process_count, "process")
        verdict = f"Consistent: the states of {processes} and {caught} in transit, at one cut"
    # A page scrolls the diagram and not its legend, so the legend is not in it.
    height = cut.diagram.height - TEXT_ROW * (len(cut.diagram.legend) + 1)
    picture = msgspec.structs.replace(cut.diagram, legend=(), height=height)
    return {
        "kind": SNAPSHOT,
        "noun": "message",
        "rest": "messages.parquet has every one",
        "verdict": verdict,
        **_head(entry),
        "is_current": _is_current(store, snapshot),
        "verified": _verified(entry, loaded),
        **_contents(loaded, description),
        "diagram": {
            "svg": svg.draw(picture, has_style=False),
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
    """Return the document of the page of the difference of two snapshots; what is raised is as of
    ``StoreReader.load``."""
    heads = [_head(store.entry(snapshot)) for snapshot in (before, after)]
    found = diff_snapshots(store, before, after)
    kinds = [store.description_of(snapshot).processes for snapshot in (before, after)]
    keyed = {
        (process, field)
        for process in kinds[0].keys() & kinds[1].keys()
        for kind, field in found.keyed
        if kinds[0][process] == kind
    }
    return DIFF_WORDS | _diff_parts(heads, kinds, found.fields, found.channels, keyed)


def _diff_parts(
    heads: Sequence[dict[str, Any]],
    processes: Sequence[Mapping[ProcessId, Any]],
    fields: Sequence[FieldDifference],
    channels: Sequence[ChannelDifference],
    keyed: Collection[tuple[ProcessId, str]] = (),
) -> dict[str, Any]:
    """Return the document of the difference of two snapshots of any kind, except its texts, with
    only the keys that differ of fields that are `keyed`."""
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
            {**plain(each), "is_same_count": each.is_same_count} for each in channels[:CHANNELS_MAX]
        ],
        "channel_count": len(channels),
    }


def _head(entry: SnapshotEntry) -> dict[str, Any]:
    return _outline(entry.id, entry) | {name: plain(getattr(entry, name)) for name in ENTRY_HEAD}


def _outline(snapshot: SnapshotId, found: SnapshotEntry | Manifest) -> dict[str, Any]:
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


def _channel_row(
    name: str, ends: Channel, counts: tuple[int, int, int], messages: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a channel with its first messages; `counts` are sent, received and in the channel."""
    return {
        "channel": name,
        "source": ends.source,
        "target": ends.target,
        "sent_count": counts[0],
        "received_count": counts[1],
        "message_count": counts[2],
        "messages": messages,
        "messages_left_out_count": counts[2] - len(messages),
    }


def _message_row(
    number: int, kind: str, fields: Mapping[str, Any], budget: Budget
) -> dict[str, Any]:
    shown = show_fields(fields, budget, chars_max=MESSAGE_CHARS_MAX)
    return {"number": number, "kind": kind, "fields": shown}


def _is_current(store: StoreReader, snapshot: SnapshotId) -> bool:
    try:
        current = store.current()
    except (Damaged, UsageError):  # a restore needs the name of one
        return False
    return current is not None and current.id == snapshot


def _verified(entry: SnapshotEntry, snapshot: Snapshot) -> list[str]:
    bases = f", and of {count(entry.chain_length, 'snapshot')} that it is based on"
    what = f"what the snapshot holds{bases if entry.chain_length else ''}"
    channels = count(len(snapshot.state.channels), "channel")
    books = "sent - received = in the channel, and the messages have exactly those numbers, in "
    "order"
    return [
        f"the SHA-256 of every file is right: no byte of {what} was changed",
        f"the books balance on {channels}: {books}: the cut is consistent",
    ]


def _contents(snapshot: Snapshot, description: Description) -> dict[str, Any]:
    budget = Budget(STATE_CHARS_MAX)
    processes = []
    for state in budget.limit(snapshot.state.processes):
        keyed = description.keyed.get(state.kind, {})
        fields = show_fields(fields_of(state), budget, keyed=keyed)
        processes.append({"process": state.process, "kind": state.kind, "fields": fields})
    ordered = sorted(snapshot.state.channels, key=lambda state: not state.message_count)
    full_count = sum(1 for state in ordered if state.message_count)
    most = max(1, min(CHANNEL_MESSAGES_MAX, MESSAGES_MAX // max(1, full_count)))
    budget = Budget(STATE_CHARS_MAX)
    channels = []
    for held in ordered[:CHANNELS_MAX]:
        messages = [
            _message_row(message.number, message.kind, message.fields, budget)
            for message in budget.limit(islice(messages_of(held, description), most))
        ]
        counts = held.sent_count, held.received_count, held.message_count
        channels.append(_channel_row(str(held.channel), held.channel, counts, messages))
    return {
        "processes": processes,
        "processes_left_out_count": len(snapshot.state.processes) - len(processes),
        "channels": channels,
        "channels_left_out_count": len(ordered) - len(channels),
    }


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


def pipeline_snapshot_document(
    manifest: Manifest, *, is_current: bool, root: Location | None = None
) -> dict[str, Any]:
    """Return the document of the page of a published snapshot. It has the first records in transit
    on each channel if the pipeline at `root` is given. A restore would start from the current one.
    """
    budget = Budget(STATE_CHARS_MAX)
    fragments = [_participant(fragment, budget) for fragment in budget.limit(manifest.fragments)]
    records = Budget(STATE_CHARS_MAX)
    ordered = sorted(manifest.channels, key=lambda cut: not cut.record_count)
    participants = count(len(manifest.fragments), "participant")
    held = count(manifest.record_count, "record")
    states = f"he states of {participants} and {held} in transit, at one cut"
    if manifest.topics:
        states = f"he states of {participants}, at one cut; records in transit are in Kafka"
    twice = count(manifest.duplicate_count, "record")
    verdict = f"Consistent: t{states}"
    if manifest.duplicate_count:
        verdict = f"T{states}; at least once: a restore receives {twice} twice"
    return _pipeline_head(manifest) | {
        "kind": SNAPSHOT,
        "noun": "record",
        "rest": "they are in the logs of the pipeline",
        "verdict": verdict,
        "mode": manifest.mode_words,
        "bases": [],
        "savepoints": [] if manifest.name is None else [manifest.name],
        "is_current": is_current,
        "excluded": {},
        "contradictions": [],
        "verified": [PIPELINE_VERIFIED],
        "processes": fragments,
        "processes_left_out_count": len(manifest.fragments) - len(fragments),
        "channels": [
            _pipeline_channel(manifest, cut, root, records) for cut in ordered[:CHANNELS_MAX]
        ],
        "topics": [
            row for cut in manifest.topics[:CHANNELS_MAX] for row in _topic_rows(manifest, cut)
        ],
        "staleness_s": manifest.staleness_s,
        "data_age_s": manifest.data_age_s,
        "systems": [
            {"name": cut.name, "store": cut.store, "snapshot": str(cut.snapshot)}
            for cut in manifest.systems
        ],
        "channels_left_out_count": max(0, len(ordered) - CHANNELS_MAX),
    }


def pipeline_diff_document(root: Location, before: Manifest, after: Manifest) -> dict[str, Any]:
    """Return the document of the page of the difference of two snapshots of the pipeline at `root`,
    whose logs say which epochs have written records. A barrier is no difference: every snapshot
    puts its own into every log."""
    states = [
        {fragment.participant: _compared_state(fragment, m) for fragment in m.fragments}
        for m in (before, after)
    ]
    fields = [
        FieldDifference(participant, name, old.get(name), new.get(name))
        for participant in sorted(states[0].keys() | states[1].keys())
        for old, new in [(states[0].get(participant, {}), states[1].get(participant, {}))]
        for name in old | new
        if (name in old, json_text(old.get(name))) != (name in new, json_text(new.get(name)))
    ]
    channels = list(_channel_differences(root, before, after))
    return PIPELINE_DIFF_WORDS | _diff_parts(
        [_pipeline_head(before), _pipeline_head(after)], states, fields, channels
    )


def _pipeline_head(manifest: Manifest) -> dict[str, Any]:
    return _outline(manifest.snapshot, manifest) | {
        "process_count": len(manifest.fragments),
        "channel_count": len(manifest.channels) + len(manifest.topics),
        "message_count": manifest.record_count,
    }


def _state(fragment: ParticipantFragment) -> tuple[str, dict[str, Any]]:
    if fragment.service is not None:
        return f"service {fragment.service.kind}", fragment.service.fields()
    batch = None if fragment.query is None else fragment.query.batch
    return "query", {"after micro-batch": batch}


def _participant(fragment: ParticipantFragment, budget: Budget) -> dict[str, Any]:
    kind, fields = _state(fragment)
    fields |= {f"read {log} up to": at for log, at in sorted(fragment.positions.items())}
    fields |= {f"barrier in {log} at": at for log, at in sorted(fragment.barriers.items())}
    return {"process": fragment.participant, "kind": kind, "fields": show_fields(fields, budget)}


def _pipeline_channel(
    manifest: Manifest, cut: ChannelCut, root: Location | None, budget: Budget
) -> dict[str, Any]:
    """Return a channel for a page; if its records cannot be read, `error` says why."""
    shown: list[dict[str, Any]] = []
    error = ""
    if root is not None and cut.record_count:
        try:
            shown.extend(_records(root, manifest, cut, budget))
        except (StillframeError, OSError) as failure:
            error = text_of(failure)
    ends = _ends(manifest, cut)
    return _channel_row(f"{cut.log}: {ends}", ends, _figures(cut), shown) | {"error": error}


def _topic_rows(manifest: Manifest, cut: TopicCut) -> Iterator[dict[str, Any]]:
    """Yield a row for each target of a topic, with its position on each partition, and one for a
    topic without a target."""
    topic = manifest.dataflow.topic(cut.channel)
    source = topic.source or "other programs"
    for target in topic.targets or (None,):
        yield {
            "channel": f"{cut.channel}: {source} to {target or 'the end'}",
            "positions": "" if target is None else _offsets(cut.positions[target]),
            "ends": _offsets(cut.ends),
        }


def _offsets(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"{partition}: {offset:,}" for partition, offset in sorted(offsets.items()))


def _records(
    root: Location, manifest: Manifest, cut: ChannelCut, budget: Budget
) -> Iterator[dict[str, Any]]:
    reader = manifest.reader(root, cut.log)
    room = CHANNEL_MESSAGES_MAX
    for item in reader.entries(cut.position, cut.barrier):
        sizes = (byte_count(reader.data_path(item, file)) for file in item.files)
        if room <= 0 or budget.is_spent or sum(sizes) > ITEM_BYTES_MAX:
            return
        rows = reader.table(item).slice(0, room).to_pylist()
        room -= len(rows)
        for number, row in enumerate(rows, start=sum(item.offsets) + 1):
            yield _message_row(number, "record", row, budget)


def _ends(manifest: Manifest, cut: ChannelCut) -> Channel:
    return Channel(manifest.dataflow.log(cut.log).source, cut.target)


def _figures(cut: ChannelCut | None) -> tuple[int, int, int]:
    if cut is None:
        return 0, 0, 0
    return cut.sent_count, cut.received_count, cut.record_count


def _compared_state(fragment: ParticipantFragment, manifest: Manifest) -> dict[str, Any]:
    """Describe the state of a query by the micro-batch and the epoch after which it was, and by its
    offsets on topics."""
    _, fields = _state(fragment)
    for cut in manifest.topics:
        if (positions := cut.positions.get(fragment.participant)) is not None:
            fields[f"read {cut.channel} up to"] = _offsets(positions)
    if fragment.query is not None and (batch := fragment.query.batch) is not None:
        ran = [s for s in manifest.batches[fragment.participant] if s.first <= batch]
        fields["in epoch"] = ran[-1].epoch
    return fields


def _channel_differences(
    root: Location, before: Manifest, after: Manifest
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
            name = f"{key[0]}: {_ends(found[0][1], found[0][0])}"
            yield ChannelDifference(name, *figures)


def _written(root: Location, cut: ChannelCut, manifest: Manifest) -> set[int]:
    """Return the epochs in which records were written into a log before the cut; also those whose
    entries the log no longer has."""
    segments = manifest.segments[cut.log]
    reader = manifest.reader(root, cut.log)
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
