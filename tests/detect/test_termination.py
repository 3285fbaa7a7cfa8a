"""Termination: all passive, and nothing on its way."""

import stillframe
from stillframe.detect.termination import find_activity
from stillframe.detect.view import View
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message


class Work(Message):
    """Something to do."""


class Passing(stillframe.Process):
    """Acts only when it receives."""

    done_count: int = 0


class Ticking(stillframe.Process):
    """Acts by itself as long as it has something left."""

    left_count: int = 0

    @stillframe.every(ms=10)
    def tick(self) -> None:
        """Do a little."""

    def is_passive(self) -> bool:
        """When nothing is left."""
        return self.left_count == 0


class Endless(stillframe.Process):
    """Acts by itself, and does not say when that ends."""

    @stillframe.every(ms=10)
    def tick(self) -> None:
        """Do a little."""


class Talking(stillframe.Process):
    """Has no action, and sends when a snapshot was published."""

    def on_published(self, snapshot: SnapshotId) -> None:
        """Say so."""


class Reading(stillframe.Process):
    """Has no action, and reads a log of a pipeline."""

    def receive_records(self, log: str, records: object) -> None:
        """Take them."""


def seen(*messages: Message, **processes: object) -> View:
    """Return a global state with messages on one channel."""
    return View(SnapshotId("P", 1), processes, {Channel("A", "B"): messages})


def test_terminated_is_who_is_passive_with_empty_channels() -> None:
    """A process without actions is passive by itself, one with actions when it says so."""
    assert find_activity(seen(A=Passing(), B=Ticking())) is None


def test_what_still_goes_on_is_named() -> None:
    """Processes that may act, and how many messages are on which channel."""
    found = find_activity(seen(Work(), Work(), A=Passing(), B=Ticking(left_count=1)))
    assert str(found) == "active: B; messages on their way: A->B 2"
    assert str(find_activity(seen(Work(), A=Passing()))) == "messages on their way: A->B 1"


def test_who_cannot_say_that_it_is_passive_is_active() -> None:
    """Actions without ``is_passive``, a state of another class, and who acts on what is no message:
    better no answer than a wrong one."""
    assert str(find_activity(seen(A=Endless()))) == "active: A"
    for process in (object(), Talking(), Reading()):
        assert str(find_activity(seen(A=process))) == "active: A"
