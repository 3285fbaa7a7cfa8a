"""Which snapshots may go: none that somebody still needs, and no link of a chain that stays."""

from collections.abc import Collection, Mapping

import msgspec

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.store.chain import CHAIN_LENGTH_MAX, Manifests, reached_from
from stillframe.store.manifest import FILES, Manifest

OVERLAP_COUNT_MAX = 64
"""So many snapshots may overlap. More are not looked at: a clock may have been set back."""


class Decision(msgspec.Struct, frozen=True):
    """What retention does next.

    `whole` is to be made whole first, so that what it is based on can go with the next decision;
    `unneeded` can go now, in this order: nothing that is left is ever based on one that is gone.
    """

    whole: SnapshotId | None
    unneeded: tuple[SnapshotId, ...]


def needed(
    manifests: Manifests, current: SnapshotId | None, savepoints: Mapping[str, SnapshotId]
) -> dict[SnapshotId, str]:
    """Return the snapshots that must stay, each with the reason, as a sentence goes on after "it".

    A running process has been told of one of the newest snapshots, and may base its next part on
    that. Whatever the processes of the newest snapshot are based on was told to them before, so
    they will name that or a later one: from there on all stay. The newest may be based on nothing
    (any more), while others are under way that are: on what was published while it was.
    """
    kept: dict[SnapshotId, str] = {}
    if manifests:
        newest = max(manifests.values(), key=lambda manifest: manifest.sequence)
        bases = [manifests[base] for base in (newest.bases or {}).values() if base in manifests]
        oldest = min(m.sequence for m in (*bases, *_overlapping(manifests, newest)))
        for manifest in manifests.values():
            if manifest.sequence >= oldest:
                kept[manifest.snapshot] = "is so new that a running process may be based on it"
        # The number of a snapshot that is gone must not be given to another.
        kept[max(manifests, key=lambda snapshot: snapshot.number)] = "has the highest number"
        kept[newest.snapshot] = "is the newest"
    if current is not None:
        kept[current] = "is where a restore goes back to"
    for name, snapshot in savepoints.items():
        kept[snapshot] = f"is the savepoint {name!r}: drop it by that name"
    return kept


def _overlapping(manifests: Manifests, newest: Manifest) -> list[Manifest]:
    """Return the newest snapshot, and those of its epoch that were not complete yet when it began,
    with the last that was: if it has keyed fields, others that overlap it may be based on these."""
    found = [newest]
    if len(newest.files) > len(FILES):
        earlier = [m for m in manifests.values() if m.epoch == newest.epoch]
        earlier.sort(key=lambda manifest: manifest.sequence, reverse=True)
        for manifest in earlier[:OVERLAP_COUNT_MAX]:
            found.append(manifest)
            if manifest.completed_at <= newest.initiated_at:
                break
    return found


def decide(manifests: Manifests, kept: Collection[SnapshotId], count: int) -> Decision:
    """Return which of the snapshots can go if the newest `count` of them stay, and all in `kept`.

    Those that a recent one is based on stay a while: the chains end by themselves, since one that
    is too long is made whole. That costs some files more and spares writing every snapshot whole.
    """
    ordered = sorted(manifests, key=lambda snapshot: manifests[snapshot].sequence)
    recent = ordered[max(0, len(ordered) - count) :]
    unwanted = set(ordered).difference(recent, kept)
    staying = [snapshot for snapshot in ordered if snapshot not in unwanted]
    links = {snapshot: reached_from(manifests, snapshot).keys() for snapshot in staying}
    linked = unwanted.intersection(*[set().union(*links.values())])
    is_too_much = len(linked) > CHAIN_LENGTH_MAX
    whole = next(
        (
            snapshot
            for snapshot in staying
            if (is_too_much or snapshot not in recent) and links[snapshot] & unwanted
        ),
        None,
    )
    unneeded = [snapshot for snapshot in reversed(ordered) if snapshot in unwanted - linked]
    return Decision(whole, tuple(unneeded))


def check_unneeded(snapshot: SnapshotId, kept: Mapping[SnapshotId, str]) -> None:
    """Raise a UsageError that says why, if a snapshot is one of `kept`."""
    if snapshot in kept:
        raise UsageError(f"snapshot {snapshot} stays: it {kept[snapshot]}")
