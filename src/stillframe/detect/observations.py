"""Predicates on observations of services: deadlock, loss, your own functions, and SQL by DuckDB.

A deadlock is found in every observation, also in a partial one: it follows from the calls and locks
that the observation has. The other predicates ask what is there, so they are only evaluated in
exact observations. Unlike a predicate on snapshots none of them has to be stable: a time-out ends a
deadlock, and a function may ask what it likes.
"""

import itertools
from collections.abc import Callable

import pyarrow as pa

from stillframe.detect.call_waits import call_deadlock
from stillframe.detect.predicate import (
    Places,
    Verdict,
    check_predicate_name,
    differences,
    evaluate_sql,
    is_sql,
)
from stillframe.detect.view import yes_or_no
from stillframe.errors import UsageError
from stillframe.imports import load_function
from stillframe.protocol.calls import Observation
from stillframe.store.observation_tables import amounts_of, to_tables
from stillframe.store.observations import StoredObservation

DEADLOCK, LOSS, TERMINATION = "deadlock", "loss", "termination"
ObservationPredicate = Callable[[StoredObservation], Verdict | None]
"""Evaluates a predicate in an observation; None if the observation is not exact, and it must be."""


def resolve_observed(name: str) -> ObservationPredicate:
    """Return the evaluation of a predicate in one observation after the other, the oldest first.

    Args:
        name: deadlock; loss (against the oldest exact observation with the same baseline);
            MODULE:FUNCTION, which takes an `Observation`; or an SQL query.

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
        return lambda found: call_deadlock(found.observation)
    if name == LOSS:
        return _exact(_Totals().evaluate)
    if is_sql(name):
        return _exact(lambda one: evaluate_sql(name, _where(one), observed_tables(one)))
    function = load_function(name)
    return _exact(lambda observation: _own(observation, function, name))


def _exact(evaluate: Callable[[Observation], Verdict]) -> ObservationPredicate:
    return lambda found: evaluate(found.observation) if found.observation.is_exact else None


def _where(observation: Observation) -> str:
    return f"observation {observation.number}"


def _own(observation: Observation, function: Callable[[Observation], bool], name: str) -> Verdict:
    holds = yes_or_no(function, observation, name, f"on {_where(observation)}")
    return Verdict(holds, f"{name} says {holds}")


def observed_tables(observation: Observation) -> dict[str, pa.Table]:
    """Return the tables for queries: instances, states, calls, unresolved and amounts."""
    files = to_tables(observation)
    tables = {name.removesuffix(".parquet"): table for name, table in files.items()}
    rows = amounts_of(observation)
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return tables | {"amounts": pa.table(columns)}


def places_of(observation: Observation) -> Places:
    """Return where each conserved amount is: in the state of an instance, in variables of its
    handlers, or in no state."""
    found: Places = {}
    for row in amounts_of(observation):
        places = found.setdefault(str(row["unit"]), {})
        for place in ("in_states", "held", "outside_states"):
            if row[place]:
                places[place.replace("_", " ")] = row[place]
    return found


class _Totals:
    """Totals of exact observations, each compared with that of the oldest one with its baseline."""

    def __init__(self) -> None:
        self._expected: dict[int, Places] = {}

    def evaluate(self, observation: Observation) -> Verdict:
        """Return whether something is missing, or too much."""
        places = places_of(observation)
        if not any(fragment.state.conserved for fragment in observation.fragments.values()):
            raise UsageError(
                f"in {_where(observation)} no state reports a conserved amount: implement "
                "'conserved()' in the state that 'attach' is given"
            )
        expected = self._expected.setdefault(observation.baseline, places)
        found = differences(expected, places)
        amounts = ", ".join(f"{sum(of.values())} {unit}" for unit, of in expected.items())
        return Verdict(bool(found), "; ".join(map(str, found)) or f"nothing is missing: {amounts}")


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
