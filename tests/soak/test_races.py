"""Commands that race: none waits without an end."""

from pathlib import Path

import pytest

from stillframe.store.store import Store
from tests.soak.races import SUPERVISES, race


@pytest.mark.slow
def test_commands_that_race_end_or_supervise(tmp_path: Path) -> None:
    """Whatever overtakes them; who supervises says so first, and the store is sound."""
    racers = race(864, 2, tmp_path)
    assert SUPERVISES in racers[0].said[0]
    store = Store.open(tmp_path / "store")
    for entry in store.entries():
        store.load(entry.id)
