"""The legend below a diagram: the symbols, and the contents of each cut."""

from collections.abc import Iterator, Sequence

import msgspec

from stillframe.diagram import text_metrics
from stillframe.diagram.cut_styles import StyledCut
from stillframe.diagram.shapes import Sample
from stillframe.diagram.text_metrics import count
from stillframe.diagram.window import Window
from stillframe.trace import MessageId, Position, Trace

CUTS_MAX = 8
CHANNELS_MAX = 12
NAMES_MAX = 12
NAME_CHARS_MAX = 24


class Row(msgspec.Struct, frozen=True):
    """A symbol and its explanation."""

    sample: Sample
    colour: int
    text: str


def rows(
    trace: Trace,
    window: Window,
    cuts: Sequence[StyledCut],
    chosen: StyledCut | None,
    step_count: int,
) -> Iterator[Row]:
    """Yield the legend of the diagram after `step_count` steps of the window.

    A row that is present after a step is still present after the next.
    """
    if chosen is not None:
        yield Row(Sample.RECORDED, chosen.colour, f"event before {_the(chosen)}")
    if window.markers:
        yield Row(Sample.MARKER, cuts[0].colour, "marker, in the colour of its snapshot")
    listed = [chosen] if chosen is not None else []
    listed += [cut for cut in cuts if cut is not chosen]
    for cut in listed[:CUTS_MAX]:
        yield Row(Sample.CUT, cut.colour, summary(trace, cut, step_count))
        if cut is chosen:
            yield from _contents(trace, cut, step_count)
    if len(listed) > CUTS_MAX:
        yield Row(Sample.NOTHING, 0, f"and {count(len(listed) - CUTS_MAX, 'other cut')}")


def summary(trace: Trace, cut: StyledCut, step_count: int) -> str:
    """Return a sentence on what is known of `cut` after `step_count` steps of the window."""
    known = sum(cut.has_reached(process, step_count) for process in trace.processes)
    if known < len(trace.processes):
        did = "recorded their states" if cut.snapshot is not None else "reached it"
        return f"{cut.name}: {known} of {count(len(trace.processes), 'process')} {did}"
    if cut.orphans:
        return f"{cut.name}: NOT consistent: {count(len(cut.orphans), 'effect')} without a cause"
    caught = sum(map(len, cut.in_transit.values()))
    return f"{cut.name}: consistent, with {count(caught, 'message')} in transit"


def name_of(trace: Trace, message: MessageId) -> str:
    """Return the name of a message: the labels of the events that send and accept it, else its
    number."""
    target = trace.accepted_in(message)
    sender = _label(trace, trace.sent_in(message))
    if not sender:
        return f"#{message.number}"
    if target is None:
        return f"{sender}→{text_metrics.ELLIPSIS}"
    accepter = _label(trace, target)
    return f"{sender}→{accepter}" if accepter else f"#{message.number}"


def _contents(trace: Trace, cut: StyledCut, step_count: int) -> Iterator[Row]:
    full = [
        (channel, messages)
        for channel, messages in cut.in_transit.items()
        if messages and cut.is_between_reached(channel, step_count)
    ]
    for channel, messages in full[:CHANNELS_MAX]:
        yield Row(Sample.CAUGHT, 0, f"channel {channel}: {_list(trace, messages)}")
    if len(full) > CHANNELS_MAX:
        others = count(len(full) - CHANNELS_MAX, "other channel")
        yield Row(Sample.NOTHING, 0, f"and messages on {others}")
    if all(cut.has_reached(process, step_count) for process in trace.processes):
        filled = {channel for channel, _ in full}
        # More was accepted on them than sent: they have no contents, not even none.
        broken = {orphan.channel for orphan in cut.orphans} - filled
        empty = count(len(trace.channels) - len(filled) - len(broken), "channel")
        without = f", {count(len(broken), 'channel')} without possible contents" if broken else ""
        yield Row(Sample.NOTHING, 0, f"{empty} empty{without}")
    orphans = [
        orphan for orphan in cut.orphans if cut.is_between_reached(orphan.channel, step_count)
    ]
    if orphans:
        yield Row(
            Sample.ORPHAN, 0, f"accepted before it, but sent after it: {_list(trace, orphans)}"
        )


def _list(trace: Trace, messages: Sequence[MessageId]) -> str:
    names = ", ".join(name_of(trace, message) for message in messages[:NAMES_MAX])
    rest = len(messages) - NAMES_MAX
    return f"{names} and {rest:,} more" if rest > 0 else names


def _the(cut: StyledCut) -> str:
    if cut.snapshot is not None:
        return f"the cut of {cut.name}"
    return "the cut" if cut.name == "cut" else cut.name


def _label(trace: Trace, position: Position) -> str:
    return text_metrics.clean(trace.event(position).label, char_count_max=NAME_CHARS_MAX)
