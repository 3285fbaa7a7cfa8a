"""Keeps a system running until it is asked to stop, and stops it with one last snapshot."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from stillframe.cli import quantities
from stillframe.cli.event_printer import EventPrinter
from stillframe.cli.options import PlacementOptions, SnapshotOptions, TraceOptions
from stillframe.detect.predicate import Evaluation
from stillframe.detect.registry import Evaluate, if_present, resolve_predicate
from stillframe.errors import StillframeError, Unavailable
from stillframe.model import Abandoned, ProcessId
from stillframe.pipeline.pipeline import Pipeline
from stillframe.protocol.aligner import Mode
from stillframe.runtime import events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.network.addresses import (
    ANY_PORT,
    COORDINATOR_PORT,
    Address,
    require_tls_off_loopback,
)
from stillframe.runtime.supervisor.admin_socket import NOTICE_S, serve_commands
from stillframe.runtime.supervisor.config import Placement, SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

WRITE_S = 5.0
"""How long writing the last snapshot may take, in seconds, after all processes recorded it."""
MARKER_WAIT_S_MAX = 1.0
NOT_NEEDED = "to go on from a snapshot does not need it"
_NO_LAST_SNAPSHOT = "no last snapshot: as you wish"
RETRY_S = 0.01
"""How long to wait, in seconds, before trying again while a pipeline takes another snapshot."""


LAST_EVALUATION_S = 5.0
"""So long the last answer may take, in seconds; the system has stopped already."""


class SystemConfig(SupervisorConfig, frozen=True, kw_only=True):
    """How to run a system: what the options say.

    Attributes:
        every_s: the interval of periodic snapshots in seconds; None for none.
        initiators: who initiates them, in turn.
        for_s: how long to run, in seconds; None until a signal, or until `until` holds.
        is_json: whether to write events as JSON to stdout.
        until: the stable predicate whose truth ends the run, if any.
        keep_count: all but this many newest snapshots are removed; None keeps all.
    """

    every_s: float | None
    initiators: tuple[ProcessId, ...] = ()
    for_s: float | None = None
    is_json: bool = False
    until: str | None = None
    keep_count: int | None = None

    @classmethod
    def of(
        cls,
        snapshots: SnapshotOptions,
        traces: TraceOptions,
        placement: PlacementOptions,
        **others: Any,
    ) -> "SystemConfig":
        """Return what the options say; `others` are fields as they are.

        Raises:
            UsageError: a duration cannot be read, or the address cannot be listened on without TLS,
                or is none.
        """
        parse = quantities.parse_duration
        for_ = snapshots.for_
        return cls(
            every_s=quantities.parse_interval("--every", snapshots.every),
            timeout_s=parse("--timeout", snapshots.timeout),
            marker_wait_s=quantities.parse_wait(
                "--marker-wait", snapshots.marker_wait, max_s=MARKER_WAIT_S_MAX
            ),
            for_s=None if for_ is None else parse("--for", for_),
            initiators=tuple(snapshots.initiator or ()),
            policy=snapshots.if_incomplete,
            tolerated_count=snapshots.tolerate,
            outputs=output_dirs(traces),
            placement=_placement_of(placement),
            **others,
        )


def output_dirs(options: TraceOptions) -> OutputDirs:
    """Return where processes write; in the same directories, or elsewhere in others so called."""
    return OutputDirs(
        log=None if options.log is None else str(options.log.absolute()),
        fragments=None if options.fragments is None else str(options.fragments.absolute()),
    )


def _placement_of(options: PlacementOptions) -> Placement:
    address = ANY_PORT
    if options.listen is not None:
        address = Address.parse(options.listen, port=COORDINATOR_PORT)
    certificates = None if options.tls is None else str(options.tls.absolute())
    require_tls_off_loopback(address, certificates)
    return Placement(address, certificates, tuple(options.elsewhere or ()))


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP as futures: the first signal asks to stop, the second to hurry.

    A terminal that is closed sends SIGHUP twice, from its shell and from the kernel: SIGHUP only
    asks to stop. It stays ignored where ``nohup`` lets it be.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        self.forced: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.ask)

    def ask(self) -> None:
        """Ask to stop, as the first signal does."""
        if not self.requested.done():
            self.requested.set_result(None)

    def _signalled(self) -> None:
        if self.requested.done() and not self.forced.done():
            self.forced.set_result(None)
        self.ask()


class StopCondition:
    """Asks a stable predicate of each snapshot, in a thread beside the system.

    That thread may take as long as it likes: nobody waits for it when the system is to stop.

    Args:
        name: the predicate, as ``detect`` takes it.
        path: of the store.
        topology: of the system.
    """

    def __init__(self, name: str, path: Path, topology: Topology) -> None:
        self.name = name
        self.evaluations: list[Evaluation] = []
        self._path = path
        self._topology = topology
        self._evaluate: Evaluate | None = None
        self._epoch = 0
        self._published: asyncio.Queue[Entry] = asyncio.Queue()
        self._evaluating = threading.Lock()

    def on_event(self, event: events.Event) -> None:
        """Take notice of what happened to the system."""
        match event:
            case events.SnapshotPublished(entry):
                self._published.put_nowait(entry)
            case events.EpochBegan(epoch):
                self._epoch = epoch  # what held before a restore need not hold any more

    async def wait_until_held(self) -> Evaluation:
        """Return the first evaluation in which the predicate holds.

        Raises:
            StillframeError: a snapshot cannot be evaluated.
        """
        while True:
            entry = await self._published.get()
            seen = await self._evaluate_in_thread(entry)
            if seen is not None and seen.verdict.holds and seen.epoch == self._epoch:
                return seen

    def evaluate_last(self) -> bool:
        """Evaluate the last snapshot when the system has stopped; return whether that was done.

        What takes longer than a few seconds, also of one before, is not waited for.

        Raises:
            StillframeError: it cannot be evaluated.
        """
        failures: list[BaseException] = []

        def go() -> None:
            try:
                entries = Store.open(self._path).entries()
                with self._evaluating:
                    if entries and all(
                        seen.snapshot != entries[-1].id for seen in self.evaluations
                    ):
                        self._evaluate_at(entries[-1])
            except BaseException as error:  # noqa: BLE001 - raised again where somebody sees it
                failures.append(error)

        thread = threading.Thread(target=go, name="predicate", daemon=True)
        thread.start()
        thread.join(LAST_EVALUATION_S)
        if failures:
            raise failures[0]
        return not thread.is_alive()

    async def _evaluate_in_thread(self, entry: Entry) -> Evaluation | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Evaluation | None] = loop.create_future()

        def finish(seen: Evaluation | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(seen)
            else:
                done.set_exception(error)

        def go() -> None:
            seen, failure = None, None
            with self._evaluating:
                try:
                    seen = self._evaluate_at(entry)
                except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                    failure = error
            with contextlib.suppress(RuntimeError):  # the system has stopped meanwhile
                loop.call_soon_threadsafe(finish, seen, failure)

        threading.Thread(target=go, name="predicate", daemon=True).start()
        return await done

    def _evaluate_at(self, entry: Entry) -> Evaluation | None:
        """Ask of a snapshot; None if it was dropped while one before was asked of."""
        if self._evaluate is None:
            self._evaluate = resolve_predicate(
                self.name, Store.open(self._path), lambda: self._topology
            )
        seen = if_present(entry, self._evaluate)
        if seen is not None:
            self.evaluations.append(seen)
        return seen


async def keep_running(
    system: Supervisor, config: SystemConfig, printer: EventPrinter, condition: StopCondition | None
) -> bool:
    """Start `system`, run it as `config` says, and stop it, also when `condition` holds.

    Returns:
        False if work was lost that the last snapshot should have kept.

    Raises:
        StillframeError: it cannot start, or cannot go on.
    """
    stop = StopSignals()
    printer.on_unwritten = stop.ask
    # Print this only now: once it is read, a signal must stop the system in order.
    printer.say(f"this command supervises the system of {system.store.path} until it is stopped")
    for damage in system.store.history.damages:
        printer.say(f"warning: {damage}; {NOT_NEEDED}")
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.ensure_future(stack.enter_async_context(system))
        await _first(starting, stop.requested, timeout_s=NOTICE_S)
        if not starting.done() and not stop.requested.done():
            printer.say(f"waiting for {system.waiting_for}")
            await _first(starting, stop.requested)
        if not starting.done() and system.is_taking_over:
            # These processes hold work that no snapshot has: they come back before they are ended.
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
        async with _periodic_snapshots(system, config, printer), _watching(condition) as held:
            await _first(system.finished, stop.requested, *held, timeout_s=config.for_s)
            for ended in (system.finished, *held):
                if ended.done():
                    ended.result()
        return await _take_last(system, config, stop, printer)


@contextlib.asynccontextmanager
async def _periodic_snapshots(
    system: Supervisor, config: SystemConfig, printer: EventPrinter
) -> AsyncIterator[None]:
    if config.every_s is None or config.pipeline is not None:
        yield
        return
    taking = asyncio.ensure_future(
        trigger_periodically(
            system, every_s=config.every_s, initiators=config.initiators, emit=printer.emit
        )
    )
    try:
        yield
    finally:
        taking.cancel()
        # If the system has ended, that is what it says too.
        with contextlib.suppress(asyncio.CancelledError, StillframeError):
            await taking


@contextlib.asynccontextmanager
async def _watching(condition: StopCondition | None) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Give what ends when the predicate holds; nothing if none is asked for."""
    held = [] if condition is None else [asyncio.ensure_future(condition.wait_until_held())]
    try:
        yield [*held]
    finally:
        for watching in held:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, StillframeError):
                await watching


async def _take_last(
    system: Supervisor, config: SystemConfig, stop: StopSignals, printer: EventPrinter
) -> bool:
    """Take the last snapshot; return False if there is none that can be restored, which is said."""
    printer.say("stopping after one last snapshot; Ctrl-C stops without it")
    taking = asyncio.ensure_future(_last_snapshot(system, config))
    # Those in progress may take as long as it, and both have deadlines: only the disk has none.
    limit_s = 2 * config.timeout_s + WRITE_S
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
    """Say what a system that has no last snapshot loses."""
    if config.pipeline is not None:
        return f"what was done since the newest snapshot of {config.pipeline} is lost"
    try:
        current = system.store.current()
    except StillframeError as error:
        return f"what was done since the last snapshot is lost: {error}"
    since = "all that was done" if current is None else f"what was done since {current.id}"
    return f"{since} is lost"


async def _last_snapshot(system: Supervisor, config: SystemConfig) -> object:
    if config.pipeline is None:
        return await system.last_snapshot(config.initiators[0])
    loop, pipeline = asyncio.get_running_loop(), Pipeline(config.pipeline)
    until = loop.time() + config.timeout_s
    while True:
        try:
            return await asyncio.to_thread(
                pipeline.snapshot, Mode.UNALIGNED, timeout_s=config.timeout_s
            )
        except Unavailable:
            # Another snapshot is being taken, and it began before the system was to stop.
            if loop.time() > until:
                raise
            await asyncio.sleep(RETRY_S)


async def _first(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
