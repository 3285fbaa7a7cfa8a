"""The kill soak of a pipeline in its short form; ``python -m tests.soak.pipeline`` is the full one.

Four kills are one of each kind: the driver, a service, a coordinator and a restore.
"""

from pathlib import Path

import pytest

from tests.soak.pipeline import soak

SEED = 2
KILL_COUNT = 4


@pytest.mark.slow
@pytest.mark.spark
def test_a_pipeline_ends_as_if_nobody_had_been_killed(tmp_path: Path) -> None:
    """Channels and states are as computed from the input, and as in a run without kills."""
    run, wrong = soak(SEED, kill_count=KILL_COUNT, directory=tmp_path)
    assert wrong == []
    assert run.done["restores"] > 0, "nothing was ever taken back: this showed nothing"
    for victim in ("driver", "service", "coordinator", "restore"):
        assert any(what.startswith(f"kills: {victim}") for what in run.done), f"no {victim} died"
