"""The first records that were on the channels of a pipeline at a cut, as a page shows them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.published import ChannelCut, Manifest
from stillframe.view.shown import Budget, show_fields
from stillframe.view.snapshot_document import CHANNEL_MESSAGES_MAX, MESSAGE_CHARS_MAX

ITEM_BYTES_MAX = 16 * 2**20
"""Records of an item with longer files are not read for a page."""


def shown_records(
    root: Path, manifest: Manifest, cut: ChannelCut, budget: Budget
) -> tuple[list[dict[str, Any]], str]:
    """Return the first records that were on a channel, and why there are no more, if they cannot be
    read.

    Args:
        root: the pipeline.
        manifest: of the snapshot.
        cut: of the channel.
        budget: how much room there is.
    """
    found: list[dict[str, Any]] = []
    try:
        found.extend(_records(root, manifest, cut, budget))
    except (StillframeError, OSError) as error:
        return found, str(error)
    return found, ""


def _records(
    root: Path, manifest: Manifest, cut: ChannelCut, budget: Budget
) -> Iterator[dict[str, Any]]:
    log = manifest.dataflow.log(cut.log)
    reader = LogReader(root, log, manifest.stretches[cut.log])
    room = CHANNEL_MESSAGES_MAX
    for item in reader.items(cut.position, cut.barrier):
        sizes = (reader.data_path(item, file).stat().st_size for file in item.files)
        if room <= 0 or budget.is_spent or sum(sizes) > ITEM_BYTES_MAX:
            return
        rows = reader.table(item).slice(0, room).to_pylist()
        room -= len(rows)
        for number, row in enumerate(rows, start=sum(item.offsets) + 1):
            fields = show_fields(row, budget, chars_max=MESSAGE_CHARS_MAX)
            yield {"number": number, "kind": "record", "fields": fields}
