"""Evaluate predicates on objects of the user's classes in tasks of Spark, snapshot by snapshot.

Unlike other tasks, these need msgspec and the user's own modules where they run. They import them
lazily, so that a task can report what is missing. Failures are returned as rows: the driver raises
them.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StillframeError, StoreError, UsageError

if TYPE_CHECKING:
    from stillframe.store.store import Store
    from stillframe.topology import Topology

ANSWERS_SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("holds", pa.bool_()),  # null if it could not be asked, and of deadlock
        ("sentence", pa.string()),  # what was found, or what went wrong
        ("failure", pa.string()),  # DAMAGED, DROPPED, the name of a class of errors, or null
        ("process", pa.string()),  # of a wait; null in the one row that each snapshot has besides
        ("waits_for", pa.string()),
        ("needs_all", pa.bool_()),
    ]
)
DAMAGED = "damaged"
DROPPED = "dropped"
WAS_DROPPED = "was deleted during the evaluation"
DEADLOCK = "deadlock"
"""The predicate for which tasks return the waits, in separate rows."""

_ROWS_AT_ONCE = 1000

AnswerRow = dict[str, object]
Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class PredicateSpec(NamedTuple):
    """The input of the tasks that evaluate a predicate. It has the place (``module:attribute``) and
    hash of the topology, the directory in which the user's modules are looked up first, the
    predicate by name, and the amounts of conserved quantities (``detect.predicate.Places``)."""

    store: str
    reference: str
    topology: str
    here: str
    predicate: str
    expected: dict[str, dict[str, int | float]]


def evaluate_all(spec: PredicateSpec) -> Batches:
    """Return what a task does to batches of ids: rows of `ANSWERS_SCHEMA` for each snapshot."""
    return functools.partial(_in_batches, spec)


def _in_batches(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = _rows(spec, batches)
    while held := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_pylist(held, schema=ANSWERS_SCHEMA)


def _rows(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[AnswerRow]:
    """Yield the rows of each snapshot. A failure that is not of this snapshot alone ends the task,
    because each one would have it."""
    opened: tuple[Store, Topology] | None = None
    for batch in batches:
        for name in batch.column("snapshot").to_pylist():
            try:
                opened = opened or _opened(spec)
                found = _evaluate(spec, *opened, name)
            except (Damaged, NotConsistent) as error:
                found = [{"sentence": str(error), "failure": DAMAGED}]
            except StillframeError as error:
                yield {"snapshot": name, "sentence": str(error), "failure": type(error).__name__}
                return
            for row in found:
                yield {"snapshot": name, **row}


def _evaluate(
    spec: PredicateSpec, store: "Store", topology: "Topology", name: str
) -> list[AnswerRow]:
    from stillframe.detect.predicate import load_predicate, open_waits
    from stillframe.detect.view import view_of
    from stillframe.model import SnapshotId
    from stillframe.store.layout import is_published

    snapshot = SnapshotId.parse(name)
    try:
        view = view_of(store.load(snapshot), topology)
        if spec.predicate == DEADLOCK:
            waits: list[AnswerRow] = [
                {"process": process, "waits_for": other, "needs_all": waiting.needs_all}
                for process, waiting in open_waits(view).items()
                for other in waiting.processes
            ]
            return [{}, *waits]
        # The user's module is imported once: Python keeps it from then on.
        verdict = load_predicate(spec.predicate, lambda: spec.expected)(view)
        return [{"holds": verdict.holds, "sentence": verdict.sentence}]
    except (UsageError, StoreError):
        if is_published(store.path, snapshot):
            raise
        return [{"sentence": WAS_DROPPED, "failure": DROPPED}]


def _opened(spec: PredicateSpec) -> "tuple[Store, Topology]":
    """Return the store, to read, and the topology; errors name what is missing where tasks run."""
    from stillframe.errors import Unavailable
    from stillframe.storage.location import location_of

    try:
        from stillframe.imports import add_cwd_to_path
        from stillframe.store.store import Store

        add_cwd_to_path(spec.here)
        topology = _topology(spec.reference, spec.topology)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"Spark's executors have no module {error.name!r}: install stillframe on them (pip "
            "install stillframe), or use --master 'local[*]'"
        ) from error
    except UsageError as error:
        raise UsageError(
            f"on Spark's executors: {error}. They need the same module in {spec.here}, or installed"
        ) from error
    return Store.open(location_of(spec.store)), topology


@functools.lru_cache(maxsize=8)
def _topology(reference: str, expected: str) -> "Topology":
    """Return the topology, which is loaded once for each that is expected."""
    from stillframe.imports import load_topology

    topology = load_topology(reference)
    if topology.description.hash != expected:
        raise UsageError(f"{reference} differs between Spark's executors and the driver")
    return topology
