"""The S3 servers that tests use behave as the storage layer needs it."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stillframe.storage.location import Location, locate
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed
from tests.faulty_proxy import faulty_proxy
from tests.nightly import by_night
from tests.s3_servers import S3Server, at_night, use
from tests.spark.flows import wait_until

pytestmark = pytest.mark.slow
RACER_COUNT = 8
RACE_COUNT = by_night(100, check=3)


@pytest.fixture(params=["moto_bucket", *at_night("versitygw_bucket")])
def bucket(request: pytest.FixtureRequest) -> Location:
    """An empty bucket of each server."""
    return locate(str(request.getfixturevalue(request.param)))


def test_of_racing_conditional_writes_one_wins(bucket: Location) -> None:
    """Whether an object is made or replaced, and the others are told so."""
    storage = storage_of(bucket)

    def make(number: int) -> bool:
        try:
            storage.put_if_absent(place, b"%d" % number)
        except FileExistsError:
            return False
        return True

    def replace(number: int) -> bool:
        try:
            storage.replace_if_unchanged(place, b"new %d" % number, version)
        except Changed:
            return False
        return True

    with ThreadPoolExecutor(RACER_COUNT) as pool:
        for race in range(RACE_COUNT):
            place = bucket / f"races/{race}"
            winners = [n for n, won in enumerate(pool.map(make, range(RACER_COUNT))) if won]
            content, version = storage.read(place, bytes_max=9)
            assert [content] == [b"%d" % number for number in winners]
            winners = [n for n, won in enumerate(pool.map(replace, range(RACER_COUNT))) if won]
            assert [storage.read(place, bytes_max=9)[0]] == [b"new %d" % n for n in winners]


def test_a_client_that_waits_for_100_gets_it_once(moto_bucket: str, moto_server: S3Server) -> None:
    """The client of Spark takes a second 100 for the result."""
    path = moto_bucket.removeprefix("s3:/")
    headers = "Host: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n"
    head = f"PUT {path}/key HTTP/1.1\r\n{headers}\r\n"
    with (
        socket.create_connection(("127.0.0.1", moto_server.port), timeout=30) as connection,
        connection.makefile("rb") as lines,
    ):
        connection.sendall(head.encode())
        assert lines.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert lines.readline() == b"\r\n"
        connection.sendall(b"x")
        assert lines.readline().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "server",
    [
        "moto()",
        pytest.param(
            "versitygw(pathlib.Path(sys.argv[1]))",
            marks=pytest.mark.nightly(part="storage", only=True),
        ),
    ],
)
def test_a_server_ends_with_the_program_that_started_it(server: str, tmp_path: Path) -> None:
    """Even if that is killed: its port is closed then."""
    start = (
        "import os, pathlib, signal, sys; from tests.s3_servers import moto, versitygw\n"
        f"with {server} as server:\n"
        "    print(server.port, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = subprocess.run(
        [sys.executable, "-c", start, tmp_path], stdout=subprocess.PIPE, text=True, check=False
    )
    assert program.returncode == -signal.SIGKILL
    wait_until(lambda: not is_open(int(program.stdout)), 60)


def is_open(port: int) -> bool:
    """Return whether a program listens on a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_child_processes_find_the_server(bucket: Location) -> None:
    """In the variables that they inherit."""
    storage_of(bucket).put(bucket / "greeting", b"hello")
    read = (
        "import sys; from stillframe.storage.location import locate;"
        "from stillframe.storage.opened import storage_of;"
        "place = locate(sys.argv[1]);"
        "print(storage_of(place).read(place, bytes_max=9)[0].decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", read, str(bucket / "greeting")],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "hello\n"


def test_a_large_object_takes_one_request(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not uploaded in parts: these would cost more, and stay if the program died."""
    with faulty_proxy(moto_server.port) as proxy:
        use(moto_server, monkeypatch, port=proxy.port)
        place = locate(f"s3://{moto_server.new_bucket()}/x")
        storage_of(place).put(place, bytes(6 * 2**20))
        assert [request.method for request in proxy.requests] == ["PUT"]
