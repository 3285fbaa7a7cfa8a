"""Waits of asyncio tasks for other tasks of their process.

A task that awaits another one, ``gather``, ``wait_for``, or the end of a ``TaskGroup`` continues
only after one of the tasks inside has done something. asyncio keeps who waits for whom in its
callbacks, which it has no function for before Python 3.14. A wait in another form is not found.
"""

import asyncio
import functools
from collections.abc import Iterable
from typing import Any

Task = asyncio.Task[Any]
Future = asyncio.Future[Any]
_RELEASE = getattr(asyncio.tasks, "_release_waiter", None)
"""What ``wait_for`` has as a callback, before Python 3.12."""


def waits_of_tasks(tasks: Iterable[Task]) -> dict[Task, list[Task]]:
    """Return the tasks for which each of some tasks waits, and for which each of those waits. One
    that waits for no task, or also for something else, is left out.

    Args:
        tasks: tasks of the current event loop.
    """
    waiting = [task for task in tasks if not task.done()]
    sources = _sources_of(waiting)
    found: dict[Task, list[Task]] = {}
    while waiting:
        task = waiting.pop()
        if task not in found:
            awaited = _awaited(getattr(task, "_fut_waiter", None), sources)
            if awaited:
                found[task] = awaited
                waiting += awaited
    return found


def is_waiting(task: Task) -> bool:
    """Return whether a task waits, and nothing that ends its wait has happened."""
    future: Future | None = getattr(task, "_fut_waiter", None)
    return future is not None and not future.done()


def _sources_of(tasks: Iterable[Task]) -> dict[Future, tuple[Future, ...]]:
    """Return the futures that complete each plain future on which a task may wait."""
    found: dict[Future, tuple[Future, ...]] = {}
    unread: list[Future] = list(tasks)
    known: set[Future] = set(unread)
    while unread:
        future = unread.pop()
        for callback, _ in getattr(future, "_callbacks", None) or ():
            owner = getattr(callback, "__self__", None)
            outer: Future | None = None
            if isinstance(owner, asyncio.Task):
                outer = owner
            elif isinstance(owner, asyncio.TaskGroup):
                outer = getattr(owner, "_on_completed_fut", None)
                if outer is not None:
                    found[outer] = _inner(owner, "_tasks")
            elif isinstance(callback, functools.partial) and callback.func is _RELEASE:
                outer = callback.args[0]
                found[outer] = (future,)
            else:
                outer = _gathering(callback)
            if outer is not None and outer not in known:
                known.add(outer)
                unread.append(outer)
    return found


def _gathering(callback: Any) -> Future | None:
    """Return the future of the ``gather`` that a callback belongs to."""
    for cell in getattr(callback, "__closure__", None) or ():
        outer = cell.cell_contents
        if isinstance(outer, asyncio.Future) and _inner(outer, "_children"):
            return outer
    return None


def _awaited(future: Future | None, sources: dict[Future, tuple[Future, ...]]) -> list[Task]:
    """Return the tasks that can complete a future; nothing if anything else can, or has."""
    if future is None or future.done():
        return []
    if isinstance(future, asyncio.Task):
        return [future]
    found = []
    for one in sources.get(future) or _inner(future, "_children"):
        if one.done() and not _has_failed(one):
            continue
        tasks = _awaited(one, sources)
        if not tasks:
            return []
        found += tasks
    return found


def _inner(outer: object, name: str) -> tuple[Future, ...]:
    """Return the futures that a group of tasks, or the future of a ``gather``, has."""
    return tuple(getattr(outer, name, ()))


def _has_failed(future: Future) -> bool:
    """Return whether a future that is done may end the wait for others. To read its exception would
    mark it as retrieved."""
    return future.cancelled() or getattr(future, "_exception", None) is not None
