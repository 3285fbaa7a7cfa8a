"""The changes in the keyed fields of one process since a snapshot that is in the store.

Only these are sent. A process is notified when a snapshot has been published: from then on that one
is the base of its next fragments. A snapshot in progress, or an abandoned one, is never a base:
changes before its cut are recorded again. So an abandoned snapshot costs bytes, never a change.
"""

from typing import Any

import msgspec

from stillframe.keyed import Keyed, KeyedCut, KeySet
from stillframe.model import KeyedChange, KeyedRows, SnapshotId
from stillframe.state_codec import StateCodec

PAST_COUNT_MAX = 64
PAST_KEYS_MIN = 100_000
"""Maximum cuts since the base, and minimum for the maximum of changed keys (the number of all
keys); beyond that the next snapshot records all keys."""


class PastCut(msgspec.Struct, frozen=True):
    """A cut of this process, and the keys by field that had changed since the cut before."""

    snapshot: SnapshotId
    changed: dict[str, KeySet[Any]]


class KeyedChanges:
    """The keyed fields of one process from cut to cut. Each call is one atomic step. `base` is the
    published snapshot that the next cut will be based on, if it can; at first the one that the
    subject was restored from, or None."""

    def __init__(self, codec: StateCodec, subject: object, base: SnapshotId | None) -> None:
        self._codec = codec
        self._subject = subject
        self.base = base
        self._past: list[PastCut] = []
        self._fields: dict[str, Keyed[Any, Any]] = {}
        if base is not None:
            self._fields = codec.keyed_fields(subject)
            for field in self._fields.values():
                field.track()

    def cut(self, snapshot: SnapshotId) -> "KeyedChangesCut":
        """Return the content of the fields now, for `snapshot`, to be encoded bit by bit;
        UsageError if a field that is declared as keyed holds something else."""
        fields = self._codec.keyed_fields(self._subject)
        changed = {name: field.put_changes_aside() for name, field in fields.items()}
        known = {name: keys for name, keys in changed.items() if keys is not None}
        is_same = all(fields[name] is self._fields.get(name) for name in fields)
        if len(known) < len(changed) or not is_same:
            self._forget()
        self._fields = fields
        self._past.append(PastCut(snapshot, known))
        key_count = sum(len(keys) for past in self._past for keys in past.changed.values())
        held_count = sum(map(len, fields.values()))
        if len(self._past) > PAST_COUNT_MAX or key_count > max(PAST_KEYS_MIN, held_count):
            self._forget()
            self._past.append(PastCut(snapshot, {}))
        cuts = {
            name: field.cut(
                None if self.base is None else [past.changed[name] for past in self._past]
            )
            for name, field in fields.items()
        }
        return KeyedChangesCut(self._codec, self.base if fields else None, cuts)

    def in_store(self, snapshot: SnapshotId | None) -> list[KeySet[Any]]:
        """Record that `snapshot` was published; None: the published snapshot that was the base is
        missing. The next cut records the changes since that one, or everything. Returns sets of
        keys that no later cut needs. Deleting a large one takes as long as encoding it; cuts that
        are open may still read it."""
        spent: list[PastCut] = []
        if snapshot is None:
            spent = list(self._past)
            self._forget()
        for index, past in enumerate(self._past):
            if past.snapshot == snapshot:
                self.base = snapshot
                spent = self._past[: index + 1]
                del self._past[: index + 1]
                break
        return [keys for past in spent for keys in past.changed.values()]

    def _forget(self) -> None:
        self.base = None
        self._past.clear()


class KeyedChangesCut:
    """The keyed fields of one process at one cut, to be encoded into a fragment. They are changes
    since the published snapshot `base`; without one, all keys. `total_count` is how many keys there
    are to encode, at most."""

    def __init__(
        self, codec: StateCodec, base: SnapshotId | None, fields: dict[str, KeyedCut[Any, Any]]
    ) -> None:
        self.base = base
        self.total_count = sum(field.total_count for field in fields.values())
        self._codec = codec
        self._fields = fields
        self._unread = list(fields)
        self._removed: dict[str, list[Any]] = {name: [] for name in fields}

    def take(self, count: int) -> tuple[str, KeyedRows] | None:
        """Encode about `count` more keys of some field; None if all are done. UsageError if a key
        or a value cannot be encoded."""
        while self._unread:
            name = self._unread[0]
            taken = self._fields[name].take(count)
            if taken is not None:
                keys, values, removed = taken
                self._removed[name] += removed
                encode = self._codec.encode_part
                encoded = encode(name, keys, are_keys=True), encode(name, values)
                return name, KeyedRows(len(keys), *encoded)
            self._fields[name].close()
            del self._unread[0]
        return None

    def removals(self) -> dict[str, KeyedChange]:
        """Return the removed keys when ``take`` has returned None: changes without rows."""
        return {
            name: KeyedChange((), len(keys), self._codec.encode_part(name, keys, are_keys=True))
            for name, keys in self._removed.items()
        }

    def close(self) -> None:
        """Stop encoding. Closing twice does nothing."""
        self._unread.clear()
        for field in self._fields.values():
            field.close()
