"""The page on a snapshot as a page: its commands run, on what the README's program did."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import blocks, called
from tests.store.call_samples import deadlocked, stored
from tests.test_docs import README, ROOT

STILLFRAME = Path(sys.executable).with_name("stillframe")
PAGE = ROOT / "docs" / "snapshot-view.md"
RUN = "run bank:bank --store bank.store --event-log bank.log --every 50ms --duration 1s"


@pytest.mark.slow
def test_the_commands_of_the_page_write_what_it_says(tmp_path: Path) -> None:
    """Each ends with 0, and its file is there; the one with a log has the steps."""
    program, _ = blocks("python", README.read_text())
    (tmp_path / "bank.py").write_text(program)
    shown = "\n".join(blocks("console", PAGE.read_text()))
    commands = re.findall(r"^\$ (stillframe .*)$", shown, re.MULTILINE)
    assert len(commands) >= 6
    stored(tmp_path / "seen", deadlocked(17))
    ran = subprocess.run([STILLFRAME, *RUN.split()], cwd=tmp_path, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for command in commands:
        done = called(command, tmp_path)
        assert done.exit_code == 0, (command, done.stderr)
        words = command.split()
        assert (tmp_path / words[words.index("--out") + 1]).stat().st_size > 1000
    assert "its first: after" in (tmp_path / "p3.html").read_text(encoding="utf-8")
