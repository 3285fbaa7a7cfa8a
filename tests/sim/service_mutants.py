"""Rules of observations with one thing wrong each; the judge of ``sim.services`` must find it."""

# ruff: noqa: D102 - each class says which rule its methods change

from typing import Any

import msgspec

from stillframe.protocol import calls
from stillframe.protocol.activities import NO_DETAILS, CallDetails
from stillframe.protocol.calls import (
    Acknowledgement,
    Amounts,
    AnswerHeader,
    Baseline,
    CallId,
    Collector,
    End,
    Farewell,
    Instance,
    InstanceFragment,
    MessageHeader,
    Missing,
    Observation,
    ObservationStart,
    ReceivedAnswers,
    RequestHeader,
    Settlement,
)

changed = msgspec.structs.replace


class RequestsWithoutColour(Instance):
    """Does not look at the colour of a request."""

    def accept(
        self,
        header: RequestHeader,
        *,
        brought: Amounts = calls.NOTHING,
        details: CallDetails = NO_DETAILS,
    ) -> tuple[int, InstanceFragment | None]:
        return super().accept(changed(header, colour=0), brought=brought, details=details)


class AnswersWithoutColour(Instance):
    """Does not look at the colour of an answer."""

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        return super().accept_answer(number, changed(header, colour=0))


class CapturesBehindRequests(Instance):
    """Captures after it has accepted a request."""

    def accept(
        self,
        header: RequestHeader,
        *,
        brought: Amounts = calls.NOTHING,
        details: CallDetails = NO_DETAILS,
    ) -> tuple[int, InstanceFragment | None]:
        ticket, _ = super().accept(changed(header, colour=0), brought=brought, details=details)
        return ticket, self.meet(header.colour)


class CapturesBehindAnswers(Instance):
    """Captures after it has accepted an answer."""

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        super().accept_answer(number, changed(header, colour=0))
        return self.meet(header.colour)


class OldColour(Instance):
    """Answers with the colour that the instance had when the request came."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._colours: dict[int, int] = {}

    def accept(
        self,
        header: RequestHeader,
        *,
        brought: Amounts = calls.NOTHING,
        details: CallDetails = NO_DETAILS,
    ) -> tuple[int, InstanceFragment | None]:
        accepted = super().accept(header, brought=brought, details=details)
        self._colours[accepted[0]] = self.colour
        return accepted

    def answer(
        self,
        ticket: int,
        *,
        carries: Amounts = calls.NOTHING,
        has_unknown_amounts: bool = False,
        status: int | None = None,
    ) -> AnswerHeader:
        return changed(super().answer(ticket, carries=carries), colour=self._colours.pop(ticket))


class AnswersNotKept(Instance):
    """Forgets an answer when it is sent."""

    def answer(
        self,
        ticket: int,
        *,
        carries: Amounts = calls.NOTHING,
        has_unknown_amounts: bool = False,
        status: int | None = None,
    ) -> AnswerHeader:
        header = super().answer(ticket, carries=carries)
        for other in self._others.values():
            for number in tuple(other.kept):
                self._forget(other, number)
        return header


class UnresolvedNotKept(Instance):
    """Forgets a call when its caller stops waiting."""

    def stop_waiting(
        self,
        number: int,
        *,
        was_answered: bool = False,
        was_sent: bool = True,
        status: int | None = None,
    ) -> None:
        super().stop_waiting(number, was_answered=was_answered, was_sent=was_sent)
        self._unresolved.clear()


class GapsAcknowledged(Instance):
    """Takes the highest answer that was accepted for all up to it."""

    def acknowledged(self, acknowledgement: Acknowledgement) -> InstanceFragment | None:
        received = ReceivedAnswers(acknowledgement.received.highest)
        return super().acknowledged(changed(acknowledgement, received=received))


class DeathsUnnoticed(Instance):
    """Takes every call for one that was made after the last disconnection."""

    def start(self, start: ObservationStart) -> InstanceFragment | None:
        return super().start(changed(start, retirement_count=10**6))


class AnswersNeverDropped(Instance):
    """Keeps answers that are settled."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        return super().settle(changed(settlement, answers=()))


class CallsNeverDropped(Instance):
    """Keeps unresolved calls that are settled."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        return super().settle(changed(settlement, calls=()))


class ReturnsUnnoticed(Collector):
    """Takes an instance that connects again for a new one: what it settled is forgotten."""

    def joined(self, instance: str, *args: Any, **more: Any) -> ObservationStart | None:
        start = super().joined(instance, *args, **more)
        self.ledger.settled.clear()
        self.ledger.released.clear()
        return start


class StrangersUnnoticed(Collector):
    """Does not count the retirement of an instance that was never connected."""

    def retire(self, instance: str) -> None:
        is_stranger = instance in self.ledger.strangers
        super().retire(instance)
        self.ledger.retirement_count -= is_stranger


class StrangersForgotten(Collector):
    """Does not keep of whom others have heard that were never connected."""

    def retire(self, instance: str) -> None:
        self.ledger.strangers.pop(instance, None)


class SettledAtOnce(Collector):
    """Does not remember what is settled until both ends have dropped it."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.settled.clear()
        self.ledger.released.clear()
        return result


class LateUnnoticed(Collector):
    """Forgets unresolved calls that were not accepted."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.not_accepted.clear()
        return result


class StragglersTaken(Collector):
    """Takes a fragment of an earlier observation."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        if self.awaited and fragment.observation < self.number:
            fragment = changed(fragment, observation=self.number)
        return super().add(fragment)


class MessagesWithoutColour(Instance):
    """Does not look at the colour of a message of a stream."""

    def accept_message(self, end: End, header: MessageHeader) -> InstanceFragment | None:
        return super().accept_message(end, changed(header, colour=0))


class CapturesBehindMessages(Instance):
    """Captures after it has accepted a message of a stream."""

    def accept_message(self, end: End, header: MessageHeader) -> InstanceFragment | None:
        super().accept_message(end, changed(header, colour=0))
        return self.meet(header.colour)


class MessagesNotKept(Instance):
    """Keeps no amounts of messages of streams."""

    def send(self, end: End, *, carries: Amounts = calls.NOTHING) -> MessageHeader:
        return super().send(end)


class MessagesDroppedTooSoon(Instance):
    """Drops the newest message of a stream that it has sent with those that were accepted."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        more = tuple((call, up + 1, down + 1) for call, up, down in settlement.streams)
        return super().settle(changed(settlement, streams=more))


class LostMessagesForgotten(Instance):
    """Does not count messages that the other end did not accept before it answered."""

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        return super().accept_answer(number, changed(header, accepted_count=10**6))


class RequestsHeardOnly(Instance):
    """Does not record the number of an answer."""

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        return super().accept_answer(number, changed(header, sent_count=0))


class AnswersOfOthersTaken(Instance):
    """Takes an answer with the header of another call for that of its own."""

    def accept_answer(self, number: int, header: AnswerHeader) -> InstanceFragment | None:
        return super().accept_answer(number, changed(header, call=CallId(self.name, number)))


class BareAnswersForgotten(Instance):
    """Does not record that a call was answered without a header."""

    def stop_waiting(
        self,
        number: int,
        *,
        was_answered: bool = False,
        was_sent: bool = True,
        status: int | None = None,
    ) -> None:
        super().stop_waiting(number)


class RetirementsUnnoticed(Instance):
    """Takes every call for one that was made before the first retirement."""

    def start(self, start: ObservationStart) -> InstanceFragment | None:
        return super().start(changed(start, retirement_count=0))


class LostAnswersMissed(Instance):
    """Does not record that answers which it misses are settled."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        answers = tuple(one for one in settlement.answers if one[1] != self.name)
        return super().settle(changed(settlement, answers=answers))


class RetiredRemembered(Instance):
    """Names retired instances in every fragment."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        return super().settle(changed(settlement, retired=()))


class DroppedAnswersUnsaid(Instance):
    """Does not say which answers it has dropped."""

    def meet(self, colour: int) -> InstanceFragment | None:
        fragment = super().meet(colour)
        return changed(fragment, dropped={}) if fragment else None


class DroppedCallsUnsaid(Instance):
    """Does not say that it has dropped unresolved calls."""

    def meet(self, colour: int) -> InstanceFragment | None:
        fragment = super().meet(colour)
        return changed(fragment, forgotten_through=0) if fragment else None


class RetiredUncounted(Collector):
    """Does not tell callers that an instance was retired."""

    def retire(self, instance: str) -> None:
        super().retire(instance)
        self.ledger.retirement_count -= 1


class NotAcceptedForEver(Collector):
    """Takes a call for not accepted though an instance may have accepted it since and has died."""

    def left(self, instance: str) -> Missing | None:
        not_accepted = dict(self.ledger.not_accepted)
        missing = super().left(instance)
        self.ledger.not_accepted |= not_accepted
        return missing


class SilentAtOnce(Collector):
    """Forgets which targets have answered with a header."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.targets.clear()
        return result


class LostForgotten(Collector):
    """Forgets the amounts of answers that were lost."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.lost.clear()
        return result


class DuplicatesForgotten(Collector):
    """Forgets the amounts of requests that were accepted twice."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.created.clear()
        return result


class PartialsForgotten(Collector):
    """Compares totals over an observation that was partial."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.next_baseline = None
        return result


class DisconnectionsForgotten(Collector):
    """Does not name instances that were disconnected before an observation was abandoned."""

    def abandon(self) -> Missing | None:
        self.ledger.newly_disconnected.clear()
        return super().abandon()


class StillMissing(Collector):
    """Names instances that had sent their fragments among the missing ones."""

    def abandon(self) -> Missing | None:
        missing = super().abandon()
        return missing and Missing(missing.number, tuple(self.ledger.members))


class ColoursIgnored(Collector):
    """Begins an observation with a number that an instance has met."""

    def joined(
        self, instance: str, colour: int, *args: Any, **more: Any
    ) -> ObservationStart | None:
        return super().joined(instance, 0, *args, **more)

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        number = self.number
        result = super().add(fragment)
        self.number = number
        return result


class NoGoodbye(Instance):
    """Ends in order without saying what it keeps."""

    def farewell(self) -> Farewell:
        said = super().farewell()
        return changed(said, fragment=changed(said.fragment, calls=(), served=()))


class AcknowledgesAtIntervalsOnly(Instance):
    """Ends without saying which answers it has received since it acknowledged some."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._said: dict[str, ReceivedAnswers] = {}

    def acknowledgements(self) -> dict[str, Acknowledgement]:
        self._said = super().farewell().fragment.received
        return super().acknowledgements()

    def farewell(self) -> Farewell:
        said = super().farewell()
        return changed(said, fragment=changed(said.fragment, received=self._said))


class ExactWhileUnknown(Collector):
    """Forgets that an instance has left without a goodbye."""

    def left(self, instance: str) -> Missing | None:
        missing = super().left(instance)
        self.ledger.gone.clear()
        return missing


class RestForgotten(Collector):
    """Forgets the amounts of an instance that has said goodbye."""

    def ended(self, farewell: Farewell) -> Missing | None:
        return super().ended(changed(farewell, amounts=calls.NOTHING))


class JoinersTakePart(Collector):
    """Includes an instance in an observation that began before it joined."""

    def joined(self, instance: str, *args: Any, **more: Any) -> ObservationStart | None:
        start = super().joined(instance, *args, **more)
        if start is not None and self._pending is not None:
            self._pending.awaited.add(instance)
        return start


class BaselinesUnsaid(Collector):
    """Compares totals with those from before an operator has begun a baseline."""

    def rebase(self, baseline: Baseline) -> tuple[str, ...]:
        before = self.ledger.next_baseline
        gone = super().rebase(baseline)
        self.ledger.next_baseline = before
        return gone


class ReturnsForgotten(Instance):
    """Does not say what was given back."""

    def settled(self, call: CallId, returned: Amounts = calls.NOTHING) -> None:
        super().settled(call)


class ReturnsBookedTwice(Collector):
    """Forgets which statements it has booked."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        self.ledger.booked.clear()
        return result and (result[0], changed(result[1], booked={}))


class StatementsNeverDropped(Instance):
    """Keeps statements that are booked."""

    def settle(self, settlement: Settlement) -> InstanceFragment | None:
        return super().settle(changed(settlement, booked={}))


class DoubleSpendsUnsaid(Collector):
    """Takes what was given back of a call that took effect for an amount that was lost."""

    def add(self, fragment: InstanceFragment) -> tuple[Observation, Settlement] | None:
        result = super().add(fragment)
        return result and (changed(result[0], double_spent={}), result[1])


class ReturnsDoubted(Collector):
    """Takes it for unknown whether a call was accepted for which amounts were given back."""

    def left(self, instance: str) -> Missing | None:
        missing = super().left(instance)
        self.ledger.unknown |= self.ledger.not_accepted
        self.ledger.not_accepted.clear()
        return missing
