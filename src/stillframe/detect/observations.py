"""Predicates on observations of services: deadlock, loss, your own functions, and SQL by DuckDB.

A deadlock is found in every observation, also in a partial one: it follows from the calls and locks
that the observation has. The other predicates ask what is there. A query in SQL is evaluated if the
tables that it reads are complete (``complete_tables``). A function may read everything, and loss
adds up all amounts, so both need an exact observation. Unlike a predicate on snapshots none of them
has to be stable: a time-out ends a deadlock, and a function may ask what it likes.
"""

import itertools
from collections.abc import Callable

import msgspec

from stillframe.detect.call_waits import call_deadlock
from stillframe.detect.complete_tables import TABLES, reasons_against
from stillframe.detect.lost_calls import LostCalls
from stillframe.detect.predicate import (
    Places,
    SqlPredicate,
    Verdict,
    check_predicate_name,
    differences,
    is_sql,
)
from stillframe.detect.view import yes_or_no
from stillframe.errors import UsageError
from stillframe.imports import load_function
from stillframe.protocol.calls import Observation
from stillframe.store.observation_tables import amounts_of
from stillframe.store.observations import ObservationReader, StoredObservation

DEADLOCK, LOSS, TERMINATION = "deadlock", "loss", "termination"


FIRST = "it is the first exact one of its baseline: later ones are compared with it"
"""Why loss is not evaluated in an observation."""


class NotEvaluated(msgspec.Struct, frozen=True):
    """A predicate was not evaluated in an observation, for these reasons."""

    reasons: tuple[str, ...]


ObservationPredicate = Callable[[int], Verdict | NotEvaluated | None]
"""Evaluates a predicate in the observation with this number; None if it was removed meanwhile."""


def resolve_observed(name: str, store: ObservationReader) -> ObservationPredicate:
    """Return the evaluation of a predicate in one observation of a store after the other, the
    oldest first.

    Args:
        name: deadlock; loss (against the oldest exact observation with the same baseline);
            MODULE:FUNCTION, which takes an `Observation`; or an SQL query.
        store: the observations.

    Raises:
        UsageError: there is no such predicate.
        Unavailable: SQL without DuckDB.
    """
    if name == TERMINATION:
        raise UsageError(
            "termination cannot be detected in services: their tasks may act at any time"
        )
    check_predicate_name(name)
    if name == DEADLOCK:
        return _loaded(store, lambda found: call_deadlock(found.observation))
    if name == LOSS:
        return _loaded(store, _Totals().evaluate)
    if is_sql(name):
        return _sql(store, name)
    function = load_function(name)
    return _exact(store, lambda observation: _own(observation, function, name))


def _loaded(
    store: ObservationReader, evaluate: Callable[[StoredObservation], Verdict | NotEvaluated]
) -> ObservationPredicate:
    def outcome(number: int) -> Verdict | NotEvaluated | None:
        found = store.load_if_present(number)
        return None if found is None else evaluate(found)

    return outcome


def _exact(
    store: ObservationReader, evaluate: Callable[[Observation], Verdict | NotEvaluated]
) -> ObservationPredicate:
    """Return the evaluation of something that may read everything, or that adds up amounts."""

    def outcome(found: StoredObservation) -> Verdict | NotEvaluated:
        if found.manifest.is_exact:
            return evaluate(found.observation)
        return NotEvaluated(tuple(found.manifest.reasons))

    return _loaded(store, outcome)


def _sql(store: ObservationReader, sql: str) -> ObservationPredicate:
    """Return the evaluation of a query wherever the tables that it reads are complete."""
    query = SqlPredicate(sql)
    read = [name for name in TABLES if name in query.reads]

    def outcome(number: int) -> Verdict | NotEvaluated | None:
        try:
            manifest = store.manifest(number)
            if reasons := reasons_against(store, manifest, read):
                return NotEvaluated(reasons)
            tables = store.tables(manifest, read)
        except UsageError:  # it was removed meanwhile
            return None
        verdict = query.evaluate(_where(number), tables)
        if manifest.is_exact:
            return verdict
        complete = f"{_where(number)} is {manifest.quality}, and {_complete(read)}"
        return msgspec.structs.replace(verdict, sentence=f"{verdict.sentence} ({complete})")

    return outcome


def _complete(tables: list[str]) -> str:
    if not tables:
        return "the query reads no table of it"
    *others, last = tables
    names = f"{', '.join(others)} and {last}" if others else last
    return f"{names}, which the query reads, {'are' if others else 'is'} complete"


def _where(number: int) -> str:
    return f"observation {number}"


def _own(observation: Observation, function: Callable[[Observation], bool], name: str) -> Verdict:
    holds = yes_or_no(function, observation, name, f"on {_where(observation.number)}")
    return Verdict(holds, f"{name} says {holds}")


def places_of(observation: Observation) -> Places:
    """Return where each conserved amount is: in the state of an instance, in variables of its
    handlers, in no state, or with instances that have ended."""
    found: Places = {}
    for row in amounts_of(observation):
        places = found.setdefault(str(row["unit"]), {})
        for place in ("in_states", "held", "outside_states", "ended"):
            if row[place]:
                places[place.replace("_", " ")] = row[place]
    return found


class _Totals:
    """Totals of exact observations, each compared with that of the oldest one with its baseline."""

    def __init__(self) -> None:
        self._firsts: dict[int, tuple[Observation, Places]] = {}
        self._calls = LostCalls()

    def evaluate(self, found: StoredObservation) -> Verdict | NotEvaluated:
        """Return whether something is missing, or too much, and the calls that this is made of.
        There is no earlier one to compare the first one of a baseline with."""
        self._calls.add(found.observation)
        if not found.manifest.is_exact:
            return NotEvaluated(tuple(found.manifest.reasons))
        return self._compared(found.observation)

    def _compared(self, observation: Observation) -> Verdict | NotEvaluated:
        places = places_of(observation)
        if not any(fragment.state.conserved for fragment in observation.fragments.values()):
            raise UsageError(
                f"in {_where(observation.number)} no state reports a conserved amount: implement "
                "'conserved()' in the state that 'attach' is given"
            )
        if observation.baseline not in self._firsts:
            kept = msgspec.structs.replace(observation, fragments={}, calls=(), ends={})
            self._firsts[observation.baseline] = kept, places
            return NotEvaluated((FIRST,))
        first, expected = self._firsts[observation.baseline]
        found = differences(expected, places)
        amounts = ", ".join(f"{sum(of.values())} {unit}" for unit, of in expected.items())
        words = "; ".join(map(str, found)) or f"nothing is missing: {amounts}"
        words += "".join(
            f"; {amount} {unit} of it ended with instances of {service}, and none that started "
            "later has it"
            for service, amounts in observation.ended.items()
            for unit, amount in amounts.items()
        )
        units = [one.quantity for one in found]
        calls = self._calls.lines(units, first.double_spent, observation)
        return Verdict(bool(found), f"{words}, compared with observation {first.number}{calls}")


def ranges_of(numbers: list[int], evaluated: list[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges: first and last, without one of `evaluated` in between that is not
    among them."""
    found: list[tuple[int, int]] = []
    among = set(numbers)
    for is_in, group in itertools.groupby(evaluated, key=lambda number: number in among):
        if is_in:
            first, *rest = group
            found.append((first, rest[-1] if rest else first))
    return found
