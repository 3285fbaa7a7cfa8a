"""The store that fragments are assembled into: it is no system's, and holds nothing else."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stillframe.analytics.fragment_groups import Group
from stillframe.analytics.manifests import Published, read_published
from stillframe.errors import Damaged, UsageError
from stillframe.local_path import local_path
from stillframe.store.disk import replace_durably
from stillframe.store.manifest import Head
from stillframe.store.opening import (
    ASSEMBLED,
    HEAD,
    check_free,
    explained,
    make_store,
    remove_partial,
    take_lock,
)
from stillframe.store.seal import FORMAT, read_sealed, seal
from stillframe.store.topologies import changed


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `ASSEMBLED`: it says that a store is one that fragments were assembled into.

    Attributes:
        format: of this file.
        epoch: of the store, as long as no system goes on from it.
        runs: epoch -> the name of the run that its snapshots are of.
    """

    format: int = FORMAT
    epoch: int = 0
    runs: dict[int, str] = {}


def check_apart(directory: Path, out: Path) -> None:
    """Refuse a store among the fragments in `directory`, or around them.

    Raises:
        UsageError: `out` is there.
    """
    inner, outer = local_path(out).resolve(), directory.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise UsageError(
            f"the store cannot be in {out}: that is among the fragments in {directory} or around "
            "them; give a directory of its own"
        )


@contextlib.contextmanager
def exclusive_writer(
    out: Path, groups: Sequence[Group], good: Sequence[Group]
) -> Iterator[tuple[Published, Mapping[int, str]]]:
    """Be the only one who writes to the store `out` while the body runs.

    The body gets what is there, and of each epoch which run its snapshots are of. When it is done,
    the store says where a restore goes back to.

    Args:
        out: a new directory, or the store of an earlier time.
        groups: all that there is, in order.
        good: those that may be added; their topologies are known there then.

    Raises:
        UsageError: `out` is something else, or a system went on from it.
        Damaged: something in it was changed.
        Unavailable: somebody else is writing there.
        StoreError: it cannot be read or written.
    """
    with explained(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
        check_free(out)
        lock = take_lock(out)
    try:
        with explained(out, "written"):
            mark = _mark(out)
            if (out / HEAD).exists() and read_sealed(out / HEAD, Head).epoch > mark.epoch:
                raise UsageError(
                    f"a system went on from the store {out}, which has snapshots of its own since: "
                    "give a new directory"
                )
            runs = dict(mark.runs)
            for group in good:
                run = next(one.run for one in group.fragments.values())
                runs.setdefault(group.epoch, run)
            epoch = max(mark.epoch, *(group.epoch for group in groups if group.fragments))
            # First of all: without it a crash would leave a store of another kind.
            replace_durably(out / ASSEMBLED, seal(_Mark(epoch=epoch, runs=runs)))
            if not (out / HEAD).exists():
                present = good[-1].described
                head = Head(reference=present.reference, description=present.description)
                make_store(out, head)
            remove_partial(out)
            published = read_published(out)
            for why in published.damages.values():
                raise Damaged(why)
            _put_topologies(out, published.head, good)
        yield read_published(out), runs
        with explained(out, "written"):
            _put_epoch(out, epoch, groups)
    finally:
        os.close(lock)


def _mark(out: Path) -> _Mark:
    """Return what `out` says of itself, if it says so.

    Raises:
        UsageError: it is a store, and none of these.
        Damaged: it was changed.
    """
    if (out / ASSEMBLED).exists():
        return read_sealed(out / ASSEMBLED, _Mark)
    if (out / HEAD).exists():
        raise UsageError(
            f"{out} is a store of another kind: fragments are assembled into one of their own; "
            "give a new directory"
        )
    return _Mark()


def _put_topologies(out: Path, before: Head, good: Sequence[Group]) -> None:
    """Let the head of the store name all topologies that snapshots will be of."""
    new = {group.topology_hash: group.described.description for group in good}
    used = {d.hash for d in (*before.former, before.description)} | new.keys()
    head = before
    for description in (*new.values(), before.description):
        head = changed(head, description, used)
    if head != before:
        replace_durably(out / HEAD, seal(head))


def _put_epoch(out: Path, epoch: int, groups: Sequence[Group]) -> None:
    """Let the store be in the last epoch of which anything is known, with the topology of its
    newest snapshot, and say from which snapshot a system goes on: the newest restore point of that
    epoch; or what the epoch began from; or the newest before that."""
    published = read_published(out)
    manifests = published.manifests
    newest = max(manifests.values(), key=lambda m: (m.epoch, m.sequence), default=None)
    if newest is None:
        return
    began_from = {g.epoch: one.began_from for g in groups for one in g.fragments.values()}
    limit = began_from.get(epoch)
    points = [
        m
        for m in manifests.values()
        if m.is_restore_point and (m.epoch == epoch or limit is None or m.sequence <= limit.number)
    ]
    point = max(points, key=lambda m: (m.epoch, m.sequence), default=None)
    if limit in manifests and (point is None or point.epoch < epoch):
        point = manifests[limit]
    head = published.head
    used = {manifest.topology for manifest in manifests.values()}
    described = published.description(newest.snapshot)
    references = {g.topology_hash: g.described.reference for g in groups if g.topology is not None}
    head = msgspec.structs.replace(
        changed(head, described, used),
        epoch=epoch,
        reference=references.get(described.hash, head.reference),
        restored_from=None if point is None else point.snapshot,
    )
    if head != published.head:
        replace_durably(out / HEAD, seal(head))
