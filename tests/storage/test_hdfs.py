"""HDFS: calls that fail, and what each kind of failure means."""

import contextlib
import errno
import itertools
import secrets
import sys
import threading
from collections.abc import Callable

import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.storage import hdfs, remote
from stillframe.storage.location import ObjectPath, io_advice
from stillframe.storage.opened import object_store_of, requests_to, storage_of, trouble_of
from stillframe.storage.storage import Storage
from tests.storage import fake_hdfs
from tests.storage.fake_hdfs import NameSpace, Step


def replace(storage: Storage, below: ObjectPath) -> None:
    """Replace `x` if it is unchanged."""
    version = storage.read(below / "x", bytes_max=9)[1]
    storage.replace_if_unchanged(below / "x", b"new", version)


WRITES: dict[str, tuple[Callable[[Storage, ObjectPath], object], dict[str, bytes]]] = {
    "put": (lambda s, below: s.put(below / "x", b"new"), {"x": b"new"}),
    "create": (lambda s, b: s.put_if_absent(b / "n", b"new"), {"n": b"new", "x": b"old"}),
    "replace": (replace, {"x": b"new"}),
    "copy": (lambda s, below: s.copy(below / "x", below / "n"), {"n": b"old", "x": b"old"}),
    "delete": (lambda s, below: s.delete([below / "x"]), {}),
}
"""What is done to a file `x`, and what is there afterwards."""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """An empty HDFS. The pauses are short."""
    fake_hdfs.use(monkeypatch)
    for name in ("PAUSE_S_MIN", "PAUSE_S_MAX"):
        monkeypatch.setattr(remote, name, 0.001)
    return ObjectPath(f"hdfs://fake-{secrets.token_hex(8)}", "user/me")


@pytest.fixture
def storage(root: ObjectPath) -> Storage:
    """Its storage."""
    return storage_of(root)


@pytest.fixture
def space(storage: Storage, root: ObjectPath) -> NameSpace:
    """Its files."""
    return fake_hdfs.spaces[root.root]


def failing(number: int, error: Exception) -> tuple[list[str], Step]:
    """Return the names of the steps, and what lets only one of them fail, the `number`-th."""
    steps: list[str] = []

    def step(name: str, path: str) -> None:
        steps.append(name)
        if len(steps) == number:
            raise error

    return steps, step


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", WRITES)
def test_each_step_of_a_write_fails_once(
    storage: Storage, root: ObjectPath, space: NameSpace, name: str, when: str
) -> None:
    """Before it takes effect, or after: the write succeeds, and leaves no other file."""
    write, there = WRITES[name]
    for number in itertools.count(1):
        below = root / f"case-{number}"
        storage.put(below / "x", b"old")
        steps, step = failing(number, OSError("Connection reset by peer"))
        setattr(space, when, step)
        write(storage, below)
        setattr(space, when, lambda name, path: None)
        found = [one.location for one in storage.children(below)]
        assert {one.name: storage.read(one, bytes_max=9)[0] for one in found} == there
        assert not [path for path in space.files if "/.partial-" in path]
        if len(steps) < number:
            return


def test_a_rename_that_the_library_repeated_has_won(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """Its second attempt finds no source."""
    version = storage.put_if_absent(root / "y", b"one")

    def twice(name: str, path: str) -> None:
        if name == "rename":
            raise FileNotFoundError("rename source is not found")

    space.after = twice
    storage.put_if_absent(root / "x", b"one")
    storage.replace_if_unchanged(root / "y", b"two", version)
    assert storage.read(root / "x", bytes_max=9)[0] == b"one"
    assert storage.read(root / "y", bytes_max=9)[0] == b"two"


def test_a_copy_whose_rename_the_library_repeated_does_not_miss_its_source(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """The second attempt finds no file to rename: that is not the one that was to be copied."""
    storage.put(root / "x", b"one")
    answers = ["rename"]

    def twice(name: str, path: str) -> None:
        if name in answers:
            answers.remove(name)
            raise FileNotFoundError("rename source is not found")

    space.after = twice
    storage.copy(root / "x", root / "n")
    assert storage.read(root / "n", bytes_max=9)[0] == b"one"
    assert not answers
    assert not [path for path in space.files if "/.partial-" in path]


def test_a_file_that_the_library_created_twice_is_no_other_writer(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """Its second attempt finds the file of the first one, under a name that nobody else has. A file
    that an administrator deletes while it is written is written again, too."""
    version = storage.put_if_absent(root / "y", b"one")
    errors = [FileExistsError("it exists"), FileNotFoundError("No lease on the file")]

    def twice(name: str, path: str) -> None:
        if name == "create" and errors:
            raise errors.pop()

    space.after = twice
    storage.put_if_absent(root / "x", b"one")
    errors.append(FileExistsError("it exists"))
    storage.replace_if_unchanged(root / "y", b"two", version)
    assert not errors
    assert not [path for path in space.files if "/.partial-" in path]


@pytest.mark.parametrize(
    ("answer", "number", "sentence", "advice"),
    [
        (
            "org.apache.hadoop.security.AccessControlException",
            errno.EACCES,
            "do not allow it",
            "check the credentials",
        ),
        (
            "org.apache.hadoop.fs.InvalidPathException",
            errno.EINVAL,
            "must not have a ':'",
            "delete that object, or rename it",
        ),
        (
            "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException",
            errno.EDQUOT,
            "a quota of HDFS is exceeded",
            "make room there",
        ),
        (
            "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException",
            errno.ENAMETOOLONG,
            "its name is too long",
            "give a shorter name",
        ),
    ],
)
def test_some_answers_are_final(
    storage: Storage,
    root: ObjectPath,
    space: NameSpace,
    answer: str,
    number: int,
    sentence: str,
    advice: str,
) -> None:
    """They are not repeated, and no text of Java is shown."""
    steps, space.before = failing(1, RuntimeError(f'RPCError("{answer}", "it\\n\\tat org.apache")'))
    with pytest.raises(OSError, match=sentence) as failed:
        storage.put(root / "x", b"1")
    assert failed.value.errno == number
    assert "org.apache" not in str(failed.value)
    assert steps == ["create", "delete"]
    assert io_advice(root, failed.value).startswith(advice)


def test_others_are_repeated_for_a_while(
    storage: Storage, root: ObjectPath, space: NameSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And named while they last, and then."""
    answer = 'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create")'
    troubles: list[str] = []

    def fail(name: str, path: str) -> None:
        if name == "create":
            troubles.append(trouble_of(root))
            if len(troubles) < 3:
                raise RuntimeError(answer)

    space.before = fail
    monkeypatch.setattr(remote, "REPEAT_S", 3600)
    storage.put(root / "x", b"1")
    assert troubles == ["", *["HDFS answered with SafeModeException"] * 2]
    assert trouble_of(root) == ""
    counts = requests_to(root)
    assert counts is not None
    assert counts.repeated == 2
    assert counts.sent_bytes > 0
    troubles.clear()
    monkeypatch.setattr(remote, "REPEAT_S", 0)
    with pytest.raises(OSError, match="HDFS answered with SafeModeException"):
        storage.put(root / "x", b"1")
    assert trouble_of(root) == "HDFS answered with SafeModeException"


def test_a_call_without_an_answer_ends(
    storage: Storage, root: ObjectPath, space: NameSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt has a new connection."""
    monkeypatch.setattr(hdfs, "ANSWER_S", 0.05)
    monkeypatch.setattr(remote, "REPEAT_S", 0.0)
    store = object_store_of(root)
    assert isinstance(store, hdfs.Hdfs)
    held, before = threading.Event(), store._client

    def hold(name: str, path: str) -> None:
        held.wait(30)

    space.before = hold
    with pytest.raises(OSError, match="did not answer in time"):
        store._call(store._client.get_file_info, "/", wait_s=0.05)
    held.set()
    assert store._client is not before


def test_files_that_were_not_finished_are_not_seen(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """A writer that died leaves them, with any content."""
    storage.put(root / "a" / "x", b"1")
    space.files[f"/user/me/a/.partial-{'0' * 32}"] = b"half"
    assert [one.location.name for one in storage.children(root / "a")] == ["x"]
    assert [one.location.name for one in storage.files_below(root)] == ["x"]


def test_a_replaced_file_is_listed_once(storage: Storage, root: ObjectPath) -> None:
    """With its own length; when it is deleted, so are its versions and the empty directory."""
    version = storage.put_if_absent(root / "a" / "x", b"1")
    storage.replace_if_unchanged(root / "a" / "x", b"333", version)
    for listed in (storage.children(root / "a"), storage.files_below(root)):
        assert [(one.location.name, one.byte_count) for one in listed] == [("x", 3)]
    storage.delete([root / "a" / "x"])
    assert storage.children(root) == []
    assert storage.put_if_absent(root / "a" / "x", b"1") == version


def test_a_directory_that_disappears_in_a_listing_is_left_out(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """The others are listed, although the library ends with an error."""
    for name in ("a", "b"):
        storage.put(root / name / "x", b"1")
    fails = [FileNotFoundError("/user/me/a")]

    def step(name: str, path: str) -> None:
        if name == "list" and fails:
            storage.delete([root / "a" / "x"])
            raise fails.pop()

    space.after = step
    assert [one.location for one in storage.files_below(root)] == [root / "b" / "x"]
    assert storage.files_below(root / "c") == []


@pytest.mark.parametrize("is_deleted", [True, False])
def test_what_changes_during_a_listing_is_listed_as_it_is_then(
    storage: Storage,
    root: ObjectPath,
    space: NameSpace,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_deleted: bool,
) -> None:
    """A file is deleted, or replaced so often that the version which was found is deleted."""
    monkeypatch.setattr(hdfs, "KEPT_COUNT", 1)
    storage.put(root / "b", b"1")
    version = storage.put_if_absent(root / "a", b"1")
    version = storage.replace_if_unchanged(root / "a", b"22", version)

    def change(name: str, path: str) -> None:
        if name == "info" and ".versions" in path:
            space.before = lambda name, path: None
            new = version
            for content in (b"333", b"4444"):
                new = storage.replace_if_unchanged(root / "a", content, new)
            if is_deleted:
                storage.delete([root / "a"])

    space.before = change
    found = [(one.location.name, one.byte_count) for one in storage.children(root)]
    assert found == ([("b", 1)] if is_deleted else [("a", 4), ("b", 1)])


def test_a_copy_that_failed_leaves_no_file(
    storage: Storage, root: ObjectPath, space: NameSpace
) -> None:
    """Its rename fails once, and then for good."""
    storage.put(root / "x", b"1")
    for error in (
        OSError("Connection reset by peer"),
        RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "it'),
    ):
        _, space.before = failing(4, error)
        with contextlib.suppress(OSError):
            storage.copy(root / "x", root / "n")
        space.before = lambda name, path: None
    assert {path.rpartition("/")[2] for path in space.files} == {"x", "n"}


def test_a_file_that_seems_to_have_versions_is_read_in_part(
    storage: Storage, root: ObjectPath, space: NameSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write there cannot make a reader take more than it asked for."""
    monkeypatch.setattr(hdfs, "REPLACED_BYTES_MAX", 100)
    storage.put(root / "x", b"0" * 101)
    space.files[f"/user/me/.x.versions/{1:012}-{'0' * 16}-{'0' * 16}"] = b"1"
    space.directories.add("/user/me/.x.versions")
    with pytest.raises(OSError, match="too large"):
        storage.read(root / "x", bytes_max=9)


def test_what_is_not_installed_is_named(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it; an address that the library refuses is named, too."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(Unavailable, match="hdfs-native") as missing:
        hdfs.Hdfs(root.root)
    assert missing.value.remedy == "pip install 'stillframe[hdfs]'"
    fake_hdfs.use(monkeypatch)

    def refuse(root: str, settings: dict[str, str]) -> None:
        raise RuntimeError('InvalidArgument("No NameNode hosts found")')

    monkeypatch.setattr(fake_hdfs, "Client", refuse)
    with pytest.raises(UsageError, match="HADOOP_CONF_DIR"):
        hdfs.Hdfs(root.root)
