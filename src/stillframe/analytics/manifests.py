"""The manifests of a store, or of fragments, read and verified side by side, on the driver.

Executors of a cluster could not: they know nothing of what seals a manifest.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from stillframe.analytics.snapshot_verdicts import Expected, Topology
from stillframe.durable_files import shell_command
from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.files import side_by_side
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.store import layout
from stillframe.store.fragments import (
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    find_fragments,
    read_fragment,
    read_topologies,
)
from stillframe.store.history import not_removed
from stillframe.store.manifest import (
    CHAIN_LENGTH_MAX,
    MANIFEST,
    FileRecord,
    Head,
    Manifest,
    SnapshotEntry,
    check_chain,
    entry_of,
    file_names,
    reachable,
)
from stillframe.store.sealed_json import FORMAT, SEALED_BYTES_MAX
from stillframe.topology import Description

_READER_COUNT = 16
_OBJECT_READER_COUNT = 32
"""How many manifests are read at a time: on a remote disk, or in an object store, each takes a
round trip."""

_ATTEMPT_COUNT = 5
_Answer = TypeVar("_Answer")
_Place = TypeVar("_Place")
_LINK_COUNT_MAX = 8 * CHAIN_LENGTH_MAX
"""More consecutive incremental fragments than any process writes."""
Found = FragmentManifest | str
"""A fragment, or what is wrong with it."""


class Published(msgspec.Struct, frozen=True):
    """The content of a store at one moment: its manifests in the order of publishing, and why
    others cannot be read. `path` is absolute, because tasks run where the session was started."""

    path: Location
    head: Head
    manifests: dict[SnapshotId, Manifest]
    damages: dict[SnapshotId, str]

    @property
    def is_empty(self) -> bool:
        """Whether there is no snapshot, not even a damaged one."""
        return not self.manifests and not self.damages

    def directory(self, snapshot: SnapshotId) -> Location:
        """Return the directory of a snapshot."""
        return self.path / layout.SNAPSHOTS / str(snapshot)

    def description(self, snapshot: SnapshotId) -> Description:
        """Return the topology that a snapshot was taken of."""
        return self.head.described[self.manifests[snapshot].topology]

    def by_topology(self, snapshots: Iterable[SnapshotId]) -> dict[str, list[SnapshotId]]:
        """Return the snapshots that were taken of each topology."""
        found: dict[str, list[SnapshotId]] = {}
        for snapshot in snapshots:
            found.setdefault(self.manifests[snapshot].topology, []).append(snapshot)
        return found

    def file(self, snapshot: SnapshotId, name: str) -> tuple[str | None, str, int, str, int | None]:
        """Return snapshot, path, bytes, hash and rows of a file, for ``verified_parquet.rows``."""
        manifest = self.manifests[snapshot]
        record: FileRecord = next(record for record in manifest.files if record.name == name)
        path = str(self.directory(snapshot) / name)
        return str(snapshot), path, record.bytes, record.hash, manifest.row_count_of(name)

    def find(self, name: SnapshotId | str) -> SnapshotId:
        """Return the snapshot that `name` means, a savepoint or an id, if it can be read."""
        snapshot = layout.find_snapshot(str(name), self.head.savepoints, self.path)
        if snapshot in self.damages:
            raise self.damage(snapshot)
        if snapshot not in self.manifests:
            raise UsageError(
                layout.explain_missing(self.path, snapshot, self.manifests),
                path=self.path,
                snapshot=snapshot,
            )
        return snapshot

    def damage(self, snapshot: SnapshotId) -> Damaged:
        """Return what is wrong with a snapshot in `damages`."""
        path = self.directory(snapshot)
        return Damaged(self.damages[snapshot], path=path, snapshot=snapshot)

    def check_chains(self, snapshots: Iterable[SnapshotId]) -> None:
        """Check that all exists that these snapshots are based on; the error names what is lost."""
        for snapshot in snapshots:
            for needed in self.manifests[snapshot].based_on & self.damages.keys():
                raise Damaged(
                    f"snapshot {snapshot} is based on {needed}: {self.damages[needed]}",
                    path=self.directory(needed),
                    snapshot=snapshot,
                )
            check_chain(reachable(snapshot, self.manifests.get), self.path / layout.SNAPSHOTS)

    def entries(self) -> list[SnapshotEntry]:
        """Return what ``Store.entries`` does, without the snapshots that are damaged."""
        snapshots = self.path / layout.SNAPSHOTS
        return [entry_of(self.manifests, one, self.head, snapshots) for one in self.manifests]


def read_published(store_path: str | Location) -> Published:
    """Read all manifests of a store, which may be written to meanwhile. In an object store one
    listing finds them."""
    path = locate(store_path)
    layout.check_is_store(path)
    # In this order: the topology of each snapshot that is found is known then.
    snapshots = layout.snapshot_ids(path / layout.SNAPSHOTS)
    head = layout.read_head(path)
    snapshots = not_removed(path, snapshots)
    directories = [path / layout.SNAPSHOTS / str(snapshot) for snapshot in snapshots]
    read = partial(_read, topologies=head.described)
    found = dict(zip(snapshots, _side_by_side(read, directories), strict=True))
    manifests = [manifest for manifest in found.values() if isinstance(manifest, Manifest)]
    return Published(
        path.absolute(),
        head,
        {m.snapshot: m for m in sorted(manifests, key=lambda m: m.sequence)},
        {snapshot: why for snapshot, why in found.items() if isinstance(why, str)},
    )


def _side_by_side(read: Callable[[_Place], _Answer], places: Sequence[_Place]) -> list[_Answer]:
    is_remote = any(isinstance(place, ObjectPath) for place in places)
    return [*side_by_side(read, places, _OBJECT_READER_COUNT if is_remote else _READER_COUNT)]


def expected_of(head: Head) -> Expected:
    """Return what tasks need for a verdict on any snapshot of a store (``verdict_for``)."""
    topologies = {
        topology: Topology(
            sorted(description.processes),
            [(channel.source, channel.target) for channel in description.channels],
            list(file_names(description, is_full=True)),
            list(file_names(description, is_full=False)),
        )
        for topology, description in head.described.items()
    }
    return Expected(FORMAT, MANIFEST, SEALED_BYTES_MAX, topologies)


def read_complete(path: str | Location) -> Published:
    """Read all manifests of a store that something is compared with: one at least, none damaged."""
    published = read_published(path)
    for snapshot in published.damages:
        raise published.damage(snapshot)
    if not published.manifests:
        raise UsageError(
            f"the store {path} holds no snapshot yet: there is nothing to compare", path=path
        )
    return published


def _read(directory: Location, topologies: Mapping[str, Description]) -> Manifest | str | None:
    """Return a manifest, what is wrong with it, or None if its snapshot was dropped meanwhile."""
    try:
        return layout.read_published(directory, topologies)
    except Damaged as error:
        return str(error)


def is_apart(out: Location, other: Location) -> bool:
    """Return whether neither directory is in the other."""
    inner, outer = (one if isinstance(one, ObjectPath) else one.resolve() for one in (out, other))
    return not (_is_below(inner, outer) or _is_below(outer, inner))


def _is_below(place: Location, above: Location) -> bool:
    """Return whether a place is another one, or in it."""
    while place != above:
        if place == place.parent:
            return False
        place = place.parent
    return True


def while_published(path: Location, work: Callable[[Published], _Answer]) -> _Answer:
    """Return the result of `work`, which must not read the store later. If files disappeared
    because of a drop or compaction in the store, the manifests have changed, and the work is
    repeated."""
    published = read_published(path)
    for _ in range(_ATTEMPT_COUNT - 1):
        try:
            return work(published)
        except Damaged:
            now = read_published(path)
            if all(now.manifests.get(one) == known for one, known in published.manifests.items()):
                raise
            published = now
    return work(published)


class Group(msgspec.Struct, frozen=True):
    """The fragments of one snapshot. `chains` has for each process the fragments that are its share
    together, the oldest first, each with the changes since the one before; `damages` why a share
    cannot be read. The topology is None if none can."""

    snapshot: SnapshotId
    epoch: int
    topology: FragmentTopology | None
    chains: dict[ProcessId, tuple[FragmentManifest, ...]]
    damages: dict[ProcessId, str]

    @property
    def fragments(self) -> dict[ProcessId, FragmentManifest]:
        """The fragments of this snapshot that can be read, by process."""
        return {process: chain[-1] for process, chain in self.chains.items()}

    @property
    def described(self) -> FragmentTopology:
        """The topology, if a fragment can be read."""
        assert self.topology is not None, "none of it can be read"
        return self.topology

    @property
    def topology_hash(self) -> str:
        """The hash of that."""
        return self.described.description.hash

    @property
    def run(self) -> str | None:
        """The run of the system that it is of, if a fragment can be read."""
        return next((one.run for one in self.fragments.values()), None)

    @property
    def recorded_at(self) -> float | None:
        """When the first process recorded its state, in seconds since 1970, if any did."""
        return min((one.recorded_at for one in self.fragments.values()), default=None)

    @property
    def completed_at(self) -> float | None:
        """When the last fragment was complete, in seconds since 1970, if any is."""
        return max((one.completed_at for one in self.fragments.values()), default=None)


def group_fragments(directory: str | Location, *, epoch: int | None = None) -> list[Group]:
    """Return the fragments in a directory by snapshot, in the order of epochs and numbers."""
    directory = locate(directory)
    places = places_of(directory, epoch)
    topologies = read_topologies(directory)
    read = partial(_read_fragment, directory, topologies=topologies)
    manifests = zip(places, _side_by_side(read, places), strict=True)
    found = {place: manifest for place, manifest in manifests if manifest is not None}
    ordered = sorted(found, key=lambda p: (p.epoch, p.snapshot.number, p.snapshot, p.process))
    groups = itertools.groupby(ordered, key=lambda place: (place.epoch, place.snapshot))
    return [_group(list(some), found, topologies) for _, some in groups]


def places_of(directory: str | Location, epoch: int | None) -> list[FragmentPlace]:
    """Return where the fragments are, of an epoch or of all, at least one."""
    places = [p for p in find_fragments(locate(directory)) if epoch in (None, p.epoch)]
    if not places:
        of_epoch = "" if epoch is None else f" of epoch {epoch}"
        command = shell_command("run", "SYSTEM", "--fragment-dir", directory)
        raise UsageError(f"{directory} holds no fragments{of_epoch}: write them with '{command}'")
    return places


def _read_fragment(
    directory: Location, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> Found | None:
    """Return a manifest, what is wrong with it, or None if it was removed meanwhile."""
    try:
        return read_fragment(directory, place, topologies)
    except (Damaged, StoreError) as error:  # also one that a newer version wrote
        return str(error) if layout.is_published_at(place.path(directory)) else None


def _group(
    places: Sequence[FragmentPlace],
    found: Mapping[FragmentPlace, Found],
    topologies: Mapping[str, FragmentTopology],
) -> Group:
    chains: dict[ProcessId, tuple[FragmentManifest, ...]] = {}
    damages: dict[ProcessId, str] = {}
    for place in places:
        chain = _chain(place, found)
        if isinstance(chain, str):
            damages[place.process] = chain
        else:
            chains[place.process] = chain
    whole = [chain[-1] for chain in chains.values()]
    readable = [*whole, *(one for p in places if isinstance(one := found[p], FragmentManifest))]
    topology = topologies[readable[0].topology] if readable else None
    return Group(places[0].snapshot, places[0].epoch, topology, chains, damages)


def _chain(
    place: FragmentPlace, found: Mapping[FragmentPlace, Found]
) -> tuple[FragmentManifest, ...] | str:
    """Return the chain of fragments that is the share of a process, or why it is broken."""
    links: list[FragmentManifest] = []
    seen: set[FragmentPlace] = set()
    link: FragmentPlace | None = place
    while link is not None:
        one = found.get(link)
        if isinstance(one, str):
            return one
        if (
            one is None
            or link in seen
            or len(links) == _LINK_COUNT_MAX
            or any((one.topology, one.run) != (last.topology, last.run) for last in links[-1:])
        ):
            return (
                f"the fragment of {place.process} holds only the changes since {link.snapshot}, "
                "and its fragment of that snapshot is missing"
            )
        links.append(one)
        seen.add(link)
        base = one.base
        link = None if base is None else FragmentPlace(place.epoch, base, place.process)
    return tuple(reversed(links))
