"""``store detect``: the answer of ``detect``, over all epochs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillframe.cli import spark_session
from stillframe.errors import Unavailable
from tests.cli.conftest import Call, restored, rows_and_words
from tests.cli.test_detection import PURSES
from tests.shapes import same_shape

pytest.importorskip("pyspark", reason="needs PySpark")

from stillframe.analytics import predicate_history
from tests.cli.frames import frame, without_spark

HERE = ("--master", "local[2]")


def row(
    number: int, epoch: int, *, holds: bool | None, sentence: str = "seen", is_present: bool = True
) -> dict[str, Any]:
    """Return what is found in snapshot A-`number`; nothing is if it is damaged."""
    found = {"snapshot": f"A-{number}", "sequence": number, "epoch": epoch}
    found |= {"initiated_at": 999.0 + number, "completed_at": 999.02 + number}
    found |= {"is_present": is_present, "holds": holds, "sentence": sentence}
    if holds is None:
        nothing = ("sequence", "epoch", "initiated_at", "completed_at", "is_present")
        return found | dict.fromkeys(nothing) | {"failure": "damaged"}
    return found | {"failure": None}


Find = Callable[..., None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Let these rows have been found without Spark."""

    def find(*rows: dict[str, Any]) -> None:
        without_spark(monkeypatch)
        monkeypatch.setattr(predicate_history, "detect", lambda *_, **__: frame(*rows))

    return find


def test_it_says_since_when_and_what(call: Call, money: Path, find: Find) -> None:
    """A yes in the words of ``detect``, and a table, in which a yes comes first."""
    find(row(1, 1, holds=False), row(2, 1, holds=False), row(3, 1, holds=True, sentence="x" * 61))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 0
    assert rows_and_words(result.stdout) == (
        [
            ["A-3", "yes", f"{'x' * 60}...", "1"],
            ["A-1", "no", "seen", "1"],
            ["A-2", "no", "seen", "1"],
        ],
        [f"yes: loss holds in A-3, and has since A-3, of 3 snapshots: {'x' * 61}"],
    )


def test_all_epochs_are_told(call: Call, money: Path, find: Find) -> None:
    """What held before a restore is reported; a predicate that ceased to hold is not stable."""
    before = (row(1, 1, holds=False, is_present=False), row(2, 1, holds=True, is_present=False))
    find(*before, row(3, 2, holds=False, sentence="nothing is missing"))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 1
    assert rows_and_words(result.stdout)[1] == [
        "no: loss does not hold in A-3: nothing is missing",
        (
            "of all 3 snapshots in 2 epochs it held first in A-2, in epoch 1; it held in 1 epoch "
            "and stayed in each"
        ),
    ]
    lost = (row(4, 3, holds=True, is_present=False), row(5, 3, holds=False, is_present=False))
    find(*before, *lost, row(6, 4, holds=True))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 3
    assert (
        "not decided: loss is not stable: it held in snapshot A-4 and not in A-5" in result.stdout
    )
    assert "it held first in A-2, in epoch 1; it held in 3 epochs\n" in result.stdout
    find(before[0], row(3, 2, holds=False))
    result = call("store", "detect", money, "loss")
    assert result.stdout.endswith("of all 2 snapshots in 2 epochs it held in none\n")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_says_what_detect_says_and_more(call: Call, tmp_path: Path, find: Find) -> None:
    """The same words, exit code and document, with the epochs and a row for each snapshot, also for
    a damaged one. A present epoch without snapshots is what it began from."""
    path = tmp_path / "restored"
    restored(path, 2).close()
    alone = call("detect", path, "loss", *PURSES, "--json")
    result = call("store", "detect", path, "loss", *PURSES, *HERE, "--json")
    assert (result.exit_code, result.stderr) == (alone.exit_code, alone.stderr)
    assert alone.stderr.startswith("yes: loss holds in A-2, and has since A-2, of 1 snapshot: ")
    found, of_one = json.loads(result.stdout), json.loads(alone.stdout)
    assert {name: found[name] for name in of_one} == of_one
    assert (found["first_of_all"], len(found["snapshots"])) == ("A-2", 2)
    assert found["epochs"] == [{"epoch": 1, "snapshot_count": 2, "first": "A-2"}]
    manifest = path / "snapshots" / "A-1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"A", b"B", 1))
    damaged = call("store", "detect", path, "loss", *PURSES, *HERE, "--json")
    assert (damaged.exit_code, "not evaluated, damaged: A-1\n" in damaged.stderr) == (2, True)
    find(row(1, 1, holds=False, is_present=False), row(2, 1, holds=True))
    canned = call("store", "detect", path, "loss", "--json")
    same_shape(json.loads(canned.stdout), found)
    find(row(1, 1, holds=None), row(2, 1, holds=False))
    canned = call("store", "detect", path, "loss", "--json")
    same_shape(json.loads(canned.stdout), json.loads(damaged.stdout))


def test_a_damaged_snapshot_is_named_after_the_answer(call: Call, money: Path, find: Find) -> None:
    """Exit 2, though the others say yes; of many the first are named."""
    find(*(row(n, 1, holds=None, sentence="no") for n in range(1, 8)), row(8, 1, holds=True))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 2
    rows, (yes, left_out) = rows_and_words(result.stdout)
    assert yes.startswith("yes: loss holds in A-8")
    assert left_out == "not evaluated, damaged: A-1, A-2, A-3, A-4, A-5 and 2 more"
    assert result.stderr == "Error: snapshot A-1 could not be evaluated: no\n"
    assert [row[1] for row in rows] == [*"???????", "yes"]


def test_if_none_can_be_asked_nothing_is_decided(call: Call, money: Path, find: Find) -> None:
    """It is not known, which is said, and what is damaged."""
    find(row(1, 1, holds=None, sentence="no"))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 2
    assert rows_and_words(result.stdout)[1][0] == (
        "not decided: no snapshot of the present epoch could be evaluated for loss"
    )


def test_the_table_is_capped(call: Call, money: Path, find: Find) -> None:
    """20 of 30 rows are shown, which is said."""
    find(*(row(number, 1, holds=number > 29) for number in range(1, 31)))
    result = call("store", "detect", money, "loss")
    assert result.exit_code == 0
    rows, words = rows_and_words(result.stdout)
    assert (len(rows), words[0]) == (20, "and 10 more snapshots (--json has all)")


def test_without_spark_it_says_what_to_install(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(*_: Any, **__: Any) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(spark_session, "spark_session", unavailable)
    result = call("store", "detect", money, "loss", *PURSES)
    assert (result.exit_code, "pip install 'stillframe[spark]'" in result.stderr) == (2, True)
