"""Outages of brokers: a participant that runs waits for them up to a limit, and says so."""

import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline import outages
from stillframe.pipeline.kafka import BrokerAway
from stillframe.pipeline.outages import VARIABLE, Outages

CALL_S = 15.0
"""How long a call takes that no broker answers."""


class Clock:
    """A clock that advances only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the seconds that were slept."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds

    def time(self) -> float:
        """Return the time of day."""
        return self.now

    def localtime(self, moment: float) -> float:
        """Return what ``strftime`` takes."""
        return moment

    def strftime(self, _form: str, moment: float) -> str:
        """Return a time of day."""
        return f"{moment:.0f}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the module."""
    clock = Clock()
    monkeypatch.setattr(outages, "time", clock)
    return clock


class Broker:
    """Answers from a moment on; until then a call takes its time and fails. What fails is known to
    have been away `before` the call."""

    def __init__(self, clock: Clock, back_at: float, before: float | None = None) -> None:
        self.clock = clock
        self.back_at = back_at
        self.before = before

    def ask(self) -> str:
        """Ask it."""
        if self.clock.now >= self.back_at:
            return "answer"
        since = None if self.before is None else self.clock.now - self.before
        self.clock.sleep(CALL_S)
        why, remedy = "no answer", "look"
        raise BrokerAway("h:1", why, f"text: {why}", remedy=remedy, since=since)


def riding(said: list[str]) -> Outages:
    """Return what waits for a query, and says it here."""
    return Outages("query sums", said.append, lambda: None)


def test_what_answers_in_time_is_waited_for(clock: Clock) -> None:
    """What is waited for is reported once, and the end of it; the next outage has all its time."""
    said: list[str] = []
    waiting = riding(said)
    broker = Broker(clock, 40)
    assert waiting.through(broker.ask) == "answer"
    broker.back_at = clock.now + 40
    assert waiting.through(broker.ask) == "answer"
    begins, ends, *_ = said
    assert begins == (
        "query sums is waiting for the broker at h:1 since 0; fails after 60 s: no answer"
    )
    assert ends == "query sums continues: the broker answers after 46 s"
    assert len(said) == 4
    assert waiting.through(broker.ask) == "answer"
    assert len(said) == 4


def test_two_short_outages_are_not_a_long_one(clock: Clock) -> None:
    """An attempt may wait in between, for what the first one has left behind, although the broker
    answers."""
    said: list[str] = []
    waiting = riding(said)
    broker = Broker(clock, 20)

    def attempt() -> str:
        broker.ask()
        clock.sleep(50)
        waiting.exclude(50)
        broker.back_at = 82
        return broker.ask()

    assert waiting.through(attempt) == "answer"
    assert said[-1] == f"query sums continues: the broker answers after {clock.now - 100:.0f} s"
    assert len(said) == 2


@pytest.mark.parametrize(("before", "waited"), [(None, "61"), (20.0, "65")])
def test_what_is_away_for_longer_than_the_limit_is_given_up(
    clock: Clock, before: float | None, waited: str
) -> None:
    """The error names cause, address and setting; the time counts since the broker is away."""
    with pytest.raises(Unavailable, match="gave up") as caught:
        riding([]).through(Broker(clock, 1000, before).ask)
    assert str(caught.value).startswith(
        f"query sums gave up: the broker at h:1 has not answered since {-(before or 0):.0f}, for "
        f"{waited} s, more than 60 s ({VARIABLE}): no answer: check that the brokers run"
    )
    assert caught.value.process == "sums"
    assert not isinstance(caught.value, BrokerAway)


def test_the_limit_is_a_setting(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 0 nothing is waited for. It is read when a participant starts."""
    monkeypatch.setenv(VARIABLE, "90")
    longer = riding([])
    monkeypatch.setenv(VARIABLE, "0")
    assert longer.through(Broker(clock, 70).ask) == "answer"
    with pytest.raises(Unavailable, match="more than 0 s"):
        riding([]).through(Broker(clock, clock.now + 1).ask)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with it fails, and the error says what it may be."""
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=rf"{VARIABLE} is '{text}': set it to a number of seconds"):
        riding([])


def test_another_program_ends_a_wait(clock: Clock) -> None:
    """What took the place of the one that waits must not be disturbed when the broker is back."""
    asked: list[float] = []

    def lost() -> None:
        if len(asked) == 2:
            raise Unavailable("another program took the place")

    def ask() -> None:
        asked.append(clock.now)
        Broker(clock, 1000).ask()

    with pytest.raises(Unavailable, match="took the place"):
        Outages("service till", lambda _: None, lost).through(ask)
    assert len(asked) == 2
