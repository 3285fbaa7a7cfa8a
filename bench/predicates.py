"""What `stillframe detect` with SQL costs an observation of services: processor time of the whole
process, with all its threads, from the moment at which it begins to read the observation.

The store is in a temporary directory and has `OBSERVATION_COUNT` observations of six instances with
30 open calls. Each query is evaluated in all of them, as the command does.
"""

import statistics
import tempfile
import time
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import quantile
from stillframe.detect.observations import resolve_observed
from stillframe.detect.predicate import Verdict
from stillframe.protocol.activities import CallDetails, InstanceState
from stillframe.protocol.calls import (
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    InstanceFragment,
    Located,
    Observation,
    OpenCall,
    ServedCall,
)
from stillframe.store.observations import ObservationReader, ObservationWriter

OBSERVATION_COUNT = 1_000
INSTANCE_COUNT = 6
CALL_COUNT = 5
QUERIES = {
    "states": "select coalesce(min(number), 0) >= 0 from states where field = 'euros'",
    "calls": "select count(*) = 0 from calls where place = 'being served' and deadline is null",
    "two tables": "select (select count(*) from calls) > (select count(*) from instances)",
    "amounts": "select bool_and(total >= 0) from amounts",
}


def observation(number: int) -> Observation:
    """Return an observation: each instance has open calls, and the next one serves them."""
    names = [f"service{i}-0000000{i}" for i in range(INSTANCE_COUNT)]
    fields = msgspec.msgpack.encode({"euros": 100, "owner": "Ada", "orders": number, "rate": 0.5})
    calls: dict[CallId, OpenCall] = {}
    served: dict[str, list[ServedCall]] = {}
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        for one in range(1, CALL_COUNT + 1):
            details = CallDetails("POST /pay", f"{name}/{one}", 1.7e9, 1.7e9 + 5)
            calls[CallId(name, one)] = OpenCall(one, "next:80", {"EUR": 5}, details=details)
            served.setdefault(other, []).append(ServedCall(CallId(name, one), {"EUR": 5}))
    fragments = {
        name: InstanceFragment(
            instance=name,
            after=number - 1,
            observation=number,
            state=InstanceState(fields, {}, {"EUR": 100}),
            sent_count=CALL_COUNT,
            calls=tuple(record for call, record in calls.items() if call.caller == name),
            forgotten_through=0,
            served=tuple(served[name]),
            answer_counts={},
            highest_accepted={},
            received={},
            dropped={},
            targets={"next:80": True},
            lost={},
        )
        for name in names
    }
    by = {one.call: (name, one) for name, some in served.items() for one in some}
    return Observation(
        number=number,
        fragments=fragments,
        calls=tuple(
            Located(call, record, CallPlace.SERVED, (by[call],)) for call, record in calls.items()
        ),
        late=(),
        duplicates=(),
        orphans=(),
        disconnected=(),
        not_accepted={},
        unknown={},
        lost={},
        created={},
        forgotten_count=0,
        partial=(),
        since=Baseline(1),
    )


def measure(store: ObservationReader, query: str) -> list[float]:
    """Return the processor time of each observation, in milliseconds."""
    evaluate = resolve_observed(query, store)
    found = []
    for number in store.numbers():
        began = time.process_time()
        outcome = evaluate(number)
        found.append((time.process_time() - began) * 1000)
        assert isinstance(outcome, Verdict), f"observation {number} was not evaluated: {outcome}"
    return found


def main() -> None:
    """Measure every query, and print the figures."""
    table = Table(
        title=f"processor time of an observation, of {OBSERVATION_COUNT:,} observations",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("query of")
    for column in ("median, ms", "p90, ms", "mean, ms"):
        table.add_column(column, justify="right")
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="stillframe-bench-") as directory,
        Progress(console=console, transient=True) as progress,
    ):
        writer = ObservationWriter.open(Path(directory) / "seen")
        numbers = range(1, OBSERVATION_COUNT + 1)
        for number in progress.track(numbers, description="observations"):
            writer.publish(observation(number), (1.7e9, 1.7e9 + 0.01), CallLedger())
        for name, query in progress.track(QUERIES.items(), description="queries"):
            took = measure(writer, query)
            figures = (statistics.median(took), quantile(took, 0.9), statistics.mean(took))
            table.add_row(name, *(f"{figure:.2f}" for figure in figures))
        writer.close()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
