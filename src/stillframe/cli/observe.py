"""``stillframe observe``: takes observations of services whose agents connect, and stores them.
``stillframe baseline``, by which an operator asks it to begin a new baseline. ``stillframe calls``
lists what became of calls."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import uvloop

from stillframe.cli import observations, output, quantities
from stillframe.cli.command import Commands, end_with_failure, flag, option
from stillframe.cli.options import INTERVAL, StorePath
from stillframe.cli.supervision import check_shared, stop_signals
from stillframe.durable_files import shell_command
from stillframe.errors import Fenced, StillframeError, StoreError, UsageError
from stillframe.json_values import plain
from stillframe.protocol.calls import Baseline, CallLedger, Observation
from stillframe.runtime.events import ConnectionWarning
from stillframe.runtime.network.addresses import LOOPBACK, Address, require_tls_off_loopback
from stillframe.runtime.os_process import PROGRAM_FILE_COUNT, require_open_files
from stillframe.secret_files import read_text
from stillframe.services.agent import SECRET_BYTES_MIN
from stillframe.services.attachment import COLLECTOR_PORT
from stillframe.services.observer import Membership, Observer, ObserverConfig
from stillframe.storage.location import Location
from stillframe.store.baseline_request import (
    BaselineRequest,
    GivenUp,
    new_request,
    read_request,
    withdraw,
    write_request,
)
from stillframe.store.layout import first_names, is_written_to
from stillframe.store.observations import (
    EXACT,
    KEEP_COUNT,
    ObservationManifest,
    ObservationReader,
    ObservationWriter,
)

_CLOCK_S = 5.0
"""How far ahead the clock of an operator may be."""
LOOK_S = 1.0
"""How often a collector looks for a request for a new baseline."""
SECRET_VARIABLE = "STILLFRAME_SECRET"  # noqa: S105 - its name

_NUMBER = re.compile(r"[0-9]+")

app = Commands()


class CollectorListening(msgspec.Struct, frozen=True, tag=True):
    """The collector accepts agents at this address."""

    address: str


class InstanceJoined(msgspec.Struct, frozen=True, tag=True):
    """An instance takes part in observations from now on."""

    instance: str


class InstanceLeft(msgspec.Struct, frozen=True, tag=True):
    """An instance died or was disconnected."""

    instance: str


class InstanceEnded(msgspec.Struct, frozen=True, tag=True):
    """An instance ended in order: everything that it did is known."""

    instance: str


class ObservationStored(msgspec.Struct, frozen=True, tag=True):
    """An observation is in the store."""

    number: int
    initiated_at: float
    completed_at: float
    instance_count: int
    open_count: int
    unresolved_count: int
    is_exact: bool
    quality: str
    reasons: list[str]
    partial: tuple[str, ...]
    baseline: int
    baseline_why: str
    baseline_by: str
    baseline_at: float

    @classmethod
    def of(cls, manifest: ObservationManifest) -> "ObservationStored":
        """Return the event of an observation with this manifest."""
        return cls(*(getattr(manifest, name) for name in cls.__struct_fields__))


class BaselineBegun(msgspec.Struct, frozen=True, tag=True):
    """An operator has begun a new baseline. What was unknown is not counted any more."""

    because: str
    by: str
    requested_at: float
    given_up: GivenUp


class ObservationAbandoned(msgspec.Struct, frozen=True, tag=True):
    """An observation was abandoned: nothing of it was stored, and nothing was settled."""

    number: int
    reason: str


class CleanupFailed(msgspec.Struct, frozen=True, tag=True):
    """Old observations could not be removed."""

    detail: str


Event = (
    CollectorListening
    | InstanceJoined
    | InstanceLeft
    | InstanceEnded
    | ObservationStored
    | BaselineBegun
    | ObservationAbandoned
    | ConnectionWarning
    | CleanupFailed
)


class ObservationPrinter:
    """Prints the events of a collector, and with `is_json` also writes each to stdout.

    Of observations that are stored it prints the first one, those that show less than the one
    before, the first exact one after it, why a new baseline begins, and how many were abandoned
    before. Of those that are abandoned in a row it prints one for each cause. A sentence is not
    repeated directly. If an event cannot be written to stdout, `unwritten` says why, and
    `on_unwritten` is called once.
    """

    def __init__(self, *, is_json: bool) -> None:
        self.unwritten: OSError | None = None
        self.on_unwritten: Callable[[], None] = lambda: None
        self._is_json = is_json
        self._instances: set[str] = set()
        self._has_stored = False
        self._quality = EXACT
        self._baseline: tuple[str, str, float] | None = None
        self._abandoned_count = 0
        self._cause = ""
        self._last = ""

    def emit(self, event: Event) -> None:
        """Take an event."""
        if self._is_json and self.unwritten is None:
            try:
                output.put_json({"at": time.time()} | plain(event))
            except OSError as error:
                self.unwritten = error
                self.on_unwritten()
        for line in self._lines(event):
            if line != self._last:
                output.say(line)
                self._last = line

    def member(self, name: str, change: Membership) -> None:
        """Take an instance that joined, left, or ended in order."""
        if change == "joined":
            self._instances.add(name)
            self.emit(InstanceJoined(name))
        elif name in self._instances:  # otherwise it could not join
            self._instances.remove(name)
            self.emit(InstanceLeft(name) if change == "left" else InstanceEnded(name))

    def _lines(self, event: Event) -> list[str]:
        match event:
            case CollectorListening(address):
                return [f"waiting for agents at {address}; Ctrl-C ends this command"]
            case InstanceJoined(instance):
                return [f"instance {instance} joined"]
            case InstanceLeft(instance):
                return [f"instance {instance} left"]
            case InstanceEnded(instance):
                return [f"instance {instance} ended in order"]
            case ObservationStored():
                return self._stored(event)
            case BaselineBegun(because, by, at, given_up):
                self._baseline = because, by, at
                return [f"a new baseline begins: {because!r} ({by}); {given_up}"]
            case ObservationAbandoned():
                return self._abandoned(event)
            case ConnectionWarning(detail) | CleanupFailed(detail):
                return [detail]

    def _abandoned(self, event: ObservationAbandoned) -> list[str]:
        self._abandoned_count += 1
        cause = _NUMBER.sub("", event.reason)
        is_known, self._cause = cause == self._cause, cause
        sentence = f"observation {event.number} was abandoned: {event.reason}"
        return [] if is_known else [sentence]

    def _stored(self, event: ObservationStored) -> list[str]:
        lines = []
        if self._abandoned_count:
            count = quantities.count(self._abandoned_count, "observation")
            lines.append(f"observation {event.number} is stored; abandoned before it: {count}")
            self._abandoned_count, self._cause = 0, ""
        baseline = event.baseline_why, event.baseline_by, event.baseline_at
        if self._baseline not in (None, baseline):
            by = f" ({event.baseline_by})" if event.baseline_by else ""
            lines.append(f"a new baseline begins: {event.baseline_why!r}{by}")
        before, self._quality, self._baseline = self._quality, event.quality, baseline
        if event.quality not in (EXACT, before):
            reasons = "; ".join(event.reasons)
            lines.append(f"observation {event.number} is {event.quality}: {reasons}")
        elif event.is_exact and before != EXACT:
            lines.append(f"observation {event.number} is exact")
        elif not self._has_stored:
            took = quantities.duration(max(0.0, event.completed_at - event.initiated_at))
            count = quantities.count(event.instance_count, "instance")
            lines.append(f"observation {event.number}: {count}, complete after {took}")
        self._has_stored = True
        return lines


@app.add("observe --store seen --secret-file secret --interval 1s")
def observe(
    *,
    store: Location = option(
        "DIR",
        "Directory of the observations, or address, as s3://bucket/dir. It is created if it does "
        "not exist, and continued if it does.",
        default=...,
    ),
    listen: str | None = option(
        "HOST[:PORT]",
        "Address to listen on for agents. Addresses other than loopback require --tls.  "
        "[default: 127.0.0.1:8650]",
    ),
    interval: str = option(
        "DURATION", "Interval between observations: 250ms, 1s, 2m.", *INTERVAL, default="1s"
    ),
    timeout: str = option("DURATION", "Abandon an observation that takes longer.", default="10s"),
    keep: int = option(
        "N", "Keep only the newest N observations.", "--keep", default=KEEP_COUNT, min=1
    ),
    tls: Path | None = option(
        "DIR", "Use TLS, with ca.pem, cert.pem and key.pem from this directory."
    ),
    secret_file: Path | None = option(
        "FILE",
        "File with the secret that all instances share; white space around it is ignored. Only its "
        f"owner may read it.  [default: the value of {SECRET_VARIABLE}]",
    ),
) -> None:
    """Observe services whose agents connect, and store the observations until Ctrl-C or SIGTERM.
    They can be looked at and not restored."""
    require_open_files(PROGRAM_FILE_COUNT, "the collector")
    check_shared(store)
    address = Address.parse(listen or LOOPBACK, port=COLLECTOR_PORT)
    certificates = None if tls is None else str(tls.absolute())
    require_tls_off_loopback(address, certificates)
    config = ObserverConfig(
        secret=_secret(secret_file),
        interval_s=quantities.parse_duration("--interval", interval),
        timeout_s=quantities.parse_duration("--timeout", timeout),
        certificates=certificates,
    )
    printer = ObservationPrinter(is_json=output.wants_json())
    with contextlib.closing(ObservationWriter.open(store, keep_count=keep)) as writer:
        uvloop.run(_observe(config, address, writer, printer))
    if printer.unwritten is not None:
        raise printer.unwritten
    output.say(f"stopped; to look at the observations: {shell_command('list', store)}")


def _secret(file: Path | None) -> bytes:
    """Return the secret; a UsageError if there is none, or others can read it."""
    if file is not None:
        where, text = str(file), read_text(file, is_secret=True)
    elif SECRET_VARIABLE in os.environ:
        where, text = SECRET_VARIABLE, os.environ[SECRET_VARIABLE]
    else:
        raise UsageError(
            f"the secret of the instances is needed: give a file with --secret-file, or set "
            f"{SECRET_VARIABLE}"
        )
    secret = text.strip().encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise UsageError(
            f"the secret in {where} has {len(secret)} bytes: use {SECRET_BYTES_MIN} or more"
        )
    return secret


async def _observe(
    config: ObserverConfig,
    listen: Address,
    store: ObservationWriter,
    printer: ObservationPrinter,
) -> None:
    """Take observations until a signal, or until another collector has taken over the store; that
    is a Fenced."""
    loop = asyncio.get_running_loop()
    overtaken: list[Fenced] = []

    def emit_aside(event: Event) -> None:
        loop.call_soon_threadsafe(lambda: printer.emit(event))

    @contextlib.contextmanager
    def writing() -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            overtaken.append(error)
            loop.call_soon_threadsafe(stop.ask)
            raise

    def publish(observation: Observation, times: tuple[float, float], ledger: CallLedger) -> None:
        # In another thread.
        with writing():
            manifest = store.publish(observation, times, ledger)
        emit_aside(ObservationStored.of(manifest))
        try:
            store.remove_old()
        except StoreError as error:
            emit_aside(CleanupFailed(str(error)))

    def store_ledger(ledger: CallLedger) -> None:
        with writing():
            store.store_ledger(ledger)

    observer = Observer(
        config,
        ledger=store.ledger,
        number=store.number,
        publish=publish,
        store=store_ledger,
        abandoned=lambda number, why: printer.emit(ObservationAbandoned(number, why)),
        warn=lambda detail: printer.emit(ConnectionWarning(detail)),
        member=printer.member,
    )
    with stop_signals() as stop:
        printer.on_unwritten = stop.ask
        address = await observer.open(listen)
        running = {
            asyncio.ensure_future(observer.run()),
            asyncio.ensure_future(_take_requests(store, observer, printer, config.retire_s)),
        }
        try:
            printer.emit(CollectorListening(str(address)))
            await asyncio.wait({*running, stop.requested}, return_when=asyncio.FIRST_COMPLETED)
            for one in running:
                if one.done():
                    one.result()
        finally:
            for one in running:
                one.cancel()
            await asyncio.wait(running)
            await observer.close()
    if overtaken:
        raise overtaken[0]


# --- new baselines


async def _take_requests(
    store: ObservationReader, observer: Observer, printer: ObservationPrinter, retire_s: float
) -> None:
    """Begin the baselines that operators request, until cancelled. Instances of the collector
    before have the time of `retire_s` to connect again: the request waits until then."""
    loop = asyncio.get_running_loop()
    until = loop.time() + retire_s
    while True:
        await asyncio.sleep(LOOK_S)
        ledger = observer.collector.ledger
        try:
            if not ledger.gone or loop.time() >= until:
                await take_request(store.path, observer.rebase, ledger, printer)
        except StillframeError as error:
            printer.emit(ConnectionWarning(f"no new baseline begins: {error}"))


async def take_request(
    path: Location,
    rebase: Callable[[Baseline, float], Awaitable[tuple[str, ...] | None]],
    ledger: CallLedger,
    printer: ObservationPrinter,
) -> None:
    """Begin the baseline that an operator requests and waits for, if one does.

    Args:
        path: the store.
        rebase: lets the collector begin a baseline until a time, and returns who was gone; None if
            it was too late.
        ledger: the ledger of the collector.
        printer: takes the event.
    """
    request = await asyncio.to_thread(read_request, path)
    now = time.time()
    if request is None or request.is_taken or not request.at - _CLOCK_S <= now <= request.until:
        return
    given_up = None
    if not request.is_in(ledger):
        given_up = GivenUp.by(ledger)
        if (gone := await rebase(request.baseline, request.until)) is None:
            return
        given_up = msgspec.structs.replace(given_up, gone=gone)
        printer.emit(BaselineBegun(request.because, request.by, request.at, given_up))
    taken = msgspec.structs.replace(request, is_taken=True, given_up=given_up)
    await asyncio.to_thread(write_request, path, taken)


@app.add("baseline seen --by ada --because 'the ledgers were compared by hand'")
def baseline(
    path: StorePath,
    *,
    by: str = option("NAME", "Who decides it.", default=...),
    because: str = option("TEXT", "Why what is unknown does not matter any more.", default=...),
    timeout: str = option(
        "DURATION",
        "Stop waiting for the collector after this time. The request expires then.",
        default="1m",
    ),
) -> None:
    """Begin a new baseline of the totals of observations, although something is unknown. The
    running collector takes the request, and no longer waits for instances that left without a
    goodbye, nor for calls that may have been accepted. Exit 1 if it does not do so in time."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    store = _store_at(path)
    request = new_request(by, because, time.time(), timeout_s)
    if not is_written_to(path):
        raise UsageError(
            f"no collector runs on {path}: only a collector has the list of what is unknown",
            remedy=f"start {shell_command('observe', str(path))} first",
        )
    write_request(path, request)
    found = None
    try:
        found = _awaited(store, request, timeout_s)
    finally:
        if found is None:
            withdraw(path, request)
    document = {"store": path, "by": by, "because": because, "at": request.at}
    given_up = found.given_up if found else None
    output.answer(document | {"is_taken": found is not None, "given_up": given_up})
    if found is None:
        waits = quantities.duration(ObserverConfig(secret=b"").retire_s)
        end_with_failure(
            f"the collector has not taken it in {timeout}: it has expired. In its first {waits} a "
            "collector waits for instances that left before; its clock must be right, too"
        )
    lost = "the collector ended before it could say what it gave up"
    known = lost if given_up is None else str(given_up)
    output.report(f"a new baseline begins with the next observation; {known}")
    if given_up is not None and given_up.gone:
        output.report(
            "make sure that they do not run any more, because what they do is not observed: "
            f"{first_names(given_up.gone)}"
        )


@app.add("calls seen --timed-out --since 2h")
def calls(
    path: StorePath,
    *,
    timed_out: bool = flag("--timed-out", "Only calls whose callers have stopped waiting."),
    since: str | None = option(
        "DURATION",
        "Only calls whose requests were sent since then, by their callers' clocks: 30m, 2h.",
    ),
) -> None:
    """List the calls of observed services that timed out, broke or were cancelled, the newest
    first. Each has its caller, callee, time and status, and whether it was accepted. They stay
    listed when their observations are removed. Without --timed-out, the open calls of the newest
    observation are listed, too."""
    after = 0.0
    if since is not None:
        after = time.time() - quantities.parse_duration("--since", since)
    observations.list_calls(_store_at(path), after, is_timed_out=timed_out)


def _store_at(path: Location) -> ObservationReader:
    if (store := observations.reader_of(path)) is None:
        raise UsageError(f"{path} holds no observation: give a store that 'observe' has written")
    return store


def _awaited(
    store: ObservationReader, request: BaselineRequest, timeout_s: float
) -> BaselineRequest | None:
    """Wait until a request is taken, and return what came of it; None if that takes too long. A
    UsageError if another one has replaced it."""
    until = time.monotonic() + timeout_s
    with output.status("waiting for the collector to take the request"):
        while time.monotonic() < until:
            found = read_request(store.path)
            if found is None or found.baseline != request.baseline:
                by = f"replaced by one of {found.by}" if found else "deleted"
                raise UsageError(f"the request was {by}: ask again if it is still needed")
            if found.is_taken:
                return found
            time.sleep(LOOK_S / 4)
    return None
