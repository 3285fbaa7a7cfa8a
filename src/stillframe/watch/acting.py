"""Does what somebody wishes on the page, as the commands of the same names do it."""

import asyncio
from typing import Any, assert_never

from stillframe.model import SnapshotId
from stillframe.runtime.commands import Done, RestoreSnapshot, Save, TakeSnapshot, command
from stillframe.store.store import Store
from stillframe.watch.wishes import Keep, Restore, Take, Wish


async def act(store: Store, wish: Wish) -> dict[str, Any]:
    """Do it, and return whether it was done, and what came of it in a sentence.

    Raises:
        Unavailable: no system runs there.
        UsageError: that cannot be done: there is no such process or snapshot, or a name is taken.
        StillframeError: it went wrong.
    """
    match wish:
        case Take(initiator, name):
            return await _take(store, initiator, name)
        case Keep(snapshot, name):
            await asyncio.to_thread(store.check_savepoint, name)
            return await _save(store, SnapshotId.parse(snapshot), name)
        case Restore(snapshot):
            chosen = await asyncio.to_thread(lambda: store.entry(store.find(snapshot)))
            done = await command(store.path, RestoreSnapshot(chosen.id))
            return _told(f"epoch {done.epoch}: the system went back to snapshot {chosen.id}")
        case _:
            assert_never(wish)


async def _take(store: Store, initiator: str | None, name: str | None) -> dict[str, Any]:
    if name is not None:
        await asyncio.to_thread(store.check_savepoint, name)
    done = await command(store.path, TakeSnapshot(initiator))
    if done.entry is None:
        return _told(str(done.abandoned), is_done=False)
    if name is not None:
        return await _save(store, done.entry.id, name)
    return _told(_published(done)) | {"snapshot": str(done.entry.id)}


async def _save(store: Store, snapshot: SnapshotId, name: str) -> dict[str, Any]:
    await command(store.path, Save(snapshot, name))
    return _told(f"snapshot {snapshot} is kept as {name!r}") | {"snapshot": str(snapshot)}


def _published(done: Done) -> str:
    entry = done.entry
    assert entry is not None
    caught = f"{entry.message_count:,} message{'' if entry.message_count == 1 else 's'}"
    took_ms = (entry.completed_at - entry.initiated_at) * 1000
    return f"snapshot {entry.id} was taken in {took_ms:.1f} ms, with {caught} on channels"


def _told(sentence: str, *, is_done: bool = True) -> dict[str, Any]:
    return {"is_done": is_done, "sentence": sentence}
