"""What is told of a trace is what the narrator of a simulated world tells of it."""

import re

import pytest

from stillframe.diagram import window
from stillframe.pages.player_document import script_story, trace_lines, trace_story
from stillframe.trace import Event, MarkerStep, Trace
from tests.diagram.runs import EK, SNAPSHOT, by_chance, lecture
from tests.diagram.scripts import NAMES, played, trace_of


def whole(trace: Trace) -> window.Window:
    """Return a window on all of a trace."""
    return window.select(trace, first=1, step_count_max=10_000)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-ticks")])
def test_a_trace_is_told_as_the_narrator_does(name: str) -> None:
    """Each rule in the same words, made from the steps alone."""
    trace = trace_of(name)
    story = script_story(played(name), whole(trace))
    told = trace_lines(trace, whole(trace), story.name)
    assert [lines[0] for lines in story.lines] == [line for (line,) in told]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_told_in_the_words_of_its_file(name: str) -> None:
    """Every line that happened is told with the step that it followed, in order."""
    trace = trace_of(name)
    story = script_story(played(name), whole(trace))
    assert len(story.lines) == len(trace.steps)
    told = [line.strip() for lines in story.lines for line in lines]
    happened = [
        re.sub(r"^ *\d+ {2}", "", line).strip() for lines in played(name).happened for line in lines
    ]
    assert [line for line in happened if line in told] == told


def test_a_part_is_told_as_the_whole() -> None:
    """Of the steps that are shown the same is said wherever the window begins."""
    trace = by_chance(5, 4, 60, 1)
    part = window.select(trace, first=11, step_count_max=20)
    lines = trace_story(trace, whole(trace)).lines[10:30]
    about = [line for line in lines if isinstance(trace.steps[10 + lines.index(line)], Event)]
    assert about
    assert len(trace_story(trace, part).lines) == 20
    kept = [(a, b) for (a,), (b,) in zip(lines, trace_story(trace, part).lines, strict=True)]
    assert all(a.startswith(b) for a, b in kept)


def test_what_has_no_name_has_a_number() -> None:
    """Events and messages without a label are named after their place; many events are counted."""
    silent = [
        step
        if isinstance(step, MarkerStep)
        else Event(step.process, accepted=step.accepted, sent=step.sent)
        for step in lecture().steps
    ]
    trace = Trace(["P1", "P2", "P3"], silent)
    story = trace_story(trace, whole(trace))
    assert story.lines[0] == ("P1 does event P1#1",)
    assert story.lines[1] == ("P1 does event P1#2; sends #1 to P2",)
    assert story.lines[5] == ("P2 accepts #1 from P1: does event P2#1",)
    assert "records its state after 2 events" in story.lines[2][0]
    assert story.name(EK) == "#1"
    assert story.state(SNAPSHOT, "P2", 3) == "after 3 events"


def test_a_marker_that_comes_before_what_was_sent_ahead_of_it_ends_nothing() -> None:
    """Channels that keep no order: the recording goes on, and that is said."""
    steps = list(lecture().steps)
    steps[12], steps[13] = steps[13], steps[12]
    trace = Trace(["P1", "P2", "P3"], steps)
    lines = trace_story(trace, whole(trace)).lines
    assert lines[12][0].endswith("keeps recording P2->P1, where more was sent before the cut")
    assert lines[13][0].endswith("P2->P1 keeps H→D for P1-1")
