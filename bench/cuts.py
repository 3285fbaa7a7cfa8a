"""Consistent cuts per second: gone through one by one, looked at by a predicate, and counted.

``python -m bench.cuts`` prints the medians of several rounds. The traces come from a fixed seed.
"""

import time
from collections import Counter
from itertools import islice
from random import Random

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import median
from stillframe.cuts import CutView, consistent_cuts, count_consistent_cuts
from stillframe.model import Channel
from stillframe.trace import Event, MessageId, Trace

ROUND_COUNT = 5
WALKED_COUNT_MAX = 50_000
"""So many cuts of a trace are gone through in each round, if it has them."""
SEED = 1
SHAPES = {
    "2 processes, 200,000 events, quick messages": (2, 200_000, 10),
    "3 processes, 3,000 events, slow messages": (3, 3_000, 200),
    "5 processes, 654 events, quick messages": (5, 654, 10),
    "5 processes, 654 events, slow messages": (5, 654, 200),
    "8 processes, 1,000 events, quick messages": (8, 1_000, 10),
}
"""Name to: processes, events of all, and how many events a message may be on its way, and more if
its target has other things to do."""
SENDING_SHARE = 0.4


def chance_trace(process_count: int, event_count: int, delay_max: int) -> Trace:
    """Return events of processes by chance, each of which sends to any other now and then."""
    chance = Random(SEED)
    names = [f"P{index}" for index in range(process_count)]
    arriving: dict[str, list[tuple[int, MessageId]]] = {name: [] for name in names}
    sent_counts = Counter[Channel]()
    events = []
    for now in range(event_count):
        name = chance.choice(names)
        due = next((entry for entry in arriving[name] if entry[0] <= now), None)
        if due is not None:
            arriving[name].remove(due)
        sent = []
        if chance.random() < SENDING_SHARE:
            channel = Channel(name, chance.choice([other for other in names if other != name]))
            sent_counts[channel] += 1
            sent.append(MessageId(channel, sent_counts[channel]))
            arriving[channel.target].append((now + chance.randint(1, delay_max), sent[0]))
        events.append(Event(name, accepted=() if due is None else (due[1],), sent=tuple(sent)))
    return Trace(names, events)


def measure(trace: Trace) -> dict[str, float]:
    """Return the figures of one round. Processor time, because the machine may have other work.

    Preparing a trace is measured by itself: for a long one it takes longer than many cuts do.
    """
    began = time.process_time()
    cuts = consistent_cuts(trace)
    next(cuts)
    prepared = time.process_time()
    walked_count = sum(1 for _ in islice(cuts, WALKED_COUNT_MAX))
    walked = time.process_time()
    view = CutView(trace, (0,) * len(trace.processes))
    cuts = consistent_cuts(trace)
    next(cuts)
    viewed = time.process_time()
    for cut in islice(cuts, WALKED_COUNT_MAX):
        view.at(cut).in_transit()
    looked = time.process_time()
    count_consistent_cuts(trace)
    counted = time.process_time()
    return {
        "first cut, ms": (prepared - began) * 1000,
        "then walked /s": walked_count / (walked - prepared),
        "looked at /s": walked_count / (looked - viewed),
        "counted in, ms": (counted - looked) * 1000,
    }


def main() -> None:
    """Measure every shape in turn, round by round, and print the medians."""
    traces = {name: chance_trace(*shape) for name, shape in SHAPES.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in traces}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for _ in progress.track(range(ROUND_COUNT), description="cuts"):
            for name, trace in traces.items():
                rounds[name].append(measure(trace))
    table = Table(
        title=f"consistent cuts, processor time of one core, median of {ROUND_COUNT} rounds",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("trace")
    for column in ("cuts", *next(iter(rounds.values()))[0], "counted /s"):
        table.add_column(column, justify="right")
    for name, turns in rounds.items():
        count = count_consistent_cuts(traces[name])
        figures = {what: median([turn[what] for turn in turns]) for what in turns[0]}
        per_second = count / figures["counted in, ms"] * 1000
        table.add_row(
            name, f"{count:,}", *(f"{figure:,.0f}" for figure in (*figures.values(), per_second))
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
