"""Whose program is at the other end of a connection on this machine.

The socket for commands is reachable for its owner alone, and the page can do what commands do; but
anybody on a machine can connect to its loopback. Linux says whose a connection is.
"""

import ipaddress
import os
import sys
from pathlib import Path

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_ESTABLISHED = "01"
_ROOT = 0


def is_of_another(peer: tuple[str, int], mine: tuple[str, int]) -> bool:
    """Return whether a connection is known to come from another user's program on this machine.

    Args:
        peer: the address and port of the other end.
        mine: those of this end.
    """
    owner = owner_of(peer, mine)
    return owner is not None and owner not in (_ROOT, os.geteuid())


def owner_of(peer: tuple[str, int], mine: tuple[str, int]) -> int | None:
    """Return the id of the user whose program has the end `peer` of a connection to `mine`; None if
    nobody here knows it."""
    try:
        version = ipaddress.ip_address(peer[0]).version
        wanted = [_encoded(peer), _encoded(mine), _ESTABLISHED]
        with _TABLES[version].open(encoding="ascii") as table:
            for line in table:
                columns = line.split()
                if columns[1:4] == wanted:
                    return int(columns[7])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _encoded(end: tuple[str, int]) -> str:
    """Return an address and port as the kernel writes them: words of 32 bits in its own order."""
    address = ipaddress.ip_address(end[0]).packed
    words = (address[i : i + 4] for i in range(0, len(address), 4))
    told = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{told}:{end[1]:04X}"
