"""The soak in its short form; ``python -m tests.soak.run`` is the full one."""

import pytest

from tests.soak.run import MOMENTS, soak


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1985, 864])
def test_money_and_messages_survive_kills_at_random_moments(seed: int) -> None:
    """Every published snapshot is whole and conserved, also after kills at the worst moments."""
    run = soak(seed, snapshot_count=24, kill_count=8)
    assert run.done["snapshots"] >= 24
    assert run.done["verified"] >= run.done["snapshots"]
    assert run.done["messages caught"] > 0, "no channel ever held a message: this showed nothing"
    assert run.done["overlapping"] > 0, "no two snapshots were under way at once"
    assert {m for m in MOMENTS if run.done[f"kills: {m}"]} == set(MOMENTS)
