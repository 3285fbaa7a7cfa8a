"""The kill soak of a pipeline over Kafka in its short form; ``python -m tests.soak.topics`` is the
full one.

A driver is killed while it writes, and a service in a transaction; after one of them there is a
restore, and zombies write. At night there are more kills, of every kind and with a fresh seed, too,
and a frozen driver wakes in a pipeline in an object store after a restore.
"""

from pathlib import Path

import pytest

from stillframe.storage.location import Location, locate
from tests.nightly import Figure, by_night, seeds
from tests.soak.topics import MOMENTS, chosen_moments, soak, variables_of_s3

SEED = 5
SHORT = ("driver while it writes", "service while it writes")
BURST = by_night(8000, check=4000)
KILL_COUNT = 2 * len(MOMENTS)
"""At night: each moment twice."""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("kill soak over Kafka", SEED, night=1))
def test_every_order_counts_once_whoever_is_killed(
    tmp_path: Path, seed: int, figure: Figure
) -> None:
    """Each topic, without the records that do not count, is as computed from the orders, and each
    snapshot is consistent."""
    check(figure, seed, by_night(chosen_moments(KILL_COUNT, seed), check=list(SHORT)), tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="storage", only=True)
def test_every_order_counts_once_in_an_object_store(
    tmp_path: Path, moto_bucket: str, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """A driver that lost its leases while it was frozen writes into the topics of a later epoch."""
    for name, value in variables_of_s3().items():
        monkeypatch.setenv(name, value)
    [seed] = seeds("kill soak over Kafka in S3", night=1)
    check(figure, seed, chosen_moments(len(MOMENTS), seed), tmp_path, place=locate(moto_bucket))


def check(
    figure: Figure,
    seed: int,
    moments: list[str],
    directory: Path,
    *,
    place: Location | None = None,
) -> None:
    """Run the soak; what comes out must be as computed, and each kind of kill have happened."""
    run, wrong = soak(seed, moments, directory=directory, place=place, burst=BURST)
    assert wrong == []
    for what, count in run.done.items():
        figure(what, count)
    assert run.done["restores"] > 0, "nothing was ever taken back: this showed nothing"
    assert run.done["records of zombies"] > 0
    assert run.done["records that do not"] >= run.done["records of zombies"]
    assert {f"kills: {moment}" for moment in moments} <= run.done.keys()
