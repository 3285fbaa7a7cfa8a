"""``docs/json.md`` is what commands write: complete here, and checked key by key wherever a test of
this directory calls a command with ``--json`` (``tests.json_page.check_output``). All tests
together write an object of every table (``tests.json_page.Written``)."""

import json
import typing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stillframe.cli.supervision import EventPrinter
from stillframe.model import Abandoned
from stillframe.protocol.stragglers import PendingSnapshot, Straggler
from stillframe.runtime import events
from stillframe.store.history import HistoryEvent, Rollover
from stillframe.store.manifest import SnapshotEntry
from tests import json_page
from tests.cli.conftest import Call
from tests.cli.test_app import ALL
from tests.golden.travelling import TOLD
from tests.json_page import check_output, misfit, mismatch, page


def test_every_command_is_on_the_page_and_no_other() -> None:
    """Under its name, alone or with others."""
    assert page().of_command.keys() == {*ALL}


def test_every_type_is_explained_and_every_shared_object_is_used() -> None:
    """A capitalized type is a shared object; all of these occur in a table."""
    tables = [
        *(rules for kinds in page().of_command.values() for rules in kinds),
        *page().shared.values(),
    ]
    kinds = {kind.removesuffix(" or null") for rules in tables for kind in rules.values()}
    names = {kind.rpartition(" of ")[2] for kind in kinds}
    assert {name for name in names if name[0].isupper()} == page().shared.keys()
    for name in names - page().shared.keys():
        assert mismatch(name, object()) if name != "any" else True


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    """Return the names of the fields of a class, as JSON has them."""
    return {*struct.__struct_fields__}


def test_every_event_of_a_system_is_on_the_page() -> None:
    """With all its fields, and none that it does not have."""
    tables = {
        rules["event"].strip('"'): rules for rules in page().of_command["run"] if "event" in rules
    }
    found: Any = {
        struct.__struct_config__.tag: fields_of(struct) | {"event", "at"}
        for struct in typing.get_args(events.Event)
    }
    del tables["PredicateEvaluated"]
    assert {name: {*rules} for name, rules in tables.items()} == found


def test_every_event_of_a_history_is_on_the_page() -> None:
    """The table has all their fields, and their names."""
    rules = page().shared["HistoryEvent"]
    shown: Any = [struct for struct in typing.get_args(HistoryEvent) if struct is not Rollover]
    fields = {field for struct in shown for field in fields_of(struct)}
    assert {key.removesuffix("?") for key in rules} == {*fields, "event", "at"}


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("Abandoned", Abandoned),
        ("Entry", SnapshotEntry),
        ("Pending", PendingSnapshot),
        ("Straggler", Straggler),
    ],
)
def test_shared_objects_have_the_fields_of_their_classes(
    name: str, struct: type[msgspec.Struct]
) -> None:
    """No test needs to produce each of them."""
    assert {*page().shared[name]} == fields_of(struct)


@pytest.mark.parametrize(
    ("chosen", "is_all"), [({}, True), ({"keyword": "x"}, False), ({"markexpr": "not slow"}, False)]
)
def test_a_run_of_all_tests_fails_if_none_writes_a_table(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], is_all: bool
) -> None:
    """It names the table."""
    monkeypatch.setattr(json_page, "WRITTEN", {*page().names().values()} - {"Witness"})
    written, test = json_page.Written(), SimpleNamespace(user_properties=[])
    written.pytest_runtest_teardown(test)  # type: ignore[arg-type]
    written.pytest_runtest_logreport(test)  # type: ignore[arg-type]
    option = SimpleNamespace(**{"keyword": "", "markexpr": ""} | chosen)
    config = SimpleNamespace(args_source=pytest.Config.ArgsSource.TESTPATHS, option=option)
    session: Any = SimpleNamespace(config=config, testsfailed=0, exitstatus=0)
    written.pytest_sessionfinish(session)
    assert (written.missing, session.exitstatus) == (["Witness"] * is_all, int(is_all))


@pytest.mark.parametrize("event", [*TOLD.values()], ids=[*TOLD])
def test_every_event_of_a_system_is_as_its_table_says(
    event: events.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """No system has all of them."""
    EventPrinter(process_count=3, is_json=True).emit(event)
    check_output(["run", "--json"], capsys.readouterr().out)


def test_an_answer_has_a_version(call: Call, money: Any) -> None:
    """It is the first key."""
    assert call("list", money, "--json").stdout.startswith('{"version":2,')


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epoch": "1"}, ".epoch is no integer: '1'"),
        ({"epoch": True}, ".epoch is no integer: True"),
        ({"more": 1}, ": more ['more']"),
        ({"snapshots": [{}]}, ".snapshots[0]: missing ['bases', 'bytes'"),
        ({"current": "newest"}, ".current is no id"),
        ({"damaged": [{"detail": "x", "id": 1}]}, ".damaged[0].id is no id: 1"),
    ],
)
def test_what_is_not_on_the_page_is_noticed(
    call: Call, money: Any, change: dict[str, Any], says: str
) -> None:
    """A check that lets everything pass would show nothing."""
    document = json.loads(call("list", money, "--json").stdout) | change
    with pytest.raises(AssertionError, match=r"list is not as docs/json\.md says"):
        check_output(["list", "money", "--json"], json.dumps(document))
    del document["version"]
    rules, *_ = page().of_command["list"]
    assert says in misfit(rules, document)
