"""Waits of tasks for other tasks, as asyncio keeps them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stillframe.services.task_waits import Task, waits_of_tasks

Wait = Callable[[Task, Task], Awaitable[object]]


async def in_group(first: Task, second: Task) -> None:
    """Let tasks of a group wait for tasks."""
    async with asyncio.TaskGroup() as group:
        group.create_task(nothing(first))
        group.create_task(nothing(second))


async def nothing(awaitable: Awaitable[object]) -> None:
    """Await something."""
    await awaitable


FOUND: dict[str, tuple[Wait, int]] = {
    "a task": (lambda first, second: first, 1),
    "gather": (asyncio.gather, 2),
    "gather of gather": (lambda *both: asyncio.gather(asyncio.gather(*both)), 2),
    "wait_for": (lambda first, second: asyncio.wait_for(first, 60), 1),
    "wait_for of gather": (lambda *both: asyncio.wait_for(asyncio.gather(*both), 60), 2),
    "a group": (in_group, 2),
}
"""Ways to wait for two tasks or the first of them, and for how many tasks."""
NOT_FOUND: dict[str, Wait] = {
    "an event": lambda first, second: asyncio.Event().wait(),
    "wait": lambda *both: asyncio.wait(both),
    "gather with a future": lambda first, second: asyncio.gather(
        first, asyncio.get_running_loop().create_future()
    ),
}


def found_in(wait: Wait, *, has_failed: bool = False) -> Any:
    """Return for how many tasks a task waits, and whether these lead to the two that do not end.

    Args:
        wait: what the task does.
        has_failed: whether the first of the two has just raised an error.
    """

    async def run() -> tuple[int, bool]:
        fails = asyncio.Event()

        async def inner() -> None:
            await fails.wait()
            raise ValueError

        async def stuck() -> None:
            await asyncio.Event().wait()

        both = [asyncio.create_task(inner()), asyncio.create_task(stuck())]
        outer = asyncio.create_task(nothing(wait(*both)))
        for _ in range(3):
            await asyncio.sleep(0)
        if has_failed:
            fails.set()
            await asyncio.sleep(0)
        waits = waits_of_tasks([outer, *both])
        tasks = [outer]
        for task in tasks:
            tasks += waits.get(task, ())
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for task in (outer, *both):
            task.cancel()
        await asyncio.gather(outer, *both, return_exceptions=True)
        return len(waits.get(outer, ())), not set(both).isdisjoint(tasks)

    return asyncio.run(run())


@pytest.mark.parametrize("form", FOUND)
def test_a_wait_for_tasks_is_found(form: str) -> None:
    """And so are the waits of those tasks."""
    wait, count = FOUND[form]
    assert found_in(wait) == (count, True)


@pytest.mark.parametrize("form", NOT_FOUND)
def test_a_wait_that_something_else_can_end_is_not_found(form: str) -> None:
    """Otherwise a task that can continue would be taken for a blocked one."""
    assert found_in(NOT_FOUND[form]) == (0, False)


@pytest.mark.parametrize("form", [form for form in FOUND if form != "a group"])
def test_a_wait_that_an_error_ends_is_not_found(form: str) -> None:
    """Although the task that waits has not run yet."""
    wait, _ = FOUND[form]
    assert found_in(wait, has_failed=True) == (0, False)
