"""The recording of a snapshot, rule by rule (Chandy & Lamport, TOCS 1985, section 3.2)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stillframe.eventlog.around import Lane
from stillframe.eventlog.schema import ACCEPTED, SENT
from stillframe.model import Channel, ChannelState, ProcessId, Snapshot
from stillframe.trace import MessageId
from stillframe.view.legend import count
from stillframe.view.logged_cut import LoggedCut, LoggedStep
from stillframe.view.shapes import Diagram

STEPS_MAX = 400
_LISTED_MAX = 6
SENDING = (
    "Marker-sending rule: for each channel c directed away from p, p sends one marker along c "
    "after p records its state and before p sends further messages along c."
)
RECEIVING_FIRST = (
    "Marker-receiving rule: if q has not recorded its state then q records its state; q records "
    "the state of c as the empty sequence."
)
RECEIVING_LATER = (
    "Marker-receiving rule: else q records the state of c as the sequence of messages received "
    "along c after q's state was recorded and before q received the marker along c."
)


def steps(cut: LoggedCut, snapshot: Snapshot) -> tuple[list[dict[str, Any]], int]:
    """Return the steps of the snapshot for a page: of each a sentence, the rule that it follows,
    and the keys of what it is in the diagram; and how many are left out, if they are many."""
    chosen = list(cut.steps)
    if len(chosen) > STEPS_MAX:
        chosen = [each for each in chosen if each.step.is_cut or each.recorded][:STEPS_MAX]
    drawn = _Drawn(cut.diagram, snapshot)
    last_cut = max((i for i, each in enumerate(chosen) if each.step.is_cut), default=-1)
    shown = [
        {
            "process": each.step.process,
            "at": each.step.at,
            "sentence": _sentence(each),
            "rule": _rule(each),
            "keys": [*drawn.keys(each), *(drawn.cuts if index == last_cut else ())],
        }
        for index, each in enumerate(chosen)
    ]
    return shown, len(cut.steps) - len(chosen)


def contradictions(cut: LoggedCut, snapshot: Snapshot) -> list[str]:
    """Return in what the log says something else than the snapshot."""
    states = {str(state.channel): state for state in snapshot.state.channels}
    found = [*_wrong_counts(cut.lanes, states)]
    for each in cut.steps:
        if each.step.source is None or each.recorded is None:
            continue
        channel = Channel(each.step.source, each.step.process)
        state = states[str(channel)]
        numbers = [number for part in each.recorded for number in part[: state.message_count + 1]]
        held = range(state.received_count + 1, state.sent_count + 1)
        if numbers != [*held]:
            found.append(
                f"channel {channel} held {_numbers((held,))}, and the log has recorded "
                f"{_numbers(each.recorded)}"
            )
    return found


def _wrong_counts(
    lanes: Mapping[ProcessId, Lane], states: Mapping[str, ChannelState]
) -> Iterator[str]:
    for process, lane in lanes.items():
        for (kind, channel), number in lane.counts.items():
            state = states[channel]
            counted = {SENT: state.sent_count, ACCEPTED: state.received_count}[kind]
            if number != counted:
                yield (
                    f"at its cut {process} had {kind} {counted:,} messages on {channel}, and in "
                    f"the log the last before it is #{number:,}"
                )


def _rule(each: LoggedStep) -> str:
    if each.step.source is None:
        return SENDING
    return RECEIVING_FIRST if each.step.is_cut else RECEIVING_LATER


def _sentence(each: LoggedStep) -> str:
    step = each.step
    after = f"after {count(each.event_count, 'event')}"
    if step.source is None:
        how = "initiates" if step.snapshot.initiator == step.process else "begins"
        return f"{step.process} {how} {step.snapshot}: {after} it records its state{_sends(each)}."
    came = f"{step.process} gets the marker from {step.source}"
    channel = Channel(step.source, step.process)
    if step.is_cut:
        return (
            f"{came}, its first: {after} it records its state, and channel {channel} as "
            f"empty{_sends(each)}."
        )
    if each.recorded is None:
        return f"{came}, and takes no part in the snapshot any more."
    if not each.recorded:
        return f"{came}: it records channel {channel} as empty; nothing came since its cut."
    return (
        f"{came}: it records channel {channel} as {_numbers(each.recorded)}, which came since its "
        "cut."
    )


def _sends(each: LoggedStep) -> str:
    channels = [str(Channel(each.step.process, target)) for target in each.step.targets]
    if not channels:
        return ""
    more = len(channels) - _LISTED_MAX
    listed = ", ".join(channels[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f", and sends a marker on {listed}"


def _numbers(ranges: Sequence[range]) -> str:
    """Return messages as people say them: 32 messages, #5 to #36."""
    total = sum(map(len, ranges))
    if not total:
        return "nothing"
    first, last = ranges[0][0], ranges[-1][-1]
    span = f"#{first:,}" if total == 1 else f"#{first:,} to #{last:,}"
    return f"{count(total, 'message')}, {span}"


class _Drawn:
    """What of a snapshot is in a diagram, by the keys that its SVG has."""

    def __init__(self, diagram: Diagram, snapshot: Snapshot) -> None:
        self._marks = {(mark.process, mark.source) for mark in diagram.marks}
        self._markers = {(arrow.source, arrow.target) for arrow in diagram.markers}
        self._messages: dict[Channel, list[MessageId]] = {}
        for arrow in diagram.messages:
            self._messages.setdefault(arrow.message.channel, []).append(arrow.message)
        self._name = str(snapshot.id)
        self.cuts = [f"cut {curve.name}" for curve in diagram.curves]

    def keys(self, each: LoggedStep) -> Iterator[str]:
        """Yield the keys of what a step is, its own mark first."""
        process, source = each.step.process, each.step.source
        if (process, source) in self._marks:
            yield f"step {self._name} {process}" + (f" {source}" if source is not None else "")
        if source is not None and (source, process) in self._markers:
            yield f"marker {self._name} {source}->{process}"
        for target in each.step.targets:
            if (process, target) in self._markers:
                yield f"marker {self._name} {process}->{target}"
        if source is not None and not each.step.is_cut:
            for message in self._messages.get(Channel(source, process), ()):
                if any(message.number in part for part in each.recorded or ()):
                    yield f"message {message}"
