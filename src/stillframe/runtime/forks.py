"""Notices when the child of a fork that a handler made comes back to the event loop.

Such a child shares the sockets of its parent and what the event loop waits with: it would take over
the connections, and the whole system would stand still without a word. It ends instead, before it
touches any of them. What we fork ourselves never comes back.
"""

import contextlib
import os
from typing import NoReturn

from stillframe.model import ProcessId

EXIT_RETURNED = 70
_STDERR = 2


class _Forks:
    """Attributes:
    is_child: whether this was forked off the process in which the host was made.
    """

    def __init__(self) -> None:
        self.is_child = False
        self._has_host = False

    def host_made(self) -> None:
        """Note that a host belongs to this very process: children of it are strangers to it."""
        self.is_child, self._has_host = False, True

    def forked(self) -> None:
        """Note, in the child, that it was forked."""
        self.is_child = self._has_host


forks = _Forks()
os.register_at_fork(after_in_child=forks.forked)


def leave(process: ProcessId, handler: str) -> NoReturn:
    """Say on stderr which handler forked, and end this child at once."""
    words = (
        f"process {process}: {handler} called os.fork(), and the child (operating-system process "
        f"{os.getpid()}) returned from it: only the parent may. The child was ended before it "
        "could use the connections of its parent. End it with os._exit() inside the handler, or "
        "use the module subprocess\n"
    )
    with contextlib.suppress(OSError):
        os.write(_STDERR, words.encode())
    os._exit(EXIT_RETURNED)
