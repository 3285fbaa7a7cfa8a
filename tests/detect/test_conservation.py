"""Loss: sums of conserved quantities over states and channels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stillframe.detect.predicate import find_loss, places_of, total
from stillframe.detect.view import SnapshotView
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message, Quantities


class Transfer(Message):
    """Money, or tokens, on its way."""

    amounts: dict[str, float]

    def conserved(self) -> Quantities:
        """All of it."""
        return self.amounts


class Greeting(Message):
    """Carries nothing."""


@dataclass
class Holder:
    """A process that has something."""

    amounts: Mapping[str, float] = field(default_factory=dict)

    def conserved(self) -> Quantities:
        """All of it."""
        return self.amounts


def seen(a: Mapping[str, float], b: Mapping[str, float], *messages: Message) -> SnapshotView:
    """Return a global state of two processes and a channel, and a third that cannot say."""
    processes = {"A": Holder(a), "B": Holder(b), "C": object()}
    return SnapshotView(SnapshotId("P", 1), processes, {Channel("A", "B"): messages})


def test_each_thing_is_counted_once() -> None:
    """In a process or on a channel."""
    view = seen({"EUR": 3}, {"EUR": 4}, Transfer({"EUR": 5}), Greeting(), Transfer({"EUR": 1}))
    assert {quantity: total(places) for quantity, places in places_of(view).items()} == {"EUR": 13}
    assert find_loss(view, {"EUR": {"A": 13}}) == ()


def test_what_is_lost_or_too_much_is_named_with_its_places() -> None:
    """Token 1 is doubled and token 2 gone; how much is wrong, and where what there is lies."""
    view = seen({"token 1": 1}, {"EUR": 4}, Transfer({"token 1": 1}))
    expected = {"token 1": {"A": 1}, "token 2": {"A": 1}, "EUR": {"A": 5, "B": 1}}
    assert [str(found) for found in find_loss(view, expected)] == [
        "2 EUR lost: B 4",
        "1 token 1 too much: A 1, A->B 1",
        "1 token 2 lost: nowhere",
    ]


def test_sums_of_fractions_may_be_rounded() -> None:
    """A difference below what adding up rounds is none, also where debts cancel what others have;
    one above is; and whole numbers are compared exactly."""
    view = seen({"kg": 0.1}, {"kg": 0.2}, *(Transfer({"kg": 0.1}) for _ in range(7)))
    assert find_loss(view, {"kg": {"A": 1.0}}) == ()
    assert len(find_loss(view, {"kg": {"A": 1.0001}})) == 1
    books = seen({"EUR": -3.3 + 0.1}, {"EUR": 1.1 + 0.3 - 0.1}, Transfer({"EUR": 2.2 - 0.3}))
    assert find_loss(books, {"EUR": {"A": -3.3, "B": 1.1, "C": 2.2}}) == ()
    assert len(find_loss(seen({"n": 10**18}, {}), {"n": {"A": 10**18 + 1}})) == 1
