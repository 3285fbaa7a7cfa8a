"""What the storage layer makes of each failure of an object store, behind a proxy that injects it.

The server behind it is moto.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.storage import object_store, remote
from stillframe.storage.location import ObjectPath, io_advice, locate
from stillframe.storage.opened import object_store_of, storage_of
from stillframe.storage.storage import Changed, Listed, RequestCounts, Storage
from tests.faulty_proxy import (
    CUT_AFTER,
    CUT_BEFORE,
    TRUNCATED,
    Answer,
    Fault,
    FaultyProxy,
    Request,
    faulty_proxy,
    nth,
)
from tests.ports import free_port
from tests.s3_servers import KEY, SECRET, S3Server, use

SILENT_S = 1.0
PASSING = {
    "500": Fault(500, is_forwarded=False),
    "503": Fault(503, is_forwarded=False),
    "429": Fault(429, is_forwarded=False),
    "409": Fault(409, is_forwarded=False),
    "500 after": Fault(500),
    "closed before": CUT_BEFORE,
    "closed after": CUT_AFTER,
}


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up soon."""
    monkeypatch.setattr(object_store, "SILENT_S", SILENT_S)


@pytest.fixture
def proxy(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before a server; the pauses are short."""
    for name in ("PAUSE_S_MIN", "PAUSE_S_MAX"):
        monkeypatch.setattr(remote, name, 0.001)
    with faulty_proxy(moto_server.port) as running:
        use(moto_server, monkeypatch, port=running.port)
        yield running


@pytest.fixture
def place(moto_server: S3Server, proxy: FaultyProxy) -> ObjectPath:
    """A place in an empty bucket, behind the proxy."""
    found = locate(f"s3://{moto_server.new_bucket()}/a/b")
    assert isinstance(found, ObjectPath)
    return found


@pytest.fixture
def storage(place: ObjectPath) -> Storage:
    """Its storage."""
    return storage_of(place)


def fail(proxy: FaultyProxy, fault: Fault) -> None:
    """Let the next request fail."""
    proxy.plan = nth(len(proxy.requests) + 1, fault)


@pytest.mark.parametrize("name", PASSING)
def test_a_failure_that_passes(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, name: str
) -> None:
    """Each request is repeated, and a conditional write takes effect once and says so."""
    fault = PASSING[name]
    fail(proxy, fault)
    version = storage.put_if_absent(place, b"one")
    fail(proxy, fault)
    assert storage.read(place, bytes_max=9) == (b"one", version)
    fail(proxy, fault)
    version = storage.replace_if_unchanged(place, b"two", version)
    fail(proxy, fault)
    assert storage.exists(place)
    fail(proxy, fault)
    assert storage.read_range(place, 1, 2) == b"wo"
    fail(proxy, fault)
    assert len(storage.children(place.parent)) == 1
    fail(proxy, fault)
    storage.copy(place, place.with_name("c"))
    fail(proxy, fault)
    storage.put(place.with_name("d"), b"three")
    fail(proxy, fault)
    assert len(storage.files_below(place.parent)) == 3
    fail(proxy, fault)
    storage.delete([place.with_name("c"), place.with_name("d")])
    assert storage.read(place, bytes_max=9) == (b"two", version)
    counts = object_store_of(place).counts
    assert counts.repeated == 10
    assert counts.requests == len(proxy.requests)


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_silent_server(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, is_forwarded: bool
) -> None:
    """It is asked again, whether it carried the request out or not."""
    fail(proxy, Fault(Answer.SILENCE, is_forwarded=is_forwarded))
    version = storage.put_if_absent(place, b"one")
    fail(proxy, Fault(Answer.SILENCE, is_forwarded=is_forwarded))
    assert storage.read(place, bytes_max=9) == (b"one", version)
    assert object_store_of(place).counts.repeated >= 2


def test_a_body_that_is_cut_short(proxy: FaultyProxy, storage: Storage, place: ObjectPath) -> None:
    """It is no end of the file: the request is repeated."""
    content = os.urandom(100_000)
    storage.put(place, content)
    fail(proxy, TRUNCATED)
    assert storage.read(place, bytes_max=10**6)[0] == content
    fail(proxy, TRUNCATED)
    assert storage.read_range(place, 1000, 50_000) == content[1000:51_000]
    fail(proxy, TRUNCATED)
    assert storage.read_end(place, 50_000) == (content[-50_000:], len(content))
    assert object_store_of(place).counts.repeated == 3


def test_another_program_was_first(proxy: FaultyProxy, storage: Storage, place: ObjectPath) -> None:
    """The attempt did not take effect, and another one's write with equal bytes did meanwhile."""

    def other_first(request: Request) -> Fault | None:
        proxy.plan = lambda request: None
        threading.Thread(target=storage.put, args=(place, b"one")).run()
        return CUT_BEFORE

    proxy.plan = other_first
    with pytest.raises(FileExistsError):
        storage.put_if_absent(place, b"one")
    version = storage.read(place, bytes_max=9)[1]
    storage.put(place, b"two")
    proxy.plan = nth(len(proxy.requests) + 1, CUT_BEFORE)
    with pytest.raises(Changed):
        storage.replace_if_unchanged(place, b"three", version)
    assert storage.read(place, bytes_max=9)[0] == b"two"


def test_a_repeat_that_this_program_does_not_see(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath
) -> None:
    """A load balancer sent the write twice, so the first answer is a refusal of our own write."""
    proxy.plan = nth(1, Fault(412))
    version = storage.put_if_absent(place, b"one")
    proxy.plan = nth(len(proxy.requests) + 1, Fault(412))
    version = storage.replace_if_unchanged(place, b"two", version)
    assert storage.read(place, bytes_max=9) == (b"two", version)


def test_a_refusal_that_nothing_explains(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses although the condition holds: that is no success, and no refusal."""
    monkeypatch.setattr(remote, "REPEAT_S", 0.05)
    proxy.plan = lambda request: Fault(412, is_forwarded=False) if request.method == "PUT" else None
    with pytest.raises(OSError, match="it reported a conflict"):
        storage.put_if_absent(place, b"one")
    assert not storage.exists(place)


def test_an_outcome_that_stays_unknown(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write took effect, its answer was lost, and reading back fails, too."""
    monkeypatch.setattr(remote, "REPEAT_S", 0.05)
    proxy.plan = lambda request: CUT_AFTER
    with pytest.raises(OSError, match="closed the connection") as raised:
        storage.put_if_absent(place, b"one")
    assert type(raised.value) is OSError
    proxy.plan = lambda request: None
    assert storage.read(place, bytes_max=9)[0] == b"one"


def test_a_server_that_is_gone(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says so."""
    monkeypatch.setattr(remote, "REPEAT_S", 0.05)
    use(moto_server, monkeypatch, port=free_port())
    place = locate("s3://gone-server/a")
    with pytest.raises(OSError, match="it cannot be reached"):
        storage_of(place).read(place, bytes_max=9)


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("gs://bucket/a", {"STORAGE_EMULATOR_HOST": "127.0.0.1:{}"}),
        (
            "abfss://container@devstoreaccount1.dfs.core.windows.net/a",
            {
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:{}",
            },
        ),
    ],
)
def test_an_emulator_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, address: str, settings: dict[str, str]
) -> None:
    """Nothing else is asked for credentials: the error is that of the emulator, which is gone."""
    monkeypatch.setattr(remote, "REPEAT_S", 0.05)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(free_port()))
    place = locate(address)
    for attempt in (
        lambda: storage_of(place).put(place, b"1"),
        lambda: storage_of(place).exists(place),
    ):
        with pytest.raises(OSError, match="it cannot be reached"):
            attempt()


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (403, "the credentials do not allow it, or are wrong or missing"),
        (400, r"status 400 \(Error\)"),
        (301, "the bucket is in another region"),
    ],
)
def test_what_is_not_repeated(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, status: int, sentence: str
) -> None:
    """One request, and a sentence that repeats nothing of what was sent and received."""
    proxy.plan = lambda request: Fault(status, is_forwarded=False)
    with pytest.raises(OSError, match=sentence) as raised:
        storage.put_if_absent(place, b"one")
    assert len(proxy.requests) == 1
    shown = "".join(traceback.format_exception(raised.value))
    for secret in (KEY, SECRET, "Signature", "of a test"):
        assert secret not in shown


def test_a_missing_bucket(proxy: FaultyProxy) -> None:
    """It is not a missing file."""
    place = locate("s3://no-such-bucket/a")
    storage = storage_of(place)
    attempts: list[Callable[[], object]] = [
        lambda: storage.put(place, b"one"),
        lambda: storage.put_if_absent(place, b"one"),
        lambda: storage.read(place, bytes_max=9),
        lambda: storage.children(place),
        lambda: storage.files_below(place),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="there is no bucket s3://no-such-bucket") as raised:
            attempt()
        assert raised.value.errno == errno.ENXIO


def test_waiting_for_a_slot_is_no_failure(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waited for longer than requests are repeated is repeated nevertheless."""
    bucket = object_store_of(place)
    storage.put(place, b"one")
    monkeypatch.setattr(bucket, "_free", threading.BoundedSemaphore(1))
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(remote, "time", clock)
    before = bucket.counts
    fail(proxy, CUT_BEFORE)
    with bucket._free:
        reader = threading.Thread(target=storage.read, args=(place,), kwargs={"bytes_max": 9})
        reader.start()
        now[0] += 10 * remote.REPEAT_S
    reader.join()
    assert bucket.counts.requests - before.requests == 2
    assert bucket.counts.seconds == before.seconds


def test_requests_at_a_time_are_limited(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait."""
    bucket = object_store_of(place)
    monkeypatch.setattr(bucket, "_free", threading.BoundedSemaphore(2))
    arrived, most, inside = threading.Lock(), [0], [0]
    both = threading.Barrier(2)

    def plan(request: Request) -> None:
        with arrived:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        both.wait(10)
        with arrived:
            inside[0] -= 1

    proxy.plan = plan
    threads = [threading.Thread(target=storage.exists, args=(place,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [2]


@pytest.mark.usefixtures("short_silence")
def test_a_large_content_has_time_to_be_sent(
    place: ObjectPath, moto_server: S3Server, proxy: FaultyProxy
) -> None:
    """More than the silence that a small request may have."""
    content = os.urandom(object_store.LARGE_BYTES + 1)
    proxy.plan = lambda request: Fault(Answer.WHOLE, delay_s=1.5 * SILENT_S)
    storage_of(place).put(place, content)
    proxy.plan = lambda request: None
    assert len(proxy.requests) == object_store_of(place).counts.requests == 1
    assert object_store_of(place).counts.repeated == 0
    assert storage_of(place).read(place, bytes_max=len(content))[0] == content


def test_counts_are_exact(proxy: FaultyProxy, storage: Storage, place: ObjectPath) -> None:
    """Those of requests agree with the server, those of bytes with the contents."""
    bucket = object_store_of(place)
    storage.put(place, b"12345")
    version = storage.read(place, bytes_max=99)[1]
    storage.read_range(place, 1, 2)
    storage.read_end(place, 4)
    storage.replace_if_unchanged(place, b"123", version)
    storage.exists(place)
    storage.children(place.parent)
    storage.files_below(place.parent)
    storage.copy(place, place.with_name("c"))
    storage.delete([place, place.with_name("c")])
    with pytest.raises(FileNotFoundError):
        storage.read(place, bytes_max=9)
    counts = bucket.counts
    assert counts == RequestCounts(11, 0, 8, 11, counts.seconds)
    assert len(proxy.requests) == 11
    assert counts.seconds > 0


WAIT = """
import sys
from stillframe.storage import object_store
from stillframe.storage.location import locate
from stillframe.storage.opened import storage_of
place = locate("s3://silent/a")
print("begins", flush=True)
try:
    storage_of(place).read(place, bytes_max=9)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_silent_request(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At once, although the server never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use(moto_server, monkeypatch, port=silent.getsockname()[1])
        with subprocess.Popen(
            [sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True
        ) as program:
            connection, _ = silent.accept()
            assert connection.recv(1)
            program.send_signal(signal.SIGINT)
            out, _ = program.communicate(timeout=object_store.SILENT_S / 2)
            connection.close()
    assert out == "begins\ninterrupted\n"
    assert program.returncode == 0


def test_a_forked_child_does_not_hang(storage: Storage, place: ObjectPath) -> None:
    """The threads of the library are not in it, so it fails with a sentence."""
    storage.put(place, b"one")
    program = """
import os, sys
from stillframe.storage.location import locate
from stillframe.storage.opened import storage_of
place = locate(sys.argv[1])
storage = storage_of(place)
storage.exists(place)
child = os.fork()
if child == 0:
    for found in (storage, storage_of(place)):
        try:
            found.exists(place)
        except OSError as error:
            print(error.strerror, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(place)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout.count("cannot use object stores that its parent has used") == 2, said.stderr


def put_foreign(proxy: FaultyProxy, directory: ObjectPath, name: str) -> None:
    """Put an empty object, or one with a byte, as other programs name them."""
    url = f"http://127.0.0.1:{proxy.port}/{str(directory).removeprefix('s3://')}/{name}"
    content = b"" if name.endswith("/") else b"x"
    urllib.request.urlopen(urllib.request.Request(url, content, method="PUT"), timeout=30).close()


def test_marks_of_directories_are_no_files(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath
) -> None:
    """Other programs make them, also for an empty directory."""
    storage.put(place / "full" / "x", b"1")
    for name in ("", "full/", "empty/"):
        put_foreign(proxy, place, name)
    assert storage.files_below(place) == [Listed(place / "full" / "x", 1)]
    assert storage.children(place) == [Listed(place / "empty", None), Listed(place / "full", None)]


@pytest.mark.parametrize("name", ["c//d", "c/../d"])
def test_a_name_that_no_path_can_have_is_shown(
    proxy: FaultyProxy, storage: Storage, place: ObjectPath, name: str
) -> None:
    """A listing cannot leave it out: the object store's library does not return any other."""
    put_foreign(proxy, place, name)
    with pytest.raises(OSError, match=f"a name that no path can have: 'a/b/{name}'") as raised:
        storage.files_below(place)
    assert io_advice(place, raised.value) == "delete that object, or rename it"


@pytest.mark.parametrize(
    ("root", "variable", "value", "words"),
    [
        ("s3://b", "AWS_SECRET_ACCESS_KEY", None, "settings: Generic S3 error: Missing Secret"),
        ("s3://b", "AWS_SECRET_ACCESS_KEY", "secret\n", "AWS_SECRET_ACCESS_KEY in the environment"),
        ("s3://b", "AWS_ENDPOINT_URL", "ftp://secret", "AWS_ENDPOINT_URL does not begin with http"),
        ("abfss://b@c.dfs.core.windows.net", "AZURE_STORAGE_ACCOUNT_KEY", "secret", "Access Key"),
        ("gs://b", "GOOGLE_APPLICATION_CREDENTIALS", "/none", "service account file from /none"),
        (
            "abfss://box@acme.dfs.core.windows.net",
            "AZURE_STORAGE_ENDPOINT",
            "http://me:secret@host:99999",
            "invalid port number",
        ),
    ],
)
def test_wrong_settings_are_named(
    moto_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    root: str,
    variable: str,
    value: str | None,
    words: str,
) -> None:
    """Before any request, and without their values."""
    use(moto_server, monkeypatch)
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=words) as raised:
        object_store.ObjectStore(root)
    assert "secret" not in str(raised.value)
