"""Tells a listener what happens to a system, and knows when the system must not go on."""

from collections.abc import Callable

from stillframe.errors import StillframeError
from stillframe.model import Abandoned, Reason
from stillframe.protocol.policy import AbandonmentLimit
from stillframe.runtime import events
from stillframe.store import history
from stillframe.store.history import History, HistoryEvent, shortened
from stillframe.store.layout import is_published
from stillframe.store.store import Store


def to_history_event(event: events.Event) -> HistoryEvent | None:
    """Return what the history says of `event`; None if nothing."""
    match event:
        case events.EpochBegan(epoch, restored_from):
            return history.EpochBegan(epoch, restored_from)
        case events.SupervisorReplaced(epoch):
            return history.TakenOver(epoch)
        case events.ProcessDied(process, cause):
            return history.ProcessDied(process, shortened(cause))
        case events.SnapshotPublished(entry):
            return history.SnapshotPublished(entry.id, is_removal_noted=True)
        case events.SnapshotAbandoned(given_up):
            reason, detail = given_up.reason.name, shortened(given_up.detail)
            return history.SnapshotAbandoned(given_up.snapshot, reason, given_up.missing, detail)
        case _:
            return None


def abandon_unfinished(past: History, store: Store) -> list[Abandoned]:
    """Return the snapshots that a dead coordinator left under way, to be told as abandoned; those
    that it had published are noted as such.

    Raises:
        StoreError: the history cannot be written to.
    """
    abandoned = []
    for snapshot in past.under_way:
        if is_published(store.path, snapshot):
            past.append(history.SnapshotPublished(snapshot, is_removal_noted=True))
        else:
            abandoned.append(Abandoned(snapshot, Reason.COORDINATOR_DIED))
    return abandoned


def first_number(past: History, store: Store) -> int:
    """Return the number of the next snapshot: above all that were ever given."""
    return max(store.next_number(), past.last_number + 1)


class EventDispatcher:
    """Passes events on to a listener.

    Args:
        listener: takes them. One that raises ends the system: it would go on unseen.
        tolerated_count: how many abandoned snapshots in a row do not end it; None for any number.
        end: called, perhaps more than once, when the system must end; `error` says why.
    """

    def __init__(
        self,
        listener: Callable[[events.Event], None],
        *,
        tolerated_count: int | None,
        end: Callable[[], None],
    ) -> None:
        self.error: Exception | None = None
        self._listener = listener
        self._tolerance = AbandonmentLimit(tolerated_count)
        self._end = end

    def emit(self, event: events.Event) -> None:
        """Tell the listener."""
        try:
            self._listener(event)
            self._check_tolerable(event)
        except Exception as error:
            self.error = self.error or error
            self._end()

    def _check_tolerable(self, event: events.Event) -> None:
        match event:
            case events.SnapshotPublished():
                self._tolerance.published()
            case events.SnapshotAbandoned(abandoned, None):
                if (words := self._tolerance.abandoned(abandoned)) is not None:
                    raise StillframeError(f"{words}, then go on with 'stillframe restore'")
