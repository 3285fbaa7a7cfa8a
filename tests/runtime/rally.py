"""Two players and an onlooker, who must go on whatever a stranger does beside them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from stillframe import Topology
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Player, Sink

TIMEOUT_S = 60


def players() -> Topology:
    """Return a fresh rally with an onlooker who has no channel to anybody."""
    return Topology(
        {"A": Player(serves=True), "B": Player(), "C": Sink()}, [("A", "B"), ("B", "A")]
    )


def beside_players(
    tmp_path: Path,
    body: Callable[[LocalSystem], Awaitable[None]],
    *,
    certificates: Path | None = None,
) -> None:
    """Run `body` beside a system, over TLS with `certificates`; it must go on meanwhile and after.

    Raises:
        AssertionError: it has stopped, or somebody is gone.
    """

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(players(), tmp_path, certificates=certificates) as system,
        ):
            before = await system.take("A")
            await body(system)
            after = await system.take("B")
            assert after.state.channels[0].sent_count > before.state.channels[0].sent_count
            assert system.failures == []
            assert system.departed == []

    asyncio.run(main())
