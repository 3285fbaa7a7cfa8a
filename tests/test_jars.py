"""The jars that tests need (``scripts/jars.py``)."""

import hashlib
import re
from pathlib import Path

import httpx
import pytest

from scripts import jars

DEPENDENCY = re.compile(r'org="([^"]+)" name="([^"]+)" rev="([^"]+)"')


def list_one(kind: str, content: bytes, path: Path) -> Path:
    """Write a list of one jar with this content."""
    digest = hashlib.sha256(content).hexdigest()
    path.write_text(f"{digest}  {kind}/org/one/2/one-2.jar\n{digest}  other/org/one/2/one-2.jar\n")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Maven Central is asked for: it answers with "content", or has no such file."""
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        is_there = request.url.path == "/maven2/org/one/2/one-2.jar"
        return httpx.Response(200 if is_there else 404, content=b"content")

    monkeypatch.setattr(httpx, "HTTPTransport", lambda retries: httpx.MockTransport(answer))
    return paths


def test_the_jars_of_a_kind_are_downloaded(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other kinds are not."""
    monkeypatch.setattr(jars, "LIST", list_one("kafka", b"content", tmp_path / "list"))
    jars.get(tmp_path / "new", ["kafka"])
    assert asked == ["/maven2/org/one/2/one-2.jar"]
    assert (tmp_path / "new" / "kafka" / "one-2.jar").read_bytes() == b"content"
    assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new" / "kafka"]


@pytest.mark.usefixtures("asked")
def test_another_file_than_the_listed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names its address."""
    monkeypatch.setattr(jars, "LIST", list_one("kafka", b"expected", tmp_path / "list"))
    with pytest.raises(SystemExit, match=r"one-2\.jar is not the file that list lists"):
        jars.get(tmp_path / "new", ["kafka"])
    assert not [*(tmp_path / "new" / "kafka").iterdir()]


@pytest.mark.usefixtures("asked")
def test_a_file_that_is_missing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so."""
    listed = list_one("kafka", b"content", tmp_path / "list")
    listed.write_text(listed.read_text().replace("org/one", "org/none"))
    monkeypatch.setattr(jars, "LIST", listed)
    with pytest.raises(SystemExit, match=r"lacks a file.*404"):
        jars.get(tmp_path / "new", ["kafka"])


@pytest.mark.parametrize("name", ["jars", "hdfs"])
def test_every_dependency_is_listed(name: str) -> None:
    """At its version: otherwise the list is to be made anew."""
    listed = jars.LIST.read_text()
    named = DEPENDENCY.findall((jars.SCRIPTS / f"{name}.xml").read_text())
    assert named
    for organisation, module, version in named:
        path = f"/{organisation.replace('.', '/')}/{module}/{version}/{module}-{version}.jar\n"
        assert path in listed
