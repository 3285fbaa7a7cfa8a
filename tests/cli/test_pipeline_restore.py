"""``pipeline restore`` and ``pipeline fork``: verified first, all or nothing, and what is next."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from stillframe.cli import output
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from tests.cli.conftest import Call
from tests.cli.pipelines import Books, Till, add_up, commit


@pytest.fixture
def saved(shop: Pipeline) -> Pipeline:
    """The shop with the savepoint gold, after which its books read on."""
    commit(shop, 2, 1)
    shop.savepoint("gold")
    assert add_up(shop, 2) == 18
    return shop


def test_a_stopped_pipeline_goes_back(call: Call, saved: Pipeline) -> None:
    """The epoch rises, the services stand where they stood, and the words say to start them."""
    result = call("pipeline", "restore", saved.path, "gold")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"epoch 2: pipeline {saved.path} was restored from snapshot shop-1 in" in result.stdout
    assert "its 51 B of checkpoints verified" in result.stdout
    assert "next, start its programs" in result.stdout
    assert result.stdout.endswith("each continues from there: audit, books, till\n")
    books = Books()
    with join("books", pipeline=saved.path, state=books):
        assert books.total == 5


def test_a_restore_can_be_json(call: Call, saved: Pipeline) -> None:
    """Without a name it goes to the newest of the present timeline."""
    saved.snapshot()
    done = json.loads(call("pipeline", "restore", saved.path, "--json").stdout)
    assert done.pop("seconds") > 0
    assert done.pop("version") == 2
    assert done == {"snapshot": "shop-2", "epoch": 2, "duplicate_count": 0, "byte_count": 51}


def test_a_running_pipeline_is_not_restored(
    call: Call, saved: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 names who runs, and nothing was changed."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.05)
    with join("till", pipeline=saved.path, state=Till()):
        result = call("pipeline", "restore", saved.path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "till is running" in result.stderr
    assert saved.epoch == 1


@pytest.mark.parametrize("command", ["restore", "fork"])
def test_an_edited_checkpoint_is_refused(
    call: Call, saved: Pipeline, tmp_path: Path, command: str
) -> None:
    """Every byte is verified before anything is made; the file is named."""
    edited = saved.path / "snapshots" / "shop-1" / "checkpoints" / "audit" / "commits" / "2"
    edited.write_text("v1\n[]", encoding="utf-8")
    target = [tmp_path / "second.pipeline"] if command == "fork" else []
    result = call("pipeline", command, saved.path, "gold", *target)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{edited} was changed since snapshot shop-1 was published" in result.stderr
    assert saved.epoch == 1
    assert not (tmp_path / "second.pipeline" / "pipeline.json").exists()


def test_a_fork_goes_on_beside_the_first(call: Call, saved: Pipeline, tmp_path: Path) -> None:
    """While the first runs; the second stands at the snapshot and can be given a name."""
    target = tmp_path / "second.pipeline"
    with join("till", pipeline=saved.path, state=Till()):
        result = call("pipeline", "fork", saved.path, "gold", target, "--name", "trial")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"pipeline {target}, called trial, continues from snapshot shop-1 of" in result.stdout
    assert f"start its programs with the pipeline {target}" in result.stdout
    second = Pipeline(target)
    assert (second.epoch, saved.epoch) == (2, 1)
    assert add_up(second, 2) == 18


def test_a_fork_can_be_json(call: Call, saved: Pipeline, tmp_path: Path) -> None:
    """Its name is by default that of its directory; a target that holds something is refused."""
    target = tmp_path / "second.pipeline"
    done = json.loads(call("pipeline", "fork", saved.path, "shop-1", target, "--json").stdout)
    assert (done["pipeline"], done["name"], done["epoch"]) == (str(target), "second", 2)
    again = call("pipeline", "fork", saved.path, "shop-1", target)
    assert (again.exit_code, again.stdout) == (2, "")
    assert f"{target} is not empty" in again.stderr


def test_a_terminal_shows_a_bar(
    call: Call, saved: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts the bytes that were verified."""
    terminal = io.StringIO()
    words = Console(file=terminal, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(output, "words", lambda: words)
    assert call("pipeline", "restore", saved.path).exit_code == 0
    assert "verifying snapshot shop-1" in terminal.getvalue()
    assert "51/51 bytes" in terminal.getvalue()
