"""Services behind a bad network: a thousand observations at night, some in the check."""

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from examples.services.demo import demonstrate
from tests.nightly import Figure, by_night, seeds
from tests.services.mistakes import OF_HTTP
from tests.soak.services import find_mistake, soak

OBSERVATION_COUNT = by_night(1000, check=8)
OBSERVATIONS_A_MISTAKE = 30
CAUGHT_SHARE_MIN = 1 / 3


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("services", night=1) or (1,))
def test_every_total_and_every_alarm_is_right(seed: int, figure: Figure) -> None:
    """Whatever the network loses, delays or doubles: totals are exact, each deadlock is found, no
    alarm is false, and killed instances are named."""
    seen = asyncio.run(soak(OBSERVATION_COUNT, seed))
    for name, count in sorted(seen.items()):
        figure(name, f"{count:,}")
    assert seen["exact observations"] >= OBSERVATION_COUNT
    assert seen["killed"] > 0


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
@pytest.mark.parametrize("mistake", [one.__name__ for one in OF_HTTP])
@pytest.mark.parametrize("seed", seeds("mistakes of services", night=1))
def test_a_mistake_is_caught(seed: int, mistake: str, figure: Figure) -> None:
    """By the check of the cut or by its total, in many observations, since the messages of the
    collector are late."""
    seen = asyncio.run(find_mistake(mistake, OBSERVATIONS_A_MISTAKE, seed)).seen
    count = seen["exact observations"]
    figure(f"{mistake} caught", f"{seen['caught']} of {count}")
    figure(f"{mistake} with a wrong total", f"{seen['wrong totals']} of {count}")
    assert seen["caught"] >= count * CAUGHT_SHARE_MIN


@pytest.mark.slow
@pytest.mark.nightly(part="soak", only=True)
def test_the_demonstration_ends_well(tmp_path: Path) -> None:
    """Each of its claims holds."""
    said = io.StringIO()
    assert demonstrate(tmp_path, 12.0, Console(file=said, width=200)) == 0, said.getvalue()
    assert said.getvalue().count("PASS") == 6
