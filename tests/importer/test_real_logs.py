"""Logs of real systems, where they are present: their events, messages and cuts are known."""

from collections import Counter
from pathlib import Path

import pytest

from stillframe.cuts import CutView, count_consistent_cuts, cuts_where, definitely
from stillframe.importer.execution import Execution
from stillframe.importer.jsonlines import read_json_lines
from stillframe.importer.shiviz import read_shiviz

PLACES = [parent / "shared" / "traces" for parent in Path(__file__).parents]
TRACES = next(filter(Path.exists, PLACES), PLACES[0])
AKKA = (
    r"\[\w+\] \[(?<date>[^ ]+ [^ ]+)\] [^ ]+ \[akka://Broadcast/user/(?<host>\w+)\] "
    r"(?<clock>\{.*?\}) (?<event>.*)"
)
VOLDEMORT = (
    r"\[(?<date>\d{4}-\d{2}-\d{2} (?:\d{2}:){2}\d{2},\d{3}) (?<path>\S*)\] "
    r"(?<priority>INFO|WARN) (?<event>.*)\n(?<host>\S*) (?<clock>{.*})"
)


def real(name: str) -> Path:
    """Return where a log is; without it the test is passed over."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} is not here: it is no part of this project")
    return path


@pytest.mark.parametrize(
    ("name", "regex", "counts", "ignored_line_count"),
    [
        ("simpledb.log", None, (5, 509, 95), 0),
        ("reliable-broadcast.log", AKKA, (4, 116, 48), 1),
        ("voldemort.log", VOLDEMORT, (20, 864, 34), 0),
    ],
)
def test_logs_that_shiviz_shows_are_read(
    name: str, regex: str | None, counts: tuple[int, int, int], ignored_line_count: int
) -> None:
    """All events of each are found, and the fewest messages that explain their clocks."""
    imported = read_shiviz(real(name), regex=regex)
    trace = imported.executions[0].trace
    assert (len(trace.processes), trace.event_count, trace.message_count) == counts
    assert imported.ignored_line_count == ignored_line_count


@pytest.fixture(scope="module")
def termination() -> Execution:
    """A run of Safra's termination detection: five processes over TCP."""
    return read_json_lines(real("EWD998ChanTrace.ndjson")).executions[0]


def kind_of(fields: dict[str, dict[str, dict[str, str]]] | None) -> str:
    """Return what kind of message an event is about."""
    assert fields is not None
    return fields["pkt"]["msg"]["type"]


def test_every_message_of_the_termination_run_is_matched(termination: Execution) -> None:
    """143 payload, 80 token and 5 termination messages, all received; 128 tokens are logged again
    when their receiver puts them back into its own queue."""
    events = [event for _, event in termination.trace.positions()]
    sent = Counter(kind_of(event.fields) for event in events for _ in event.sent)
    accepted = Counter(kind_of(event.fields) for event in events for _ in event.accepted)
    assert sent == accepted == {"pl": 143, "tok": 80, "trm": 5}
    assert termination.repeat_count == 128


def test_a_message_of_the_termination_run_is_received_as_it_was_sent(
    termination: Execution,
) -> None:
    """The content at both ends is the same, though it was not needed to match most of them."""
    trace = termination.trace
    pairs = [
        (trace.event(trace.sent_in(message)).fields, event.fields)
        for _, event in trace.positions()
        for message in event.accepted
    ]
    assert [a["pkt"]["msg"] for a, _ in pairs if a] == [b["pkt"]["msg"] for _, b in pairs if b]


def is_active(view: CutView, process: str) -> bool:
    """Return whether a process works: from the start, until it says that it no longer does, and
    again from a payload message on."""
    for event in reversed(view.events(process)):
        assert event.fields is not None
        if event.fields["event"] == "d":
            return False
        if event.fields["event"] == "<" and kind_of(event.fields) == "pl":
            return True
    return True


def has_terminated(view: CutView) -> bool:
    """Return whether nobody works and no payload message is in transit."""
    trace = view.trace
    return not any(is_active(view, process) for process in trace.processes) and not any(
        kind_of(trace.event(trace.sent_in(message)).fields) == "pl" for message in view.in_transit()
    )


def test_the_termination_run_had_terminated_in_68_of_its_27650_cuts(termination: Execution) -> None:
    """As is known of this run; and whatever the order was, it did terminate."""
    assert count_consistent_cuts(termination.trace) == 27_650
    assert sum(1 for _ in cuts_where(termination.trace, has_terminated)) == 68
    assert definitely(termination.trace, has_terminated)
