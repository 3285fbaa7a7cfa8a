"""Every link passes the conformance suite."""

import asyncio
import functools
from contextlib import AbstractAsyncContextManager

import pytest

from stillframe import Topology
from tests.runtime.certificate_dirs import everybody
from tests.runtime.conformance import MakePair, check_link
from tests.runtime.links import TcpPair, memory_pair, tcp_pair

MARKER_WAIT_S = 0.0001


def tls_pair(topology: Topology) -> AbstractAsyncContextManager[TcpPair]:
    """Link two hosts over TLS."""
    return tcp_pair(topology, certificates=str(everybody()))


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize(
    "make_pair",
    [
        memory_pair,
        tcp_pair,
        tls_pair,
        functools.partial(memory_pair, marker_wait_s=MARKER_WAIT_S),
        functools.partial(tcp_pair, marker_wait_s=MARKER_WAIT_S),
    ],
    ids=["memory", "tcp", "tls", "memory, markers ride", "tcp, markers ride"],
)
def test_link_conforms(make_pair: MakePair) -> None:
    """Order, exactly once, back-pressure and new connections, whatever carries the channel; also
    when markers wait for messages to ride on."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await check_link(make_pair)

    asyncio.run(main())
