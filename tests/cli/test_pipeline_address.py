"""The commands of pipelines take the address of one in an object store."""

import json
import secrets

from stillframe.pipeline import Pipeline
from stillframe.storage.location import locate
from tests.cli.conftest import Call
from tests.pipeline.money import TOTAL, leave_behind, line, money_now


def test_a_pipeline_at_an_address(call: Call) -> None:
    """Taken, listed, shown, forked, restored and deleted."""
    root = f"memory://test-{secrets.token_hex(8)}/shop"
    leave_behind(line(locate(root)), 5, 7)
    assert call("pipeline", "savepoint", root, "first").stdout == "shop-1\n"
    assert call("pipeline", "snapshot", root, "--keep", "1").stdout == "shop-2\n"
    listed = call("pipeline", "list", root, "--json")
    assert json.loads(listed.stdout)["pipeline"] == root
    assert "till" in call("pipeline", "show", root, "first").stdout
    assert call("pipeline", "status", root).exit_code == 0
    assert call("pipeline", "fork", root, "first", f"{root}-trial").exit_code == 0
    assert call("pipeline", "delete", root, "first").exit_code == 0
    assert call("pipeline", "restore", root).exit_code == 0
    assert money_now(Pipeline(root)) == money_now(Pipeline(f"{root}-trial")) == TOTAL
