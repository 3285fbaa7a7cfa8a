"""What the processes of a system write of themselves, beside what they tell the coordinator."""

import msgspec

CLOSE_S_MAX = 5.0
"""How long the end of a process waits for its event log, and again for its fragments."""


class Traces(msgspec.Struct, frozen=True):
    """Where it goes; all of it is left out that has no directory.

    Attributes:
        log: the directory of the event log (``eventlog``).
        fragments: the directory of what each process records of snapshots (``store.fragments``).
    """

    log: str | None = None
    fragments: str | None = None

    @property
    def are_written(self) -> bool:
        """Whether there are any: then the end of a process takes a while."""
        return self.log is not None or self.fragments is not None


NO_TRACES = Traces()
