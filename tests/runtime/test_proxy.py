"""Connections that break and bytes that change between processes: nothing is lost or doubled."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe import Topology
from stillframe.model import Abandoned
from stillframe.protocol import wire
from tests.nightly import Figure, by_night, seeds
from tests.runtime.local import LocalSystem
from tests.runtime.proxy import ChangingProxies, CuttingProxies, TearingProxies, detours
from tests.soak.ledger import ACCOUNT_COUNT, Ledger
from tests.soak.run import check_snapshot

CUT_COUNT = by_night(100, check=16)


def fresh_bank() -> Topology:
    """Return accounts that refuse a payment that is not the next of its channel."""
    return Topology.mesh({f"P{number}": Ledger() for number in range(1, ACCOUNT_COUNT + 1)})


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("proxy", 1, night=2))
@pytest.mark.parametrize("bytes_max", [200_000, pytest.param(5_000, marks=pytest.mark.slow)])
def test_connections_that_are_cut_at_any_byte_lose_nothing(
    tmp_path: Path, seed: int, bytes_max: int, figure: Figure
) -> None:
    """Payments come in order and once, and overlapping snapshots balance, while connections are
    cut all the time, in the handshake and in the middle of frames."""
    proxies = CuttingProxies(random.Random(seed), bytes_max)

    async def main() -> None:
        async with (
            asyncio.timeout(300),
            detours(proxies, ACCOUNT_COUNT) as detour,
            LocalSystem(fresh_bank(), tmp_path, detour=detour) as system,
        ):
            caught_count = 0
            while (
                proxies.seen["cuts inside a frame"] < CUT_COUNT
                or len(system.store.entries()) < CUT_COUNT // 4
            ):
                both = [system.coordinator.begin(initiator) for initiator in ("P1", "P3")]
                for outcome in await asyncio.gather(*both):
                    assert not isinstance(outcome, Abandoned), str(outcome)
                    caught_count += check_snapshot(system.store.load(outcome.id))
                await system.until(lambda: True)
            assert caught_count > 0
            assert system.troubles() == []
            figure("snapshots", len(system.store.entries()))

    asyncio.run(main())
    figure("cuts inside a frame", proxies.seen["cuts inside a frame"])


def test_connections_that_are_cut_inside_what_a_marker_rides_on_lose_nothing(
    tmp_path: Path,
) -> None:
    """The marker and its messages come together, once and in order, on the next connection: with
    payments in order and overlapping snapshots that balance."""
    proxies = TearingProxies(wire.Kind.MARKED_MESSAGES, random.Random(3), count=30)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            detours(proxies, ACCOUNT_COUNT) as detour,
            LocalSystem(fresh_bank(), tmp_path, detour=detour, marker_wait_s=0.05) as system,
        ):
            while proxies.torn_count < 30:
                both = [system.coordinator.begin(initiator) for initiator in ("P1", "P3")]
                for outcome in await asyncio.gather(*both):
                    assert not isinstance(outcome, Abandoned), str(outcome)
                    check_snapshot(system.store.load(outcome.id))
            assert system.troubles() == []

    asyncio.run(main())


def flip(position: int, bits: int) -> Callable[[bytearray], None]:
    """Return what flips `bits` of one byte of a frame."""

    def change(frame: bytearray) -> None:
        frame[position] ^= bits

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(flip(0, 0x80), "at most 16777216 are allowed here", id="length"),
        pytest.param(
            flip(4, 0x40),
            "arrived where only MESSAGES, MARKER, MARKED_MESSAGES is allowed",
            id="kind",
        ),
        pytest.param(flip(5, 0x01), "frames are missing", id="sequence"),
        pytest.param(flip(24, 0x08), "a batch says that it holds", id="count"),
        pytest.param(flip(30, 0x51), "does not accept messages", id="message"),
    ],
)
def test_changed_bytes_close_the_connection_and_lose_nothing(
    tmp_path: Path, change: Callable[[bytearray], None], reason: str
) -> None:
    """A frame that cannot be right closes its connection with an error that names the channel and
    the reason; it is taken up again, and every snapshot balances."""
    proxies = ChangingProxies(change, after=5, count=20)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            detours(proxies, ACCOUNT_COUNT) as detour,
            LocalSystem(fresh_bank(), tmp_path, detour=detour) as system,
        ):
            await system.until(lambda: len(system.troubles()) == 20)
            check_snapshot(await system.take("P2"))
            for detail in system.troubles():
                assert detail.startswith("channel P"), detail
                assert reason in detail
                assert "its source reconnects, and nothing is lost" in detail

    asyncio.run(main())
