"""What stable predicates say of snapshots, and what there is of conserved quantities in them."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from stillframe.detect.loss import Number, places_of, total
from stillframe.detect.predicate import StablePredicate, Verdict
from stillframe.detect.sql import ask, is_sql
from stillframe.detect.view import View, view_of
from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.runtime.judging import places_at_first, predicate_of, topology_of
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

USUAL = ("termination", "deadlock", "loss")
BYTES_MAX = 2**26
"""A larger snapshot is not judged by itself: reading it would take long while nobody asked."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one snapshot.

    `verdicts` has a verdict for each predicate, `totals` how much of each conserved quantity is
    there, and `in_channels` how much of that was on its way; `why_not` says what kept us from it.
    """

    snapshot: str
    at: float
    epoch: int
    verdicts: dict[str, Verdict] = {}
    totals: dict[str, Number] = {}
    in_channels: dict[str, Number] = {}
    why_not: str = ""


class Judge:
    """Judges the snapshots of one store. Slow: to be called in a thread, one call at a time.

    Args:
        store: open for reading.
        names: the predicates, as ``stillframe detect`` has them.
        reference: where the topology is; None: where the store says.
    """

    def __init__(self, store: Store, names: Sequence[str], reference: str | None) -> None:
        self._store = store
        self._names = tuple(names)
        self._reference = reference
        self._topology: Topology | None = None
        self._predicates: dict[str, StablePredicate] = {}

    def judge(self, snapshot: SnapshotId) -> Judged | None:
        """Return what is in a snapshot; None if it is gone."""
        try:
            entry = self._store.entry(snapshot)
        except StillframeError:
            return None
        judged: dict[str, Any] = {"snapshot": str(snapshot), "at": entry.completed_at}
        judged["epoch"] = entry.epoch
        if self._read_bytes(entry) > BYTES_MAX:
            return Judged(**judged, why_not="too large to be judged while nobody asks")
        try:
            return Judged(**judged, **self._findings(snapshot))
        except StillframeError as error:
            if not entry.directory.is_dir():
                return None
            return Judged(**judged, why_not=str(error))

    def _read_bytes(self, entry: Entry) -> int:
        """Return how many bytes it takes to read a snapshot, with those that it is based on."""
        read: dict[SnapshotId, int] = {}
        waiting = [entry]
        while waiting:
            one = waiting.pop()
            read[one.id] = one.bytes
            with contextlib.suppress(StillframeError):
                waiting += [self._store.entry(base) for base in one.bases if base not in read]
        return sum(read.values())

    def _findings(self, snapshot: SnapshotId) -> dict[str, Any]:
        topology = self._load(snapshot)
        view = view_of(self._store.load(snapshot), topology)
        places = places_of(view)
        channels = {str(channel) for channel in view.channels}
        verdicts = {}
        for name in self._names:
            if name == "loss" and not places:
                continue  # nobody says what is conserved
            verdicts[name] = self._verdict(name, view, topology)
        return {
            "verdicts": verdicts,
            "totals": {quantity: total(amounts) for quantity, amounts in places.items()},
            "in_channels": {
                quantity: total({p: amount for p, amount in amounts.items() if p in channels})
                for quantity, amounts in places.items()
            },
        }

    def _verdict(self, name: str, view: View, topology: Topology) -> Verdict:
        if is_sql(name):
            return ask(name, view.snapshot, self._store.tables(view.snapshot))
        if name not in self._predicates:
            self._predicates[name] = predicate_of(
                name, lambda: places_at_first(self._store, topology, self._store.entries())
            )
        return self._predicates[name](view)

    def _load(self, snapshot: SnapshotId) -> Topology:
        expected = self._store.description_of(snapshot).hash
        if self._topology is None or self._topology.description.hash != expected:
            _, self._topology = topology_of(self._store, self._reference, expected)
        return self._topology
