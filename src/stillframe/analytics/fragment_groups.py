"""The fragments of snapshots in a directory, and which of them are snapshots together.

Manifests are read here, on the driver, as in ``manifests``. They have the counts of the channels,
so that contradictions are found before a table is read.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from stillframe.analytics.manifests import READER_COUNT
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.channel_accounting import imbalance
from stillframe.durable_files import local_path
from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.fragments import (
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    find_fragments,
    read_fragment,
    read_topologies,
)
from stillframe.store.manifest import CHAIN_LENGTH_MAX
from stillframe.topology import Description

_LINK_COUNT_MAX = 8 * CHAIN_LENGTH_MAX
"""No process writes so many incremental fragments in a row."""
Found = FragmentManifest | str
"""A fragment, or what is wrong with it."""


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
        assert self.topology is not None, "nothing of it can be read"
        return self.topology

    @property
    def topology_hash(self) -> str:
        """The hash of that."""
        return self.described.description.hash

    @property
    def recorded_at(self) -> float | None:
        """When the first process recorded its state, in seconds since 1970, if any did."""
        return min((one.recorded_at for one in self.fragments.values()), default=None)

    @property
    def completed_at(self) -> float | None:
        """When the last fragment was complete, in seconds since 1970, if any is."""
        return max((one.completed_at for one in self.fragments.values()), default=None)


class GroupVerdict(msgspec.Struct, frozen=True):
    """Whether fragments are a snapshot: `verdict` is CONSISTENT, INCOMPLETE or INCONSISTENT.

    `missing` are the processes whose fragments are absent or damaged, `late` those whose fragments
    were complete after the deadline; `why` explains the verdict to people.
    """

    verdict: str
    missing: tuple[ProcessId, ...]
    late: tuple[ProcessId, ...]
    why: str

    @property
    def is_consistent(self) -> bool:
        """Whether they are a snapshot."""
        return self.verdict == CONSISTENT

    def refused(self, why: str) -> "GroupVerdict":
        """Return the verdict on one that a store cannot take, whatever its fragments are."""
        return msgspec.structs.replace(self, verdict=INCOMPLETE, why=why)


Outcomes = list[tuple[Group, GroupVerdict]]


def group_fragments(directory: Path, *, epoch: int | None = None) -> list[Group]:
    """Return the fragments in a directory by snapshot, in the order of epochs and numbers."""
    places = places_of(directory, epoch)
    topologies = read_topologies(directory)
    with ThreadPoolExecutor(READER_COUNT) as pool:
        read = partial(_read, directory, topologies=topologies)
        found = {
            place: manifest
            for place, manifest in zip(places, pool.map(read, places), strict=True)
            if manifest is not None
        }
    by_snapshot: dict[tuple[int, int, SnapshotId], list[FragmentPlace]] = {}
    for place in found:
        key = place.epoch, place.snapshot.number, place.snapshot
        by_snapshot.setdefault(key, []).append(place)
    return [_group(by_snapshot[key], found, topologies) for key in sorted(by_snapshot)]


def places_of(directory: Path, epoch: int | None) -> list[FragmentPlace]:
    """Return where the fragments are, of an epoch or of all, at least one."""
    places = [p for p in find_fragments(local_path(directory)) if epoch in (None, p.epoch)]
    if not places:
        of_epoch = "" if epoch is None else f" of epoch {epoch}"
        raise UsageError(
            f"{directory} holds no fragments{of_epoch}: let a system write them with 'stillframe "
            f"run SYSTEM --fragments {directory}'"
        )
    return places


def is_after(group: Group, earlier: Group) -> bool:
    """Return whether all processes recorded `group` after `earlier`: then their cuts do not
    cross."""
    before = earlier.fragments
    return all(
        process not in before or one.moment_s > before[process].moment_s
        for process, one in group.fragments.items()
    )


def classify(group: Group, *, timeout_s: float) -> GroupVerdict:
    """Return the verdict on a group; a fragment is late that was complete `timeout_s` after the
    first process recorded its state."""
    if group.topology is None:
        why = "; ".join(group.damages.values())
        return GroupVerdict(INCOMPLETE, tuple(sorted(group.damages)), (), why)
    description = group.topology.description
    missing = tuple(p for p in sorted(description.processes) if p not in group.fragments)
    deadline = (group.recorded_at or 0.0) + timeout_s
    late = tuple(sorted(p for p, one in group.fragments.items() if one.completed_at > deadline))
    if contradiction := next(_contradictions(group, description), None):
        return GroupVerdict(INCONSISTENT, missing, late, contradiction)
    if missing:
        lost = [p for p in missing if p not in group.damages]
        why = "; ".join(
            ([f"there is no fragment of {', '.join(lost)}"] if lost else [])
            + [group.damages[p] for p in missing if p in group.damages]
        )
        return GroupVerdict(INCOMPLETE, missing, late, why)
    return GroupVerdict(CONSISTENT, (), late, "")


def drop_duplicates(outcomes: Outcomes) -> Outcomes:
    """Leave of consistent snapshots with one number only that of the newest epoch consistent: in a
    store numbers are unique."""
    newest = {group.snapshot.number: group.epoch for group, one in outcomes if one.is_consistent}
    found: Outcomes = []
    for group, verdict in outcomes:
        epoch = newest.get(group.snapshot.number, group.epoch)
        if verdict.is_consistent and group.epoch != epoch:
            verdict = verdict.refused(  # noqa: PLW2901 - the same group, with a worse verdict
                f"epoch {epoch} gave the same number again: assemble this one with --epoch "
                f"{group.epoch}, into a directory of its own"
            )
        found.append((group, verdict))
    return found


def _contradictions(group: Group, description: Description) -> Iterator[str]:
    fragments = group.fragments.values()
    for what, names in (
        ("topologies", {one.topology for one in fragments}),
        ("runs of the system, which began anew", {one.run for one in fragments}),
    ):
        if len(names) > 1:
            yield f"its fragments are of different {what}"
            return
    for channel in description.channels:
        source, target = (group.fragments.get(p) for p in (channel.source, channel.target))
        if source is None or target is None:
            continue
        received = target.received[channel.source]
        counts = source.sent[channel.target], received.count, received.recorded_count
        if why := imbalance(channel, *counts):
            yield why


def _read(
    directory: Path, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> Found | None:
    """Return a manifest, what is wrong with it, or None if it was removed meanwhile."""
    try:
        return read_fragment(directory, place, topologies)
    except (Damaged, StoreError) as error:  # also one that a newer version wrote
        return str(error) if place.path(directory).is_dir() else None


def _group(
    places: Iterable[FragmentPlace],
    found: Mapping[FragmentPlace, Found],
    topologies: Mapping[str, FragmentTopology],
) -> Group:
    chains: dict[ProcessId, tuple[FragmentManifest, ...]] = {}
    damages: dict[ProcessId, str] = {}
    ordered = sorted(places, key=lambda place: place.process)
    for place in ordered:
        chain = _chain(place, found)
        if isinstance(chain, str):
            damages[place.process] = chain
        else:
            chains[place.process] = chain
    whole = [chain[-1] for chain in chains.values()]
    readable = [*whole, *(one for p in ordered if isinstance(one := found[p], FragmentManifest))]
    topology = topologies[readable[0].topology] if readable else None
    return Group(ordered[0].snapshot, ordered[0].epoch, topology, chains, damages)


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
                f"the fragment of {place.process} holds what changed since {link.snapshot}, and "
                "its fragment of that is not there"
            )
        links.append(one)
        seen.add(link)
        base = one.base
        link = None if base is None else FragmentPlace(place.epoch, base, place.process)
    return tuple(reversed(links))
