"""What of the events of a running system goes into its history, and what a death left open."""

from stillframe.model import Abandoned, Reason
from stillframe.runtime import events
from stillframe.store import history
from stillframe.store.history import History, HistoryEvent, shortened
from stillframe.store.layout import is_published
from stillframe.store.store import Store


def happening(event: events.Event) -> HistoryEvent | None:
    """Return what the history says of `event`; None if nothing."""
    match event:
        case events.EpochBegan(epoch, restored_from):
            return history.EpochBegan(epoch, restored_from)
        case events.TakenOver(epoch):
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


def settle(past: History, store: Store) -> list[Abandoned]:
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
