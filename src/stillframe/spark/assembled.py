"""The store that fragments are assembled into: it is no system's, and holds nothing else."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.spark.gathering import Group
from stillframe.spark.manifests import Published, read_published
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
from stillframe.store.seal import FORMAT, seal
from stillframe.store.topologies import changed


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `ASSEMBLED`: it says that a store is one that fragments were assembled
    into."""

    format: int = FORMAT


def check_apart(directory: Path, out: Path) -> None:
    """Refuse a store among the fragments in `directory`, or around them.

    Raises:
        UsageError: `out` is there.
    """
    inner, outer = out.resolve(), directory.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise UsageError(
            f"the store cannot be in {out}: that is among the fragments in {directory} or around "
            "them; give a directory of its own"
        )


@contextlib.contextmanager
def writing(out: Path, groups: Sequence[Group]) -> Iterator[Published]:
    """Be the only one who writes to the store `out` while the body runs; it gets what is there.

    Args:
        out: a new directory, or the store of an earlier time.
        groups: what will be added, in order; their topologies are known there then.

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
            if not (out / HEAD).exists():
                # First of all: without it a crash would leave a store of another kind.
                replace_durably(out / ASSEMBLED, seal(_Mark()))
                present = groups[-1].described
                head = Head(reference=present.reference, description=present.description)
                make_store(out, head)
            elif not (out / ASSEMBLED).exists():
                raise UsageError(
                    f"{out} is a store of another kind: fragments are assembled into one of their "
                    "own; give a new directory"
                )
            remove_partial(out)
            published = read_published(out)
            for why in published.damages.values():
                raise Damaged(why)
            if published.head.restored_from is not None:
                raise UsageError(
                    f"a system went on from the store {out}, which has snapshots of its own since: "
                    "give a new directory"
                )
            _put_head(out, published, groups)
        yield read_published(out)
    finally:
        os.close(lock)


def _put_head(out: Path, published: Published, groups: Sequence[Group]) -> None:
    """Let the head of the store name all topologies, the one of the newest epoch as the present."""
    head, newest = published.head, groups[-1]
    topologies = {group.described.description.hash: group.described for group in groups}
    used = {m.topology for m in published.manifests.values()} | topologies.keys()
    present, reference = head.description, head.reference
    if newest.epoch >= head.epoch:
        present, reference = newest.described.description, newest.described.reference
    for description in (*(t.description for t in topologies.values()), present):
        head = changed(head, description, used)
    epoch = max(head.epoch, newest.epoch)
    head = msgspec.structs.replace(head, epoch=epoch, reference=reference)
    if head != published.head:
        replace_durably(out / HEAD, seal(head))
