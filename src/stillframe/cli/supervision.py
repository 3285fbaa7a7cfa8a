"""Keeps a system running until it is asked to stop, and stops it with one last snapshot; prints its
events."""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, assert_never

from rich.live import Live
from rich.text import Text

from stillframe.cli import output, quantities
from stillframe.cli.options import PlacementOptions, SnapshotOptions, TraceOptions
from stillframe.cli.snapshots import published
from stillframe.detect.predicate import (
    Evaluate,
    Evaluation,
    entries_of_now,
    if_present,
    resolve_predicate,
)
from stillframe.errors import StillframeError, UsageError
from stillframe.json_values import plain
from stillframe.model import Abandoned, SnapshotId
from stillframe.runtime import events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.coordinator.membership import MARKER_WAIT_S_MAX
from stillframe.runtime.loop_signals import handled
from stillframe.runtime.network import addresses
from stillframe.runtime.supervisor.admin_socket import NOTICE_S, serve_commands
from stillframe.runtime.supervisor.config import Placement, RunConfig
from stillframe.runtime.supervisor.operation import (
    last_snapshot,
    last_snapshot_limit_s,
    periodic_snapshots,
)
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import Location
from stillframe.store.history import readable_history
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology

NOT_NEEDED = "it is not needed to continue from a snapshot"
_NO_LAST_SNAPSHOT = "no last snapshot, as requested"

LAST_EVALUATION_S = 5.0
"""Timeout of the last answer, in seconds; the system has stopped already."""
REFRESH_PER_SECOND = 4
SKIPPED_REPORT_S = 10.0
"""Minimum interval between lines about skipped snapshots, in seconds."""
Evaluated = concurrent.futures.Future[Evaluation | None]


def sentence(event: events.Event) -> str:
    """Return an event as text."""
    match event:
        case events.EpochBegan(epoch, snapshot):
            text = (
                f"epoch {epoch}: starting from "
                f"{f'snapshot {snapshot}' if snapshot else 'the initial states'}"
            )
        case events.CodeChanged(snapshot, changes):
            lines = "".join(f"\n  {change}" for change in changes)
            text = f"snapshot {snapshot} was taken with other code:{lines}"
        case events.SystemRunning():
            text = _running(event)
        case events.TakenOver(epoch, seconds):
            text = (
                f"epoch {epoch}: the processes kept running without a supervisor, and "
                f"reconnected after {quantities.duration(seconds)}"
            )
        case events.OrphansKilled(processes, reason):
            names = ", ".join(processes)
            text = f"{names} kept running without a supervisor and were terminated: {reason}"
        case events.AwaitingProcesses():
            text = f"waiting for {event}"
        case events.SnapshotPublished(entry):
            text = published(entry)
        case events.SnapshotAbandoned(abandoned, retried_as):
            text = f"{abandoned}{f'; tried again as {retried_as}' if retried_as else ''}"
        case events.SnapshotSkipped(pending):
            text = skipped_sentence(pending)
        case events.ProcessDied(process, cause, story):
            lines = f"\n{story.rstrip()}" if story else ""
            text = f"process {process} died: {cause}; restoring the latest snapshot{lines}"
        case (
            events.NotShared(detail)
            | events.ConnectionWarning(detail)
            | events.StoreUnavailable(detail)
            | events.OutputFailed(detail)
        ):
            text = detail
        case _:
            assert_never(event)
    return text


def skipped_sentence(pending: SnapshotId, more: int | None = None) -> str:
    """Return in words that a snapshot was skipped because of `pending`, or `more` since that line,
    the last one because of `pending`."""
    if more is None:
        return f"a snapshot was due and skipped, because {pending} was still pending"
    if more == 1:
        return f"1 more snapshot was due and skipped, because {pending} was still pending"
    return (
        f"{more} more snapshots were due and skipped, the last because {pending} was still "
        "pending; snapshots take longer than --interval"
    )


def _running(event: events.SystemRunning) -> str:
    took, processes, state, connections = map(
        quantities.duration, (event.seconds, event.processes_s, event.state_s, event.connections_s)
    )
    runs = f"runs, {took} after its start"
    if event.restored_from is not None:
        runs = f"runs from snapshot {event.restored_from}, after {took}"
    spent = f"(processes {processes}, state {state}, connections {connections})"
    return f"epoch {event.epoch}: the system {runs} {spent}"


class EventPrinter:
    """Prints the events of a running system, and with `is_json` also writes each to stdout, as a
    line of JSON. On a terminal `showing` adds a status line: epoch, processes, snapshots published;
    of the last one age, latency and how many messages it caught.

    Of snapshots that succeed it prints only the first one of each epoch, and those that a process
    took no part in. It prints the first snapshot that is skipped, and then how many were: every
    ``SKIPPED_REPORT_S``, and before any other line. When an event cannot be written to stdout,
    `unwritten` says why, and `on_unwritten` is called once: the system must stop in order, because
    it would continue unseen.
    """

    def __init__(self, *, process_count: int, is_json: bool) -> None:
        self._console = output.words()
        self._process_count = process_count
        self._is_json = is_json
        self._epoch = 0
        self._is_running = False
        self._published_count = 0
        self._last: SnapshotEntry | None = None
        self._last_at = 0.0
        self._skipped_count = 0
        self._skipped_for: SnapshotId | None = None
        self._skipped_due = 0.0
        self.unwritten: OSError | None = None
        self.on_unwritten: Callable[[], None] = lambda: None

    def emit(self, event: events.Event) -> None:
        """Take an event."""
        if self._is_json and self.unwritten is None:
            self._put(event)
        match event:
            case events.EpochBegan(epoch):
                self._epoch, self._is_running = epoch, False
            case events.SystemRunning(epoch) | events.TakenOver(epoch):
                self._epoch, self._is_running = epoch, True
            case events.ProcessDied():
                self._is_running = False
            case events.SnapshotPublished(entry):
                is_first = self._last is None or self._last.epoch != entry.epoch
                self._last, self._last_at = entry, time.monotonic()
                self._published_count += 1
                if not is_first and not entry.excluded:
                    self._say_skipped(self._skipped_due)
                    return
            case events.SnapshotSkipped(pending):
                self._skipped_count += 1
                self._skipped_for = pending
                self._say_skipped(self._skipped_due)
                return
            case _:
                pass
        self.say(sentence(event))

    def _say_skipped(self, due: float = 0.0) -> None:
        now = time.monotonic()
        if self._skipped_for is not None and self._skipped_count and now >= due:
            more = self._skipped_count if self._skipped_due else None
            output.say(skipped_sentence(self._skipped_for, more), console=self._console)
            self._skipped_count, self._skipped_due = 0, now + SKIPPED_REPORT_S

    def _put(self, event: events.Event) -> None:
        try:
            output.put_json({"at": time.time()} | plain(event))
        except OSError as error:
            self.unwritten = error
            self.say(f"the system stops: its events cannot be written to stdout: {error.strerror}")
            self.on_unwritten()

    def say(self, line: str) -> None:
        """Write a line, above the status line if there is one."""
        self._say_skipped()
        output.say(line, console=self._console)

    def showing(self) -> contextlib.AbstractContextManager[object]:
        """Show the status line while the body runs, if there is a terminal for it."""
        if self._is_json or not output.is_lively(self._console):
            return contextlib.nullcontext()
        return Live(
            self,
            console=self._console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __rich__(self) -> Text:
        parts = [
            f"epoch {self._epoch}{'' if self._is_running else ' starting'}",
            quantities.count(self._process_count, "process"),
            quantities.count(self._published_count, "snapshot"),
        ]
        if self._last is not None:
            entry = self._last
            age_s = time.monotonic() - self._last_at
            took = quantities.duration(entry.published_at - entry.initiated_at)
            caught = quantities.count(entry.message_count, "message")
            parts.append(f"{entry.id} {age_s:.1f} s ago in {took}, {caught}")
        return Text(" | ".join(parts), no_wrap=True, overflow="ellipsis")


class SystemConfig(RunConfig, frozen=True, kw_only=True):
    """The settings of a command, which runs a system for `for_s` seconds, or until a signal."""

    for_s: float | None = None

    @classmethod
    def of(
        cls,
        taking: SnapshotOptions,
        traces: TraceOptions,
        place: PlacementOptions,
        *,
        pipeline: Location | None = None,
        **others: Any,
    ) -> "SystemConfig":
        """Return what the options say; `others` are fields as they are."""
        check_shared(pipeline)
        parse = quantities.parse_duration
        duration = taking.duration
        address = addresses.ANY_PORT
        if place.listen is not None:
            address = addresses.Address.parse(place.listen, port=addresses.COORDINATOR_PORT)
        certificates = _absolute(place.tls)
        addresses.require_tls_off_loopback(address, certificates)
        return cls(
            every_s=quantities.parse_interval("--interval", taking.interval),
            timeout_s=parse("--timeout", taking.timeout),
            marker_wait_s=quantities.parse_wait(
                "--marker-linger", taking.marker_linger, max_s=MARKER_WAIT_S_MAX
            ),
            for_s=None if duration is None else parse("--duration", duration),
            initiators=tuple(taking.initiator or ()),
            policy=taking.on_incomplete,
            tolerated_count=taking.max_abandoned,
            outputs=output_dirs(traces),
            pipeline=pipeline,
            placement=Placement(address, certificates, tuple(place.external or ())),
            **others,
        )


def check_shared(path: Location | None) -> None:
    """Raise a UsageError if a place is in the memory of this command: the processes of a system do
    not see it, and nothing could continue it."""
    if path is not None and str(path).startswith("memory://"):
        raise UsageError(
            f"{path} is in the memory of this command, and is lost when it ends: give a directory "
            "or the address of an object store"
        )


def _absolute(path: Location | None) -> str | None:
    check_shared(path)
    return None if path is None else str(path.absolute())


def output_dirs(options: TraceOptions) -> OutputDirs:
    """Return where processes write; in the same directories, or elsewhere in others so called."""
    return OutputDirs(log=_absolute(options.event_log), fragments=_absolute(options.fragment_dir))


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP as futures: the first signal asks to stop, the second to hurry."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        self.forced: asyncio.Future[None] = loop.create_future()

    def ask(self) -> None:
        """Ask to stop, as the first signal does."""
        if not self.requested.done():
            self.requested.set_result(None)

    def insist(self) -> None:
        """Ask to stop, or to hurry if that was asked before."""
        if self.requested.done() and not self.forced.done():
            self.forced.set_result(None)
        self.ask()


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Take the signals while the body runs.

    A terminal that is closed sends SIGHUP twice, from its shell and from the kernel: SIGHUP only
    asks to stop. It stays ignored where ``nohup`` lets it be.
    """
    stop = StopSignals()
    handlers = {signal.SIGINT: stop.insist, signal.SIGTERM: stop.insist}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = stop.ask
    with handled(handlers):
        yield stop


class StopCondition:
    """Evaluates a stable predicate, named as ``detect`` takes it, for each snapshot of the store at
    `path`. It does so in a separate thread, and the system does not wait for it when it stops."""

    def __init__(self, name: str, path: Location, topology: Topology) -> None:
        self.name = name
        self.evaluations: list[Evaluation] = []
        self._path = path
        self._topology = topology
        self._resolved: Evaluate | None = None
        self._epoch = 0
        self._published: asyncio.Queue[SnapshotEntry] = asyncio.Queue()
        self._evaluating = threading.Lock()

    def on_event(self, event: events.Event) -> None:
        """Take an event of the system."""
        match event:
            case events.SnapshotPublished(entry):
                self._published.put_nowait(entry)
            case events.EpochBegan(epoch):
                self._epoch = epoch  # what held before a restore need not hold any more

    async def wait_until_held(self) -> Evaluation:
        """Return the first evaluation in which the predicate holds."""
        while True:
            seen = await asyncio.wrap_future(self._start(await self._published.get()))
            if seen is not None and seen.verdict.holds and seen.epoch == self._epoch:
                return seen

    def evaluate_last(self) -> bool:
        """Evaluate the last snapshot when the system has stopped; return whether that, and what was
        evaluated before, was done within ``LAST_EVALUATION_S``."""
        done = self._start(None)
        concurrent.futures.wait([done], LAST_EVALUATION_S)
        if done.done():
            done.result()
        return done.done()

    def _start(self, entry: SnapshotEntry | None) -> Evaluated:
        """Evaluate in a thread that no end of the program waits for, after those before."""
        done: Evaluated = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # from now on nobody can cancel it

        def go() -> None:
            try:
                with self._evaluating:
                    seen = self._evaluate(entry)
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                done.set_exception(error)
            else:
                done.set_result(seen)

        threading.Thread(target=go, name="predicate", daemon=True).start()
        return done

    def _evaluate(self, entry: SnapshotEntry | None) -> Evaluation | None:
        """Ask of a snapshot, by default the newest of now; None if that was done, there is none, or
        it was dropped while one before was asked of."""
        if entry is None:
            entry = next(reversed(entries_of_now(Store.open(self._path))), None)
            if entry is None or any(seen.snapshot == entry.id for seen in self.evaluations):
                return None
        self._resolved = self._resolved or resolve_predicate(
            self.name, Store.open(self._path), lambda: self._topology
        )
        seen = if_present(entry, self._resolved)
        if seen is not None:
            self.evaluations.append(seen)
        return seen


async def keep_running(
    system: Supervisor, config: SystemConfig, printer: EventPrinter, condition: StopCondition | None
) -> bool:
    """Start `system`, run it as `config` says, and stop it, also when `condition` holds; return
    False if work was lost that the last snapshot should have kept."""
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        printer.on_unwritten = stop.ask
        # Print this only now: once it is read, a signal must stop the system in order.
        path = system.store.path
        printer.say(f"this command supervises the system of {path} until it is stopped")
        for damage in readable_history(path)[1]:
            printer.say(f"warning: {damage}; {NOT_NEEDED}")
        starting = asyncio.ensure_future(stack.enter_async_context(system))
        await _first(starting, stop.requested, timeout_s=NOTICE_S)
        if not starting.done() and not stop.requested.done():
            printer.say(f"waiting for {system.waiting_for}")
            await _first(starting, stop.requested)
        if not starting.done() and system.is_running:
            # It was reported to run before the start returned: its work is not discarded.
            await _first(starting, stop.forced)
        if not starting.done() and system.is_taking_over:
            # These processes hold work that no snapshot has: they reconnect before they are
            # terminated.
            awaited = f"waiting for {system.waiting_for}, to stop after one last snapshot"
            printer.say(f"{awaited}; Ctrl-C stops without it")
            await _first(starting, stop.forced)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            if system.is_taking_over:
                printer.say(_NO_LAST_SNAPSHOT)
            return True
        starting.result()
        await stack.enter_async_context(serve_commands(system))
        stack.enter_context(printer.showing())
        watching = [] if condition is None else [condition.wait_until_held()]
        async with (
            periodic_snapshots(system, config),
            _meanwhile(watching) as held,
        ):
            await _first(system.finished, stop.requested, *held, timeout_s=config.for_s)
            for ended in (system.finished, *held):
                if ended.done():
                    ended.result()
        return await _take_last(system, config, stop, printer)


@contextlib.asynccontextmanager
async def _meanwhile(
    works: Sequence[Coroutine[Any, Any, Any]],
) -> AsyncIterator[list[asyncio.Future[Any]]]:
    futures = [asyncio.ensure_future(work) for work in works]
    try:
        yield [*futures]
    finally:
        for future in futures:
            future.cancel()
            # If the system has ended, that is what they say too.
            with contextlib.suppress(asyncio.CancelledError, StillframeError):
                await future


async def _take_last(
    system: Supervisor, config: SystemConfig, stop: StopSignals, printer: EventPrinter
) -> bool:
    """Take the last snapshot; return False if there is none that can be restored, which is said."""
    printer.say("stopping after one last snapshot; Ctrl-C stops without it")
    taking = asyncio.ensure_future(last_snapshot(system, config))
    limit_s = last_snapshot_limit_s(config)
    await _first(taking, stop.forced, timeout_s=limit_s)
    if taking.done():
        error = taking.exception()
        if system.finished.done():
            system.finished.result()
        if error is None and not isinstance(taking.result(), Abandoned):
            return True
        why = str(taking.result() if error is None else error)
    else:
        taking.cancel()
        if stop.forced.done():
            printer.say(_NO_LAST_SNAPSHOT)
            return True
        why = f"it took longer than {quantities.duration(limit_s)}"
    printer.say(f"no last snapshot: {why}; {_loss(system, config)}")
    return False


def _loss(system: Supervisor, config: SystemConfig) -> str:
    if config.pipeline is not None:
        return f"the work since the newest snapshot of {config.pipeline} is lost"
    try:
        current = system.store.current()
    except StillframeError as error:
        return f"the work since the last snapshot is lost: {error}"
    since = "all work" if current is None else f"the work since {current.id}"
    return f"{since} is lost"


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of `futures` is done; unlike ``first_completed`` it cancels none."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
