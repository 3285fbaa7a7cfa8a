"""Logs whose clocks contradict themselves are refused for the right reason, others accepted."""

import msgspec
import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.importer import clocks as clocks_module
from stillframe.importer.clocks import ClockedEvent, decode_clock
from stillframe.importer.execution import build
from tests.importer.logs import log_of

Row = tuple[str, dict[str, int]]

CONTRADICTIONS: list[tuple[str, list[Row], str]] = [
    (
        "own entry missing",
        [("a", {"a": 1}), ("b", {"a": 1})],
        "log, line 2, host 'b': the clock has no entry for its own host",
    ),
    (
        "own entry 0",
        [("a", {"a": 0})],
        "log, line 1, host 'a': the clock has 0 for its own host: an event counts itself, from 1",
    ),
    (
        "a number below 0",
        [("a", {"a": 1, "b": -1})],
        "log, line 1, host 'a': the clock has a number below 0",
    ),
    (
        "a number too large",
        [("a", {"a": 2**63})],
        "log, line 1, host 'a': the clock counts more than 9223372036854775807 events",
    ),
    (
        "gap",
        [("a", {"a": 1}), ("a", {"a": 3})],
        (
            "log, line 2, host 'a': "
            "the clock has 3 for its own host, but no event of this host has 2: "
            "numbers go 1, 2, 3... without a gap. Is a line missing? If the log leaves out events, "
            "give --fill-gaps"
        ),
    ),
    (
        "no first event",
        [("a", {"a": 2})],
        (
            "log, line 1, host 'a': "
            "the clock has 2 for its own host, but no event of this host has 1: "
            "numbers go 1, 2, 3... without a gap. Is a line missing? If the log leaves out events, "
            "give --fill-gaps"
        ),
    ),
    (
        "a number twice",
        [("a", {"a": 1}), ("b", {"b": 1}), ("a", {"a": 1})],
        (
            "log, line 3, host 'a': the clock has 1 for its own host, as line 1 has: each event "
            "of a host has a different number. Likely causes: the log has several executions "
            "(split it, and import each alone); two processes have one name (give each its "
            "own); or a process restarted and counted from 1 again (give it a new name, or import "
            "the log of each start separately)"
        ),
    ),
    (
        "unknown host",
        [("a", {"a": 1, "x": 2})],
        (
            "log, line 1, host 'a': the clock has 2 for host 'x', "
            "which is unknown: it has no event in this log. Import all files of the log together. "
            "If it leaves out this host's events, give --fill-gaps"
        ),
    ),
    (
        "a value that nobody reached",
        [("a", {"a": 1}), ("b", {"b": 1, "a": 2})],
        (
            "log, line 2, host 'b': the clock has 2 for host 'a', which reached only 1: "
            "is a line missing? If the log leaves out events, give --fill-gaps"
        ),
    ),
    (
        "an entry that falls",
        [("a", {"a": 1}), ("a", {"a": 2}), ("b", {"b": 1, "a": 2}), ("b", {"b": 2, "a": 1})],
        (
            "log, line 4, host 'b': the clock has 1 for host 'a', but line 3, earlier on this "
            "host, has 2: entries never decrease"
        ),
    ),
    (
        "an entry that falls while another rises",
        [("a", {"a": 1}), ("c", {"c": 1}), ("b", {"b": 1, "a": 1}), ("b", {"b": 2, "c": 1})],
        (
            "log, line 4, host 'b': the clock has 0 for host 'a', but line 3, earlier on this "
            "host, has 1: entries never decrease"
        ),
    ),
    (
        "not transitive",
        [("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("c", {"c": 1, "b": 1})],
        (
            "log, line 3, host 'c': "
            "the clocks are not transitive: this one knows event 1 of host 'b' "
            "(line 2), which has 1 for host 'a', but has only 0 itself"
        ),
    ),
    (
        "two events that know each other",
        [("a", {"a": 1, "b": 1}), ("b", {"b": 1, "a": 1})],
        (
            "log, line 1, host 'a': "
            "the clock knows event 1 of host 'b' (line 2), which knows event 1 "
            "of this host: event 1 would have happened before itself"
        ),
    ),
    (
        "an event that knows its own future",
        [("a", {"a": 1, "b": 1}), ("a", {"a": 2, "b": 1}), ("b", {"b": 1, "a": 2})],
        (
            "log, line 1, host 'a': "
            "the clock knows event 1 of host 'b' (line 3), which knows event 2 "
            "of this host: event 1 would have happened before itself"
        ),
    ),
]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [case[1:] for case in CONTRADICTIONS],
    ids=[case[0] for case in CONTRADICTIONS],
)
def test_a_contradiction_is_named_with_line_and_host(rows: list[Row], sentence: str) -> None:
    """Each way in which clocks can contradict themselves has a sentence of its own."""
    with pytest.raises(NotConsistent) as error:
        build(log_of(*rows), where="log")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "rows",
    [
        [("a", {"a": 2}), ("b", {"b": 1, "a": 2}), ("a", {"a": 1})],
        [("a", {"a": 1, "b": 0, "x": 0}), ("b", {"a": 1, "b": 1})],
        [("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("c", {"c": 1, "b": 1, "a": 1})],
    ],
    ids=["lines in any order", "entries of 0, even of a stranger", "a chain of three"],
)
def test_what_is_allowed_is_accepted(rows: list[Row]) -> None:
    """Logs need not be sorted, and may say that they know nothing."""
    execution = build(log_of(*rows), where="log")
    assert execution.trace.event_count == len(rows)
    assert set(execution.trace.processes) == {host for host, _ in rows}


def test_the_number_of_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose hosts are no hosts is refused before it takes all memory."""
    monkeypatch.setattr(clocks_module, "HOST_COUNT_MAX", 2)
    with pytest.raises(UsageError, match=r"log, line 1: more than 2 hosts .*: is 'c' really one"):
        build(log_of(("a", {"a": 1, "b": 0, "c": 0})), where="log")


def test_a_host_that_comes_twice_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with itself alone, however large the clock is."""
    compared: list[object] = []

    class Host(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    pairs = [(Host(number), 1) for number in [*range(100), 99]]
    monkeypatch.setattr("json.loads", lambda *_, **__: pairs)
    with pytest.raises(msgspec.ValidationError, match="it has host '99' twice"):
        decode_clock('{"99": 1, "99": 1}')
    assert len(compared) == 1


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears how many events are checked."""
    monkeypatch.setattr(clocks_module, "PROGRESS_STEP", 2)
    told: list[tuple[str, int, int]] = []

    def progress(phase: str, done: int, total: int) -> None:
        told.append((phase, done, total))

    events = [ClockedEvent(n, "a", {"a": n}, "") for n in range(1, 6)]
    build(events, where="log", progress=progress)
    assert told == [("checking", 2, 5), ("checking", 4, 5)]
