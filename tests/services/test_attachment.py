"""Arguments of `attach` and `connected_agent` that are refused at once."""

from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from stillframe.errors import UsageError
from stillframe.services.attachment import connected_agent
from tests.services.deployment import SECRET


class Till:
    """A state in fields."""

    def __init__(self) -> None:
        self.euros = 5

    def conserved(self) -> dict[str, int]:
        """Return its euros."""
        return {"EUR": self.euros}


@pytest.mark.parametrize("state", [None, True, 5, 1.5, "till", b"till", [1], Till, dict])
def test_a_state_without_fields_is_refused(state: object) -> None:
    """A class has those of no object."""
    with pytest.raises(
        UsageError, match=r"^state is .*: give an object whose fields are the state"
    ):
        connected_agent(service="S", state=state, collector="127.0.0.1", secret=SECRET)


@pytest.mark.parametrize("state", [Till(), {"euros": 5}, lambda: {"euros": 5}, Till().conserved])
def test_a_state_with_fields_is_taken(state: object) -> None:
    """From an object, a map, or a function or method that returns one."""
    agent = connected_agent(service="S", state=state, collector="127.0.0.1", secret=SECRET)
    assert agent.service == "S"


def test_amounts_in_the_state_are_returned_by_a_method() -> None:
    """A field or property has those of one moment only."""
    declared = make_dataclass("Declared", [("conserved", Any, None)])
    for state, why in (
        (
            SimpleNamespace(conserved={"EUR": 5}),
            r"^the conserved of state is \{'EUR': 5\}: make it a",
        ),
        (SimpleNamespace(conserved=None), "^the conserved of state is None: make it a method"),
        (declared(), "^class Declared: a field cannot be called 'conserved'"),
        (
            type("Shown", (), {"conserved": property(len)})(),
            "^class Shown: a field cannot be called",
        ),
    ):
        with pytest.raises(UsageError, match=why):
            connected_agent(service="S", state=state, collector="127.0.0.1", secret=SECRET)


@pytest.mark.parametrize(
    ("collector", "why"),
    [
        (
            "127.0.0.1:0",
            "^collector is '127.0.0.1:0': give the port at which 'stillframe observe' ",
        ),
        ("http://127.0.0.1:8650", "^collector is .*: leave out 'http://', .* 127.0.0.1:8650$"),
        ("a b", "'a b' is not an address: write for example 10.0.0.1 or 10.0.0.1:8650"),
    ],
)
def test_the_address_of_the_collector_is_that_of_a_port(collector: str, why: str) -> None:
    """Not of a page, and not any free port."""
    with pytest.raises(UsageError, match=why):
        connected_agent(service="S", state={}, collector=collector, secret=SECRET)
