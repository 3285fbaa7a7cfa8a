"""Random changes of random classes, against an oracle that goes through them one by one."""

import types
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.migration import migrate
from stillframe.process import Message, Process
from stillframe.topology import Topology
from tests.migration.systems import messages_of, snapshot_of, states_of
from tests.nightly import examples

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-5, 5),
    float: st.sampled_from([0.5, 1.5]),
    str: st.text("ab", max_size=2),
    bool: st.booleans(),
    list[int]: st.lists(st.integers(0, 3), max_size=2),
    dict[str, int]: st.dictionaries(st.text("ab", max_size=2), st.integers(0, 3), max_size=2),
}
FITS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    list[int]: (list,),
    dict[str, int]: (dict,),
}
NAMES = ("a", "b", "c", "d")
NEW_NAMES = ("p", "q", "r", "s")
Fields = dict[str, tuple[Any, Any]]
"""Field -> its type and default."""

typed = st.sampled_from(list(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Fields, Fields, dict[str, str]]:
    """Return fields, fields after a change in any order, and which of those were renamed."""
    before: Fields = {name: draw(typed) for name in draw(st.sets(st.sampled_from(NAMES)))}
    after: Fields = {}
    renamed: dict[str, str] = {}
    for name, field in before.items():
        match draw(st.sampled_from(["keep", "keep", "remove", "rename", "retype"])):
            case "keep":
                after[name] = field
            case "rename":
                new = NEW_NAMES[NAMES.index(name)]
                after[new], renamed[new] = field, name
                if draw(st.booleans()):
                    after[name] = draw(typed)  # another field takes the old name
            case "retype":
                after[name] = draw(typed)
    if draw(st.booleans()):
        after["x"] = draw(typed)
    order = draw(st.permutations(list(after)))
    return before, {name: after[name] for name in order}, renamed


def make(fields: Fields, renamed: dict[str, str]) -> tuple[Topology, type[Message]]:
    """Return two processes whose class has these fields, and the message class that has them."""
    body: dict[str, Any] = {
        "__annotations__": {name: kind for name, (kind, _) in fields.items()},
        "renamed": renamed,
    }
    # A message may be short of a default where a process may not: none is needed for the values.
    defaults = {n: v for n, (_, v) in fields.items() if not isinstance(v, list | dict)}
    keys = {"kw_only": True}
    note = types.new_class("Note", (Message,), keys, lambda ns: ns.update(body | defaults))

    def receive(self: Any, channel: Any, message: Any) -> None:
        """Take it."""

    receive.__annotations__ = {"message": note}
    kind = types.new_class(
        "Holder",
        (Process,),
        {},
        lambda ns: ns.update({"receive": receive, "__annotations__": {}, "renamed": renamed}),
    )
    process: type[Process] = type(
        "Holder",
        (kind,),
        {"__annotations__": body["__annotations__"], "__init__": lambda self: None},
    )

    def start() -> Process:
        made = process()
        vars(made).update({name: value for name, (_, value) in fields.items()})
        return made

    return Topology.mesh({"A": start(), "B": start()}), note


def expected(recorded: dict[str, Any], after: Fields, renamed: dict[str, str]) -> Any:
    """Return the values after the change, or None if one does not fit."""
    found = {}
    for name, (kind, start) in after.items():
        source = renamed.get(name, name)
        if name not in renamed and name in renamed.values():
            found[name] = start  # its old value went to the field that was renamed
        elif source not in recorded:
            found[name] = start
        elif type(recorded[source]) in FITS[kind] and _items_fit(kind, recorded[source]):
            found[name] = recorded[source]
        else:
            return None
    return found


def _items_fit(kind: Any, value: Any) -> bool:
    return kind is not float or not isinstance(value, bool)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(plans(), st.data())
def test_states_and_messages_become_what_the_oracle_says(
    plan: tuple[Fields, Fields, dict[str, str]], data: st.DataObject
) -> None:
    """Every kept value is there under its name of now, every new one is the start, nothing else;
    what does not fit is refused; and the same code once more changes nothing."""
    before, after, renamed = plan
    (old, note), (now, _) = make(before, {}), make(after, renamed)
    recorded = [
        {name: data.draw(VALUES[kind]) for name, (kind, _) in before.items()} for _ in range(3)
    ]
    snapshot = snapshot_of(
        old, {"A": recorded[0], "B": recorded[1]}, {("A", "B"): [note(**recorded[2])]}
    )
    wanted = [expected(values, after, renamed) for values in recorded]
    has_defaults = all(
        not isinstance(start, list | dict)
        for name, (_, start) in after.items()
        if renamed.get(name, name) not in before or (name in renamed.values())
    )
    if None in wanted or not has_defaults:
        with pytest.raises(UsageError, match="cannot be continued with this code"):
            migrate(snapshot, old.description, now)
        return
    migration = migrate(snapshot, old.description, now)
    assert states_of(migration.snapshot) == {"A": wanted[0], "B": wanted[1]}
    assert messages_of(migration.snapshot) == {"A->B": [["Note", *wanted[2].values()]]}
    dropped = [name for name in before if name not in renamed.values() and name not in after]
    lost = {change.sentence for change in migration.losses}
    assert lost == {f"{name} was removed" for name in dropped}
    again = migrate(migration.snapshot, now.description, now)
    assert (again.snapshot, again.changes) == (migration.snapshot, ())
