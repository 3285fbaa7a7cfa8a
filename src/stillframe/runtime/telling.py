"""Tells a listener what happens to a system, and knows when the system must not go on."""

from collections.abc import Callable

from stillframe.errors import StillframeError
from stillframe.protocol.policy import AbandonmentLimit
from stillframe.runtime import events


class Telling:
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
