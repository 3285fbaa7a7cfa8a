"""``run``: start a system from Python, as ``stillframe run`` does, and control it.

The supervisor has its own event loop, in a thread. So this works in a script, and in a notebook
whose event loop is running.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import uvloop

from stillframe.errors import (
    StillframeError,
    Unavailable,
    UsageError,
    check_count,
    check_seconds,
)
from stillframe.imports import load_topology, reference_of
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.policy import Policy
from stillframe.runtime import events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.coordinator.membership import MARKER_WAIT_S_MAX, TIMEOUT_S
from stillframe.runtime.network.addresses import (
    ANY_PORT,
    COORDINATOR_PORT,
    Address,
    require_tls_off_loopback,
)
from stillframe.runtime.supervisor.admin_socket import serve_commands
from stillframe.runtime.supervisor.config import Placement, RunConfig
from stillframe.runtime.supervisor.operation import (
    check_keep,
    create_store,
    last_snapshot,
    last_snapshot_limit_s,
    open_writer,
    periodic_snapshots,
)
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.snapshot_store import SnapshotStore, open_store
from stillframe.storage.location import Location, local_path, locate
from stillframe.store.layout import NEWEST, is_store
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology

_Answer = TypeVar("_Answer")
LastSnapshot = SnapshotEntry | Manifest | Abandoned | None


def ignore(event: events.Event) -> None:
    """Do nothing with an event."""


class RunningSystem:
    """A system that this program runs; ``run`` returns it.

    As a context manager it is stopped at the end of the body, after a last snapshot. Call ``stop``
    otherwise. If the program does neither, the system is stopped when Python exits, without a last
    snapshot.

    Its methods may be called from any thread, and block until they are done. In a coroutine, call
    them with ``await asyncio.to_thread(system.snapshot)``.

    Every method raises StillframeError if the system has ended. ``wait`` says why.

    Attributes:
        store: the snapshots of this system, to read.
    """

    store: SnapshotStore

    def __init__(
        self, start: Callable[[], Supervisor], store: Store, config: RunConfig, topology: Topology
    ) -> None:
        self.store = open_store(store.path, topology=topology)
        self._system: Supervisor | None = None
        self._writer = store
        self._config = config
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._pid = os.getpid()
        self._requested: Future[bool] = Future()  # to stop: with a last snapshot, or without
        self._hurried: Future[bool] = Future()  # to stop without one, even if it was begun
        self._ended: Future[LastSnapshot] = Future()
        # Python does not wait for it at exit: `_stop_at_exit` stops the system then.
        self._thread = threading.Thread(
            target=self._run, args=[start], name="stillframe-system", daemon=True
        )
        self._thread.start()
        try:
            self._loop = self._ready.result()
        except BaseException:  # also Ctrl-C
            self._request_stop(takes_last=False)
            self._thread.join()
            raise
        atexit.register(self._stop_at_exit)

    def __repr__(self) -> str:
        return f"<system of {self.store.path}, {'running' if self.is_running else 'not running'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the system; see ``stop``. An error of the system does not hide one of the body."""
        with contextlib.suppress(StillframeError) if error else contextlib.nullcontext():
            self.stop()

    @property
    def epoch(self) -> int:
        """How many times the system was started or restored."""
        return self.store.epoch

    @property
    def is_running(self) -> bool:
        """Whether every process runs and every channel is connected."""
        return self._system is not None and self._system.is_running and not self._ended.done()

    def snapshot(self, initiator: ProcessId | None = None) -> SnapshotEntry | Abandoned:
        """Take a snapshot now.

        Args:
            initiator: the process that initiates it; None for the first one.

        Returns:
            the published snapshot; or why it was abandoned.

        Raises:
            UsageError: there is no such process, or too many snapshots are pending.
        """
        return self._call(lambda system: system.snapshot(initiator))

    def savepoint(self, name: str, initiator: ProcessId | None = None) -> SnapshotEntry | Abandoned:
        """Take a snapshot that is kept under a name until it is deleted.

        Args:
            name: of the savepoint.
            initiator: as for ``snapshot``.

        Returns:
            as ``snapshot``.

        Raises:
            UsageError: there is a savepoint of that name, or the name cannot be one.
        """
        self._writer.check_savepoint(name)
        outcome = self.snapshot(initiator)
        if isinstance(outcome, Abandoned):
            return outcome
        entry = outcome
        self._call(lambda system: asyncio.to_thread(system.store.save, entry.id, name))
        return self.store.entry(entry.id)

    def restore(self, snapshot: SnapshotId | str = NEWEST) -> None:
        """Roll the whole running system back to a snapshot; returns when it runs again.

        Args:
            snapshot: an id, the name of a savepoint, or ``newest``: the one from which the system
                would continue after a crash.

        Raises:
            UsageError: there is no such snapshot.
            Damaged: the snapshot is not what was written; the system continues as it was.
        """
        found = _found(self._writer, snapshot)
        self._call(lambda system: system.restore(found))

    def delete(self, snapshot: SnapshotId | str) -> str | None:
        """Delete a snapshot, or the name of a savepoint and its snapshot with it.

        Args:
            snapshot: an id, or the name of a savepoint.

        Returns:
            None if it was deleted. If only the name was deleted, because the snapshot is still
            needed: why it stays, as the rest of a sentence that begins with "it".

        Raises:
            UsageError: there is no such snapshot, or it is still needed.
        """
        return self._call(lambda system: asyncio.to_thread(system.store.drop, str(snapshot)))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the system has ended, or another thread has stopped it.

        Args:
            timeout_s: maximum time to wait, in seconds; None for no limit.

        Returns:
            whether it has ended.

        Raises:
            StillframeError: the error that ended it; for example, a handler raises each time the
                system is restarted.
        """
        self._check_is_own()
        wait([self._ended], timeout_s)
        if not self._ended.done():
            return False
        self._ended.result()
        return True

    def stop(self, *, last_snapshot: bool = True) -> LastSnapshot:
        """Stop the system and wait until all its processes have terminated.

        Stopping it again does nothing. Ctrl-C meanwhile stops it without the last snapshot.

        Args:
            last_snapshot: whether to take a snapshot first, so that ``run(..., restore="newest")``
                continues where the system was stopped. False loses the work since the newest
                snapshot.

        Returns:
            the last snapshot, that of the pipeline if the system is part of one; why it was
            abandoned; None without one.

        Raises:
            StillframeError: the error that had ended the system.
        """
        self._check_is_own()
        self._request_stop(takes_last=last_snapshot)
        try:
            self._thread.join()
        except BaseException:  # Ctrl-C
            self._request_stop(takes_last=False)
            self._thread.join()
            raise
        return self._ended.result()

    def _check_is_own(self) -> None:
        if os.getpid() != self._pid:
            raise Unavailable(
                "the system is run by the parent of this process, and only that can use it"
            )

    def _call(self, act: Callable[[Supervisor], Coroutine[Any, Any, _Answer]]) -> _Answer:
        self._check_is_own()
        if threading.current_thread() is self._thread:
            raise UsageError("the system cannot be called from on_event: use another thread")
        system = self._system
        if system is not None and not self._ended.done():
            work, answer = act(system), None
            with contextlib.suppress(RuntimeError):  # its loop is closed
                answer = asyncio.run_coroutine_threadsafe(work, self._loop)
            if answer is not None:
                # The loop may end before it has looked at this.
                ends: list[Future[Any]] = [answer, self._ended]
                wait(ends, return_when=FIRST_COMPLETED)
                if answer.done() and not answer.cancelled():
                    return answer.result()
            work.close()
        error = self._ended.exception()
        raise Unavailable(f"the system has ended: {error or 'it was stopped'}") from error

    def _request_stop(self, *, takes_last: bool) -> None:
        for request in (self._requested, *(() if takes_last else [self._hurried])):
            with contextlib.suppress(InvalidStateError):  # it was requested before
                request.set_result(takes_last)

    def _stop_at_exit(self) -> None:
        with contextlib.suppress(StillframeError):
            # Python starts no more threads then, and to publish takes some.
            self.stop(last_snapshot=False)

    def _run(self, start: Callable[[], Supervisor]) -> None:
        try:
            with contextlib.closing(self._writer):
                last = uvloop.run(self._live(start()))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._ended.set_exception(error)
            if not self._ready.done():
                self._ready.set_exception(error)
        else:
            self._ended.set_result(last)
        atexit.unregister(self._stop_at_exit)

    async def _live(self, system: Supervisor) -> LastSnapshot:
        stop, hurry = asyncio.wrap_future(self._requested), asyncio.wrap_future(self._hurried)
        async with contextlib.AsyncExitStack() as stack:
            starting = asyncio.ensure_future(stack.enter_async_context(system))
            await _first(starting, stop)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
                return None
            starting.result()
            self._system = system
            await stack.enter_async_context(serve_commands(system))
            async with periodic_snapshots(system, self._config):
                self._ready.set_result(asyncio.get_running_loop())
                await _first(system.finished, stop)
            if system.finished.done():
                system.finished.result()
            if not stop.result():
                return None
            limit_s = last_snapshot_limit_s(self._config)
            taking = asyncio.ensure_future(last_snapshot(system, self._config))
            await _first(taking, hurry, timeout_s=limit_s)
            if taking.done():
                return taking.result()
            taking.cancel()
            if not hurry.done():
                raise StillframeError(
                    f"no last snapshot was taken within {limit_s:.0f} s: the work since the "
                    "newest one is lost"
                )
            return None


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _found(store: Store, snapshot: SnapshotId | str) -> SnapshotId | None:
    """Return the id that is meant; None for the one from which a system would continue."""
    if snapshot == NEWEST:
        if store.current() is None:
            raise UsageError(
                f"the store {store.path} holds no snapshot yet",
                path=store.path,
                remedy="take one first, or leave out restore for a fresh start",
            )
        return None
    return snapshot if isinstance(snapshot, SnapshotId) else store.find(str(snapshot))


def run(
    topology: Topology | str,
    *,
    store: str | Location,
    restore: SnapshotId | str | None = None,
    interval_s: float | None = 1.0,
    initiators: Sequence[ProcessId] = (),
    timeout_s: float = TIMEOUT_S,
    marker_linger_s: float = 0.0,
    on_incomplete: Policy | str = Policy.ABANDON,
    max_abandoned: int | None = None,
    keep: int | None = None,
    migrate: bool = False,
    take_over: bool = False,
    pipeline: str | Location | None = None,
    log: str | Path | None = None,
    fragments: str | Path | None = None,
    listen: str | None = None,
    tls: str | Path | None = None,
    external: Sequence[ProcessId] = (),
    on_event: Callable[[events.Event], None] = ignore,
) -> RunningSystem:
    """Start a system and keep it running with periodic snapshots, as ``stillframe run`` does.

    ``with stillframe.run(bank, store="bank.store") as system: system.wait(60)`` runs a system for a
    minute. Each process is a separate operating-system process that imports the module of the
    topology. Their output goes to the standard output of this program, in a notebook to that of its
    kernel.

    Args:
        topology: an object that a module defines; or where it is, ``MODULE:ATTRIBUTE``. It cannot
            be defined in the script or notebook itself.
        store: the directory for snapshots, or its address, such as ``s3://bucket/bank``: a new or
            empty one for a fresh start.
        restore: the snapshot to start from: an id, the name of a savepoint, or ``newest`` for the
            one from which the system would continue after a crash. None: a fresh start.
        interval_s: time between periodic snapshots, in seconds; None for none.
        initiators: the processes that initiate them, in turn. None given: the first process.
        timeout_s: a snapshot that takes longer is abandoned, in seconds.
        marker_linger_s: how long a marker may wait for a message to travel with: 0 to 1 second.
        on_incomplete: what to do with a snapshot that lacks a fragment: ``abandon`` it; ``retry``
            from another initiator; or ``exclude`` a process without channels.
        max_abandoned: more consecutive abandoned snapshots than this end the system; None for any
            number.
        keep: how many snapshots to keep, besides savepoints; None for all.
        migrate: whether to restore although the code has changed since the snapshot.
        take_over: whether to take over processes that kept running when their supervisor died. If
            that is not possible, the system continues from its newest snapshot, or starts from the
            initial states.
        pipeline: the directory of the pipeline in which processes are services, or its address. It
            takes the snapshots, and decides where the system starts.
        log: the directory of an event log to write, or an address in an object store.
        fragments: the same for the fragments of every snapshot.
        listen: the address at which other machines reach this one, ``ADDRESS[:PORT]``; needs `tls`.
            None: only this machine can.
        tls: the directory of the certificates to use: ``ca.pem``, ``cert.pem``, ``key.pem``.
        external: processes that are not started here but join, on another machine.
        on_event: called with each event, in a thread of the system. It must return quickly. If it
            raises, the system stops with that error.

    Returns:
        the system, when every process runs. Stop it, or use it as a context manager.

    Raises:
        UsageError: the topology cannot be imported by the processes, or is not that of the
            snapshot; the store has snapshots and `restore` is None; or an argument is wrong.
        Unavailable: another program writes to this store.
        Damaged: the snapshot or the store is not what was written.
        StillframeError: a process failed repeatedly before the system ran.
    """
    if interval_s is not None:
        check_seconds("interval_s", interval_s)
    check_seconds("timeout_s", timeout_s)
    if not 0 <= marker_linger_s <= MARKER_WAIT_S_MAX:
        raise UsageError(f"marker_linger_s is {marker_linger_s}: give 0 to 1 second")
    check_count("max_abandoned", max_abandoned or 0, 0)
    check_count("keep", 1 if keep is None else keep, 1)
    reference = topology if isinstance(topology, str) else reference_of(topology)
    topology = load_topology(reference)
    path = locate(store)
    address = ANY_PORT if listen is None else Address.parse(listen, port=COORDINATOR_PORT)
    certificates = None if tls is None else _absolute(tls)
    require_tls_off_loopback(address, certificates)
    config = RunConfig(
        every_s=interval_s,
        initiators=tuple(initiators),
        timeout_s=timeout_s,
        marker_wait_s=marker_linger_s,
        policy=_policy(on_incomplete),
        tolerated_count=max_abandoned,
        keep_count=keep,
        may_migrate=migrate,
        takes_over=take_over,
        pipeline=None if pipeline is None else locate(pipeline),
        outputs=OutputDirs(
            log=None if log is None else str(locate(log).absolute()),
            fragments=None if fragments is None else str(locate(fragments).absolute()),
        ),
        placement=Placement(address, certificates, tuple(external)),
    )
    config.check_initiators(topology.description)
    if restore is not None or ((pipeline or take_over) and is_store(path)):
        writer = open_writer(path, takes_over=take_over)
    else:
        writer = create_store(path, topology.description, reference)
    try:
        if restore is not None:
            config = msgspec.structs.replace(config, restore=_found(writer, restore))
        check_keep(config)
    except BaseException:
        writer.close()
        raise
    # It is made in the thread in which it runs, which closes the store.
    start = functools.partial(Supervisor, reference, writer, config, emit=on_event)
    return RunningSystem(start, writer, config, topology)


def _absolute(path: str | Path) -> str:
    return str(local_path(path).absolute())


def _policy(policy: Policy | str) -> Policy:
    try:
        return Policy(policy)
    except ValueError:
        names = ", ".join(one.value for one in Policy)
        raise UsageError(f"on_incomplete is {policy!r}: use one of {names}") from None
