"""What it adds to the recording of a state that its values are compared with what a restore gives.

Each state has some 100 MB and is encoded, compared as a system does it, and compared whole, as in
Python's development mode: in turn, and in processor time, which is what a process stands still for.
"""

import datetime
import time
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import median
from stillframe.restorable import is_restorable, rules_of

ROUND_COUNT = 5
SHARE_MAX = 0.05
STRUCT_COUNT, LIST_COUNT, TIME_COUNT = 2_800_000, 4_000_000, 6_000_000


class Account(msgspec.Struct):
    """A value as many services have it."""

    owner: str
    balance: int


STATES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "dict of Structs": (
        dict[int, Account],
        lambda: {n: Account(f"owner {n}", n) for n in range(STRUCT_COUNT)},
    ),
    "list of lists": (
        list[list[int]],
        lambda: [[n, n + 1, n + 2, n + 3] for n in range(LIST_COUNT)],
    ),
    "list of times": (
        list[datetime.datetime],
        lambda: [datetime.datetime.fromtimestamp(n, datetime.UTC) for n in range(TIME_COUNT)],
    ),
    "Any": (Any, lambda: {n: {"owner": f"owner {n}", "balance": n} for n in range(STRUCT_COUNT)}),
}
ACTS = ("encode", "compare", "compare whole")

Round = dict[str, float]
"""Seconds of processor time of each act."""


async def measure(progress: Progress) -> dict[str, tuple[float, list[Round]]]:
    """Return the MB of each state, and its rounds."""
    found: dict[str, tuple[float, list[Round]]] = {}
    task = progress.add_task("comparisons", total=len(STATES) * ROUND_COUNT * len(ACTS))
    for name, (kind, make) in STATES.items():
        state, rules = make(), rules_of(kind)
        rounds: list[Round] = []
        for _ in range(ROUND_COUNT):
            rounds.append({})
            for act in ACTS:
                began = time.process_time()
                if act == "encode":
                    size = len(msgspec.msgpack.encode(state))
                else:
                    assert is_restorable([(rules, [state])], is_strict=act == "compare whole")
                rounds[-1][act] = time.process_time() - began
                progress.advance(task)
        found[name] = size / 1e6, rounds
    return found


def report(found: dict[str, tuple[float, list[Round]]], console: Console) -> dict[str, Any]:
    """Print the table, and whether what is wanted was met; return the figures."""
    table = Table(title=f"processor time, medians of {ROUND_COUNT} rounds")
    for column in ("state", "MB", "encode", "compare", "share", "compare whole", "share"):
        table.add_column(column, justify="left" if column == "state" else "right")
    figures: dict[str, Any] = {}
    for name, (size_mb, rounds) in found.items():
        encode, some, whole = (median([turn[act] for turn in rounds]) for act in ACTS)
        shares = [median([turn[act] / turn["encode"] for turn in rounds]) for act in ACTS[1:]]
        figures[name] = {"mb": size_mb, "encode_s": encode, "shares": shares}
        table.add_row(
            *(name, f"{size_mb:.0f}", f"{encode * 1e3:,.0f} ms"),
            *(f"{some * 1e3:,.2f} ms", f"{shares[0]:.2%}"),
            *(f"{whole * 1e3:,.0f} ms", f"{shares[1]:.1f} times"),
        )
    console.print(table)
    for name, figure in figures.items():
        figure["is_met"] = figure["shares"][0] <= SHARE_MAX
        met = "[green]met[/green]" if figure["is_met"] else "[red]missed[/red]"
        console.print(f"{name}: {figure['shares'][0]:.2%} (wanted at most {SHARE_MAX:.0%}): {met}")
    return figures
