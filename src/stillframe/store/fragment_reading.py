"""Reads what processes wrote of snapshots (``fragments``), from whoever it comes."""

import re
from collections.abc import Mapping
from pathlib import Path

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.store.disk import OF_A_FRAGMENT, PUT_BACK
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    Life,
    fragment_files,
)
from stillframe.store.manifest import HASH, MANIFEST
from stillframe.store.opening import explained, listed
from stillframe.store.seal import read_sealed
from stillframe.topology import Description

_EPOCH = re.compile(r"e([1-9]\d{0,8})")
_COUNT_MAX = 2**62
_SECONDS_MAX = 2**36
"""No clock says more, and no process takes longer."""
_NUMBER_MAX = 10**15
"""Of a snapshot: what goes on from there still has numbers to give."""
_RUN_LENGTH_MAX = 64


def check_own_free(directory: Path, life: Life) -> None:
    """Check that a process has written nothing in `directory` in its epoch, in another run.

    Raises:
        UsageError: it has.
        StoreError: the directory cannot be read.
    """
    own = directory / f"e{life.epoch}" / life.process
    with explained(own, "read"):
        there = next(iter(_visible(own)), None)
    if there is not None:
        raise UsageError(
            f"{there} is of another run of epoch {life.epoch}, and nothing there is overwritten: "
            "give --fragments another directory"
        )


def check_fragments_free(directory: Path, epoch: int) -> None:
    """Check that processes may write fragments of epochs from `epoch` on into `directory`.

    Raises:
        UsageError: it holds some already, or something else.
    """
    newest = max((place.epoch for place in fragment_places(directory)), default=0)
    if newest >= epoch:
        raise UsageError(
            f"{directory} holds fragments of epoch {newest} already, and nothing there is "
            f"overwritten: this system begins epoch {epoch}; give --fragments another directory"
        )


def fragment_places(directory: Path) -> list[FragmentPlace]:
    """Return where there are fragments in `directory`, by epoch, snapshot and process; none if
    there is no such directory.

    Raises:
        UsageError: it is a file, or holds something else.
        StoreError: it cannot be read.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: fragments are in a directory")
    found: list[FragmentPlace] = []
    foreign: list[Path] = []
    with explained(directory, "read"):
        for of_epoch in _visible(directory):
            epoch = _EPOCH.fullmatch(of_epoch.name)
            if epoch is None or of_epoch.is_file():
                foreign += [of_epoch] if of_epoch.name != TOPOLOGIES else []
                continue
            for of_process in _visible(of_epoch):
                foreign += [of_process] if of_process.is_file() else []
                for path in _visible(of_process):
                    place = _place(int(epoch[1]), path)
                    if place is None:
                        foreign.append(path)
                    else:
                        found.append(place)
    if foreign:
        raise UsageError(
            f"{directory} holds what is no fragment: {listed(sorted(map(str, foreign)))}: move it "
            "away, or give the directory that 'stillframe run --fragments' wrote"
        )
    return sorted(found)


def read_topologies(directory: Path) -> dict[str, FragmentTopology]:
    """Return what the fragments in `directory` are parts of, by hash.

    Raises:
        Damaged: a file is not what was written.
        StoreError: it cannot be read.
    """
    found = {}
    topologies = directory / TOPOLOGIES
    with explained(topologies, "read"):
        paths = _visible(topologies)
    for path in paths:
        topology = read_sealed(path, FragmentTopology)
        if path.name != f"{topology.description.hash}.json":
            raise Damaged(f"{path} is of another topology than its name says: {PUT_BACK}")
        _check_names(path, topology.description)
        found[topology.description.hash] = topology
    return found


def read_fragment(
    directory: Path, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> FragmentManifest:
    """Read the manifest of a fragment.

    Raises:
        Damaged: it is not what was written, or belongs somewhere else.
        StoreError: it cannot be read, or a newer version of Stillframe wrote it.
    """
    path = place.path(directory) / MANIFEST
    manifest = read_sealed(path, FragmentManifest, advice=OF_A_FRAGMENT)
    if FragmentPlace(manifest.epoch, manifest.snapshot, manifest.process) != place:
        raise Damaged(
            f"{path} is of another process, snapshot or epoch than its place says: put it back "
            "where it was"
        )
    if manifest.topology not in topologies:
        raise Damaged(
            f"{path} is part of a topology that is not in {directory / TOPOLOGIES}: put that file "
            "back from a copy"
        )
    description = topologies[manifest.topology].description
    if not _is_possible(manifest, description):
        raise Damaged(f"{path} says what cannot be of {place.process}: {OF_A_FRAGMENT}")
    return manifest


def _check_names(path: Path, description: Description) -> None:
    """Check that what is called as `description` says can be files and directories.

    Raises:
        Damaged: it cannot; `path`, where it is said, is named.
    """
    try:
        for process, kind in description.processes.items():
            check_process_id(process)
            fragment_files(description, process, is_whole=True)
            if kind not in description.states:
                raise UsageError(f"nothing is known of the class of process {process}")
        for channel in description.channels:
            description.check_process(channel.source)
            description.check_process(channel.target)
    except (Damaged, UsageError) as error:
        raise Damaged(f"{path} describes what cannot be: {error}: {PUT_BACK}") from error


def _place(epoch: int, path: Path) -> FragmentPlace | None:
    """Return which fragment the directory `path` is; None if it is none."""
    try:
        process, snapshot = check_process_id(path.parent.name), SnapshotId.parse(path.name)
    except UsageError:
        return None
    # 'P1-017' would be a second name of P1-17.
    is_one = str(snapshot) == path.name and not path.is_file()
    is_one = is_one and snapshot.number <= _NUMBER_MAX
    return FragmentPlace(epoch, snapshot, process) if is_one else None


def _is_possible(manifest: FragmentManifest, description: Description) -> bool:
    process = manifest.process
    if process not in description.processes:
        return False
    counts = [*manifest.sent.values()]
    for received in manifest.received.values():
        counts += [received.count, received.recorded_count]
    times = (
        *(manifest.moment_s, manifest.recorded_at, manifest.completed_at),
        *(manifest.pause_s, manifest.capture_s),
    )
    base, began_from = manifest.base, manifest.began_from
    # Names are compared with what there may be, never used to make a path: '../x' leads nowhere.
    return (
        (base is None or _can_be_base(base, manifest, description))
        and (began_from is None or _is_id(began_from))
        and 0 < len(manifest.run) <= _RUN_LENGTH_MAX
        and tuple(sorted(manifest.sent)) == tuple(sorted(description.outgoing(process)))
        and tuple(sorted(manifest.received)) == tuple(sorted(description.incoming(process)))
        and all(0 <= count <= _COUNT_MAX for count in counts)
        and all(0 <= seconds <= _SECONDS_MAX for seconds in times)
        and tuple(record.name for record in manifest.files)
        == fragment_files(description, process, is_whole=base is None)
        and all(record.bytes >= 0 and HASH.fullmatch(record.hash) for record in manifest.files)
    )


def _can_be_base(base: SnapshotId, manifest: FragmentManifest, description: Description) -> bool:
    is_keyed = description.processes[manifest.process] in description.keyed
    return is_keyed and base != manifest.snapshot and _is_id(base)


def _is_id(snapshot: SnapshotId) -> bool:
    try:
        return SnapshotId.parse(str(snapshot)) == snapshot
    except UsageError:
        return False


def _visible(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if not path.name.startswith(".")]
