"""``pipeline detect``: predicates of pipelines, with the exit codes and words of ``detect``."""

from pathlib import Path

import pytest

from stillframe.pipeline import Manifest, Pipeline
from tests.cli.conftest import Call
from tests.cli.pipelines import add_up, commit, sell

PREDICATES = """
def amounts(view):
    found = {name: next(view.states(name)) for name in ("till", "books")}
    on_it = sum(row["amount"] for row in view.in_flight("sales"))
    return {"sold": -found["till"]["sold"], "books": found["books"]["total"], "sales": on_it}

def much(view):
    return next(view.states("books"))["total"] > 10
"""


@pytest.fixture(autouse=True)
def predicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with a module of predicates."""
    (tmp_path / "shop_predicates.py").write_text(PREDICATES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def take(shop: Pipeline) -> None:
    """Take a snapshot."""
    assert isinstance(shop.snapshot("unaligned"), Manifest)


def test_termination_is_detected(call: Call, shop: Pipeline) -> None:
    """When no record is in flight on any log."""
    take(shop)
    result = call("pipeline", "detect", shop.path, "termination")
    assert result.exit_code == 1
    assert "no: termination does not hold in shop-1: records in flight:" in result.stdout
    add_up(shop, 2)
    # Three totals, and the barrier of the first snapshot.
    commit(shop, 0, 4)
    take(shop)
    result = call("pipeline", "detect", shop.path, "termination")
    assert result.exit_code == 0
    assert "yes: termination holds in shop-2" in result.stdout


def test_a_predicate_that_is_not_stable_is_found_out(call: Call, shop: Pipeline) -> None:
    """It held, and does not hold later."""
    add_up(shop, 2)
    commit(shop, 0, 3)
    take(shop)
    sell(shop, 1)
    take(shop)
    result = call("pipeline", "detect", shop.path, "termination")
    assert result.exit_code == 3
    assert "termination is not stable: it held in snapshot shop-1 and not in shop-2" in (
        result.stdout
    )


def test_a_sum_over_states_and_channels_is_compared_with_the_oldest(
    call: Call, shop: Pipeline
) -> None:
    """Nothing is lost: each sale is in the books or in flight."""
    take(shop)
    add_up(shop, 1)
    take(shop)
    arguments = ("pipeline", "detect", shop.path, "loss", "--sum", "shop_predicates:amounts")
    result = call(*arguments)
    assert result.exit_code == 1
    assert "nothing is missing: 0 amounts" in result.stdout
    refused = call("pipeline", "detect", shop.path, "loss")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "loss needs --sum MODULE:FUNCTION" in refused.stderr


def test_a_function_of_the_user_is_evaluated(call: Call, shop: Pipeline) -> None:
    """In each snapshot of the present timeline."""
    take(shop)
    arguments = ("pipeline", "detect", shop.path, "shop_predicates:much", "--json")
    assert call(*arguments).exit_code == 1
    add_up(shop, 1)
    take(shop)
    assert call(*arguments).exit_code == 0


def test_what_cannot_be_evaluated_is_refused(call: Call, shop: Pipeline) -> None:
    """There must be a snapshot, and a predicate of that name."""
    none = call("pipeline", "detect", shop.path, "deadlock")
    assert none.exit_code == 2
    assert "holds no snapshot yet" in none.stderr
    take(shop)
    unknown = call("pipeline", "detect", shop.path, "livelock")
    assert unknown.exit_code == 2
    assert "there is no predicate 'livelock'" in unknown.stderr
    assert call("pipeline", "detect", shop.path, "deadlock").exit_code == 1
