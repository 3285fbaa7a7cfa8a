"""Effects on the outside world, each exactly once: put now, committed when no death can undo it.

A restore undoes what a process recorded, but not its effects outside. So an action only puts an
effect into its ``Outbox``, a recorded field, and the effect happens when the entry is *safe*: it is
before the cut of a published snapshot, and no death restores an older one. Three things follow.

* An entry that was committed is in every state that a death restores, until it is forgotten. So
  a death between the commit and the forgetting repeats entries, and never changes them.
* Each entry has a *key* that stands for it and for all before it: a hash of the key before and of
  the entry. A receiver that keeps the last key, the *mark*, in the transaction of its effects can
  tell which entries it has. A number would not do, since after a restore by hand the seventeenth
  entry may be another one.
* A mark that this history does not contain shows such a restore, or a copy of the system that
  commits to the same receiver. From then on each entry is looked up by its own name, which must be
  unique in a history.

Nothing here acts: hosts announce cuts and publications, and call the commit function.
"""

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from stillframe.errors import UsageError, repr_of, text_of
from stillframe.model import DECODING_ERRORS, SnapshotId, decoded
from stillframe.ordered_sets import with_ordered_sets

Item = TypeVar("Item")

COUNT_MAX = 100_000
_FORKED = " forked"
"""The end of a mark after another history was found."""
_encode = msgspec.msgpack.Encoder().encode
_FAILURES = (*DECODING_ERRORS, TypeError, ValueError, OverflowError)


class SafePoint:
    """The effects of one process that are safe: the first `count`, in the order in which they were
    begun."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._cuts: dict[SnapshotId, int] = {}

    def cut(self, snapshot: SnapshotId, count: int) -> None:
        """Record that `count` effects are before the cut for `snapshot`."""
        self._cuts[snapshot] = count

    def published(self, snapshot: SnapshotId) -> None:
        """Record that from now on no death restores a state before `snapshot`."""
        self.count = max(self.count, self._cuts.get(snapshot, 0))
        self._cuts = {other: count for other, count in self._cuts.items() if count > self.count}

    def abandon(self, snapshot: SnapshotId) -> None:
        """Forget the cut of a snapshot that was abandoned."""
        self._cuts.pop(snapshot, None)


class OutboxEntry(msgspec.Struct, Generic[Item], frozen=True):
    """An effect that waits in an outbox.

    Attributes:
        item: what was put.
        key: unique to this entry, and the same each time the entry is repeated: 64 hexadecimal
            digits that a receiver can use as an idempotency key.
    """

    item: Item
    key: str


class Due(msgspec.Struct, Generic[Item], frozen=True):
    """The argument of a commit function: entries that no death can undo, in the order of ``put``.

    Attributes:
        outbox: whose entries they are: ``PROCESS.FIELD``.
        entries: at least one, unless ``after`` has left out all.
        mark: what to store in the transaction that commits the entries.
    """

    outbox: str
    entries: tuple[OutboxEntry[Item], ...]
    mark: str
    before: str
    """The mark before the first entry; empty if there was none."""

    @property
    def items(self) -> list[Item]:
        """The items of the entries."""
        return [entry.item for entry in self.entries]

    def after(
        self, mark: str | None, *, is_done: Callable[[Item], bool] | None = None
    ) -> "Due[Item]":
        """Return what is still to be committed, with the mark to store then.

        Call it inside the transaction that reads the stored mark, commits the entries and stores
        the new mark. Lock the mark when you read it, as with ``select ... for update``: a process
        that was taken for dead may commit at the same time.

        Args:
            mark: the stored mark; None or empty if none was stored yet.
            is_done: whether an item was committed, by its name, which no other item of a history
                may have. It is called only when the stored mark shows another history: an older
                snapshot was restored by hand, or a copy of the system commits to the same place.
                All entries are looked up before any of them is committed.

        Raises:
            UsageError: the stored mark is of another history, and there is no `is_done`.
        """
        stored = mark or ""
        known = [self.before, *(entry.key for entry in self.entries)]
        if stored in known:
            entries = self.entries[known.index(stored) :]
            return msgspec.structs.replace(self, entries=entries, before=stored)
        if is_done is None:
            raise UsageError(
                f"{self.outbox}: the stored mark {stored or '(none)'} is not of this history: an "
                "older snapshot was restored by hand, or another outbox or system stores its mark "
                "in the same place. Store one mark for each outbox. If entries may have been "
                "committed already, give after() an is_done that looks an item up by its name"
            )
        entries = tuple(entry for entry in self.entries if not is_done(entry.item))
        # If nothing is left, what is there is still the history of the stored mark: for example, a
        # process of an earlier epoch was late with what the present one has committed since.
        found = self.mark + _FORKED if entries else stored
        return msgspec.structs.replace(self, entries=entries, mark=found)


Commit = Callable[[Due[Any]], Awaitable[None] | None]


class Outbox(Generic[Item]):
    """A field whose entries are effects on the outside world; each happens exactly once.

    Declare it as the whole type of a field: ``payments: Outbox[Payment]``, with a default such as
    ``field(default_factory=lambda: Outbox(pay))``. The entries are recorded with the other fields.
    Iterating yields the items that wait, and ``len`` counts them.

    Args:
        commit: called with the entries that are safe (``Due``), after each restore point and after
            a restore. It may get the same entries again after a death, with the same keys. An
            ``async`` one does not keep the process waiting. If it raises, the process fails, and
            the entries come again after the restore.
        count_max: how many entries may wait; one more is refused.

    Raises:
        UsageError: `commit` cannot be called, or `count_max` is not positive.
    """

    __slots__ = (
        "_committed",
        "_decode",
        "_entries",
        "_mark",
        "_safe",
        "commit",
        "count_max",
        "name",
    )
    __hash__ = None  # type: ignore[assignment]  # no default that several processes would share

    def __init__(self, commit: Commit, *, count_max: int = COUNT_MAX) -> None:
        if not callable(commit):
            raise UsageError(f"Outbox({commit!r}): give the function that commits its entries")
        if count_max < 1:
            raise UsageError(f"Outbox(count_max={count_max}): give at least 1")
        self.commit: Commit = commit
        self.count_max: int = count_max
        self.name: str = "the outbox"
        self._entries: deque[OutboxEntry[Item]] = deque()
        self._committed = 0
        self._mark = ""
        self._safe = SafePoint()
        self._decode: Callable[[bytes], Item] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return (entry.item for entry in self._entries)

    def __repr__(self) -> str:
        return f"Outbox({list(self)!r})"

    def __deepcopy__(self, memo: object) -> "Outbox[Item]":
        copied: Outbox[Item] = Outbox(self.commit, count_max=self.count_max)
        copied.load(self.recorded())
        copied._safe = SafePoint(self._committed)
        return copied

    def put(self, item: Item) -> str:
        """Add an effect, as a part of the current action. A copy is kept.

        Returns:
            the key of the entry.

        Raises:
            UsageError: it is full, or `item` is not of the declared type; nothing was added.
        """
        if len(self._entries) >= self.count_max:
            cause = (
                "its commit function has not returned"
                if self._safe.count > self._committed
                else "no snapshot was published since they were put: find out why snapshots are "
                "abandoned, or take them more often"
            )
            raise UsageError(
                f"{self.name} is full: {self.count_max:,} entries wait (count_max), because {cause}"
            )
        try:
            encoded = _encode(with_ordered_sets(item))  # a repeated put has the same key
            decode = self._decode or msgspec.msgpack.Decoder(type(item)).decode
            kept: Item = decoded(decode, encoded)
        except _FAILURES as error:
            shown, why = repr_of(item), text_of(error)
            raise UsageError(f"{self.name}: {shown} cannot be put: {why}") from error
        before = self._entries[-1].key if self._entries else self._mark
        key = hashlib.sha256(before.encode() + encoded).hexdigest()
        self._entries.append(OutboxEntry(kept, key))
        return key

    # --- for hosts

    def open(self, name: str, origin: str, decode: Callable[[bytes], Any]) -> None:
        """Begin to run as `name`. Items are checked by `decode` from now on. If this history has no
        mark yet, its keys are made unique by `origin`. A UsageError if it has run before and
        nothing was loaded since: its entries are of an epoch that nothing continues."""
        if self._decode is not None:
            raise UsageError(
                f"{name} holds entries of an epoch that ended without a snapshot to continue from: "
                "create a new state with a new Outbox each time the process starts or joins"
            )
        self.name = name
        self._decode = decode
        if not self._mark:
            self._mark = hashlib.sha256(f"{origin} {name}".encode()).hexdigest()
            items = list(self)
            self._entries.clear()
            for item in items:
                self.put(item)

    def recorded(self) -> dict[str, Any]:
        """Return what a snapshot records of it."""
        return {"entries": list(self._entries), "committed": self._committed, "mark": self._mark}

    def load(self, recorded: dict[str, Any]) -> None:
        """Continue from what was recorded. All of it is safe: no death restores an older state."""
        self._committed, self._mark = recorded["committed"], recorded["mark"]
        self._entries = deque(OutboxEntry(entry.item, entry.key) for entry in recorded["entries"])
        self._safe = SafePoint(self._committed + len(self._entries))
        self._decode = None

    def cut(self, snapshot: SnapshotId) -> None:
        """Record that the state is recorded for `snapshot` now."""
        self._safe.cut(snapshot, self._committed + len(self._entries))

    def published(self, snapshot: SnapshotId) -> None:
        """Record that from now on no death restores a state before `snapshot`."""
        self._safe.published(snapshot)

    def abandon(self, snapshot: SnapshotId) -> None:
        """Record that `snapshot` was abandoned, or holds an older state of this process."""
        self._safe.abandon(snapshot)

    def due(self) -> Due[Item] | None:
        """Return the entries to commit now; None if there are none."""
        count = self._safe.count - self._committed
        if count <= 0:
            return None
        entries = tuple(islice(self._entries, count))
        return Due(self.name, entries, entries[-1].key, self._mark if self._committed else "")

    def forget(self, due: Due[Item]) -> None:
        """Remove entries that were committed."""
        for _ in due.entries:
            self._entries.popleft()
        self._committed += len(due.entries)
        self._mark = due.entries[-1].key


def no_commit(due: Due[Any]) -> None:
    """Stand in for the commit function where entries are only looked at."""
    raise UsageError(f"{due.outbox} has no commit function here")


def outbox_struct(item: Any) -> type[msgspec.Struct]:
    """Return the type of what is recorded of an outbox with such items."""
    entry = msgspec.defstruct("Entry", [("item", item), ("key", str)])
    return msgspec.defstruct(
        "Outbox",
        [("entries", list[entry]), ("committed", int), ("mark", str)],  # type: ignore[valid-type]
    )
