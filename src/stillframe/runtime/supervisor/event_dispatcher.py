"""Events of a running system: into the history, to a listener, and when they must stop it."""

from collections.abc import Callable

from stillframe.errors import StillframeError, StoreError
from stillframe.model import Abandoned, Reason
from stillframe.protocol.policy import AbandonmentLimit
from stillframe.runtime import events
from stillframe.store import history
from stillframe.store.history import HistoryEvent, shortened
from stillframe.store.layout import is_published
from stillframe.store.store import Store


def to_history_event(event: events.Event) -> HistoryEvent | None:
    """Return the record of `event` in the history; None if it has none."""
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


def abandon_unfinished(store: Store) -> list[Abandoned]:
    """Return the snapshots that a dead coordinator left under way, to be reported as abandoned;
    those that it had published are recorded as such."""
    abandoned = []
    for snapshot in store.history.under_way:
        if is_published(store.path, snapshot):
            store.history.append(history.SnapshotPublished(snapshot, is_removal_noted=True))
        else:
            abandoned.append(Abandoned(snapshot, Reason.COORDINATOR_DIED))
    return abandoned


def first_number(store: Store) -> int:
    """Return the number of the next snapshot: above all that were ever given."""
    return max(store.next_number(), store.history.last_number + 1)


class EventDispatcher:
    """Passes events on to the history of the store and to a listener.

    Args:
        listener: receives them. One that raises stops the system: it would run unobserved.
        store: of the system.
        tolerated_count: how many abandoned snapshots in a row do not stop it; None for any number.
        stop: called, perhaps more than once, when the system must stop; `error` says why.
    """

    def __init__(
        self,
        listener: Callable[[events.Event], None],
        store: Store,
        *,
        tolerated_count: int | None,
        stop: Callable[[], None],
    ) -> None:
        self.error: Exception | None = None
        self._listener = listener
        self._store = store
        self._tolerance = AbandonmentLimit(tolerated_count)
        self._stop = stop

    def emit(self, event: events.Event) -> None:
        """Record an event in the history, and pass it on to the listener."""
        record = to_history_event(event)
        if record is not None:
            try:
                self._store.history.append(record)
            except StoreError as error:
                self._notify(events.StoreUnavailable(str(error)))
        self._notify(event)

    def _notify(self, event: events.Event) -> None:
        try:
            self._listener(event)
            self._check_tolerable(event)
        except Exception as error:
            self.error = self.error or error
            self._stop()

    def _check_tolerable(self, event: events.Event) -> None:
        match event:
            case events.SnapshotPublished():
                self._tolerance.published()
            case events.SnapshotAbandoned(abandoned, None):
                if (words := self._tolerance.abandoned(abandoned)) is not None:
                    raise StillframeError(f"{words}, then go on with 'stillframe restore'")
