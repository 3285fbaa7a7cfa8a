"""The topologies of the snapshots in a store: the current one, and those before a change of code.

A snapshot is read, verified and queried with the topology that it was taken of.
"""

from collections.abc import Collection

import msgspec

from stillframe.errors import UsageError
from stillframe.store.manifest import Head
from stillframe.store.tables import Tables
from stillframe.topology import Description

FORMER_COUNT_MAX = 100
"""Maximum former topologies; more would take too long to read."""


class TopologyHistory:
    """The topologies in ``store.json``, by the hash that each manifest has (`described`); `present`
    is the hash of the topology of new snapshots."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.present = head.description.hash
        self.described = {d.hash: d for d in (*head.former, head.description)}
        self._tables: dict[str, Tables] = {}

    def following(self, head: Head) -> "TopologyHistory":
        """Return the topologies after `head` was read; most often the same object."""
        is_same = (head.description, head.former) == (self._head.description, self._head.former)
        return self if is_same else TopologyHistory(head)

    def tables(self, topology: str) -> Tables:
        """Return the tables of the topology with that hash."""
        if topology not in self._tables:
            self._tables[topology] = Tables(self.described[topology])
        return self._tables[topology]


def with_topology(head: Head, description: Description, used: Collection[str]) -> Head:
    """Return the head of a store whose topology is `description` from now on; it may be a former
    one. Former topologies that are not among `used`, the hashes that snapshots have, are forgotten.
    """
    known = {d.hash: d for d in (*head.former, head.description) if d.hash in used}
    known.pop(description.hash, None)
    if len(known) > FORMER_COUNT_MAX:
        raise UsageError(
            f"the store holds snapshots of {len(known)} topologies, and at most "
            f"{FORMER_COUNT_MAX} former ones are kept: delete the snapshots of the oldest"
        )
    return msgspec.structs.replace(head, description=description, former=tuple(known.values()))
