"""The oldest versions of frameworks that ``pyproject.toml`` names, and other servers, installed
aside."""

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
SERVERS = {"hypercorn": "0.18.0", "granian": "2.8.9"}
HTTP2 = "4.4.1"
"""The version of h2, which httpx needs for HTTP/2."""


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


def test_the_page_has_the_servers() -> None:
    """With the versions that are tested."""
    lines = PAGE.read_text().splitlines()
    for name, one in SERVERS.items():
        assert f"| {name} | {one} | 1.1 and 2 |" in lines


def install(aside: Path, requirements: dict[str, str]) -> Path:
    """Install versions of packages into a directory; return it."""
    named = [f"{name}=={one}" for name, one in requirements.items()]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", aside, *named],
        env=environment(),
        check=True,
    )
    return aside


def environment() -> dict[str, str]:
    """Return the variables of programs that are not part of this run."""
    return {name: one for name, one in os.environ.items() if not name.startswith(OURS)}


def check(aside: Path, tests: tuple[str, ...], variables: dict[str, str]) -> None:
    """Run tests of services with what is installed in a directory."""
    path = os.pathsep.join(map(str, [aside, ROOT / "src", ROOT]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *(f"tests/services/{name}.py" for name in tests),
        ],
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
def test_every_kind_of_endpoint_is_the_same_with_the_oldest_versions(tmp_path: Path) -> None:
    """What is one step there is one step here, and what is not is noted."""
    aside = install(tmp_path, versions("pyproject.toml", ">="))
    check(aside, ("test_endpoints",), {})


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
@pytest.mark.parametrize("server", SERVERS)
def test_every_kind_of_endpoint_is_the_same_with_other_servers(server: str, tmp_path: Path) -> None:
    """With HTTP/1.1 and 2; totals are exact, and mistakes are found."""
    aside = install(tmp_path, {server: SERVERS[server], "h2": HTTP2})
    for http in ("1", "2"):
        variables = {"TESTED_SERVER": server, "TESTED_HTTP": http}
        check(aside, ("test_endpoints", "test_http"), variables)
