"""Stable predicates on a snapshot: termination, deadlock, conservation, functions, and SQL by
DuckDB.

Termination: every process is passive, and no message is in transit. A passive process acts only
when it receives (Dijkstra & Scholten, *Termination Detection for Diffusing Computations*, 1980), so
none of them ever will.

Deadlock: processes wait for each other, and no message in transit will end that. A process is
blocked if it says so (``Process.waits_for``). A process that is not blocked may still send
anything; so may one whose wait can end. The processes left when that is followed to its end are
deadlocked, in the AND model, the OR model, and any mixture (Knapp 1987, section 2). It is stable:
none of these sends before another of them has.

Loss: there is more or less of a conserved quantity than there should be. Processes and messages
report their amounts (``conserved``). A consistent snapshot counts each amount once: in a process,
or on a channel.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stillframe.detect.view import (
    SnapshotView,
    conserved,
    is_passive,
    view_of,
    waits_for,
    yes_or_no,
)
from stillframe.detect.wait_for_graph import (
    Graph,
    blocked_for_ever,
    deadlock_text,
    ring_text,
    rings,
)
from stillframe.errors import StoreError, Unavailable, UsageError
from stillframe.imports import add_cwd_to_path, load_function, load_topology
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.store.layout import is_published_at
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology
from stillframe.waiting import Waiting

ROUNDING = 1e-9
"""Sums of floating-point numbers are equal if they differ by less than this fraction of the sum of
all absolute amounts. Whole numbers are compared exactly."""

Number = int | float
Places = dict[str, dict[str, Number]]
"""Quantity -> name of the process or channel -> amount."""


class Activity(msgspec.Struct, frozen=True):
    """Processes that are active, and channels with the number of messages in transit."""

    processes: tuple[ProcessId, ...]
    channels: dict[Channel, int]

    def __str__(self) -> str:
        active = f"active: {', '.join(self.processes)}" if self.processes else ""
        counts = ", ".join(f"{channel} {count}" for channel, count in self.channels.items())
        return "; ".join(filter(None, (active, counts and f"messages in transit: {counts}")))


def find_activity(view: SnapshotView) -> Activity | None:
    """Return the activity in a snapshot, or None if the computation has terminated. Raises an
    ApplicationError if a process gives an invalid answer."""
    active = tuple(
        name
        for name, process in view.processes.items()
        if not is_passive(process, f"process {name}", view.snapshot)
    )
    channels = {channel: len(found) for channel, found in view.channels.items() if found}
    return Activity(active, channels) if active or channels else None


class Ring(msgspec.Struct, frozen=True):
    """Processes that keep each other blocked, whatever all others do. `is_cycle`: each waits for
    the next, and the last for the first. Otherwise they are a knot, of processes that wait for
    several others. `waits` are the processes that each one waits for, less those whose message is
    in transit."""

    processes: tuple[ProcessId, ...]
    is_cycle: bool
    waits: dict[ProcessId, Waiting]

    def __str__(self) -> str:
        words = None if self.is_cycle else {name: str(self.waits[name]) for name in self.processes}
        return ring_text(self.processes, words)


class Deadlock(msgspec.Struct, frozen=True):
    """The deadlocked processes, and the rings among them; all others wait for these rings."""

    processes: tuple[ProcessId, ...]
    rings: tuple[Ring, ...]


def find_deadlock(view: SnapshotView) -> Deadlock | None:
    """Return the deadlock in a snapshot, or None if there is none. A message in transit ends the
    wait that it would end when it arrives; so does one from a process that is not blocked itself. A
    request in transit to a blocked process changes nothing: a blocked process sends nothing. Raises
    as ``open_waits``."""
    return deadlock_among(open_waits(view))


def deadlock_among(waits: Mapping[ProcessId, Waiting]) -> Deadlock | None:
    """Return the deadlock among processes with these waits; others are not blocked. None if there
    is none."""
    names = sorted(set(waits).union(*(waiting.processes for waiting in waits.values())))
    numbers = {name: number for number, name in enumerate(names)}
    targets = [waits[name].processes if name in waits else () for name in names]
    graph = Graph(
        [sorted(map(numbers.__getitem__, others)) for others in targets],
        [name in waits and waits[name].needs_all for name in names],
    )
    blocked = blocked_for_ever(graph)
    if not any(blocked):
        return None
    found = []
    for ring in rings(graph, blocked):
        processes = tuple(names[number] for number in ring.processes)
        found.append(Ring(processes, ring.is_cycle, {name: waits[name] for name in processes}))
    deadlocked = tuple(name for name, is_blocked in zip(names, blocked, strict=True) if is_blocked)
    return Deadlock(deadlocked, tuple(found))


def open_waits(view: SnapshotView) -> dict[ProcessId, Waiting]:
    """Return the waits of all processes, less those that messages in transit end. Raises a
    UsageError if a process waits for one that does not exist, or that cannot send to it; an
    ApplicationError if a process gives an invalid answer."""
    waits = {}
    for name, process in view.processes.items():
        waiting = waits_for(process, f"process {name}", view.snapshot)
        if waiting is None:
            continue
        strangers = sorted(other for other in waiting.processes if other not in view.processes)
        if strangers:
            raise UsageError(
                f"process {name} waits for {strangers[0]!r}, which is not a process; the "
                f"processes are {', '.join(view.processes)}"
            )
        for source in sorted(waiting.processes):
            if Channel(source, name) not in view.channels:
                raise UsageError(
                    f"process {name} waits for {source}, but there is no channel from {source} "
                    f"to {name}"
                )
        granted = _granted(view, name, waiting)
        if granted is not None:
            waits[name] = msgspec.structs.replace(waiting, processes=waiting.processes - granted)
    return waits


def _granted(view: SnapshotView, name: ProcessId, waiting: Waiting) -> set[ProcessId] | None:
    """Return the processes whose message in transit ends a part of a wait; None if the messages in
    transit end all of it."""
    kinds = waiting.ended_by or (object,)
    granted = {
        source
        for source in waiting.processes
        if any(isinstance(message, kinds) for message in view.channels[Channel(source, name)])
    }
    is_over = granted == waiting.processes if waiting.needs_all else bool(granted)
    return None if is_over else granted


class Discrepancy(msgspec.Struct, frozen=True):
    """A quantity with a surplus or a deficit; `places` has the amount that was found
    in each process and channel."""

    quantity: str
    expected: Number
    found: Number
    places: dict[str, Number]

    def __str__(self) -> str:
        missing = self.expected - self.found
        word = "lost" if missing > 0 else "too much"
        places = ", ".join(f"{place} {amount}" for place, amount in self.places.items())
        return f"{abs(missing)} {self.quantity} {word}: {places or 'nowhere'}"


def places_of(view: SnapshotView) -> Places:
    """Return where each conserved quantity is. Raises an ApplicationError if a process or message
    does not report its amounts."""
    found: Places = {}
    owners = [(name, f"process {name}", process) for name, process in view.processes.items()]
    owners += [
        (str(channel), f"a {type(message).__name__} on channel {channel}", message)
        for channel, message in view.in_transit()
    ]
    for place, where, owner in owners:
        for quantity, amount in conserved(owner, where, view.snapshot).items():
            if amount:
                places = found.setdefault(quantity, {})
                places[place] = places.get(place, 0) + amount
    return found


def find_loss(
    view: SnapshotView, expected: Mapping[str, Mapping[str, Number]]
) -> tuple[Discrepancy, ...]:
    """Return every quantity whose amount is not the `expected` one, which ``places_of`` returned
    for a snapshot without loss; by name. Raises as ``places_of``."""
    return differences(expected, places_of(view))


def differences(
    expected: Mapping[str, Mapping[str, Number]], places: Mapping[str, Mapping[str, Number]]
) -> tuple[Discrepancy, ...]:
    """Return every quantity whose amount in `places` is not the `expected` one, by name."""
    found = []
    for quantity in sorted({*expected, *places}):
        before, now = expected.get(quantity, {}), places.get(quantity, {})
        if not _is_equal(before, now):
            found.append(Discrepancy(quantity, total(before), total(now), dict(now)))
    return tuple(found)


def total(places: Mapping[str, Number]) -> Number:
    """Return the sum of amounts: exact for whole numbers, rounded once for others."""
    amounts = list(places.values())
    if all(isinstance(amount, int) for amount in amounts):
        return sum(amounts)
    return math.fsum(amounts)


def _is_equal(before: Mapping[str, Number], now: Mapping[str, Number]) -> bool:
    first, second = total(before), total(now)
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    gross = math.fsum(abs(amount) for amount in (*before.values(), *now.values()))
    return abs(first - second) <= ROUNDING * gross


# --- verdicts

NO_DEADLOCK = "no processes keep each other blocked"


class Verdict(msgspec.Struct, frozen=True):
    """The answer of a predicate on a snapshot.

    Attributes:
        holds: whether it holds.
        sentence: why, as a sentence.
    """

    holds: bool
    sentence: str


StablePredicate = Callable[[SnapshotView], Verdict]
"""Once it holds it must hold forever, as long as the system is not restored: then what holds in a
snapshot holds now (Chandy & Lamport 1985, section 4)."""


def termination(view: SnapshotView) -> Verdict:
    """Return whether the system has terminated: all processes are passive, and all channels
    empty."""
    activity = find_activity(view)
    sentence = str(activity or "every process is passive, and no message is in transit")
    return Verdict(activity is None, sentence)


def deadlock(view: SnapshotView) -> Verdict:
    """Return whether processes keep each other blocked forever."""
    found = find_deadlock(view)
    return Verdict(holds=False, sentence=NO_DEADLOCK) if found is None else verdict_on(found)


def verdict_on(found: Deadlock) -> Verdict:
    """Return the verdict that there is a deadlock."""
    among = {name for ring in found.rings for name in ring.processes}
    behind = [name for name in found.processes if name not in among]
    return Verdict(holds=True, sentence=deadlock_text([str(ring) for ring in found.rings], behind))


def loss_against(expected: Mapping[str, Mapping[str, Number]]) -> StablePredicate:
    """Return the predicate that there is less or more of something than `expected`, which is what
    ``places_of`` said of a snapshot in which nothing was lost."""
    amounts = ", ".join(f"{total(places)} {quantity}" for quantity, places in expected.items())

    def loss(view: SnapshotView) -> Verdict:
        found = find_loss(view, expected)
        return Verdict(bool(found), "; ".join(map(str, found)) or f"nothing is missing: {amounts}")

    return loss


def asking(function: Callable[[SnapshotView], bool], name: str) -> StablePredicate:
    """Return a predicate that calls a user's function; errors call it `name`."""

    def own(view: SnapshotView) -> Verdict:
        found = yes_or_no(function, view, name, f"on snapshot {view.snapshot}")
        return Verdict(found, f"{name} says {found}")

    return own


class Evaluation(msgspec.Struct, frozen=True):
    """A verdict on one snapshot. Times are seconds since 1970.

    Attributes:
        snapshot: its id.
        epoch: its epoch.
        initiated_at: when it was requested.
        completed_at: when the last fragment arrived.
        verdict: the answer.
    """

    snapshot: SnapshotId
    epoch: int
    initiated_at: float
    completed_at: float
    verdict: Verdict


def not_stable(evaluations: list[Evaluation]) -> tuple[Evaluation, Evaluation] | None:
    """Return two evaluations that show that a predicate is not stable; None if none do. It held in
    the first, and not in the second, whose snapshot was initiated in the same epoch when the first
    was complete. Snapshots that overlap show nothing: neither comes after the other."""
    held = [seen for seen in evaluations if seen.verdict.holds]
    held.sort(key=lambda seen: seen.completed_at, reverse=True)
    first_held = {seen.epoch: seen for seen in held}
    for seen in evaluations:
        before = None if seen.verdict.holds else first_held.get(seen.epoch)
        if before is not None and seen.initiated_at >= before.completed_at:
            return before, seen
    return None


_REFERENCE = re.compile(r"[\w.]+:\w+")
_SQL = re.compile(r"(?:select|with|from)\b|\(|--|/\*", re.IGNORECASE)


def is_sql(predicate: str) -> bool:
    """Return whether a predicate is SQL, and no name."""
    text = predicate.strip()
    return _REFERENCE.fullmatch(text) is None and _SQL.match(text) is not None


def _duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "predicates in SQL need DuckDB: install it with pip install 'stillframe[sql]'"
        ) from error
    return duckdb


class SqlPredicate:
    """A predicate in SQL, which gives one row with one column, true or false.

    Use it in one thread at a time: it has one connection, since DuckDB needs longer to open one
    than to evaluate most predicates.

    Attributes:
        reads: the names of the tables that it reads, in lower case. It is given no other one.

    Raises:
        UsageError: it is not one query.
        Unavailable: DuckDB is not installed.
    """

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._duckdb = _duckdb()
        # One thread: a pool costs more than it saves. Variables of Python are not tables.
        settings = {"threads": 1, "python_enable_replacements": False}
        self._database = self._duckdb.connect(config=settings)
        try:
            # Raises an error unless it is one statement.
            self.reads = frozenset(map(str.lower, self._database.get_table_names(sql)))
            [self._statement] = self._database.extract_statements(sql)
        except self._duckdb.Error as error:
            raise UsageError(f"the predicate {sql!r} cannot be evaluated: {error}") from error

    def evaluate(self, where: str, tables: Mapping[str, pa.Table]) -> Verdict:
        """Return the result on `tables`, such as those of ``store.tables``.

        Raises:
            UsageError: it cannot be executed, or gives something else; it says `where`.
        """
        sql, database = self._sql, self._database
        given = [name for name in tables if name.lower() in self.reads]
        try:
            for name in given:
                database.register(name, tables[name])
            rows = database.execute(self._statement).fetchall()
        except self._duckdb.Error as error:
            raise UsageError(
                f"the predicate {sql!r} cannot be evaluated in {where}: {error}"
            ) from error
        finally:
            for name in given:
                database.unregister(name)
        if rows == [(None,)]:
            raise UsageError(
                f"the predicate {sql!r} returns NULL in {where}: a sum over no rows is "
                "NULL, so write coalesce(sum(...), 0)"
            )
        if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], bool):
            shown = ", ".join(map(repr, rows[:3])) or "no row"
            raise UsageError(
                f"the predicate {sql!r} returns {shown} in {where}: it must return one "
                "row with one column that is true or false"
            )
        return Verdict(holds=rows[0][0], sentence=f"{sql} is {str(rows[0][0]).lower()}")


# --- by name, asked of the snapshots of a store

SHIPPED = ("termination", "deadlock", "loss")
EXAMPLE = "select sum(balance) < 100 from processes"
Read = TypeVar("Read")
Evaluate = Callable[[SnapshotEntry], Evaluation]
"""Asks a predicate of one snapshot; raises a StillframeError if it cannot."""


def topology_of_store(store: Store, reference: str | None, expected: str) -> tuple[str, Topology]:
    """Return where the topology with the hash `expected` is (None: where the store says), and the
    topology. Raises a UsageError if its place is unknown, or it is another one."""
    known = store.reference if reference is None else reference
    if known is None:
        raise UsageError(
            f"the store {store.path} does not name its topology: give --topology MODULE:TOPOLOGY"
        )
    add_cwd_to_path()
    topology = load_topology(known)
    if topology.description.hash != expected:
        raise UsageError(
            f"the snapshots in {store.path} were taken with a different topology from {known}: "
            "give the original one with --topology"
        )
    return known, topology


def check_predicate_name(name: str) -> None:
    """Raise a UsageError if no predicate has that name, or your function cannot be imported, from
    the current directory too. SQL without DuckDB is Unavailable."""
    if is_sql(name):
        _duckdb()
    elif name not in SHIPPED:
        add_cwd_to_path()
        _own(name)


def resolve_predicate(name: str, store: Store, load: Callable[[], Topology]) -> Evaluate:
    """Return what asks a predicate of one snapshot of a store after the other.

    `name` is termination, deadlock, loss (against the oldest snapshot of the same topology, which
    must exist), MODULE:FUNCTION, or a question in SQL, for which the topology is not
    loaded. Raises as ``check_predicate_name``, and a UsageError if in the oldest snapshot nothing
    is conserved.
    """
    if is_sql(name):
        sql = SqlPredicate(name)
        return lambda entry: _evaluation(
            entry, sql.evaluate(f"snapshot {entry.id}", store.tables(entry.id))
        )
    topology = load()
    predicate = load_predicate(name, lambda: initial_places(store, topology, store.entries()))
    return lambda entry: _evaluation(entry, predicate(view_of(store.load(entry.id), topology)))


def _evaluation(entry: SnapshotEntry, verdict: Verdict) -> Evaluation:
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


def initial_places(store: Store, topology: Topology, entries: Iterable[SnapshotEntry]) -> Places:
    """Return what the oldest snapshot holds of conserved quantities, of those that this code can
    read: see ``migration`` for what a change of it conserves. Raises a UsageError if there is none,
    or no process holds any of it; another StillframeError if it cannot be read."""

    def places_in(entry: SnapshotEntry) -> Places | None:
        if store.description_of(entry.id).hash != topology.description.hash:
            return None
        places = places_of(view_of(store.load(entry.id), topology))
        if not places:
            raise UsageError(
                f"in snapshot {entry.id} no process or message holds a conserved quantity: "
                "implement 'conserved()' in those that do"
            )
        return places

    for entry in sorted(entries, key=lambda entry: (entry.epoch, entry.initiated_at)):
        places = if_present(entry, places_in)
        if places is not None:
            return places
    raise UsageError(f"no snapshot in {store.path} has the present topology: take a new one")


def _own(name: str) -> StablePredicate:
    if ":" not in name:
        raise UsageError(
            f"there is no predicate {name!r}: give one of {', '.join(SHIPPED)}; or "
            "MODULE:FUNCTION, your function that takes a view and returns True or False; or an "
            f"SQL query, such as {EXAMPLE!r}"
        )
    return asking(load_function(name), name)


def entries_of_now(store: Store) -> list[SnapshotEntry]:
    """Return the snapshots that show something of now: those of the present epoch, or else the one
    from which it started."""
    entries = [entry for entry in store.entries() if entry.epoch == store.epoch]
    if not entries and store.restored_from is not None:
        entries = [store.entry(store.restored_from)]
    return entries


def if_present(entry: SnapshotEntry, read: Callable[[SnapshotEntry], Read]) -> Read | None:
    """Return what `read` gives for a snapshot; None if it was dropped meanwhile, as ``run --keep``
    does. Raises a StillframeError if it cannot be read."""
    try:
        return read(entry)
    except (UsageError, StoreError):
        if is_published_at(entry.directory):
            raise
        return None
