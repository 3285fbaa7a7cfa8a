"""What docs/changing-code.md shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import blocks, called
from tests.nightly import by_night

pytestmark = [pytest.mark.slow, pytest.mark.nightly(part="soak")]

ROOT = Path(__file__).parent.parent.parent
FOR = ("--duration 1s", by_night("--duration 1s", check="--duration 200ms"))
PAGE = (ROOT / "docs" / "changing-code.md").read_text()


def command_of(line: str, store: Path) -> str:
    """Return a command of the page with the store elsewhere; by day it runs not as long."""
    return re.sub(r"tills\.store|\baccounts\b", str(store), line.removeprefix("$ ")).replace(*FOR)


def test_the_till_goes_on_with_new_code(tmp_path: Path) -> None:
    """Run, refused, foretold and done, with the words that the page gives for it."""
    old, new = blocks("python", PAGE)
    first, *later = blocks("console", PAGE)[0].splitlines()
    (tmp_path / "tills.py").write_text(old)
    begun = called(command_of(first, tmp_path / "store"), tmp_path)
    assert begun.exit_code == 0, begun.stderr
    (tmp_path / "tills.py").write_text(new)
    refused, foretold, done = (
        called(command_of(line, tmp_path / "store"), tmp_path) for line in later
    )
    assert refused.exit_code == 2
    assert "class Till: cents was renamed from balance" in refused.stderr
    assert foretold.exit_code == 0, foretold.stderr
    table = " ".join(foretold.stdout.split())
    for row in (
        "cents was renamed from balance",
        "receipt_count begins with 0",
        "motto was removed lost",
    ):
        assert row in table
    assert "LOST" in foretold.stdout
    assert done.exit_code == 0, done.stderr
    assert "epoch 2: the system runs from snapshot" in done.stderr
    assert "class Till: motto was removed: its recorded values are lost" in done.stderr


def test_the_shards_are_split_and_merged(tmp_path: Path) -> None:
    """From two processes to four and back, from the command line, with all the money."""
    for line in blocks("console", PAGE)[1].splitlines():
        words = command_of(line, tmp_path / "store").split()
        shards = {"SHARDS": words.pop(0).removeprefix("SHARDS=")} if "=" in words[0] else {}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | shards,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "processes: S2, S3: removed" in done.stderr
    assert "conserved: 50000 money before and after" in done.stderr
