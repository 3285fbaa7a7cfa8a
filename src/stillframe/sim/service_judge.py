"""The judge of simulated services: what really happened, and whether an observation says so.

The world (``sim.services``) records here what each of its steps does. The rules that are judged
(``protocol.calls``) do not see these records, and the judge does not use their ledger. Each field
of an `Observation` is compared with the records:

========================== =========================================================================
``number``, ``fragments``   `_judge_members`: numbers rise; all that were connected take part
fields of a fragment        `_judge_fragments`: what it has sent, accepted, called and lost
consistent                  `_judge_cut`: vector clocks
``calls``                   `_judge_listed`, `_judge_record`: each open or unresolved call, once
places                      `_judge_place`; an unresolved call is "not accepted" only if that is
                            true, and "unknown" only if an instance outside may have accepted it
``served``, ``late``,       `_judge_kept`: each call or answer that an instance keeps is in one
``duplicates``, ``orphans`` of them, with what it really carries, and in the right one
``disconnected``                    `_judge_members`
``not_accepted``,           `_judge_amounts`: the sums of what earlier observations have settled
``unknown``, ``lost``,
``created``
``double_spent``            `_judge_double_spent`: what was given back and is in a state as well
``partial``                 `_judge_reasons`: each reason is true, and none is left out
``baseline``                `_judge_baseline`
totals                      `_judge_equal_totals`, `_judge_total`
``Missing``                 `missing`: who had not delivered
========================== =========================================================================
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from stillframe.protocol.calls import (
    SILENT,
    Amounts,
    CallId,
    CallPlace,
    Captured,
    Farewell,
    Instance,
    InstanceFragment,
    Located,
    Missing,
    Observation,
    ServedCall,
)

BALANCE = 100
UNIT = "EUR"
OUTSIDE = "outside"
"""The target that passes requests on without headers."""

Clock = dict[str, int]
Cut = dict[str, int]
"""How many actions each instance of a cut had taken."""
Kept = tuple[str, CallId, int]
"""What an instance keeps of a call: its name, the call, and the number of the answer."""
UNSETTLED = (CallPlace.REQUESTED, CallPlace.UNKNOWN, CallPlace.OUTSIDE)
"""Where an unresolved call is that no instance of the cut has accepted."""


@dataclass
class Messages:
    """The messages of a streaming call in one direction: at which actions they were sent and
    accepted."""

    sent: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def sent_count(self, action: int) -> int:
        """Return how many were sent up to an action of the sender."""
        return sum(at <= action for at in self.sent)

    def accepted_count(self, action: int) -> int:
        """Return how many were accepted up to an action of the receiver."""
        return sum(at <= action for at in self.accepted)


@dataclass
class Acceptance:
    """A request that an instance has accepted, and its answer.

    Attributes:
        call: the call.
        instance: who accepted it.
        action: at which of its actions.
        number: the number of the answer.
        amount: the amount of the answer.
        answered_at: at which of its actions it answered; 0 if it did not.
        received_at: at which of the caller's actions its answer was accepted, with its header.
        has_unknown_amounts: whether it said that the answer carries unknown amounts.
        is_settled: whether an observation has found for good that the answer is not accepted.
    """

    call: CallId
    instance: str
    action: int
    number: int = 0
    amount: int = 0
    answered_at: int = 0
    received_at: int = 0
    has_unknown_amounts: bool = False
    is_settled: bool = False

    def kept(self, cut: Cut) -> Kept:
        """Return what its instance keeps of it at a cut after it."""
        is_answered = 0 < self.answered_at <= cut[self.instance]
        return self.instance, self.call, self.number if is_answered else 0


@dataclass
class MadeCall:
    """A call that was made.

    Attributes:
        call: the call.
        action: at which of its caller's actions it was made.
        target: its target.
        amount: what the request carries.
        serving: the call that it was made for.
        notified_at: until which step the caller knew which instances were disconnected.
        stopped_at: at which of its actions the caller stopped waiting; 0 if it did not.
        ended_at: at which of its actions the caller accepted the answer, or closed the call.
        was_answered: whether the caller had an answer without a header.
        up: the messages of its stream to the instance that serves it.
        down: the messages of its stream to the caller.
        acceptances: who accepted it.
        fate: what an observation has found for good, if the caller had stopped waiting.
        is_excused: whether its fate was unknown when an operator began a baseline.
        is_settled: whether an instance of a cut has said what became of it, while that was open.
        returned: what such instances have given back.
        lost: what its lost answers carried, when an observation had found that it took effect.
    """

    call: CallId
    action: int
    target: str
    amount: int
    serving: CallId | None
    notified_at: int
    stopped_at: int = 0
    ended_at: int = 0
    was_answered: bool = False
    up: Messages = field(default_factory=Messages)
    down: Messages = field(default_factory=Messages)
    acceptances: list[Acceptance] = field(default_factory=list)
    fate: CallPlace | None = None
    is_excused: bool = False
    is_settled: bool = False
    returned: int = 0
    lost: int = 0

    def amounts(self) -> int:
        """Return what its caller has sent."""
        return self.amount + len(self.up.sent)


@dataclass
class Said:
    """A statement of an instance about a call.

    Attributes:
        call: the call.
        instance: who has said it.
        action: at which of its actions.
        amount: what its state has gained.
    """

    call: CallId
    instance: str
    action: int
    amount: int


class Simulated:
    """An instance, and what really happened to it.

    Args:
        name: its name.
        service: its service.
        rules: the rules that it follows.
        kept_count_max: how much it keeps of each kind.
    """

    def __init__(self, name: str, service: str, rules: type[Instance], kept_count_max: int) -> None:
        self.name = name
        self.service = service
        self.balance = BALANCE
        self.clock: Clock = {}
        self.rules = rules(name, self.capture, amounts=self.amounts, kept_count_max=kept_count_max)
        self.heir = ""
        """Who has its money since it ended, if its service is durable."""
        self.is_alive = True
        self.is_connected = False
        self.to_collector: deque[Any] = deque()
        self.from_collector: deque[Any] = deque()
        self.waiting: dict[int, str] = {}
        self.call_count = 0
        self.serving: dict[int, Acceptance] = {}
        self.notified_at = 0
        self.sent_count = 0
        self.highest_accepted: dict[str, int] = {}
        self.highest_accepted_before: dict[str, int] = {}
        self.targets: dict[str, bool] = {}
        self.answer_counts: Counter[str] = Counter()

    def capture(self) -> Captured:
        """Return the state at a cut, with what the judge needs."""
        highest_accepted_before, self.highest_accepted_before = (
            self.highest_accepted_before,
            dict(self.highest_accepted),
        )
        return Captured(
            {
                UNIT: self.balance,
                "clock": dict(self.clock),
                "waiting": dict(self.waiting),
                "serving": Counter(one.call for one in self.serving.values()),
                "sent_count": self.sent_count,
                "highest_accepted": self.highest_accepted_before,
                "highest_accepted_before": highest_accepted_before,
                "targets": dict(self.targets),
                "answer_counts": dict(self.answer_counts),
            }
        )

    def amounts(self) -> Amounts:
        """Return the money in its state."""
        return {UNIT: self.balance}

    def tick(self, *clocks: Clock) -> Clock:
        """Count an action, which knows what `clocks` know; return the clock after it."""
        for clock in clocks:
            for name, count in clock.items():
                self.clock[name] = max(self.clock.get(name, 0), count)
        self.clock[self.name] = self.clock.get(self.name, 0) + 1
        return dict(self.clock)

    def count_accepted(self, name: str, number: int) -> None:
        """Record that it has accepted a message of another instance."""
        self.highest_accepted[name] = max(self.highest_accepted.get(name, 0), number)


class WrongObservation(AssertionError):
    """An observation says what did not happen."""


def check(is_true: object, message: str) -> None:
    """Raise a WrongObservation unless something is true."""
    if not is_true:
        raise WrongObservation(message)


def check_equal(what: str, found: object, expected: object) -> None:
    """Raise a WrongObservation unless what was found is what really happened."""
    check(found == expected, f"{what}: {found}, but really {expected}")


class Judge:
    """The records of what really happened, and the judge of observations.

    Args:
        instances: every instance that ever was; the world adds to it.
        is_forgetful: whether instances keep so little that they may drop some.
        has_streams: whether there are streaming calls.
    """

    def __init__(
        self, instances: dict[str, Simulated], *, is_forgetful: bool, has_streams: bool
    ) -> None:
        self.calls: dict[CallId, MadeCall] = {}
        self.seen: Counter[str] = Counter()
        self.step_count = 0
        self.has_disconnected = False
        self.went_outside = False
        self._instances = instances
        self._is_forgetful = is_forgetful
        self._has_streams = has_streams
        self._disconnected_at = 0
        self._disconnected: set[str] = set()
        self._newly_disconnected: dict[str, None] = {}
        self._retired: set[str] = set()
        self._talking: set[str] = set()
        self._retired_dead: set[str] = set()
        self._gone: set[str] = set()
        self._gone_at_begin: set[str] = set()
        self._ends: dict[str, int] = {}
        self._known: set[str] = set()
        self._known_at_begin: set[str] = set()
        self._at_rest: Counter[str] = Counter()
        self._brought = 0
        self._brought_at_begin = 0
        self._excused_at = 0
        self._was_rebased = False
        self._has_double_orphans = False
        self._baseline_counts = [1, 0, 0]
        """How many baselines had to begin: by now, when the pending observation began, and by the
        newest observation."""
        self._started: dict[int, int] = {}
        self._awaited: set[str] = set()
        self._may_deliver: set[str] = set()
        self._delivered: set[str] = set()
        self._called: set[str] = set()
        self._answering: set[str] = set()
        self._not_accepted: dict[CallId, MadeCall] = {}
        self._unknown: dict[CallId, MadeCall] = {}
        self._lost = 0
        self._created = 0
        self._said: list[Said] = []
        self._vain: list[Said] = []
        """Those of the newest observation about calls whose fate was not open."""
        self._previous: Observation | None = None
        self._cut: Collection[str] = ()
        self._totals: dict[int, int] = {}

    # --- what happens

    def started(self, retirement_count: int) -> None:
        """Record that the collector has requested an observation with this count."""
        self._started[retirement_count] = self.step_count

    def notified(self, one: Simulated, retirement_count: int) -> None:
        """Record that an instance was notified of it."""
        one.notified_at = max(one.notified_at, self._started[retirement_count])

    def begun(self) -> None:
        """Record who is connected when an observation begins."""
        self._awaited = {one.name for one in self._instances.values() if one.is_connected}
        self._may_deliver = set(self._awaited)
        self._delivered = set()
        self._gone_at_begin = set(self._gone)
        self._known_at_begin = set(self._known)
        self._brought_at_begin = self._brought
        self._baseline_counts[1] = self._baseline_counts[0]

    def joined(self, one: Simulated) -> None:
        """Record that an instance has connected: with money that was at rest, or brings some."""
        name = one.name
        if name in self._known_at_begin:
            self._may_deliver.add(name)
        if name not in self._known:
            self._known.add(name)
            more = (one.rules.began_with() or {})[UNIT] - self._at_rest[one.service]
            self._at_rest[one.service] = max(0, -more)
            self._brought += max(0, more)
            self._baseline_counts[0] += more > 0
        self._gone.discard(name)
        self._disconnected.discard(name)
        self._talking.discard(name)
        self._newly_disconnected.pop(name, None)

    def left_in_order(self, one: Simulated, farewell: Farewell) -> None:
        """Record that an instance has said goodbye: its calls are not awaited any more, and
        it answers nothing."""
        at = one.clock[one.name]
        for number in one.waiting:
            self.calls[CallId(one.name, number)].stopped_at = at
        for accepted, served in zip(one.serving.values(), farewell.fragment.served, strict=False):
            accepted.answered_at, accepted.number = at, served.number

    def ended(self, one: Simulated) -> None:
        """Record that the collector knows that an instance has said goodbye."""
        self._ends[one.name] = one.clock[one.name]
        self._at_rest[one.service] += one.balance

    def settled(self, call: CallId, one: Simulated, amount: int) -> None:
        """Record what an instance has said of a call."""
        self._said.append(Said(call, one.name, one.clock[one.name], amount))

    def rebased(self, missed: set[str]) -> None:
        """Record that an operator has begun a baseline, although instances are missed."""
        for name in missed:
            self.retired(name)
        self._gone.clear()
        for made in self._unknown.values():
            made.is_excused = True
        self._unknown.clear()
        self._excused_at = self._disconnected_at
        self._baseline_counts[0] += 1
        self._was_rebased = True
        self.seen["rebased"] += 1

    def left(self, name: str) -> None:
        """Record that the collector knows that an instance has left."""
        self.has_disconnected = True
        self._disconnected.add(name)
        self._newly_disconnected[name] = None
        self._gone.add(name)
        doubted = {call: made for call, made in self._not_accepted.items() if not made.returned}
        self._unknown |= doubted
        self._not_accepted = {
            call: made for call, made in self._not_accepted.items() if call not in doubted
        }

    def retired(self, name: str) -> None:
        """Record that an instance was retired, which may never have been connected."""
        if name not in self._disconnected:
            self.left(name)
        self._disconnected_at = self.step_count
        self._retired.add(name)
        self._talking.discard(name)
        if not self._instances[name].is_alive:
            self._retired_dead.add(name)

    def delivered(self, name: str) -> None:
        """Record that the collector has the fragment of an instance."""
        self._delivered.add(name)

    def missing(self, missing: Missing, name: str) -> None:
        """Judge an observation that was abandoned because an instance left."""
        names = set(missing.instances)
        is_right = name in names and self._awaited - self._delivered - self._ends.keys() <= names
        is_right = is_right and names <= self._may_deliver - self._delivered
        check(is_right, f"{name} has left, and observation {missing.number} lacks {names}")

    # --- what is said of it

    def judge(self, observation: Observation) -> None:
        """Raise a WrongObservation if an observation says what did not happen."""
        cut = {
            name: fragment.state["clock"].get(name, 0)
            for name, fragment in observation.fragments.items()
        } | self._ends
        self._cut = observation.fragments.keys()
        self._judge_members(observation)
        self._judge_cut(observation)
        for fragment in observation.fragments.values():
            self._judge_fragment(fragment, cut)
        for fragment in observation.ends.values():
            check(fragment.instance in self._ends, f"{fragment.instance} has not said goodbye")
        self._learn(observation)
        self._judge_reasons(observation)
        self._judge_listed(observation, cut)
        self._learn_said(observation, cut)
        for located in observation.calls:
            self._judge_record(located, cut)
            self._judge_place(observation, located, cut)
        self._judge_kept(observation, cut)
        self._judge_targets(observation)
        self._judge_amounts(observation)
        self._judge_double_spent(observation)
        self._judge_baseline(observation)
        if observation.is_exact:
            self._judge_equal_totals(observation)
            self._judge_total(observation)
        self._count(observation)
        self._conclude(observation)

    def _judge_members(self, observation: Observation) -> None:
        number, names = observation.number, observation.fragments.keys()
        before = self._previous.number if self._previous else 0
        check(number > before, f"observation {number} follows {before}")
        check(
            self._awaited <= names <= self._may_deliver,
            f"{sorted(names)} take part, but {sorted(self._awaited)} were connected",
        )
        for fragment in observation.fragments.values():
            is_of_it = fragment.after < number <= fragment.observation
            check(is_of_it, f"{fragment.instance} has captured for {fragment.observation}")
        disconnected = [name for name in self._newly_disconnected if name not in names]
        check_equal("disconnected", observation.disconnected, tuple(disconnected))
        self._newly_disconnected = {
            name: None for name in self._newly_disconnected if name in names
        }

    def _judge_cut(self, observation: Observation) -> None:
        fragments = observation.fragments
        for name, fragment in fragments.items():
            for other, count in fragment.state["clock"].items():
                if other in self._ends:
                    check(count <= self._ends[other], f"{name} has seen {other} after its end")
                elif other not in fragments:
                    # Where all are connected, or will be: what one that is disconnected has seen is
                    # not in the cut.
                    if count and not (self.has_disconnected or observation.partial):
                        raise WrongObservation(f"{name} has seen {other}, which is not named")
                elif count > fragments[other].state["clock"].get(other, 0):
                    if not (self.went_outside and observation.partial):
                        raise WrongObservation(f"{name} depends on what {other} did after its cut")
                    self.seen["hidden"] += 1

    def _judge_fragment(self, fragment: InstanceFragment, cut: Cut) -> None:
        name, truth = fragment.instance, fragment.state
        check_equal(f"{name} has sent", fragment.sent_count, truth["sent_count"])
        check_equal(f"{name} has called", fragment.targets, truth["targets"])
        for what, found in (
            ("highest_accepted", fragment.highest_accepted),
            ("answer_counts", fragment.answer_counts),
        ):
            # Those that are retired are left out unless they were heard of since the last cut.
            kept = {
                other: number
                for other, number in truth[what].items()
                if other in found
                or other not in self._retired | self._ends.keys()
                or truth["highest_accepted"][other] > truth["highest_accepted_before"].get(other, 0)
            }
            check_equal(f"{name} has {what}", {other: n for other, n in found.items() if n}, kept)
        if not self._is_forgetful:
            ended = [
                made
                for made in self._calls_of(name)
                if made.ended_at and made.ended_at <= cut[name] and made.target != OUTSIDE
            ]
            lost = sum(len(made.up.sent) - len(made.up.accepted) for made in ended)
            check_equal(f"{name} has lost", fragment.lost.get(UNIT, 0), lost)
            check_equal(f"{name} has dropped", fragment.dropped_count, 0)
        for made in self._calls_of(name):
            for one in made.acceptances:
                received = fragment.received.get(one.instance)
                if received is None or not one.answered_at:
                    continue
                has_received = 0 < one.received_at <= cut[name]
                is_right = (one.number in received) is has_received or one.is_settled
                check(is_right, f"{name} says of answer {one} that it received {received}")

    def _calls_of(self, name: str) -> Iterator[MadeCall]:
        return (made for made in self.calls.values() if made.call.caller == name)

    def _learn(self, observation: Observation) -> None:
        """Record which targets were called, and which are known to answer with headers."""
        targets = [one.state["targets"] for one in observation.fragments.values()]
        targets += [self._instances[name].targets for name in observation.ends]
        for called in targets:
            for target, has_answered in called.items():
                self._called.add(target)
                if has_answered:
                    self._answering.add(target)
        self._answering |= {one.record.target for one in observation.calls if one.served}

    def _learn_said(self, observation: Observation, cut: Cut) -> None:
        """Record what was said of calls before the cut."""
        listed = {one.call for one in observation.calls if not one.record.is_awaited}
        said = [one for one in self._said if one.action <= cut.get(one.instance, 0)]
        self._said = [one for one in self._said if one.action > cut.get(one.instance, 0)]
        self._vain = []
        for one in said:
            made = self.calls[one.call]
            if one.call in listed or (made.fate is not None and not made.is_excused):
                made.is_settled = True
                made.returned += one.amount
                if one.amount and one.call in self._unknown:
                    self._not_accepted[one.call] = self._unknown.pop(one.call)
            elif one.amount:
                self._vain.append(one)
                self._brought += one.amount

    def _judge_listed(self, observation: Observation, cut: Cut) -> None:
        """Each open call is listed, and each unresolved one until its fate is found."""
        expected = {
            made.call
            for made in self.calls.values()
            if made.call.caller in cut
            and made.action <= cut[made.call.caller]
            and not 0 < made.ended_at <= cut[made.call.caller]
            and made.fate is None
        }
        found = {one.call for one in observation.calls}
        check_equal("calls", len(found), len(observation.calls))
        for name, fragment in observation.fragments.items():
            waiting = {CallId(name, number) for number in fragment.state["waiting"]}
            awaited = {
                one.call
                for one in observation.calls
                if one.call.caller == name and one.record.is_awaited
            }
            check_equal(f"{name} waits for", awaited, waiting)
        if self._is_forgetful:
            check(found <= expected, f"{found - expected} are not open or unresolved")
            forgotten = {name: one.forgotten_through for name, one in observation.everybody.items()}
            dropped = {call for call in expected if call.number <= forgotten.get(call.caller, 0)}
            check(expected - dropped <= found, f"{expected - dropped - found} are not named")
        else:
            check_equal("calls", found, expected)

    def _judge_record(self, located: Located, cut: Cut) -> None:
        """What is said of a call is what its caller knew at its cut."""
        call, record = located.call, located.record
        made, at = self.calls[call], cut[call.caller]
        is_stopped = 0 < made.stopped_at <= at
        check_equal(f"{call} has target", record.target, made.target)
        check_equal(f"{call} is made for", record.serving, made.serving)
        check_equal(f"{call} carries", record.carries.get(UNIT), made.amount)
        check_equal(f"{call} was answered", record.was_answered, made.was_answered and is_stopped)
        check_equal(f"{call} has returned", located.returned.get(UNIT, 0), made.returned)
        stream = record.stream
        check_equal(f"{call} has sent", stream.sent_count, made.up.sent_count(at))
        check_equal(f"{call} has accepted", stream.accepted_count, made.down.accepted_count(at))
        if located.served and not self._is_forgetful:
            name, served = located.served[0]
            up = made.up.sent_count(at) - made.up.accepted_count(cut[name])
            down = made.down.sent_count(cut[name]) - made.down.accepted_count(at)
            check_equal(
                f"{call} has messages in transit",
                (
                    stream.carried_after(served.stream.accepted_count).get(UNIT, 0),
                    served.stream.carried_after(stream.accepted_count).get(UNIT, 0),
                ),
                (up, down),
            )

    def _judge_place(self, observation: Observation, located: Located, cut: Cut) -> None:
        call, place, made = located.call, located.place, self.calls[located.call]
        self.seen[place.value] += 1
        before = [one for one in made.acceptances if one.action <= cut.get(one.instance, 0)]
        if before and (located.served or not self._is_forgetful):
            is_served = any(not one.kept(cut)[2] for one in before)
            expected = CallPlace.SERVED if is_served else CallPlace.ANSWERED
            self.seen["doubled"] += len(before) > 1
        elif made.returned:
            expected = CallPlace.REQUESTED
        elif made.target not in self._answering or located.record.was_answered:
            expected = CallPlace.OUTSIDE
        else:
            # What was accepted in the cut may be dropped, but not forgotten.
            is_taken_along = bool(before) or any(
                self._is_taken_along(observation, one) for one in made.acceptances
            )
            is_unknown = self._may_be_outside(made)
            if self._is_forgetful:
                is_unknown = is_taken_along or place is CallPlace.UNKNOWN
            check(is_unknown or not is_taken_along, f"{call} was accepted, and is {place.value}")
            expected = CallPlace.UNKNOWN if is_unknown else CallPlace.REQUESTED
        check_equal(f"{call} is", place, expected)

    def _may_be_outside(self, made: MadeCall) -> bool:
        """Return whether an instance that is not in the cut may have accepted a call, for all that
        its caller and the collector know."""
        gone = (self._gone | self._gone_at_begin).difference(self._cut)
        is_one_away = bool(self._talking or (self._disconnected | gone) - self._retired)
        return is_one_away or made.notified_at < self._disconnected_at

    def _is_taken_along(self, observation: Observation, one: Acceptance) -> bool:
        """Return whether an instance that is not in the cut has accepted a call before it.

        Acceptances of two kinds do not count: those of an instance that was retired while it was
        alive cannot be known until others hear of it. One that is not connected so far is named."""
        name = one.instance
        if name in observation.fragments or name in self._ends:
            return False
        if name not in self._disconnected:
            return not observation.partial and self._has_seen(observation, one)
        is_known = name not in self._retired or name in self._retired_dead | self._talking
        return is_known or self._has_seen(observation, one)

    def _has_seen(self, observation: Observation, one: Acceptance) -> bool:
        return any(
            fragment.state["clock"].get(one.instance, 0) >= one.action
            for fragment in observation.fragments.values()
        )

    def _judge_kept(self, observation: Observation, cut: Cut) -> None:
        """Each call that an instance serves, and each answer that its caller has not accepted, is
        named once, where it belongs."""
        expected: dict[str, Counter[Kept]] = {
            kind: Counter() for kind in ("calls", "late", "duplicates", "orphans")
        }
        acknowledged: set[Kept] = set()
        listed = {one.call for one in observation.calls}
        late = {one.call for one in observation.late}
        for made in self.calls.values():
            kept = [one for one in made.acceptances if self._is_kept(made, one, cut)]
            if not kept:
                continue
            if made.call in listed:
                kind = "calls"
            elif (made.fate in UNSETTLED and not made.is_excused) or made.call in late:
                kind = "late"
            elif made.call.caller not in observation.everybody:
                acknowledged |= {one.kept(cut) for one in kept if one.received_at}
                kind = "orphans"
                self._has_double_orphans |= len(made.acceptances) > 1
            else:
                kind = "duplicates"
                is_double = len(made.acceptances) > 1 or self._is_forgetful or made.is_excused
                check(is_double, f"{made.call} was accepted once, and is doubled")
            expected[kind].update(one.kept(cut) for one in kept)
        # The first acceptance of a late call is late, every other one is a duplicate.
        found = {
            "calls": _kept(observation.calls),
            "late": _kept(observation.late),
            "duplicates": Counter(
                (name, one.call, one.number) for name, one in observation.duplicates
            ),
            "orphans": Counter((name, one.call, one.number) for name, one in observation.orphans),
        }
        second = Counter({one: n for one, n in found["duplicates"].items() if one[1] in late})
        found["late"] += second
        found["duplicates"] -= second
        # Whether an acknowledgement has arrived before the caller left does not matter.
        for one in acknowledged:
            expected["orphans"][one] = found["orphans"][one]
        for kind, counts in found.items():
            if self._is_forgetful:
                check(not counts - expected[kind], f"{kind}: {counts}, but {expected[kind]}")
            else:
                check_equal(kind, counts, +expected[kind])
        for located in observation.late:
            self._judge_late(located, cut)
        for name, served in self._all_kept(observation):
            self._judge_served(name, served, cut)
        self.seen["late"] += len(observation.late)

    def _is_kept(self, made: MadeCall, one: Acceptance, cut: Cut) -> bool:
        """Return whether an instance of a cut keeps a call for long."""
        at = cut.get(made.call.caller, 0)
        is_received = 0 < one.received_at <= at
        return one.action <= cut.get(one.instance, 0) and not one.is_settled and not is_received

    def _judge_late(self, located: Located, cut: Cut) -> None:
        made = self.calls[located.call]
        at = cut.get(located.call.caller, made.stopped_at)
        is_unresolved = 0 < made.stopped_at <= at
        # One that its caller has dropped cannot be told from a duplicate.
        check(is_unresolved or self._is_forgetful, f"{located.call} is not unresolved")
        check(made.fate in UNSETTLED or self._is_forgetful, f"{located.call} is late twice")
        [(_, served)] = located.served
        expected = CallPlace.ANSWERED if served.number else CallPlace.SERVED
        check_equal(f"{located.call} is", located.place, expected)
        check_equal("returned", located.returned.get(UNIT, 0), made.returned)

    def _judge_served(self, name: str, served: ServedCall, cut: Cut) -> None:
        """What is said of a served call is what happened to it."""
        made = self.calls[served.call]
        [one, *_] = [
            one
            for one in made.acceptances
            if one.instance == name and one.kept(cut) == (name, served.call, served.number)
        ]
        check_equal(f"{made.call} has brought", served.brought.get(UNIT), made.amount)
        if served.number:
            check_equal(f"{made.call} is answered with", served.answer.get(UNIT, 0), one.amount)
        stream, at = served.stream, cut[name]
        check_equal(f"{name} has sent", stream.sent_count, made.down.sent_count(at))
        check_equal(f"{name} has accepted", stream.accepted_count, made.up.accepted_count(at))

    def _all_kept(self, observation: Observation) -> Iterator[tuple[str, ServedCall]]:
        for located in (*observation.calls, *observation.late):
            yield from located.served
        yield from observation.duplicates
        yield from observation.orphans

    def _judge_reasons(self, observation: Observation) -> None:
        """Each reason for a partial observation is true."""
        for reason in observation.partial:
            name = reason.partition(" ")[0]
            if "too many" in reason:
                is_true = self._is_forgetful
            elif "accepted twice" in reason:
                caller, _, number = reason.split(" ")[1].partition("#")
                is_true = self.calls[CallId(caller, int(number))].is_excused
            elif "caller had ended" in reason:
                caller = reason.split(" ")[1].partition("#")[0]
                is_true = caller not in observation.everybody
            elif "not connected" in reason:
                other = reason.partition(",")[0].rpartition(" ")[2]
                is_true = other in self._instances[name].highest_accepted
                is_true &= other not in observation.fragments
                is_true &= self._is_forgetful or "dropped" not in reason
                if other in self._disconnected and "dropped" not in reason:
                    self._talking.add(other)
                    self._disconnected_at = self.step_count
            else:
                continue
            check(is_true, f"an observation is partial without a reason: {reason}")

    def _judge_targets(self, observation: Observation) -> None:
        """The other reasons are exactly those that there are.

        They name targets that never answer with a header, calls with unknown amounts, and targets
        that answer with a header at times."""
        blind = {
            served.call
            for name, served in self._all_kept(observation)
            for one in self.calls[served.call].acceptances
            if one.has_unknown_amounts and one.instance == name and one.number == served.number
        }
        bare = [
            one.record.target
            for one in observation.calls
            if one.record.was_answered and one.record.target in self._answering
        ]
        silent = self._called - self._answering
        expected = [SILENT.format(target) for target in sorted(silent)]
        expected += [f"the amounts of call {call} are not known" for call in sorted(blind)]
        expected += [f"{target} has answered without a header" for target in dict.fromkeys(bare)]
        vain = {(one.instance, one.call) for one in self._vain}
        given = [one for one in observation.partial if "given amounts back" in one]
        self.seen["given back in vain"] += len(vain)
        check_equal("given back in vain", len(given), len(vain))
        for name, call in vain:
            is_named = any(one.startswith(f"{name} ") and f"{call}," in one for one in given)
            check(is_named, f"{name} has given back for {call}, which is not named")
        others = (
            "too many",
            "not connected",
            "caller had ended",
            "accepted twice",
            "the same holds",
            "given amounts back",
        )
        found = [one for one in observation.partial if not any(other in one for other in others)]
        check_equal("partial", found, expected)

    def _judge_amounts(self, observation: Observation) -> None:
        """What earlier observations have settled is summed up."""
        if self._is_forgetful:
            return
        late = {one.call for one in observation.late}
        for call, made in tuple(self._unknown.items()):
            if not self._may_be_outside(made):
                self._not_accepted[call] = self._unknown.pop(call)
        not_accepted = unknown = 0
        for call, made in self._not_accepted.items():
            if call in late:
                continue
            if made.returned:
                not_accepted += max(0, made.amounts() - made.returned)
                continue
            is_taken_along = any(self._is_taken_along(observation, one) for one in made.acceptances)
            check(not is_taken_along, f"{call} was accepted, and is not in doubt")
            if made.target in self._answering:
                not_accepted += made.amounts()
            elif not made.is_settled:
                unknown += made.amounts()
        unknown += sum(
            made.amounts()
            for call, made in self._unknown.items()
            if call not in late and not made.is_settled
        )
        check_equal("not accepted", observation.not_accepted.get(UNIT, 0), not_accepted)
        if not self._has_streams:
            check_equal("unknown", observation.unknown.get(UNIT, 0), unknown)
            ended = [made for made in self.calls.values() if made.fate is CallPlace.ANSWERED]
            taken = sum(min(made.lost, made.returned) for made in ended)
            check_equal("lost", observation.lost.get(UNIT, 0), self._lost - taken)
        check_equal("created", observation.created.get(UNIT, 0), self._created)
        check_equal("forgotten", observation.forgotten_count, 0)

    def _judge_double_spent(self, observation: Observation) -> None:
        """What was given back is named as far as it is more than what was lost of the call."""
        if self._is_forgetful or self._has_streams:
            return
        served = {
            located.call: sum(one.answer.get(UNIT, 0) for _, one in located.served)
            for located in (*observation.calls, *observation.late)
            if located.served
        }
        expected: dict[str, int] = {}
        for call, made in self.calls.items():
            lost = made.lost if made.fate is CallPlace.ANSWERED else served.get(call, made.amount)
            if made.returned > lost and self._is_told(made):
                expected[str(call)] = made.returned - lost
        found = {call: amounts[UNIT] for call, amounts in observation.double_spent.items()}
        check_equal("spent twice", found, expected)
        self.seen["spent twice"] += len(found)
        self.seen["given back"] += sum(
            made.returned > 0 and str(call) not in found for call, made in self.calls.items()
        )

    def _is_told(self, made: MadeCall) -> bool:
        """Return whether an observation says of a call what was given back: its caller has not
        left, or its fate was found."""
        return made.fate is not None or made.call.caller in (*self._cut, *self._ends)

    def _judge_baseline(self, observation: Observation) -> None:
        """The baseline is that of the observation before, unless that was partial, something else
        has brought money, or an operator has begun one."""
        before = self._previous
        _, wanted, done = self._baseline_counts
        is_comparable = before and not before.partial and wanted == done
        expected = before.baseline if before and is_comparable else observation.number
        self._baseline_counts[2] = wanted
        check_equal("the baseline", observation.baseline, expected)

    def _judge_equal_totals(self, observation: Observation) -> None:
        """Exact observations with the same baseline have the same total."""
        total = _total_of(observation)
        expected = self._totals.setdefault(observation.baseline, total)
        check_equal(f"the total since observation {observation.baseline}", total, expected)
        self.seen["exact since a decision"] += self._was_rebased

    def _judge_total(self, observation: Observation) -> None:
        """The total is what instances have brought that did not begin with what others had left. It
        is more if a call was accepted twice of whose caller nothing is kept."""
        if not (self.went_outside or self._was_rebased or self._has_double_orphans):
            check_equal("the total", _total_of(observation), self._brought_at_begin)
            self.seen["exact totals"] += 1
            self.seen["exact totals after goodbyes"] += bool(self._ends)

    def _count(self, observation: Observation) -> None:
        """Count what was judged."""
        self.seen["partial" if observation.partial else "complete"] += 1
        self.seen["messages in transit"] += sum(
            one.record.stream.sent_count > served.stream.accepted_count
            or served.stream.sent_count > one.record.stream.accepted_count
            for one in observation.calls
            for _, served in one.served[:1]
        )
        self.seen["messages lost"] += any(one.lost for one in observation.fragments.values())
        self.seen["duplicates"] += len(observation.duplicates)
        self.seen["orphans"] += len(observation.orphans)

    def _conclude(self, observation: Observation) -> None:
        """Record what an observation has found for good."""
        self._previous = observation
        for located in observation.calls:
            made = self.calls[located.call]
            if located.record.is_awaited or located.place is CallPlace.SERVED:
                continue
            made.fate = located.place
            if located.place is CallPlace.ANSWERED:
                self._settle(located)
            elif self._may_be_outside(made) and not made.returned:
                made.is_excused = made.notified_at < self._excused_at
                if not made.is_excused:
                    self._unknown[located.call] = made
            else:
                self._not_accepted[located.call] = made
        for located in observation.late:
            if located.place is CallPlace.ANSWERED:
                self.calls[located.call].fate = CallPlace.ANSWERED
                self._not_accepted.pop(located.call, None)
                self._unknown.pop(located.call, None)
                self._settle(located)
        for name, served in observation.duplicates:
            if served.number:
                self._created += self.calls[served.call].amount
                self._settle_answer(name, served)
        for name, served in observation.orphans:
            caller = served.call.caller
            is_over = caller in self._retired or caller in self._ends  # and is forgotten
            if served.number and is_over:
                self._settle_answer(name, served)

    def _settle(self, located: Located) -> None:
        """Record that a call took effect, and that its answers are lost."""
        before = self._lost
        for name, served in located.served:
            self._settle_answer(name, served)
        self.calls[located.call].lost = self._lost - before
        self._lost -= self.calls[located.call].amount * (len(located.served) - 1)

    def _settle_answer(self, name: str, served: ServedCall) -> None:
        for one in self.calls[served.call].acceptances:
            if (one.instance, one.number) == (name, served.number):
                one.is_settled = True
                self._lost += one.amount


def _kept(calls: tuple[Located, ...]) -> Counter[Kept]:
    return Counter(
        (name, served.call, served.number) for one in calls for name, served in one.served
    )


def _total_of(observation: Observation) -> int:
    """Return all money that an observation shows, but that which was spent twice."""
    total: int = sum(one.state[UNIT] for one in observation.fragments.values())
    total += sum(amounts.get(UNIT, 0) for amounts in observation.ended.values())
    total -= sum(amounts.get(UNIT, 0) for amounts in observation.double_spent.values())
    return total + observation.outside_states().get(UNIT, 0)
