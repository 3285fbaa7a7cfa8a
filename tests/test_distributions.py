"""The source distribution can be tested, and the wheel needs no checkout."""

import itertools
import json
import re
import shlex
import signal
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from stillframe.cli.reference import reference
from tests.doc_pages import blocks
from tests.wheels import ROOT, Distributions, environment, metadata_of, outside

pytestmark = pytest.mark.slow

TRACKED = ("bench", "docs", "examples", "scripts", "src", "tests")
"""The directories of which every file is in the source distribution."""


def files_of(*directories: str) -> set[str]:
    """Return the files in directories of this checkout, without compiled modules."""
    return {
        path.relative_to(ROOT).as_posix()
        for directory in directories
        for path in (ROOT / directory).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_source_distribution_has_every_file_and_passes_tests(
    distributions: Distributions, tmp_path: Path
) -> None:
    """Sources, tests, documents and scripts are there; tests run on its own sources."""
    with tarfile.open(distributions.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    assert files_of(*TRACKED) - found == set()
    assert found >= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "requirements.lock"}
    assert (unpacked / "check").stat().st_mode & 0o111
    tests = ["tests/test_model.py", "tests/test_docs_blocks.py", "tests/test_changelog.py"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def test_the_wheel_has_every_module_and_asset_and_nothing_else(
    distributions: Distributions,
) -> None:
    """It holds ``src/stillframe``, ``py.typed`` and the pages included, and its metadata."""
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert package == {name.removeprefix("src/") for name in files_of("src")}
    assert package > {"stillframe/py.typed", "stillframe/pages/assets/index.html"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_metadata_are_those_of_a_package_index(distributions: Distributions) -> None:
    """Every field is well formed, the README is the description, and extras are for users."""
    metadata = Metadata.from_email(metadata_of(distributions.wheel), validate=True)
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    extras = "hdfs kafka notebook object-store otel png services spark sql tls".split()
    assert metadata.provides_extra == extras
    assert "Typing :: Typed" in (metadata.classifiers or [])


@pytest.fixture(scope="module")
def programs(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of programs of an environment with the plain wheel."""
    return environment(tmp_path_factory.mktemp("plain"), distributions.wheel)


def test_an_environment_with_the_wheel_has_nothing_of_the_checkout(
    programs: Path, tmp_path: Path
) -> None:
    """The package is the installed one, and packages that it does not require are not there."""
    look = "import stillframe, sys; print(stillframe.__file__, *sys.path, sep='\\n')"
    said = subprocess.run(
        [programs / "python", "-c", look],
        cwd=tmp_path,
        env=outside(programs),
        capture_output=True,
        text=True,
        check=True,
    )
    where, *paths = said.stdout.splitlines()
    assert Path(where).is_relative_to(programs.parent)
    assert not [path for path in paths if Path(path).is_relative_to(ROOT)]
    missing = subprocess.run(
        [programs / "python", "-c", "import pytest"],
        env=outside(programs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'pytest'" in missing.stderr


EXAMPLES = re.findall(r"^    stillframe (.+)$", reference(), re.MULTILINE)
"""The examples of all help texts, without the name of the program."""
RUNS = {"view lecture --out lecture.html": 0, "sim run --seeds 1..20": 0, "sim script lecture": 0}
RUNS["sim explore --network reordering"] = 1
"""The exit code of each example that ends and needs nothing."""
FOREVER = "run stillframe.examples.bank:bank --store money --interval 250ms"
CALL_EACH = """
import contextlib, io, json, os, shlex, sys
from stillframe.__main__ import main
for line in json.load(sys.stdin):
    sys.argv = ["stillframe", *shlex.split(line)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
    print(json.dumps([line, code, out.getvalue(), err.getvalue()]))
"""
"""A program that calls the command line with each command that it reads."""


def test_each_example_of_the_help_runs_or_names_what_is_missing(
    programs: Path, tmp_path: Path
) -> None:
    """Without extras and in an empty directory: what needs neither does what it says; all others
    end with 2, and name the extra, or the file or directory of the example that does not exist."""
    called = subprocess.run(
        [programs / "python", "-c", CALL_EACH],
        input=json.dumps([one for one in EXAMPLES if one != FOREVER]),
        cwd=tmp_path,
        env=outside(programs),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(EXAMPLES) > 60
    assert RUNS.keys() | {FOREVER} <= set(EXAMPLES)
    for example, code, out, err in map(json.loads, called.stdout.splitlines()):
        if example in RUNS:
            assert (code, bool(out + err)) == (RUNS[example], True), (example, err)
            continue
        places = "|".join(map(re.escape, shlex.split(example)))
        named = rf"({places})( does not exist| holds no |: No such file| cannot be read)"
        named += rf"|there is no \w+ ({places})|pip install 'stillframe\["
        assert (code, out) == (2, ""), example
        assert re.search(named, err), (example, err)
    assert {path.name for path in tmp_path.iterdir()} == {"lecture.html"}
    with subprocess.Popen(
        [programs / "stillframe", *shlex.split(FOREVER)],
        cwd=tmp_path,
        env=outside(programs),
        stderr=subprocess.PIPE,
        text=True,
    ) as system:
        assert system.stderr is not None
        said = "".join(itertools.takewhile(lambda line: "published" not in line, system.stderr))
        system.send_signal(signal.SIGTERM)
        said += system.stderr.read()
    assert system.returncode == 0, said
    assert "to continue from snapshot P1-" in said


def test_the_install_commands_work(tmp_path: Path) -> None:
    """From a checkout and from the address of a repository; what they would download is here. The
    README has the first one."""
    page = (ROOT / "docs" / "install.md").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (session,) = (one for one in blocks("console", page) if one.startswith("$ pip install"))
    (short,) = blocks("console", (ROOT / "README.md").read_text())[:1]
    assert shlex.split(short, comments=True) == shlex.split(session.split("\n")[0], comments=True)
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "there.pth").write_text("\n".join(site.getsitepackages()))
    pip = {
        "NO_BUILD_ISOLATION": "0",
        "NO_DEPS": "1",
        "NO_INDEX": "1",
        "NO_COMPILE": "1",
        "FORCE_REINSTALL": "1",
    }
    variables = {f"PIP_{name}": value for name, value in pip.items()}
    variables["PIP_PYTHON"] = str(tmp_path / "venv" / "bin" / "python")
    for line in session.replace("ADDRESS", f"file://{ROOT}").splitlines():
        _, *command = shlex.split(line, comments=True)
        subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**outside(Path(sys.executable).parent), **variables},
            capture_output=True,
            check=True,
        )
        program = tmp_path / "venv" / "bin" / "stillframe"
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"stillframe {version}\n"
        program.unlink()
