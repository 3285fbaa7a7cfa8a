"""The oldest versions of frameworks that ``pyproject.toml`` names, installed aside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "services.md"
FRAMEWORKS = ("fastapi", "starlette", "httpx", "uvicorn")
OURS = ("STILLFRAME_", "PYTEST_")


def versions(file: str, operator: str) -> dict[str, str]:
    """Return the version of each framework in a file with requirements."""
    text = (ROOT / file).read_text()
    return dict(re.findall(rf"(?<![\w-])({'|'.join(FRAMEWORKS)}){operator}([\d.]+)", text))


def test_the_page_has_the_versions() -> None:
    """Those of this check, and the oldest."""
    lines = PAGE.read_text().splitlines()
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = {cells[0]: cells for cells in tables}
    names = next(cells for cells in tables if "fastapi" in cells)
    for row, found in (
        ("newest", versions("requirements.lock", "==")),
        ("oldest", versions("pyproject.toml", ">=")),
    ):
        shown = dict(zip(names, rows[row], strict=True))
        assert {name: shown[name] for name in FRAMEWORKS} == found


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
def test_every_kind_of_endpoint_is_the_same_with_the_oldest_versions(tmp_path: Path) -> None:
    """What is one step there is one step here, and what is not is noted."""
    variables = {name: one for name, one in os.environ.items() if not name.startswith(OURS)}
    aside = tmp_path / "oldest"
    oldest = [f"{name}=={one}" for name, one in versions("pyproject.toml", ">=").items()]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", aside, *oldest],
        env=variables,
        check=True,
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            "tests/services/test_endpoints.py",
        ],
        cwd=ROOT,
        env=variables | {"PYTHONPATH": os.pathsep.join(map(str, [aside, ROOT / "src", ROOT]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
