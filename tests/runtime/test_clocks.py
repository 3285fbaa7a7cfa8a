"""A wall clock that is set while a system runs."""

import asyncio
import time
from pathlib import Path

import pytest

from stillframe.cli.snapshots import published
from stillframe.cli.supervision import EventPrinter
from stillframe.runtime import events
from stillframe.store.manifest import SnapshotEntry
from tests.runtime.local import LocalSystem
from tests.runtime.programs import rally

DAY_S = 86_400.0
REAL = time.time


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S])
def test_durations_do_not_depend_on_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Neither that of a snapshot until it was published, nor its age in the status line."""

    async def main() -> SnapshotEntry:
        async with asyncio.timeout(60), LocalSystem(rally, tmp_path) as system:
            monkeypatch.setattr(time, "time", lambda: REAL() + ahead_s)
            outcome = await system.try_to_take()
            assert isinstance(outcome, SnapshotEntry)
            return outcome

    entry = asyncio.run(main())
    assert entry.initiated_at <= entry.completed_at <= entry.published_at
    assert entry.published_at - entry.initiated_at < DAY_S / 2
    assert "published after -" not in published(entry)
    printer = EventPrinter(process_count=2, is_json=True)
    printer.emit(events.SnapshotPublished(entry))
    monkeypatch.setattr(time, "time", lambda: REAL() - 2 * ahead_s)
    age_s = float(str(printer.__rich__()).partition(f"{entry.id} ")[2].partition(" s ago")[0])
    assert age_s < DAY_S / 2
