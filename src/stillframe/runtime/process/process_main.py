"""The main program of a process that we start, run where the fork server forked it.

``python -m stillframe.runtime.process.process_main`` does the same without the fork server. The
``LaunchSpec``, which contains the secret, is read from standard input: the supervisor writes it, or
``run_until_stopped`` on another machine. A process outlives its supervisor for a while, so that
another supervisor can take over; on another machine it ends with the program that started it.
"""

import asyncio
import contextlib
import functools
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from stillframe.errors import Refused, StillframeError, Unavailable, UsageError, text_of
from stillframe.imports import load_topology, set_search_path
from stillframe.process import Process, attach
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.control import EXIT_FAILED, EXIT_JOIN_REJECTED, LaunchSpec
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import OsProcess, require_channel_files, wait_for
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.host import failure_of
from stillframe.runtime.process.loop_host import AsyncHandlerHost, has_async_handlers
from stillframe.runtime.process.process_runtime import ProcessRuntime, RetryLater, traceback_of
from stillframe.storage.location import locate

EXIT_ORPHANED = 1
RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
"""How often a process on another machine retries to reach the coordinator."""


class SupervisorWatchdog:
    """Exits this process when its supervisor has terminated and none replaces it in time.

    It watches from a thread, so it also exits a process whose handler keeps the event loop busy and
    which would never notice that its coordinator has died. It outlives a supervisor that is not
    replaced by `orphaned_s` seconds.
    """

    def __init__(self, supervisor: OsProcess, *, orphaned_s: float) -> None:
        self._orphaned_s = orphaned_s
        self._newest = supervisor
        self._successors: queue.SimpleQueue[OsProcess] = queue.SimpleQueue()
        threading.Thread(target=self._keep, args=(supervisor,), daemon=True).start()

    def on_supervisor(self, supervisor: OsProcess) -> None:
        """Watch the supervisor of this process from now on."""
        if supervisor != self._newest:
            self._newest = supervisor
            self._successors.put(supervisor)

    def _keep(self, supervisor: OsProcess) -> None:
        while True:
            wait_for(supervisor)
            try:
                supervisor = self._successors.get(timeout=self._orphaned_s)
            except queue.Empty:
                os._exit(EXIT_ORPHANED)


class _JoinRejected(StillframeError):
    """The join was rejected, and another attempt would not help."""


async def _run(launch: LaunchSpec, watchdog: SupervisorWatchdog) -> None:
    if launch.is_elsewhere:
        runtime, start = await _register(launch)
    else:
        runtime = ProcessRuntime(
            launch.me,
            launch.coordinator,
            launch.listen,
            orphaned_s=launch.orphaned_s,
            on_supervisor=watchdog.on_supervisor,
        )
        # Its supervisor waits as long as this process does, and lives as long.
        start = await runtime.connect(is_patient=True)
    if launch.outputs.any:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, _terminate, runtime)
    own = ("stillframe", "__main__", launch.reference.partition(":")[0].partition(".")[0])
    on_lost_error = functools.partial(_on_lost_error, runtime, own)
    asyncio.get_running_loop().set_exception_handler(on_lost_error)
    try:
        await _run_epoch(runtime, launch, start)
        # A task that is cancelled cancels what it awaits.
        failure = await asyncio.shield(runtime.failed)
    except BaseException as error:
        failure = failure_of(launch.me.process, error)
        runtime.fail(failure)
    if not runtime.is_connected and not launch.is_elsewhere:
        # Nobody will ever say it for us.
        sys.stderr.write(
            f"process {launch.me.process} ended: {text_of(failure)}\n{traceback_of(failure)}"
        )
    await runtime.leave()
    runtime.close_logs()
    raise failure


def _on_lost_error(
    runtime: ProcessRuntime,
    own: Collection[str],
    loop: asyncio.AbstractEventLoop,
    context: dict[str, Any],
) -> None:
    """Fail because of an error in a callback of the event loop: nothing else would end the process.
    The error of a task that is not awaited, or of a library, is only logged, as in every program.
    """
    loop.default_exception_handler(context)
    error = context.get("exception")
    if error is None or "task" in context or "future" in context:
        return
    if not is_of_library(error, own):
        runtime.fail(failure_of(runtime.me.process, error))


def is_of_library(error: BaseException, own: Collection[str]) -> bool:
    """Return whether only code of installed libraries is in the traceback of `error`. The packages
    `own` are no libraries, even if they are installed."""
    is_of_one = error.__traceback__ is None  # the event loop made it, for a connection
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == "uvloop" or package in sys.stdlib_module_names:
            continue
        # The code object of compiled code has no path that says where it is installed.
        parts = Path(frame.f_globals.get("__file__") or "").parts
        if package in own or not {"site-packages", "dist-packages"}.intersection(parts):
            return False
        is_of_one = True
    return is_of_one


def _terminate(runtime: ProcessRuntime) -> None:
    """Finish event log and fragments, and terminate by SIGTERM."""
    runtime.close_logs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


async def _register(launch: LaunchSpec) -> tuple[ProcessRuntime, Start | None]:
    """Wait for the coordinator, and join; raises _JoinRejected if that was refused."""
    retry_s, printed = RETRY_S_MIN, ""
    while True:
        try:
            me, orphaned_s = _with_topology_hash(launch), launch.orphaned_s
            runtime = ProcessRuntime(me, launch.coordinator, launch.listen, orphaned_s=orphaned_s)
            try:
                return runtime, await runtime.connect()
            except BaseException:
                await runtime.close()
                raise
        except (RetryLater, Unavailable) as error:
            if str(error) != printed:
                printed = str(error)
                _print(launch, f"{printed}; waiting")
        except (Refused, UsageError) as error:
            raise _JoinRejected(str(error)) from error
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)


def _with_topology_hash(launch: LaunchSpec) -> Credentials:
    """Return the credentials with the hash of the topology as its module has it. A UsageError if
    there is no such process, or it cannot have as many files open as it needs."""
    topology, name = load_topology(launch.reference), launch.me.process
    topology.description.check_process(name)
    if not isinstance(topology.processes[name], Process):
        raise UsageError(
            f"process {name!r} is a separate program: its place in the topology is "
            "ExternalProcess(...), and the program calls stillframe.join"
        )
    require_channel_files(topology.description, name)
    return msgspec.structs.replace(launch.me, topology_hash=topology.description.hash)


def _print(launch: LaunchSpec, words: str) -> None:
    sys.stderr.write(f"process {launch.me.process}: {words}\n")
    sys.stderr.flush()


async def _run_epoch(runtime: ProcessRuntime, launch: LaunchSpec, start: Start | None) -> None:
    """Load the process that this is, and run it."""
    topology = load_topology(launch.reference)
    if topology.description.hash != runtime.me.topology_hash:
        raise UsageError(
            f"the code of {launch.reference} was changed while the system ran: stop it and "
            "continue with 'stillframe restore STORE --migrate', or use the old code again"
        )
    process = topology.processes[launch.me.process]
    assert isinstance(process, Process)
    logs = None
    if launch.pipeline is not None:
        # Loaded only by the service of a pipeline: it needs Arrow, and most processes do not.
        from stillframe.runtime.process.pipeline_logs import PipelineLogs  # noqa: PLC0415

        root, epoch = locate(launch.pipeline), launch.pipeline_epoch
        logs = PipelineLogs(root, launch.me.process, system=launch.system, epoch=epoch)
    kind: type[HandlerHost | AsyncHandlerHost]
    kind = AsyncHandlerHost if has_async_handlers(process) else HandlerHost
    outputs, reference = launch.outputs, launch.reference
    host = runtime.host(kind, topology, process, start, outputs=outputs, reference=reference)
    if isinstance(host, AsyncHandlerHost):
        if logs is not None:
            raise UsageError(
                f"process {launch.me.process} has async handlers or commit functions and is a "
                "service of a pipeline: declare them with plain 'def'"
            )
        await host.action.acquire()
    attach(
        process,
        process_id=launch.me.process,
        incoming=tuple(host.incoming),
        outgoing=tuple(host.outgoing),
        send=host.send,
        snapshot=lambda: runtime.report(control.SnapshotRequested()),
        append=None if logs is None else logs.append,
    )

    def begin() -> None:
        host.begin(is_fresh=start is None)
        if logs is not None:
            assert isinstance(host, HandlerHost)
            host.read_logs(logs)

    await runtime.run(host, begin)


def _leave_last_words(launch: LaunchSpec, failure: StillframeError) -> None:
    """Write why this process fails, for a supervisor that the connection did not tell. The
    supervisor removes it when the epoch has ended."""
    words = control.Failure(text_of(failure), traceback_of(failure))
    # Without a place for it, the supervisor names the standard error.
    with contextlib.suppress(OSError):
        Path(launch.last_words, str(os.getpid())).write_bytes(msgspec.json.encode(words))


def main() -> None:
    """Run one process until the supervisor ends it."""
    # Ctrl-C in a terminal reaches the supervisor too: it decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # the supervisor was gone before it had told us all
        sys.exit(EXIT_FAILED)
    launch = msgspec.json.decode(line, type=LaunchSpec)
    set_search_path(launch.search_path)
    orphaned_s = 0.0 if launch.is_elsewhere else launch.orphaned_s
    watchdog = SupervisorWatchdog(launch.supervisor, orphaned_s=orphaned_s)
    try:
        uvloop.run(_run(launch, watchdog))
    except Exception as error:
        failure = failure_of(launch.me.process, error)
        if launch.last_words:
            _leave_last_words(launch, failure)
        if not isinstance(error, StillframeError):
            raise
        # Elsewhere the coordinator was told; its words reach the user there, not here.
        if launch.is_elsewhere:
            _print(launch, text_of(error))
        sys.exit(EXIT_JOIN_REJECTED if isinstance(error, _JoinRejected) else EXIT_FAILED)


if __name__ == "__main__":
    main()
