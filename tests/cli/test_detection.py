"""``detect``: stable predicates on the snapshots of a store."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stillframe import SnapshotId
from stillframe.cli import output
from stillframe.detect import predicate
from stillframe.detect.view import SnapshotView
from stillframe.model import Snapshot
from stillframe.store.store import Store
from tests.cli.conftest import Call, Coin, Purse, publish, purses, restored, state_of
from tests.cli.test_store_commands import change_a_byte

PURSES = ("--topology", "tests.cli.conftest:purses")


def is_rich(view: SnapshotView) -> bool:
    """Whether A has more than anybody needs: it may spend it again, so this is not stable."""
    balance: int = view.processes["A"].balance
    return balance > 90


def names(view: SnapshotView) -> str:
    """Not a predicate."""
    return str(view.snapshot)


def test_it_says_since_when_and_what(call: Call, money: Path) -> None:
    """A yes names the snapshot in which it held first, and what is found in the newest."""
    result = call("detect", money, "loss", *PURSES)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "yes: loss holds in A-3, and has since A-3, of 3 snapshots: "
        "1 coins too much: A 95, B 100, A->B 6\n"
    )


def test_a_no_says_what_it_sees(call: Call, money: Path) -> None:
    """It exits with 1."""
    result = call("detect", money, "termination", *PURSES)
    assert result.exit_code == 1
    assert result.stdout == ("no: termination does not hold in A-3: messages in transit: A->B 5\n")


dropped: list[Path] = []


def drops_the_oldest(view: SnapshotView) -> bool:
    """Answer no, and delete a snapshot as ``run --keep`` may at that moment."""
    while dropped:
        shutil.rmtree(dropped.pop())
    return False


@pytest.mark.parametrize("predicate", ["tests.cli.test_detection:drops_the_oldest", "loss"])
def test_what_is_dropped_meanwhile_is_passed_over(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch, predicate: str
) -> None:
    """A system that runs with ``--keep`` drops snapshots while they are looked at."""
    gone = money / "snapshots" / ("A-2" if "drops" in predicate else "A-1")
    if predicate == "loss":
        load = Store.load

        def drop_first(store: Store, snapshot: SnapshotId) -> Snapshot:
            shutil.rmtree(gone, ignore_errors=True)
            return load(store, snapshot)

        monkeypatch.setattr(Store, "load", drop_first)
    else:
        dropped.append(gone)
    result = call("detect", money, predicate, *PURSES, "--json")
    assert result.stdout, result.stderr
    found = json.loads(result.stdout)
    assert not gone.exists()
    assert (found["snapshot"], found["snapshot_count"]) == ("A-3", 2)


def test_the_answer_can_be_json(call: Call, money: Path) -> None:
    """One document, for a yes and for a no."""
    found = json.loads(call("detect", money, "loss", *PURSES, "--json").stdout)
    assert (found["holds"], found["snapshot"], found["first"]) == (True, "A-3", "A-3")
    found = json.loads(call("detect", money, "deadlock", *PURSES, "--json").stdout)
    assert (found["holds"], found["first"], found["snapshot_count"]) == (False, None, 3)
    assert (found["found"], found["not_stable"]) == ("no processes keep each other blocked", None)


def test_a_loss_needs_two_snapshots(call: Call, tmp_path: Path) -> None:
    """The first one has nothing to be compared with."""
    store = Store.create(tmp_path / "new", description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(95, "", []))
    store.close()
    result = call("detect", tmp_path / "new", "loss", *PURSES)
    assert result.exit_code == 3
    assert "not decided: loss compares with the oldest snapshot, and there is none but A-1" in (
        result.stdout
    )


def test_a_predicate_of_ones_own_that_is_not_stable_is_told(call: Call, tmp_path: Path) -> None:
    """It held once and does not any more: then it can say nothing of now."""
    path = tmp_path / "spent"
    store = Store.create(path, description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(95, "", []))
    publish(store, 2, state_of(5, "", []))
    store.close()
    result = call("detect", path, f"{__name__}:is_rich", *PURSES)
    assert result.exit_code == 3
    assert "is_rich is not stable: it held in snapshot A-1 and not in A-2" in result.stdout
    found = json.loads(call("detect", path, f"{__name__}:is_rich", *PURSES, "--json").stdout)
    assert found["not_stable"] == ["A-1", "A-2"]


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        ("love", "there is no predicate 'love': give one of termination, deadlock, loss; or"),
        (f"{__name__}:names", "names returned 'A-1', a str, on snapshot A-1: return True or False"),
        (f"{__name__}:none", f"{__name__} has no function 'none'"),
        (
            "select balance from processes",
            "returns (95,), (100,) in snapshot A-1: it must return one",
        ),
        ("select 1 = 2 from nowhere", "Table with name nowhere does not exist"),
        ("select true where false", "returns no row in snapshot A-1: it must return one row"),
        ("select sum(amount) > 1 from messages where false", "write coalesce(sum(...), 0)"),
        ("withdrawals:all_paid", "there is no module 'withdrawals' here"),
    ],
)
def test_what_is_no_predicate_is_refused(
    call: Call, money: Path, predicate: str, words: str
) -> None:
    """The error says what to give."""
    result = call("detect", money, predicate, *PURSES)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_question_can_be_sql(call: Call, money: Path) -> None:
    """Over states and messages together, without the program's classes."""
    owned = "(select sum(balance) from processes) + (select sum(amount) from messages)"
    result = call("detect", money, f"select {owned} > 200")
    assert result.exit_code == 0
    assert "holds in A-3, and has since A-3, of 3 snapshots" in result.stdout
    assert call("detect", money, f"select {owned} > 201").exit_code == 1


def test_sql_is_asked_of_what_was_written(call: Call, money: Path) -> None:
    """A changed byte is found before it is believed."""
    change_a_byte(money / "snapshots" / "A-2" / "messages.parquet")
    result = call("detect", money, "select count(*) > 0 from messages")
    assert (result.exit_code, "messages.parquet was changed" in result.stderr) == (2, True)


def test_sql_is_asked_of_this_store(call: Call, money: Path, tmp_path: Path) -> None:
    """Also if its name looks like a pattern that fits another one."""
    strange = money.rename(tmp_path / "s[12]")
    (tmp_path / "s1" / "snapshots").mkdir(parents=True)
    assert call("detect", strange, "select count(*) = 2 from processes").exit_code == 0


def test_what_held_before_a_restore_does_not_count(call: Call, tmp_path: Path) -> None:
    """The present epoch alone says something of now; of one without a snapshot yet, the snapshot
    from which it began."""
    path = tmp_path / "restored"
    store = restored(path, 1)
    whole = call("detect", path, "loss", *PURSES)
    assert (whole.exit_code, "no: loss does not hold in A-1" in whole.stdout) == (1, True)
    publish(store, 3, state_of(94, "", []))
    store.close()
    lost = call("detect", path, "loss", *PURSES)
    assert "yes: loss holds in A-3, and has since A-3, of 1 snapshot" in lost.stdout


def test_one_of_two_that_overlap_is_enough(call: Call, tmp_path: Path) -> None:
    """The cut of the snapshot that was published last may lie before that of the other."""
    path = tmp_path / "overlap"
    store = Store.create(path, description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(100, "", []))
    for number, (begun, done, balance) in enumerate([(1.1, 1.2, 99), (1.0, 2.0, 100)], 2):
        state = state_of(balance, "", [])
        store.publish(Snapshot(SnapshotId("A", number), 1, 1000 + begun, 1000 + done, state))
    store.close()
    result = call("detect", path, "loss", *PURSES)
    assert (result.exit_code, "yes: loss holds in A-2" in result.stdout) == (0, True)


def test_the_topology_must_be_that_of_the_store(call: Call, money: Path, empty: Path) -> None:
    """One that does not say of which it is needs the option; another one is refused."""
    assert "give --topology MODULE:TOPOLOGY" in call("detect", money, "loss").stderr
    other = call("detect", money, "loss", "--topology", "stillframe.examples.bank:bank")
    assert "with a different topology from stillframe.examples.bank:bank" in other.stderr
    nothing = call("detect", empty, "loss", *PURSES)
    assert (nothing.exit_code, "holds no snapshot yet" in nothing.stderr) == (2, True)


def test_where_nothing_is_conserved_nothing_can_be_lost(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better a question back than a no that means nothing."""
    for kind in (Coin, Purse):
        monkeypatch.delattr(kind, "conserved")
    words = call("detect", money, "loss", *PURSES).stderr
    assert "in snapshot A-1 no process or message holds a conserved quantity" in words


def test_a_terminal_shows_how_many_snapshots_were_evaluated(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment when the first one is read: that one is the oldest, which loss needs."""
    terminal = io.StringIO()
    words = Console(file=terminal, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(output, "words", lambda: words)
    began: list[str] = []
    resolve = predicate.resolve_predicate

    def resolve_later(*arguments: Any) -> predicate.Evaluate:
        began.append(terminal.getvalue())
        return resolve(*arguments)

    monkeypatch.setattr(predicate, "resolve_predicate", resolve_later)
    assert call("detect", money, "loss", *PURSES).exit_code == 0
    assert "evaluating snapshots" in began[0]
    assert "0/3" in began[0]
    assert "3/3" in terminal.getvalue()
