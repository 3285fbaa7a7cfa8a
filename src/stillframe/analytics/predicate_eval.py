"""Asks objects of the user's classes in tasks of Spark: one snapshot after the other.

Unlike the rest of what tasks run, this needs msgspec and the user's own modules where tasks run.
They are imported when a task is there to say what is missing, and once in each of its programs.
What goes wrong comes back as rows: the driver raises it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StillframeError, StoreError, UsageError

if TYPE_CHECKING:
    from stillframe.detect.view import View
    from stillframe.model import SnapshotId
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
    """What is said of one snapshot, as a row of `ANSWERS_SCHEMA`."""

    holds: bool | None
    sentence: str
    failure: str | None = None


class PredicateSpec(NamedTuple):
    """What tasks have to know.

    Attributes:
        store: the directory of the store.
        reference: where the topology is, ``module:attribute``.
        topology: its hash.
        here: the directory in which modules of the user's are looked for first.
        predicate: by name; no question in SQL.
        expected: what there must be of conserved quantities (``detect.loss.Places``).
    """

    store: str
    reference: str
    topology: str
    here: str
    predicate: str
    expected: dict[str, dict[str, int | float]]


def evaluate_all(spec: PredicateSpec) -> Batches:
    """Return what a task does to batches of ids: a row of `ANSWERS_SCHEMA` for each snapshot."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _in_batches(_answers(spec, batches), ANSWERS_SCHEMA)

    return ask


def wait_edges(spec: PredicateSpec) -> Batches:
    """Return what a task does to batches of ids: rows of `WAITING_SCHEMA` for each snapshot."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _in_batches(_waits(spec, batches), WAITING_SCHEMA)

    return ask


def _answers(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Rows:
    def ask(view: "View") -> tuple[bool, str]:
        from stillframe.runtime.judging import predicate_of

        # One of the user's is imported once: Python knows it from then on.
        verdict = predicate_of(spec.predicate, lambda: spec.expected)(view)
        return verdict.holds, verdict.sentence

    for snapshot, found, failure in _asked(spec, batches, ask):
        holds, sentence = (None, failure[1]) if found is None else found
        yield {
            "snapshot": snapshot,
            "holds": holds,
            "sentence": sentence,
            "failure": failure[0],
        }


def _waits(spec: PredicateSpec, batches: Iterable[pa.RecordBatch]) -> Rows:
    def ask(view: "View") -> list[tuple[str, str, bool]]:
        from stillframe.detect.deadlock import open_waits

        return [
            (process, other, waiting.needs_all)
            for process, waiting in open_waits(view).items()
            for other in waiting.processes
        ]

    for snapshot, found, (failure, sentence) in _asked(spec, batches, ask):
        yield {"snapshot": snapshot, "sentence": sentence, "failure": failure}
        for process, other, needs_all in found or ():
            yield {
                "snapshot": snapshot,
                "process": process,
                "waits_for": other,
                "needs_all": needs_all,
            }


def _asked(
    spec: PredicateSpec, batches: Iterable[pa.RecordBatch], ask: "Callable[[View], _Found]"
) -> Iterator[tuple[str, _Found | None, tuple[str | None, str | None]]]:
    """Yield for each snapshot what `ask` finds; or None, and what went wrong.

    Whatever is not the fault of that one snapshot ends the task: it would be said of each.
    """
    opened: tuple[Store, Topology] | None = None
    for batch in batches:
        for name in batch.column("snapshot").to_pylist():
            try:
                opened = opened or _opened(spec)
                yield name, _ask(*opened, name, ask), (None, None)
            except (Damaged, NotConsistent) as error:
                yield name, None, (DAMAGED, str(error))
            except _Dropped:
                yield name, None, (DROPPED, WAS_DROPPED)
            except StillframeError as error:
                yield name, None, (type(error).__name__, str(error))
                return


class _Dropped(StillframeError):
    """A snapshot is not there any more."""


def _ask(
    store: "Store", topology: "Topology", name: str, ask: "Callable[[View], _Found]"
) -> _Found:
    from stillframe.detect.view import view_of
    from stillframe.model import SnapshotId

    snapshot = SnapshotId.parse(name)
    try:
        return ask(view_of(store.load(snapshot), topology))
    except (UsageError, StoreError) as error:
        if _is_there(store, snapshot):
            raise
        raise _Dropped(name) from error


def _is_there(store: "Store", snapshot: "SnapshotId") -> bool:
    from stillframe.store.opening import is_published

    return is_published(store.path, snapshot)


def _opened(spec: PredicateSpec) -> "tuple[Store, Topology]":
    """Return the store, to read, and the topology.

    Raises:
        Unavailable: a package is missing where tasks run.
        UsageError: the topology cannot be had there, or is another one.
    """
    from pathlib import Path

    from stillframe.errors import Unavailable

    try:
        from stillframe.runtime.here import look_here
        from stillframe.store.store import Store

        look_here(spec.here)
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
    from stillframe.runtime.loading import load_topology

    topology = load_topology(reference)
    if topology.description.hash != expected:
        raise UsageError(f"{reference} is another topology than on the driver")
    return topology


def _in_batches(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held = []
    for row in rows:
        held.append(row)
        if len(held) == _ROWS_AT_ONCE:
            yield pa.RecordBatch.from_pylist(held, schema=schema)
            held = []
    if held:
        yield pa.RecordBatch.from_pylist(held, schema=schema)
