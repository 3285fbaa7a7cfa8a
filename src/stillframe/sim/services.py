"""Simulated services that call each other: the rules of observations against what really happened.

A `Services` world has the real rules (``protocol.calls``) and a network that loses, delays,
disorders and doubles messages. A control connection leads from each instance to the collector.
Every step is one atomic action of one of them, chosen from outside: by chance (`run_services`), or
in every possible order (`explore_services`). The world keeps vector clocks that the rules do not
see, and its `Judge` compares each observation with what really happened.

Each instance has money. A request brings some to the instance that accepts it, which answers with a
part of it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import msgspec

from stillframe.protocol.calls import (
    KEPT_COUNT_MAX,
    Acknowledgement,
    AnswerHeader,
    Baseline,
    CallId,
    CallLedger,
    Collector,
    End,
    Farewell,
    Instance,
    InstanceFragment,
    MessageHeader,
    Missing,
    Observation,
    ObservationStart,
    RequestHeader,
    Settlement,
    call_named,
)
from stillframe.sim.service_judge import (
    OUTSIDE,
    UNIT,
    Acceptance,
    Clock,
    Judge,
    MadeCall,
    Simulated,
    WrongObservation,
)

Step = tuple[str, ...]
"""A kind of step, and what takes it: ``("deliver", "A-1#3", "B-2")``."""


@dataclass(frozen=True, kw_only=True)
class ServicesConfig:
    """The simulated services, and what may happen to them.

    Attributes:
        services: how many instances each service has at first.
        started_count_max: how many instances may be started later.
        call_counts: how many calls each instance of a service makes at most; those of others make
            any number.
        observation_count_max: how many observations are requested.
        has_streams: whether half of the calls are streaming calls.
        is_durable: whether an instance that starts has the money that one of its service had when
            it ended.
        faults: what may happen too: ``stop``, ``lose``, ``double``, ``leave`` (with a goodbye),
            ``kill``, ``disconnect``, ``outside``, ``restart`` of the collector, ``cache`` (an
            answer with the header of another call), ``unread`` (answers with unknown amounts),
            ``rebase`` (an operator begins a baseline although something is unknown), and ``settle``
            (an instance gives back what a call carried whose answer it has not received, or that of
            an instance of its service that has ended).
        fault_count_max: how many faults happen at most.
        kept_count_max: how much an instance keeps of each kind.
        weights: how likely steps are, where this differs from `WEIGHTS`.
    """

    services: dict[str, int] = field(default_factory=lambda: {"A": 1, "B": 2})
    started_count_max: int = 0
    is_durable: bool = False
    call_counts: dict[str, int] = field(default_factory=dict)
    observation_count_max: int = 10**9
    has_streams: bool = False
    faults: frozenset[str] = frozenset()
    fault_count_max: int = 10**9
    kept_count_max: int = KEPT_COUNT_MAX
    weights: dict[str, float] = field(default_factory=dict)


class RequestInNetwork(NamedTuple):
    """A request in the network."""

    header: RequestHeader | None
    call: CallId
    target: str
    amount: int
    clock: Clock


class AnswerInNetwork(NamedTuple):
    """An answer in the network."""

    header: AnswerHeader
    clock: Clock
    sent: Acceptance


@dataclass
class StreamInNetwork:
    """The messages of a streaming call in the network, in both directions."""

    up: deque[tuple[MessageHeader, Clock]] = field(default_factory=deque)
    down: deque[tuple[MessageHeader, Clock]] = field(default_factory=deque)
    served: tuple[str, int] | None = None
    """Who serves the call, and its ticket."""


class Services:
    """A world of services that call each other.

    Args:
        config: the services.
        rules: the rules of an instance.
        collector: the rules of the collector.
    """

    def __init__(
        self,
        config: ServicesConfig,
        *,
        rules: type[Instance] = Instance,
        collector: type[Collector] = Collector,
    ) -> None:
        self.config = config
        self.collector = collector()
        self._make_collector = collector
        self.instances: dict[str, Simulated] = {}
        self.requests: dict[str, RequestInNetwork] = {}
        self.answers: dict[str, AnswerInNetwork] = {}
        self.streams: dict[CallId, StreamInNetwork] = {}
        self.observations: list[Observation] = []
        self.abandoned: list[Missing] = []
        self.logs: dict[str, list[Step]] = {}
        self.begun_count = 0
        self.judge = Judge(
            self.instances,
            is_forgetful=config.kept_count_max < KEPT_COUNT_MAX,
            has_streams=config.has_streams,
        )
        self.seen = self.judge.seen
        self._rules = rules
        self._started_count = 0
        self._copy_counts: Counter[CallId] = Counter()
        self._stopped: dict[CallId, int] = {}
        """How often calls may be settled whose answers cannot be received any more."""
        for service, count in config.services.items():
            for _ in range(count):
                self._connect(self._start(service))

    # --- steps

    @property
    def faults(self) -> frozenset[str]:
        """The faults that may still happen."""
        count = sum(self.seen[fault] for fault in self.config.faults)
        return self.config.faults if count < self.config.fault_count_max else frozenset()

    def steps(self) -> Iterator[Step]:
        """Yield each step that is possible now."""
        for one in self.instances.values():
            if one.is_alive:
                yield from self._steps_of(one)
                yield from self._control_steps_of(one)
            if one.to_collector:
                yield "collect", one.name
            if not one.is_alive and one.is_connected and not one.to_collector:
                yield "notice", one.name
        yield from self._steps_in_network()
        for call in self.streams:
            yield from self._steps_on(call)
        yield from self._steps_of_collector()

    def _steps_of(self, one: Simulated) -> Iterator[Step]:
        config = self.config
        count_max = config.call_counts.get(one.service, one.call_count + 1)
        if one.call_count < count_max and one.balance > 0:
            for service in config.services:
                if service != one.service:
                    yield "call", one.name, service
            if "outside" in self.faults:
                yield "call", one.name, OUTSIDE
        for ticket in one.serving:
            yield "answer", one.name, str(ticket)
        for number, target in one.waiting.items():
            if "stop" in self.faults:
                yield "stop", one.name, str(number)
            if target == OUTSIDE:
                yield "close", one.name, str(number)
        for end in ("kill", "leave"):
            if end in self.faults:
                yield end, one.name
        if "settle" in self.faults:
            yield from self._settling_steps_of(one)

    def _settling_steps_of(self, one: Simulated) -> Iterator[Step]:
        for call, count in self._stopped.items():
            caller = self.instances[call.caller]
            is_heir = caller.service == one.service and not caller.is_alive
            if count and (caller is one or is_heir):
                yield "settle", one.name, str(call)

    def _control_steps_of(self, one: Simulated) -> Iterator[Step]:
        if one.from_collector:
            yield "notify", one.name
        if one.is_connected:
            if one.rules.unreported:
                yield "acknowledge", one.name
            if "disconnect" in self.faults:
                yield "disconnect", one.name
        elif one.name not in self.collector.ledger.retired:
            yield "connect", one.name

    def _steps_in_network(self) -> Iterator[Step]:
        faults = self.faults
        for key, request in self.requests.items():
            for one in self.instances.values():
                if one.is_alive and one.service == request.target:
                    yield "deliver", key, one.name
            # What passes messages of a stream on does not send them again.
            may_double = request.header is not None and request.call not in self.streams
            if "double" in faults and may_double:
                yield "double", key
        for key, answer in self.answers.items():
            call = answer.header.call
            stream = self.streams.get(call)
            if self._is_awaited(call) and not (stream and stream.down):
                yield "return", key
                if "cache" in faults:
                    yield "cache", key
        if "lose" in faults:
            for key in (*self.requests, *self.answers):
                yield "lose", key

    def _steps_on(self, call: CallId) -> Iterator[Step]:
        stream = self.streams[call]
        is_awaited = self._is_awaited(call)
        if is_awaited and self.instances[call.caller].balance > 0:
            yield "send", str(call), "up"
        if is_awaited and stream.down:
            yield "pass", str(call), "down"
        if stream.served is not None:
            name, ticket = stream.served
            one = self.instances[name]
            is_served = one.is_alive and ticket in one.serving
            if is_served and one.balance > 0:
                yield "send", str(call), "down"
            if is_served and stream.up:
                yield "pass", str(call), "up"

    def _steps_of_collector(self) -> Iterator[Step]:
        ledger = self.collector.ledger
        for name in ledger.disconnected:
            if name not in ledger.retired or name in ledger.talking:
                yield "retire", name
        for name in ledger.strangers:
            yield "retire", name
        may_begin = self.begun_count < self.config.observation_count_max
        if may_begin and ledger.members and not self.collector.awaited:
            yield ("begin",)
        if "restart" in self.faults:
            yield ("restart",)
        if "rebase" in self.faults and (ledger.gone or ledger.unknown):
            yield ("rebase",)
        if self._started_count < self.config.started_count_max:
            for service in self.config.services:
                yield "start", service

    def _is_awaited(self, call: CallId) -> bool:
        caller = self.instances[call.caller]
        return caller.is_alive and call.number in caller.waiting

    def take(self, step: Step) -> None:
        """Take a step that is possible."""
        kind, *rest = step
        self.logs.setdefault(self._place_of(step), []).append(step)
        self.seen[kind] += 1
        self.judge.step_count += 1
        getattr(self, f"_{kind}")(*rest)

    def _place_of(self, step: Step) -> str:
        """Return what takes a step, or which message of the network is concerned."""
        kind, *rest = step
        if kind in ("begin", "collect", "notice", "retire", "restart", "rebase"):
            return "collector"
        if kind in ("send", "pass"):
            call = call_named(rest[0])
            served = self.streams[call].served
            at_caller = (kind, rest[1]) in {("send", "up"), ("pass", "down")}
            return call.caller if at_caller or served is None else served[0]
        return rest[1] if kind == "deliver" else rest[0]

    def _call(self, name: str, target: str) -> None:
        one = self.instances[name]
        amount = min(one.balance, 5 + one.call_count % 3)
        one.balance -= amount
        one.call_count += 1
        serving = next((served.call for served in one.serving.values()), None)
        header = one.rules.request(target, carries={UNIT: amount}, serving=serving)
        clock = one.tick()
        one.sent_count += 1
        one.targets.setdefault(target, False)
        self.judge.calls[header.call] = MadeCall(
            header.call, one.clock[name], target, amount, serving, one.notified_at
        )
        one.waiting[header.call.number] = target
        if target == OUTSIDE:
            self.judge.went_outside = True
            [service, *_] = [service for service in self.config.services if service != one.service]
            self._put(RequestInNetwork(None, header.call, service, amount, clock))
        else:
            self._put(RequestInNetwork(header, header.call, target, amount, clock))
            if self.config.has_streams and one.call_count % 2:
                self.streams[header.call] = StreamInNetwork()

    def _end_of(self, call: CallId, *, is_caller: bool) -> tuple[Simulated, End]:
        if is_caller:
            return self.instances[call.caller], call
        served = self.streams[call].served
        assert served is not None
        return self.instances[served[0]], served[1]

    def _send(self, text: str, direction: str) -> None:
        call = call_named(text)
        one, end = self._end_of(call, is_caller=direction == "up")
        one.balance -= 1
        header = one.rules.send(end, carries={UNIT: 1})
        stream, made = self.streams[call], self.judge.calls[call]
        (stream.up if direction == "up" else stream.down).append((header, one.tick()))
        (made.up if direction == "up" else made.down).sent.append(one.clock[one.name])
        one.sent_count += 1

    def _pass(self, text: str, direction: str) -> None:
        call = call_named(text)
        stream = self.streams[call]
        header, clock = (stream.up if direction == "up" else stream.down).popleft()
        one, end = self._end_of(call, is_caller=direction == "down")
        self._report(one, one.rules.accept_message(end, header))
        one.tick(clock)
        made = self.judge.calls[call]
        (made.up if direction == "up" else made.down).accepted.append(one.clock[one.name])
        one.count_accepted(header.instance, header.sent_count)
        one.balance += 1

    def _put(self, request: RequestInNetwork) -> None:
        self._copy_counts[request.call] += 1
        self.requests[f"{request.call}.{self._copy_counts[request.call]}"] = request

    def _deliver(self, key: str, name: str) -> None:
        request, one = self.requests.pop(key), self.instances[name]
        if request.header is not None:
            ticket, fragment = one.rules.accept(request.header, brought={UNIT: request.amount})
            self._report(one, fragment)
        one.tick(request.clock)
        if request.header is not None:
            accepted = Acceptance(request.call, name, one.clock[name])
            one.serving[ticket] = accepted
            self.judge.calls[request.call].acceptances.append(accepted)
            one.count_accepted(request.call.caller, request.call.number)
            if request.call in self.streams:
                self.streams[request.call].served = name, ticket
        one.balance += request.amount

    def _answer(self, name: str, ticket: str) -> None:
        one = self.instances[name]
        accepted = one.serving.pop(int(ticket))
        call = accepted.call
        accepted.amount = min(one.balance, self.judge.calls[call].amount // 2)
        one.balance -= accepted.amount
        accepted.has_unknown_amounts = "unread" in self.config.faults and not int(ticket) % 4
        header = one.rules.answer(
            int(ticket),
            carries={UNIT: accepted.amount},
            has_unknown_amounts=accepted.has_unknown_amounts,
            status=_STATUS,
        )
        clock = one.tick()
        accepted.answered_at, accepted.number = one.clock[name], header.number
        one.sent_count += 1
        one.answer_counts[call.caller] += 1
        self.answers[f"{name}>{call.caller}:{header.number}"] = AnswerInNetwork(
            header, clock, accepted
        )

    def _return(self, key: str) -> None:
        header, clock, sent = self.answers.pop(key)
        one, number = self.instances[header.call.caller], header.call.number
        self._report(one, one.rules.accept_answer(number, header))
        del one.waiting[number]
        self.streams.pop(header.call, None)
        one.tick(clock)
        made = self.judge.calls[header.call]
        sent.received_at = made.ended_at = one.clock[one.name]
        one.count_accepted(header.instance, header.sent_count)
        one.targets[made.target] = True
        one.balance += sent.amount

    def _cache(self, key: str) -> None:
        """Accept an answer of a cache: its header is that of another call, so it counts as none."""
        header, clock, sent = self.answers.pop(key)
        one, number = self.instances[header.call.caller], header.call.number
        other = msgspec.structs.replace(header, call=CallId("another", number))
        one.rules.accept_answer(number, other)
        del one.waiting[number]
        self.streams.pop(header.call, None)
        one.tick(clock)
        made = self.judge.calls[header.call]
        made.stopped_at, made.was_answered = one.clock[one.name], True
        self.judge.went_outside = True
        one.balance += sent.amount

    def _stop(self, name: str, number: str) -> None:
        one = self.instances[name]
        del one.waiting[int(number)]
        one.rules.stop_waiting(int(number))
        one.tick()
        self.judge.calls[CallId(name, int(number))].stopped_at = one.clock[name]
        self._stopped[CallId(name, int(number))] = SETTLED_COUNT_MAX

    def _settle(self, name: str, text: str) -> None:
        """Settle a call: all, a half or nothing of its amounts is given back."""
        one, call = self.instances[name], call_named(text)
        self._stopped[call] -= 1
        amount = self.judge.calls[call].amounts() * ((call.number + self._stopped[call]) % 3) // 2
        one.balance += amount
        one.rules.settled(call, {UNIT: amount} if amount else {})
        one.tick()
        self.judge.settled(call, one, amount)

    def _close(self, name: str, number: str) -> None:
        one = self.instances[name]
        del one.waiting[int(number)]
        one.rules.close(int(number))
        one.tick()
        self.judge.calls[CallId(name, int(number))].ended_at = one.clock[name]

    def _lose(self, key: str) -> None:
        self.requests.pop(key, None)
        self.answers.pop(key, None)

    def _double(self, key: str) -> None:
        self._put(self.requests[key])

    def _kill(self, name: str) -> None:
        one = self.instances[name]
        one.is_alive = False
        self._stopped |= {CallId(name, number): SETTLED_COUNT_MAX for number in one.waiting}
        self.judge.has_disconnected = True

    def _leave(self, name: str) -> None:
        """End an instance in order: it says goodbye if it is connected."""
        one = self.instances[name]
        if not one.is_connected:
            self._kill(name)
            return
        farewell = one.rules.farewell()
        one.to_collector.append(farewell)
        one.is_alive = False
        self._stopped |= {CallId(name, number): SETTLED_COUNT_MAX for number in one.waiting}
        one.tick()
        self.judge.left_in_order(one, farewell)

    def _rebase(self) -> None:
        if (missing := self.collector.abandon()) is not None:
            self.abandoned.append(missing)
        ledger = self.collector.ledger
        missed = {*ledger.gone, *ledger.strangers} - ledger.retired
        self.collector.rebase(Baseline(0, "it was decided", "an operator"))
        self.judge.rebased(missed)

    def _start(self, service: str) -> str:
        count = sum(one.service == service for one in self.instances.values()) + 1
        name = f"{service}-{count:08x}"
        one = Simulated(name, service, self._rules, self.config.kept_count_max)
        heirs = {other.heir for other in self.instances.values()}
        for other in self.instances.values():
            is_free = other.service == service and not (other.is_alive or other.heir)
            if self.config.is_durable and is_free and one.name not in heirs:
                one.balance, other.heir = other.balance, one.name
                break
        self.instances[name] = one
        if self.logs:
            self._started_count += 1
        return name

    # --- control connections

    def _connect(self, name: str) -> None:
        one = self.instances[name]
        one.is_connected = True
        start = self.collector.joined(
            name,
            one.rules.colour,
            one.rules.retirement_count,
            began_with=one.rules.began_with(),
        )
        self.judge.joined(one)
        if start is not None:
            self.judge.started(start.retirement_count)
            one.from_collector.append(start)

    def _disconnect(self, name: str) -> None:
        one = self.instances[name]
        one.is_connected = False
        one.to_collector.clear()
        one.from_collector.clear()
        self._notice(name)

    def _notice(self, name: str) -> None:
        self.instances[name].is_connected = False
        missing = self.collector.left(name)
        self.judge.left(name)
        if missing is not None:
            self.judge.missing(missing, name)
            self.abandoned.append(missing)

    def _retire(self, name: str) -> None:
        self.seen["strangers retired"] += name in self.collector.ledger.strangers
        self.collector.retire(name)
        self.judge.retired(name)

    def _restart(self) -> None:
        """End the collector, and start another one with what it had stored."""
        stored = msgspec.msgpack.encode(self.collector.ledger)
        ledger = msgspec.msgpack.decode(stored, type=CallLedger)
        number = max((one.number for one in self.observations), default=0)
        self.collector = self._make_collector(ledger, number)
        for one in self.instances.values():
            one.from_collector.clear()
            one.to_collector.clear()
            if one.is_connected and one.is_alive:
                self._connect(one.name)

    def _begin(self) -> None:
        self.begun_count += 1
        start = self.collector.begin()
        self.judge.begun()
        self.judge.started(start.retirement_count)
        self._broadcast(start)

    def _broadcast(self, message: ObservationStart | Settlement) -> None:
        for one in self.instances.values():
            if one.is_connected and one.is_alive:
                part = message if isinstance(message, ObservationStart) else message.of(one.name)
                one.from_collector.append(part)

    def _report(self, one: Simulated, message: object) -> None:
        if message is not None and one.is_connected:
            one.to_collector.append(message)

    def _notify(self, name: str) -> None:
        one = self.instances[name]
        message = one.from_collector.popleft()
        rules = one.rules
        match message:
            case ObservationStart():
                self._report(one, rules.start(message))
                self.judge.notified(one, message.retirement_count)
            case Settlement():
                self._report(one, rules.settle(message))
            case Acknowledgement():
                self._report(one, rules.acknowledged(message))

    def _acknowledge(self, name: str) -> None:
        one = self.instances[name]
        for instance, acknowledgement in one.rules.acknowledgements().items():
            self._report(one, (instance, acknowledgement))

    def _collect(self, name: str) -> None:
        message = self.instances[name].to_collector.popleft()
        if isinstance(message, InstanceFragment):
            awaited = self.collector.awaited
            result = self.collector.add(message)
            if name in awaited and name not in self.collector.awaited:
                self.judge.delivered(name)
            if result is not None:
                observation, settlement = result
                self.judge.judge(observation)
                self.observations.append(observation)
                self._broadcast(settlement)
        elif isinstance(message, Farewell):
            one = self.instances[name]
            one.is_connected = False
            one.from_collector.clear()
            self.judge.ended(one)
            if (missing := self.collector.ended(message)) is not None:
                self.abandoned.append(missing)
        else:
            instance, acknowledgement = message
            target = self.instances[instance]
            if target.is_connected and target.is_alive:
                target.from_collector.append(acknowledgement)

    def end(self) -> None:
        """Deliver and answer everything, without faults, and take three observations. After them no
        end of a call keeps anything, and no instance is missed that is not connected.

        Raises:
            WrongObservation: an observation says what did not happen, or something is still kept.
        """
        for one in self.instances.values():
            self._end_connection(one)
        while self._take_all(*ENDING):
            pass
        self.requests.clear()
        self.answers.clear()
        for one in self.instances.values():
            if one.is_alive:
                for number in tuple(one.waiting):
                    self._stop(one.name, str(number))
        if self.collector.ledger.members:
            for _ in range(3):
                self._judge_end()
                self._observe()
            self._judge_end()
            self._judge_rest(self.observations[-1])

    def _end_connection(self, one: Simulated) -> None:
        """Connect an instance that is alive, and hear the last of one that is not."""
        if one.is_alive and not one.is_connected:
            if one.name not in self.collector.ledger.retired:
                self._connect(one.name)
        elif one.is_connected and not one.is_alive:
            while one.to_collector:
                self._collect(one.name)
            if one.is_connected:
                self._notice(one.name)

    def _observe(self) -> None:
        """Take an observation, after who is to be retired is retired."""
        for name in self.collector.retirable:
            self._retire(name)
        self._begin()
        while self._take_all("notify", "collect"):
            pass

    def _judge_end(self) -> None:
        if self.collector.awaited:
            raise WrongObservation(f"no fragment of {self.collector.awaited} arrives")

    def _judge_rest(self, last: Observation) -> None:
        for name, fragment in last.fragments.items():
            kept = [one for one in fragment.served if one.call.caller in last.fragments]
            if kept or fragment.calls or fragment.statements:
                raise WrongObservation(
                    f"{name} still keeps {kept}, {fragment.calls}, {fragment.statements}"
                )
            if self.collector.ledger.retired & {
                *fragment.highest_accepted,
                *fragment.answer_counts,
            }:
                raise WrongObservation(f"{name} still mentions instances that are retired")
        if any("not connected" in reason for reason in last.partial):
            raise WrongObservation(f"an observation stays partial: {last.partial}")
        ledger = self.collector.ledger
        if not ledger.disconnected and (ledger.settled or ledger.released):
            raise WrongObservation("the ledger is not empty")

    def _take_all(self, *kinds: str) -> bool:
        """Take steps of these kinds, as many as there are now; return whether there were any."""
        steps = [step for step in self.steps() if step[0] in kinds]
        for step in steps:
            if step in self.steps():
                self.take(step)
        return bool(steps)


SETTLED_COUNT_MAX = 2
"""How often a call is settled at most. Only once would be right."""
ENDING = ("deliver", "pass", "answer", "return", "acknowledge", "collect", "notify")
"""The steps that end what is open."""
_STATUS = 200
"""The status of every answer."""
WEIGHTS = {
    "collect": 0.3,
    "notify": 0.15,
    "begin": 0.5,
    "call": 1.0,
    "deliver": 1.0,
    "answer": 1.0,
    "return": 1.5,
    "cache": 0.05,
    "acknowledge": 0.3,
    "stop": 0.05,
    "close": 0.3,
    "lose": 0.05,
    "double": 0.05,
    "send": 0.7,
    "pass": 1.0,
    "kill": 0.003,
    "leave": 0.01,
    "rebase": 0.1,
    "settle": 0.01,
    "disconnect": 0.003,
    "notice": 0.3,
    "connect": 0.3,
    "retire": 0.02,
    "restart": 0.005,
    "start": 0.02,
}
"""How likely steps are. Control messages are slow: otherwise every instance would capture at the
same time, and no wrong rule would show."""


def run_services(
    config: ServicesConfig,
    seed: int,
    step_count: int,
    make: Callable[[ServicesConfig], Services] = Services,
) -> Services:
    """Return a world after random steps; each observation was judged.

    Raises:
        WrongObservation: an observation says what did not happen.
        NotConsistent: the collector found that itself.
    """
    chance = Random(seed)
    likely = WEIGHTS | config.weights
    world = make(config)
    for _ in range(step_count):
        steps = list(world.steps())
        if not steps:
            break
        weights = [likely[step[0]] for step in steps]
        world.take(chance.choices(steps, weights)[0])
    return world


def explore_services(
    config: ServicesConfig, make: Callable[[ServicesConfig], Services] = Services
) -> int:
    """Take every possible step in every possible order; return in how many histories. Orders in
    which each part does the same are one history.

    Raises:
        WrongObservation: an observation says what did not happen.
        NotConsistent: the collector found that itself.
    """
    known: set[Any] = {()}
    runs: list[tuple[tuple[Step, ...], list[Step]]] = [((), list(make(config).steps()))]
    for run, steps in runs:  # grows meanwhile
        for step in steps:
            world = make(config)
            for earlier in (*run, step):
                world.take(earlier)
            key = tuple(sorted((name, tuple(log)) for name, log in world.logs.items()))
            if key not in known:
                known.add(key)
                runs.append(((*run, step), list(world.steps())))
    return len(runs)
