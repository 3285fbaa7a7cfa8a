"""What the demonstrations share: how they are called, and their claims with a verdict."""

import argparse
import signal
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from stillframe.errors import StillframeError


def demonstrate_flights(
    name: str,
    description: str | None,
    demonstrate: Callable[[Path, int, float, Console], int],
    *,
    flight_count: int,
    flights_per_s: float,
) -> int:
    """Run a demonstration with flights, as its arguments say.

    Args:
        name: of its module.
        description: for ``--help``.
        demonstrate: called with an empty directory, the number of flights, how many of them are
            sent per second, and the console. It returns the exit code.
        flight_count: how many flights there are, if no argument says it.
        flights_per_s: the same of their rate.

    Returns:
        the exit code: 2 after an error, 130 if it was stopped.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument(
        "--flights", type=int, default=flight_count, help="number of flights; %(default)s"
    )
    parser.add_argument("--per-second", type=float, default=flights_per_s, help="%(default)s")
    arguments = parser.parse_args()
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix=f"stillframe-{name.rpartition('.')[2]}-"))
    # The programs that it started must end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code_of(
        lambda: demonstrate(directory, arguments.flights, arguments.per_second, console),
        directory,
        console,
    )


def exit_code_of(demonstrate: Callable[[], int], directory: Path, console: Console) -> int:
    """Run a demonstration that writes into `directory`, and return its exit code: what it returns,
    2 after an error, or 130 if it was stopped."""
    try:
        return demonstrate()
    except StillframeError as error:
        console.print(f"[red]{error}[/red]")
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; what was done so far is in {directory}")
        return 130


def show_claims(console: Console, claims: Mapping[str, bool]) -> int:
    """Print each claim and whether it holds; return the exit code, 0 if all do."""
    console.print()
    for claim, holds in claims.items():
        verdict = "[green]PASS[/green]" if holds else "[red]FAIL[/red]"
        console.print(f"{verdict}  {claim}", soft_wrap=True)
    return 0 if all(claims.values()) else 1


def range_of(seconds: Sequence[float]) -> str:
    """Return the smallest, the largest and the median time, in words."""
    return f"{min(seconds):.2f} to {max(seconds):.2f} s (median {statistics.median(seconds):.2f} s)"
