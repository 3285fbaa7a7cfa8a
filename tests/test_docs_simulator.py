"""The page on the simulator: each of its programs prints what the page shows."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "simulator.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def test_the_programs_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """One after the other, in one namespace, as in a notebook."""
    names: dict[str, Any] = {"__name__": "notebook"}
    shown = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(shown) == 9
    with contextlib.chdir(tmp_path):
        for program, expected in shown:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(program, "simulator.md", "exec"), names)
            assert printed.getvalue() == expected
