"""Consistent cuts over calls: what each instance of a service keeps, and what a cut follows from.

An *instance* is one operating-system process of a service. Instances *call* each other: a request,
and later an answer, over any transport. Nothing is known of the order of messages, a load balancer
chooses the instance that accepts a request, and any message may be lost or delivered twice. Each
message carries the number of its sender's last observation, its *colour*.

The rule (Lai & Yang, *On Distributed Snapshots*, Information Processing Letters 25, 1987; in our
words):

* *Capture before accepting.* An instance that meets a higher colour than its own captures its state
  before it accepts the message. Otherwise the captured state would contain the effect of a message
  that was sent after its sender's cut, and the cut would not be consistent. The same holds for
  everything else that one instance learns of another, such as an acknowledgement.

What we add says where the messages are that no state contains:

* A caller keeps each call until it has accepted the answer. If the caller stops waiting, the call
  is *unresolved*, and is kept until its fate is known.
* An instance keeps each call that it has accepted while it serves it, and afterwards its answer
  until that is acknowledged. A lost answer can carry value, which no state contains. Answers are
  numbered for each caller, so that a caller can acknowledge a set of them.
* The messages of a streaming call are numbered in each direction and keep their order. Each end
  counts what it has sent and accepted, and keeps the amounts that it has sent until an observation
  has found them accepted.

*The cut is complete when every instance has captured.* No message is waited for. A call that is
open at its caller's cut was accepted before the cut of some instance, which still keeps it, or it
was not accepted: then its request is in transit. So each open call is in exactly one place
(`CallPlace`). With Mattern's counts, as for a queue, one would wait until all messages from before
the cut have arrived; a call needs no count, because both its ends keep it by its name.

*What each party has told, and what follows.* An instance ends in one of two ways.

* In order: it says goodbye (`Farewell`), after its last message, with all that it keeps: its calls,
  what it has accepted and answered, which answers it has received, and the amounts in its state.
  Nothing that concerns it is unknown. The farewell is its part of every later cut, until both ends
  of its calls have been told (`CallLedger.ends`). What it has accepted, it has listed; so no
  instance has accepted a call that none lists. The amounts of its state are *ended*. An instance of
  its service that begins with amounts has brought those back (`CallLedger.ended`).
* Without a goodbye: it has died, or is cut off. Since its last fragment it may have accepted calls,
  have sent some, have received answers, and have changed its state, which its successor may have
  read. All of this is unknown, so no observation is exact (`Observation.gone`). It ends if the
  instance connects again, which is as if it had never been away; or if an operator decides so,
  and begins a new baseline (`Collector.rebase`).

So an observation is exact only if every instance that ever took part since the baseline is in the
cut or has said goodbye, if no call is unknown, and if nothing was dropped that it does not know the
amounts of. A call that may have been accepted is no longer unknown as soon as it is found accepted,
or all that may have accepted it are there again and have not, or the application says what became
of it.

*Reconciliation.* An application finds out what became of an unresolved call, for instance by asking
for its status, and says so (`Statement`). It may give amounts back to its state: those of a request
that was not accepted, or of an answer that was lost. The statement is part of the fragment of the
instance whose state has changed, so each cut contains both or neither. What is given back is
subtracted from what is outside all states of this call, and of no other. The rest of it is *spent
twice*: it was created, and all totals are higher by it (`Observation.double_spent`). The statement
is believed where nothing else is known: a call of unknown fate whose amounts are given back was not
accepted. If it is found accepted after all, they were spent twice.

*Who takes part in a cut.* Those that were connected when it was requested. One that joins meanwhile
captures for it, so that all that it sends has the colour of the cut; but it is not part of it. It
can be the successor of an instance that has captured and died: then both would show one state.

*What a cut cannot know.* A call that an instance without a goodbye may have accepted is
`CallPlace.UNKNOWN`. A target that has never answered with a colour, and of whose
calls no instance has accepted one, may pass messages on to other instances without a colour. An
observation after a call to it is partial and names it. So is one after an answer without a
colour.

*The check.* Each instance numbers its messages, and keeps the highest number that it has accepted
from each other one. None is higher than the number that the other one had sent at its cut
(`check_cut`).

The host's duties, in order:

1. Call `Instance.request` or `Instance.answer` in the same step of the event loop in which the
   application changes its state for the message, and send the header with the message.
2. Call `Instance.accept`, `Instance.accept_answer` and everything else that takes a colour before
   the application sees the message, and let it continue in the same step.
3. Send the `InstanceFragment` that a call returns to the collector.
"""

import enum
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from stillframe.errors import NotConsistent, ProtocolViolation, UsageError
from stillframe.protocol.activities import (
    NO_DETAILS,
    NUMBER_MAX,
    CallDetails,
    Count,
    Text,
    Time,
    service_of,
)

Amounts = Mapping[str, int]
"""Conserved quantities that a message carries, by unit: ``{"EUR": 5}``."""
NOTHING: Amounts = {}
NAME_LENGTH_MAX = 80
Name = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
"""The name of an instance."""
_Item = TypeVar("_Item")
KEPT_COUNT_MAX = 10_000
"""How many unacknowledged answers, and how many unresolved calls, an instance keeps. Answers are
acknowledged while a collector is connected; unresolved calls wait for the next observation."""
DROPPED_SHARE = 100
"""The share of kept answers that is dropped when there are too many, as a divisor."""
TARGET_COUNT_MAX = 1_000
"""How many targets an instance lists, and how many the collector remembers."""
OTHER_TARGETS = "another target"
"""The name of those that it does not list."""
SILENT = "{} has never answered with a header: check that it has an agent, and is in targets"
"""The reason for a partial observation after calls to such a target."""
REASON_COUNT_MAX = 20
"""How many names a partial observation has for each reason."""
UNIT_COUNT_MAX = 100
"""How many units of amounts a fragment has, and how many the collector adds up."""
TOTAL_MAX = 2**62
"""The highest total of a unit that the collector adds up over observations."""
SERVICE_COUNT_MAX = 1_000
"""Of how many services the collector keeps the amounts that have ended."""
RETIRED_COUNT_MAX = 1_000
"""How many instances that are retired are remembered, and how many strangers are."""
LEDGER_COUNT_MAX = 1_000
"""How many calls of each kind the collector keeps that were not found accepted. All of them are
stored after each observation that changes one. If an older one is accepted after all, it is taken
for a duplicate."""
TIMED_OUT_COUNT_MAX = 5_000
"""How many calls whose callers have stopped waiting the collector lists."""
_LISTED_LENGTH_MAX = 200
"""How many characters of a target and of a name it lists."""
_LISTED_NAMES_MAX = 10
"""How many of the instances that have accepted a call it lists."""


class CallId(msgspec.Struct, frozen=True, order=True):
    """A call: its caller, and the number of its request among all messages of the caller."""

    caller: Name
    number: Count

    def __str__(self) -> str:
        return f"{self.caller}#{self.number}"


def call_named(text: str) -> CallId:
    """Return the call that is written so.

    Raises:
        UsageError: no call is written so.
    """
    caller, _, number = text.rpartition("#")
    is_number = number.isascii() and number.isdigit()
    if caller and is_number and len(caller) <= NAME_LENGTH_MAX and int(number) <= NUMBER_MAX:
        return CallId(caller, int(number))
    raise UsageError(f"{text!a} is not a call, such as 'shop-1a2b3c4d#17'")


class RequestHeader(msgspec.Struct, frozen=True):
    """The header of a request: the colour of its caller, and its name."""

    colour: Count
    call: CallId


class AnswerHeader(msgspec.Struct, frozen=True):
    """The header of an answer.

    Attributes:
        colour: the colour of its sender.
        instance: its sender.
        sent_count: its number among all messages of the sender.
        call: the call that it answers. A cache that returns it for another call is found by this.
        number: its number among the answers of the sender to this caller.
        accepted_count: how many messages of the caller's stream the sender has accepted.
    """

    colour: Count
    instance: Name
    sent_count: Count
    call: CallId
    number: Count
    accepted_count: Count = 0


class MessageHeader(msgspec.Struct, frozen=True):
    """The header of a message of a stream.

    Attributes:
        colour: the colour of its sender.
        instance: its sender.
        sent_count: its number among all messages of the sender.
        number: its number in its direction of the stream.
    """

    colour: Count
    instance: Name
    sent_count: Count
    number: Count


class Stream(msgspec.Struct, frozen=True):
    """The messages of a streaming call, as one of its ends counts them.

    Attributes:
        sent_count: how many it has sent.
        accepted_count: how many it has accepted.
        carried: the numbers and amounts of those that it has sent and not yet dropped, of those
            that carry any.
        forgotten_through: the newest one that it has dropped because there were too many.
    """

    sent_count: Count = 0
    accepted_count: Count = 0
    carried: tuple[tuple[Count, Amounts], ...] = ()
    forgotten_through: Count = 0

    def carried_after(self, count: int) -> dict[str, int]:
        """Return the amounts of the messages that were sent after the first `count`."""
        found: dict[str, int] = {}
        for number, amounts in self.carried:
            if number > count:
                add_amounts(found, amounts)
        return found


NO_STREAM = Stream()


class ReceivedAnswers(msgspec.Struct, frozen=True):
    """The answers that a caller has accepted from an instance: all up to `highest`, without
    `gaps`. Very old gaps, which the sender has long dropped, are left out."""

    highest: Count = 0
    gaps: frozenset[Count] = frozenset()

    def __contains__(self, number: int) -> bool:
        return number <= self.highest and number not in self.gaps

    def and_also(self, number: int) -> "ReceivedAnswers":
        """Return these answers and another one."""
        between = range(max(self.highest + 1, number - KEPT_COUNT_MAX), number)
        gaps = (self.gaps | frozenset(between)) - {number}
        return ReceivedAnswers(max(self.highest, number), gaps)


class Acknowledgement(msgspec.Struct, frozen=True):
    """Tells an instance which of its answers a caller has accepted. It passes through the
    collector."""

    colour: Count
    caller: Name
    received: ReceivedAnswers


class OpenCall(msgspec.Struct, frozen=True):
    """A call as its caller keeps it.

    Attributes:
        number: the number of the call.
        target: the address to which the request was sent, such as a host and port.
        carries: the amounts that the request carries.
        serving: the call that the caller was serving when it made this one.
        retirement_count: how many retirements of instances the caller had been notified of.
        is_awaited: False if the caller has stopped waiting.
        was_answered: whether the caller had an answer without a header.
        stream: its messages, if it is a streaming call.
        details: other facts about it that the host records.
        was_sent: False if the caller has stopped waiting, and its transport had no connection all
            the time, so no instance can have accepted the call.
    """

    number: Count
    target: Text
    carries: Amounts = NOTHING
    serving: CallId | None = None
    retirement_count: Count = 0
    is_awaited: bool = True
    was_answered: bool = False
    stream: Stream = NO_STREAM
    details: CallDetails = NO_DETAILS
    was_sent: bool = True

    def amounts(self) -> dict[str, int]:
        """Return the amounts of the request and of the messages that the caller keeps."""
        found = self.stream.carried_after(0)
        add_amounts(found, self.carries)
        return found


class ServedCall(msgspec.Struct, frozen=True):
    """A call as the instance that has accepted it keeps it.

    Attributes:
        call: the call.
        brought: the amounts that the request carried.
        number: the number of the answer among those to this caller; 0 while the call is served.
        answer: the amounts that the answer carries.
        stream: its messages, if it is a streaming call.
        details: other facts about it that the host records.
    """

    call: CallId
    brought: Amounts = NOTHING
    number: Count = 0
    answer: Amounts = NOTHING
    stream: Stream = NO_STREAM
    details: CallDetails = NO_DETAILS

    def amounts(self) -> dict[str, int]:
        """Return the amounts of the answer and of the messages that the instance keeps."""
        found = self.stream.carried_after(0)
        add_amounts(found, self.answer)
        return found


_Record = TypeVar("_Record", OpenCall, ServedCall)


class Statement(msgspec.Struct, frozen=True):
    """A statement of an application about a call whose answer was not received.

    Attributes:
        number: its number among those of the instance that has made it.
        call: the call: also one of an earlier instance.
        returned: the amounts that the state has gained for it. Without any, the call took effect.
    """

    number: Count
    call: CallId
    returned: Amounts = NOTHING


class InstanceFragment(msgspec.Struct, frozen=True):
    """The share of one instance in an observation.

    Attributes:
        instance: the instance.
        after: its colour before. The fragment is that of all observations above it.
        observation: its colour from now on.
        state: what the application captured.
        sent_count: how many messages the instance has sent.
        calls: its open and unresolved calls.
        forgotten_through: the newest unresolved call that it has dropped because there were too
            many.
        served: the calls that it serves, and its answers that are not acknowledged.
        answer_counts: how many answers it has sent to each caller.
        highest_accepted: the highest number of a message that it has accepted from each instance.
        received: the answers that it has accepted from each instance.
        dropped: for each caller, the highest number of a call whose answer it has dropped because
            there were too many.
        targets: the targets that were called, and whether each has ever answered with a header.
        lost: the amounts of messages of streams that were lost, since each call was answered before
            they were accepted.
        dropped_count: how many streams have ended with dropped amounts that were not accepted.
        partial: why the fragment does not show everything.
        statements: what its application has said about calls, until it is booked.
        statements_forgotten_through: the newest statement that it has dropped because there were
            too many.
    """

    instance: Name
    after: Count
    observation: Count
    state: Any
    sent_count: Count
    calls: tuple[OpenCall, ...]
    forgotten_through: Count
    served: tuple[ServedCall, ...]
    answer_counts: dict[Name, Count]
    highest_accepted: dict[Name, Count]
    received: dict[Name, ReceivedAnswers]
    dropped: dict[Name, Count]
    targets: dict[Text, bool]
    lost: Amounts
    dropped_count: Count = 0
    partial: tuple[str, ...] = ()
    statements: tuple[Statement, ...] = ()
    statements_forgotten_through: Count = 0


class Farewell(msgspec.Struct, frozen=True):
    """The last words of an instance that ends in order, after its last message.

    Attributes:
        fragment: all that it keeps. Its own calls are not awaited any more. Those that it served
            count as answered with nothing. It has no state.
        amounts: the amounts that its state and its handlers had; None if they are not known.
    """

    fragment: InstanceFragment
    amounts: Amounts | None = NOTHING


class Captured(msgspec.Struct, frozen=True):
    """A state, and why it may be incomplete."""

    state: Any
    partial: tuple[str, ...] = ()


class ObservationStart(msgspec.Struct, frozen=True):
    """The collector requests an observation."""

    observation: Count
    retirement_count: Count


class Settlement(msgspec.Struct, frozen=True):
    """Calls and answers that instances need not keep after an observation.

    Attributes:
        observation: the observation.
        calls: unresolved calls that their callers drop.
        answers: answers that their senders drop, and that their callers no longer miss: the sender,
            the caller, and the number.
        retired: instances that will not connect again under their names.
        streams: streaming calls, and how many messages the instance that serves each of them and
            its caller have accepted.
        booked: the newest statement of each instance that is booked.
    """

    observation: int
    calls: tuple[CallId, ...] = ()
    answers: tuple[tuple[str, str, int], ...] = ()
    retired: tuple[str, ...] = ()
    streams: tuple[tuple[CallId, int, int], ...] = ()
    booked: dict[str, int] = {}

    def of(self, instance: str) -> "Settlement":
        """Return the part of one instance. It may serve any of the streams."""
        return Settlement(
            self.observation,
            tuple(call for call in self.calls if call.caller == instance),
            tuple(one for one in self.answers if instance in one[:2]),
            self.retired,
            self.streams,
            {name: number for name, number in self.booked.items() if name == instance},
        )


class _Receipts:
    """The answers of an instance that have arrived. A lost one leaves a gap."""

    def __init__(self) -> None:
        self._highest = 0
        self._gaps: dict[int, None] = {}

    def add(self, number: int) -> None:
        if number == self._highest + 1:
            self._highest = number
        elif number > self._highest:
            first = max(self._highest + 1, number - KEPT_COUNT_MAX)
            self._gaps.update(dict.fromkeys(range(first, number)))
            self._highest = number
            _drop_oldest(self._gaps, KEPT_COUNT_MAX)
        else:
            self._gaps.pop(number, None)

    def record(self) -> ReceivedAnswers:
        return ReceivedAnswers(self._highest, frozenset(self._gaps))


class _OpenStream:
    """The messages of a streaming call at one of its ends."""

    def __init__(self) -> None:
        self.sent_count = 0
        self.accepted_count = 0
        self.carried: dict[int, Amounts] = {}
        self.forgotten_through = 0

    def record(self) -> Stream:
        carried = tuple(self.carried.items())
        return Stream(self.sent_count, self.accepted_count, carried, self.forgotten_through)


class _Other:
    """The records of an instance about another one."""

    def __init__(self) -> None:
        self.highest_accepted = 0
        self.receipts = _Receipts()
        self.answer_count = 0
        self.kept: dict[int, ServedCall] = {}
        self.dropped = 0
        self.retired_at: int | None = None
        """The value of `highest_accepted` at the cut before the other one was retired."""

    @property
    def is_over(self) -> bool:
        """Whether it is retired and was not heard of since."""
        return self.retired_at == self.highest_accepted and not self.kept


End = CallId | int
"""An end of a call: its name at its caller, and the ticket where it is served."""


class Instance:
    """The rules of one instance.

    Args:
        name: the name of the instance, which no other one ever has.
        capture: returns the state of the application. It is called at the cut.
        amounts: returns the amounts that the state of the application has; None if they are not
            known.
        kept_count_max: how many unacknowledged answers, how many unresolved calls, how many
            statements, and how many amounts of each stream are kept.
    """

    def __init__(
        self,
        name: str,
        capture: Callable[[], Captured],
        *,
        amounts: Callable[[], Amounts | None] = lambda: NOTHING,
        kept_count_max: int = KEPT_COUNT_MAX,
    ) -> None:
        self.name = name
        self.colour = 0
        self.retirement_count = 0
        self.unreported: dict[str, None] = {}
        self._capture = capture
        self._amounts = amounts
        self._has_begun = False
        self._began_with: Amounts | None = None
        self._kept_count_max = kept_count_max
        self._sent_count = 0
        self._calls: dict[int, OpenCall] = {}
        self._unresolved: dict[int, OpenCall] = {}
        self._forgotten_through = 0
        self._statements: dict[int, Statement] = {}
        self._statement_count = 0
        self._statements_forgotten_through = 0
        self._targets: dict[str, bool] = {}
        self._serving: dict[int, ServedCall] = {}
        self._ticket_count = 0
        self._kept_count = 0
        self._streams: dict[End, _OpenStream] = {}
        self._lost: dict[str, int] = {}
        self._dropped_count = 0
        self._others: dict[str, _Other] = {}
        self._highest_at_cut: dict[str, int] = {}

    def began_with(self) -> Amounts | None:
        """Return the amounts that the state had before its first message; None if they are not
        known."""
        self._begin_with(NOTHING)
        return self._began_with

    def loaded(self) -> None:
        """Record that the application has loaded its state, and begins with what it has now. That
        is unknown if it has exchanged messages before."""
        has_acted = bool(self._sent_count or self._ticket_count or self._statement_count)
        found = None if has_acted else self._amounts()
        self._has_begun, self._began_with = True, found

    def _begin_with(self, amounts: Amounts, sign: int = 1) -> None:
        """Record what the state had before its first message, which carries these amounts."""
        if not self._has_begun:
            self._has_begun = True
            found = self._amounts()
            if found is not None:
                began_with = dict(found)
                add_amounts(began_with, amounts, sign)
                self._began_with = began_with

    # --- a caller

    def request(
        self,
        target: str,
        *,
        carries: Amounts = NOTHING,
        serving: CallId | None = None,
        details: CallDetails = NO_DETAILS,
    ) -> RequestHeader:
        """Open a call and return the header of its request.

        Args:
            target: the address to which the request is sent.
            carries: the amounts that the state has lost to the request.
            serving: the call that the application serves and makes this call for.
            details: other facts about the call that the host records.
        """
        self._begin_with(carries)
        self._sent_count += 1
        number = self._sent_count
        self._calls[number] = OpenCall(
            number, target, carries, serving, self.retirement_count, details=details
        )
        self._targets.setdefault(self._listed(target), False)
        return RequestHeader(self.colour, CallId(self.name, number))

    def _listed(self, target: str) -> str:
        """Return the name under which a target is listed: there may be too many."""
        has_room = target in self._targets or len(self._targets) < TARGET_COUNT_MAX
        return target if has_room else OTHER_TARGETS

    def set_activity(self, number: int, activity: str) -> None:
        """Record which activity waits for the answer of an open call now; empty if none does."""
        call = self._calls.get(number)
        if call is not None and call.details.activity != activity:
            details = msgspec.structs.replace(call.details, activity=activity)
            self._calls[number] = msgspec.structs.replace(call, details=details)

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        """Close a call whose answer has arrived. Return the fragment if this instance has captured
        its state for it. An answer to another call is one without a header."""
        if header.call.number != number or header.call.caller != self.name:
            self.stop_waiting(number, was_answered=True)
            return None
        self._check_open(header.call)
        fragment = self.meet(header.colour)
        other = self._count_accepted(header.instance, header.sent_count)
        call = self._calls.pop(number)
        stream = self._closed_stream(header.call)
        if stream.carried:
            add_amounts(self._lost, stream.carried_after(header.accepted_count))
        self._dropped_count += stream.forgotten_through > header.accepted_count
        self._targets[self._listed(call.target)] = True
        other.receipts.add(header.number)
        self.unreported[header.instance] = None
        return fragment

    def stop_waiting(
        self,
        number: int,
        *,
        was_answered: bool = False,
        was_sent: bool = True,
        status: int | None = None,
    ) -> None:
        """Mark a call as unresolved: its deadline has passed, it was cancelled, its connection
        broke, its answer had no header but perhaps a `status`, or it was not sent. The transport
        delivers no answer any more."""
        call = _with_status(self._calls.pop(number), status)
        stream = self._closed_stream(CallId(self.name, number))
        self._unresolved[number] = msgspec.structs.replace(
            call, is_awaited=False, was_answered=was_answered, was_sent=was_sent, stream=stream
        )
        for forgotten in _drop_oldest(self._unresolved, self._kept_count_max):
            self._forgotten_through = max(self._forgotten_through, forgotten.number)

    def settled(self, call: CallId, returned: Amounts = NOTHING) -> None:
        """Record what became of a call whose answer was not received. The application gives the
        amounts back to its state in the same step.

        Args:
            call: the call: also one of an earlier instance of the service.
            returned: the amounts that the state gains. Without any, the call took effect.

        Raises:
            UsageError: this instance still waits for its answer, or has made no such call.
        """
        if call.caller == self.name and call.number in self._calls:
            raise UsageError(f"call {call} is still open: settle it when its answer cannot come")
        if call.caller == self.name and not 0 < call.number <= self._sent_count:
            raise UsageError(f"{self.name} has made no call {call}")
        self._begin_with(returned, -1)
        self._statement_count += 1
        number = self._statement_count
        self._statements[number] = Statement(number, call, returned)
        for forgotten in _drop_oldest(self._statements, self._kept_count_max):
            self._statements_forgotten_through = forgotten.number

    def close(self, number: int) -> None:
        """Close a call to a target that takes no part in observations, however it ended."""
        del self._calls[number]
        self._closed_stream(CallId(self.name, number))

    def acknowledgements(self) -> dict[str, Acknowledgement]:
        """Return what to send to instances, by name, about the answers that were accepted since the
        last call."""
        found = {
            name: Acknowledgement(self.colour, self.name, self._others[name].receipts.record())
            for name in self.unreported
            if name in self._others
        }
        self.unreported.clear()
        return found

    # --- an instance that serves

    def accept(
        self,
        header: RequestHeader,
        *,
        brought: Amounts = NOTHING,
        details: CallDetails = NO_DETAILS,
    ) -> tuple[int, InstanceFragment | None]:
        """Accept a request. Return a ticket for `answer`, and the fragment if this instance has
        captured its state for it.

        Args:
            header: the header of the request.
            brought: the amounts that the request carries.
            details: other facts about the call that the host records.
        """
        self.began_with()
        fragment = self.meet(header.colour)
        self._count_accepted(header.call.caller, header.call.number)
        self._ticket_count += 1
        self._serving[self._ticket_count] = ServedCall(header.call, brought, details=details)
        return self._ticket_count, fragment

    def answer(
        self,
        ticket: int,
        *,
        carries: Amounts = NOTHING,
        has_unknown_amounts: bool = False,
        status: int | None = None,
    ) -> AnswerHeader:
        """Return the header of an answer.

        Args:
            ticket: what `accept` returned.
            carries: the amounts that the state has lost to the answer.
            has_unknown_amounts: whether it carries others, which the host does not know.
            status: its status, if it has one.
        """
        served = _with_status(self._serving.pop(ticket), status)
        if has_unknown_amounts:
            details = msgspec.structs.replace(served.details, has_unknown_amounts=True)
            served = msgspec.structs.replace(served, details=details)
        other = self._other(served.call.caller)
        other.answer_count += 1
        stream = self._closed_stream(ticket)
        number = other.answer_count
        other.kept[number] = ServedCall(
            served.call, served.brought, number, carries, stream, served.details
        )
        self._kept_count += 1
        if self._kept_count > self._kept_count_max:
            self._drop_kept()
        self._sent_count += 1
        return AnswerHeader(
            self.colour, self.name, self._sent_count, served.call, number, stream.accepted_count
        )

    def _drop_kept(self) -> None:
        """Drop answers to the callers with the most, the oldest first: several at a time, because
        all callers are compared for it."""
        kept_count = self._kept_count_max - self._kept_count_max // DROPPED_SHARE
        for other in sorted(self._others.values(), key=lambda one: -len(one.kept)):
            while other.kept:
                dropped = other.kept.pop(next(iter(other.kept)))
                other.dropped = max(other.dropped, dropped.call.number)
                self._kept_count -= 1
                if self._kept_count <= kept_count:
                    return

    def acknowledged(self, acknowledgement: Acknowledgement) -> InstanceFragment | None:
        """Drop the answers that a caller has accepted. Return the fragment if this instance has
        captured its state before."""
        fragment = self.meet(acknowledgement.colour)
        other = self._others.get(acknowledgement.caller)
        if other is not None:
            received = acknowledgement.received
            for number in [number for number in other.kept if number in received]:
                self._forget(other, number)
        return fragment

    def _forget(self, other: _Other, number: int) -> None:
        if other.kept.pop(number, None) is not None:
            self._kept_count -= 1

    # --- the messages of a streaming call

    def send(self, end: End, *, carries: Amounts = NOTHING) -> MessageHeader:
        """Return the header of the next message that one end of an open call sends."""
        self._check_open(end)
        stream = self._streams.setdefault(end, _OpenStream())
        stream.sent_count += 1
        if carries:
            stream.carried[stream.sent_count] = carries
            if len(stream.carried) > self._kept_count_max:
                stream.forgotten_through = next(iter(stream.carried))
                del stream.carried[stream.forgotten_through]
        self._sent_count += 1
        return MessageHeader(self.colour, self.name, self._sent_count, stream.sent_count)

    def accept_message(self, end: End, header: MessageHeader) -> InstanceFragment | None:
        """Accept the next message of the other end of an open call. Return the fragment if this
        instance has captured its state for it."""
        self._check_open(end)
        fragment = self.meet(header.colour)
        self._count_accepted(header.instance, header.sent_count)
        self._streams.setdefault(end, _OpenStream()).accepted_count = header.number
        return fragment

    def _check_open(self, end: End) -> None:
        is_open = end in self._serving if isinstance(end, int) else end.number in self._calls
        if not is_open:
            raise UsageError(f"call {end} of {self.name} is not open")

    def _closed_stream(self, end: End) -> Stream:
        stream = self._streams.pop(end, None) if self._streams else None
        return stream.record() if stream is not None else NO_STREAM

    # --- observations

    def start(self, start: ObservationStart) -> InstanceFragment | None:
        """Capture for an observation that the collector has requested, unless a message has brought
        its colour before."""
        fragment = self.meet(start.observation)
        self.retirement_count = max(self.retirement_count, start.retirement_count)
        return fragment

    def meet(self, colour: int) -> InstanceFragment | None:
        """Capture if `colour` is higher than that of this instance."""
        if colour <= self.colour:
            return None
        self.began_with()
        fragment = self._fragment(self._capture(), colour)
        self.colour = colour
        return fragment

    def farewell(self) -> Farewell:
        """Return what to say when this instance ends in order. It must send and accept nothing
        afterwards."""
        fragment = self._fragment(Captured(None), self.colour)
        counts = dict(fragment.answer_counts)
        served = []
        for one in fragment.served:
            if not one.number:
                caller = one.call.caller
                counts[caller] = counts.get(caller, 0) + 1
                one = msgspec.structs.replace(one, number=counts[caller])  # noqa: PLW2901
            served.append(one)
        ended = msgspec.structs.replace(
            fragment,
            calls=tuple(msgspec.structs.replace(one, is_awaited=False) for one in fragment.calls),
            served=tuple(served),
            answer_counts=counts,
        )
        return Farewell(ended, self._amounts())

    def _fragment(self, captured: Captured, colour: int) -> InstanceFragment:
        others = {name: one for name, one in self._others.items() if not one.is_over}
        self._highest_at_cut = {
            name: one.highest_accepted for name, one in others.items() if one.highest_accepted
        }
        return InstanceFragment(
            instance=self.name,
            after=self.colour,
            observation=colour,
            state=captured.state,
            sent_count=self._sent_count,
            calls=(*map(self._open_record, self._calls.values()), *self._unresolved.values()),
            forgotten_through=self._forgotten_through,
            served=(
                *itertools.starmap(self._served_record, self._serving.items()),
                *itertools.chain.from_iterable(one.kept.values() for one in others.values()),
            ),
            answer_counts={name: one.answer_count for name, one in others.items()},
            highest_accepted=self._highest_at_cut,
            received={name: one.receipts.record() for name, one in others.items()},
            dropped={name: one.dropped for name, one in others.items() if one.dropped},
            targets=dict(self._targets),
            lost=dict(self._lost),
            dropped_count=self._dropped_count,
            partial=captured.partial,
            statements=tuple(self._statements.values()),
            statements_forgotten_through=self._statements_forgotten_through,
        )

    def _count_accepted(self, instance: str, number: int) -> _Other:
        other = self._other(instance)
        other.highest_accepted = max(other.highest_accepted, number)
        return other

    def _other(self, name: str) -> _Other:
        other = self._others.get(name)
        if other is None:
            other = self._others[name] = _Other()
        return other

    def _open_record(self, call: OpenCall) -> OpenCall:
        stream = self._streams.get(CallId(self.name, call.number)) if self._streams else None
        return msgspec.structs.replace(call, stream=stream.record()) if stream else call

    def _served_record(self, ticket: int, served: ServedCall) -> ServedCall:
        stream = self._streams.get(ticket)
        return msgspec.structs.replace(served, stream=stream.record()) if stream else served

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        """Drop what an observation has settled, and the oldest of what is kept about retired
        instances."""
        fragment = self.meet(settlement.observation)
        for call in settlement.calls:
            if call.caller == self.name:
                self._unresolved.pop(call.number, None)
        for instance, caller, number in settlement.answers:
            if instance == self.name and caller in self._others:
                self._forget(self._others[caller], number)
            if caller == self.name:
                self._other(instance).receipts.add(number)
        if settlement.streams and self._streams:
            self._drop_carried(settlement.streams)
        booked = settlement.booked.get(self.name, 0)
        for number in [number for number in self._statements if number <= booked]:
            del self._statements[number]
        self._retire(settlement.retired)
        return fragment

    def _drop_carried(self, streams: Iterable[tuple[CallId, int, int]]) -> None:
        """Drop the amounts of messages that the other ends have accepted."""
        tickets = {served.call: ticket for ticket, served in self._serving.items()}
        for call, by_instance, by_caller in streams:
            for end, count in ((call, by_instance), (tickets.get(call), by_caller)):
                stream = self._streams.get(end) if end is not None else None
                if stream is not None:
                    for number in [number for number in stream.carried if number <= count]:
                        del stream.carried[number]

    def _retire(self, names: Iterable[str]) -> None:
        """Leave instances out of later fragments unless they are heard of again."""
        for name in names:
            if name in self._others:
                other = self._others.pop(name)
                other.retired_at = self._highest_at_cut.get(name, other.retired_at or 0)
                self._others[name] = other
        over = [name for name, one in self._others.items() if one.is_over]
        for name in over[:-RETIRED_COUNT_MAX]:
            del self._others[name]


# --- the collector


class CallPlace(enum.Enum):
    """The place of a call at a cut."""

    REQUESTED = "request in transit"
    """No instance of the cut has accepted it. The request of an unresolved call may be lost."""
    SERVED = "being served"
    ANSWERED = "answer in transit"
    """The answer of an unresolved call is lost, but the call took effect."""
    UNKNOWN = "unknown"
    """An instance that may have accepted it has died or has dropped it."""
    OUTSIDE = "outside"
    """No instance of the cut has accepted it. Its target has answered it without a header, or has
    never answered with one, and no call to it was ever found accepted."""


class Located(msgspec.Struct, frozen=True):
    """A call that is open or unresolved at its caller's cut.

    Attributes:
        call: the call.
        record: what its caller keeps.
        place: where it is.
        served: what the instances that have accepted it keep, by name. There are several if the
            request was delivered twice.
        returned: the amounts that applications have given back for it.
    """

    call: CallId
    record: OpenCall
    place: CallPlace
    served: tuple[tuple[str, ServedCall], ...] = ()
    returned: Amounts = NOTHING

    def amounts(self) -> dict[str, int]:
        """Return the amounts of its messages that no state contains, without those that were
        brought more than once."""
        found, _ = net_of(self.carried(), self.returned)
        for _, served in self.served[1:]:
            add_amounts(found, served.brought, -1)
        return found

    def double_spent(self) -> dict[str, int]:
        """Return the amounts that were given back although a state contains them."""
        return net_of(self.carried(), self.returned)[1]

    @property
    def status(self) -> int | None:
        """The status of its answer: that of the first instance that has answered it with one, else
        that of the answer without a header that its caller has received."""
        kept = [*(served.details for _, served in self.served), self.record.details]
        return next((one.status for one in kept if one.status is not None), None)

    def timed_out(self, observation: int = 0) -> "TimedOutCall":
        """Return what an observation says about it, as an entry of the collector's list."""
        record, accepted_by = self.record, tuple(name for name, _ in self.served)
        target, name = record.target[:_LISTED_LENGTH_MAX], record.details.name[:_LISTED_LENGTH_MAX]
        return TimedOutCall(
            *(observation, target, name, record.details.began_at),
            *(self.place, accepted_by[:_LISTED_NAMES_MAX], self.status),
            *(record.was_answered, record.was_sent, any(self.returned.values())),
        )

    def carried(self) -> dict[str, int]:
        """Return the amounts of its messages that were not accepted."""
        found: dict[str, int] = {}
        if self.place is CallPlace.REQUESTED:
            add_amounts(found, self.record.amounts())
        if self.served:
            stream = self.served[0][1].stream
            add_amounts(found, self.record.stream.carried_after(stream.accepted_count))
            add_amounts(found, stream.carried_after(self.record.stream.accepted_count))
        for _, served in self.served:
            add_amounts(found, served.answer)
        return found


class TimedOutCall(msgspec.Struct, frozen=True, array_like=True):
    """A call whose caller has stopped waiting, and what is known of it.

    Attributes:
        observation: the observation that has found where it is.
        target: the address to which its request was sent.
        name: what was called.
        began_at: when the request was sent, in seconds since 1970, by its caller's clock.
        place: where it was found.
        accepted_by: the instances that have accepted it.
        status: the status of its answer, if it has one.
        was_answered: whether its caller had an answer without a header.
        was_sent: False if no instance can have accepted it.
        was_returned: whether amounts were given back for it.
        is_settled: whether an application has said what became of it.
        was_given_up: whether an operator has begun a baseline when it was unknown where it was.
    """

    observation: Count
    target: Text
    name: Text
    began_at: Time
    place: CallPlace
    accepted_by: tuple[Name, ...] = ()
    status: Count | None = None
    was_answered: bool = False
    was_sent: bool = True
    was_returned: bool = False
    is_settled: bool = False
    was_given_up: bool = False

    @property
    def was_accepted(self) -> bool | None:
        """Whether an instance has accepted it; None if that is unknown."""
        if self.place in (CallPlace.SERVED, CallPlace.ANSWERED):
            return True
        return False if self.place is CallPlace.REQUESTED else None

    @property
    def callee(self) -> str:
        """The instances that have accepted it, or else the address to which it was sent."""
        return ", ".join(dict.fromkeys(self.accepted_by)) or self.target


ANY = ""
"""Stands for each instance that may have accepted a message."""
FIRST = "it is the first one that shows everything"


class Baseline(msgspec.Struct, frozen=True):
    """The first of the observations whose totals are comparable, and why it is.

    Attributes:
        number: its number.
        why: why its total cannot be compared with earlier ones.
        by: the operator who began it; empty if the collector had to.
        at: when the operator did, in seconds since 1970; else 0.
    """

    number: int
    why: str = ""
    by: str = ""
    at: float = 0.0


NO_BASELINE = Baseline(0)


class CallLedger(msgspec.Struct):
    """The collector's record of calls that instances no longer keep.

    Attributes:
        not_accepted: unresolved calls that no instance had accepted.
        unknown: unresolved calls that an instance may have accepted.
        lost: the amounts of answers and messages of streams that were never accepted.
        created: the amounts that requests brought that were accepted more than once.
        settled: answers that were settled, until both ends have dropped them.
        released: unresolved calls that were settled, until their callers have dropped them.
        targets: the targets that were called, and whether each has ever answered with a header or
            a call to it was found accepted.
        forgotten_through: the newest unresolved call that each caller is known to have dropped.
        forgotten_counts: how many answers an instance is known to have dropped that its caller has
            not accepted, by instance and caller.
        forgotten_count: how often since the baseline something was dropped whose amounts are not
            known.
        members: the instances that are connected.
        disconnected: the instances that were connected, and the highest number of a message of each
            that others have accepted, by their names; under `ANY` that of the last message of
            one that has said goodbye. They may be alive: an instance that is disconnected follows
            the rules all the same.
        strangers: instances that others have heard of, and that were never connected: the same.
            They may connect later, or have died.
        newly_disconnected: those of `disconnected` that were disconnected since the newest
            observation, or were strangers and are retired since.
        retirement_count: how often an instance was retired, or heard of after it was disconnected.
            One that was only disconnected shows in the next cut what it has accepted.
        retired: those of them that may not connect again.
        gone: the instances that have left without a goodbye since an operator began a baseline, and
            have not connected again.
        ends: the fragments of those that have said goodbye, while something of them is not settled.
        ended: by service and unit, the amounts of instances that have said goodbye, without those
            that later ones of the service began with.
        orphans: the calls at the newest observation whose callers are not connected.
        excused_count: `retirement_count` when an operator began a baseline: calls from before it
            are not unknown for what was retired then.
        talking: those of them that others have heard of, after they were disconnected, and since
            they were retired. Either they are alive, or that was the last that they had sent.
        since: the first observation whose total is comparable with that of the newest one, and
            why.
        next_baseline: the baseline that the next observation begins, if it must.
        dropped: the highest number of a call whose answer an instance has dropped, by instance and
            caller, at the newest observation.
        dropped_counts: `dropped_count` of each instance at the newest observation.
        booked: the newest statement of each instance that is booked.
        returned: what the statements about calls say that were not found accepted, or are still
            served: the amounts that were given back, or none if a call took effect.
        effects: unresolved calls that were found accepted, and the amounts of each that were never
            accepted and not given back: a part of `lost`.
        double_spent: the amounts of such calls that were given back although a state contains them.
        timed_out: the newest calls whose callers have stopped waiting: a list for operators, which
            no rule reads. It has those that are settled as well.
        timed_out_count: how many there were, with those that the list has no more.
    """

    not_accepted: dict[CallId, OpenCall] = {}
    unknown: dict[CallId, OpenCall] = {}
    lost: dict[str, int] = {}
    created: dict[str, int] = {}
    settled: set[tuple[str, str, int]] = set()
    released: set[CallId] = set()
    targets: dict[str, bool] = {}
    forgotten_through: dict[str, int] = {}
    forgotten_counts: dict[tuple[str, str], int] = {}
    forgotten_count: int = 0
    members: set[str] = set()
    disconnected: dict[str, dict[str, int]] = {}
    strangers: dict[str, dict[str, int]] = {}
    newly_disconnected: dict[str, None] = {}
    retirement_count: int = 0
    retired: set[str] = set()
    talking: set[str] = set()
    gone: dict[str, None] = {}
    ends: dict[str, InstanceFragment] = {}
    ended: dict[str, dict[str, int]] = {}
    orphans: set[CallId] = set()
    excused_count: int = 0
    since: Baseline = NO_BASELINE
    next_baseline: Baseline | None = Baseline(0, why=FIRST)
    dropped: dict[tuple[str, str], int] = {}
    dropped_counts: dict[str, int] = {}
    booked: dict[str, int] = {}
    returned: dict[CallId, dict[str, int]] = {}
    effects: dict[CallId, dict[str, int]] = {}
    double_spent: dict[CallId, dict[str, int]] = {}
    timed_out: dict[CallId, TimedOutCall] = {}
    timed_out_count: Count = 0

    def list_timed_out(
        self, call: CallId, found: TimedOutCall, known: Collection[CallId] = ()
    ) -> None:
        """List a call whose caller has stopped waiting, or what is known of it now. If it is one of
        the `known` calls and not in the list, there was no room for it."""
        before = self.timed_out.get(call)
        if before is None:
            if call in known:
                return
            self.timed_out_count += 1
        else:
            origin = found if found.target else before  # its caller may have dropped it
            is_kept = before.was_given_up and not found.accepted_by
            found = msgspec.structs.replace(
                found,
                place=before.place if is_kept else found.place,
                target=origin.target,
                name=origin.name,
                began_at=origin.began_at,
                was_returned=found.was_returned or before.was_returned,
                is_settled=before.is_settled,
                was_given_up=before.was_given_up,
            )
            if found == msgspec.structs.replace(before, observation=found.observation):
                return
        self.timed_out[call] = found

    def bound_timed_out(self) -> None:
        """Drop the oldest calls of the list if there are too many, those first that applications
        have settled, or that were not sent."""

        def matters(call: CallId) -> bool:
            return self.timed_out[call].was_sent and not self.timed_out[call].is_settled

        if (count := len(self.timed_out) - TIMED_OUT_COUNT_MAX) > 0:
            for call in sorted(self.timed_out, key=matters)[:count]:
                del self.timed_out[call]

    def relocate(self, call: CallId, place: CallPlace) -> None:
        """List a call as one in another place, if it is listed."""
        listed = self.timed_out.get(call)
        if listed is not None and listed.place is not place:
            self.timed_out[call] = msgspec.structs.replace(listed, place=place)

    def give_up(self, call: CallId) -> None:
        """List that an operator has begun a baseline, if it is unknown whether a call was
        accepted."""
        if self.timed_out[call].was_accepted is None:
            self.timed_out[call] = msgspec.structs.replace(self.timed_out[call], was_given_up=True)

    def forget_end(self, end: InstanceFragment) -> None:
        """Retire an instance that has said goodbye."""
        self.disconnected[end.instance] = {ANY: end.sent_count}
        self.retired.add(end.instance)
        self.drop_retired()

    def drop_retired(self) -> None:
        """Forget the instances that were retired first if there are too many."""
        if len(self.retired) > RETIRED_COUNT_MAX:
            retired = [name for name in self.disconnected if name in self.retired]
            for oldest in retired[:-RETIRED_COUNT_MAX]:
                del self.disconnected[oldest]
                self.retired.remove(oldest)
                self.talking.discard(oldest)

    def drop_unknown(self) -> None:
        """Drop the oldest calls of unknown fate if there are too many."""
        for call in tuple(self.unknown)[: max(0, len(self.unknown) - LEDGER_COUNT_MAX)]:
            del self.unknown[call]
            self.forgotten_count += self.returned.pop(call, None) is None

    def drop_not_accepted(self) -> None:
        """Drop the oldest calls that were not accepted if there are too many."""
        count = max(0, len(self.not_accepted) - LEDGER_COUNT_MAX)
        for call in tuple(self.not_accepted)[:count]:
            left, spent = net_of(self.not_accepted.pop(call).amounts(), self.returned.pop(call, {}))
            add_amounts(self.lost, left)
            self.spend_twice(call, spent)

    def take_effect(self, call: CallId, lost: Amounts) -> None:
        """Record that an unresolved call was accepted, and which amounts of it were not."""
        self.not_accepted.pop(call, None)
        self.unknown.pop(call, None)
        add_amounts(self.lost, lost)
        self.effects[call] = dict(lost)
        self.give_back(call, self.returned.pop(call, {}))
        _drop_oldest(self.effects, LEDGER_COUNT_MAX)

    def give_back(self, call: CallId, returned: Amounts) -> None:
        """Record amounts that were given back for a call that took effect."""
        left, spent = net_of(self.effects[call], returned)
        add_amounts(self.lost, self.effects[call], -1)
        add_amounts(self.lost, left)
        self.effects[call] = left
        self.spend_twice(call, spent)

    def spend_twice(self, call: CallId, amounts: Amounts) -> None:
        """Record amounts that were given back although a state contains them."""
        if any(amounts.values()):
            add_amounts(self.double_spent.setdefault(call, {}), amounts)


Accepted = tuple[str, ServedCall]
"""An instance and a call that it has accepted."""


class Observation(msgspec.Struct, frozen=True):
    """A consistent cut through all instances that were connected when it began.

    Attributes:
        number: its number.
        fragments: what each instance captured.
        calls: each open or unresolved call, and where it is.
        late: unresolved calls that were accepted after an earlier observation had found them not
            accepted.
        duplicates: calls that were accepted once more than their callers made them.
        orphans: calls whose callers are not connected.
        disconnected: the instances that were disconnected since the observation before, or that
            were never connected, and are retired since.
        not_accepted: the amounts of earlier unresolved calls that no instance has accepted.
        unknown: the amounts of earlier unresolved calls whose fate is unknown.
        lost: the amounts of earlier answers, and of messages of streams, that were lost. Duplicates
            of calls that were lost afterwards are subtracted.
        created: the amounts that earlier duplicates brought.
        forgotten_count: how often since the baseline something was dropped whose amounts are not
            known.
        partial: why the cut may be inconsistent or does not show everything. Empty if it does.
        since: the first of the observations whose totals are comparable with that of this one:
            those that are exact are equal. In between nothing was partial.
        ends: what those instances keep that have said goodbye, while it is not settled.
        ended: by service and unit, the amounts of instances that have said goodbye, without those
            that later ones of the service began with.
        gone: the instances that are not part of it, and have not said goodbye.
        unknown_count: how many earlier unresolved calls have an unknown fate.
        double_spent: the amounts that were given back for calls although a state contains them,
            by the names of the calls: the total is higher by them than before.
    """

    number: int
    fragments: dict[str, InstanceFragment]
    calls: tuple[Located, ...]
    late: tuple[Located, ...]
    duplicates: tuple[Accepted, ...]
    orphans: tuple[Accepted, ...]
    disconnected: tuple[str, ...]
    not_accepted: Amounts
    unknown: Amounts
    lost: Amounts
    created: Amounts
    forgotten_count: int
    partial: tuple[str, ...]
    since: Baseline
    ends: dict[str, InstanceFragment] = {}
    ended: dict[str, dict[str, int]] = {}
    gone: tuple[str, ...] = ()
    unknown_count: int = 0
    double_spent: dict[str, dict[str, int]] = {}

    @property
    def is_exact(self) -> bool:
        """Whether every amount that was there at the `baseline`, and every one of `double_spent`,
        is in the state of an instance, in `outside_states`, or in `ended`."""
        is_located = all(
            located.place not in (CallPlace.UNKNOWN, CallPlace.OUTSIDE) for located in self.calls
        )
        is_known = not (self.gone or self.unknown_count or self.forgotten_count)
        return is_located and is_known and not self.partial

    @property
    def baseline(self) -> int:
        """The number of the first observation whose total is comparable."""
        return self.since.number

    @property
    def everybody(self) -> dict[str, InstanceFragment]:
        """What is known of each instance: of the cut, and of those that have said goodbye."""
        return self.ends | self.fragments

    def outside_states(self) -> dict[str, int]:
        """Return the amounts that are in no state: those in transit or lost, without those that
        were brought more than once."""
        found: dict[str, int] = {}
        for located in itertools.chain(self.calls, self.late):
            add_amounts(found, located.amounts())
        for _, served in itertools.chain(self.duplicates, self.orphans):
            add_amounts(found, served.amounts())
        for fragment in self.fragments.values():
            add_amounts(found, fragment.lost)
        for _, served in self.duplicates:
            add_amounts(found, served.brought, -1)
        add_amounts(found, self.not_accepted)
        add_amounts(found, self.lost)
        add_amounts(found, self.created, -1)
        return found


class Missing(msgspec.Struct, frozen=True):
    """An observation that was abandoned because instances died first."""

    number: int
    instances: tuple[str, ...]


class Collector:
    """The rules of the collector: one observation after the other.

    The host stores `ledger` after each call that changes it: with an observation before it sends
    the settlement, and after `joined`, `left` and `retire` before it does anything else. When it
    starts again, it calls `left` for those `members` that do not connect.

    Args:
        ledger: what the collector knew when it ended, if it had run before.
        number: the newest observation so far, or the highest colour of an instance.
    """

    def __init__(self, ledger: CallLedger | None = None, number: int = 0) -> None:
        self.ledger = ledger or CallLedger()
        self.number = number
        self._pending: _PendingObservation | None = None
        self._unresolved: frozenset[CallId] = frozenset()

    @property
    def awaited(self) -> tuple[str, ...]:
        """The instances whose fragments the pending observation lacks."""
        return tuple(sorted(self._pending.awaited)) if self._pending else ()

    def joined(
        self,
        instance: str,
        colour: int,
        retirement_count: int = 0,
        *,
        began_with: Amounts | None = NOTHING,
    ) -> ObservationStart | None:
        """Include an instance in later observations. Return what to send to it if one is pending.

        Args:
            instance: its name.
            colour: its colour.
            retirement_count: its count of retirements. It is higher than ours if an earlier
                collector has not stored its last ones.
            began_with: the amounts that its state had before its first message; None if they are
                not known.

        Raises:
            UsageError: it was retired.
        """
        ledger = self.ledger
        if instance in ledger.retired:
            raise UsageError(f"{instance} was disconnected for too long: it needs another name")
        is_new = instance not in ledger.members and instance not in ledger.disconnected
        if is_new:
            self._add_ended(instance, began_with, -1)
        ledger.members.add(instance)
        ledger.gone.pop(instance, None)
        ledger.disconnected.pop(instance, None)
        ledger.strangers.pop(instance, None)
        ledger.newly_disconnected.pop(instance, None)
        ledger.talking.discard(instance)
        if retirement_count > ledger.retirement_count:
            ledger.retirement_count = retirement_count + 1
        self.number = max(self.number, colour)
        pending = self._pending
        if pending is None:
            return None
        if is_new:
            pending.newcomers.add(instance)
        if colour >= pending.number or instance in pending.fragments:
            return None
        if instance not in pending.newcomers:
            pending.awaited.add(instance)
        return ObservationStart(pending.number, ledger.retirement_count)

    def _add_ended(self, instance: str, amounts: Amounts | None, sign: int = 1) -> None:
        """Add amounts of an instance that has ended, or subtract those that one began with. They
        must be a part of what has ended: otherwise something else has brought them."""
        ledger, service = self.ledger, service_of(instance)
        if amounts is None:
            how = "ended" if sign > 0 else "began"
            self._rebase(Baseline(0, f"the amounts with which {instance} {how} are not known"))
            return
        before = ledger.ended.get(service, {})
        ended = dict(before)
        add_amounts(ended, amounts, sign)
        if sign < 0:
            for unit, amount in amounts.items():
                had = before.get(unit, 0)
                if not min(0, had) <= ended[unit] <= max(0, had):
                    del ended[unit]
                    self._rebase(
                        Baseline(
                            0,
                            f"{instance} began with {amount} {unit}, and instances of {service} "
                            f"had ended with {had}",
                        )
                    )
        ledger.ended.pop(service, None)
        if left := {unit: amount for unit, amount in ended.items() if amount}:
            ledger.ended[service] = left
        others = _drop_oldest(ledger.ended, SERVICE_COUNT_MAX)
        if _has_dropped(left) or others:
            self._rebase(Baseline(0, "amounts of instances that have ended were dropped"))

    def _rebase(self, baseline: Baseline) -> None:
        """Let the observation after the pending one begin a baseline, unless it does so for an
        earlier reason. The pending one may be abandoned: then the next one begins what it would
        have begun."""
        pending = self._pending
        if pending is not None and pending.next_baseline is not None:
            pending.following_baseline = pending.following_baseline or baseline
        elif self.ledger.next_baseline is None:
            self.ledger.next_baseline = baseline

    def rebase(self, baseline: Baseline) -> tuple[str, ...]:
        """Begin a new baseline, because an operator has decided that what is unknown does not
        matter any more. The next observation is the first, unless something of it is unknown.
        Instances that have left without a goodbye must not connect again under their names. Return
        them.

        Args:
            baseline: who has decided it, when and why.
        """
        assert self._pending is None, "abandon it first"
        ledger = self.ledger
        gone = tuple(ledger.gone)
        for call, one in tuple(ledger.timed_out.items()):
            if one.was_sent and not one.accepted_by and (gone or ledger.strangers):
                ledger.relocate(call, CallPlace.UNKNOWN)
            ledger.give_up(call)
        for call in ledger.unknown:
            ledger.returned.pop(call, None)
        for name in (*gone, *ledger.strangers):
            if name not in ledger.retired:
                self.retire(name)
        ledger.gone.clear()
        ledger.unknown.clear()
        ledger.forgotten_count = 0
        ledger.excused_count = ledger.retirement_count
        ledger.next_baseline = baseline
        return gone

    def left(self, instance: str) -> Missing | None:
        """Record that an instance has died or is disconnected. Return the observation that it ends,
        if it does."""
        ledger = self.ledger
        ledger.members.discard(instance)
        ledger.disconnected[instance] = {}
        ledger.newly_disconnected[instance] = None
        self._lose(instance)
        if self._pending and instance in self._pending.awaited:
            return self.abandon()
        return None

    def ended(self, farewell: Farewell) -> Missing | None:
        """Record that a connected instance has said goodbye. Return the observation that it ends,
        if it does."""
        ledger, fragment = self.ledger, farewell.fragment
        ledger.members.discard(fragment.instance)
        self._add_ended(fragment.instance, farewell.amounts)
        add_amounts(ledger.lost, fragment.lost)
        ledger.ends[fragment.instance] = msgspec.structs.replace(fragment, lost=NOTHING)
        self._list_of_ended()
        for oldest in _drop_oldest(ledger.ends, RETIRED_COUNT_MAX):
            ledger.forget_end(oldest)
            ledger.forgotten_count += bool(oldest.calls or oldest.served or oldest.statements)
        return self.abandon()

    def _list_of_ended(self) -> None:
        """List the unresolved calls of instances that have ended: there may be no observation any
        more that locates them."""
        ledger, accepted = self.ledger, dict[CallId, tuple[Accepted, ...]]()
        for name, end in ledger.ends.items():
            for served in end.served:
                accepted[served.call] = (*accepted.get(served.call, ()), (name, served))
        for name, end in ledger.ends.items():
            for record in end.calls:
                call = CallId(name, record.number)
                served_by = accepted.get(call, ())
                if call in ledger.timed_out and not served_by:
                    continue
                place = CallPlace.UNKNOWN if record.was_sent else CallPlace.REQUESTED
                place = CallPlace.ANSWERED if served_by else place
                found = Located(call, record, place, served_by).timed_out(self.number)
                ledger.list_timed_out(call, found, self._unresolved)
        ledger.bound_timed_out()

    def _lose(self, instance: str) -> None:
        """Record that it is unknown what an instance has done since it was last heard of."""
        self.ledger.gone[instance] = None
        self.ledger.forgotten_count += len(_drop_oldest(self.ledger.gone, RETIRED_COUNT_MAX))
        self._doubt()

    def _doubt(self) -> None:
        """Record that an instance may have accepted any of the calls that none had accepted, unless
        amounts were given back for it: that it was not accepted is believed. The list for operators
        does not believe it."""
        ledger = self.ledger
        for call, one in tuple(ledger.timed_out.items()):
            if one.was_sent and one.place is CallPlace.REQUESTED:
                ledger.relocate(call, CallPlace.UNKNOWN)
        for call in tuple(ledger.not_accepted):
            if not ledger.returned.get(call):
                ledger.unknown[call] = ledger.not_accepted.pop(call)
        ledger.drop_unknown()

    @property
    def retirable(self) -> set[str]:
        """The instances that are not connected, that others have heard of, and that are to be
        retired unless they connect in time."""
        return self.ledger.talking | self.ledger.strangers.keys()

    def retire(self, instance: str) -> None:
        """Settle what concerns an instance that is not connected. It must not connect again: if it
        is alive it needs another name. Do so when others have not heard of it for some time, or it
        was a stranger for some time."""
        ledger = self.ledger
        ledger.retirement_count += 1
        if instance in ledger.strangers:
            ledger.disconnected[instance] = ledger.strangers.pop(instance)
            ledger.newly_disconnected[instance] = None
            self._lose(instance)
        ledger.disconnected.setdefault(instance, {})
        ledger.retired.add(instance)
        ledger.talking.discard(instance)
        ledger.drop_retired()

    def begin(self) -> ObservationStart:
        """Begin an observation. Return what to send to every instance."""
        assert self._pending is None, "one observation at a time"
        assert self.ledger.members, "there is nothing to observe"
        self.number += 1
        self._pending = _PendingObservation(self.number, self.ledger)
        return ObservationStart(self.number, self.ledger.retirement_count)

    def abandon(self) -> Missing | None:
        """Abandon the pending observation, if there is one."""
        if self._pending is None:
            return None
        missing = Missing(self._pending.number, self.awaited)
        self._pending = None
        return missing

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        """Take a fragment. If it is the last one, return the observation, and what to send to every
        instance after it is stored.

        Raises:
            NotConsistent: an instance has accepted a message that was sent after the cut. A rule
                was broken, such as a duty of a host.
        """
        self.number = max(self.number, fragment.observation)
        pending = self._pending
        if pending is None or not fragment.after < pending.number <= fragment.observation:
            return None
        if fragment.instance not in pending.awaited:
            return None
        pending.awaited.remove(fragment.instance)
        pending.fragments[fragment.instance] = fragment
        if pending.awaited:
            return None
        self._pending = None
        check_cut(pending.fragments)
        conclusion = _Conclusion(pending, self.ledger, self._unresolved)
        found = conclusion.result()
        self._unresolved = conclusion.unresolved
        return found


def check_farewell(farewell: Farewell) -> None:
    """Raise a ProtocolViolation if a farewell is one that no instance says."""
    fragment = farewell.fragment
    check_fragment(fragment)
    if fragment.state is not None:
        raise ProtocolViolation("its farewell has a state")
    is_open = any(one.is_awaited for one in fragment.calls)
    if is_open or not all(one.number for one in fragment.served):
        raise ProtocolViolation("its farewell has a call that is still open")


def check_fragment(fragment: InstanceFragment) -> None:
    """Raise a ProtocolViolation if a fragment is one that no instance makes."""
    if len({call.number for call in fragment.calls}) < len(fragment.calls):
        raise ProtocolViolation("its fragment has a call twice")
    if len(fragment.targets) > TARGET_COUNT_MAX + 1:
        raise ProtocolViolation(f"its fragment has more than {TARGET_COUNT_MAX} targets")
    totals: dict[str, int] = {}
    carried = [served.brought for served in fragment.served]
    carried += [one.answer for one in fragment.served]
    carried += [one.carries for one in fragment.calls]
    streams = [*(one.stream for one in fragment.calls), *(one.stream for one in fragment.served)]
    carried += [amounts for stream in streams for _, amounts in stream.carried]
    carried += [one.returned for one in fragment.statements]
    for amounts in (fragment.lost, *carried):
        for unit, amount in amounts.items():
            totals[unit] = totals.get(unit, 0) + abs(amount)
    if len(totals) > UNIT_COUNT_MAX:
        raise ProtocolViolation(f"its fragment has amounts of more than {UNIT_COUNT_MAX} units")
    for unit, total in totals.items():
        if total > NUMBER_MAX:
            raise ProtocolViolation(
                f"the amounts of {unit!a} in its fragment are above {NUMBER_MAX}: use a larger unit"
            )


class _PendingObservation:
    """An observation whose fragments are awaited, and what instances that join meanwhile would
    change of the ledger."""

    def __init__(self, number: int, ledger: CallLedger) -> None:
        self.number = number
        self.awaited = set(ledger.members)
        self.newcomers: set[str] = set()
        self.fragments: dict[str, InstanceFragment] = {}
        self.gone = dict(ledger.gone)
        self.ended = {service: dict(amounts) for service, amounts in ledger.ended.items()}
        self.next_baseline = ledger.next_baseline
        self.following_baseline: Baseline | None = None


def check_cut(fragments: Mapping[str, InstanceFragment]) -> None:
    """Raise NotConsistent if an instance has accepted a message that was sent after the cut."""
    for name, fragment in fragments.items():
        for sender, number in fragment.highest_accepted.items():
            if sender in fragments and number > fragments[sender].sent_count:
                raise NotConsistent(
                    f"{name} had accepted message {number} of {sender} at its cut, but {sender} "
                    "sent it after its own cut"
                )


class _Conclusion:
    """Locates each call of a complete cut, and settles what need not be kept."""

    def __init__(
        self, pending: _PendingObservation, ledger: CallLedger, known: Collection[CallId]
    ) -> None:
        """`known` are the unresolved calls of the observation before."""
        self._pending = pending
        self._known = known
        self._fragments = pending.fragments
        self._everybody = ledger.ends | pending.fragments
        self._ledger = ledger
        gone = pending.gone | ledger.gone
        self._gone = tuple(name for name in gone if name not in self._fragments)
        self._partial: dict[tuple[str, str], dict[str, None]] = {}
        self._closed: list[tuple[str, str, int]] = []
        self._stated: dict[CallId, bool] = {}
        self._confirm()
        self._settled: dict[tuple[str, str], set[int]] = {}
        for name, caller, number in ledger.settled:
            self._settled.setdefault((name, caller), set()).add(number)
        self._open = {
            CallId(name, call.number): call
            for name, fragment in self._everybody.items()
            for call in fragment.calls
            if CallId(name, call.number) not in ledger.released
        }
        self._accepted: dict[CallId, list[Accepted]] = {}
        for name, fragment in self._everybody.items():
            for served in fragment.served:
                if (name, served.call.caller, served.number) not in ledger.settled:
                    self._accepted.setdefault(served.call, []).append((name, served))
        self.unresolved = frozenset(
            call for call, record in self._open.items() if not record.is_awaited
        )
        for name, fragment in self._everybody.items():
            self._book(name, fragment, self.unresolved)

    def _book(self, name: str, fragment: InstanceFragment, unresolved: Collection[CallId]) -> None:
        """Book the statements of an instance that are not booked yet."""
        ledger = self._ledger
        booked = ledger.booked.get(name, 0)
        if fragment.statements_forgotten_through > booked:
            booked = fragment.statements_forgotten_through
            ledger.forgotten_count += 1
            self._report("{} has dropped statements about calls: there were too many", name)
        for one in fragment.statements:
            if one.number <= booked:
                continue
            booked, call = one.number, one.call
            self._stated[call] = self._stated.get(call, False) or any(one.returned.values())
            if call in ledger.effects:
                ledger.give_back(call, one.returned)
            elif call in unresolved or call in ledger.not_accepted or call in ledger.unknown:
                add_amounts(ledger.returned.setdefault(call, {}), one.returned)
                if one.returned and call in ledger.unknown:
                    ledger.not_accepted[call] = ledger.unknown.pop(call)
            elif one.returned:
                self._report(
                    "{} has given amounts back for call {}, which is not one of those whose fate "
                    "is open: it was answered, or is not kept any more",
                    *(name, call),
                )
        if booked:
            ledger.booked[name] = booked

    def result(self) -> tuple[Observation, Settlement]:
        ledger = self._ledger
        self._look_outside()
        calls = tuple(self._located(*item) for item in sorted(self._open.items()))
        late, duplicates, orphans = self._unlisted()
        self._look_at_calls(calls, late, duplicates, orphans)
        self._look_at_orphans(orphans)
        self._find_out()
        unsettled = self._unsettled({one.call for one in late})
        observation = Observation(
            number=self._pending.number,
            fragments=self._fragments,
            calls=calls,
            late=late,
            duplicates=duplicates,
            orphans=orphans,
            disconnected=tuple(
                name for name in ledger.newly_disconnected if name not in self._fragments
            ),
            not_accepted=_sum_of(
                net_of(record.amounts(), ledger.returned.get(call, NOTHING))[0]
                for call, record in unsettled[0].items()
            ),
            unknown=_sum_of(record.amounts() for record in unsettled[1].values()),
            lost=dict(ledger.lost),
            created=dict(ledger.created),
            forgotten_count=ledger.forgotten_count,
            partial=self._reasons(),
            since=self._baseline(),
            ends=dict(ledger.ends),
            ended=self._pending.ended,
            gone=self._gone,
            unknown_count=len(unsettled[1]),
            double_spent=self._double_spent((*calls, *late)),
        )
        ledger.newly_disconnected = {
            name: None for name in ledger.newly_disconnected if name in self._fragments
        }
        self._settle(observation)
        return observation, Settlement(
            observation=self._pending.number,
            calls=tuple(sorted(ledger.released)),
            answers=tuple(sorted({*ledger.settled, *self._closed})),
            retired=tuple(sorted(ledger.retired & self._mentioned())),
            streams=tuple(
                (one.call, served.stream.accepted_count, one.record.stream.accepted_count)
                for one in calls
                for _, served in one.served[:1]
                if served.stream != NO_STREAM or one.record.stream != NO_STREAM
            ),
            booked=dict(ledger.booked),
        )

    def _baseline(self) -> Baseline:
        """Return the baseline, and find whether the next observation has another one."""
        ledger, begun = self._ledger, self._pending.next_baseline
        if begun is not None:
            ledger.since = msgspec.structs.replace(begun, number=self._pending.number)
        if begun is None and ledger.next_baseline is not None:
            pass  # an instance that has joined meanwhile begins one
        elif self._pending.following_baseline is not None:
            ledger.next_baseline = self._pending.following_baseline
        elif not self._partial:
            ledger.next_baseline = None
        elif ledger.since.number == self._pending.number:
            ledger.next_baseline = ledger.since
        else:
            why = f"observation {self._pending.number} was partial: {self._reasons()[0]}"
            ledger.next_baseline = Baseline(0, why)
        return ledger.since

    def _mentioned(self) -> set[str]:
        """Return the instances about which others keep something."""
        return {
            name
            for fragment in self._fragments.values()
            for name in (*fragment.highest_accepted, *fragment.received, *fragment.answer_counts)
        }

    def _confirm(self) -> None:
        """Forget what was settled and both ends have dropped."""
        ledger = self._ledger
        listed = {
            CallId(name, call.number)
            for name, fragment in self._everybody.items()
            for call in fragment.calls
        }
        kept = {
            (name, served.call.caller, served.number)
            for name, fragment in self._everybody.items()
            for served in fragment.served
        }
        ledger.settled = {
            one
            for one in ledger.settled
            if one in kept or self._is_away(one[0]) or not self._is_received(*one)
        }
        ledger.released = {
            call for call in ledger.released if call in listed or self._is_away(call.caller)
        }

    def _is_received(self, instance: str, caller: str, number: int) -> bool:
        """Return whether a caller does not miss an answer, or never will."""
        ledger = self._ledger
        absent = {caller, instance} - self._everybody.keys()
        if not absent.isdisjoint(ledger.retired):
            return True
        fragment = self._everybody.get(caller)
        return fragment is not None and number in fragment.received.get(instance, ReceivedAnswers())

    def _is_away(self, name: str) -> bool:
        """Return whether an instance is not part of this observation, but may be of a later one."""
        return name not in self._everybody and name not in self._ledger.retired

    def _list_targets(self) -> None:
        """Record which targets have ever answered with a header."""
        ledger = self._ledger
        for fragment in self._everybody.values():
            for target, has_answered in fragment.targets.items():
                has_room = target in ledger.targets or len(ledger.targets) < TARGET_COUNT_MAX
                listed = target if has_room else OTHER_TARGETS
                ledger.targets[listed] = ledger.targets.get(listed, False) or has_answered
        for call, record in self._open.items():
            if call in self._accepted and record.target in ledger.targets:
                ledger.targets[record.target] = True

    def _look_outside(self) -> None:
        """Collect why the cut may not show everything."""
        ledger = self._ledger
        self._list_targets()
        for name, fragment in sorted(self._everybody.items()):
            for other in sorted(fragment.highest_accepted):
                end = ledger.ends.get(other)
                if end is not None and fragment.highest_accepted[other] > end.sent_count:
                    self._report("{} was sent a message of {}, which had said goodbye", name, other)
                if other not in self._everybody and self._is_active(fragment, other):
                    self._report(
                        "{} exchanges messages with {}, which is not connected", name, other
                    )
            if fragment.forgotten_through > ledger.forgotten_through.get(name, 0):
                ledger.forgotten_through[name] = fragment.forgotten_through
                ledger.forgotten_count += 1
                self._report("{} has dropped unresolved calls, because there were too many", name)
            self._count_forgotten(fragment)
            self._look_at_dropped(name, fragment)
            for reason in fragment.partial:
                self._report("{}: {}", name, reason, about=name)
        ledger.dropped = {
            (name, caller): number
            for name, fragment in self._everybody.items()
            for caller, number in fragment.dropped.items()
        }
        ledger.dropped_counts = {
            name: fragment.dropped_count for name, fragment in self._everybody.items()
        }
        for target in sorted(ledger.targets):
            if not ledger.targets[target]:
                self._report(SILENT, target)

    def _report(self, reason: str, *names: object, about: str = "") -> None:
        """Give a reason why the cut may not show everything. Of those of one kind, and about one
        instance, some are listed."""
        self._partial.setdefault((reason, about), {})[reason.format(*names)] = None

    def _reasons(self) -> tuple[str, ...]:
        """Return the reasons, and for how many more they hold."""
        found: list[str] = []
        for texts in self._partial.values():
            found += itertools.islice(texts, REASON_COUNT_MAX)
            if len(texts) > REASON_COUNT_MAX:
                found.append(f"the same holds for {len(texts) - REASON_COUNT_MAX} more")
        return tuple(found)

    def _look_at_dropped(self, name: str, fragment: InstanceFragment) -> None:
        """Report what an instance has dropped that no later fragment shows."""
        ledger = self._ledger
        for caller, number in fragment.dropped.items():
            is_more = number > ledger.dropped.get((name, caller), 0)
            if caller not in self._everybody and is_more:
                ledger.forgotten_count += 1
                self._report("{} has dropped answers to {}, which is not connected", name, caller)
        if fragment.dropped_count > ledger.dropped_counts.get(name, 0):
            ledger.forgotten_count += 1
            self._report("{} has dropped amounts of streams: too many messages", name)

    def _look_at_calls(
        self,
        calls: tuple[Located, ...],
        late: tuple[Located, ...],
        duplicates: tuple[Accepted, ...],
        orphans: tuple[Accepted, ...],
    ) -> None:
        """Collect why amounts of calls may be wrong."""
        ledger = self._ledger
        unknown = {one.call for one in calls if _is_unknown(one.record)}
        kept = itertools.chain(*(one.served for one in (*calls, *late)), duplicates, orphans)
        unknown |= {served.call for _, served in kept if _is_unknown(served)}
        for call in sorted(unknown):
            self._report("the amounts of call {} are not known", call)
        for one in calls:
            if one.record.was_answered and ledger.targets.get(one.record.target, False):
                self._report("{} has answered without a header", one.record.target)
            streams = [one.record.stream, *(served.stream for _, served in one.served)]
            if any(stream.forgotten_through for stream in streams):
                self._report("amounts of call {} were dropped: too many messages", one.call)
            if len(one.served) > 1 and any(stream != NO_STREAM for stream in streams):
                self._report("call {} has a stream and was accepted twice", one.call)
        for one in itertools.chain(calls, late):
            # One that its caller has dropped has no target.
            if one.record.target and any(
                _differ(one.record.carries, served.brought) for _, served in one.served
            ):
                self._report(
                    "{} carries other amounts for its caller than where it is served: carries "
                    "must find the same at both ends",
                    one.call,
                )
        for _, served in duplicates:
            if served.stream != NO_STREAM:
                self._report("call {} has a stream and was accepted twice", served.call)

    def _is_active(self, fragment: InstanceFragment, other: str) -> bool:
        """Return whether an instance that is not connected has sent messages, to that of a
        fragment, since the observation in which it was first missing; or was never connected."""
        ledger = self._ledger
        if other not in ledger.disconnected:
            has_room = other in ledger.strangers or len(ledger.strangers) < RETIRED_COUNT_MAX
            if other not in ledger.members and has_room:
                known = ledger.strangers.setdefault(other, {})
                known[fragment.instance] = fragment.highest_accepted[other]
            return True
        known = ledger.disconnected[other]
        before = max(known.get(fragment.instance, 0), known.get(ANY, 0))
        now = fragment.highest_accepted[other]
        ledger.disconnected[other][fragment.instance] = max(before, now)
        is_first = other in ledger.newly_disconnected and other not in ledger.retired
        if now <= before or is_first:
            return False
        ledger.talking.add(other)
        ledger.retirement_count += 1
        return True

    def _count_forgotten(self, fragment: InstanceFragment) -> None:
        """Report answers that an instance has dropped and that its caller has not accepted."""
        name, ledger = fragment.instance, self._ledger
        numbers: dict[str, set[int]] = {}
        for served in fragment.served:
            numbers.setdefault(served.call.caller, set()).add(served.number)
        for caller, count in fragment.answer_counts.items():
            if caller not in self._everybody:
                continue
            received = self._everybody[caller].received.get(name, ReceivedAnswers())
            kept = numbers.get(caller, set()) | self._settled.get((name, caller), set())
            known = {number for number in kept - {0} if number not in received}
            forgotten = count - received.highest + len(received.gaps) - len(known)
            pair = name, caller
            if forgotten > ledger.forgotten_counts.pop(pair, 0):
                ledger.forgotten_count += 1
                self._report(
                    "{} has dropped {} answers that {} has not accepted, because there were too "
                    "many",
                    *(name, forgotten, caller),
                )
            if forgotten:
                ledger.forgotten_counts[pair] = forgotten

    def _located(self, call: CallId, record: OpenCall) -> Located:
        served = tuple(self._accepted.pop(call, ()))
        if any(not one.number for _, one in served):
            place = CallPlace.SERVED
        elif served:
            place = CallPlace.ANSWERED
        elif not record.was_sent or self._ledger.returned.get(call):
            place = CallPlace.REQUESTED
        elif record.was_answered or not self._ledger.targets.get(record.target, False):
            place = CallPlace.OUTSIDE
        elif self._may_be_accepted(call, record):
            place = CallPlace.UNKNOWN
        else:
            place = CallPlace.REQUESTED
        return Located(call, record, place, served, self._ledger.returned.get(call, NOTHING))

    def _may_be_accepted(self, call: CallId, record: OpenCall) -> bool:
        """Return whether an instance may have accepted a call that none of the cut keeps.

        Either it has dropped its answer, or it is not connected: then it may be alive, or the
        caller made the call before it was notified."""
        if not record.was_sent:
            return False
        is_alive = self._is_absent_alive
        if is_alive or record.retirement_count < self._ledger.retirement_count:
            return True
        return any(
            call.number <= fragment.dropped.get(call.caller, 0)
            for fragment in self._everybody.values()
        )

    @functools.cached_property
    def _is_absent_alive(self) -> bool:
        """Whether an instance that is not connected may be alive, as far as ``_look_outside`` has
        found out; nothing changes it afterwards."""
        ledger = self._ledger
        absent = {*ledger.disconnected, *self._gone}
        return bool(ledger.talking) or not absent <= ledger.retired

    def _unlisted(self) -> tuple[tuple[Located, ...], tuple[Accepted, ...], tuple[Accepted, ...]]:
        """Return what instances keep of calls that their callers do not: the late, the duplicates,
        and the orphans."""
        late: list[Located] = []
        duplicates: list[Accepted] = []
        orphans: list[Accepted] = []
        for call, entries in sorted(self._accepted.items()):
            fragment = self._everybody.get(call.caller)
            record = self._ledger.not_accepted.get(call) or self._ledger.unknown.get(call)
            if fragment is None and record is None:
                orphans += entries
                continue
            rest = []
            for name, served in entries:
                received = fragment.received.get(name) if fragment else None
                if received and served.number and served.number in received:
                    # Accepted, but its acknowledgement has not arrived, or was lost.
                    self._closed.append((name, call.caller, served.number))
                else:
                    rest.append((name, served))
            if record is None and fragment and call.number <= fragment.forgotten_through:
                record = OpenCall(call.number, "", is_awaited=False)
            if record is not None and rest:
                is_answered = rest[0][1].number > 0
                place = CallPlace.ANSWERED if is_answered else CallPlace.SERVED
                returned = self._ledger.returned.get(call, NOTHING)
                late.append(Located(call, record, place, tuple(rest[:1]), returned))
                rest = rest[1:]
            duplicates += rest
        return tuple(late), tuple(duplicates), tuple(orphans)

    def _look_at_orphans(self, orphans: Iterable[Accepted]) -> None:
        """Report calls that were accepted after their callers were found not connected: they bring
        amounts that no earlier observation had."""
        ledger = self._ledger
        found = {served.call for _, served in orphans}
        is_known = ledger.newly_disconnected.keys() | ledger.gone.keys()
        if self._pending.next_baseline is None:
            for call in sorted(found - ledger.orphans):
                if call.caller not in is_known:
                    self._report("call {} was accepted after its caller had ended", call)
        ledger.orphans = found

    def _find_out(self) -> None:
        """Find calls of unknown fate that no instance can have accepted that is not there again."""
        ledger = self._ledger
        for call, record in tuple(ledger.unknown.items()):
            if not self._may_be_accepted(call, record):
                ledger.not_accepted[call] = ledger.unknown.pop(call)

    def _unsettled(
        self, late: Collection[CallId]
    ) -> tuple[dict[CallId, OpenCall], dict[CallId, OpenCall]]:
        """Return the settled calls that no instance has accepted, and those whose fate is unknown.
        The late ones are neither, nor are calls that took effect, as the application says."""
        ledger = self._ledger
        not_accepted: dict[CallId, OpenCall] = {}
        unknown: dict[CallId, OpenCall] = {}
        for call, record in itertools.chain(ledger.not_accepted.items(), ledger.unknown.items()):
            if call in late:
                continue
            has_answered = ledger.targets.get(record.target, False) or not record.was_sent
            is_known = call in ledger.not_accepted and has_answered
            if is_known or ledger.returned.get(call):
                not_accepted[call] = record
            elif call not in ledger.returned:
                unknown[call] = record
        return not_accepted, unknown

    def _double_spent(self, located: Iterable[Located]) -> dict[str, dict[str, int]]:
        """Return the amounts that were given back although a state contains them, or for calls
        that did not carry as much."""
        ledger = self._ledger
        spent = {one.call: one.double_spent() for one in located}
        for call, record in ledger.not_accepted.items():
            spent.setdefault(call, net_of(record.amounts(), ledger.returned.get(call, {}))[1])
        found = {call: dict(amounts) for call, amounts in ledger.double_spent.items()}
        found |= {call: amounts for call, amounts in spent.items() if any(amounts.values())}
        return {str(call): amounts for call, amounts in sorted(found.items())}

    def _settle(self, observation: Observation) -> None:
        """Move what is final into the ledger."""
        ledger = self._ledger
        for located in observation.calls:
            if not located.record.is_awaited:
                self._settle_call(located)
        for located in observation.late:
            if located.place is CallPlace.ANSWERED:
                self._take_effect(located)
        for name, served in observation.duplicates:
            if served.number:
                add_amounts(ledger.created, served.brought)
                self._settle_answers(served.amounts(), (name, served))
        for name, served in observation.orphans:
            if served.number and served.call.caller in ledger.retired:
                self._settle_answers(served.amounts(), (name, served))
        self._list_timed_out(observation)
        self._forget_ends()
        self._bound()

    def _list_timed_out(self, observation: Observation) -> None:
        """List the calls whose callers have stopped waiting, and what applications say of them."""
        ledger, listed = self._ledger, self._ledger.timed_out
        for located in (*observation.calls, *observation.late):
            if not located.record.is_awaited:
                found = located.timed_out(observation.number)
                ledger.list_timed_out(located.call, found, self._known)
        for name, served in (*observation.duplicates, *observation.orphans):
            # The list is longer than what else is kept of a call that was not accepted.
            before = listed.get(served.call)
            if before is None or before.place is CallPlace.ANSWERED:
                continue
            if before.accepted_by in ((), (name,)):
                found = msgspec.structs.replace(
                    before,
                    observation=observation.number,
                    place=CallPlace.ANSWERED if served.number else CallPlace.SERVED,
                    accepted_by=(name,),
                    status=before.status
                    if served.details.status is None
                    else served.details.status,
                )
                ledger.list_timed_out(served.call, found)
        for call in self._stated.keys() & listed.keys():
            was_returned = listed[call].was_returned or self._stated[call]
            listed[call] = msgspec.structs.replace(
                listed[call], is_settled=True, was_returned=was_returned
            )
        self._relocate_listed()
        ledger.bound_timed_out()

    def _relocate_listed(self) -> None:
        """List whether calls that no instance is known to have accepted may have been accepted,
        also by one whose fragment is not there. The list does not believe that one was not, because
        amounts were given back for it."""
        ledger = self._ledger
        is_unseen = bool(ledger.gone or ledger.strangers or self._pending.newcomers)
        for call, one in tuple(ledger.timed_out.items()):
            is_outside = one.was_answered or not ledger.targets.get(one.target, False)
            if one.place is CallPlace.OUTSIDE and is_outside:
                continue
            if one.accepted_by or one.was_given_up or not one.was_sent:
                continue
            record = ledger.not_accepted.get(call) or ledger.unknown.get(call)
            is_unknown = one.place is not CallPlace.REQUESTED
            if record is not None:
                is_unknown = call in ledger.unknown or self._may_be_accepted(call, record)
            place = CallPlace.UNKNOWN if is_unknown or is_unseen else CallPlace.REQUESTED
            ledger.relocate(call, place)

    def _bound(self) -> None:
        """Drop totals that are too many or too high, and statements that concern nothing."""
        ledger = self._ledger
        for totals in (ledger.lost, ledger.created):
            if _has_dropped(totals):
                ledger.next_baseline = Baseline(0, "totals of lost amounts were dropped")
        if _drop_oldest(ledger.double_spent, LEDGER_COUNT_MAX):
            ledger.next_baseline = Baseline(0, "amounts that were spent twice were dropped")
        known = ledger.members | ledger.disconnected.keys() - ledger.retired
        ledger.booked = {name: one for name, one in ledger.booked.items() if name in known}
        kept = self._open.keys() | ledger.not_accepted.keys() | ledger.unknown.keys()
        ledger.returned = {
            call: amounts
            for call, amounts in ledger.returned.items()
            if call in kept or self._is_away(call.caller)
        }

    def _forget_ends(self) -> None:
        """Drop what is settled of instances that have said goodbye, and forget those that are
        settled: neither they nor others keep anything of them."""
        ledger = self._ledger
        done = {*ledger.settled, *self._closed}
        callers = {served.call.caller for one in self._everybody.values() for served in one.served}
        is_somebody_away = not ledger.disconnected.keys() <= ledger.retired
        for name, end in tuple(ledger.ends.items()):
            calls = [one for one in end.calls if CallId(name, one.number) not in ledger.released]
            served = [one for one in end.served if (name, one.call.caller, one.number) not in done]
            received = dict(end.received)
            for sender, caller, number in ledger.settled:
                if caller == name:
                    received[sender] = received.get(sender, ReceivedAnswers()).and_also(number)
            ledger.ends[name] = msgspec.structs.replace(
                end, calls=tuple(calls), served=tuple(served), received=received, statements=()
            )
            may_be_dropped = any(
                call.number <= end.dropped.get(call.caller, 0) for call in self._open
            )
            if not (calls or served or name in callers or is_somebody_away or may_be_dropped):
                ledger.forget_end(ledger.ends.pop(name))

    def _settle_call(self, located: Located) -> None:
        """Settle an unresolved call, unless it is still served."""
        ledger, record = self._ledger, located.record
        details = msgspec.structs.replace(record.details, fields={})
        record = msgspec.structs.replace(record, details=details)
        if located.place is CallPlace.SERVED:
            return
        if located.place is CallPlace.ANSWERED:
            self._take_effect(located)
        elif self._may_be_accepted(located.call, record) and not located.returned:
            if record.retirement_count >= ledger.excused_count:
                ledger.unknown[located.call] = record
        else:
            ledger.not_accepted[located.call] = record
        ledger.released.add(located.call)
        ledger.drop_not_accepted()
        ledger.drop_unknown()

    def _take_effect(self, located: Located) -> None:
        """Settle an unresolved call that was accepted and answered."""
        self._ledger.take_effect(located.call, located.carried())
        twice: dict[str, int] = {}
        for _, served in located.served[1:]:
            add_amounts(twice, served.brought, -1)
        self._settle_answers(twice, *located.served)

    def _settle_answers(self, amounts: Amounts, *answers: Accepted) -> None:
        """Settle answers that were never accepted, and the amounts that are in no state since."""
        add_amounts(self._ledger.lost, amounts)
        for name, served in answers:
            self._ledger.settled.add((name, served.call.caller, served.number))


def _with_status(record: _Record, status: int | None) -> _Record:
    """Return a record of a call with the status of its answer."""
    if status is None:
        return record
    details = msgspec.structs.replace(record.details, status=status)
    return msgspec.structs.replace(record, details=details)


def _is_unknown(record: OpenCall | ServedCall) -> bool:
    """Return whether a message of a call carries amounts that are not known."""
    return record.details.has_unknown_amounts


def _sum_of(parts: Iterable[Amounts]) -> dict[str, int]:
    """Return the sum of amounts."""
    found: dict[str, int] = {}
    for amounts in parts:
        add_amounts(found, amounts)
    return found


def net_of(carried: Amounts, returned: Amounts) -> tuple[dict[str, int], dict[str, int]]:
    """Return the amounts of a call that are left when some were given back, and those that were
    given back but that it did not carry."""
    left, spent = dict(carried), dict(returned)
    for unit, amount in returned.items():
        found = left.get(unit, 0)
        taken = max(min(found, amount), 0) if amount > 0 else min(max(found, amount), 0)
        if taken:
            left[unit] = found - taken
        spent[unit] = amount - taken
    return left, spent


def _differ(amounts: Amounts, others: Amounts) -> bool:
    """Return whether amounts differ; one that is missing is 0."""
    units = {*amounts, *others}
    return any(amounts.get(unit, 0) != others.get(unit, 0) for unit in units)


def _drop_oldest(items: dict[Any, _Item], count_max: int) -> list[_Item]:
    """Drop the first items of a dictionary that has more than `count_max`; return them."""
    count = max(0, len(items) - count_max)
    return [items.pop(key) for key in list(itertools.islice(items, count))]


def _has_dropped(totals: dict[str, int]) -> bool:
    """Drop the totals that are too high or too many; return whether there were any."""
    too_high = [unit for unit, total in totals.items() if abs(total) > TOTAL_MAX]
    for unit in too_high:
        del totals[unit]
    return bool(_drop_oldest(totals, UNIT_COUNT_MAX) or too_high)


def add_amounts(amounts: dict[str, int], more: Amounts, sign: int = 1) -> None:
    """Add amounts to others; -1 as `sign` subtracts them."""
    for unit, amount in more.items():
        amounts[unit] = amounts.get(unit, 0) + sign * amount
