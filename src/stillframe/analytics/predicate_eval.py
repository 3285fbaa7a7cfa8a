"""Evaluate predicates on objects of the user's classes in tasks of Spark, snapshot by snapshot.

Unlike other tasks, these need msgspec and the user's own modules where they run. They import them
lazily, so that a task can report what is missing. Failures come back as rows: the driver raises
them.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StillframeError, StoreError, UsageError

if TYPE_CHECKING:
    from stillframe.detect.view import View
    from stillframe.store.store import Store
    from stillframe.topology import Topology

ANSWERS_SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("holds", pa.bool_()),  # null if it could not be asked
        ("sentence", pa.string()),  # what was found, or what went wrong
        ("failure", pa.string()),  # DAMAGED, DROPPED, the name of a class of errors, or null
    ]
)
WAITING_SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("process", pa.string()),  # null in the one row that each snapshot has besides
        ("waits_for", pa.string()),
        ("needs_all", pa.bool_()),
        ("sentence", pa.string()),
        ("failure", pa.string()),
    ]
)
DAMAGED = "damaged"
DROPPED = "dropped"
WAS_DROPPED = "was dropped while snapshots were looked at"

_ROWS_AT_ONCE = 1000

Rows = Iterator[dict[str, object]]
Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_Found = TypeVar("_Found")


class Answer(NamedTuple):
    """The answer of one snapshot, as a row of `ANSWERS_SCHEMA`."""

    holds: bool | None
    sentence: str
    failure: str | None = None


class PredicateSpec(NamedTuple):
    """What tasks need to evaluate a predicate: where the topology is (``module:attribute``) and its
    hash, the directory in which the user's modules are looked up first, the predicate by name, and
    the amounts of conserved quantities (``detect.predicate.Places``)."""

    store: str
    reference: str
    topology: str
    here: str
    predicate: str
    expected: dict[str, dict[str, int | float]]


def evaluate_all(spec: PredicateSpec) -> Batches:
    """Return what a task does to batches of ids: a row of `ANSWERS_SCHEMA` for each snapshot."""
    return functools.partial(_in_batches, _answers, spec, ANSWERS_SCHEMA)


def wait_edges(spec: PredicateSpec) -> Batches:
    """Return what a task does to batches of ids: rows of `WAITING_SCHEMA` for each snapshot."""
    return functools.partial(_in_batches, _waits, spec, WAITING_SCHEMA)


def _in_batches(
    rows_of: Callable[[PredicateSpec, Iterable[pa.RecordBatch]], Rows],
    spec: PredicateSpec,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    rows = rows_of(spec, batches)
    while held := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_pylist(held, schema=schema)


def _answers(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Rows:
    def evaluate(view: "View") -> tuple[bool, str]:
        from stillframe.detect.predicate import load_predicate

        # The user's module is imported once: Python keeps it from then on.
        verdict = load_predicate(spec.predicate, lambda: spec.expected)(view)
        return verdict.holds, verdict.sentence

    for snapshot, found, (failure, why) in _evaluated(spec, batches, evaluate):
        holds, sentence = (None, why) if found is None else found
        row: dict[str, object] = {"snapshot": snapshot, "holds": holds, "sentence": sentence}
        yield row | {"failure": failure}


def _waits(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Rows:
    def evaluate(view: "View") -> list[tuple[str, str, bool]]:
        from stillframe.detect.predicate import open_waits

        return [
            (process, other, waiting.needs_all)
            for process, waiting in open_waits(view).items()
            for other in waiting.processes
        ]

    for snapshot, found, (failure, sentence) in _evaluated(spec, batches, evaluate):
        yield {"snapshot": snapshot, "sentence": sentence, "failure": failure}
        for process, other, needs_all in found or ():
            edge = {"process": process, "waits_for": other, "needs_all": needs_all}
            yield {"snapshot": snapshot} | edge


def _evaluated(
    spec: PredicateSpec, batches: Iterable[pa.RecordBatch], evaluate: "Callable[[View], _Found]"
) -> Iterator[tuple[str, _Found | None, tuple[str | None, str | None]]]:
    """Yield for each snapshot what `evaluate` finds, or None and the failure. One that is not of
    this snapshot alone ends the task, because each one would have it."""
    opened: tuple[Store, Topology] | None = None
    for batch in batches:
        for name in batch.column("snapshot").to_pylist():
            try:
                opened = opened or _opened(spec)
                yield name, _evaluate(*opened, name, evaluate), (None, None)
            except (Damaged, NotConsistent) as error:
                yield name, None, (DAMAGED, str(error))
            except _Dropped:
                yield name, None, (DROPPED, WAS_DROPPED)
            except StillframeError as error:
                yield name, None, (type(error).__name__, str(error))
                return


class _Dropped(StillframeError):
    """A snapshot does not exist any more."""


def _evaluate(
    store: "Store", topology: "Topology", name: str, evaluate: "Callable[[View], _Found]"
) -> _Found:
    from stillframe.detect.view import view_of
    from stillframe.model import SnapshotId
    from stillframe.store.layout import is_published

    snapshot = SnapshotId.parse(name)
    try:
        return evaluate(view_of(store.load(snapshot), topology))
    except (UsageError, StoreError) as error:
        if is_published(store.path, snapshot):
            raise
        raise _Dropped(name) from error


def _opened(spec: PredicateSpec) -> "tuple[Store, Topology]":
    """Return the store, to read, and the topology; errors name what is missing where tasks run."""
    from pathlib import Path

    from stillframe.errors import Unavailable

    try:
        from stillframe.imports import add_cwd_to_path
        from stillframe.store.store import Store

        add_cwd_to_path(spec.here)
        topology = _topology(spec.reference, spec.topology)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"where tasks of Spark run there is no module {error.name!r}: install stillframe there "
            "(pip install stillframe), or give --master 'local[*]'"
        ) from error
    except UsageError as error:
        raise UsageError(
            f"where tasks of Spark run: {error}. The same module as here must be in {spec.here} "
            "there, or installed"
        ) from error
    return Store.open(Path(spec.store)), topology


@functools.lru_cache(maxsize=8)
def _topology(reference: str, expected: str) -> "Topology":
    """Return the topology, which is loaded once for each that is expected."""
    from stillframe.imports import load_topology

    topology = load_topology(reference)
    if topology.description.hash != expected:
        raise UsageError(f"{reference} is another topology than on the driver")
    return topology
