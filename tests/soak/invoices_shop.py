"""The shop of ``stillframe.examples.invoices``, with tills that die at the worst moments."""

import contextlib
import os
import signal
from contextlib import closing

from stillframe import Channel, Due, Outbox
from stillframe.examples.invoices import (
    NaiveTill,
    Payment,
    Till,
    connect,
    database,
    settle,
    shop_with,
)

BEFORE, INSIDE, AFTER = "before the commit", "in the transaction", "after the commit"
PRECISE_MOMENTS = (BEFORE, INSIDE, AFTER)


def doom(moment: str) -> None:
    """Tell the till to die at its next `moment`."""
    partial = database().with_suffix(".partial")
    partial.write_text(moment)
    partial.rename(database().with_suffix(".doom"))


def die_if_told(moment: str) -> None:
    """Die as by ``kill -9``, once, if it was this moment that somebody chose."""
    told = database().with_suffix(".doom")
    with contextlib.suppress(FileNotFoundError):
        if told.read_text() == moment:
            told.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def pay(due: Due[Payment]) -> None:
    """Commit, or die before it, within it, or between the commit and the forgetting."""
    die_if_told(BEFORE)
    with closing(connect(database())) as books:
        books.set_trace_callback(lambda said: die_if_told(INSIDE) if said == "COMMIT" else None)
        settle(books, due)
    die_if_told(AFTER)


class DoomedNaiveTill(NaiveTill):
    """The naive till; it dies after a commit."""

    def receive(self, channel: Channel, message: Payment) -> None:
        """Commit, and die."""
        super().receive(channel, message)
        die_if_told(AFTER)


shop = shop_with(Till(payments=Outbox(pay)))
naive_shop = shop_with(DoomedNaiveTill())
