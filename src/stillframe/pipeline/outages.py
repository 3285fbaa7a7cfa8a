"""Outages of Kafka: a query or service that runs waits for its brokers, up to a limit.

A start does not wait: it fails after one timeout, so that a wrong address is reported at once.
A write is repeated only when its outcome is known: ``topic_service`` reads it from the ledger, and
``spark.topics`` compares the topic.
"""

import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.kafka import BrokerAway

VARIABLE = "STILLFRAME_KAFKA_OUTAGE_S"
LIMIT_S = 60.0
"""How long an outage may last, unless `VARIABLE` sets it."""
_PAUSE_S = 0.2

_Answer = TypeVar("_Answer")


def limit_s() -> float:
    """Return how long an outage may last, in seconds; UsageError if `VARIABLE` is no number."""
    given = os.environ.get(VARIABLE) or LIMIT_S
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UsageError(f"{VARIABLE} is {given!r}: set it to a number of seconds, such as 60")
    return found


class Outages:
    """Lets a participant that runs wait for brokers that are away.

    Args:
        participant: its kind and name, such as "query sums".
        report: receives a sentence when a wait begins, and when it has ended.
        check: called while it waits; it may raise an error to end that.

    Raises:
        UsageError: the limit is no number.
    """

    def __init__(
        self, participant: str, report: Callable[[str], object], check: Callable[[], object]
    ) -> None:
        self._participant = participant
        self._report = report
        self._check = check
        self._limit_s = limit_s()
        self._excluded_s = 0.0

    def exclude(self, seconds: float) -> None:
        """Do not count a wait of the attempt, during which the broker was not asked."""
        self._excluded_s += seconds

    def through(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Return what `attempt` returns. It is called again while it raises BrokerAway.

        Raises:
            Unavailable: the outage has lasted for longer than the limit.
        """
        since = None
        while True:
            began, self._excluded_s = time.monotonic(), 0.0
            try:
                answer = attempt()
            except BrokerAway as error:
                if since is not None:
                    since += self._excluded_s
                else:
                    since = began + self._excluded_s if error.since is None else error.since
                    self._report(
                        f"{self._participant} is waiting for the broker at {error.servers} since "
                        f"{_clock(since)}; fails after {self._limit_s:g} s: {error.why}"
                    )
                self._wait(error, since)
            else:
                if since is not None:
                    away_s = time.monotonic() - since - self._excluded_s
                    self._report(
                        f"{self._participant} continues: the broker answers after {away_s:.0f} s"
                    )
                return answer

    def _wait(self, error: BrokerAway, since: float) -> None:
        """Wait a moment; or raise the error that this outage has lasted too long."""
        if (waited_s := time.monotonic() - since) >= self._limit_s:
            raise Unavailable(
                f"{self._participant} gave up: the broker at {error.servers} has not answered "
                f"since {_clock(since)}, for {waited_s:.0f} s, more than {self._limit_s:g} s "
                f"({VARIABLE}): {error.why}",
                process=self._participant.partition(" ")[2],
                remedy="check that the brokers run and can be reached from here, and start this "
                "again: it continues where it was",
            ) from error
        time.sleep(_PAUSE_S)
        self._check()


def _clock(moment: float) -> str:
    """Return the time of day of a moment of ``time.monotonic``."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + moment))
