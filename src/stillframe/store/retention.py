"""Retention: the snapshots of a store that must stay, and those that can be deleted."""

from collections.abc import Collection, Mapping

from stillframe.model import SnapshotId
from stillframe.store.manifest import CHAIN_LENGTH_MAX, FILES, Manifest, Manifests, reachable

OVERLAP_COUNT_MAX = 64
"""Maximum snapshots that may overlap: a clock may have been set back."""


def needed(
    manifests: Manifests, current: SnapshotId | None, savepoints: Mapping[str, SnapshotId]
) -> dict[SnapshotId, str]:
    """Return the snapshots that must stay, each with the reason, as a sentence continues after
    "it".

    A running process was notified of one of the newest snapshots, and may base its next fragment on
    that. It was notified of the bases of the newest snapshot before, so it will name one of these
    or a later one: from there on all stay. The newest may have no base (any more), while others in
    progress have one: a snapshot that was published during the newest.
    """
    kept: dict[SnapshotId, str] = {}
    if manifests:
        newest = newest_of(manifests)
        bases = [manifests[base] for base in newest.based_on if base in manifests]
        oldest = min(m.sequence for m in (*bases, *_overlapping(manifests, newest)))
        for manifest in manifests.values():
            if manifest.sequence >= oldest:
                kept[manifest.snapshot] = "is so new that a running process may be based on it"
        # The number of a snapshot that is gone must not be given to another.
        kept[max(manifests, key=lambda snapshot: snapshot.number)] = "has the highest number"
        kept[newest.snapshot] = "is the newest"
    if current is not None:
        kept[current] = "is the one that a restore would use"
    for name, snapshot in savepoints.items():
        kept[snapshot] = f"is the savepoint {name!r}: delete it by that name"
    return kept


def newest_of(manifests: Manifests) -> Manifest:
    """Return the manifest that was published last."""
    return max(manifests.values(), key=lambda manifest: manifest.sequence)


def _overlapping(manifests: Manifests, newest: Manifest) -> list[Manifest]:
    """Return the newest snapshot, those of its epoch that were incomplete when it started, and the
    last complete one. With keyed fields, others that overlap it may be based on these."""
    found = [newest]
    if len(newest.files) > len(FILES):
        earlier = [m for m in manifests.values() if m.epoch == newest.epoch]
        earlier.sort(key=lambda manifest: manifest.sequence, reverse=True)
        for manifest in earlier[:OVERLAP_COUNT_MAX]:
            found.append(manifest)
            if manifest.completed_at <= newest.initiated_at:
                break
    return found


def decide(
    manifests: Manifests, kept: Collection[SnapshotId], count: int
) -> tuple[list[SnapshotId], SnapshotId | None]:
    """Return the snapshots that can be deleted now if the newest `count` of them stay, and all in
    `kept`. Their order leaves none without its base. The second value is the snapshot to rewrite in
    full after that, so that the next decision can delete its bases.

    Bases of recent snapshots stay a while: chains end anyway, since one that is too long is
    rewritten in full. That costs a few files and saves rewriting every snapshot.
    """
    ordered = sorted(manifests, key=lambda snapshot: manifests[snapshot].sequence)
    recent = ordered[max(0, len(ordered) - count) :]
    unwanted = set(ordered).difference(recent, kept)
    staying = [snapshot for snapshot in ordered if snapshot not in unwanted]
    links = {snapshot: reachable(snapshot, manifests.get).keys() for snapshot in staying}
    linked = unwanted.intersection(*[set().union(*links.values())])
    rewritable = staying
    if len(linked) <= CHAIN_LENGTH_MAX:
        rewritable = [snapshot for snapshot in staying if snapshot not in recent]
    full = next((snapshot for snapshot in rewritable if links[snapshot] & unwanted), None)
    return [snapshot for snapshot in reversed(ordered) if snapshot in unwanted - linked], full
