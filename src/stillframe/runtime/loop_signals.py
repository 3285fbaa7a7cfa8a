"""Signals that an event loop takes."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping


@contextlib.contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Let the running event loop call a function at each of these signals while the body runs.

    Afterwards they end the program as usual. uvloop itself would leave handlers that do nothing
    when it is closed, and nothing could end what comes after it.
    """
    loop = asyncio.get_running_loop()
    for number, act in handlers.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
