"""The kill soak of a pipeline in its short form; ``python -m tests.soak.pipeline`` is the full one.

Three rounds kill one of each kind: the driver, a service and the restore after it, a coordinator.
What comes out is compared with what is computed from the input. At night there are more kills, with
a fresh seed, too, and it is compared with a run in which nobody is killed as well.
"""

from pathlib import Path

import pytest

from tests.nightly import Figure, by_night, seeds
from tests.soak.pipeline import soak

SEED = 2
KILL_COUNT = by_night(16, check=3)
IS_SHORT = by_night(False, check=True)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("kill soak of a pipeline", SEED, night=1))
def test_a_pipeline_ends_as_if_nobody_had_been_killed(
    tmp_path: Path, seed: int, figure: Figure
) -> None:
    """Channels and states are as computed from the input, and at night as in a run without
    kills."""
    run, wrong = soak(seed, kill_count=KILL_COUNT, directory=tmp_path, is_short=IS_SHORT)
    assert wrong == []
    for what, count in run.done.items():
        figure(what, count)
    assert run.done["restores"] > 0, "nothing was ever taken back: this showed nothing"
    killed = [what for what in run.done if what.startswith("kills: ")]
    for victim in ("driver", "service", "coordinator", "restore"):
        assert any(victim in what for what in killed), f"no {victim} died"
