"""Tests at night: the long forms, with fresh seeds (``./check nightly``).

A test that also runs at night carries ``@pytest.mark.nightly(part="soak")``; one that has no short
form adds ``only=True`` and is left out of ``./check``. ``by_night`` and ``seeds`` give each form
its size and seeds, and ``figure`` records what the long form measured. Everything random at night
follows from one seed: ``./check nightly`` prints it, ``./check nightly PART --seed N`` replays it.
"""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

SEED_VARIABLE = "STILLFRAME_NIGHTLY_SEED"
SEED = int(os.environ[SEED_VARIABLE]) if SEED_VARIABLE in os.environ else None
"""The seed of this night; None in ``./check``."""
PART = os.environ.get("STILLFRAME_NIGHTLY_PART", "")
RESULTS = Path(__file__).parent.parent / "build" / "nightly"
PARTS = (
    "soak",  # kills, restores and faults at random moments
    "hostile",  # frames and files by the hundred thousand
    "exactness",  # the full product of states at snapshots on Spark
    "simulator",  # simulated systems by the thousand
    "pipelines",  # restores and replays of whole pipelines on Spark
    "verdicts",  # stores and event logs by the thousand, against brute force
    "storage",  # object storage, on a real S3 server
    "generated",  # every property test, with many examples
)
BEGAN = time.monotonic()
EXAMPLE_FACTOR = 10
EXAMPLE_COUNT = 50
CASE_COUNT_MAX = 6
"""Of so many cases of a test, each figure is in the table."""

Value = TypeVar("Value")
Figure = Callable[[str, object], None]


def by_night(night: Value, *, check: Value) -> Value:
    """Return `night` in ``./check nightly``, `check` otherwise."""
    return check if SEED is None else night


def examples(count: int) -> int:
    """Return how many examples a property test generates: `count`, at night many times that."""
    return by_night(count * EXAMPLE_FACTOR, check=count)


def seeds(purpose: str, *fixed: int, night: int = 0) -> tuple[int, ...]:
    """Return the seeds of a test.

    Args:
        purpose: a name that distinguishes this test's seeds from those of others.
        fixed: the seeds in ``./check``; they also run at night.
        night: the number of additional fresh seeds at night.
    """
    if SEED is None:
        return fixed
    chance = random.Random(f"{SEED}:{purpose}")
    return fixed + tuple(chance.randrange(2**31) for _ in range(night))


def configure() -> None:
    """Choose the number of examples of property tests; none has a deadline, because the machine may
    be busy."""
    hypothesis.settings.register_profile(
        "stillframe", deadline=None, print_blob=True, max_examples=examples(EXAMPLE_COUNT)
    )
    hypothesis.settings.load_profile("stillframe")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what has no short form, and put property tests into their part of the night."""
    left_out = []
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if is_property and not item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.nightly(part="generated"))
        marker = item.get_closest_marker("nightly")
        if marker is None:
            continue
        if marker.kwargs["part"] not in PARTS:
            raise pytest.UsageError(f"{item.nodeid}: the parts of a night are {', '.join(PARTS)}")
        only = any(one.kwargs.get("only") for one in item.iter_markers("nightly"))
        if SEED is None and only:
            left_out.append(item)
    if left_out:
        kept = set(items) - set(left_out)
        items[:] = [item for item in items if item in kept]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Record a figure that the run reports: ``figure("kills", 40)``."""
    return record_property


def begin(config: pytest.Config) -> None:
    """Replace what an earlier night kept of this part: a run that is killed reports nothing.

    Args:
        config: pytest's configuration.
    """
    if _reports(config):
        _keep(finished=False, passed=0, failed=set(), figures={})


def report(reporter: Any, status: int) -> None:
    """Print the figures of a part of the night; keep them, and the seed with what failed, in a
    file.

    Args:
        reporter: pytest's reporter, with the outcome of every test.
        status: pytest's exit code, which tells whether the part finished.
    """
    if not _reports(reporter.config):
        return
    figures: dict[str, dict[str, Any]] = {}
    failed = set()
    for outcome in ("passed", "failed", "error"):
        for test in reporter.stats.get(outcome, []):
            if outcome != "passed":
                failed.add(test.nodeid)
            # A file that could not be collected has none.
            if getattr(test, "user_properties", None):
                figures[test.nodeid.partition("@")[0]] = dict(test.user_properties)
    figures = dict(sorted(figures.items()))
    _keep(
        finished=status in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED},
        passed=len(reporter.stats.get("passed", [])),
        failed=failed,
        figures=figures,
    )
    reporter.section(f"figures of {PART}, seed {SEED}")
    for test, values in figures.items():
        reporter.line(f"{test.rpartition('::')[2]}: {listed(values)}")
    if failed:
        reporter.line(f"replay with: ./check nightly {PART} --seed {SEED}")


def _reports(config: pytest.Config) -> bool:
    """Return whether this process reports a night: each that pytest-xdist starts knows only of its
    own tests, and outlives one that is killed."""
    return SEED is not None and not hasattr(config, "workerinput")


def _keep(
    *, finished: bool, passed: int, failed: set[str], figures: dict[str, dict[str, Any]]
) -> None:
    """Write what is known of this part."""
    result = {
        "seed": SEED,
        "finished": finished,
        "passed": passed,
        "failed": sorted(failed),
        "minutes": round((time.monotonic() - BEGAN) / 60, 1),
        "figures": figures,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{PART}.json").write_text(json.dumps(result, indent=1))


def listed(values: dict[str, Any]) -> str:
    """Return figures as a sentence has them."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def together(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the figures of each test with those of its other cases: all, or from the least to the
    greatest where there are many."""
    cases: dict[str, dict[str, list[Any]]] = {}
    for test, values in figures.items():
        for name, value in values.items():
            cases.setdefault(test.partition("[")[0], {}).setdefault(name, []).append(value)
    return {
        test: {
            name: f"{min(values)} to {max(values)}"
            if len(values) > CASE_COUNT_MAX
            else " / ".join(map(str, values))
            for name, values in of_test.items()
        }
        for test, of_test in cases.items()
    }


def table() -> str:
    """Return the figures of the last night as a table in Markdown."""
    lines = ["| part | seed | minutes | tests | what it measured |", "|---|---|---|---|---|"]
    for part in PARTS:
        path = RESULTS / f"{part}.json"
        if path.exists():
            night = json.loads(path.read_text())
            said = "; ".join(
                f"{Path(test.partition('::')[0]).stem.removeprefix('test_')}: {listed(values)}"
                for test, values in together(night["figures"]).items()
            )
            tests = f"{night['passed']:,} passed, {len(night['failed'])} failed"
            if not night.get("finished", False):
                tests += ", not finished"
            lines.append(f"| {part} | {night['seed']} | {night['minutes']} | {tests} | {said} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201 - this is what it is run for
