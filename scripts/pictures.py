"""Makes the pictures of the README from a real run: ``.venv/bin/python scripts/pictures.py``.

A bank runs and writes its event log; the live page shows it with the markers of a snapshot on their
way; one of its snapshots is shown; and the lecture example is played up to the cut of P2. Needs
Chromium. The pictures are those of that run, so they differ from run to run.
"""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, Page  # noqa: E402

from bench.watching import STILLFRAME, browser, served, started  # noqa: E402
from stillframe.store.store import Store  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
BANK = "stillframe.examples.bank:bank"
WIDTH, HEIGHT = 1200, 760
CAPTION_WAIT_MS = 60_000
COLOURS = 96


def main() -> None:
    """Make them all."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stillframe-") as name, browser() as opened:
        directory = Path(name)
        store, log = directory / "money", directory / "money.log"
        with (
            started(["run", BANK, "--event-log", str(log), "--store", str(store)]),
            served(store) as (link, _),
        ):
            live(opened, link)
        snapshot = str(Store.open(store).entries()[-2].id)
        file = directory / "snapshot.html"
        show(store, "--snapshot", snapshot, "--event-log", log, "--out", file)
        page_of(opened, file.as_uri(), "snapshot", steps=4)
        player = directory / "lecture.html"
        show("lecture", "--out", player)
        page_of(opened, player.as_uri(), "player", steps=12)


def live(opened: Browser, link: str) -> None:
    """Picture the live page, when markers have come to three processes."""
    with contextlib.closing(opened.new_context(viewport={"width": WIDTH, "height": 900})) as tab:
        page = tab.new_page()
        page.goto(link)
        page.locator(".chip").nth(45).wait_for(timeout=CAPTION_WAIT_MS)
        page.locator(".process.cut").nth(2).wait_for(timeout=CAPTION_WAIT_MS)
        take(page, "watch")


def page_of(opened: Browser, link: str, name: str, *, steps: int) -> None:
    """Picture a page in a file, some steps in."""
    with contextlib.closing(opened.new_context(viewport={"width": WIDTH, "height": HEIGHT})) as tab:
        page = tab.new_page()
        page.goto(f"{link}#step={steps}")
        page.locator("svg").first.wait_for()
        take(page, name)


def take(page: Page, name: str) -> None:
    """Write what is seen of a page."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, animations="allow")
    shrink(path)
    print(path.relative_to(ROOT))


def show(*arguments: object) -> None:
    """Run ``stillframe view``."""
    subprocess.run([STILLFRAME, "view", *map(str, arguments)], check=True)


def shrink(path: Path) -> None:
    """Make the file of a picture smaller: it has few colours."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
