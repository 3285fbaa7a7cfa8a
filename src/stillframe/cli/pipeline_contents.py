"""``stillframe spark show``: what a snapshot of a pipeline holds, decoded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stillframe.cli import output, quantities
from stillframe.cli.contents import VALUE_LENGTH_MAX, cell
from stillframe.cli.pipeline_listing import document_of
from stillframe.cli.pipeline_snapshot import published
from stillframe.pipeline.pending_snapshot import ParticipantFragment
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import ChannelCut, Manifest

PARTICIPANT_COLUMNS = ("participant", "kind", "state", "read up to", "barrier put at")
CHANNEL_COLUMNS = ("channel", "from", "to", "sent", "received", "on it", "duplicates")


def show_snapshot(path: Path, name: str | None, *, is_json: bool) -> None:
    """Write what a snapshot of the pipeline at `path` holds; None for the newest of its course."""
    pipeline = Pipeline(path)
    manifest = pipeline.latest() if name is None else pipeline.find(name)
    if is_json:
        output.put_json(
            document_of(manifest)
            | {
                "participants": [_part_document(part) for part in manifest.fragments],
                "channels": [_channel_document(manifest, cut) for cut in manifest.channels],
            }
        )
        return
    output.say(f"{published(manifest)}, begun {quantities.moment(manifest.initiated_at)}")
    output.put_table(
        "participants, positions in items",
        PARTICIPANT_COLUMNS,
        map(_part_row, manifest.fragments),
        texts=len(PARTICIPANT_COLUMNS),
    )
    rows = (_channel_row(manifest, cut) for cut in manifest.channels)
    output.put_table("channels, counts in records", CHANNEL_COLUMNS, rows, texts=3)
    output.say(
        f"at most {VALUE_LENGTH_MAX} characters of each state are shown (--json has it whole)"
    )


def _fields_of(part: ParticipantFragment) -> dict[str, Any] | None:
    """Return the recorded fields of a service; None for a query."""
    if part.service is None:
        return None
    return msgspec.msgpack.decode(part.service.encoded, type=dict[str, Any])


def _batch_of(part: ParticipantFragment) -> int | None:
    return None if part.query is None else part.query.batch


def _kind_of(part: ParticipantFragment) -> str:
    return "query" if part.service is None else f"service {part.service.kind}"


def _part_document(part: ParticipantFragment) -> dict[str, Any]:
    return {
        "participant": part.participant,
        "kind": "query" if part.service is None else "service",
        "recorded_at": part.recorded_at,
        "positions": part.positions,
        "barriers": part.barriers,
        "batch": _batch_of(part),
        "state": _fields_of(part),
    }


def _part_row(part: ParticipantFragment) -> tuple[str, ...]:
    batch = _batch_of(part)
    if part.service is not None:
        state = cell(_fields_of(part))
    else:
        state = "no micro-batch yet" if batch is None else f"after micro-batch {batch}"
    positions, barriers = _places(part.positions), _places(part.barriers)
    return (part.participant, _kind_of(part), state, positions, barriers)


def _places(positions: Mapping[str, int]) -> str:
    return ", ".join(f"{log} {position:,}" for log, position in sorted(positions.items()))


def _channel_document(manifest: Manifest, cut: ChannelCut) -> dict[str, Any]:
    return {
        "channel": cut.log,
        "source": manifest.dataflow.log(cut.log).source,
        "target": cut.target,
        "position": cut.position,
        "barrier": cut.barrier,
        "sent_count": sum(cut.sent_counts),
        "received_count": sum(cut.received_counts),
        "record_count": cut.record_count,
        "duplicate_count": cut.duplicate_count,
    }


def _channel_row(manifest: Manifest, cut: ChannelCut) -> tuple[str, ...]:
    return (
        cut.log,
        manifest.dataflow.log(cut.log).source,
        cut.target,
        f"{sum(cut.sent_counts):,}",
        f"{sum(cut.received_counts):,}",
        f"{cut.record_count:,}",
        f"{cut.duplicate_count:,}",
    )
