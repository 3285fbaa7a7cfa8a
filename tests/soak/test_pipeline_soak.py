"""The kill soak of a pipeline in its short form; ``python -m tests.soak.pipeline`` is the full one.

Four kills are one of each kind: the driver, a service, a coordinator and a restore. At night there
are more, with a fresh seed, too.
"""

from pathlib import Path

import pytest

from tests.nightly import Figure, by_night, seeds
from tests.soak.pipeline import soak

SEED = 2
KILL_COUNT = by_night(14, check=4)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("kill soak of a pipeline", SEED, night=1))
def test_a_pipeline_ends_as_if_nobody_had_been_killed(
    tmp_path: Path, seed: int, figure: Figure
) -> None:
    """Channels and states are as computed from the input, and as in a run without kills."""
    run, wrong = soak(seed, kill_count=KILL_COUNT, directory=tmp_path)
    assert wrong == []
    for what, count in run.done.items():
        figure(what, count)
    assert run.done["restores"] > 0, "nothing was ever taken back: this showed nothing"
    for victim in ("driver", "service", "coordinator", "restore"):
        assert any(what.startswith(f"kills: {victim}") for what in run.done), f"no {victim} died"
