"""Small executions by chance, and a dumb oracle for them: happened-before and consistent cuts by
brute force over all pairs, from the events alone."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

from hypothesis import strategies as st

from stillframe.model import Channel
from stillframe.trace import Cut, Event, MessageId, Position, Step, Trace

LECTURE = "P1 A|P1 B >P2|P1 C|P3 I >P2|P3 J|P2 F <P1|P2 G <P3|P2 H >P1|P1 D <P2|P1 E >P3|P3 K <P1"
"""Three processes as in a lecture: messages B to F, I to G, H to D and E to K."""


def read(text: str, names: Iterable[str] = ("P1", "P2", "P3")) -> Trace:
    """Make a trace from lines such as ``P1 A >P2|P2 B <P1``: who, label, sends and accepts."""
    sent, accepted = Counter[Channel](), Counter[Channel]()
    events = []
    for line in text.split("|"):
        process, label, *moves = line.split()
        takes, gives = [], []
        for move in moves:
            if move.startswith("<"):
                channel = Channel(move[1:], process)
                accepted[channel] += 1
                takes.append(MessageId(channel, accepted[channel]))
            else:
                channel = Channel(process, move[1:])
                sent[channel] += 1
                gives.append(MessageId(channel, sent[channel]))
        events.append(Event(process, label, accepted=tuple(takes), sent=tuple(gives)))
    return Trace(names, events)


@st.composite
def executions(
    draw: st.DrawFn, *, process_count_max: int = 4, event_count_max: int = 12
) -> list[Event]:
    """Draw the events of processes P0, P1 ..., in an order in which they could have happened.

    Messages may be accepted out of order, several at once, never, or by their own sender.
    """
    names = [f"P{i}" for i in range(draw(st.integers(1, process_count_max)))]
    on_their_way: list[MessageId] = []
    counts = Counter[Channel]()
    events = []
    for _ in range(draw(st.integers(0, event_count_max))):
        process = draw(st.sampled_from(names))
        due = [message for message in on_their_way if message.channel.target == process]
        taken = draw(st.lists(st.sampled_from(due), unique=True, max_size=2)) if due else []
        on_their_way = [message for message in on_their_way if message not in taken]
        given = []
        for target in draw(st.lists(st.sampled_from(names), max_size=2)):
            counts[Channel(process, target)] += 1
            given.append(MessageId(Channel(process, target), counts[Channel(process, target)]))
        on_their_way += given
        events.append(Event(process, accepted=tuple(taken), sent=tuple(given)))
    return events


def trace_of(events: Iterable[Step]) -> Trace:
    """Return the trace of drawn events; its processes are P0 to P3, some of which may be idle."""
    return Trace(("P0", "P1", "P2", "P3"), events)


def positions_of(events: list[Event]) -> list[Position]:
    """Return for each event which one of its process it is."""
    counts = Counter[str]()
    found = []
    for event in events:
        counts[event.process] += 1
        found.append(Position(event.process, counts[event.process]))
    return found


def before_pairs(events: list[Event]) -> set[tuple[int, int]]:
    """Return the pairs of places in `events` of which the first happened before the second:
    Lamport's two rules, and the third until nothing is added."""
    everywhere = range(len(events))
    pairs = {
        (i, j)
        for i, j in product(everywhere, repeat=2)
        if (i < j and events[i].process == events[j].process)
        or set(events[i].sent) & set(events[j].accepted)
    }
    while True:
        more = {(i, k) for i, j in pairs for m, k in pairs if m == j} - pairs
        if not more:
            return pairs
        pairs |= more


def all_cuts(trace: Trace) -> Iterator[Cut]:
    """Yield every cut of a trace, consistent or not."""
    return product(*(range(length + 1) for length in trace.end))


def consistent_by_force(trace: Trace, events: list[Event]) -> list[Cut]:
    """Return every cut to which no event outside happened before one inside, in order."""
    places = [(trace.index_of[p.process], p.index) for p in positions_of(events)]
    pairs = [(places[i], places[j]) for i, j in before_pairs(events)]
    return [
        cut
        for cut in all_cuts(trace)
        if not any(cut[p] < m and n <= cut[q] for (p, m), (q, n) in pairs)
    ]
