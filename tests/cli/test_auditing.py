"""``store audit``: the verdict as an exit code, a table that is capped, and JSON."""

import json
from pathlib import Path

import pytest

from stillframe.cli import analytics
from stillframe.errors import Damaged, Unavailable
from stillframe.model import SnapshotId
from tests.cli.conftest import Call
from tests.shapes import same_shape

audits = pytest.importorskip("stillframe.analytics.audit", reason="needs PySpark")


def pretend(monkeypatch: pytest.MonkeyPatch, *, wrong: int | None) -> None:
    """Let Spark have found 30 snapshots, the one with number `wrong` contradicting itself."""
    rows = tuple(
        audits.SnapshotAudit(
            id=SnapshotId("A", number),
            sequence=number,
            message_count=5,
            states_amount=1995,
            messages_amount=5,
            total=2000,
            difference=0,
            contradiction="channel A->B: 5 sent" if number == wrong else None,
        )
        for number in range(1, 31)
    )
    found = audits.Audit(ok=wrong is None, verdict="the verdict of Spark", snapshots=rows)
    monkeypatch.setattr(analytics, "check_is_store", lambda _: None)
    monkeypatch.setattr(analytics, "audit_store", lambda *_, **__: found)


def test_a_good_store_is_a_yes_with_a_capped_table(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 of 30 rows are shown, which is said."""
    pretend(monkeypatch, wrong=None)
    result = call("store", "audit", "store")
    assert result.exit_code == 0
    assert result.stdout.count("valid") == 20
    assert "and 10 more snapshots (--json has all)" in result.stdout
    assert "PASS: the verdict of Spark" in result.stdout


def test_what_is_wrong_comes_first(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap never hides the snapshot that is wrong; exit 1."""
    pretend(monkeypatch, wrong=30)
    result = call("store", "audit", "store")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2].startswith("A-30       channel A->B: 5 sent")
    assert "FAIL: the verdict of Spark" in result.stdout


def test_json_has_every_snapshot(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document, nothing capped."""
    pretend(monkeypatch, wrong=30)
    result = call("store", "audit", "store", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], len(found["snapshots"])) == (1, False, 30)
    assert found["snapshots"][29]["contradiction"] == "channel A->B: 5 sent"


def test_without_spark_it_says_what_to_install(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(analytics, "check_is_store", lambda _: None)
    monkeypatch.setattr(analytics, "audit_store", unavailable)
    result = call("store", "audit", "store")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "Error: PySpark is not installed: pip install 'stillframe[spark]'\n"
    )


def test_a_damaged_store_is_a_no(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it can be audited: exit 1 with what is damaged, as for 'stillframe verify'."""

    def damaged(*_: object, **__: object) -> None:
        raise Damaged("store.json was changed since it was written")

    monkeypatch.setattr(analytics, "check_is_store", lambda _: None)
    monkeypatch.setattr(analytics, "audit_store", damaged)
    result = call("store", "audit", "store", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["snapshots"]) == (False, [])
    assert found["verdict"] == "store.json was changed since it was written"
    assert "FAIL: store.json was changed" in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_agrees_about_a_real_store(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of A-1 and A-2 are equal and A-3 has a coin too many: exit 1, and it is named."""
    sums = ("--states", "sum(balance)", "--messages", "sum(amount)")
    result = call("store", "audit", money, *sums, "--json")
    assert result.exit_code == 1
    assert "FAIL: snapshot A-3" in result.stderr
    pretend(monkeypatch, wrong=None)
    canned = call("store", "audit", "store", "--json")
    same_shape(json.loads(canned.stdout), json.loads(result.stdout))
