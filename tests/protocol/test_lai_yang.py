"""The rules of colouring, one by one, for a single process.

*L&Y*: T. H. Lai and T. H. Yang, "On Distributed Snapshots", Information Processing Letters 25,
1987. *Mattern*: F. Mattern, "Efficient Algorithms for Distributed Snapshots and Global Virtual Time
Approximation", Journal of Parallel and Distributed Computing 18, 1993. Their rules are told in our
words.
"""

import re
from itertools import permutations

import msgspec
import pytest

from stillframe.errors import ProtocolViolation, UsageError
from stillframe.model import Batch, Channel, ChannelState, Fragment, ProcessState, SnapshotId
from stillframe.protocol.lai_yang import Colour, CountingMarker, LaiYangRecorder
from stillframe.protocol.recorder import (
    ENDED_COUNT_MAX,
    TRANSITIONS,
    Effect,
    NotRecorded,
    Phase,
    Recorded,
    SendMarker,
    Stimulus,
)
from tests.protocol.execution import messages_in, state_of

S1, S2 = SnapshotId("P", 1), SnapshotId("Q", 2)
WHITE: Colour = ()
RED: Colour = (S1,)


def recorder(incoming: str = "A", outgoing: str = "C", received_count: int = 0) -> LaiYangRecorder:
    """Return a recorder of P with channels from and to processes of one letter."""
    return LaiYangRecorder(
        "P",
        incoming=dict.fromkeys(incoming, received_count),
        outgoing=dict.fromkeys(outgoing, 0),
        capture=lambda: state_of("P", 7),
    )


def messages(*numbers: int) -> Batch:
    """Return consecutive messages; each says its number."""
    return Batch.of(numbers[0], [msgspec.msgpack.encode(number) for number in numbers])


def take(p: LaiYangRecorder, batch: Batch, colour: Colour = WHITE) -> list[Effect]:
    """Let P receive a batch from A as a host does."""
    return p.meet(colour) + p.receive("A", batch, colour)


def mark(p: LaiYangRecorder, sent_count: int, snapshot: SnapshotId = S1) -> list[Effect]:
    """Let the marker come from A, which had sent `sent_count` messages at its cut."""
    return p.marker("A", CountingMarker(snapshot, sent_count))


def fragment_in(effects: list[Effect]) -> Fragment:
    """Return the part that is complete with these effects."""
    (fragment,) = [effect.fragment for effect in effects if isinstance(effect, Recorded)]
    return fragment


def test_a_message_has_the_colour_of_its_sender() -> None:
    """L&Y, colouring: what is sent before the cut is white, what is sent after it red."""
    p = recorder()
    assert p.colour == WHITE
    p.initiate(S1)
    assert p.colour == RED
    mark(p, 0, S2)
    assert p.colour == (S1, S2)


def test_a_white_process_records_its_state_before_it_accepts_a_red_message() -> None:
    """L&Y, receiving: the red message is neither in the state nor on the channel."""
    p = recorder()
    take(p, messages(1))
    assert p.meet(RED) == [SendMarker("C", CountingMarker(S1, 0))]
    assert p.phase(S1) is Phase.RECORDING
    p.receive("A", messages(2), RED)
    (incoming,) = fragment_in(mark(p, 1)).incoming
    assert (incoming.received_count, incoming.batches) == (1, ())


def test_a_channel_held_the_white_messages_that_a_red_process_accepts() -> None:
    """L&Y, channels: sent before one cut, accepted after the other; red ones among them are not."""
    p = recorder()
    p.initiate(S1)
    for number, colour in ((3, RED), (2, WHITE), (4, RED), (1, WHITE)):
        assert take(p, messages(number), colour) == []
    (incoming,) = fragment_in(mark(p, 2)).incoming
    assert messages_in(incoming.batches) == [1, 2]


def test_a_channel_is_complete_when_as_many_white_messages_came_as_were_sent() -> None:
    """Mattern, counting: the last white message may come long after the marker."""
    p = recorder()
    take(p, messages(2))
    assert len(mark(p, 3)) == 1
    assert take(p, messages(4), RED) == take(p, messages(3)) == []
    assert p.phase(S1) is Phase.RECORDING
    (incoming,) = fragment_in(take(p, messages(1))).incoming
    assert messages_in(incoming.batches) == [1, 3]
    assert p.phase(S1) is Phase.RECORDED


def test_the_marker_says_what_was_sent_at_the_cut() -> None:
    """Mattern, counting: channel by channel; what is sent later does not count."""
    p = recorder(outgoing="CD")
    p.sent("C", 3)
    assert p.initiate(S1) == [
        SendMarker("C", CountingMarker(S1, 3)),
        SendMarker("D", CountingMarker(S1, 0)),
    ]
    p.sent("C", 5)
    assert fragment_in(mark(p, 0)).sent_counts == {"C": 3, "D": 0}


def test_in_every_order_the_same_is_recorded() -> None:
    """Two white messages, a red one and the marker, in all 24 orders."""
    recorded = []
    for order in permutations(range(4)):
        p = recorder()
        p.initiate(S1)
        effects: list[Effect] = []
        for number in order:
            if number == 0:
                effects += mark(p, 2)
            else:
                effects += take(p, messages(number), RED if number == 3 else WHITE)
        recorded.append(fragment_in(effects))
    assert len(recorded) == 24
    assert all(fragment == recorded[0] for fragment in recorded)
    assert messages_in(recorded[0].incoming[0].batches) == [1, 2]


def test_the_books_number_what_was_caught_behind_what_was_received() -> None:
    """Messages 1, 3 and 6 were received; 2, 4 and 5 are caught and become 4, 5 and 6."""
    p = recorder()
    for batch in (messages(3), messages(1), messages(6)):
        take(p, batch)
    p.initiate(S1)
    take(p, messages(4, 5))
    take(p, messages(2))
    (incoming,) = fragment_in(mark(p, 6)).incoming
    assert [(batch.first, batch.count) for batch in incoming.batches] == [(4, 1), (5, 2)]
    assert messages_in(incoming.batches) == [2, 4, 5]
    ChannelState(Channel("A", "P"), 6, incoming.received_count, incoming.batches).check_books()


def test_a_colour_of_several_snapshots_is_met_for_each() -> None:
    """Those that are known change nothing, the others begin."""
    p = recorder()
    p.initiate(S1)
    assert p.meet((S1, S2)) == [SendMarker("C", CountingMarker(S2, 0))]
    assert recorder().meet((S1, S2)) == [
        SendMarker("C", CountingMarker(S1, 0)),
        SendMarker("C", CountingMarker(S2, 0)),
    ]


def test_a_channel_that_is_complete_stays_as_it_is() -> None:
    """What comes on it while others are awaited was sent after the cut."""
    p = recorder(incoming="AB")
    p.initiate(S1)
    take(p, messages(1))
    mark(p, 1)
    assert take(p, messages(2), RED) == []
    part = fragment_in(p.marker("B", CountingMarker(S1, 0)))
    assert [messages_in(record.batches) for record in part.incoming] == [[1], []]


def test_overlapping_snapshots_see_each_message_in_their_own_colours() -> None:
    """A message may be red for one snapshot and caught by the other."""
    p = recorder()
    p.initiate(S1)
    p.initiate(S2)
    take(p, messages(2), (S1,))
    take(p, messages(1))
    assert [messages_in(r.batches) for r in fragment_in(mark(p, 1)).incoming] == [[1]]
    assert [messages_in(r.batches) for r in fragment_in(mark(p, 2, S2)).incoming] == [[1, 2]]


def test_progress_shows_what_was_caught_so_far() -> None:
    """An awaited channel has the numbers of the sender, a closed one those of the books."""
    p = recorder(incoming="AB")
    p.receive("B", messages(2), WHITE)
    p.initiate(S1)
    take(p, messages(3))
    p.receive("B", messages(1), WHITE)
    p.marker("B", CountingMarker(S1, 2))
    progress = p.progress(S1)
    assert progress is not None
    assert progress.awaited == {"A": (messages(3),)}
    assert [(b.first, messages_in([b])) for b in progress.closed["B"]] == [(2, [1])]


def test_a_process_that_nobody_sends_to_is_complete_at_once_and_stays_red() -> None:
    """The others may still be white: its colour travels until the snapshot is over."""
    p = recorder(incoming="")
    assert fragment_in(p.initiate(S1)).incoming == ()
    assert p.colour == RED
    p.ended(S1)
    assert p.colour == WHITE
    assert p.phase(S1) is Phase.RECORDED


def test_a_message_delivered_before_its_colour_was_met_is_found() -> None:
    """A host that forgets meet() is told so, and nothing was noted."""
    p = recorder()
    with pytest.raises(AssertionError, match=r"A->P: message 1 of snapshot P-1 .* call meet"):
        p.receive("A", messages(1), RED)
    assert take(p, messages(1), RED) == [SendMarker("C", CountingMarker(S1, 0))]


@pytest.mark.parametrize(
    ("batch", "doubled"),
    [(messages(1), 1), (messages(2, 3), 2), (messages(3, 4, 5), 4), (messages(6), 6)],
)
def test_a_message_that_comes_twice_is_a_violation(batch: Batch, doubled: int) -> None:
    """Below the low-water mark or above it, alone or among others; and it changes nothing."""
    p = recorder()
    for come in (messages(1), messages(2), messages(4), messages(6)):
        take(p, come)
    p.initiate(S1)
    with pytest.raises(ProtocolViolation, match=f"A->P: message {doubled} arrived twice"):
        p.receive("A", batch, WHITE)
    take(p, messages(3))
    take(p, messages(5))
    (incoming,) = fragment_in(mark(p, 6)).incoming
    assert (incoming.received_count, messages_in(incoming.batches)) == (4, [3, 5])


@pytest.mark.parametrize("sent_count", [0, 1], ids=["complete", "awaited"])
@pytest.mark.parametrize("incoming", ["A", "AB"])
def test_a_second_marker_on_a_channel_is_a_violation(sent_count: int, incoming: str) -> None:
    """Exactly one marker travels on each channel for each snapshot, however long that lasts."""
    p = recorder(incoming=incoming)
    mark(p, sent_count)
    with pytest.raises(ProtocolViolation, match="A->P: a second marker of snapshot P-1"):
        mark(p, sent_count)


def contradict(p: LaiYangRecorder, case: str) -> list[Effect]:
    """Let colour and number of a message say different things."""
    match case:
        case "white before the cut":
            take(p, messages(1, 2))
            return mark(p, 1)
        case "white above a gap":
            take(p, messages(2))
            return mark(p, 1)
        case "white after the cut":
            p.initiate(S1)
            take(p, messages(2))
            return mark(p, 1)
        case "white after the marker":
            mark(p, 1)
            return take(p, messages(2))
        case "red before the marker":
            for number in (2, 1, 3):
                take(p, messages(number), RED)
            return mark(p, 1)
        case _:
            mark(p, 1)
            return take(p, messages(1), RED)


@pytest.mark.parametrize(
    ("case", "detail"),
    [
        ("white before the cut", "message 2 did not carry .* had sent 1 at its cut"),
        ("white above a gap", "message 2 did not carry"),
        ("white after the cut", "message 2 did not carry"),
        ("white after the marker", "message 2 did not carry"),
        ("red before the marker", "message 1 carried .* had sent 1 at its cut"),
        ("red after the marker", "message 1 carried"),
    ],
)
def test_colour_and_number_must_agree(case: str, detail: str) -> None:
    """Otherwise the picture could be wrong, and this process takes no part in it; messages go on
    as ever, and so does the next snapshot."""
    p = recorder()
    (effect,) = [e for e in contradict(p, case) if isinstance(e, NotRecorded)]
    assert effect.snapshot == S1
    assert re.match(f"channel A->P: {detail}", effect.detail)
    assert (p.phase(S1), p.colour) == (Phase.ABANDONED, WHITE)
    take(p, messages(4))
    assert len(p.initiate(S2)) == 1


def test_a_state_that_cannot_be_captured_is_said_and_colours_nothing() -> None:
    """The process takes no part; everything else goes on."""

    def capture() -> ProcessState:
        raise UsageError("P.books cannot be recorded")

    p = LaiYangRecorder("P", incoming={"A": 0}, outgoing={"C": 0}, capture=capture)
    assert p.meet(RED) == [NotRecorded(S1, "P.books cannot be recorded")]
    assert p.receive("A", messages(1), RED) == []
    assert (p.phase(S1), p.colour) == (Phase.ABANDONED, WHITE)


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("is_over", [False, True])
def test_what_was_given_up_takes_late_colours_and_markers(is_begun: bool, is_over: bool) -> None:
    """Given up here, or over everywhere, before or after it began: nothing begins again."""
    p = recorder()
    if is_begun:
        p.initiate(S1)
    if is_over:
        p.ended(S1)
    else:
        p.abandon(S1)
    assert take(p, messages(1), RED) == mark(p, 9) == mark(p, 9) == p.initiate(S1) == []
    assert (p.phase(S1), p.colour, p.progress(S1)) == (Phase.ABANDONED, WHITE, None)


def test_a_late_colour_of_a_published_snapshot_begins_nothing() -> None:
    """A source that has not heard that it is over still colours."""
    p = recorder()
    mark(p, 0)
    p.ended(S1)
    assert take(p, messages(1), RED) == []
    assert (p.phase(S1), p.colour) == (Phase.RECORDED, WHITE)


def test_ended_snapshots_are_remembered_up_to_a_bound() -> None:
    """Neither memory nor colour grows with the number of snapshots, also if nobody says that they
    are over; what is forgotten does not begin again."""
    p = recorder(incoming="")
    for number in range(ENDED_COUNT_MAX + 10):
        p.initiate(SnapshotId("P", number))
    assert len(p.colour) == ENDED_COUNT_MAX
    forgotten, remembered = SnapshotId("P", 9), SnapshotId("P", 10)
    assert p.colour[0] == remembered
    assert p.meet((forgotten, remembered)) == p.initiate(forgotten) == []
    assert (p.phase(forgotten), p.phase(remembered)) == (Phase.ABANDONED, Phase.RECORDED)


def test_memory_is_bounded_by_the_disorder() -> None:
    """Only what came before something that is still missing is remembered by its number."""
    p = recorder()
    numbers = p._received["A"]
    for number in range(2, 2000, 2):
        take(p, messages(number))
        assert len(numbers._above) == 1
        take(p, messages(number - 1))
        assert (numbers.count, len(numbers._above)) == (number, 0)


def test_numbers_go_on_where_a_restore_left_off() -> None:
    """Counts begin where the recorded ones ended: what came before does not come again."""
    p = recorder(received_count=4)
    with pytest.raises(ProtocolViolation, match="message 4 arrived twice"):
        take(p, messages(4))
    take(p, messages(6))
    p.initiate(S1)
    take(p, messages(5))
    (incoming,) = fragment_in(mark(p, 6)).incoming
    assert (incoming.received_count, messages_in(incoming.batches)) == (5, [5])
    assert incoming.batches[0].first == 6


def test_a_marker_cannot_say_that_less_than_nothing_was_sent() -> None:
    """What comes from outside is checked when it is decoded."""
    encoded = msgspec.msgpack.encode(CountingMarker(S1, -1))
    with pytest.raises(msgspec.ValidationError, match="sent_count"):
        msgspec.msgpack.decode(encoded, type=CountingMarker)


@pytest.mark.parametrize(
    ("before", "stimulus", "after"),
    [(before, *step) for before, row in TRANSITIONS.items() for step in row.items()],
)
def test_every_row_of_the_table(before: Phase, stimulus: Stimulus, after: Phase) -> None:
    """The life of a recording is the same as with markers alone."""
    p = recorder(incoming="AB")
    if before in (Phase.RECORDING, Phase.RECORDED):
        p.initiate(S1)
    if before is Phase.RECORDED:
        mark(p, 0)
        p.marker("B", CountingMarker(S1, 0))
    if before is Phase.ABANDONED:
        p.abandon(S1)
    assert p.phase(S1) is before
    match stimulus:
        case Stimulus.INITIATE:
            p.meet(RED)
        case Stimulus.MARKER:
            mark(p, 0)
        case Stimulus.LAST_MARKER:
            mark(p, 0)
            p.marker("B", CountingMarker(S1, 0))
        case Stimulus.ABANDON:
            p.abandon(S1)
    assert p.phase(S1) is after
