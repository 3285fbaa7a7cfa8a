"""What a demonstration claims, printed with its verdict, and what it measured."""

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console


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
