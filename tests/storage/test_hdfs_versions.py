"""Replaced files in HDFS, in every order of the steps of several writers.

Writers run as threads, one step of HDFS at a time, in an order that a schedule decides. So the code
itself is checked, not a model of it.
"""

import secrets
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.storage import hdfs
from stillframe.storage.hdfs import Hdfs
from stillframe.storage.location import ObjectPath
from stillframe.storage.storage import Changed, Version
from tests.nightly import by_night
from tests.storage import fake_hdfs

WAIT_S = 5
FIRST = b"first"


class Schedule:
    """Runs threads one step at a time. `choices` says which of those that wait goes on; where it
    ends, the first one does. `taken` is what was chosen, of how many."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self.taken: list[tuple[int, int]] = []
        self._may_go: dict[threading.Thread, threading.Semaphore] = {}
        self._stands = threading.Semaphore(0)

    def step(self, name: str, path: str) -> None:
        """Wait for a turn. What changes nothing, and cannot change, needs none."""
        mine = self._may_go.get(threading.current_thread())
        if mine is not None and (name in ("rename", "delete", "list") or ".versions/" in path):
            self._stands.release()
            assert mine.acquire(timeout=WAIT_S)

    def run(self, roles: Sequence[Callable[[], None]]) -> None:
        """Run all of them to their ends."""
        errors: list[BaseException] = []

        def act(role: Callable[[], None]) -> None:
            try:
                role()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            ended.add(threading.current_thread())
            self._stands.release()

        ended: set[threading.Thread] = set()
        waiting = [threading.Thread(target=act, args=(role,)) for role in roles]
        self._may_go = {thread: threading.Semaphore(0) for thread in waiting}
        for thread in waiting:
            thread.start()
            assert self._stands.acquire(timeout=WAIT_S)
        while waiting := [thread for thread in waiting if thread not in ended]:
            turn = len(self.taken)
            chosen = self._choices[turn] % len(waiting) if turn < len(self._choices) else 0
            self.taken.append((chosen, len(waiting)))
            self._may_go[waiting[chosen]].release()
            assert self._stands.acquire(timeout=WAIT_S)
        if errors:
            raise errors[0]


def all_orders(run: Callable[[Schedule], None]) -> int:
    """Run in every order; return how many there are."""
    choices: list[int] = []
    for count in range(1, 10**6):
        schedule = Schedule(choices)
        run(schedule)
        taken = schedule.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return count
        choices = [chosen for chosen, _ in taken[:-1]] + [taken[-1][0] + 1]
    raise AssertionError("there are too many orders")


class Head:
    """A file that writers replace, and what they were told."""

    def __init__(self) -> None:
        self.storage = Hdfs(f"hdfs://fake-{secrets.token_hex(8)}")
        self.storage._call = lambda function, *arguments, wait_s=0: function(*arguments)  # type: ignore[method-assign]
        self.space = self.storage._client._space
        self.place = ObjectPath(self.storage._root, "tests/head")
        self.version = self.storage.put_if_absent(self.place, FIRST)
        self.won: dict[bytes, bytes] = {}
        self.lost: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: list[list[bytes]] = []

    def replace(self, content: bytes, known: tuple[bytes, Version]) -> Version | None:
        """Replace what was known; return the new version, None if that failed."""
        try:
            version = self.storage.replace_if_unchanged(self.place, content, known[1])
        except Changed:
            self.lost.add(content)
        except OSError as error:
            if error.strerror != hdfs._UNKNOWN_OUTCOME:
                raise
            self.unknown.add(content)
        else:
            assert known[0] not in self.won, "two writers replaced one version"
            self.won[known[0]] = content
            return version
        return None

    def writer(self, name: str, count: int) -> Callable[[], None]:
        """Return a writer that replaces `count` times: first what was there at the beginning."""

        def write() -> None:
            known, version = (FIRST, self.version), None
            for number in range(count):
                if number and not version:
                    known = self.read()
                content = b"%s-%d" % (name.encode(), number)
                version = self.replace(content, known)
                if version:
                    known = content, version

        return write

    def read(self) -> tuple[bytes, Version]:
        """Return what is there."""
        return self.storage.read(self.place, bytes_max=99)

    def reader(self, count: int) -> Callable[[], None]:
        """Return a reader that reads so often."""

        def read() -> None:
            self.seen.append([self.read()[0] for _ in range(count)])

        return read

    def check(self) -> None:
        """Whoever was told of success has replaced what it knew, and nobody else has."""
        self.space.before = lambda name, path: None
        last, chain = self.read()[0], [FIRST]
        while chain[-1] in self.won:
            chain.append(self.won[chain[-1]])
        if not self.unknown:
            assert last == chain[-1]
            assert len(chain) == len(self.won) + 1
            for seen in self.seen:
                places = [chain.index(content) for content in seen]
                assert places == sorted(places), "a reader saw an older version after a newer one"
        left = {content for path, content in self.space.files.items() if "/.head" in path}
        assert left <= {*self.won.values(), *self.unknown}, "a version that was refused is left"
        assert last not in self.lost
        assert not self.lost.intersection(self.won), "a version that was refused was replaced"
        assert not self.lost.intersection(content for seen in self.seen for content in seen)


@pytest.fixture(autouse=True)
def one_version_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the deletion of old ones matters soon."""
    fake_hdfs.use(monkeypatch)
    monkeypatch.setattr(hdfs, "KEPT_COUNT", 1)


def run(schedule: Schedule, roles: Callable[[Head], list[Callable[[], None]]]) -> Head:
    """Let writers and readers of a new file run."""
    head = Head()
    head.space.before = schedule.step
    schedule.run(roles(head))
    head.check()
    return head


def test_of_two_writers_one_wins() -> None:
    """In each order of their steps."""

    def race(schedule: Schedule) -> None:
        head = run(schedule, lambda head: [head.writer("a", 1), head.writer("b", 1)])
        assert len(head.won) == len(head.lost) == 1

    assert all_orders(race) > 30


@pytest.mark.nightly(part="storage")
def test_a_writer_that_sleeps_wins_or_loses() -> None:
    """While another one replaces the file so often that names of versions are free again."""
    outcomes = set()

    def sleep(schedule: Schedule) -> None:
        head = run(
            schedule, lambda head: [head.writer("a", 1), head.writer("b", by_night(3, check=2))]
        )
        outcomes.add("won" if b"a-0" in head.won.values() else "lost")
        outcomes.update("unknown" for _ in head.unknown)

    assert all_orders(sleep) > 100
    assert outcomes >= {"won", "lost"}


def test_a_reader_never_sees_what_lost() -> None:
    """Nor an older version after a newer one."""

    def watch(schedule: Schedule) -> None:
        run(schedule, lambda head: [head.reader(2), head.writer("a", 2)])

    assert all_orders(watch) > 100


def test_old_versions_are_deleted_lowest_first() -> None:
    """From what is left a writer sees whether its version was replaced, or never counted."""
    head = Head()
    deleted: list[str] = []

    def delete(name: str, path: str) -> None:
        if name == "delete":
            deleted.append(path)
            if len(deleted) <= 3:
                raise RuntimeError("it died before")

    head.space.before = delete
    head.writer("a", 5)()
    assert len(set(deleted[:4])) == 1
    last = deleted[3:]
    assert len(last) == 4
    assert last == sorted(last)


def asleep_after_its_rename(head: Head, happens: Callable[[str], None]) -> None:
    """Let a writer replace the first version. Before it looks whether it has won, others replace
    the file so often that its version is an old one, and something `happens`, to that."""
    renamed: list[str] = []

    def sleep(name: str, path: str) -> None:
        if name == "rename":
            renamed.append(path)
            if len(renamed) == 1:
                head.writer("b", 4)()
                happens(path)

    head.space.after = sleep
    head.replace(b"a-0", (FIRST, head.version))


def test_after_a_failed_deletion_no_higher_version_is_deleted() -> None:
    """Else a writer that slept would take its version for one that lost."""
    head = Head()

    def fail(name: str, path: str) -> None:
        if name == "delete" and f"/{1:012}-" in path:
            raise RuntimeError("it failed")

    head.space.before = fail
    asleep_after_its_rename(head, lambda path: None)
    assert head.won[FIRST] == b"a-0"
    head.check()


def test_a_version_of_another_writer_under_the_same_name_proves_nothing() -> None:
    """One that slept, too, took the name when it was free again."""
    head = Head()

    def take(path: str) -> None:
        assert path not in head.space.files
        head.space.files[path] = b"c-0"

    asleep_after_its_rename(head, take)
    assert head.unknown == {b"a-0"}
    assert not head.lost & head.won.keys()


@given(st.lists(st.integers(0, 3), max_size=80))
def test_any_order(order: list[int]) -> None:
    """Two writers that know the same, one that is fast, and a reader."""
    run(
        Schedule(order),
        lambda head: [
            head.writer("a", 2),
            head.writer("b", 2),
            head.writer("c", 5),
            head.reader(3),
        ],
    )
