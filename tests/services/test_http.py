"""Observations over HTTP: real servers, real clients, and every total exact."""

import asyncio
from collections.abc import Callable

import pytest

from stillframe.errors import NotConsistent
from stillframe.services.agent import Agent
from tests.nightly import Figure, by_night, seeds
from tests.services.deployment import BankInThreads, Deployment, find, observed
from tests.services.mistakes import OF_HTTP

OBSERVATION_COUNT = 8


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("observations over HTTP", 1, night=3))
def test_every_total_is_exact(seed: int, figure: Figure) -> None:
    """With money in requests, in answers, and in handlers that wait."""
    count = by_night(100, check=OBSERVATION_COUNT)
    found = asyncio.run(observed(Deployment(seed), count))
    figure("calls in a cut", sum(found.values()))


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("observations of threads over HTTP", 1, night=3))
def test_every_total_with_steps_of_threads_is_exact(seed: int, figure: Figure) -> None:
    """With money that threads take in one step, and hold for an answer since another one."""
    count = by_night(100, check=OBSERVATION_COUNT)
    found = asyncio.run(observed(Deployment(seed, kind=BankInThreads), count))
    figure("calls in a cut", sum(found.values()))


@pytest.mark.parametrize("mistake", OF_HTTP)
def test_a_mistake_is_found(mistake: Callable[[Agent], None]) -> None:
    """By the check of each cut, since control messages are late."""
    with pytest.raises(NotConsistent, match="sent it after its own cut"):
        find(mistake, Deployment(1))
