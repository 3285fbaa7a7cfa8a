"""Ports for programs that tests start, and that can be told only a number."""

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000
_kept: list[socket.socket] = []
"""They are bound and do not listen: a server that reuses addresses, as all do, can listen there."""


def free_port() -> int:
    """Return a free port of loopback, reserved for this test until its program ends. It is below
    the range of outgoing connections, if that leaves room: a connection could take the port, or
    even connect to itself."""
    end = int(RANGE.read_text().split()[0])
    chance = random.SystemRandom()  # not the one that begins anew with every test
    while True:
        port = chance.randrange(LOWEST, end) if end > LOWEST else 0
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            one.close()
            continue
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(one)
        return int(one.getsockname()[1])
