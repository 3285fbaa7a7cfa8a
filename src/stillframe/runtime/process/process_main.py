"""The main program of a process that we start, run where the fork server forked it.

``python -m stillframe.runtime.process.process_main`` does the same without the fork server. The
``LaunchSpec``, which contains the secret, is read from standard input: the supervisor writes it, or
``run_until_stopped`` on another machine. A process outlives its supervisor for a while, so that
another supervisor can take over; on another machine it ends with the program that started it.
"""

import asyncio
import os
import queue
import signal
import sys
import threading
from pathlib import Path

import msgspec
import uvloop

from stillframe.errors import Refused, StillframeError, Unavailable, UsageError
from stillframe.imports import load_topology
from stillframe.process import Process, attach
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.control import (
    EXIT_FAILED,
    EXIT_JOIN_REJECTED,
    LaunchSpec,
)
from stillframe.runtime.os_process import OsProcess, wait_for
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.loop_host import AsyncHandlerDriver, LoopHost, has_async_handlers
from stillframe.runtime.process.process_runtime import ProcessRuntime, RetryLater, traceback_of

EXIT_ORPHANED = 1


class SupervisorWatchdog:
    """Watches the supervisor from a thread: it also ends a process whose handler keeps the loop
    busy, which would never notice that its line to the coordinator is gone.

    Args:
        supervisor: who watches over this process now.
        orphaned_s: how long this process outlives a supervisor that nobody replaces, in seconds.
    """

    def __init__(self, supervisor: OsProcess, *, orphaned_s: float) -> None:
        self._orphaned_s = orphaned_s
        self._newest = supervisor
        self._successors: queue.SimpleQueue[OsProcess] = queue.SimpleQueue()
        threading.Thread(target=self._keep, args=(supervisor,), daemon=True).start()

    def supervised_by(self, supervisor: OsProcess) -> None:
        """Note who watches over this process now; the same one as before is no news."""
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


RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
"""How often a process on another machine looks for a coordinator that is away."""


class _JoinRejected(StillframeError):
    """Trying again would not help."""


async def _run(launch: LaunchSpec, vigil: SupervisorWatchdog) -> None:
    if launch.is_elsewhere:
        launch, member, start = await _register(launch)
    else:
        member = ProcessRuntime(
            launch.me,
            launch.coordinator,
            launch.listen,
            orphaned_s=launch.orphaned_s,
            supervised=vigil.supervised_by,
        )
        start = await member.connect()
    if launch.traces.any:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, _end_in_order, member)
    try:
        await _run_epoch(member, launch, start)
        failure = await member.failed
    except StillframeError as error:
        failure = error
        member.fail(error)
    if not member.is_heard and not launch.is_elsewhere:
        # Nobody will ever say it for us.
        sys.stderr.write(f"process {launch.me.process} ended: {failure}\n{traceback_of(failure)}")
    await member.leave()
    member.close_logs()
    raise failure


def _end_in_order(member: ProcessRuntime) -> None:
    """Write event log and fragments to their end, and end by the signal that came."""
    member.close_logs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


async def _register(launch: LaunchSpec) -> tuple[LaunchSpec, ProcessRuntime, Start | None]:
    """Wait for the coordinator, and be let in.

    Raises:
        _JoinRejected: we were not.
    """
    retry_s, said = RETRY_S_MIN, ""
    while True:
        try:
            described = _described(launch)
            me, orphaned_s = described.me, launch.orphaned_s
            member = ProcessRuntime(me, launch.coordinator, launch.listen, orphaned_s=orphaned_s)
            try:
                return described, member, await member.connect()
            except BaseException:
                await member.close()
                raise
        except (RetryLater, Unavailable) as error:
            if str(error) != said:
                said = str(error)
                _say(launch, f"{said}; waiting")
        except (Refused, UsageError) as error:
            raise _JoinRejected(str(error)) from error
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)


def _described(launch: LaunchSpec) -> LaunchSpec:
    """Return `launch` with the hash of the topology as its module has it."""
    topology, name = load_topology(launch.reference), launch.me.process
    topology.description.check_process(name)
    if not isinstance(topology.processes[name], Process):
        raise UsageError(
            f"process {name!r} is a program of its own: its place in the topology is Joined(...), "
            "and the program calls stillframe.join"
        )
    me = msgspec.structs.replace(launch.me, topology_hash=topology.description.hash)
    return msgspec.structs.replace(launch, me=me)


def _say(launch: LaunchSpec, words: str) -> None:
    sys.stderr.write(f"process {launch.me.process}: {words}\n")
    sys.stderr.flush()


async def _run_epoch(member: ProcessRuntime, launch: LaunchSpec, start: Start | None) -> None:
    """Load the process that this is, and run it."""
    topology = load_topology(launch.reference)
    if topology.description.hash != launch.me.topology_hash:
        raise UsageError(
            f"the code of {launch.reference} was changed while the system ran: stop it, and go on "
            "with 'stillframe restore STORE --migrate', or put the old code back"
        )
    process = topology.processes[launch.me.process]
    assert isinstance(process, Process)
    logs = None
    if launch.pipeline is not None:
        # Loaded only by the service of a pipeline: it needs Arrow, and most processes do not.
        from stillframe.runtime.process.pipeline_logs import PipelineLogs  # noqa: PLC0415

        logs = PipelineLogs(Path(launch.pipeline), launch.me.process, system=launch.system)
    traces, reference = launch.traces, launch.reference
    host: HandlerHost | LoopHost
    driver: HandlerHost | AsyncHandlerDriver
    if has_async_handlers(process):
        if logs is not None:
            raise UsageError(
                f"process {launch.me.process} has async handlers and is a service of a pipeline: "
                "write its handlers as plain functions"
            )
        host = member.host(LoopHost, topology, process, start, traces=traces, reference=reference)
        await host.action.acquire()
        driver = AsyncHandlerDriver(host, process)
    else:
        host = driver = member.host(
            HandlerHost, topology, process, start, traces=traces, reference=reference
        )
    attach(
        process,
        process_id=launch.me.process,
        incoming=tuple(host.incoming),
        outgoing=tuple(host.outgoing),
        send=host.send,
        snapshot=lambda: member.report(control.SnapshotRequested()),
        append=None if logs is None else logs.append,
    )

    def begin() -> None:
        driver.begin(is_fresh=start is None)
        if logs is not None:
            assert isinstance(driver, HandlerHost)
            driver.read_logs(logs)

    await member.run(host, begin=begin, published=driver.published)


def main() -> None:
    """Run one process until the supervisor ends it."""
    # Ctrl-C in a terminal reaches the supervisor too: it decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # the supervisor was gone before it had told us all
        sys.exit(EXIT_FAILED)
    launch = msgspec.json.decode(line, type=LaunchSpec)
    sys.path[:] = launch.search_path
    orphaned_s = 0.0 if launch.is_elsewhere else launch.orphaned_s
    vigil = SupervisorWatchdog(launch.supervisor, orphaned_s=orphaned_s)
    try:
        uvloop.run(_run(launch, vigil))
    except StillframeError as error:
        # Elsewhere the coordinator was told; its words reach the user there, not here.
        if launch.is_elsewhere:
            _say(launch, str(error))
        sys.exit(EXIT_JOIN_REJECTED if isinstance(error, _JoinRejected) else EXIT_FAILED)


if __name__ == "__main__":
    main()
