"""S3 servers for tests: moto in ``./check``, versitygw at night.

moto keeps objects in memory, and takes 0.6 s of CPU to start. versitygw keeps them as files, and
all claims about durability, races and speed rest on it. Each test gets a bucket of its own, and
finds the server as any user's program does: in the variables of AWS, which child processes inherit.
"""

import contextlib
import io
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stillframe.storage.location import ObjectPath, locate
from tests.ports import free_port

SERVERS = Path(__file__).parent.parent / ".servers"
"""Where ``./check nightly`` puts them."""
VERSITYGW = SERVERS / "versitygw"
KEY, SECRET, REGION = "tester", "secret-of-tests", "us-east-1"
START_S = 60
OTHERS = ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN")
"""Variables of the developer's own account, which a test must not see."""


@dataclass(frozen=True)
class S3Server:
    """A running server: where it listens, and for versitygw the directory of its buckets."""

    port: int
    directory: Path | None = None

    def new_bucket(self) -> str:
        """Make an empty bucket; return its name."""
        name = f"test-{secrets.token_hex(6)}"
        if self.directory is not None:
            (self.directory / name).mkdir()
            return name
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")  # no signature needed
        urllib.request.urlopen(request, timeout=30).close()
        return name

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


def environment(server: S3Server, *, port: int | None = None) -> dict[str, str]:
    """Return the variables that lead to a server, or to the `port` of a proxy in front of it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or server.port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch, *, port: int | None = None) -> None:
    """Lead a test and the programs that it starts to a server, or to a proxy in front of it."""
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(server, port=port).items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def moto() -> Iterator[S3Server]:
    """Run moto in a process of its own, which ends with this one, too."""
    command = [sys.executable, "-m", "tests.s3_servers"]
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as program:
        try:
            assert program.stdout is not None
            yield S3Server(int(program.stdout.readline()))
        finally:
            program.kill()


@contextlib.contextmanager
def versitygw(directory: Path) -> Iterator[S3Server]:
    """Run versitygw, with its buckets below `directory`."""
    buckets = directory / "buckets"
    buckets.mkdir()

    def command(port: int) -> list[str | Path]:
        listening = ("--port", f"127.0.0.1:{port}")
        return [VERSITYGW, "--quiet", *listening, "posix", buckets]

    with running(command, directory) as port:
        yield S3Server(port, buckets)


@contextlib.contextmanager
def running(
    command: Callable[[int], list[str | Path]],
    directory: Path,
    *,
    is_ready: Callable[[], bool] | None = None,
    start_s: float = START_S,
) -> Iterator[int]:
    """Run the server that `command` returns for a port, with a log in `directory`; its value is
    the port, once that is open, or the server `is_ready`. It ends with this program, even if that
    is killed."""
    assert SERVERS.exists(), f"{SERVERS} is missing: ./check nightly makes it"
    port = free_port()  # none of them can be asked for any free port
    with (directory / "log").open("wb") as log:
        program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command(port)],
            cwd=directory,
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            # Not that of tests.spark.flows: each program that imports this would import PySpark.
            pause, until = threading.Event(), time.monotonic() + start_s
            while not (_is_open(port) if is_ready is None else is_ready()):
                assert program.poll() is None, Path(log.name).read_text()[-3000:]
                assert time.monotonic() < until, (
                    f"no answer after {start_s} s, and its log is {log.name}"
                )
                pause.wait(0.02)
            yield port
        finally:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    """One server in memory for all tests of a process."""
    with moto() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real server for all tests of a process, at night."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
def moto_bucket(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket in memory, as the address that a user gives."""
    use(moto_server, monkeypatch)
    return f"s3://{moto_server.new_bucket()}"


@pytest.fixture
def versitygw_bucket(versitygw_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket of a real server, as the address that a user gives; at night."""
    use(versitygw_server, monkeypatch)
    return f"s3://{versitygw_server.new_bucket()}"


def at_night(*fixtures: str) -> list[Any]:
    """Return the cases of a test for buckets of servers that only run at night."""
    only = pytest.mark.nightly(part="storage", only=True)
    return [pytest.param(name, marks=only) for name in fixtures]


@pytest.fixture(params=["memory", *at_night("versitygw_bucket")])
def bucket(request: pytest.FixtureRequest) -> ObjectPath:
    """An empty bucket: in the memory of this process, at night of a real server."""
    if request.param == "memory":
        return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "")
    found = locate(str(request.getfixturevalue(request.param)))
    assert isinstance(found, ObjectPath)
    return found


def serve() -> None:
    """Serve S3 from memory until the program that started this one ends: then stdin does.

    moto looks and then writes, so only one request at a time makes its conditional writes atomic.
    """
    import warnings  # noqa: PLC0415 - only here are these needed

    from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class Quiet(WSGIRequestHandler):
        def handle_expect_100(self) -> bool:
            return True  # werkzeug itself answers 100, and Java takes a second one for the result

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - its name
            pass

    one = threading.Lock()
    moto_s3 = create_backend_app("s3")

    def serial(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        # A client may be slow, or stop: read its request first.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with one:
            return list(moto_s3(environ, start_response))

    warnings.simplefilter("ignore")
    server = make_server("127.0.0.1", 0, serial, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)  # noqa: T201 - its caller reads it
    sys.stdin.read()


if __name__ == "__main__":
    serve()
