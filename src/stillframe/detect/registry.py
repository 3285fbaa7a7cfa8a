"""Stable predicates by name, asked of the snapshots of a store."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from stillframe.detect.conservation import Places, places_of
from stillframe.detect.predicate import (
    Evaluation,
    StablePredicate,
    Verdict,
    asking,
    deadlock,
    evaluate_sql,
    is_sql,
    loss_against,
    termination,
)
from stillframe.detect.view import view_of
from stillframe.errors import StoreError, UsageError
from stillframe.imports import add_cwd_to_path, load_function, load_topology
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

SHIPPED = ("termination", "deadlock", "loss")
EXAMPLE = "select sum(balance) < 100 from processes"
Read = TypeVar("Read")
Evaluate = Callable[[Entry], Evaluation]
"""Asks a predicate of one snapshot; raises a StillframeError if it cannot."""


def topology_of_store(store: Store, reference: str | None, expected: str) -> tuple[str, Topology]:
    """Return where the topology with the hash `expected` is (None: where the store says), and the
    topology. Raises a UsageError if nobody says where it is, or it is another one."""
    known = store.reference if reference is None else reference
    if known is None:
        raise UsageError(
            f"the store {store.path} does not say of which topology it is: give "
            "--topology MODULE:TOPOLOGY"
        )
    add_cwd_to_path()
    topology = load_topology(known)
    if topology.description.hash != expected:
        raise UsageError(
            f"the snapshots in {store.path} are of another topology than {known} is now: give the "
            "one that they were taken of with --topology"
        )
    return known, topology


def check_predicate_name(name: str) -> None:
    """Raise a UsageError if no predicate has that name, or your function cannot be imported."""
    if name not in SHIPPED and not is_sql(name):
        _own(name)


def resolve_predicate(name: str, store: Store, load: Callable[[], Topology]) -> Evaluate:
    """Return what asks a predicate of one snapshot of a store after the other.

    `name` is termination, deadlock, loss (against the oldest snapshot of the same topology, of
    which there must be one), MODULE:FUNCTION, or a question in SQL, for which the topology is not
    loaded. Raises as ``check_predicate_name``, and a UsageError if in the oldest snapshot nothing
    is conserved.
    """
    if is_sql(name):
        return lambda entry: _evaluation(
            entry, evaluate_sql(name, entry.id, store.tables(entry.id))
        )
    topology = load()
    predicate = load_predicate(name, lambda: initial_places(store, topology, store.entries()))
    return lambda entry: _evaluation(entry, predicate(view_of(store.load(entry.id), topology)))


def _evaluation(entry: Entry, verdict: Verdict) -> Evaluation:
    return Evaluation(entry.id, entry.epoch, entry.initiated_at, entry.completed_at, verdict)


def load_predicate(name: str, expected: Callable[[], Places]) -> StablePredicate:
    """Return the predicate that is called `name`, which is no question in SQL; `expected` tells
    what there must be of conserved quantities, if that is asked. Raises as
    ``resolve_predicate``."""
    match name:
        case "termination":
            return termination
        case "deadlock":
            return deadlock
        case "loss":
            return loss_against(expected())
    return _own(name)


def initial_places(store: Store, topology: Topology, entries: Iterable[Entry]) -> Places:
    """Return what the oldest snapshot holds of conserved quantities, of those that this code can
    read: see ``migration`` for what a change of it conserves. Raises a UsageError if there is none,
    or nobody has anything in it; another StillframeError if it cannot be read."""

    def places_in(entry: Entry) -> Places | None:
        if store.description_of(entry.id).hash != topology.description.hash:
            return None
        places = places_of(view_of(store.load(entry.id), topology))
        if not places:
            raise UsageError(
                f"in snapshot {entry.id} nobody has anything that is conserved: write 'conserved' "
                "for the processes and messages that do"
            )
        return places

    for entry in sorted(entries, key=lambda entry: (entry.epoch, entry.initiated_at)):
        places = if_present(entry, places_in)
        if places is not None:
            return places
    raise UsageError(f"no snapshot in {store.path} is of this topology any more: take one")


def _own(name: str) -> StablePredicate:
    if ":" not in name:
        raise UsageError(
            f"there is no predicate {name!r}: give one of {', '.join(SHIPPED)}; or "
            "MODULE:FUNCTION, a function of yours that takes a view and returns True or False; or "
            f"a question in SQL, such as {EXAMPLE!r}"
        )
    return asking(load_function(name), name)


def if_present(entry: Entry, read: Callable[[Entry], Read]) -> Read | None:
    """Return what `read` gives for a snapshot; None if it was dropped meanwhile, as ``run --keep``
    does. Raises a StillframeError if it cannot be read."""
    try:
        return read(entry)
    except (UsageError, StoreError):
        if entry.directory.is_dir():
            raise
        return None
