"""The notebook of the history of a run: every cell works, and what it shows is true."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from pyspark.sql import SparkSession

mpl.use("agg")
NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "history.ipynb"
FIGURE_COUNT = 6
CELL_LINES_MAX = 15

Cell = dict[str, Any]


def cells_of(path: Path) -> list[Cell]:
    """Return the cells of a notebook."""
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def outputs_of(cells: list[Cell]) -> list[dict[str, Any]]:
    """Return what the cells of code put out, in order."""
    return [one for cell in cells if cell["cell_type"] == "code" for one in cell["outputs"]]


def execute(path: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run all cells as the docs say, with no settings of whoever runs the test."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment |= {
        "IPYTHONDIR": str(temporary / "ipython"),
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_RUNTIME_DIR": str(temporary / "runtime"),
        "TMPDIR": str(temporary),
    }
    return subprocess.run(
        [str(Path(sys.executable).with_name("jupyter")), "execute", "--inplace", path.name],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


def found(pattern: str, text: str) -> tuple[str, ...]:
    """Return the groups of the one line that looks so."""
    (groups,) = re.findall(f"^{pattern}$", text, re.MULTILINE)
    return tuple(groups)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="pipelines", only=True)
def test_every_cell_works_in_jupyter_and_what_it_shows_is_true(tmp_path: Path) -> None:
    """On a run of real processes: all snapshots are consistent, the money is the same in all of
    them, balances alone are wrong; the predicate stayed, each figure is there, and no file of the
    run is left."""
    shutil.copy(NOTEBOOK, tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    executed = tmp_path / NOTEBOOK.name
    ended = execute(executed, temporary)
    assert ended.returncode == 0, ended.stderr
    outputs = outputs_of(cells_of(executed))
    assert [one for one in outputs if one.get("name") == "stderr"] == []
    text = "".join(line for one in outputs for line in one.get("text", ()))
    assert "\x1b" not in text
    judge(text)
    figures = [one["data"]["image/png"] for one in outputs if "image/png" in one.get("data", {})]
    assert len(figures) == FIGURE_COUNT
    assert min(map(len, figures)) > 10_000
    assert list(temporary.glob("stillframe-*")) == []
    assert {path.name for path in tmp_path.iterdir()} == {"history.ipynb", "temporary"}


def judge(text: str) -> None:
    """Judge what the cells say."""
    count, _ = found(
        r"(\d+) snapshots with (\d+) messages: .* total is 5000000 in all of them", text
    )
    assert int(count) >= 2
    assert found(r"(\w+): (\d+) of (\d+) snapshots", text) == ("consistent", count, count)
    wrong, of = found(r"balances alone: wrong in (\d+) of (\d+) snapshots", text)
    assert 0 < int(wrong) <= int(of) == int(count)
    wrong, of = found(r"polling the accounts: wrong in (\d+) of (\d+) rounds", text)
    assert 0 < int(wrong) <= int(of)
    found(r"every account has paid ([1-9].*) times: first in (P1-\d+), and it stayed so", text)
    small, large = (
        found(rf"{name}: (\d+) Parquet (files)", text)[0] for name in ("store", "tables")
    )
    assert (int(small), int(large)) == (3 * int(count), 4)


@pytest.mark.slow
@pytest.mark.spark
def test_every_cell_works_and_what_it_says_is_true(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One after the other as a program, on the Spark that is active: as in Jupyter, and each figure
    is drawn. The last cell ends Spark: here it only removes the files of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    drawn = []

    def draw() -> None:
        drawn.append(plt.gcf())
        plt.gcf().canvas.draw()

    monkeypatch.setattr(plt, "show", draw)
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells_of(NOTEBOOK):
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), space)
    plt.close("all")
    judge(capsys.readouterr().out)
    assert len(drawn) == FIGURE_COUNT
    assert list(tmp_path.glob("stillframe-*")) == []


def test_the_notebook_is_kept_without_outputs() -> None:
    """What was put out once is not kept: it would be old, and change with every run."""
    cells = cells_of(NOTEBOOK)
    assert outputs_of(cells) == []
    counts = {cell["execution_count"] for cell in cells if cell["cell_type"] == "code"}
    assert counts == {None}
    assert [cell["id"] for cell in cells if cell["metadata"]] == []


def test_each_cell_is_short_and_explained() -> None:
    """Before each cell of code stands what one will see, and why; no cell fills a screen."""
    cells = cells_of(NOTEBOOK)
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2)
    long = [cell["id"] for cell in cells if len(cell["source"]) > CELL_LINES_MAX]
    assert long == []


@pytest.mark.parametrize("check", [("format", "--check"), ("check",)], ids=" ".join)
def test_the_notebook_keeps_to_the_style_of_the_code(check: tuple[str, ...]) -> None:
    """It is formatted and linted like any module."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *check, str(NOTEBOOK)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("1 file already formatted|All checks passed", done.stdout)
