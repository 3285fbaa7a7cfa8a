"""Each rule of observations alone; ``tests/sim/test_services.py`` judges all of them together."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest

from stillframe.errors import NotConsistent, ProtocolViolation, UsageError
from stillframe.protocol import calls
from stillframe.protocol.activities import NUMBER_MAX, CallDetails
from stillframe.protocol.calls import (
    SILENT,
    Acknowledgement,
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    Captured,
    Collector,
    Farewell,
    Instance,
    InstanceFragment,
    Observation,
    ObservationStart,
    OpenCall,
    ReceivedAnswers,
    RequestHeader,
    ServedCall,
    Settlement,
    check_farewell,
    check_fragment,
)


class Pair:
    """A caller A and an instance B that serves it, with money, and their collector."""

    def __init__(self, *names: str, kept_count_max: int = 10) -> None:
        self.money: dict[str, int] = dict.fromkeys(names or ("A", "B"), 100)
        self.instances = {
            name: Instance(
                name,
                partial(self.capture, name),
                amounts=partial(self.amounts, name),
                kept_count_max=kept_count_max,
            )
            for name in self.money
        }
        self.collector = Collector()
        for name in self.instances:
            self.collector.joined(name, 0)

    def capture(self, name: str) -> Captured:
        """Return the money of an instance."""
        return Captured(self.money[name])

    def amounts(self, name: str) -> dict[str, int]:
        """Return the money of an instance, by unit."""
        return {"EUR": self.money[name]}

    @property
    def caller(self) -> Instance:
        """Instance A."""
        return self.instances["A"]

    @property
    def target(self) -> Instance:
        """Instance B."""
        return self.instances["B"]

    def request(self, amount: int = 5) -> RequestHeader:
        """Let A send money to B."""
        self.money["A"] -= amount
        return self.caller.request("b:80", carries={"EUR": amount})

    def accept(self, header: RequestHeader, amount: int = 5) -> int:
        """Let B accept it."""
        ticket, _ = self.target.accept(header, brought={"EUR": amount})
        self.money["B"] += amount
        return ticket

    def exchange(self) -> None:
        """Call once, so that B is known."""
        header = self.request(0)
        answer = self.target.answer(self.accept(header, 0))
        self.caller.accept_answer(header.call.number, answer)

    def observe(self) -> Observation:
        """Take an observation, and let every instance settle it."""
        observation, settlement = self.unsettled()
        for name, one in self.instances.items():
            one.settle(settlement.of(name))
        return observation

    def unsettled(self) -> tuple[Observation, Settlement]:
        """Take an observation."""
        start = self.collector.begin()
        result = None
        for one in self.instances.values():
            fragment = one.start(start)
            assert fragment is not None
            result = self.collector.add(fragment)
        assert result is not None
        return result

    def total(self, observation: Observation) -> int:
        """Return the money in states, at rest, in transit and lost."""
        states: int = sum(fragment.state for fragment in observation.fragments.values())
        states += sum(amounts["EUR"] for amounts in observation.ended.values())
        return states + observation.outside_states().get("EUR", 0)


def places(observation: Observation) -> dict[int, CallPlace]:
    """Return the place of each call of A by its number."""
    return {one.call.number: one.place for one in observation.calls}


def kept(fragments: Iterable[InstanceFragment]) -> int:
    """Return how many calls and answers instances keep."""
    return sum(len(one.calls) + len(one.served) for one in fragments)


def start(pair: Pair, name: str, amount: int) -> None:
    """Start an instance that has money."""
    pair.money[name] = amount
    pair.instances[name] = Instance(name, partial(pair.capture, name))
    pair.collector.joined(name, 0, began_with={"EUR": amount})


def decided(pair: Pair) -> Observation:
    """Return the observation after an operator has begun a baseline."""
    pair.collector.rebase(Baseline(0, "checked by hand", "Ann", 5.0))
    observation = pair.observe()
    assert observation.since == Baseline(observation.number, "checked by hand", "Ann", 5.0)
    return observation


def test_a_call_is_in_one_place_after_the_other() -> None:
    """Its request, then the instance that serves it, then its answer, have the money."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    number = header.call.number
    assert places(first := pair.observe()) == {number: CallPlace.REQUESTED}
    ticket = pair.accept(header)
    assert places(second := pair.observe()) == {number: CallPlace.SERVED}
    pair.money["B"] -= 3
    answer = pair.target.answer(ticket, carries={"EUR": 3})
    assert places(third := pair.observe()) == {number: CallPlace.ANSWERED}
    pair.caller.accept_answer(number, answer)
    pair.money["A"] += 3
    last = pair.observe()
    assert places(last) == {}
    assert [pair.total(one) for one in (first, second, third, last)] == [200] * 4
    assert [one.is_exact for one in (first, second, third, last)] == [True] * 4


@pytest.mark.parametrize("what", ["request", "answer", "message", "acknowledgement", "settlement"])
def test_whatever_has_a_higher_colour_is_accepted_after_a_capture(what: str) -> None:
    """L&Y 1987: nothing that was sent after a cut is accepted before one. So the captured state is
    that before the message, and what is kept is, too."""
    pair = Pair()
    pair.exchange()
    header, late = pair.request(), pair.request()
    ticket = pair.accept(header)
    pair.caller.start(pair.collector.begin())
    match what:
        case "request":
            _, fragment = pair.target.accept(
                msgspec.structs.replace(late, colour=pair.caller.colour)
            )
        case "message":
            fragment = pair.target.accept_message(ticket, pair.caller.send(header.call))
        case "acknowledgement":
            pair.target.answer(ticket)
            acknowledgement = Acknowledgement(1, "A", ReceivedAnswers(2))
            fragment = pair.target.acknowledged(acknowledgement)
        case "settlement":
            pair.target.answer(ticket)
            fragment = pair.target.settle(Settlement(1, answers=(("B", "A", 2),)))
        case _:
            other = Pair()
            mine = other.request()
            stranger = Instance("C", lambda: Captured(0))
            stranger.meet(1)
            ticket, _ = stranger.accept(mine)
            fragment = other.caller.accept_answer(mine.call.number, stranger.answer(ticket))
            assert fragment is not None
            assert [call.number for call in fragment.calls] == [mine.call.number]
            return
    assert fragment is not None
    assert header.call in {served.call for served in fragment.served}
    assert late.call not in {served.call for served in fragment.served}
    assert all(served.stream.accepted_count == 0 for served in fragment.served)


def test_one_capture_is_that_of_every_observation_that_was_missed() -> None:
    """An instance that meets a colour that is higher by three has been silent for long enough."""
    pair = Pair()
    pair.exchange()
    start = pair.collector.begin()
    pair.collector.add(pair.caller.start(start) or pytest.fail("no fragment"))
    fragment = pair.target.meet(start.observation + 3)
    assert fragment is not None
    result = pair.collector.add(fragment)
    assert result is not None
    assert pair.collector.begin().observation > start.observation + 3


def test_a_late_fragment_changes_nothing() -> None:
    """It is of an observation that was abandoned."""
    pair = Pair()
    fragment = pair.caller.start(pair.collector.begin())
    assert fragment is not None
    missing = pair.collector.abandon()
    assert missing is not None
    assert missing.instances == ("A", "B")
    assert pair.collector.abandon() is None
    pair.collector.begin()
    assert pair.collector.add(fragment) is None
    assert pair.collector.awaited == ("A", "B")


@pytest.mark.parametrize("fate", ["lost", "served", "answered"])
def test_the_fate_of_an_unresolved_call_is_told(fate: str) -> None:
    """Once it is final, neither end keeps the call, and the money is counted as lost."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number)
    expected = CallPlace.REQUESTED
    if fate != "lost":
        ticket, expected = pair.accept(header), CallPlace.SERVED
        assert places(pair.observe())[header.call.number] is CallPlace.SERVED
        if fate == "answered":
            pair.money["B"] -= 5
            pair.target.answer(ticket, carries={"EUR": 5})
            expected = CallPlace.ANSWERED
    first, second = pair.observe(), pair.observe()
    assert places(first)[header.call.number] is expected
    assert (header.call.number in places(second)) is (fate == "served")
    assert kept(second.fragments.values()) == (2 if fate == "served" else 0)
    assert pair.total(first) == pair.total(second) == 200


def test_a_request_that_arrives_after_all_is_late_and_not_lost() -> None:
    """Its money is where it was accepted."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number)
    pair.observe()
    assert pair.observe().not_accepted == {"EUR": 5}
    ticket = pair.accept(header)
    served = pair.observe()
    assert [one.call for one in served.late] == [header.call]
    assert served.not_accepted == {}
    pair.money["B"] -= 2
    pair.target.answer(ticket, carries={"EUR": 2})
    answered, last = pair.observe(), pair.observe()
    assert [pair.total(one) for one in (served, answered, last)] == [200] * 3
    assert last.lost == {"EUR": 2}
    assert kept(last.fragments.values()) == 0


def test_a_request_that_is_served_twice_is_named() -> None:
    """The money that the second one brought was created."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    tickets = [pair.accept(header), pair.accept(header)]
    twice = pair.observe()
    assert len(twice.calls[0].served) == 2
    answers = [pair.target.answer(ticket) for ticket in tickets]
    pair.caller.accept_answer(header.call.number, answers[0])
    named, last = pair.observe(), pair.observe()
    assert [served.call for _, served in named.duplicates] == [header.call]
    assert last.created == {"EUR": 5}
    assert [pair.total(one) for one in (twice, named, last)] == [200] * 3


def test_messages_of_a_stream_are_in_transit_until_they_are_accepted() -> None:
    """In both directions; those that an answer overtakes are lost."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    ticket = pair.accept(header)
    up = [pair.caller.send(header.call, carries={"EUR": 1}) for _ in range(3)]
    pair.money["A"] -= 3
    down = pair.target.send(ticket, carries={"EUR": 10})
    pair.money["B"] -= 10
    assert pair.total(pair.observe()) == 200
    pair.target.accept_message(ticket, up[0])
    pair.money["B"] += 1
    pair.caller.accept_message(header.call, down)
    pair.money["A"] += 10
    middle = pair.observe()
    assert middle.outside_states() == {"EUR": 2}
    pair.caller.accept_answer(header.call.number, pair.target.answer(ticket))
    last = pair.observe()
    assert last.fragments["A"].lost == {"EUR": 2}
    assert pair.total(middle) == pair.total(last) == 200


def test_a_target_that_never_answers_with_a_header_makes_observations_partial() -> None:
    """A call to it is outside; no observation is complete again."""
    pair = Pair()
    pair.exchange()
    header = pair.caller.request("stripe:443")
    assert places(pair.observe()) == {header.call.number: CallPlace.OUTSIDE}
    pair.caller.stop_waiting(header.call.number)
    pair.observe()
    assert pair.observe().partial == (SILENT.format("stripe:443"),)


def test_a_call_to_a_target_outside_leaves_nothing_behind() -> None:
    """Its caller closes it, however it ended."""
    pair = Pair()
    pair.exchange()
    pair.caller.close(pair.caller.request("stripe:443").call.number)
    observation = pair.observe()
    assert observation.calls == ()
    assert observation.partial == (SILENT.format("stripe:443"),)


def test_what_a_fragment_does_not_show_makes_an_observation_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host says why."""
    pair = Pair()
    pair.exchange()
    torn = Captured(0, ("/pay runs in a thread",))
    monkeypatch.setattr(pair.target, "_capture", lambda: torn)
    assert pair.observe().partial == ("B: /pay runs in a thread",)


def test_an_instance_that_others_have_heard_of_must_be_connected() -> None:
    """Its share of the cut is missing, and it is named."""
    pair = Pair()
    pair.exchange()
    stranger = Instance("C", lambda: Captured(0))
    pair.target.accept(stranger.request("b:80"))
    assert pair.observe().partial == ("B exchanges messages with C, which is not connected",)


def strange(pair: Pair) -> Instance:
    """Return an instance that has exchanged messages with B, and that never connected."""
    stranger = Instance("C", lambda: Captured(0))
    header = stranger.request("b:80", carries={"EUR": 4})
    ticket, _ = pair.target.accept(header, brought={"EUR": 4})
    pair.target.answer(ticket, carries={"EUR": 3})
    return stranger


def test_an_instance_that_died_before_it_connected_is_retired() -> None:
    """Observations are partial until then. The next one names it as disconnected, and totals of
    later ones are exact, with a new baseline."""
    pair = Pair()
    pair.exchange()
    pair.observe()
    pair.caller.stop_waiting(pair.request().call.number)
    pair.observe()
    strange(pair)
    waiting = pair.request()
    partial = [pair.observe(), pair.observe()]
    assert [bool(one.partial) for one in partial] == [True, True]
    assert [one.disconnected for one in partial] == [(), ()]
    assert pair.collector.retirable == {"C"}
    pair.collector.retire("C")
    after = [pair.observe(), pair.observe()]
    assert [one.partial for one in after] == [(), ()]
    assert [one.disconnected for one in after] == [("C",), ()]
    assert [one.baseline for one in after] == [after[0].number] * 2
    assert after[0].not_accepted == {}
    assert after[0].unknown == {"EUR": 5}
    assert places(after[0]) == {waiting.call.number: CallPlace.UNKNOWN}
    assert after[1].outside_states() == {"EUR": 3}
    assert pair.collector.retirable == set()
    with pytest.raises(UsageError, match="C was disconnected for too long"):
        pair.collector.joined("C", 0)


def test_an_instance_that_others_have_heard_of_may_connect_in_time() -> None:
    """Then it takes part, as any other."""
    pair = Pair()
    pair.exchange()
    stranger = strange(pair)
    pair.observe()
    back(pair, stranger)
    observation = pair.observe()
    assert (observation.partial, observation.disconnected) == ((), ())
    assert pair.collector.retirable == set()


def test_a_retired_stranger_that_is_alive_makes_observations_partial() -> None:
    """Until it is retired again."""
    pair = Pair()
    pair.exchange()
    stranger = strange(pair)
    pair.observe()
    pair.collector.retire("C")
    assert pair.observe().partial == ()
    pair.target.accept(stranger.request("b:80"))
    assert pair.observe().partial == ("B exchanges messages with C, which is not connected",)
    assert pair.collector.retirable == {"C"}


def test_an_instance_that_joins_while_an_observation_is_pending_is_no_stranger() -> None:
    """It is not part of that observation, although others had heard of it before their cuts."""
    pair = Pair()
    pair.exchange()
    joining = strange(pair)
    start = pair.collector.begin()
    joining.meet(start.observation)
    assert pair.collector.joined("C", joining.colour) is None
    results = [pair.collector.add(one.start(start)) for one in pair.instances.values()]  # type: ignore[arg-type]
    assert results[-1] is not None
    assert results[-1][0].partial == ("B exchanges messages with C, which is not connected",)
    assert pair.collector.retirable == set()


def test_a_call_that_was_not_sent_was_accepted_by_no_instance() -> None:
    """Neither by one that died, nor by a target that has never answered."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    sent, unsent = (pair.request().call.number for _ in range(2))
    silent = pair.caller.request("silent:80", carries={"EUR": 7}).call.number
    pair.money["A"] -= 7
    pair.caller.stop_waiting(sent)
    for number in (unsent, silent):
        pair.caller.stop_waiting(number, was_sent=False)
    pair.collector.left("C")
    del pair.instances["C"]
    assert places(pair.observe()) == {
        sent: CallPlace.UNKNOWN,
        unsent: CallPlace.REQUESTED,
        silent: CallPlace.REQUESTED,
    }
    after = pair.observe()
    assert (after.unknown, after.not_accepted) == ({"EUR": 5}, {"EUR": 12})


def test_a_call_that_a_dead_instance_may_have_accepted_is_unknown() -> None:
    """One that was made after the caller was notified that the dead one was retired is not."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    before = pair.request()
    assert pair.collector.left("C") is None
    del pair.instances["C"]
    unknown = pair.observe()
    assert unknown.disconnected == ("C",)
    between = pair.request()
    pair.collector.retire("C")
    pair.observe()
    after = pair.request()
    assert places(pair.observe()) == {
        before.call.number: CallPlace.UNKNOWN,
        between.call.number: CallPlace.UNKNOWN,
        after.call.number: CallPlace.REQUESTED,
    }


def test_a_call_is_not_unknown_after_an_instance_has_connected_again() -> None:
    """It keeps what it has accepted meanwhile."""
    pair = Pair()
    pair.exchange()
    first, second = pair.request(), pair.request()
    pair.collector.left("B")
    pair.accept(second)
    pair.collector.joined("B", pair.target.colour)
    observation = pair.observe()
    assert places(observation) == {
        first.call.number: CallPlace.REQUESTED,
        second.call.number: CallPlace.SERVED,
    }
    assert observation.is_exact


def test_calls_that_were_not_accepted_are_unknown_after_a_death() -> None:
    """The dead instance may have accepted them meanwhile."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    pair.caller.stop_waiting(pair.request().call.number)
    pair.observe()
    assert pair.observe().not_accepted == {"EUR": 5}
    pair.collector.left("C")
    del pair.instances["C"]
    observation = pair.observe()
    assert (observation.not_accepted, observation.unknown) == ({}, {"EUR": 5})
    assert (observation.gone, observation.unknown_count) == (("C",), 1)
    assert not observation.is_exact


def test_a_call_to_a_silent_target_is_unknown_if_an_instance_died() -> None:
    """That its target answers later does not show that the call was not accepted before."""
    pair = Pair("A", "B", "C")
    header = pair.request()
    pair.accept(header)
    del pair.instances["B"]
    pair.collector.left("B")
    pair.caller.stop_waiting(header.call.number)
    assert places(pair.observe()) == {header.call.number: CallPlace.OUTSIDE}
    other = pair.instances["C"]
    second = pair.caller.request("b:80")
    ticket, _ = other.accept(second)
    pair.caller.accept_answer(second.call.number, other.answer(ticket))
    observation = pair.observe()
    assert (observation.not_accepted, observation.unknown) == ({}, {"EUR": 5})


def test_a_death_ends_an_observation_that_needs_its_fragment() -> None:
    """Not one that has it."""
    pair = Pair()
    fragment = pair.caller.start(pair.collector.begin())
    assert fragment is not None
    pair.collector.add(fragment)
    assert pair.collector.left("A") is None
    missing = pair.collector.left("B")
    assert missing is not None
    assert missing.instances == ("B",)


def test_a_retired_instance_that_is_heard_of_makes_observations_partial() -> None:
    """And calls unknown, until it is retired again."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    silent = pair.instances.pop("C")
    pair.collector.left("C")
    pair.observe()
    pair.collector.retire("C")
    assert pair.observe().partial == ()
    pair.target.accept(silent.request("b:80"))
    header = pair.request()
    assert pair.observe().partial == ("B exchanges messages with C, which is not connected",)
    assert places(pair.observe())[header.call.number] is CallPlace.UNKNOWN


def test_what_an_instance_keeps_is_bounded() -> None:
    """Without a collector nothing is settled. What is dropped is named when one comes."""
    pair = Pair(kept_count_max=4)
    for _ in range(20):
        header = pair.request()
        pair.target.answer(pair.accept(header), carries={"EUR": 0})
        pair.caller.stop_waiting(header.call.number)
    first, _ = pair.unsettled()
    assert len(first.fragments["A"].calls) == len(first.fragments["B"].served) == 4
    assert first.partial == (
        "A has dropped unresolved calls, because there were too many",
        "B has dropped 16 answers that A has not accepted, because there were too many",
    )
    assert not first.is_exact


def test_a_caller_with_many_answers_takes_no_room_from_others() -> None:
    """Its own are dropped, so copies of one request push out no answer to another caller."""
    pair = Pair("A", "B", "C", kept_count_max=4)
    call = pair.instances["C"].request("b:80").call
    pair.target.answer(pair.target.accept(RequestHeader(0, call))[0], carries={"EUR": 5})
    header = pair.request()
    for _ in range(20):
        pair.target.answer(pair.accept(header))
    served = pair.unsettled()[0].fragments["B"].served
    assert len(served) == 4
    assert [one.answer for one in served if one.call == call] == [{"EUR": 5}]


def test_a_call_whose_ends_know_other_amounts_is_named() -> None:
    """Services have different functions for it, or the request was forged from an old header. No
    total is exact then."""
    pair = Pair()
    pair.exchange()
    header = pair.caller.request("b:80", carries={"EUR": 5, "USD": 0})
    pair.target.accept(header, brought={"EUR": 6})
    observation = pair.observe()
    assert not observation.is_exact
    [reason] = observation.partial
    assert f"{header.call} carries other amounts for its caller than where it is served" in reason
    header = pair.caller.request("b:80", carries={"EUR": 5, "USD": 0})
    pair.target.accept(header, brought={"EUR": 5})
    assert str(header.call) not in str(pair.observe().partial)


def test_acknowledged_answers_are_dropped() -> None:
    """Those between them that were not accepted are kept."""
    pair = Pair()
    headers = [pair.request() for _ in range(3)]
    answers = [pair.target.answer(pair.accept(header)) for header in headers]
    for place in (2, 0):
        pair.caller.accept_answer(headers[place].call.number, answers[place])
    acknowledgement = pair.caller.acknowledgements()["B"]
    assert acknowledgement.received == ReceivedAnswers(3, frozenset({2}))
    assert pair.caller.acknowledgements() == {}
    pair.target.acknowledged(acknowledgement)
    fragment = pair.target.meet(1)
    assert fragment is not None
    assert [served.number for served in fragment.served] == [2]


def test_a_cut_with_a_message_from_after_it_is_refused() -> None:
    """It names both instances, and the message."""
    pair = Pair()
    start = pair.collector.begin()
    first = pair.caller.start(start)
    assert first is not None
    pair.collector.add(first)
    pair.target.accept(msgspec.structs.replace(pair.request(), colour=0))
    second = pair.target.start(start)
    assert second is not None
    with pytest.raises(NotConsistent, match="B had accepted message 1 of A at its cut"):
        pair.collector.add(second)


def test_a_collector_that_starts_again_knows_what_was_settled() -> None:
    """Its ledger is stored with the observation."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number)
    observation, _ = pair.unsettled()
    stored = msgspec.msgpack.encode(pair.collector.ledger)
    pair.collector = Collector(
        msgspec.msgpack.decode(stored, type=CallLedger), number=observation.number
    )
    again = pair.observe()
    assert again.number == observation.number + 1
    assert (again.calls, again.not_accepted) == ((), {"EUR": 5})


def test_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The money of calls that it forgets counts as lost."""
    monkeypatch.setattr(calls, "LEDGER_COUNT_MAX", 2)
    pair = Pair()
    pair.exchange()
    for _ in range(5):
        pair.caller.stop_waiting(pair.request().call.number)
        pair.observe()
    last = pair.observe()
    assert (last.not_accepted, last.lost) == ({"EUR": 10}, {"EUR": 15})
    assert pair.total(last) == 200


def test_a_call_is_written_with_its_caller() -> None:
    """As messages are elsewhere."""
    assert str(CallId("A-1", 7)) == "A-1#7"


def disconnected(pair: Pair, name: str) -> Instance:
    """Disconnect an instance, and return it."""
    pair.collector.left(name)
    return pair.instances.pop(name)


def back(pair: Pair, instance: Instance) -> None:
    """Connect an instance again."""
    pair.collector.joined(instance.name, instance.colour, instance.retirement_count)
    pair.instances[instance.name] = instance


def test_an_answer_is_settled_once_though_its_sender_missed_it() -> None:
    """The caller has heard of the settlement and is retired before the sender returns."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    header = pair.request()
    ticket = pair.accept(header)
    pair.money["B"] -= 3
    pair.target.answer(ticket, carries={"EUR": 3})
    pair.caller.stop_waiting(header.call.number)
    _, settlement = pair.unsettled()
    pair.caller.settle(settlement.of("A"))
    sender = disconnected(pair, "B")
    pair.observe()
    disconnected(pair, "A")
    back(pair, sender)
    pair.observe()
    pair.collector.retire("A")
    last = pair.observe()
    assert last.lost == {"EUR": 3}
    assert last.outside_states() == {"EUR": 3}


def test_a_call_is_unknown_if_an_instance_is_retired_before_the_last_fragment() -> None:
    """Its death came after the observation had begun."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    disconnected(pair, "C")
    pair.observe()
    header = pair.request()
    start = pair.collector.begin()
    pair.collector.retire("C")
    results = [pair.collector.add(one.start(start)) for one in pair.instances.values()]  # type: ignore[arg-type]
    assert results[-1] is not None
    assert places(results[-1][0])[header.call.number] is CallPlace.UNKNOWN


def test_answers_to_a_retired_caller_keep_their_numbers() -> None:
    """A request that arrives late is not taken for one that was settled."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    caller = pair.instances["C"]
    delayed, quick = caller.request("b:80"), caller.request("b:80")
    pair.target.answer(pair.target.accept(quick)[0], carries={"EUR": 2})
    disconnected(pair, "C")
    pair.observe()
    pair.collector.retire("C")
    pair.observe()
    pair.observe()
    pair.target.answer(pair.target.accept(delayed)[0], carries={"EUR": 3})
    assert pair.observe().outside_states() == {"EUR": 5}
    assert pair.observe().lost == {"EUR": 5}


def test_a_settlement_does_not_hide_that_a_retired_instance_is_alive() -> None:
    """A message that came between the cut and the settlement is reported with the next cut."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    alive = pair.instances["C"]
    pair.target.accept(alive.request("b:80"))
    disconnected(pair, "C")
    pair.observe()
    pair.collector.retire("C")
    _, settlement = pair.unsettled()
    pair.target.accept(alive.request("b:80"))
    pair.target.settle(settlement.of("B"))
    assert pair.observe().partial == ("B exchanges messages with C, which is not connected",)


def test_an_answer_to_another_call_is_none() -> None:
    """Such as one that a cache has stored."""
    pair = Pair()
    first, second = pair.request(), pair.request()
    stored = pair.target.answer(pair.accept(first))
    assert pair.caller.accept_answer(second.call.number, stored) is None
    fragment = pair.caller.meet(1)
    assert fragment is not None
    assert [(call.number, call.is_awaited) for call in fragment.calls] == [(1, True), (2, False)]


def test_a_target_that_answers_without_a_header_at_times_makes_observations_partial() -> None:
    """Some of the instances behind its address take no part."""
    pair = Pair()
    pair.exchange()
    number = pair.request().call.number
    pair.caller.stop_waiting(number, was_answered=True)
    observation = pair.observe()
    assert places(observation) == {number: CallPlace.OUTSIDE}
    assert observation.partial == ("b:80 has answered without a header",)
    after = pair.observe()
    assert after.is_exact
    assert after.baseline == after.number


def test_a_target_whose_call_was_accepted_takes_part() -> None:
    """Though its answer is lost, so that it has never answered."""
    pair = Pair()
    header = pair.request()
    pair.target.answer(pair.accept(header))
    pair.caller.stop_waiting(header.call.number)
    observation = pair.observe()
    assert observation.partial == ()
    assert pair.total(observation) == 200
    assert pair.observe().is_exact


def test_an_answer_without_a_header_to_a_call_that_was_accepted_is_told() -> None:
    """Something in between has removed it: its effect may be that of a message after the cut."""
    pair = Pair()
    header = pair.request()
    pair.target.answer(pair.accept(header))
    pair.caller.stop_waiting(header.call.number, was_answered=True)
    assert pair.observe().partial == ("b:80 has answered without a header",)
    assert pair.observe().partial == ()


def test_totals_are_not_compared_over_a_partial_observation() -> None:
    """An answer without a header has brought money that is counted as lost, too."""
    pair = Pair()
    pair.exchange()
    before = pair.observe()
    header = pair.request(0)
    pair.money["B"] -= 2
    pair.target.answer(pair.accept(header, 0), carries={"EUR": 2})
    pair.caller.stop_waiting(header.call.number, was_answered=True)
    pair.money["A"] += 2
    assert pair.observe().partial
    after = pair.observe()
    assert (before.is_exact, after.is_exact) == (True, True)
    assert [pair.total(one) for one in (before, after)] == [200, 202]
    assert (before.baseline, after.baseline) == (before.number, after.number)


def test_totals_are_not_compared_over_an_answer_that_was_dropped_and_arrives() -> None:
    """Its money was nowhere."""
    pair = Pair(kept_count_max=1)
    headers = [pair.request(0), pair.request(0)]
    answers = []
    for header in headers:
        pair.money["B"] -= 5
        answers.append(pair.target.answer(pair.accept(header, 0), carries={"EUR": 5}))
    assert "has dropped 1 answers" in pair.observe().partial[0]
    dropped, *_ = [pair.observe(), pair.observe()]
    pair.caller.accept_answer(headers[0].call.number, answers[0])
    pair.money["A"] += 5
    arrived = pair.observe()
    assert [pair.total(one) for one in (dropped, arrived)] == [195, 200]
    assert [one.is_exact for one in (dropped, arrived)] == [False, False]
    assert decided(pair).is_exact


def test_totals_are_not_compared_over_a_forgotten_call_that_is_accepted() -> None:
    """Its money was nowhere, either."""
    pair = Pair(kept_count_max=1)
    pair.exchange()
    headers = [pair.request(), pair.request(0)]
    for header in headers:
        pair.caller.stop_waiting(header.call.number)
    assert "has dropped unresolved calls" in pair.observe().partial[0]
    before = pair.observe()
    pair.target.answer(pair.accept(headers[0]))
    late = pair.observe()
    assert len(late.late) == 1
    assert [pair.total(one) for one in (before, late)] == [195, 200]
    assert [one.is_exact for one in (before, late)] == [False, False]
    assert decided(pair).is_exact


def test_answers_to_an_absent_caller_that_are_dropped_are_told() -> None:
    """They were counted as orphans, and are nowhere afterwards."""
    pair = Pair("A", "B", "C", kept_count_max=1)
    header = pair.request(0)
    pair.money["B"] -= 5
    pair.target.answer(pair.accept(header, 0), carries={"EUR": 5})
    disconnected(pair, "A")
    before = pair.observe()
    assert len(before.orphans) == 1
    other = pair.instances["C"].request("b:80")
    ticket, _ = pair.target.accept(other)
    pair.target.answer(ticket)
    assert "B has dropped answers to A, which is not connected" in pair.observe().partial
    after = pair.observe()
    assert after.baseline == after.number != before.baseline


def test_a_stream_that_ends_with_dropped_amounts_is_told_once() -> None:
    """Though its call is closed when the observation is taken."""
    pair = Pair(kept_count_max=1)
    header = pair.request(0)
    ticket = pair.accept(header, 0)
    for _ in range(3):
        pair.money["A"] -= 1
        pair.caller.send(header.call, carries={"EUR": 1})
    pair.caller.accept_answer(header.call.number, pair.target.answer(ticket))
    assert pair.observe().partial == ("A has dropped amounts of streams: too many messages",)
    assert pair.observe().partial == ()


@pytest.mark.parametrize("end", ["request", "answer"])
def test_a_call_with_unknown_amounts_makes_observations_partial(end: str) -> None:
    """Until its answer is accepted: then all that it carried is in the states."""
    pair = Pair()
    pair.exchange()
    details = CallDetails(has_unknown_amounts=end == "request")
    header = pair.caller.request("b:80", details=details)
    ticket = pair.accept(header, 0)
    answer = pair.target.answer(ticket, has_unknown_amounts=end == "answer")
    assert pair.observe().partial == (f"the amounts of call {header.call} are not known",)
    pair.caller.accept_answer(header.call.number, answer)
    assert pair.observe().partial == ()


def test_the_targets_of_an_instance_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it does not list have one name, and a reason names some of the others."""
    monkeypatch.setattr(calls, "TARGET_COUNT_MAX", 30)
    pair = Pair()
    for number in range(50):
        pair.caller.close(pair.caller.request(f"{number}.example:80").call.number)
    observation = pair.observe()
    assert len(observation.fragments["A"].targets) == 31
    assert len(observation.partial) == calls.REASON_COUNT_MAX + 1
    assert observation.partial[-1] == "the same holds for 11 more"


def test_messages_that_were_streamed_to_a_dead_caller_are_lost() -> None:
    """They are in no state."""
    pair = Pair()
    pair.exchange()
    ticket = pair.accept(pair.request())
    pair.target.send(ticket, carries={"EUR": 10})
    disconnected(pair, "A")
    assert pair.observe().outside_states() == {"EUR": 10}
    pair.target.answer(ticket)
    pair.collector.retire("A")
    pair.observe()
    assert pair.observe().lost == {"EUR": 10}


def test_a_message_on_a_call_that_is_over_is_refused() -> None:
    """Its amounts would be nowhere. The colour of this instance stays."""
    pair = Pair()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number)
    message = Pair().caller.request("b:80")
    with pytest.raises(UsageError, match="call A#1 of A is not open"):
        pair.caller.send(header.call)
    ticket, _ = pair.target.accept(message)
    with pytest.raises(UsageError, match="is not open"):
        pair.caller.accept_message(header.call, pair.target.send(ticket))
    assert pair.caller.colour == 0


def test_an_instance_that_joins_meanwhile_captures_and_does_not_take_part() -> None:
    """Its predecessor may be part of the cut, with the same state. One that has the colour of the
    observation already does not capture either."""
    pair = Pair()
    pair.exchange()
    start = pair.collector.begin()
    joining = Instance("C", lambda: Captured(0))
    assert pair.collector.joined("D", start.observation) is None
    assert pair.collector.joined("C", 0) == start
    assert pair.collector.awaited == ("A", "B")
    assert joining.start(start) is not None


def test_a_retired_instance_may_not_connect_again() -> None:
    """Not under its name."""
    pair = Pair("A", "B", "C")
    disconnected(pair, "C")
    pair.collector.retire("C")
    with pytest.raises(UsageError, match="C was disconnected for too long"):
        pair.collector.joined("C", 0)


def test_an_instance_that_is_gone_is_named_by_the_next_observation() -> None:
    """Though one was abandoned in between; not if it has returned."""
    pair = Pair("A", "B", "C")
    disconnected(pair, "C")
    pair.collector.begin()
    pair.collector.abandon()
    assert pair.observe().disconnected == ("C",)
    away = disconnected(pair, "B")
    back(pair, away)
    assert pair.observe().disconnected == ()
    start = pair.collector.begin()
    fragments = [one.start(start) for one in pair.instances.values()]
    pair.collector.add(fragments[1])  # type: ignore[arg-type]
    disconnected(pair, "B")
    pair.collector.add(fragments[0])  # type: ignore[arg-type]
    assert pair.observe().disconnected == ("B",)


def test_counts_of_retirements_never_fall() -> None:
    """A collector that has lost its ledger learns them from the instances."""
    pair = Pair()
    pair.caller.start(ObservationStart(1, retirement_count=7))
    pair.collector.joined("A", 1, pair.caller.retirement_count)
    assert pair.collector.begin().retirement_count == 8


def test_the_amounts_of_a_stream_are_bounded() -> None:
    """What is dropped is named."""
    pair = Pair(kept_count_max=2)
    pair.exchange()
    header = pair.request()
    pair.accept(header)
    for _ in range(5):
        pair.caller.send(header.call, carries={"EUR": 1})
    observation = pair.observe()
    assert observation.calls[0].record.stream.carried == ((4, {"EUR": 1}), (5, {"EUR": 1}))
    assert observation.partial == (
        f"amounts of call {header.call} were dropped: too many messages",
    )


def test_a_retired_instance_that_others_mention_stays_left_out() -> None:
    """Every settlement names it until no instance mentions it."""
    pair = Pair()
    pair.target.accept(pair.request())
    accepted = []
    for number in (1, 2, 3):
        fragment = pair.target.meet(number)
        assert fragment is not None
        accepted.append(fragment.highest_accepted)
        pair.target.settle(Settlement(number, retired=("A",)))
    assert accepted == [{"A": 1}, {}, {}]


def test_retired_instances_are_forgotten_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest first, where nothing of it is kept."""
    monkeypatch.setattr(calls, "RETIRED_COUNT_MAX", 2)
    pair = Pair()
    pair.exchange()
    for number in range(5):
        name = f"C{number}"
        one = pair.instances[name] = Instance(name, lambda: Captured(0))
        pair.collector.joined(name, pair.target.colour)
        header = one.request("b:80")
        pair.target.accept(header)
        pair.observe()
        disconnected(pair, name)
        pair.observe()
        pair.collector.retire(name)
        pair.observe()
    assert [*pair.collector.ledger.disconnected] == ["C3", "C4"]
    assert {*pair.target._others} == {"A", "C3", "C4"}


def test_an_observation_names_some_of_many_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service can lie about of whom it has heard. What the collector keeps is bounded."""
    for bound in ("RETIRED_COUNT_MAX", "REASON_COUNT_MAX", "TARGET_COUNT_MAX"):
        monkeypatch.setattr(calls, bound, 3)
    pair = Pair()
    pair.exchange()
    for turn in range(3):
        for number in range(10):
            stranger = Instance(f"C{turn}{number}", lambda: Captured(0))
            pair.target.accept(stranger.request("b:80"))
            pair.caller.request(f"target{turn}{number}")
        observation = pair.observe()
    ledger = pair.collector.ledger
    assert [len(ledger.strangers), len(ledger.targets)] == [3, 4]
    assert len(observation.partial) == 4 + 3
    assert "the same holds for 27 more" in observation.partial


def test_totals_that_are_too_high_are_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They must fit into 64 bits, whatever a service claims. Later ones have another baseline."""
    monkeypatch.setattr(calls, "TOTAL_MAX", 2 * NUMBER_MAX)
    pair = Pair()
    pair.exchange()
    baselines = []
    for _ in range(4):
        header = pair.request()
        pair.target.answer(pair.accept(header), carries={"EUR": NUMBER_MAX})
        pair.caller.stop_waiting(header.call.number)
        pair.observe()
        baselines.append(pair.observe().baseline)
    assert baselines == [1, 1, 6, 6]
    assert pair.collector.ledger.lost == {"EUR": NUMBER_MAX}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lost": {"EUR": -NUMBER_MAX - 1}}, f"amounts of 'EUR' .* above {NUMBER_MAX}"),
        ({"calls": (OpenCall(1, "b:80", {"EUR": NUMBER_MAX}),), "lost": {"EUR": 1}}, "amounts of"),
        ({"calls": (OpenCall(1, "b:80"), OpenCall(1, "b:80"))}, "has a call twice"),
        ({"lost": dict.fromkeys(map(str, range(101)), 1)}, "amounts of more than 100 units"),
        ({"targets": dict.fromkeys(map(str, range(1002)), True)}, "more than 1000 targets"),
    ],
)
def test_a_fragment_that_no_instance_makes_is_refused(changes: dict[str, Any], why: str) -> None:
    """A service that has the secret can send any."""
    fragment = Instance("A", lambda: Captured(0)).meet(1)
    assert fragment is not None
    check_fragment(fragment)
    with pytest.raises(ProtocolViolation, match=why):
        check_fragment(msgspec.structs.replace(fragment, **changes))


def test_an_instance_that_says_goodbye_leaves_nothing_unknown() -> None:
    """What it has not been answered, what it serves, and its money stay known; its successor brings
    the money back."""
    pair = Pair()
    pair.exchange()
    first = pair.observe()
    served, unanswered = pair.request(), pair.request()
    pair.accept(served)
    assert pair.collector.ended(pair.target.farewell()) is None
    del pair.instances["B"]
    ended = pair.observe()
    assert (ended.gone, ended.ended) == ((), {"B": {"EUR": 105}})
    assert places(ended) == {
        served.call.number: CallPlace.ANSWERED,
        unanswered.call.number: CallPlace.REQUESTED,
    }
    start(pair, "B-00000002", pair.money.pop("B"))
    last = pair.observe()
    assert last.ended == {}
    assert [pair.total(one) for one in (first, ended, last)] == [200] * 3
    assert [one.is_exact and one.baseline for one in (first, ended, last)] == [1, 1, 1]


def test_a_successor_that_brings_more_begins_a_baseline() -> None:
    """And says so."""
    pair = Pair("A", "B")
    pair.exchange()
    pair.observe()
    start(pair, "B-00000002", 7)
    why = "B-00000002 began with 7 EUR, and instances of B had ended with 0"
    assert (found := pair.observe()).since == Baseline(found.number, why)


def test_unknown_amounts_begin_a_baseline() -> None:
    """Of an instance that begins or ends. What it began with is unknown, too, if it has exchanged
    messages before it had loaded its state."""
    pair = Pair()
    pair.exchange()
    pair.observe()
    early = Instance("C-00000001", lambda: Captured(0), amounts=lambda: {"EUR": 7})
    assert early.began_with() == {"EUR": 7}
    early.request("b:80")
    early.loaded()
    assert early.began_with() is None
    pair.collector.joined("C-00000001", 0, began_with=early.began_with())
    pair.instances["C-00000001"] = early
    pair.money["C-00000001"] = 0
    why = "the amounts with which C-00000001 began are not known"
    assert (found := pair.observe()).since == Baseline(found.number, why)
    farewell = msgspec.structs.replace(early.farewell(), amounts=None)
    check_farewell(farewell)
    pair.collector.ended(farewell)
    del pair.instances["C-00000001"]
    assert pair.observe().since.why == "the amounts with which C-00000001 ended are not known"
    still_open = msgspec.structs.replace(farewell.fragment, served=(ServedCall(CallId("A", 1)),))
    with pytest.raises(ProtocolViolation, match="still open"):
        check_farewell(Farewell(still_open))


def test_what_is_dropped_of_those_that_have_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many without a goodbye, and of amounts that are too high: else an observation would be
    exact again when the others are back."""
    monkeypatch.setattr(calls, "RETIRED_COUNT_MAX", 1)
    pair = Pair("A", "B", "C")
    pair.exchange()
    pair.observe()
    disconnected(pair, "C")
    back(pair, disconnected(pair, "B"))
    assert (found := pair.observe()).forgotten_count == 1
    assert not found.is_exact
    monkeypatch.setattr(calls, "TOTAL_MAX", 7)
    pair.collector.ended(pair.target.farewell())
    del pair.instances["B"]
    assert pair.observe().since.why == "amounts of instances that have ended were dropped"


def test_a_decision_outlasts_an_observation_that_is_abandoned() -> None:
    """Although an instance that brings money has joined meanwhile."""
    pair = Pair()
    pair.exchange()
    decision = Baseline(0, "checked by hand", "Ann", 5.0)
    pair.collector.rebase(decision)
    pair.collector.begin()
    start(pair, "B-00000002", 7)
    pair.collector.abandon()
    assert (found := pair.observe()).since == msgspec.structs.replace(decision, number=found.number)


def test_an_observation_is_exact_only_if_nothing_is_unknown() -> None:
    """Not after a death, whatever comes back; again if the instance itself does, or after a
    decision."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    away = disconnected(pair, "C")
    assert not pair.observe().is_exact
    back(pair, away)
    assert pair.observe().is_exact
    disconnected(pair, "C")
    pair.collector.retire("C")
    start(pair, "C-00000002", 100)
    assert [pair.observe().is_exact, pair.observe().is_exact] == [False, False]
    assert decided(pair).is_exact


def unresolved(pair: Pair, *, accepted: bool = False, answer: int = 0) -> CallId:
    """Let A call B with 5, which B accepts or not, and stop waiting."""
    header = pair.request()
    if accepted:
        ticket = pair.accept(header)
        pair.money["B"] -= answer
        pair.target.answer(ticket, carries={"EUR": answer})
    pair.caller.stop_waiting(header.call.number)
    return header.call


def give_back(pair: Pair, call: CallId, amount: int) -> None:
    """Let A give an amount of a call back to its money."""
    pair.money["A"] += amount
    pair.caller.settled(call, {"EUR": amount} if amount else {})


@pytest.mark.parametrize("is_observed_before", [False, True])
@pytest.mark.parametrize(
    ("accepted", "answer", "returned", "spent"),
    [(False, 0, 5, 0), (False, 0, 3, 0), (True, 0, 5, 5), (True, 2, 2, 0), (True, 2, 5, 3)],
    ids=["not accepted", "a part", "accepted", "the answer", "more than the answer"],
)
def test_what_is_given_back_is_not_lost_any_more(
    is_observed_before: bool, accepted: bool, answer: int, returned: int, spent: int
) -> None:
    """Of this call, and not of others: what a state contains already is spent twice."""
    pair = Pair()
    pair.exchange()
    unresolved(pair)  # of another one
    call = unresolved(pair, accepted=accepted, answer=answer)
    if is_observed_before:
        assert pair.total(pair.observe()) == 200
    give_back(pair, call, returned)
    for observation in (pair.observe(), pair.observe()):
        assert observation.is_exact
        assert observation.double_spent == ({str(call): {"EUR": spent}} if spent else {})
        assert pair.total(observation) == 200 + spent


def test_a_call_that_is_accepted_after_its_amounts_were_given_back_is_spent_twice() -> None:
    """It is named as soon as it is found, and an acceptance before an end without a goodbye is not
    forgotten."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number)
    give_back(pair, header.call, 5)
    assert pair.observe().double_spent == {}
    pair.target.answer(pair.accept(header))
    pair.collector.left("C")
    del pair.instances["C"], pair.money["C"]
    late = pair.observe()
    assert (len(late.late), late.unknown_count) == (1, 0)
    for observation in (late, pair.observe()):
        assert observation.double_spent == {str(header.call): {"EUR": 5}}


@pytest.mark.parametrize("returned", [0, 5])
def test_a_statement_settles_a_call_of_unknown_fate(returned: int) -> None:
    """A call took effect, or its amounts are back: nothing of it is unknown then."""
    pair = Pair("A", "B", "C")
    pair.exchange()
    call = unresolved(pair)
    pair.collector.left("C")
    del pair.instances["C"]
    pair.observe()
    assert pair.observe().unknown_count == 1
    give_back(pair, call, returned)
    observation = pair.observe()
    assert (observation.unknown_count, observation.not_accepted.get("EUR", 0)) == (0, 0)


def test_amounts_given_back_for_a_call_that_was_answered_are_named() -> None:
    """The collector cannot judge that, so totals are compared anew."""
    pair = Pair()
    pair.exchange()
    first = pair.observe()
    give_back(pair, CallId("A", 1), 5)
    named, after = pair.observe(), pair.observe()
    why = "which is not one of those whose fate is open: it was answered, or is not kept any more"
    assert named.partial == (f"A has given amounts back for call A#1, {why}",)
    assert (first.baseline, after.baseline) == (first.number, after.number)


def test_statements_that_are_dropped_are_told() -> None:
    """Their amounts are in the state, and it is unknown for which calls."""
    pair = Pair(kept_count_max=2)
    pair.exchange()
    made = [unresolved(pair) for _ in range(2)]
    pair.observe()
    for call in (*made, made[0]):
        give_back(pair, call, 2)
    observation = pair.observe()
    assert observation.partial == ("A has dropped statements about calls: there were too many",)
    assert (observation.forgotten_count, pair.observe().partial) == (1, ())
    assert pair.collector.ledger.returned == {made[0]: {"EUR": 2}, made[1]: {"EUR": 2}}


def test_a_call_that_is_awaited_or_was_never_made_is_not_settled() -> None:
    """Its answer may still arrive."""
    pair = Pair()
    header = pair.request()
    with pytest.raises(UsageError, match="call A#1 is still open"):
        pair.caller.settled(header.call)
    with pytest.raises(UsageError, match="A has made no call A#2"):
        pair.caller.settled(CallId("A", 2))


def test_calls_that_are_settled_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are dropped, and what was given back for them is not lost again."""
    monkeypatch.setattr(calls, "LEDGER_COUNT_MAX", 2)
    pair = Pair()
    pair.exchange()
    for accepted in (False, False, False, True, True, True):
        give_back(pair, unresolved(pair, accepted=accepted), 5)
    observation = pair.observe()
    assert (pair.total(observation), len(observation.double_spent)) == (215, 3)
    following = pair.observe()
    ledger = pair.collector.ledger
    kept_counts = len(ledger.not_accepted), len(ledger.effects), len(ledger.double_spent)
    assert kept_counts == (2, 2, 2)
    assert (pair.total(following), following.lost) == (215, {"EUR": 0})
    assert following.since.why == "amounts that were spent twice were dropped"


def listed(pair: Pair, call: CallId) -> tuple[bool | None, int | None, tuple[str, ...], int, bool]:
    """Return what the collector lists of a call: whether it was accepted, the status, by whom, the
    observation that has found it so, and whether it is settled."""
    one = pair.collector.ledger.timed_out[call]
    return one.was_accepted, one.status, one.accepted_by, one.observation, one.is_settled


def test_a_call_that_timed_out_stays_listed_with_its_status() -> None:
    """When no instance keeps it any more. One that was answered in time is not listed."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    ticket = pair.accept(header)
    pair.caller.stop_waiting(header.call.number)
    pair.observe()
    assert listed(pair, header.call) == (True, None, ("B",), 1, False)
    pair.target.answer(ticket, status=409)
    for _ in range(3):
        observation = pair.observe()
    assert observation.calls == ()
    assert listed(pair, header.call) == (True, 409, ("B",), 2, False)
    pair.caller.settled(header.call)
    pair.observe()
    assert listed(pair, header.call) == (True, 409, ("B",), 2, True)
    ledger = pair.collector.ledger
    assert ([*ledger.timed_out], ledger.timed_out_count) == ([header.call], 1)


def test_a_listed_call_is_unknown_while_its_fate_is() -> None:
    """It was not accepted, may have been when an instance is gone, was not if that one is there
    again, and was if it is late."""
    pair = Pair()
    pair.exchange()
    header = pair.request()
    pair.caller.stop_waiting(header.call.number, status=502)
    pair.observe()
    assert listed(pair, header.call) == (False, 502, (), 1, False)
    pair.collector.left("B")
    assert listed(pair, header.call) == (None, 502, (), 1, False)
    pair.collector.joined("B", 1)
    pair.observe()
    assert listed(pair, header.call) == (False, 502, (), 1, False)
    pair.target.answer(pair.accept(header), status=200)
    pair.observe()
    assert listed(pair, header.call) == (True, 200, ("B",), 3, False)
    assert pair.collector.ledger.timed_out_count == 1


def test_a_call_of_unknown_fate_stays_so_in_the_list_after_a_new_baseline() -> None:
    """An operator does not find out what became of it."""
    pair = Pair()
    pair.exchange()
    call = unresolved(pair)
    pair.observe()
    pair.collector.left("B")
    pair.collector.rebase(Baseline(0, "checked by hand", "ada", 1.0))
    del pair.instances["B"]
    pair.observe()
    assert listed(pair, call)[0] is None


def test_a_call_that_an_unseen_instance_may_have_accepted_is_listed_as_unknown() -> None:
    """Also if its caller was notified that this one is retired, and after a new baseline. A call
    that was made later is not."""
    pair = Pair()
    pair.exchange()
    target = disconnected(pair, "B")
    pair.observe()
    pair.collector.retire("B")
    pair.observe()
    call = unresolved(pair)
    pair.observe()
    target.accept(RequestHeader(0, call))
    start(pair, "C", 100)
    decided(pair)
    assert pair.observe().is_exact
    assert listed(pair, call)[0] is None
    assert pair.collector.ledger.timed_out[call].was_given_up
    later = unresolved(pair)
    pair.observe()
    assert listed(pair, later)[0] is False


def test_a_call_that_a_newcomer_may_have_accepted_is_listed_as_unknown() -> None:
    """Until the first observation that it takes part in."""
    pair = Pair()
    pair.exchange()
    call = unresolved(pair)
    pair.collector.begin()
    pair.collector.joined("C", 0)
    fragments = [one.start(ObservationStart(1, 0)) for one in pair.instances.values()]
    results = [pair.collector.add(one) for one in fragments if one]
    assert results[-1] is not None
    assert listed(pair, call)[0] is None


def test_a_call_is_not_unknown_for_ever_because_its_target_had_not_answered_yet() -> None:
    """A service that starts is slow to answer the first one."""
    pair = Pair()
    call = unresolved(pair)
    pair.observe()
    assert listed(pair, call)[0] is None
    pair.exchange()
    pair.observe()
    assert listed(pair, call)[0] is False


def test_calls_are_listed_when_all_have_said_goodbye() -> None:
    """There is no observation any more."""
    pair = Pair()
    pair.exchange()
    lost, accepted = unresolved(pair), unresolved(pair, accepted=True)
    for instance in (pair.caller, pair.target):
        pair.collector.ended(instance.farewell())
    assert [listed(pair, call)[0] for call in (lost, accepted)] == [None, True]


def test_the_list_drops_calls_that_are_settled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that were not sent, and then the oldest. It says how many there were."""
    monkeypatch.setattr(calls, "TIMED_OUT_COUNT_MAX", 2)
    pair = Pair()
    pair.exchange()
    first, second, third = (unresolved(pair, accepted=True) for _ in range(3))
    pair.caller.settled(second)
    pair.caller.stop_waiting(pair.request().call.number, was_sent=False)
    pair.observe()
    ledger = pair.collector.ledger
    assert [*ledger.timed_out] == [first, third]
    fourth = unresolved(pair)
    pair.observe()
    assert ([*ledger.timed_out], ledger.timed_out_count) == ([third, fourth], 5)


def test_a_call_that_had_no_room_in_the_list_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that hangs keeps them all."""
    monkeypatch.setattr(calls, "TIMED_OUT_COUNT_MAX", 2)
    pair = Pair()
    pair.exchange()
    for _ in range(4):
        header = pair.request()
        pair.accept(header)
        pair.caller.stop_waiting(header.call.number)
    ledger = pair.collector.ledger
    for _ in range(2):
        pair.observe()
        assert ([call.number for call in ledger.timed_out], ledger.timed_out_count) == ([4, 5], 4)


def test_a_listed_call_is_accepted_also_if_nothing_else_is_kept_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list is longer than the ledger of calls that were not accepted."""
    monkeypatch.setattr(calls, "LEDGER_COUNT_MAX", 1)
    pair = Pair()
    pair.exchange()
    headers = [pair.request() for _ in range(2)]
    for one in headers:
        pair.caller.stop_waiting(one.call.number)
    pair.observe()
    assert [*pair.collector.ledger.not_accepted] == [headers[1].call]
    ticket = pair.accept(headers[0])
    assert pair.observe().duplicates
    assert listed(pair, headers[0].call) == (True, None, ("B",), 2, False)
    pair.target.answer(ticket, status=201)
    pair.observe()
    assert listed(pair, headers[0].call) == (True, 201, ("B",), 3, False)
