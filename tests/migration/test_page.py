"""What docs/changing-code.md shows is what happens."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "changing-code.md").read_text()


def run(line: str, cwd: Path, store: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page, with the store elsewhere."""
    words = shlex.split(line.removeprefix("$ "))
    shards = {"SHARDS": words.pop(0).removeprefix("SHARDS=")} if "=" in words[0] else {}
    assert words[0] == "stillframe"
    arguments = [str(store) if word in ("tills.store", "accounts") else word for word in words[1:]]
    return subprocess.run(
        [sys.executable, "-m", "stillframe", *arguments],
        cwd=cwd,
        env=os.environ | shards,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_till_goes_on_with_new_code(tmp_path: Path) -> None:
    """Run, refused, foretold and done, with the words that the page gives for it."""
    old, new = blocks("python", PAGE)
    first, *later = blocks("console", PAGE)[0].splitlines()
    (tmp_path / "tills.py").write_text(old)
    begun = run(first, tmp_path, tmp_path / "store")
    assert begun.returncode == 0, begun.stderr
    (tmp_path / "tills.py").write_text(new)
    refused, foretold, done = (run(line, tmp_path, tmp_path / "store") for line in later)
    assert refused.returncode == 2
    assert "class Till: cents is what balance was" in refused.stderr
    assert foretold.returncode == 0, foretold.stderr
    table = " ".join(foretold.stdout.split())
    for row in ("cents is what balance was", "receipt_count begins with 0", "motto is gone lost"):
        assert row in table
    assert "LOST" in foretold.stderr
    assert done.returncode == 0, done.stderr
    assert "epoch 2: the system runs from snapshot" in done.stderr
    assert "class Till: motto is gone: what was recorded of it is lost" in done.stderr


def test_the_shards_are_split_and_merged(tmp_path: Path) -> None:
    """From two processes to four and back, from the command line, with all the money."""
    for line in blocks("console", PAGE)[1].splitlines():
        done = run(line, ROOT, tmp_path / "store")
        assert done.returncode == 0, done.stderr
    assert "processes: S2, S3 are gone" in done.stderr
    assert "conserved: 50000 money before and after" in done.stderr
