"""How often to take a system back before giving up, and how long to wait before the next time."""

from stillframe.errors import ApplicationError, StillframeError

FAILURE_COUNT_MAX = 3
"""So many failures of the application in a row are too many, if each comes soon after a start:
a snapshot may have been taken between them, and the program fails all the same."""
FAILURE_WITHIN_S = 10.0
DEATH_COUNT_MAX = 20
"""So many deaths of any kind in a row, with no new snapshot, are too many."""
STABLE_S = 60.0
"""A system that ran for so long before a death is not failing in a row."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0


class Patience:
    """Counts deaths that follow each other without progress; each is reported to `note`."""

    def __init__(self) -> None:
        self._sequence = -1
        self._death_count = 0
        self._failure_count = 0

    def note(self, *, sequence: int, where: str, ran_s: float, failure: str | None) -> float:
        """Return how many seconds to wait before the system is taken back.

        Args:
            sequence: of the snapshot that it goes back to, 0 for the start.
            where: that snapshot, in words.
            ran_s: how long the epoch lasted, in seconds.
            failure: what the process said of its end, None if it said nothing.

        Raises:
            ApplicationError: the application has failed too often in a row.
            StillframeError: processes have died too often in a row.
        """
        if sequence != self._sequence or ran_s >= STABLE_S:
            self._death_count = 0
        if ran_s >= FAILURE_WITHIN_S:
            self._failure_count = 0
        self._sequence = sequence
        self._death_count += 1
        self._failure_count = self._failure_count + 1 if failure is not None else 0
        if failure is not None and self._failure_count >= FAILURE_COUNT_MAX:
            raise ApplicationError(
                f"{failure}\nIt failed {FAILURE_COUNT_MAX} times in a row, the last time from "
                f"{where}. Mend the program, then go on with 'stillframe restore'."
            )
        if self._death_count >= DEATH_COUNT_MAX:
            raise StillframeError(
                f"processes died {DEATH_COUNT_MAX} times in a row after going back to {where}, "
                "with no new snapshot; nothing is lost, and 'stillframe restore' goes on from there"
            )
        if self._death_count == 1:
            return 0.0
        return min(PAUSE_S_MAX, float(PAUSE_S_MIN * 2 ** (self._death_count - 2)))
