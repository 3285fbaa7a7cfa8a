"""The oldest versions of frameworks that ``pyproject.toml`` names, installed aside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = ("fastapi", "httpx", "starlette", "uvicorn")
OURS = ("STILLFRAME_", "PYTEST_")


def oldest() -> list[str]:
    """Return the requirement of the oldest version of each framework."""
    text = (ROOT / "pyproject.toml").read_text()
    found = dict(re.findall(rf'"({"|".join(FRAMEWORKS)})>=([\d.]+)"', text))
    assert found.keys() == set(FRAMEWORKS)
    return [f"{name}=={version}" for name, version in found.items()]


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
def test_every_kind_of_endpoint_is_the_same_with_the_oldest_versions(tmp_path: Path) -> None:
    """What is one step there is one step here, and what is not is noted."""
    variables = {name: one for name, one in os.environ.items() if not name.startswith(OURS)}
    aside = tmp_path / "oldest"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", aside, *oldest()],
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
