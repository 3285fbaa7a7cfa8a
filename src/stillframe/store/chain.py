"""The chain of a snapshot, process by process: the earlier snapshots that it is based on.

Each link holds the changes of a process's keyed fields since the link before; the first holds all
keys. A base has a lower sequence, so a chain has an end.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from stillframe.errors import Damaged
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.manifest import MANIFEST, Manifest

CHAIN_LENGTH_MAX = 16
"""Maximum bases of a snapshot before it is rewritten in full. Measured with 5.2 million keys (100
MB) of which 1 % change each time: loading a full snapshot takes 4.7 s of CPU, one with 8 bases 5.1
s and one with 16 bases 6.4 s; rewriting one takes 2.5 s, every 17th time."""

Manifests = Mapping[SnapshotId, Manifest]


def check_chain(manifests: Manifests, newest: Manifest, snapshots: Path) -> None:
    """Check that every base that `newest` needs is among `manifests`, and was published earlier.

    Raises:
        Damaged: the first broken link, by its file in the directory `snapshots`, and what to do.
    """
    reached, frontier = {newest.snapshot}, [newest]
    while frontier:
        manifest = frontier.pop()
        path = snapshots / str(manifest.snapshot) / MANIFEST
        for process, base in (manifest.bases or {}).items():
            found = manifests.get(base)
            where = f"{path}: process {process} is based on snapshot {base}"
            if found is None:
                raise Damaged(
                    f"{where}, and {snapshots / str(base)} is missing: put that directory back "
                    f"from a copy, or delete {path.parent} and use another snapshot"
                )
            if found.sequence >= manifest.sequence or found.topology != manifest.topology:
                raise Damaged(
                    f"{where}, which is none before it: put that file back from a copy, or delete "
                    f"{path.parent} and use another snapshot"
                )
            if base not in reached:
                reached.add(base)
                frontier.append(found)


def links_of(manifests: Manifests, newest: SnapshotId, process: ProcessId) -> list[SnapshotId]:
    """Return the snapshots that together hold the keyed fields of a process, the oldest first.

    It ends where one is missing, or is none before it (``check_chain`` says which).
    """
    links = [newest]
    manifest = manifests[newest]
    while (base := (manifest.bases or {}).get(process)) is not None:
        found = manifests.get(base)
        if found is None or found.sequence >= manifest.sequence:
            break
        links.append(base)
        manifest = found
    return links[::-1]


def chain_length(manifests: Manifests, newest: SnapshotId) -> int:
    """Return how many earlier snapshots the process with the longest chain needs; 0 if full."""
    processes = manifests[newest].bases or {}
    return max((len(links_of(manifests, newest, p)) - 1 for p in processes), default=0)


def reachable(
    newest: SnapshotId, read: Callable[[SnapshotId], Manifest | None]
) -> dict[SnapshotId, Manifest]:
    """Return the manifests that `read` finds of a snapshot and of its bases, directly or not."""
    found: dict[SnapshotId, Manifest] = {}
    frontier = [newest]
    while frontier:
        snapshot = frontier.pop()
        manifest = None if snapshot in found else read(snapshot)
        if manifest is not None:
            found[snapshot] = manifest
            frontier += set((manifest.bases or {}).values())
    return found
