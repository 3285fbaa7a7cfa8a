"""The commands of the README for a pipeline do what their comments say."""

import re
import shlex
from pathlib import Path

import pytest

from stillframe.pipeline import Pipeline
from tests.cli.conftest import Call

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_pipeline_commands_of_the_readme(
    call: Call, shop: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is taken, the pipeline goes back to it, and a second one begins from it."""
    (session,) = re.findall(
        r"^```console\n(\$ stillframe (?:spark|pipeline) snapshot .*?)^```$",
        README.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    monkeypatch.chdir(tmp_path)
    assert shop.path == tmp_path / "shop.pipeline"
    for line in session.replace("shop-17", "shop-1").splitlines():
        ended = call(*shlex.split(line, comments=True)[2:])
        assert ended.exit_code == 0, (line, ended.output)
    assert Pipeline("shop.pipeline").epoch == 2
    assert [str(one.snapshot) for one in Pipeline("shop.pipeline").snapshots()] == ["shop-1"]
    assert Pipeline("copy").epoch == 3
