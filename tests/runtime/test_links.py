"""Every link passes the conformance suite."""

import asyncio

import pytest

from tests.runtime.conformance import MakePair, check_link
from tests.runtime.links import memory_pair, tcp_pair


@pytest.mark.parametrize("make_pair", [memory_pair, tcp_pair])
def test_link_conforms(make_pair: MakePair) -> None:
    """Order, exactly once, back-pressure and new connections, whatever carries the channel."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await check_link(make_pair)

    asyncio.run(main())
