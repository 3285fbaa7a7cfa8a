"""Everything that a page shows of a snapshot of a pipeline, as plain JSON: as far as its manifest
has it. What the queries hold is in checkpoints of Spark, and what is on the channels in the logs.
"""

from pathlib import Path
from typing import Any

from stillframe.model import ProcessState
from stillframe.pipeline.part import Part
from stillframe.pipeline.published import ChannelCut, Manifest
from stillframe.store.decoded import fields_of
from stillframe.view.legend import count
from stillframe.view.pipeline_records import shown_records
from stillframe.view.shown import Budget, show_fields
from stillframe.view.snapshot_document import CHANNELS_MAX, KIND, STATE_CHARS_MAX, outline

VERIFIED = (
    "the manifest is what was written, by its SHA-256; checkpoints of queries were not read for "
    "this page, and of the logs at most the records that it shows"
)


def pipeline_document(
    manifest: Manifest, *, is_current: bool, root: Path | None = None
) -> dict[str, Any]:
    """Return what a page shows of a published snapshot of a pipeline.

    Args:
        manifest: of the snapshot, as it was read and verified.
        is_current: whether a restore goes back to it if no other is named.
        root: the pipeline, to show the first records that were on each channel; None for none.
    """
    budget = Budget(STATE_CHARS_MAX)
    parts = [_part(part, budget) for part in manifest.parts if not budget.is_spent]
    records = Budget(STATE_CHARS_MAX)
    ordered = sorted(manifest.channels, key=lambda cut: not cut.record_count)
    return manifest_head(manifest) | {
        "kind": KIND,
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
        "processes": parts,
        "processes_left_out_count": len(manifest.parts) - len(parts),
        "channels": [_channel(manifest, cut, root, records) for cut in ordered[:CHANNELS_MAX]],
        "systems": [
            {"name": cut.name, "store": cut.store, "snapshot": str(cut.snapshot)}
            for cut in manifest.systems
        ],
        "channels_left_out_count": max(0, len(ordered) - CHANNELS_MAX),
    }


def manifest_head(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest says of its snapshot as a whole, for a page."""
    return outline(manifest.snapshot, manifest) | {
        "process_count": len(manifest.parts),
        "channel_count": len(manifest.channels),
        "message_count": manifest.record_count,
    }


def _verdict(manifest: Manifest) -> str:
    on_channels = count(manifest.record_count, "record")
    sentence = f"The states of {count(len(manifest.parts), 'participant')} and {on_channels} on "
    sentence += "their way, at one cut"
    if manifest.duplicate_count:
        twice = count(manifest.duplicate_count, "record")
        return f"{sentence}; at least once: a restore receives {twice} twice"
    return f"Consistent: {sentence[0].lower()}{sentence[1:]}"


def state_of(part: Part) -> tuple[str, dict[str, Any]]:
    """Return what kind of participant it is, and the state that it recorded, by name."""
    if part.service is not None:
        state = ProcessState(part.participant, part.service.kind, part.service.encoded)
        return f"service {part.service.kind}", fields_of(state)
    batch = None if part.query is None else part.query.batch
    return "query", {"after micro-batch": batch}


def _part(part: Part, budget: Budget) -> dict[str, Any]:
    kind, fields = state_of(part)
    fields |= {f"read {log} up to": position for log, position in sorted(part.positions.items())}
    fields |= {f"barrier in {log} at": at for log, at in sorted(part.barriers.items())}
    return {"process": part.participant, "kind": kind, "fields": show_fields(fields, budget)}


def _channel(
    manifest: Manifest, cut: ChannelCut, root: Path | None, budget: Budget
) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    trouble = ""
    if root is not None and cut.record_count:
        shown, trouble = shown_records(root, manifest, cut, budget)
    source = manifest.dataflow.log(cut.log).source
    return {
        "channel": f"{cut.log}: {source}->{cut.target}",
        "source": source,
        "target": cut.target,
        "sent_count": sum(cut.sent_counts),
        "received_count": sum(cut.received_counts),
        "message_count": cut.record_count,
        "messages": shown,
        "trouble": trouble,
        "messages_left_out_count": cut.record_count - len(shown),
    }
