"""Evaluates stable predicates and conserved quantities in the snapshots of a store."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from stillframe.detect.predicate import (
    Number,
    SqlPredicate,
    StablePredicate,
    Verdict,
    initial_places,
    is_sql,
    load_predicate,
    places_of,
    topology_of_store,
    total,
)
from stillframe.detect.view import SnapshotView, view_of
from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.store.layout import is_published_at
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology

DEFAULT_PREDICATES = ("termination", "deadlock", "loss")
BYTES_MAX = 2**26
"""A larger snapshot is not evaluated automatically: reading it would take too long."""


class PredicateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The predicates in one snapshot: the verdict of each, the total of each conserved quantity,
    and the part of that in channels. An error explains why nothing could be evaluated."""

    snapshot: str
    at: float
    epoch: int
    verdicts: dict[str, Verdict] = {}
    totals: dict[str, Number] = {}
    in_channels: dict[str, Number] = {}
    error: str = ""


class PredicateMonitor:
    """Evaluates the snapshots of one store, open for reading. Slow: to be called in a thread, one
    call at a time. Predicates are named as for ``stillframe detect``; `reference` names the
    topology, None the one that the store names."""

    def __init__(self, store: Store, names: Sequence[str], reference: str | None) -> None:
        self._store = store
        self._names = tuple(names)
        self._reference = reference
        self._topology: Topology | None = None
        self._predicates: dict[str, StablePredicate] = {}
        self._queries: dict[str, SqlPredicate] = {}

    def evaluate(self, snapshot: SnapshotId) -> PredicateStatus | None:
        """Return what is found in a snapshot; None if it does not exist any more."""
        try:
            entry = self._store.entry(snapshot)
        except StillframeError:
            return None
        found: dict[str, Any] = {
            "snapshot": str(snapshot),
            "at": entry.completed_at,
            "epoch": entry.epoch,
        }
        if self._read_bytes(entry) > BYTES_MAX:
            return PredicateStatus(**found, error="too large to be evaluated automatically")
        try:
            return PredicateStatus(**found, **self._evaluate(snapshot))
        except StillframeError as error:
            if not is_published_at(entry.directory):
                return None
            return PredicateStatus(**found, error=str(error))

    def _read_bytes(self, entry: SnapshotEntry) -> int:
        """Return the size of a snapshot together with all that it is based on."""
        sizes: dict[SnapshotId, int] = {}
        unread = [entry]
        while unread:
            one = unread.pop()
            sizes[one.id] = one.bytes
            with contextlib.suppress(StillframeError):
                unread += [self._store.entry(base) for base in one.bases if base not in sizes]
        return sum(sizes.values())

    def _evaluate(self, snapshot: SnapshotId) -> dict[str, Any]:
        topology = self._load(snapshot)
        view = view_of(self._store.load(snapshot), topology)
        places = places_of(view)
        channels = {str(channel) for channel in view.channels}
        verdicts = {}
        for name in self._names:
            if name == "loss" and not places:
                continue  # no process declares what is conserved
            verdicts[name] = self._verdict(name, view, topology)
        return {
            "verdicts": verdicts,
            "totals": {quantity: total(amounts) for quantity, amounts in places.items()},
            "in_channels": {
                quantity: total({p: amount for p, amount in amounts.items() if p in channels})
                for quantity, amounts in places.items()
            },
        }

    def _verdict(self, name: str, view: SnapshotView, topology: Topology) -> Verdict:
        if is_sql(name):
            if name not in self._queries:
                self._queries[name] = SqlPredicate(name)
            tables = self._store.tables(view.snapshot)
            return self._queries[name].evaluate(f"snapshot {view.snapshot}", tables)
        if name not in self._predicates:
            self._predicates[name] = load_predicate(
                name, lambda: initial_places(self._store, topology, self._store.entries())
            )
        return self._predicates[name](view)

    def _load(self, snapshot: SnapshotId) -> Topology:
        expected = self._store.description_of(snapshot).hash
        if self._topology is None or self._topology.description.hash != expected:
            _, self._topology = topology_of_store(self._store, self._reference, expected)
        return self._topology
