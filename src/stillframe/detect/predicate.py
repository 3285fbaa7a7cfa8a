"""Stable predicates on a snapshot: termination, deadlock, conservation, functions, and SQL by
DuckDB.

Termination: every process is passive, and no message is in transit. A passive process acts only
when it receives (Dijkstra & Scholten, *Termination Detection for Diffusing Computations*, 1980), so
none of them ever will.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import pyarrow as pa

from stillframe.detect.conservation import Number, Places, find_loss, places_of, total
from stillframe.detect.deadlock import find_deadlock
from stillframe.detect.view import View, is_passive, view_of, yes_or_no
from stillframe.detect.wait_for_graph import deadlock_text
from stillframe.errors import StoreError, Unavailable, UsageError
from stillframe.imports import add_cwd_to_path, load_function, load_topology
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology


class Activity(msgspec.Struct, frozen=True):
    """Processes that are active, and channels with the number of messages in transit."""

    processes: tuple[ProcessId, ...]
    channels: dict[Channel, int]

    def __str__(self) -> str:
        active = [f"active: {', '.join(self.processes)}"] if self.processes else []
        counts = ", ".join(f"{channel} {count}" for channel, count in self.channels.items())
        return "; ".join([*active, *([f"messages on their way: {counts}"] if counts else [])])


def find_activity(view: View) -> Activity | None:
    """Return the activity in a snapshot, or None if the computation has terminated. Raises an
    ApplicationError if a process gives an invalid answer."""
    active = tuple(
        name
        for name, process in view.processes.items()
        if not is_passive(process, f"process {name}", view.snapshot)
    )
    channels = {channel: len(found) for channel, found in view.channels.items() if found}
    return Activity(active, channels) if active or channels else None


NO_DEADLOCK = "no processes keep each other blocked"


class Verdict(msgspec.Struct, frozen=True):
    """Whether a predicate holds in a snapshot, and a sentence for the user."""

    holds: bool
    sentence: str


StablePredicate = Callable[[View], Verdict]
"""Once it holds it must hold for ever, as long as the system is not restored: then what holds in a
snapshot holds now (Chandy & Lamport 1985, section 4)."""


def termination(view: View) -> Verdict:
    """Return whether the system has terminated: all processes are passive, and all channels
    empty."""
    activity = find_activity(view)
    return Verdict(
        activity is None, str(activity or "every process is passive, nothing on its way")
    )


def deadlock(view: View) -> Verdict:
    """Return whether processes keep each other blocked for ever."""
    found = find_deadlock(view)
    if found is None:
        return Verdict(holds=False, sentence=NO_DEADLOCK)
    among = {name for ring in found.rings for name in ring.processes}
    behind = [name for name in found.processes if name not in among]
    return Verdict(holds=True, sentence=deadlock_text([str(ring) for ring in found.rings], behind))


def loss_against(expected: Mapping[str, Mapping[str, Number]]) -> StablePredicate:
    """Return the predicate that there is less or more of something than `expected`, which is what
    ``conservation.places_of`` said of a snapshot in which nothing was lost."""
    amounts = ", ".join(f"{total(places)} {quantity}" for quantity, places in expected.items())

    def loss(view: View) -> Verdict:
        found = find_loss(view, expected)
        return Verdict(bool(found), "; ".join(map(str, found)) or f"all is there: {amounts}")

    return loss


def asking(function: Callable[[View], bool], name: str) -> StablePredicate:
    """Return a predicate that asks a function of yours, which people know by `name`."""

    def own(view: View) -> Verdict:
        found = yes_or_no(function, view, name, f"on snapshot {view.snapshot}")
        return Verdict(found, f"{name} says {found}")

    return own


class Evaluation(msgspec.Struct, frozen=True):
    """A verdict on one snapshot. Times are seconds since 1970 (``model.Snapshot``)."""

    snapshot: SnapshotId
    epoch: int
    initiated_at: float
    completed_at: float
    verdict: Verdict


def not_stable(evaluations: list[Evaluation]) -> tuple[Evaluation, Evaluation] | None:
    """Return two evaluations that show that a predicate is not stable; None if none do.

    It held in the first, and not in the second, whose snapshot was initiated in the same epoch when
    the first was complete. Snapshots that overlap show nothing: neither comes after the other.
    """
    first_held: dict[int, Evaluation] = {}
    for seen in evaluations:
        if seen.verdict.holds:
            before = first_held.get(seen.epoch)
            if before is None or seen.completed_at < before.completed_at:
                first_held[seen.epoch] = seen
    for seen in evaluations:
        before = first_held.get(seen.epoch)
        if seen.verdict.holds or before is None:
            continue
        if seen.initiated_at >= before.completed_at:
            return before, seen
    return None


_REFERENCE = re.compile(r"[\w.]+:\w+")
_SQL = re.compile(r"(?:select|with|from)\b|\(|--|/\*", re.IGNORECASE)


def is_sql(predicate: str) -> bool:
    """Return whether a predicate is SQL, and no name."""
    text = predicate.strip()
    return _REFERENCE.fullmatch(text) is None and _SQL.match(text) is not None


def evaluate_sql(sql: str, snapshot: SnapshotId, tables: Mapping[str, pa.Table]) -> Verdict:
    """Return the result of a predicate in SQL, which gives one row with one column, true or false,
    on a snapshot whose `tables` are those of ``store.tables``.

    Raises a UsageError if it cannot be executed, or gives something else, and Unavailable if DuckDB
    is not installed.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "predicates in SQL need DuckDB: install it with pip install 'stillframe[sql]'"
        ) from error
    try:
        with duckdb.connect() as database:
            for name, table in tables.items():
                database.register(name, table)
            rows = database.execute(sql).fetchall()
    except duckdb.Error as error:
        raise UsageError(
            f"the predicate {sql!r} cannot be asked of snapshot {snapshot}: {error}"
        ) from error
    if rows == [(None,)]:
        raise UsageError(
            f"the predicate {sql!r} gives NULL on snapshot {snapshot}: a sum over no rows is NULL, "
            "write coalesce(sum(...), 0)"
        )
    if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], bool):
        shown = ", ".join(map(repr, rows[:3])) or "no row"
        raise UsageError(
            f"the predicate {sql!r} gives {shown} on snapshot {snapshot}: it must give one row "
            "with one column that is true or false"
        )
    return Verdict(holds=rows[0][0], sentence=f"{sql} is {str(rows[0][0]).lower()}")


# --- by name, asked of the snapshots of a store

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
