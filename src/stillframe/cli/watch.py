"""``stillframe watch``: serves the page that shows a system, a pipeline, or services."""

import contextlib
import functools
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from stillframe.cli import observations, output
from stillframe.cli.command import Commands, argument, option
from stillframe.cli.options import CLASSES, event_log_option
from stillframe.detect.predicate import check_predicate_name
from stillframe.durable_files import disk_advice
from stillframe.errors import StillframeError, StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.metadata import PIPELINE_FILE
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.os_process import PROGRAM_FILE_COUNT, require_open_files
from stillframe.storage.location import Location
from stillframe.storage.reading import is_there
from stillframe.store.layout import is_store
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.watch.observation_target import ObservationTarget
from stillframe.watch.pipeline_target import PipelineTarget
from stillframe.watch.predicate_status import DEFAULT_PREDICATES, PredicateMonitor
from stillframe.watch.server import serve
from stillframe.watch.system_target import SystemTarget
from stillframe.watch.target import Target

if TYPE_CHECKING:
    from stillframe.watch.observation_traces import ObservationTraces
    from stillframe.watch.snapshot_traces import TraceBuilder
    from stillframe.watch.span_exporter import SpanExporter

PORT = 8641
TOKEN_BYTES = 24
TOKEN_CHARS_MIN, TOKEN_CHARS_MAX = 20, 200

app = Commands()


@app.add(
    "watch money",
    "watch shop.pipeline",
    "watch seen",
    "watch money --listen 0.0.0.0 --token-file money.token",
)
def watch(
    path: Location = argument(
        "STORE", "Directory or address of a store, a pipeline, or observations of services."
    ),
    predicates: list[str] | None = option(
        "PREDICATE",
        "Predicate to check in every snapshot, as for 'detect'. Can be repeated.  "
        "[default: termination, deadlock, and loss if anything is conserved]",
        "--detect",
    ),
    reference: str | None = CLASSES,
    event_log: Location | None = event_log_option(
        "Event log of the system. Shows the events around each snapshot."
    ),
    listen: str | None = option(
        "HOST[:PORT]",
        "Address to listen on. Addresses other than loopback require a token.  "
        "[default: 127.0.0.1:8641]",
    ),
    token_file: Path | None = option(
        "FILE",
        "File with the access token. It is created if it does not exist.  [default:"
        " a new token each time, none on loopback]",
    ),
    otlp: str | None = option(
        "URL", "Send a trace of each snapshot or observation to this OTLP endpoint over HTTP."
    ),
) -> None:
    """Serve a live dashboard of a system or pipeline and its snapshots, or of services that are
    observed, until Ctrl-C. The first line of output is its link. Prometheus metrics are at
    /metrics."""
    require_open_files(PROGRAM_FILE_COUNT, "the dashboard")
    address = Address.parse(listen or "127.0.0.1", port=PORT, may_be_any=True)

    def ready(where: Address, token: str | None) -> None:
        is_any = where.host in ("0.0.0.0", "::")  # noqa: S104 - only if somebody asked for it
        named = Address(socket.gethostname(), where.port) if is_any else where
        link = f"http://{named}/" if token is None else f"http://{named}/?token={token}"
        output.answer({"link": link}, lambda: output.put_lines([link]))
        output.say(f"serving {path} until Ctrl-C")

    with (
        _target(path, predicates or [], reference, event_log, otlp) as target,
        contextlib.suppress(KeyboardInterrupt),  # one that comes while it starts
    ):
        token = token_for(address, token_file)  # a refused command creates no file
        uvloop.run(serve(target, address, token=token, ready=functools.partial(ready, token=token)))


@contextlib.contextmanager
def _target(
    path: Location,
    predicates: list[str],
    reference: str | None,
    log: Location | None,
    otlp: str | None,
) -> Iterator[Target]:
    if is_there(path / PIPELINE_FILE) and not is_store(path):
        if predicates or reference is not None or log is not None or otlp is not None:
            raise UsageError(
                f"{path} is a pipeline: predicates, classes, an event log and traces apply to "
                "systems of processes; leave out --detect, --topology, --event-log and --otlp"
            )
        yield PipelineTarget(path)
        return
    if (seen := observations.reader_of(path)) is not None:
        if predicates or reference is not None or log is not None:
            raise UsageError(
                f"{path} holds observations of services, and only a deadlock is evaluated in them "
                "here: leave out --detect, --topology and --event-log, and use 'stillframe detect'"
            )
        with _exporter(path, otlp) as exporter:
            yield ObservationTarget(seen, _observation_traces(exporter))
        return
    store = Store.open(path)
    for name in predicates:
        check_predicate_name(name)
    monitor = PredicateMonitor(store, predicates or DEFAULT_PREDICATES, reference)
    with _exporter(path, otlp) as exporter:
        yield SystemTarget(store, monitor, log, _snapshot_traces(store, exporter))


@contextlib.contextmanager
def _exporter(path: Location, otlp: str | None) -> Iterator["SpanExporter | None"]:
    if otlp is None:
        yield None
        return
    try:
        from stillframe.watch.span_exporter import SpanExporter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UsageError("traces need the extra 'otel': pip install 'stillframe[otel]'") from error
    with contextlib.closing(SpanExporter(otlp, path, output.say)) as exporter:
        yield exporter


def _snapshot_traces(store: Store, exporter: "SpanExporter | None") -> "TraceBuilder | None":
    if exporter is None:
        return None
    from stillframe.watch.snapshot_traces import TraceBuilder  # noqa: PLC0415 - an extra

    def entry_of(snapshot: SnapshotId) -> SnapshotEntry | None:
        with contextlib.suppress(StillframeError):
            return store.entry(snapshot)
        return None

    return TraceBuilder(entry_of, exporter, output.say)


def _observation_traces(exporter: "SpanExporter | None") -> "ObservationTraces | None":
    if exporter is None:
        return None
    from stillframe.watch.observation_traces import (  # noqa: PLC0415 - an extra
        ObservationTraces,
    )

    return ObservationTraces(exporter)


def token_for(address: Address, file: Path | None) -> str | None:
    """Return the token that a page served at `address` requires: the one in `file`, which is
    created if it does not exist. Without a file it is a new one, and None on loopback."""
    if file is None:
        return None if address.is_loopback else secrets.token_urlsafe(TOKEN_BYTES)
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as made:
                made.write(f"{secrets.token_urlsafe(TOKEN_BYTES)}\n")
        token = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise StoreError(
            f"the token in {file} cannot be read or written: {error.strerror or error}",
            path=file,
            remedy=disk_advice(error),
        ) from error
    is_plain = token.replace("-", "").replace("_", "").isalnum()
    if not (TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX and is_plain):
        raise UsageError(
            f"{file} holds no token: {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} letters, digits, '-' "
            "and '_'; to create one, name a file that does not exist"
        )
    return token
