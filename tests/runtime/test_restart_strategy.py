"""How often a system is taken back before it is given up."""

import pytest

from stillframe.errors import ApplicationError, StillframeError
from stillframe.runtime.supervisor.recovery import (
    DEATH_COUNT_MAX,
    FAILURE_COUNT_MAX,
    PAUSE_S_MAX,
    STABLE_S,
    RestartStrategy,
)


def delay_s(
    strategy: RestartStrategy, *, sequence: int = 7, ran_s: float = 1.0, failure: str | None = None
) -> float:
    """Note a death after snapshot P1-7."""
    return strategy.next_delay_s(
        sequence=sequence, where="snapshot P1-7", ran_s=ran_s, failure=failure
    )


def test_the_first_death_waits_for_nothing_and_others_longer_and_longer() -> None:
    """A system that dies at once must not keep the machine busy with dying."""
    strategy = RestartStrategy()
    pauses = [delay_s(strategy) for _ in range(DEATH_COUNT_MAX - 1)]
    assert pauses[0] == 0.0
    assert pauses[1:4] == [0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_S_MAX
    with pytest.raises(StillframeError, match="20 times in a row after a start from snapshot P1-7"):
        delay_s(strategy)


@pytest.mark.parametrize("progress", [{"sequence": 8}, {"ran_s": STABLE_S}])
def test_progress_begins_the_count_anew(progress: dict[str, int]) -> None:
    """A new snapshot, or a minute without a death."""
    strategy = RestartStrategy()
    for _ in range(DEATH_COUNT_MAX - 1):
        delay_s(strategy)
    assert delay_s(strategy, **progress) == 0.0  # type: ignore[arg-type]


def test_an_application_that_fails_again_and_again_is_given_up_sooner() -> None:
    """With its own words, and what to do."""
    strategy = RestartStrategy()
    for _ in range(FAILURE_COUNT_MAX - 1):
        delay_s(strategy, failure="receive() raised ValueError")
    with pytest.raises(ApplicationError, match="raised ValueError\nIt failed 3 times in a row"):
        delay_s(strategy, failure="receive() raised ValueError")


def test_a_kill_between_failures_is_no_failure_of_the_application() -> None:
    """Only failures that follow each other count."""
    strategy = RestartStrategy()
    for _ in range(4):
        delay_s(strategy, failure="receive() raised ValueError")
        delay_s(strategy)
    assert delay_s(strategy, failure="receive() raised ValueError") > 0


def test_a_program_that_fails_between_snapshots_is_given_up_too() -> None:
    """A snapshot that was taken before each failure is no progress of the program."""
    strategy = RestartStrategy()
    for sequence in range(FAILURE_COUNT_MAX - 1):
        delay_s(strategy, sequence=sequence, failure="receive() raised ValueError")
    with pytest.raises(ApplicationError):
        delay_s(strategy, sequence=9, failure="receive() raised ValueError")
