"""Commands that race: none waits without an end."""

from pathlib import Path

import pytest

from stillframe.store.store import Store
from tests.nightly import Figure, by_night, seeds
from tests.soak.races import SUPERVISES, race

SEED = 864
ROUND_COUNT = by_night(20, check=2)


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("races", SEED, night=4))
def test_commands_that_race_end_or_supervise(tmp_path: Path, seed: int, figure: Figure) -> None:
    """Whatever overtakes them; who supervises says so first, and the store is sound."""
    racers = race(seed, ROUND_COUNT, tmp_path)
    figure("commands raced", len(racers))
    assert SUPERVISES in racers[0].said[0]
    store = Store.open(tmp_path / "store")
    for entry in store.entries():
        store.load(entry.id)
