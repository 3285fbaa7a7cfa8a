"""The main program of a process that we start, run where the fork server forked it.

It is the same as ``python -m stillframe.runtime.child``, which is how it would start by itself.
What it must know, the secret among it, comes on standard input from whoever started it: the
supervisor, or ``joining.py`` on another machine. Who stops it ends it. If its supervisor is gone it
goes on for a while, and another one may take over; elsewhere it ends with who started it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from stillframe.errors import Refused, StillframeError, Unavailable, UsageError
from stillframe.process import Process, attach
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.addresses import Address
from stillframe.runtime.handlers import HandlerHost
from stillframe.runtime.link import Credentials
from stillframe.runtime.loading import load_topology
from stillframe.runtime.member import Member, NotNow, story_of
from stillframe.runtime.os_process import OsProcess
from stillframe.runtime.traces import NO_TRACES, Traces
from stillframe.runtime.turns import Driver, TurnHost, has_async_handlers
from stillframe.runtime.vigil import Vigil

EXIT_FAILED = 1
EXIT_NOT_LET_IN = 2
"""The coordinator, or we ourselves, said no before we were let in."""
RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
"""How often a process on another machine looks for a coordinator that is away."""


class Launch(msgspec.Struct, frozen=True):
    """What a child must know, as one line of JSON on its standard input.

    `supervisor` watches over it, and `orphaned_s` is how long it goes on without a coordinator, in
    seconds. `pipeline` is the directory of the pipeline in which this process is a service,
    `system` the name of its system there. `traces` are what it writes of itself. A process that
    `is_elsewhere` than the coordinator waits for it, says itself what it has to say, and finds out
    by itself what it need not be told.
    """

    me: Credentials
    reference: str
    search_path: list[str]
    coordinator: Address
    listen: Address
    supervisor: OsProcess
    orphaned_s: float
    pipeline: str | None = None
    system: str = ""
    traces: Traces = NO_TRACES
    is_elsewhere: bool = False


class _NotLetIn(StillframeError):
    """Trying again would not help."""


async def _run(launch: Launch, vigil: Vigil) -> None:
    if launch.is_elsewhere:
        launch, member, start = await _arrive(launch)
    else:
        member = Member(
            launch.me,
            launch.coordinator,
            launch.listen,
            orphaned_s=launch.orphaned_s,
            supervised=vigil.supervised_by,
        )
        start = await member.connect()
    if launch.traces.are_written:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, _end_in_order, member)
    try:
        await _take_part(member, launch, start)
        failure = await member.failed
    except StillframeError as error:
        failure = error
        member.fail(error)
    if not member.is_heard and not launch.is_elsewhere:
        # Nobody will ever say it for us.
        sys.stderr.write(f"process {launch.me.process} ended: {failure}\n{story_of(failure)}")
    await member.leave()
    member.close_logs()
    raise failure


def _end_in_order(member: Member) -> None:
    """Write event log and fragments to their end, and end by the signal that came."""
    member.close_logs()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


async def _arrive(launch: Launch) -> tuple[Launch, Member, Start | None]:
    """Wait for the coordinator, and be let in.

    Raises:
        _NotLetIn: we were not.
    """
    retry_s, said = RETRY_S_MIN, ""
    while True:
        try:
            described = _described(launch)
            me, orphaned_s = described.me, launch.orphaned_s
            member = Member(me, launch.coordinator, launch.listen, orphaned_s=orphaned_s)
            try:
                return described, member, await member.connect()
            except BaseException:
                await member.close()
                raise
        except (NotNow, Unavailable) as error:
            if str(error) != said:
                said = str(error)
                _say(launch, f"{said}; waiting")
        except (Refused, UsageError) as error:
            raise _NotLetIn(str(error)) from error
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)


def _described(launch: Launch) -> Launch:
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


def _say(launch: Launch, words: str) -> None:
    sys.stderr.write(f"process {launch.me.process}: {words}\n")
    sys.stderr.flush()


async def _take_part(member: Member, launch: Launch, start: Start | None) -> None:
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
        from stillframe.runtime.logs import Logs  # noqa: PLC0415

        logs = Logs(Path(launch.pipeline), launch.me.process, system=launch.system)
    traces, reference = launch.traces, launch.reference
    host: HandlerHost | TurnHost
    driver: HandlerHost | Driver
    if has_async_handlers(process):
        if logs is not None:
            raise UsageError(
                f"process {launch.me.process} has async handlers and is a service of a pipeline: "
                "write its handlers as plain functions"
            )
        host = member.host(TurnHost, topology, process, start, traces=traces, reference=reference)
        await host.action.acquire()
        driver = Driver(host, process)
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
        snapshot=lambda: member.report(control.Wanted()),
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
    launch = msgspec.json.decode(line, type=Launch)
    sys.path[:] = launch.search_path
    orphaned_s = 0.0 if launch.is_elsewhere else launch.orphaned_s
    vigil = Vigil(launch.supervisor, orphaned_s=orphaned_s)
    try:
        uvloop.run(_run(launch, vigil))
    except StillframeError as error:
        # Elsewhere the coordinator was told; its words reach the user there, not here.
        if launch.is_elsewhere:
            _say(launch, str(error))
        sys.exit(EXIT_NOT_LET_IN if isinstance(error, _NotLetIn) else EXIT_FAILED)


if __name__ == "__main__":
    main()
