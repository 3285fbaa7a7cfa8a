"""The examples are real programs: they end, and detection says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.detect.view import view_of
from stillframe.examples.crawl import standard_library
from stillframe.store.store import Store

ROOT = Path(__file__).parent.parent.parent


def run_until(topology: str, predicate: str, store: Path) -> str:
    """Run a topology until a predicate holds; return what was said of it."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "stillframe", "run", f"stillframe.examples.{topology}"),
            *("--store", str(store), "--every", "100ms", "--until", predicate),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_crawl_is_known_to_be_finished_when_it_is(tmp_path: Path) -> None:
    """In the snapshot in which termination holds every file was counted, and none twice."""
    words = run_until("crawl:standard_library", "termination", tmp_path / "crawl")
    assert words.startswith("yes: termination holds in C1-")
    store = Store.open(tmp_path / "crawl")
    (held,) = [e.id for e in store.entries() if str(e.id) == words.split()[4].rstrip(":")]
    crawlers = view_of(store.load(held), standard_library).processes.values()
    root = next(crawler.root for crawler in crawlers if crawler.root)
    files = [
        Path(directory, name)
        for directory, _, names in os.walk(root)
        for name in names
        if name.endswith(".py") and not Path(directory, name).is_symlink()
    ]
    assert sum(crawler.file_count for crawler in crawlers) == len(files) > 0
    assert sum(crawler.line_count for crawler in crawlers) == sum(
        path.read_bytes().count(b"\n") for path in files
    )


@pytest.mark.slow
def test_a_token_that_was_dropped_is_missed(tmp_path: Path) -> None:
    """It is at no process and on no channel."""
    words = run_until("token_ring:careless", "loss", tmp_path / "ring")
    assert words.endswith(": 1 token lost: nowhere")
