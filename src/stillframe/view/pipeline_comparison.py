"""In what two snapshots of a pipeline differ, as plain JSON for a page: as far as their manifests
have it. What the queries hold is in checkpoints of Spark; ``stillframe.spark.diff`` compares that.

A barrier is no difference: every snapshot puts its own into every log.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.part import Part
from stillframe.pipeline.published import ChannelCut, Manifest
from stillframe.view.comparison_document import CHANNELS_MAX, KIND
from stillframe.view.pipeline_document import manifest_head, state_of
from stillframe.view.plain import printable
from stillframe.view.shown import Budget, show_pair, text_of
from stillframe.view.snapshot_document import STATE_CHARS_MAX

NOTE = (
    "Compared are the states of services, the micro-batches of queries, and what was sent and "
    "received on each channel. What queries hold is in their checkpoints: stillframe.spark.diff "
    "compares that."
)


def pipeline_comparison(root: Path, before: Manifest, after: Manifest) -> dict[str, Any]:
    """Return what a page shows of the difference of two snapshots of a pipeline.

    Args:
        root: the pipeline, whose logs say which epochs have written records.
        before: of the earlier one, as it was read and verified.
        after: of the later one.
    """
    held = [{part.participant: _held_by(part, m) for part in m.parts} for m in (before, after)]
    differences = [
        (participant, name, old.get(name), new.get(name))
        for participant in sorted(held[0].keys() | held[1].keys())
        for old, new in [(held[0].get(participant, {}), held[1].get(participant, {}))]
        for name in old | new
        if (name in old, text_of(old.get(name))) != (name in new, text_of(new.get(name)))
    ]
    budget = Budget(STATE_CHARS_MAX)
    fields: list[dict[str, Any]] = []
    for participant, name, old, new in differences:
        if budget.is_spent:
            break
        one, other = show_pair(old, new, budget)
        named = {"process": participant, "field": printable(name)}
        fields.append(named | {"before": one, "after": other})
    channels = _channels(root, before, after)
    return {
        "kind": KIND,
        "noun": "record",
        "note": NOTE,
        "before": manifest_head(before),
        "after": manifest_head(after),
        "is_equal": not differences and not channels,
        "equal": "Their manifests tell no difference.",
        "same_count": "written in another epoch",
        "fields": fields,
        "field_count": len(differences),
        "process_count": len({participant for participant, *_ in differences}),
        "only_before": sorted(held[0].keys() - held[1].keys()),
        "only_after": sorted(held[1].keys() - held[0].keys()),
        "channels": channels[:CHANNELS_MAX],
        "channel_count": len(channels),
    }


def _held_by(part: Part, manifest: Manifest) -> dict[str, Any]:
    """Return the state of a participant by name; that of a query is what it was after a micro-batch
    of an epoch."""
    _, fields = state_of(part)
    if part.query is not None and part.query.batch is not None:
        ran = [s for s in manifest.batches[part.participant] if s.first <= part.query.batch]
        fields["in epoch"] = ran[-1].epoch
    return fields


def _channels(root: Path, before: Manifest, after: Manifest) -> list[dict[str, Any]]:
    """Return the channels on which the records were not the same: log and target name one."""
    cuts = [{(cut.log, cut.target): cut for cut in m.channels} for m in (before, after)]
    found = []
    for log, target in sorted(cuts[0].keys() | cuts[1].keys()):
        one, other = (each.get((log, target)) for each in cuts)
        if not _is_same(root, (one, before), (other, after)):
            manifest = before if one is not None else after
            figures = _figures(one), _figures(other)
            found.append(
                {
                    "channel": f"{log}: {manifest.dataflow.log(log).source}->{target}",
                    "before": figures[0],
                    "after": figures[1],
                    "is_same_count": figures[0] == figures[1],
                }
            )
    return found


def _is_same(
    root: Path,
    one: tuple[ChannelCut | None, Manifest],
    other: tuple[ChannelCut | None, Manifest],
) -> bool:
    """Return whether the same records were sent and received: as many, of the same epochs."""
    counts = [cut and (cut.sent_counts, cut.received_counts) for cut, _ in (one, other)]
    if counts[0] != counts[1]:
        return False
    epochs = [set() if cut is None else _written(root, cut, m) for cut, m in (one, other)]
    return epochs[0] == epochs[1]


def _written(root: Path, cut: ChannelCut, manifest: Manifest) -> set[int]:
    """Return the epochs in which records were written into a log before the cut; also those of
    which the log does not say any more what was written."""
    stretches = manifest.stretches[cut.log]
    reader = LogReader(root, manifest.dataflow.log(cut.log), stretches)
    end = max(cut.position, cut.barrier)
    bounds = pairwise([*(min(stretch.first, end) for stretch in stretches), end])
    found = set()
    for stretch, (first, last) in zip(stretches, bounds, strict=True):
        try:
            has_records = first < last and reader.offsets_at(first) != reader.offsets_at(last)
        except (StillframeError, OSError):
            has_records = True
        if has_records:
            found.add(stretch.epoch)
    return found


def _figures(cut: ChannelCut | None) -> list[int]:
    if cut is None:
        return [0, 0, 0]
    return [sum(cut.sent_counts), sum(cut.received_counts), cut.record_count]
