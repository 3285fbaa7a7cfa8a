"""One picture of all steps: at each of them what is shown is the picture of that step."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings

from stillframe.diagram import animated_svg, layout, svg
from stillframe.diagram.cuts import Choice
from stillframe.trace import Event, Trace
from tests.diagram.runs import lecture, traces
from tests.diagram.scripts import NAMES, trace_of
from tests.nightly import examples

GROUP = re.compile(
    r'<g(?: class="(white|red)")?(?: data-step="(\d+)")?(?: data-from="(\d+)")?'
    r'(?: data-to="(\d+)")?(?: data-choices="([\d ]+)")?>(<(?:g|line|path).*)</g>'
)


def shown(picture: str, step: int, choice: int) -> Counter[str]:
    """Return what a page shows of `picture`: what it does not show is hidden by its attributes."""
    found: Counter[str] = Counter()
    for line in picture.splitlines()[1:-1]:
        group = GROUP.fullmatch(line)
        if group is None:
            found[line] += 1
            continue
        _, _, begin, end, choices, drawn = group.groups()
        is_there = int(begin or 0) <= step and (end is None or step < int(end))
        if is_there and (choices is None or choice in map(int, choices.split())):
            found[drawn] += 1
    return found


def drawn(trace: Trace, choice: Choice, step: int) -> Counter[str]:
    """Return what is drawn of the picture of a step."""
    cuts = [choice.cut] if choice.cut is not None else []
    picture = layout.lay_out(trace, snapshot=choice.snapshot, cuts=cuts, steps=step)
    return Counter(put(shape) for shapes, put in svg.layers(picture) for shape in shapes)


def choices_of(trace: Trace) -> list[Choice]:
    """Return every snapshot, and the cut in the middle."""
    middle = tuple(count // 2 for count in trace.end)
    return [*map(Choice, trace.snapshots), Choice(cut=middle)]


@settings(max_examples=examples(25))
@given(traces(step_count_max=20))
def test_each_step_is_the_picture_of_that_step(trace: Trace) -> None:
    """Whatever the execution and the cut that was chosen: nothing more is there, nothing less."""
    choices = choices_of(trace)
    picture = animated_svg.draw(trace, choices)
    for number, choice in enumerate(choices):
        for step in range(0, len(trace.steps) + 1, 3):
            assert shown(picture, step, number) == drawn(trace, choice, step)


@pytest.mark.parametrize("name", NAMES)
def test_each_step_of_a_script_is_its_picture(name: str) -> None:
    """Of every script that comes with stillframe, and every step."""
    trace = trace_of(name)
    choices = choices_of(trace)
    picture = animated_svg.draw(trace, choices)
    for number, choice in enumerate(choices):
        for step in range(len(trace.steps) + 1):
            assert shown(picture, step, number) == drawn(trace, choice, step)


def test_events_are_white_before_the_cut_of_their_process_and_red_after_it() -> None:
    """From the first step on in which they are there; and each says which step it is."""
    trace = lecture()
    picture = animated_svg.draw(trace, [Choice(trace.snapshots[0])])
    colours: dict[str, set[str]] = {}
    for line in picture.splitlines():
        group = GROUP.fullmatch(line)
        if group is not None and group[1] is not None:
            step = trace.steps[int(group[2]) - 1]
            assert isinstance(step, Event)
            assert int(group[3]) >= int(group[2])
            colours.setdefault(group[1], set()).add(step.label)
    assert colours == {"white": {*"ABFGHI"}, "red": {*"CDEJK"}}


def test_without_a_cut_there_are_no_colours() -> None:
    """A trace of a system that takes no snapshots can be gone through as well."""
    trace = Trace(["P1"], [Event("P1", "A"), Event("P1", "B")])
    picture = animated_svg.draw(trace, [])
    assert 'class="white"' not in picture
    assert 'class="red"' not in picture
    assert picture.count("data-step=") == 2


def test_what_is_always_there_is_there_once() -> None:
    """The lines are no group of any choice, however many snapshots there are."""
    trace = trace_of("two-initiators")
    lines = animated_svg.draw(trace, choices_of(trace)).splitlines()
    assert sum(line.startswith('<line class="line"') for line in lines) == len(trace.processes)


@pytest.mark.parametrize("first", [1, 4])
def test_a_cut_is_inside_the_element(first: int) -> None:
    """Its curve goes beyond the first and the last line, and none of it is cut off."""
    trace = lecture()
    picture = animated_svg.draw(trace, [Choice(trace.snapshots[0])], first=first)
    box = re.search(r'viewBox="0 (\d+) \d+ (\d+)"', picture)
    assert box is not None
    (curve,) = re.findall(r'class="cut" d="([^"]+)"', picture)
    ys = [float(y) for y in re.findall(r",([\d.]+)", curve)]
    assert int(box[1]) <= min(ys)
    assert max(ys) <= int(box[1]) + int(box[2])
