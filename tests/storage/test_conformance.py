"""Every kind of storage keeps the same promises."""

import contextlib
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.storage.location import Location, locate
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed, Listed, Storage, Version
from tests.nightly import by_night
from tests.s3_servers import at_night
from tests.storage import fake_hdfs

ROOT = Path(__file__).parent.parent.parent
WRITER_COUNT = 8
RACE_COUNT = by_night(1000, check=50)


@pytest.fixture(
    params=[
        "local",
        "memory",
        pytest.param("moto_bucket", marks=pytest.mark.slow),
        *at_night("versitygw_bucket", "fake_gcs_bucket", "azurite_bucket"),
        "fake_hdfs",
        *at_night("hdfs"),
    ]
)
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    """An empty place in each kind of storage."""
    if request.param == "fake_hdfs":
        fake_hdfs.use(monkeypatch)
        return locate(f"hdfs://fake-{secrets.token_hex(8)}/tests/root")
    if request.param == "local":
        return tmp_path / "root"
    if request.param == "memory":
        return locate(f"memory://test-{secrets.token_hex(8)}/root")
    return locate(f"{request.getfixturevalue(request.param)}/root")


@pytest.fixture
def storage(root: Location) -> Storage:
    """Its storage."""
    return storage_of(root)


def test_what_was_put_is_read(storage: Storage, root: Location) -> None:
    """Whole, and in ranges."""
    place = root / "a" / "b.bin"
    version = storage.put(place, b"0123456789")
    assert storage.read(place, bytes_max=10) == (b"0123456789", version)
    assert storage.exists(place)
    assert storage.read_range(place, 3, 4) == b"3456"
    assert storage.read_range(place, 8, 4) == b"89"
    assert storage.read_range(place, 10, 4) == b""
    assert storage.read_range(place, 0, 0) == b""


def test_one_byte_more_shows_that_a_file_is_longer(storage: Storage, root: Location) -> None:
    """A reader with a limit needs no second request."""
    storage.put(root / "x", b"0123456789")
    assert storage.read(root / "x", bytes_max=4)[0] == b"01234"
    assert storage.read(root / "x", bytes_max=9)[0] == b"0123456789"


def test_put_replaces(storage: Storage, root: Location) -> None:
    """And the version is another one."""
    first = storage.put(root / "x", b"one")
    second = storage.put(root / "x", b"two")
    assert storage.read(root / "x", bytes_max=9) == (b"two", second)
    assert first != second


def test_an_empty_file_is_a_file(storage: Storage, root: Location) -> None:
    """It is there, and has no bytes."""
    storage.put(root / "x", b"")
    assert storage.read(root / "x", bytes_max=9)[0] == b""
    assert storage.read_end(root / "x", 9) == (b"", 0)
    assert storage.read_range(root / "x", 0, 9) == b""
    assert storage.exists(root / "x")


def test_what_is_missing_is_not_found(storage: Storage, root: Location) -> None:
    """A directory is no file."""
    storage.put(root / "a" / "b", b"1")
    for place in (root / "nothing", root / "a" / "c", root / "a"):
        assert not storage.exists(place)
    for read in (
        lambda: storage.read(root / "nothing", bytes_max=9),
        lambda: storage.read_range(root / "nothing", 0, 1),
        lambda: storage.read_end(root / "nothing", 1),
    ):
        with pytest.raises(FileNotFoundError) as missing:
            read()
        assert missing.value.strerror
        assert missing.value.filename == str(root / "nothing")
    assert storage.children(root / "nothing") == []
    assert storage.files_below(root / "nothing") == []
    storage.delete([root / "nothing"])


def test_listings(storage: Storage, root: Location) -> None:
    """One level, or all files; sorted by name."""
    for name in ("b", "a/1", "a/2/3", "ab/x"):
        place = root
        for part in name.split("/"):
            place = place / part
        storage.put(place, b"x" * len(name))
    assert storage.children(root) == [
        Listed(root / "a", None),
        Listed(root / "ab", None),
        Listed(root / "b", 1),
    ]
    assert storage.children(root / "a") == [
        Listed(root / "a" / "1", 3),
        Listed(root / "a" / "2", None),
    ]
    assert storage.files_below(root / "a") == [
        Listed(root / "a" / "1", 3),
        Listed(root / "a" / "2" / "3", 5),
    ]


def test_put_if_absent_writes_once(storage: Storage, root: Location) -> None:
    """Also if the content is the same; and nothing is left of what lost."""
    version = storage.put_if_absent(root / "a" / "x", b"one")
    for content in (b"two", b"one"):
        with pytest.raises(FileExistsError):
            storage.put_if_absent(root / "a" / "x", content)
    assert storage.read(root / "a" / "x", bytes_max=9) == (b"one", version)
    assert storage.children(root / "a") == [Listed(root / "a" / "x", 3)]


def test_only_the_expected_version_is_replaced(storage: Storage, root: Location) -> None:
    """An older version, or a deleted file, is refused, and nothing is written."""
    first = storage.put(root / "x", b"one")
    second = storage.replace_if_unchanged(root / "x", b"two", first)
    with pytest.raises(Changed):
        storage.replace_if_unchanged(root / "x", b"three", first)
    assert storage.read(root / "x", bytes_max=9) == (b"two", second)
    storage.delete([root / "x"])
    with pytest.raises(Changed):
        storage.replace_if_unchanged(root / "x", b"three", second)
    assert not storage.exists(root / "x")


def test_a_copy_outlives_its_source(storage: Storage, root: Location) -> None:
    """Into a directory that did not exist."""
    storage.put(root / "x", b"one")
    storage.copy(root / "x", root / "deep" / "er" / "y")
    storage.delete([root / "x"])
    assert storage.read(root / "deep" / "er" / "y", bytes_max=9)[0] == b"one"


def test_many_are_deleted_at_once(storage: Storage, root: Location) -> None:
    """More than one request can name; most of them do not exist."""
    places = [root / f"f{number}" for number in range(1100)]
    for place in places[::100]:
        storage.put(place, b"1")
    storage.delete(places)
    assert storage.children(root) == []


@pytest.mark.parametrize("name", ["größe", "a b", "x%20y", "(1)+[2]=3&4", "~'!$,;@:"])
def test_names_are_kept(storage: Storage, root: Location, name: str) -> None:
    """Whatever a key may consist of; HDFS allows no ':'."""
    if str(root).startswith("hdfs:") and ":" in name:
        with pytest.raises(OSError, match="must not have a ':'"):
            storage.put(root / name, b"1")
        return
    storage.put(root / name, b"1")
    assert storage.children(root) == [Listed(root / name, 1)]
    assert storage.read(root / name, bytes_max=9)[0] == b"1"


def race(write: Callable[[bytes], object]) -> list[bytes]:
    """Return what those writers wrote that won."""
    winners: list[bytes] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(WRITER_COUNT)

    def run(number: int) -> None:
        content = b"writer %d" % number
        barrier.wait()
        try:
            write(content)
        except (FileExistsError, Changed):
            return
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)
            return
        winners.append(content)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(WRITER_COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return winners


def test_one_of_eight_writers_is_first(storage: Storage, root: Location) -> None:
    """Exactly one, and what it wrote is there."""
    for number in range(RACE_COUNT):
        place = root / f"manifest-{number}"
        winners = race(lambda content, place=place: storage.put_if_absent(place, content))  # type: ignore[misc]
        assert winners == [storage.read(place, bytes_max=99)[0]]


def test_one_of_eight_writers_replaces(storage: Storage, root: Location) -> None:
    """Exactly one, and what it wrote is there."""
    version: Version = storage.put(root / "head", b"begin")
    for _ in range(RACE_COUNT):
        expected = version
        winners = race(lambda c, v=expected: storage.replace_if_unchanged(root / "head", c, v))  # type: ignore[misc]
        content, version = storage.read(root / "head", bytes_max=99)
        assert winners == [content]
        version = storage.put(root / "head", b"begin %d" % _)


class Racers:
    """Programs that write at once, each in a process of its own."""

    def __init__(self) -> None:
        command, pipe = [sys.executable, "-m", "tests.storage.racer"], subprocess.PIPE
        self.programs = [
            subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            for _ in range(WRITER_COUNT)
        ]

    def race(self, place: Location, version: Version | None) -> list[bytes]:
        """Return what those wrote that won."""
        contents = [f"writer {number}" for number in range(WRITER_COUNT)]
        for program, content in zip(self.programs, contents, strict=True):
            assert program.stdin is not None
            program.stdin.write(json.dumps([str(place), content, version]) + "\n")
        for program in self.programs:
            assert program.stdin is not None
            program.stdin.flush()
        answers = [program.stdout.readline() for program in self.programs if program.stdout]
        assert set(answers) <= {"won\n", "lost\n"}
        pairs = zip(contents, answers, strict=True)
        return [content.encode() for content, answer in pairs if answer == "won\n"]

    def close(self) -> None:
        """End them."""
        for program in self.programs:
            program.communicate()
            assert program.returncode == 0


@pytest.mark.slow
@pytest.mark.nightly(part="storage", only=True)
@pytest.mark.parametrize("where", ["tmp_path", "versitygw_bucket"])
def test_one_of_eight_processes_wins(where: str, request: pytest.FixtureRequest) -> None:
    """Exactly one is the first to write a manifest, or to replace a head: what it wrote is there.
    Threads share one client and its connections, and processes share nothing."""
    root = locate(request.getfixturevalue(where))
    storage, head = storage_of(root), root / "head"
    with contextlib.closing(Racers()) as racers:
        for number in range(RACE_COUNT):
            place = root / f"manifest-{number}"
            winners = racers.race(place, None)
            assert winners == [storage.read(place, bytes_max=99)[0]]
            winners = racers.race(head, storage.put(head, b"head %d" % number))
            assert winners == [storage.read(head, bytes_max=99)[0]]


def test_the_end_of_a_file(storage: Storage, root: Location) -> None:
    """With its size; all of a file that is shorter, and nothing of an empty one."""
    storage.put(root / "x", b"0123456789")
    assert storage.read_end(root / "x", 4) == (b"6789", 10)
    assert storage.read_end(root / "x", 40) == (b"0123456789", 10)
    storage.put(root / "empty", b"")
    assert storage.read_end(root / "empty", 4) == (b"", 0)
    with pytest.raises(FileNotFoundError):
        storage.read_end(root / "nothing", 4)
