"""An executor for who has no other threads to give work to, and waits for it anyway."""

from concurrent.futures import Executor, Future
from typing import Any


class Here(Executor):
    """Does everything in the thread that asks, at once.

    Beside a process that is always busy, each turn that another thread needs costs more than it
    gains; and Python waits at its end for the threads of other executors, whatever their disk does.
    """

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`; what is returned is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised again where somebody asks
            done.set_exception(error)
        return done
