"""Observations over HTTP: real servers, real clients, and every total exact."""

import asyncio

import pytest

from stillframe.errors import NotConsistent
from stillframe.protocol.calls import CallPlace
from tests.nightly import Figure, by_night, seeds
from tests.services.deployment import BALANCE, Deployment
from tests.services.mistakes import answer_without_colour, capture_behind, request_without_colour

OBSERVATION_COUNT = 8


async def observed(deployment: Deployment, count: int) -> dict[CallPlace, int]:
    """Take observations under load, and check the total of each; return where calls were."""
    found = dict.fromkeys(CallPlace, 0)
    async with deployment.running():
        while (await deployment.observe()).partial:
            pass  # until each has had an answer of each
        for _ in range(count):
            observation = await deployment.observe()
            assert observation.partial == ()
            assert deployment.total(observation) == BALANCE * len(deployment.banks)
            for call in observation.calls:
                found[call.place] += 1
    return found


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("observations over HTTP", 1, night=3))
def test_every_total_is_exact(seed: int, figure: Figure) -> None:
    """With money in requests, in answers, and in handlers that wait."""
    count = by_night(100, check=OBSERVATION_COUNT)
    found = asyncio.run(observed(Deployment(seed), count))
    figure("calls in a cut", sum(found.values()))
    assert found[CallPlace.REQUESTED] + found[CallPlace.ANSWERED] > 0
    assert found[CallPlace.SERVED] > 0


@pytest.mark.parametrize("mistake", [request_without_colour, answer_without_colour, capture_behind])
def test_a_mistake_is_found(mistake: object) -> None:
    """By the check of each cut, since control messages are late."""
    deployment = Deployment(1)
    for bank in deployment.banks:
        mistake(bank.agent)  # type: ignore[operator]

    async def run() -> None:
        async with deployment.running():
            for _ in range(100):
                await deployment.observe()

    with pytest.raises(NotConsistent, match="sent it after its own cut"):
        asyncio.run(run())
