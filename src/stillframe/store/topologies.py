"""The topologies whose snapshots a store holds: the present one, and those before a change of code.

A snapshot is read, verified and queried by the description of the topology that it was taken of.
"""

from collections.abc import Collection

import msgspec

from stillframe.errors import UsageError
from stillframe.store.manifest import Head
from stillframe.store.tables import Tables
from stillframe.topology import Description

FORMER_COUNT_MAX = 100
"""So many former topologies are kept; more are not read back in reasonable time."""


class Topologies:
    """What ``store.json`` says of topologies, by the hash that each manifest names.

    Attributes:
        present: the hash of the topology that new snapshots are of.
        described: hash -> description, of every one.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self.present = head.description.hash
        self.described = {d.hash: d for d in (*head.former, head.description)}
        self._tables: dict[str, Tables] = {}

    def following(self, head: Head) -> "Topologies":
        """Return the topologies of the store now that `head` is read; most often the same."""
        is_same = (head.description, head.former) == (self._head.description, self._head.former)
        return self if is_same else Topologies(head)

    def tables(self, topology: str) -> Tables:
        """Return what makes the tables of snapshots of the topology with that hash."""
        if topology not in self._tables:
            self._tables[topology] = Tables(self.described[topology])
        return self._tables[topology]


def changed(head: Head, description: Description, used: Collection[str]) -> Head:
    """Return the head of a store whose topology is `description` from now on.

    Args:
        head: as it was.
        description: of the new topology; it may be a former one.
        used: the hashes of the topologies that snapshots in the store are of; others are forgotten.

    Raises:
        UsageError: there are too many former ones.
    """
    known = {d.hash: d for d in (*head.former, head.description) if d.hash in used}
    known.pop(description.hash, None)
    if len(known) > FORMER_COUNT_MAX:
        raise UsageError(
            f"the store holds snapshots of {len(known)} topologies, and at most "
            f"{FORMER_COUNT_MAX} former ones are kept: delete the snapshots of the oldest"
        )
    return msgspec.structs.replace(head, description=description, former=tuple(known.values()))
