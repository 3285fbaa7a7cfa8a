"""The fragments of snapshots in a directory, and which of them are snapshots together.

Manifests are read here, on the driver, as in ``manifests``; what fragments say of their channels is
in there, so that the books are judged before a table is read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.spark.manifests import READER_COUNT
from stillframe.spark.soundness import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.store.fragments import (
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    fragment_places,
    read_fragment,
    read_topologies,
)
from stillframe.topology import Description


class Group(msgspec.Struct, frozen=True):
    """What there is of one snapshot.

    Attributes:
        snapshot: which.
        epoch: in which it was taken.
        topology: of which it is; None if nothing of it can be read.
        fragments: what can be read, by process.
        damages: what is wrong with what cannot, by process.
    """

    snapshot: SnapshotId
    epoch: int
    topology: FragmentTopology | None
    fragments: dict[ProcessId, FragmentManifest]
    damages: dict[ProcessId, str]

    @property
    def recorded_at(self) -> float:
        """When the first process recorded its state, in seconds since 1970."""
        return min(one.recorded_at for one in self.fragments.values())

    @property
    def completed_at(self) -> float:
        """When the last fragment was complete, in seconds since 1970."""
        return max(one.completed_at for one in self.fragments.values())

    @property
    def bases(self) -> dict[ProcessId, SnapshotId]:
        """The snapshots since which keyed fields hold changes."""
        return {p: one.base for p, one in self.fragments.items() if one.base is not None}


class Judgement(msgspec.Struct, frozen=True):
    """Whether fragments are a snapshot.

    Attributes:
        verdict: CONSISTENT if they are one, else INCOMPLETE or INCONSISTENT.
        missing: the processes whose fragments are not there, or not what was written.
        late: those whose fragments were complete after the time was over.
        why: what is wrong, for people.
    """

    verdict: str
    missing: tuple[ProcessId, ...]
    late: tuple[ProcessId, ...]
    why: str


def gather(
    directory: Path, *, epoch: int | None = None, without: Collection[SnapshotId] = ()
) -> list[Group]:
    """Return what the directory of fragments holds, by epoch and snapshot.

    Args:
        directory: where processes wrote it, or where it was brought together.
        epoch: of which; None for all.
        without: snapshots that are not asked for.

    Raises:
        UsageError: there are no fragments, or something else; or a snapshot has the same number in
            two epochs.
        Damaged: what they are parts of is not what was written.
        StoreError: something cannot be read.
    """
    places = places_of(directory, epoch)
    topologies = read_topologies(directory)
    wanted = [place for place in places if place.snapshot not in without]
    with ThreadPoolExecutor(READER_COUNT) as pool:
        found = pool.map(lambda place: _read(directory, place, topologies), wanted)
        by_group: dict[tuple[int, SnapshotId], dict[ProcessId, FragmentManifest | str]] = {}
        for place, manifest in zip(wanted, found, strict=True):
            if manifest is not None:
                of_group = by_group.setdefault((place.epoch, place.snapshot), {})
                of_group[place.process] = manifest
    return [
        _group(snapshot, number, found_there, topologies)
        for (number, snapshot), found_there in by_group.items()
    ]


def places_of(directory: Path, epoch: int | None) -> list[FragmentPlace]:
    """Return where the fragments are, of an epoch or of all.

    Raises:
        UsageError: there are none, or something else; or a snapshot has the same number in two
            epochs.
        StoreError: the directory cannot be read.
    """
    places = [p for p in fragment_places(directory) if epoch in (None, p.epoch)]
    if not places:
        of_epoch = "" if epoch is None else f" of epoch {epoch}"
        raise UsageError(
            f"{directory} holds no fragments{of_epoch}: let a system write them with 'stillframe "
            f"run SYSTEM --fragments {directory}'"
        )
    _check_epochs(places)
    return places


def judge(group: Group, *, timeout_s: float) -> Judgement:
    """Return whether the fragments of a snapshot are all there and contradict nothing.

    What they are based on is not looked at.

    Args:
        group: the fragments.
        timeout_s: a fragment is late that was complete so long after the first process recorded
            its state, in seconds.
    """
    if group.topology is None:
        why = "; ".join(group.damages.values())
        return Judgement(INCOMPLETE, tuple(sorted(group.damages)), (), why)
    description = group.topology.description
    missing = tuple(p for p in sorted(description.processes) if p not in group.fragments)
    deadline = group.recorded_at + timeout_s
    late = tuple(sorted(p for p, one in group.fragments.items() if one.completed_at > deadline))
    if contradiction := next(_contradictions(group, description), None):
        return Judgement(INCONSISTENT, missing, late, contradiction)
    if missing:
        lost = [p for p in missing if p not in group.damages]
        why = "; ".join(
            ([f"there is no fragment of {', '.join(lost)}"] if lost else [])
            + [group.damages[p] for p in missing if p in group.damages]
        )
        return Judgement(INCOMPLETE, missing, late, why)
    return Judgement(CONSISTENT, (), late, "")


def in_order(
    groups: Iterable[Group], there: Mapping[SnapshotId, str]
) -> tuple[list[Group], dict[SnapshotId, str]]:
    """Return those of consistent groups that can be read with what they are based on, each after
    that, and of the others why they cannot.

    Args:
        groups: the groups.
        there: snapshots that are there already, with the hash of their topology.
    """
    have, pending = dict(there), list(groups)
    ordered: list[Group] = []
    while ready := [group for group in pending if _missing_base(group, have) is None]:
        ordered += ready
        have |= {group.snapshot: _topology(group) for group in ready}
        pending = [group for group in pending if group.snapshot not in have]
    broken = {}
    for group in pending:
        process, base = _missing_base(group, have) or ("", None)
        broken[group.snapshot] = (
            f"the fragment of {process} holds what changed since {base}, which is not there"
        )
    return ordered, broken


def _missing_base(
    group: Group, have: Mapping[SnapshotId, str]
) -> tuple[ProcessId, SnapshotId] | None:
    """Return the first process whose fragment is based on what is not there, and on what."""
    topology = _topology(group)
    return next(((p, b) for p, b in sorted(group.bases.items()) if have.get(b) != topology), None)


def _topology(group: Group) -> str:
    assert group.topology is not None, "a consistent one was read"
    return group.topology.description.hash


def _contradictions(group: Group, description: Description) -> Iterator[str]:
    """Yield what fragments say that cannot be of one snapshot."""
    topologies = {one.topology for one in group.fragments.values()}
    if len(topologies) > 1:
        yield "its fragments are of different topologies"
        return
    for channel in description.channels:
        source, target = (group.fragments.get(p) for p in (channel.source, channel.target))
        if source is None or target is None:
            continue
        sent, received = source.sent[channel.target], target.received[channel.source]
        if sent - received.count != received.recorded_count:
            yield (
                f"channel {channel}: {sent} sent - {received.count} received = "
                f"{sent - received.count}, but {received.recorded_count} messages were recorded"
            )


def _check_epochs(places: Iterable[FragmentPlace]) -> None:
    epochs: dict[SnapshotId, int] = {}
    for place in places:
        if epochs.setdefault(place.snapshot, place.epoch) != place.epoch:
            raise UsageError(
                f"snapshot {place.snapshot} is in the epochs {epochs[place.snapshot]} and "
                f"{place.epoch}: take one of them with --epoch"
            )


def _read(
    directory: Path, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> FragmentManifest | str | None:
    """Return a manifest, what is wrong with it, or None if it was removed meanwhile."""
    try:
        return read_fragment(directory, place, topologies)
    except Damaged as error:
        return str(error) if place.path(directory).is_dir() else None


def _group(
    snapshot: SnapshotId,
    epoch: int,
    found: Mapping[ProcessId, FragmentManifest | str],
    topologies: Mapping[str, FragmentTopology],
) -> Group:
    fragments = {p: one for p, one in sorted(found.items()) if isinstance(one, FragmentManifest)}
    damages = {p: why for p, why in sorted(found.items()) if isinstance(why, str)}
    first = next(iter(fragments.values()), None)
    topology = None if first is None else topologies[first.topology]
    return Group(snapshot, epoch, topology, fragments, damages)
