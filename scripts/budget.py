"""Fail if the last ``./check`` needed far more CPU time than ``tests/costs.json`` records.

``python -m scripts.budget``

CPU time is compared in units of a calibration that ran beside each of the two (``scripts/cpu.py``),
so a slower machine does not count as growth.
"""

import sys

from scripts import cpu

LIMIT = 1.3
"""How many times the recorded units may be needed."""


def main() -> int:
    """Compare, and say what grew if that is too much."""
    if not cpu.MEASURED.exists() or cpu.UNIT not in (now := cpu.read(cpu.MEASURED)):
        print("budget: there are no figures of a whole check: run ./check first", file=sys.stderr)
        return 2
    before = cpu.read(cpu.BASELINE)
    times = cpu.growth(before, now)
    print(f"budget: {times:.2f} times the recorded CPU time; the limit is {LIMIT}")
    if times <= LIMIT:
        return 0
    print("budget: FAILED; what grew:", *cpu.grown(before, now), sep="\n", file=sys.stderr)
    print(
        "budget: make it cheaper; or, if it is worth its cost, copy build/costs.json to "
        "tests/costs.json and say so in the commit",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
