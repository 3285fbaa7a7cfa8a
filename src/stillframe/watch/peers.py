"""Whose program is at the other end of a connection on this machine.

The socket for commands is reachable for its owner alone, and the page can do what commands do; but
anybody on a machine can connect to its loopback. Linux says whose a connection is. Where it says
nothing, as of one that was closed already, nobody is answered.
"""

import ipaddress
import os
import sys
from pathlib import Path

End = tuple[str, int]
"""An address and a port."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_ROOT = 0


def may_ask(peer: End, mine: End) -> bool:
    """Return whether a connection is of our own user or of root, as far as this machine can say.

    Args:
        peer: the address and port of the other end.
        mine: those of this end.
    """
    if not _TABLES[0].exists():
        return True  # no Linux: nobody can say
    return owner_of(peer, mine) in (_ROOT, os.geteuid())


def owner_of(peer: End, mine: End) -> int | None:
    """Return the id of the user whose program has the end `peer` of a connection to `mine`; None if
    nobody has it any more, or it cannot be known."""
    for table in _TABLES:
        try:
            pairs = {(_encoded(p), _encoded(m)) for p, m in _written(peer, mine, table)}
            with table.open(encoding="ascii") as rows:
                for row in rows:
                    columns = row.split()
                    if (columns[1], columns[2]) in pairs and columns[3] == _ESTABLISHED:
                        return int(columns[7])
        except (OSError, ValueError, IndexError):
            continue
    return None


def _written(peer: End, mine: End, table: Path) -> list[tuple[End, End]]:
    """Return how a table may write a connection: one of IPv4 may be made with a socket of IPv6."""
    addresses = [ipaddress.ip_address(end[0]) for end in (peer, mine)]
    is_wide = table.name.endswith("6")
    if all(address.version == (6 if is_wide else 4) for address in addresses):
        return [(peer, mine)]
    if is_wide and all(address.version == 4 for address in addresses):
        return [((f"::ffff:{peer[0]}", peer[1]), (f"::ffff:{mine[0]}", mine[1]))]
    return []


def _encoded(end: End) -> str:
    """Return an address and port as the kernel writes them: words of 32 bits in its own order."""
    address = ipaddress.ip_address(end[0]).packed
    words = (address[i : i + 4] for i in range(0, len(address), 4))
    told = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{told}:{end[1]:04X}"
