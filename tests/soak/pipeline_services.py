"""The services of the kill soak as programs: ``pipeline_services.py feed|books ROOT LIMIT``.

Each says ``joined`` when it has. The file LIMIT says, once it is there, after how many actions the
feed leaves; then the books leave, too, when they have everything.
"""

import sys
import time
from pathlib import Path

from stillframe.pipeline.service import join
from stillframe.storage.location import Location, locate
from tests.soak.pipeline_shop import FRESH_COUNT, Books, Feed, orders_of

PAUSE_S = 0.15


def limit(path: Path) -> int | None:
    """Return after how many actions the feed ends; None while that is open."""
    return int(path.read_text()) if path.exists() else None


def feed(root: Location, end_file: Path) -> None:
    """Send orders: a few at a time, and the rest at full speed once the end is known."""
    state = Feed()
    with join("feed", pipeline=root, state=state) as me:
        print("joined", flush=True)
        while (end := limit(end_file)) is None or state.actions < end:
            me.append("orders", orders_of(state.actions))
            state.actions += 1
            me.boundary()
            if end is None:
                time.sleep(PAUSE_S)


def books(root: Location, end_file: Path) -> None:
    """Book orders and totals, and pay."""
    state = Books()
    with join("books", pipeline=root, state=state) as me:
        print("joined", flush=True)

        def is_done() -> bool:
            end = limit(end_file)
            return end is not None and state.is_done(end * FRESH_COUNT)

        if is_done():
            return
        for channel, table in me:
            if channel == "unique":
                state.book(table)
            else:
                me.append("payments", state.pay(table))
            if is_done():
                return


if __name__ == "__main__":
    {"feed": feed, "books": books}[sys.argv[1]](locate(sys.argv[2]), Path(sys.argv[3]))
