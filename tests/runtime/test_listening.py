"""Whoever connects while a server ends is neither served nor left waiting."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from stillframe.runtime.run_file import listen_for_commands, socket_path
from stillframe.runtime.supervisor.admin_socket import serve_commands
from stillframe.runtime.supervisor.supervisor import Supervisor

LOOPS = [asyncio.run, uvloop.run]
TIMEOUT_S = 30.0
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.mark.parametrize("run", LOOPS)
def test_who_gives_a_command_while_the_system_ends_is_hung_up_on(run: Run, tmp_path: Path) -> None:
    """At whatever step its connection was; nothing of it stays open."""
    for step_count in range(10):
        directory = tmp_path / str(step_count)
        directory.mkdir()
        system = cast(Supervisor, SimpleNamespace(admin_socket=listen_for_commands(str(directory))))

        async def main(
            somebody: socket.socket, step_count: int, system: Supervisor, path: Path
        ) -> None:
            async with serve_commands(system):
                somebody.connect(str(path))
                for _ in range(step_count):
                    await asyncio.sleep(0)

        with socket.socket(socket.AF_UNIX) as somebody:
            somebody.settimeout(TIMEOUT_S)
            run(main(somebody, step_count, system, socket_path(str(directory))))
            gc.collect()
            try:
                assert somebody.recv(1) == b""
            except ConnectionResetError:
                pass  # nobody had taken it yet
