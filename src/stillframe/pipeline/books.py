"""The books of channels: sent by the source, less received by the target, is what the log holds.

They are checked before a snapshot is published, by what stands at both ends of each channel; and
before it is restored, by everything in between.
"""

from pathlib import Path

from stillframe.errors import NotConsistent
from stillframe.pipeline.head import Head
from stillframe.pipeline.log import TO_MEND, LogReader
from stillframe.pipeline.part import Part
from stillframe.pipeline.published import ChannelCut, Manifest
from stillframe.protocol.aligner import Mode


def channel_cuts(root: Path, head: Head, parts: dict[str, Part], mode: Mode) -> list[ChannelCut]:
    """Return what was on every channel at the cut, with its books checked.

    Whether the items in between hold just those records is looked at when a snapshot is restored:
    a snapshot of a long backlog must not take longer for it. That they are there is looked at now.

    Raises:
        NotConsistent: a target had read what its source had not sent at the cut, or an item between
            them is missing.
        Damaged: an item beside the cut is not what was written.
    """
    cuts = []
    for log in head.dataflow.logs:
        reader = LogReader(root, log, head.stretches[log.name])
        barrier = parts[log.source].barriers[log.name]
        for target in log.targets:
            position = parts[target].positions[log.name]
            _check_there(reader, target, position, barrier)
            cut = ChannelCut(
                log=log.name,
                target=target,
                position=position,
                barrier=barrier,
                received_counts=reader.offsets_at(position),
                sent_counts=reader.offsets_at(barrier),
            )
            if position > barrier and mode is not Mode.AT_LEAST_ONCE:
                raise NotConsistent(
                    f"channel {log.name} to {target}: the target had read up to item {position} at "
                    f"its cut, and the barrier is item {barrier}"
                )
            _check_counts(cut)
            cuts.append(cut)
    return cuts


def _check_there(reader: LogReader, target: str, position: int, barrier: int) -> None:
    """Check that all items between a target and the barrier are there, and the one before, which
    says at which offsets they begin."""
    first, last = sorted((position, barrier))
    missing = reader.first_missing(max(0, first - 1), last)
    if missing is not None:
        raise NotConsistent(
            f"channel {reader.log.name} to {target}: {reader.item_path(missing)} is missing, and "
            f"the target had read up to item {position}, the barrier is item {barrier}: {TO_MEND}"
        )


def _check_counts(cut: ChannelCut) -> None:
    """Check that no partition was received further than it was sent, or all were (at-least-once)"""
    pairs = list(zip(cut.received_counts, cut.sent_counts, strict=True))
    is_ahead = cut.position > cut.barrier
    if any((sent > received) if is_ahead else (received > sent) for received, sent in pairs):
        raise NotConsistent(
            f"channel {cut.log} to {cut.target}: {cut.sent_counts} records were sent before item "
            f"{cut.barrier}, and {cut.received_counts} received before item {cut.position}"
        )


def check_channels(root: Path, manifest: Manifest) -> None:
    """Check that every channel's records are in the logs, and that the books balance.

    Raises:
        Damaged: an item or a file with records is missing or was changed.
        NotConsistent: a channel's books do not balance.
    """
    readers = {
        log.name: LogReader(root, log, manifest.stretches[log.name])
        for log in manifest.dataflow.logs
    }
    for part in manifest.parts:
        for name, barrier in part.barriers.items():
            readers[name].offsets_at(barrier)  # whoever appends next needs the item before it
    for cut in manifest.channels:
        _check_books(readers[cut.log], cut)
    for name, reader in readers.items():
        ends = [(cut.position, cut.barrier) for cut in manifest.channels if cut.log == name]
        first = min((position for position, _ in ends), default=0)
        for item in reader.items(first, max((barrier for _, barrier in ends), default=0)):
            reader.table(item)


def _check_books(reader: LogReader, cut: ChannelCut) -> None:
    """Check that the items between target and barrier hold just the records that are missing."""
    first, last = sorted((cut.position, cut.barrier))
    counts, ends = list(cut.received_counts), cut.sent_counts
    if cut.position > cut.barrier:
        counts, ends = list(cut.sent_counts), cut.received_counts
    if reader.offsets_at(first) != tuple(counts):
        raise NotConsistent(
            f"channel {cut.log} to {cut.target}: {tuple(counts)} records should come before item "
            f"{first}, and the log says {reader.offsets_at(first)}"
        )
    for item in reader.items(first, last):
        if item.offsets != tuple(counts):
            raise NotConsistent(
                f"channel {cut.log} to {cut.target}: item {item.number} should begin with records "
                f"{tuple(counts)}, and begins with {item.offsets}"
            )
        counts = list(item.next_offsets)
    if tuple(counts) != ends:
        raise NotConsistent(
            f"channel {cut.log} to {cut.target}: {cut.sent_counts} records were sent and "
            f"{cut.received_counts} received, and the log holds {tuple(counts)} at item {last}"
        )
