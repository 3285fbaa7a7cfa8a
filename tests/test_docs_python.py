"""The page on Python: its module and its programs print what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """One after the other, in a program that runs real processes."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (_, module), *programs = (one for one in blocks if one[0] == "python")
    (tmp_path / "bank.py").write_text(module)
    (tmp_path / "drive.py").write_text("".join(program for _, program in programs))
    done = subprocess.run(
        [sys.executable, "drive.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(text for language, text in blocks if language == "text")
    assert len(programs) == 5
