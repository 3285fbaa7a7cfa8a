"""What comes after a snapshot that was given up."""

import itertools

import pytest

from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.protocol.policy import (
    TOLD_COUNT_MAX,
    TRY_COUNT_MAX,
    AbandonmentLimit,
    Policy,
    next_initiator,
)
from tests.protocol.execution import describe

TRIO = describe("ABC", [("A", "B"), ("B", "C"), ("C", "A")])


def ended(reason: Reason, number: int = 1) -> Abandoned:
    """Return a snapshot that was given up."""
    return Abandoned(SnapshotId("A", number), reason, ("C",), "because")


def successor(
    tried: str, at_fault: str, reason: Reason = Reason.DEADLINE, policy: Policy = Policy.RETRY
) -> str | None:
    """Return who tries next."""
    return next_initiator(policy, ended(reason), tried=tried, at_fault=at_fault, description=TRIO)


@pytest.mark.parametrize(
    ("tried", "at_fault", "expected"),
    [
        ("A", "C", "B"),
        ("A", "B", "C"),
        ("AB", "C", "A"),
        ("A", "BC", "A"),
        ("A", "ABC", None),
        ("ABA", "C", None),
    ],
)
def test_another_that_is_not_at_fault_tries_again(
    tried: str, at_fault: str, expected: str | None
) -> None:
    """One that has not tried comes first; then any that is able; and not for ever."""
    assert successor(tried, at_fault) == expected


def test_only_what_may_go_better_is_tried_again() -> None:
    """Not after a death, a stop, a full disk or a contradiction; and only if that is the policy."""
    again = {reason for reason in Reason if successor("A", "C", reason) is not None}
    assert again == {Reason.DEADLINE, Reason.NOT_RECORDED}
    for policy in (Policy.ABANDON, Policy.EXCLUDE):
        assert successor("A", "C", policy=policy) is None


def test_for_every_fault_tries_end_and_nobody_at_fault_initiates() -> None:
    """Over all sets of processes at fault, try by try."""
    for count in range(4):
        for at_fault in itertools.combinations("ABC", count):
            tried = "A"
            while (process := successor(tried, "".join(at_fault))) is not None:
                assert process not in at_fault
                tried += process
            assert len(tried) <= TRY_COUNT_MAX
            able = set("ABC") - set(at_fault)
            assert len(tried) == (TRY_COUNT_MAX if able else 1)
            assert able - set(tried) == set() or len(able) == 3


def outcome(letters: str, count_max: int | None) -> list[bool]:
    """Tell a tolerance of snapshots: p published, d late, k a death, s a stop; return what of it
    was too much."""
    reasons = {"d": Reason.DEADLINE, "k": Reason.PROCESS_DIED, "s": Reason.STOPPED}
    tolerance, answers = AbandonmentLimit(count_max), []
    for letter in letters:
        if letter == "p":
            tolerance.published()
            answers.append(False)
        else:
            answers.append(tolerance.abandoned(ended(reasons[letter])) is not None)
    return answers


def test_exactly_the_rows_that_are_too_long_end_a_run() -> None:
    """Every sequence of six against a recount: a death or a stop neither counts nor ends a row."""
    for letters in map("".join, itertools.product("pdks", repeat=6)):
        for count_max in (0, 1, 2):
            expected = []
            for index, letter in enumerate(letters):
                row = letters[: index + 1].rpartition("p")[2]
                expected.append(letter == "d" and row.count("d") > count_max)
            assert outcome(letters, count_max) == expected, letters
        assert not any(outcome(letters, None))


def test_the_last_of_a_row_are_told_with_who_was_missing() -> None:
    """And what to do."""
    tolerance = AbandonmentLimit(4)
    answers = [tolerance.abandoned(ended(Reason.DEADLINE, number)) for number in range(1, 6)]
    assert answers[:4] == [None] * 4
    words = answers[4] or ""
    assert words.startswith("5 snapshots in a row were abandoned, and 4 are tolerated")
    assert [f"A-{number} was" in words for number in range(1, 6)] == [False, False] + [True] * 3
    assert words.count("missing: C; because") == TOLD_COUNT_MAX
    assert "--timeout" in words
