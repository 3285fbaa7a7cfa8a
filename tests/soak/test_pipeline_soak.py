"""The kill soak of a pipeline in its short form; ``python -m tests.soak.pipeline`` is the full one.

Three rounds kill one of each kind: the driver, a service and the restore after it, a coordinator.
What comes out is compared with what is computed from the input. At night there are more kills, with
a fresh seed, too, and it is compared with a run in which nobody is killed as well; and it runs once
in an object store.
"""

from pathlib import Path

import pytest

from stillframe.storage.location import Location, locate
from tests.nightly import Figure, by_night, seeds
from tests.soak.pipeline import MOMENTS, soak
from tests.spark.outside import s3a_variables

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
    check(figure, seed, tmp_path, KILL_COUNT, is_short=IS_SHORT)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="storage", only=True)
def test_a_pipeline_in_an_object_store_ends_as_if_nobody_had_been_killed(
    tmp_path: Path, versitygw_bucket: str, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """Each kind of kill happens at least once, on a real S3 server."""
    for name, value in s3a_variables().items():
        monkeypatch.setenv(name, value)
    [seed] = seeds("kill soak of a pipeline in S3", night=1)
    check(figure, seed, tmp_path, len(MOMENTS), place=locate(versitygw_bucket), is_short=True)


def check(
    figure: Figure,
    seed: int,
    directory: Path,
    kill_count: int,
    *,
    place: Location | None = None,
    is_short: bool,
) -> None:
    """Run the soak; what comes out must be as computed, and somebody of each kind killed."""
    run, wrong = soak(
        seed, kill_count=kill_count, directory=directory, place=place, is_short=is_short
    )
    assert wrong == []
    for what, count in run.done.items():
        figure(what, count)
    assert run.done["restores"] > 0, "nothing was ever taken back: this showed nothing"
    killed = [what for what in run.done if what.startswith("kills: ")]
    for victim in ("driver", "service", "coordinator", "restore"):
        assert any(victim in what for what in killed), f"no {victim} died"
