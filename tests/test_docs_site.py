"""The site of the documents is built without a warning, and every link in it leads somewhere."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
STRICT = ("--fail-on-warning", "--keep-going", "--nitpicky", "--quiet")


class Page(HTMLParser):
    """Collects what a page can be entered by, and where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the ids and the links of a tag."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the site, built as ``scripts/docs`` does."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *STRICT, "-c", "docs", ".", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return every page of the site, read."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        found[path] = Page()
        found[path].feed(path.read_text(encoding="utf-8"))
    return found


def leads_nowhere(path: Path, target: str, pages: dict[Path, Page]) -> str:
    """Return why a link of a page leads nowhere, or nothing."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        is_formed = parts.scheme == "https" and "." in parts.netloc and " " not in target
        return "" if is_formed else f"{path.name}: {target} is no https address"
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.exists():
        return f"{path.name}: there is no {target}"
    if parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
        return f"{path.name}: there is no anchor {target}"
    return ""


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    """What is on the site is followed; of what is outside only the form is looked at, since the
    machine that tests may have no network."""
    found = [
        leads_nowhere(path, target, pages)
        for path, page in pages.items()
        for target in page.targets
    ]
    assert [reason for reason in found if reason] == []
    assert sum(len(page.targets) for page in pages.values()) > 500


def test_a_link_that_leads_nowhere_is_found(pages: dict[Path, Page]) -> None:
    """The check has teeth: a page, an anchor and an address that are wrong are each named."""
    index = next(path for path in pages if path.parts[-2:] == ("docs", "index.html"))
    for target in (
        "nowhere.html",
        "guarantees.html#nowhere",
        "#nowhere",
        "http://a.example",
        "https://a",
    ):
        assert target in leads_nowhere(index, target, pages)
    assert leads_nowhere(index, "guarantees.html#the-idea", pages) == ""


def test_every_page_is_on_the_site_and_in_the_index(pages: dict[Path, Page]) -> None:
    """No document is left out, and each can be reached from the index."""
    (index,) = (path for path in pages if path.parts[-2:] == ("docs", "index.html"))
    for source in (ROOT / "docs").glob("*.md"):
        page = index.with_name(f"{source.stem}.html")
        assert page in pages
        assert source.stem == "index" or page.name in pages[index].targets, source.name
