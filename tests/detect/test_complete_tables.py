"""Tables of an observation that are complete although it is partial or not exact."""

import ast
from pathlib import Path

import msgspec
import pytest

import stillframe
from stillframe.detect import complete_tables
from stillframe.detect.complete_tables import TABLES, reasons_against
from stillframe.store.observations import ObservationReader
from tests.store.call_samples import crowd, deadlocked, stored

SOURCE = Path(stillframe.__file__).parent
KEEPS = "a-1: a task keeps the answer of /b"
TORN = "a-1: /b runs in a thread, so the state may be torn"
UNKNOWN_AMOUNTS = "the amounts of call a-1#7 are not known"
SHARED = "a-1: the database is shared outside of calls"
FATE = "it is unknown whether some calls were accepted"


def templates_in(path: Path) -> set[str]:
    """Return the texts of a module, with ``{}`` for each value in them."""
    found = set()
    for part in ast.walk(ast.parse(path.read_text())):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
        elif isinstance(part, ast.JoinedStr):
            pieces = (one.value if isinstance(one, ast.Constant) else "{}" for one in part.values)
            found.add("".join(map(str, pieces)))
    return found


def test_reasons_are_those_that_the_code_gives() -> None:
    """A reason whose text changes would leave no table complete from then on."""
    by_rules = templates_in(SOURCE / "protocol/calls.py")
    by_rules |= templates_in(SOURCE / "store/observations.py")
    by_agents = set().union(*map(templates_in, (SOURCE / "services").glob("*.py")))
    assert {*complete_tables._LIMITED, complete_tables._MORE} <= by_rules
    assert complete_tables._LIMITED_BY_AN_AGENT.keys() <= by_agents


@pytest.mark.parametrize(
    ("partial", "complete"),
    [
        ((KEEPS,), "instances states calls unresolved"),
        ((TORN,), "calls unresolved"),
        ((UNKNOWN_AMOUNTS,), "instances states"),
        ((UNKNOWN_AMOUNTS, "the same holds for 3 more"), "instances states"),
        ((TORN, UNKNOWN_AMOUNTS), ""),
        # Those of an instance are counted together, whatever they say.
        ((KEEPS, "the same holds for 3 more"), ""),
        ((SHARED,), ""),
        # An agent names its reasons after itself; the collector names no instance first.
        ((KEEPS.partition(": ")[2],), ""),
        ((f"a-1: a WebSocket on /x {KEEPS} crosses the cut",), ""),
        (("a-1: a reason of another version",), ""),
        (("the same holds for 3 more",), ""),
        ((), "instances states calls unresolved amounts"),
    ],
)
def test_a_reason_leaves_the_tables_complete_that_it_does_not_touch(
    tmp_path: Path, partial: tuple[str, ...], complete: str
) -> None:
    """Most leave none: the cut may be inconsistent, or an instance is missing."""
    observation = msgspec.structs.replace(crowd(2, 2), partial=partial)
    store = ObservationReader(stored(tmp_path / "seen", observation))
    manifest = store.manifest(1)
    found = [name for name in TABLES if not reasons_against(store, manifest, [name])]
    assert found == complete.split()
    assert set(reasons_against(store, manifest, TABLES)) == set(partial)


@pytest.mark.parametrize("partial", [(), (TORN,)])
def test_calls_with_an_unknown_fate_are_not_complete(
    tmp_path: Path, partial: tuple[str, ...]
) -> None:
    """Neither in an observation that is partial for another reason."""
    observation = msgspec.structs.replace(deadlocked(), partial=partial)
    store = ObservationReader(stored(tmp_path / "seen", observation))
    assert reasons_against(store, store.manifest(1), ["calls"]) == (FATE,)
    assert reasons_against(store, store.manifest(1), ["states"]) == partial
