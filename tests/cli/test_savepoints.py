"""``savepoint``, ``delete`` and ``--keep``: what stays in a store, and under which name."""

import json
from pathlib import Path

import msgspec
import pytest

from stillframe.cli import snapshots
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.runtime.supervisor.admin_socket import Done
from stillframe.store.store import Store
from tests.cli.conftest import Call
from tests.cli.test_runs import Start, start
from tests.store import keyed_samples

__all__ = ["start"]


def test_a_savepoint_stands_for_its_snapshot(call: Call, money: Path) -> None:
    """Whatever takes a snapshot takes the name, and the list shows it."""
    made = call("savepoint", money, "audited", "--snapshot", "A-1")
    assert (made.exit_code, made.stdout) == (0, "A-1\n")
    assert "audited" in call("list", money).stdout.splitlines()[2].split()
    assert "snapshot A-1" in call("show", money, "audited").stdout
    assert call("verify", money, "audited").exit_code == 0
    assert json.loads(call("diff", money, "audited", "A-2", "--json").stdout)["fields"]
    for name, cause in (
        ("audited", "already"),
        ("A-9", "snapshot ids look like that"),
        ("a b", "use 1 to"),
    ):
        refused = call("savepoint", money, name, "--snapshot", "A-2")
        assert refused.exit_code == 2
        assert cause in refused.stderr
    assert (
        "'lost' is not a snapshot id, which looks like P1-17, and not a savepoint"
        in call("show", money, "lost").stderr
    )


def test_an_abandoned_snapshot_makes_no_savepoint(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the reason."""
    abandoned = Abandoned(SnapshotId("A", 9), Reason.DEADLINE, ("B",))
    monkeypatch.setattr(snapshots, "ask", lambda *_: Done(1, abandoned=abandoned))
    made = call("savepoint", money, "lost", "--json")
    found = json.loads(made.stdout)
    assert (made.exit_code, found["savepoint"], found["entry"]) == (1, None, None)
    assert (found["abandoned"]["reason"], found["abandoned"]["missing"]) == ("DEADLINE", ["B"])
    assert Store.open(money).savepoints == {}


def test_a_dropped_snapshot_is_gone(call: Call, money: Path) -> None:
    """By its id; a savepoint only by its name; and never the one that a restore goes back to."""
    call("savepoint", money, "audited", "--snapshot", "A-1")
    assert "delete it by that name" in call("delete", money, "A-1").stderr
    assert "A-3 was kept: it" in call("delete", money, "A-3").stderr
    assert "snapshot A-2 was deleted" in call("delete", money, "A-2").stdout
    assert json.loads(call("delete", money, "audited", "--json").stdout)["is_deleted"]
    assert [str(entry.id) for entry in Store.open(money).entries()] == ["A-3"]
    call("savepoint", money, "last", "--snapshot", "A-3")
    dropped = call("delete", money, "last")
    assert (dropped.exit_code, Store.open(money).savepoints) == (0, {})
    assert "savepoint last was deleted; snapshot A-3 is kept: it is" in dropped.stdout


def test_diff_shows_only_the_keys_that_differ(call: Call, tmp_path: Path) -> None:
    """Of a keyed field, in whatever order its keys are; and what it is based on is read."""
    path = tmp_path / "keyed"
    store = Store.create(path, description=keyed_samples.DESCRIPTION)
    store.raise_epoch(None)
    before, after = keyed_samples.nothing(), keyed_samples.nothing()
    before["accounts"] |= {"a": 1, "b": 2, "c": 3}
    after["accounts"] |= {"b": 2, "a": 5, "d": 4}
    nothing = keyed_samples.nothing()
    store.publish(
        keyed_samples.snapshot_of(
            1, [keyed_samples.whole("P", before), keyed_samples.whole("Q", nothing)]
        )
    )
    part = keyed_samples.part("P", before, after, SnapshotId("P", 1))
    store.publish(keyed_samples.snapshot_of(2, [part, keyed_samples.whole("Q", nothing)]))
    store.close()
    found = json.loads(call("diff", path, "P-1", "P-2", "--json").stdout)["fields"]
    assert {
        "process": "P",
        "field": "accounts",
        "before": {"a": 1, "c": 3},
        "after": {"a": 5, "d": 4},
    } in found
    listed = json.loads(call("list", path, "--json").stdout)["snapshots"]
    assert [(entry["bases"], entry["chain_length"]) for entry in listed] == [([], 0), (["P-1"], 1)]
    assert call("verify", path).exit_code == 0


@pytest.mark.slow
def test_a_running_system_names_and_drops(call: Call, start: Start, tmp_path: Path) -> None:
    """Its store has one writer, which does it; and with ``--keep`` old snapshots go by themselves,
    savepoints do not."""
    path = tmp_path / "money"
    running = start("run", "tests.calm:bank", "--store", path, "--every", "never", "--keep", 2)
    running.until("the system runs")
    made = call("savepoint", path, "first", "--json")
    assert made.exit_code == 0, made.stderr
    saved = json.loads(made.stdout)["entry"]["id"]
    taken = [call("snapshot", path).stdout.strip() for _ in range(5)]
    assert call("delete", path, saved).exit_code == 2
    assert call("delete", path, taken[-1]).exit_code == 2
    running.process.terminate()
    running.process.wait()
    entries = Store.open(path).entries()
    assert [str(entries[0].id), len(entries)] == [saved, 3]
    assert entries[0].savepoints == ("first",)
    assert msgspec.json.decode(call("delete", path, "first", "--json").stdout)["is_deleted"]
