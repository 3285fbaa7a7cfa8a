"""The soak: a short one with a fixed seed in the check, long ones with fresh seeds at night.

``python -m tests.soak.run`` runs it alone.
"""

import pytest

from tests.nightly import Figure, by_night, seeds
from tests.soak.run import MOMENTS, soak

SNAPSHOT_COUNT = by_night(220, check=12)
KILL_COUNT = by_night(60, check=len(MOMENTS))


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("soak", 1985, night=2))
def test_money_and_messages_survive_kills_at_random_moments(seed: int, figure: Figure) -> None:
    """Every published snapshot is whole and conserved, also after kills at the worst moments."""
    run = soak(seed, snapshot_count=SNAPSHOT_COUNT, kill_count=KILL_COUNT)
    figure("snapshots", run.done["snapshots"])
    figure("kills", KILL_COUNT)
    figure("messages in transit", run.done["messages in transit"])
    assert run.done["snapshots"] >= SNAPSHOT_COUNT
    assert run.done["verified"] >= run.done["snapshots"]
    assert run.done["messages in transit"] > 0, (
        "no channel ever held a message: this showed nothing"
    )
    assert run.done["overlapping"] > 0, "no two snapshots were pending at once"
    assert {m for m in MOMENTS if run.done[f"kills: {m}"]} == set(MOMENTS)
