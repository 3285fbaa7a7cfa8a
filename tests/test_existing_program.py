"""``docs/existing-program.md`` followed as it stands: two programs, before and after they join."""

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe.store.store import Store
from stillframe.store.tables import fields_of
from tests.nightly import by_night
from tests.ports import free_port
from tests.reader import Shell, follow, shape, wait_until

PAGE = Path(__file__).parent.parent / "docs" / "existing-program.md"
MASKS = (
    (r"\{[^}]*\}", "MAP"),
    (r"\d+: \w+\(.*?\)|, \.\.\.", ""),
    (r"\b(desk|warehouse)\b", "NAME"),
)

HURRY = {f"sleep {seconds}": "true" for seconds in (2, 5)}
"""The check does not sleep: it waits until what should happen meanwhile has happened (`settle`)."""

pytestmark = [pytest.mark.slow, pytest.mark.nightly(part="soak")]


def answers(path: Path) -> bool:
    """Return whether somebody accepts connections at a socket."""
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.connect(str(path))
        return True
    return False


def says(log: Path, words: str) -> bool:
    """Return whether a program in the background has said so; it may not have opened its log."""
    return log.exists() and words in log.read_text()


def is_sold(store: Path) -> bool:
    """Return whether the last published snapshot has 100 orders sold, and none open."""
    stored = Store.open(store)
    entries = stored.entries()
    if not entries:
        return False
    states = stored.load(entries[-1].id).state.processes
    desk = next(fields_of(state) for state in states if state.process == "desk")
    return (desk["sold"], desk["open"]) == (300, {})


def is_taken(port: int, order: str) -> bool:
    """Send an order, as the page's client repeats it; return whether it was answered."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as server:
        try:
            server.request("PUT", f"/orders/{order}")
            return server.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def settle(command: str, directory: Path, port: int) -> None:
    """Wait until what was started in the background is there."""
    log = directory / "shop.log"
    if "before/warehouse.py &" in command:
        wait_until(lambda: answers(directory / "warehouse.socket"), "the warehouse of before")
    elif "desk.py" in command:
        wait_until(lambda: answers(directory / "desk.socket"), "the desk")
    elif command == "python customer.py 100" and (directory / "shop.store").exists():
        wait_until(lambda: is_sold(directory / "shop.store"), "all is sold")
    elif command.startswith("stillframe run shop"):
        wait_until(lambda: says(log, "waiting for"), "the system waits for both")
    elif command.startswith("stillframe run orders"):
        wait_until(lambda: says(directory / "orders.log", "waiting for"), "it waits for the server")
    elif command.startswith("python orders.py"):
        name = "one" if "orders=" in command else "two"
        wait_until(lambda: is_taken(port, name), "the order is taken")
    elif command.startswith("python warehouse.py & sleep"):
        wait_until(lambda: says(log, "epoch 2: the system runs"), "the system is back")
        wait_until(
            lambda: says(directory / "desk.log", "epoch of the system has ended"), "the desk knows"
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty directory."""
    begun = Shell(tmp_path)
    yield begun
    begun.close()


def test_two_programs_that_exist_become_a_system(shell: Shell, tmp_path: Path) -> None:
    """They do as before; then every command ends and prints as the page says, numbers aside; a
    killed one costs no piece, and no order that an HTTP server has answered is lost."""
    commands, port = [], free_port()
    instead = by_night({}, check=HURRY) | {"8000": str(port)}
    for step, printed in follow(
        PAGE, shell, tmp_path, lambda line: settle(line, tmp_path, port), instead=instead
    ):
        assert shape(printed, *MASKS) == shape(step.output, *MASKS), step.command
        commands.append(step.command)
    assert len(commands) > 12
