"""Hostile lines at the socket for commands of a running system, and hostile names for savepoints.

Only the owner of a system reaches that socket. The store behind it is a real one, so that a name or
an id goes all the way to where it would become a path.
"""

import asyncio
import functools
import random
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec

from stillframe.errors import Unavailable
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.protocol import wire
from stillframe.runtime.supervisor import admin_socket
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.soak.hostile_files import fragment_state
from tests.soak.hostile_trial import SHOP, Found, Trial
from tests.soak.mutation import mutated, mutated_value

PLACE = "anybody at the commands"
_FIRST = SnapshotId("A", 1)
_NAMES = ("../x", "x/..", ".", "A-1", "A-7", "-", "n" * 65, "\x00", "store.json", "é", "")
LINES = [
    msgspec.json.encode(msgspec.to_builtins(request) | {"protocol_version": wire.VERSION}) + b"\n"
    for request in (
        admin_socket.TriggerSnapshot(None),
        admin_socket.TriggerSnapshot("A"),
        admin_socket.RestoreSnapshot(None),
        admin_socket.RestoreSnapshot(_FIRST),
        admin_socket.CreateSavepoint(_FIRST, "before"),
        admin_socket.DropSnapshot("before"),
        admin_socket.GetPendingSnapshots(),
    )
]


class System:
    """What commands ask for, as far as a store can answer it: nothing runs."""

    coordinator: None = None

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="stillframe-hostile-")
        path = Path(self._directory.name) / "store"
        self.store = Store.create(path, description=SHOP.description)
        self.store.raise_epoch(None)
        self.right()

    async def until_running(self) -> None:
        """Say that it does not."""
        raise Unavailable("the system was stopped")

    async def snapshot(self, initiator: ProcessId | None) -> SnapshotEntry | Abandoned:
        """Take none."""
        if initiator is not None:
            self.store.description.check_process(initiator)
        raise Unavailable("the system was stopped")

    async def restore(self, snapshot: SnapshotId | None) -> None:
        """Look for the snapshot."""
        if snapshot is not None:
            self.store.load(snapshot)

    def check(self) -> None:
        """See that no command made a file beside the store.

        Raises:
            Found: one did.
        """
        beside = [
            path
            for path in local(self.store.path).parent.iterdir()
            if path != local(self.store.path)
        ]
        if beside:
            raise Found(f"a command made {beside[0]}")

    def right(self) -> None:
        """Have the snapshot again that a command may have dropped, and no savepoint."""
        if not self.store.entries():
            self.store.publish(fragment_state(1))
        for entry in self.store.entries():
            for name in entry.savepoints:
                self.store.drop(name)


@functools.cache
def _system() -> System:
    return System()


async def anybody_at_commands(trial: Trial, data: bytes, piece: int) -> str:
    """At the socket for commands of a system, of which only the store is there."""
    system = _system()
    reader = asyncio.StreamReader(limit=admin_socket.LINE_BYTES_MAX)
    for at in range(0, len(data), piece):
        reader.feed_data(data[at : at + piece])
    reader.feed_eof()
    answer = await admin_socket._execute(cast(Supervisor, system), reader)
    encoded = admin_socket._encode(answer)
    if admin_socket._decode_reply(encoded) != answer or b"\n" in encoded:
        raise Found(f"an answer that cannot be read: {encoded!r}")
    system.check()
    if isinstance(answer, admin_socket.Failed):
        if not answer.detail.strip():
            raise Found("a refusal that says nothing")
        return "refused: UsageError" if answer.is_usage else "refused: another StillframeError"
    system.right()
    return "legal"


def hostile_line(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return a command that was changed: its bytes, or the values in it."""
    line = chance.choice(seeds)
    if chance.random() < 0.3:
        return mutated(chance, seeds)
    try:
        request: Any = msgspec.json.decode(line)
        if isinstance(request, dict) and chance.random() < 0.5:
            key = chance.choice([key for key in ("name", "text", "initiator") if key in request])
            request[key] = chance.choice(_NAMES)
        else:
            request = mutated_value(chance, request)
        return msgspec.json.encode(request, enc_hook=repr) + b"\n"
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError, OverflowError):
        return mutated(chance, seeds)
