"""The program that processes are forked from: ``python -m stillframe.runtime.process.fork_server``.

It imports what every process needs and loads the topology, once. Each process is then a copy, made
when it is asked for: that takes milliseconds, and what is only read stays shared.

A copy must differ from a directly started process in nothing but that. It has its own
session and standard input and no other descriptor; what a process must know, the secret among
it, comes on that standard input and is never here. If loading the topology left something that a
copy would lack or share, such as a thread, a socket or a generator of random numbers, this program
begins again without the topology, and each process loads it separately. It begins again too when a
file was changed that it had loaded, or was loading: a process runs the code that is there when it
starts. If loading failed, it begins again with the topology once a process has ended that met the
same.

It exits with its supervisor, even while it loads the topology; processes that it forked keep
running.
"""

import contextlib
import ctypes
import errno
import gc
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stillframe.imports import load_topology, set_search_path
from stillframe.runtime import control
from stillframe.runtime.process import process_main

_FIRST_OTHER = 3
"""The first descriptor that is none of standard input, output and error."""
_FD_MAX = 2**20
_PACKET_BYTES = 2**10
_TICK_NS = 10**7
"""The times of files lag behind the clock by up to one tick of the kernel."""
_PR_SET_PDEATHSIG = 1
_FAILED = "its import failed"
PROGRAM = "stillframe.runtime.process.fork_server"
_CHILDREN = Path("/proc/thread-self/children")
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class Setup(msgspec.Struct, frozen=True):
    """The configuration of the fork server, as one line of JSON on its standard input.

    Requests come on the socket `channel`: one packet each, with the standard input of the process
    to be forked. The topology of `reference`, looked for on `search_path`, is loaded here, except
    if there is a reason why it is `unshared`. It is loaded `again` if a file was changed meanwhile.
    The process `supervisor` is the one that started this one.
    """

    channel: int
    reference: str
    search_path: list[str]
    supervisor: int
    unshared: str | None = None
    again: bool = False


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request: the process `pid`, with a pidfd of it; and why it loads the topology
    separately, if it does."""

    pid: int
    unshared: str | None


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request: there is no process, because of the error `number`."""

    number: int


class ProcessTerminated(msgspec.Struct, frozen=True, tag=True):
    """The process `pid` has ended: with an exit code, or by minus a signal."""

    pid: int
    code: int


Answer = Forked | NotForked | ProcessTerminated
_encode = msgspec.json.Encoder().encode


class Footprint(msgspec.Struct, frozen=True):
    """The resources that a copy of this process would lack, or share with every other copy.

    `descriptors` is what is open, by number; `timers` are the seconds that each has left;
    `handlers` is what each signal does, and `blocked` those that are held back; `shared_memory` is
    where memory is that copies would share; `random_state` is that of the module ``random``, and
    `generator_count` the number of all generators of random numbers.
    """

    thread_count: int
    descriptors: dict[int, str]
    children: tuple[int, ...]
    timers: tuple[float, ...]
    handlers: tuple[object, ...]
    blocked: frozenset[int]
    shared_memory: frozenset[str]
    random_state: object
    generator_count: int


def footprint() -> Footprint:
    """Return the footprint of this process now."""
    return Footprint(
        thread_count=sum(1 for _ in Path("/proc/self/task").iterdir()),
        descriptors=_descriptors(),
        children=tuple(map(int, _CHILDREN.read_text().split())) if _CHILDREN.exists() else (),
        timers=tuple(signal.getitimer(timer)[0] for timer in _TIMERS),
        handlers=tuple(signal.getsignal(number) for number in sorted(signal.valid_signals())),
        blocked=_blocked(),
        shared_memory=_shared_memory(),
        random_state=random.getstate(),
        generator_count=_generator_count(),
    )


def why_not_shared(before: Footprint, after: Footprint) -> str | None:
    """Return why the topology that was loaded between `before` and `after` cannot be shared by
    forking; None if it can."""
    if after.thread_count > 1:
        return f"it has {after.thread_count} threads"
    for number, target in after.descriptors.items():
        if before.descriptors.get(number) != target:
            return f"it opened {target}"
    if new := set(after.children) - set(before.children):
        return f"it started process {min(new)}"
    if any(after.timers):
        return "it set a timer"
    if after.handlers != before.handlers:
        return "it changed a signal handler"
    if after.blocked != before.blocked:
        return "it blocked a signal"
    if after.shared_memory - before.shared_memory:
        return "it created shared memory"
    if after.random_state != before.random_state:
        return "it used or seeded the generator of the module random"
    if after.generator_count > before.generator_count:
        return "it created a random number generator"
    return None


@contextlib.contextmanager
def _ending_with(supervisor: int) -> Iterator[None]:
    """Let the kernel kill this program when its supervisor ends, or the supervisor's thread that
    started it; forked processes continue."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it has ended before
        sys.exit(control.EXIT_FAILED)
    try:
        yield
    finally:
        prctl(_PR_SET_PDEATHSIG, 0)


def _was_changed(file: str, since_ns: int) -> bool:
    try:
        # Not when it was modified: a file that replaces another one keeps the time of its content.
        return Path(file).stat().st_ctime_ns >= since_ns
    except OSError:
        return False


def _flush() -> None:
    """Write out what was printed: else each copy would print it too."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()


def _fill_standard_descriptors() -> None:
    """Open what is closed of standard input, output and error: nothing else may take its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) < _FIRST_OTHER:
        pass
    os.close(number)


def _stamp(file: str) -> tuple[int, ...] | None:
    """Return what tells whether a file was changed."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _descriptors() -> dict[int, str]:
    found = {}
    for descriptor in tuple(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one with which these are listed
            target = os.fsencode(descriptor.readlink())
            found[int(descriptor.name)] = target.decode(errors="replace")
    return found


def _blocked() -> frozenset[int]:
    return frozenset(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def _shared_memory() -> frozenset[str]:
    """Return the addresses of what is mapped to be written to and shared (proc(5))."""
    mappings = map(str.split, Path("/proc/self/maps").read_text().splitlines())
    return frozenset(
        place for place, permitted, *_ in mappings if permitted.endswith("s") and "w" in permitted
    )


def _generator_count() -> int:
    kinds: tuple[type, ...] = (random.Random,)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        kinds += (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    # By its type: isinstance would ask the object for its class, and run code of it.
    return sum(1 for known in gc.get_objects() if issubclass(type(known), kinds))


class _Server:
    """Forks processes on request, and tells how each ends."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._channel = socket.socket(fileno=setup.channel)
        # A program that is started while the topology is imported must not keep it open.
        self._channel.set_inheritable(False)
        self._directory = os.open(".", os.O_PATH | os.O_DIRECTORY)
        self._variables = dict(os.environ)
        self._blocked = _blocked()
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        # Even if it was ignored: the exit code of a process that ends meanwhile would be lost.
        self._handlers[signal.SIGCHLD] = signal.SIG_DFL
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._loaded: dict[str, tuple[int, ...] | None] = {}
        self._first: int | None = None
        self._first_has_terminated = False

    def load(self) -> None:
        """Load the topology, if it can be shared."""
        if self._setup.unshared is not None:
            return
        began_ns = time.time_ns() - _TICK_NS
        before, known = footprint(), set(sys.modules)
        # An import that hangs would not notice that the supervisor hangs up.
        with _ending_with(self._setup.supervisor):
            try:
                load_topology(self._setup.reference)
            except BaseException:  # each process meets it, and says it where that is heard
                reason: str | None = _FAILED
            else:
                reason = why_not_shared(before, footprint())
        if reason is not None:
            self._begin_again(reason)
        loaded = (sys.modules.get(name) for name in set(sys.modules) - known)
        files = {getattr(module, "__file__", None) for module in loaded}
        self._loaded = {file: _stamp(file) for file in files if file is not None}
        # Once: an import may write such a file itself, or the clock of its disk be ahead.
        if not self._setup.again and any(_was_changed(file, began_ns) for file in self._loaded):
            self._begin_again(None, again=True)

    def serve(self) -> bool:
        """Answer requests until the supervisor hangs up; return True in each process forked."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(woken, select.POLLIN)
        try:
            self._report_terminated()
            while True:
                ready = {number for number, _ in waiting.poll()}
                if woken in ready:
                    os.read(woken, _PACKET_BYTES)
                self._report_terminated()
                if self._channel.fileno() not in ready:
                    continue
                if self._is_outdated():
                    self._begin_again(None)
                packet, descriptors, _, _ = socket.recv_fds(self._channel, _PACKET_BYTES, 1)
                if not packet:
                    break
                if self._fork(descriptors):
                    return True
        except (BrokenPipeError, ConnectionResetError):
            pass  # the supervisor has terminated
        # What has ended is counted with us, in the processor time of the supervisor's children.
        self._reap()
        self._channel.close()
        return False

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork a process and answer; return True in that process."""
        if not descriptors:
            self._answer(NotForked(errno.EMFILE))
            return False
        _flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptors[0])
            self._answer(NotForked(error.errno or 0))
            return False
        if pid == 0:
            self._become_a_process(descriptors[0])
            return True
        os.close(descriptors[0])
        self._first = self._first or pid
        try:
            watching = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            self._answer(NotForked(error.errno or 0))
            return False
        try:
            answer = _encode(Forked(pid, self._setup.unshared))
            socket.send_fds(self._channel, [answer], [watching])
        finally:
            os.close(watching)
        return False

    def _become_a_process(self, stdin: int) -> None:
        """Leave nothing in this copy that a directly started process would not have."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._channel.detach()
        os.dup2(stdin, 0)
        os.closerange(_FIRST_OTHER, _FD_MAX)
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - it stays open

    def _is_outdated(self) -> bool:
        """Return whether loading the topology again may have another result."""
        if self._setup.unshared == _FAILED:
            return self._first_has_terminated  # so once in each epoch
        return any(_stamp(file) != stamp for file, stamp in self._loaded.items())

    def _begin_again(self, unshared: str | None, *, again: bool = False) -> None:
        """Replace this program with a fresh copy. It keeps its number, its processes and the
        channel, with what was not yet read of that; `unshared` is why it does not load the topology
        then."""
        setup = msgspec.structs.replace(self._setup, unshared=unshared, again=again)
        stdin = os.memfd_create("setup")
        os.write(stdin, _encode(setup) + b"\n")
        os.lseek(stdin, 0, os.SEEK_SET)
        os.dup2(stdin, 0)
        _flush()
        # What an import did outside Python outlives it, and the next one would meet it. What it
        # added to the nice value stays: only root may take that back.
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.umask(self._umask)
        os.chdir(self._directory)
        self._channel.set_inheritable(True)
        program = [sys.executable, "-P", "-m", PROGRAM]
        os.execve(sys.executable, program, self._variables)  # noqa: S606

    def _answer(self, answer: Answer) -> None:
        self._channel.send(_encode(answer))

    def _report_terminated(self) -> None:
        for ended in self._reap():
            self._first_has_terminated |= ended.pid == self._first
            self._answer(ended)

    def _reap(self) -> list[ProcessTerminated]:
        """Return how each process ended that has, and let go of it."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(ProcessTerminated(found[0], os.waitstatus_to_exitcode(found[1])))
        return ended


def main() -> None:
    """Serve, and run each process that is forked."""
    # Ctrl-C in a terminal reaches the supervisor too: it decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # the supervisor was gone before it had told us all
        sys.exit(control.EXIT_FAILED)
    _fill_standard_descriptors()
    setup = msgspec.json.decode(line, type=Setup)
    set_search_path(setup.search_path)
    sys.argv[:] = [str(process_main.__file__)]
    server = _Server(setup)
    server.load()
    # What is there now stays: a collection in a copy would only write to what is shared.
    gc.collect()
    gc.freeze()
    if server.serve():
        process_main.main()


if __name__ == "__main__":
    main()
