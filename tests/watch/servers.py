"""Running systems and servers of their pages: programs as people start them, and servers in a
thread of the test, which start faster."""

import asyncio
import concurrent.futures
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stillframe.cli import watch
from stillframe.errors import StillframeError
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.run_file import RunFile, find_running
from stillframe.runtime.supervisor.admin_socket import TriggerSnapshot, send_command
from stillframe.watch.server import serve
from stillframe.watch.target import Target
from tests.json_page import check_output

STILLFRAME = Path(sys.executable).with_name("stillframe")
ROOT = Path(__file__).parent.parent.parent
CALM = "tests.watch.programs:calm"
WAIT_S = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something that others do has happened."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:g} s in vain: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def a_command(
    *arguments: str, log: Path, cwd: Path = ROOT, out: int | None = subprocess.PIPE
) -> Iterator["subprocess.Popen[str]"]:
    """Start ``stillframe`` with its words in the file `log`, and stop it in order; who takes its
    lines from a pipe must go on taking them."""
    with log.open("w") as words:
        process = subprocess.Popen(
            [STILLFRAME, *arguments], cwd=cwd, stdout=out, stderr=words, text=True
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=WAIT_S)
            finally:
                process.kill()
                process.wait()


@contextlib.contextmanager
def a_system(
    directory: Path, *options: str, topology: str = CALM
) -> Iterator["subprocess.Popen[str]"]:
    """Run a system with its store at `directory`/store, and a snapshot in it already."""
    store = directory / "store"
    with a_command(
        *("run", topology, "--store", str(store), *options),
        log=directory / "run.log",
        out=subprocess.DEVNULL,
    ) as process:
        until(lambda: takes_snapshot(store), "the first snapshot")
        yield process


def takes_snapshot(store: Path) -> bool:
    """Take a snapshot of the system on `store`; return False if it takes no commands yet."""
    try:
        with ThreadPoolExecutor(1) as thread:  # the browser's event loop runs in this one
            done = thread.submit(asyncio.run, send_command(store, TriggerSnapshot(None))).result()
    except StillframeError:
        return False
    return done.entry is not None


def running(store: Path) -> RunFile:
    """Return where the system on `store` is."""
    return find_running(store)


def shown(path: Path, *, otlp: str | None = None) -> AbstractContextManager[Target]:
    """Return what ``stillframe watch`` shows of a store or a pipeline by default, while the body
    runs."""
    return watch._target(path, [], None, None, otlp)


@contextlib.contextmanager
def page_of(path: Path) -> Iterator[str]:
    """Serve the page of a store or a pipeline in a thread, as ``stillframe watch`` does by default;
    yield the link."""
    with shown(path) as target, served(target) as link:
        yield link


@contextlib.contextmanager
def served(target: Target, *, token: str | None = None) -> Iterator[str]:
    """Serve a page in a thread, as ``stillframe watch`` does; yield the link."""
    listening: Future[Address] = Future()
    ends: list[Callable[[], object]] = []

    def run() -> None:
        loop = asyncio.new_event_loop()

        def keep(_: int, end: Callable[[], object]) -> None:
            ends.append(lambda: loop.call_soon_threadsafe(end))

        # A thread gets no signals: what a signal would call is called from outside.
        loop.add_signal_handler = keep  # type: ignore[method-assign, assignment]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            address = Address("127.0.0.1", 0)
            runner.run(serve(target, address, token=token, ready=listening.set_result))

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(run)
        either: list[Future[Any]] = [listening, serving]
        concurrent.futures.wait(either, return_when="FIRST_COMPLETED")
        if serving.done():
            serving.result()
        try:
            yield f"http://{listening.result()}/"
        finally:
            ends[0]()
            serving.result(timeout=WAIT_S)


@contextlib.contextmanager
def a_server(store: Path, *options: str) -> Iterator[str]:
    """Serve the page of the system on `store`; the link comes in JSON."""
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    log = store.with_name("watch.log")
    with a_command("watch", str(store), "--json", *listen, *options, log=log) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        check_output(["watch", "--json"], line)
        yield json.loads(line)["link"]
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def ask(
    link: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Ask a server as a program does; as its own page does if `headers` are left out."""
    where = urlsplit(link)
    assert where.hostname is not None
    connection = HTTPConnection(where.hostname, where.port, timeout=WAIT_S)
    own = {"Origin": f"http://{where.netloc}", "Content-Type": "application/json"}
    encoded = None if body is None else msgspec.json.encode(body)
    with contextlib.closing(connection):
        connection.request(
            "GET" if body is None else "POST", path, encoded, own if headers is None else headers
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
