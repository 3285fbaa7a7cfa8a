"""The commands that run a system: ``run``, ``restore`` and ``resume``; for one on several machines
``join`` and ``certs``."""

import contextlib
import functools
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer
import uvloop

from stillframe.cli import options, output, quantities
from stillframe.cli.command import Commands, argument, conclude, end_with_failure, flag, option
from stillframe.cli.snapshots import ask, not_stable_sentence
from stillframe.cli.supervision import (
    NOT_NEEDED,
    EventPrinter,
    StopCondition,
    SystemConfig,
    check_shared,
    keep_running,
    output_dirs,
    stop_signals,
)
from stillframe.detect.predicate import check_predicate_name, not_stable
from stillframe.durable_files import shell_command
from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.imports import add_cwd_to_path, load_topology, search_path
from stillframe.migration import migrate as migrate_snapshot
from stillframe.model import SnapshotId
from stillframe.runtime import events
from stillframe.runtime.control import ORPHANED_S, LaunchSpec
from stillframe.runtime.network.addresses import COORDINATOR_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import current_process, is_apart
from stillframe.runtime.run_file import supervisor_of
from stillframe.runtime.supervisor.admin_socket import NOTICE_S, RestoreSnapshot
from stillframe.runtime.supervisor.child_processes import run_until_stopped
from stillframe.runtime.supervisor.operation import check_keep, create_store, open_writer
from stillframe.runtime.supervisor.recovery import needs_agreement
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import Location
from stillframe.store.history import readable_history
from stillframe.store.store import Store
from stillframe.topology import Topology

_STDOUT, _STDERR = 1, 2
DAYS_MAX = 3650

app = Commands()


@app.add("run stillframe.examples.bank:bank --store money --interval 250ms")
def run(
    reference: str = options.TOPOLOGY,
    *,
    store: Location = option(
        "DIR", "Directory of the new store, or address, as s3://bucket/dir.", default=...
    ),
    snapshots: options.SnapshotOptions,
    until: str | None = options.UNTIL,
    keep: int | None = options.KEEP,
    pipeline: Location | None = options.PIPELINE,
    traces: options.TraceOptions,
    placement: options.PlacementOptions,
) -> None:
    """Start a system and take snapshots of it until Ctrl-C or SIGTERM."""
    check_shared(store)
    config = SystemConfig.of(*(snapshots, traces, placement), keep_count=keep, pipeline=pipeline)
    add_cwd_to_path()
    topology = _load_topology(reference)
    config.check_initiators(topology.description)
    if until is not None:
        check_predicate_name(until)
    with contextlib.closing(create_store(store, topology.description, reference)) as made:
        _supervise(reference, made, config, until)


@app.add("restore money P1-17")
def restore(
    path: options.StorePath,
    name: options.OptionalSnapshotName = None,
    *,
    snapshots: options.SnapshotOptions,
    until: str | None = options.UNTIL,
    keep: int | None = options.KEEP,
    pipeline: Location | None = options.PIPELINE,
    traces: options.TraceOptions,
    dry_run: bool = flag(
        "--dry-run", "Report what a restore with the current code would do, without doing it."
    ),
    migrate: bool = flag(
        "--migrate", "Restore even if the code has changed, migrating state to the current classes."
    ),
    placement: options.PlacementOptions,
) -> None:
    """Restore a system from a snapshot, by default the latest. A running system is restored live
    and keeps its options; otherwise this command starts it with the given options."""
    config = SystemConfig.of(
        *(snapshots, traces, placement), keep_count=keep, pipeline=pipeline, may_migrate=migrate
    )
    if dry_run:
        _foretell(path, name, pipeline)
        return
    store = Store.open(path)
    if until is not None:
        check_predicate_name(until)
        supervisor = supervisor_of(path)
        if supervisor is not None and not is_apart(supervisor):
            raise UsageError(
                f"the system of {path} is running, and keeps running after a restore: leave out "
                "--until, or stop it first"
            )
    requested = None if name is None else store.find(name)
    if pipeline is not None:
        if migrate:
            raise UsageError(
                "--migrate is for systems outside a pipeline: the snapshots of this one are part "
                f"of those of the pipeline {pipeline}: keep the old code, or start both again, in "
                "new directories"
            )
        if requested is not None:
            raise UsageError(
                "the pipeline determines the start snapshot: leave out SNAPSHOT, and choose one "
                f"with '{shell_command('pipeline', 'restore', pipeline)}'"
            )
        _restore_stopped(path, None, config, until)
        return
    if (store.current() if requested is None else store.entry(requested)) is None:
        raise _no_snapshot_yet(path)
    if migrate or until is not None:
        _restore_stopped(path, requested, config, until)
        return
    config.check_initiators(store.description)
    try:
        _restore_live(path, requested)
    except Unavailable:
        _restore_stopped(path, requested, config, until)


@app.add("resume money")
def resume(
    path: options.StorePath,
    *,
    snapshots: options.SnapshotOptions,
    keep: int | None = options.KEEP,
    traces: options.TraceOptions,
    placement: options.PlacementOptions,
) -> None:
    """Take over a system whose supervisor died. If its processes still run, they continue as they
    are; otherwise the system restarts from the latest snapshot."""
    config = SystemConfig.of(*(snapshots, traces, placement), keep_count=keep, takes_over=True)
    add_cwd_to_path()
    with contextlib.closing(open_writer(path, takes_over=True)) as store:
        _supervise(_reference_of(store), store, config)


def _no_snapshot_yet(path: Location) -> UsageError:
    return UsageError(
        f"the store {path} holds no snapshot yet: start the system with 'stillframe run'"
    )


def _restore_live(path: Location, requested: SnapshotId | None) -> None:
    began = time.monotonic()
    done = ask(path, RestoreSnapshot(requested))
    seconds = time.monotonic() - began
    for damage in readable_history(path)[1]:
        output.say(f"warning: {damage}; {NOT_NEEDED}")
    snapshot = Store.open(path).restored_from
    output.answer({"epoch": done.epoch, "snapshot": snapshot, "seconds": seconds})
    output.report(
        f"epoch {done.epoch}: the running system was restored from snapshot {snapshot} in "
        f"{quantities.duration(seconds)}; it keeps the options that it was started with"
    )


def _restore_stopped(
    path: Location, requested: SnapshotId | None, config: SystemConfig, until: str | None
) -> None:
    add_cwd_to_path()
    with contextlib.closing(open_writer(path)) as store:
        config = msgspec.structs.replace(config, restore=requested)
        _supervise(_reference_of(store), store, config, until)


def _supervise(
    reference: str, store: Store, config: SystemConfig, until: str | None = None
) -> None:
    # Import it before the event loop runs, which takes no signal meanwhile.
    topology = _load_topology(reference)
    condition = None if until is None else StopCondition(until, store.path, topology)
    # With other code the processes can be others; else the supervisor sees that they are the same.
    description = topology.description if config.may_migrate else store.description
    config.check_initiators(description)
    processes = description.processes
    check_keep(config)
    is_json = output.wants_json()
    with _stdout_for_json() if is_json else contextlib.nullcontext():
        printer = EventPrinter(process_count=len(processes), is_json=is_json)

        def emit(event: events.Event) -> None:
            printer.emit(event)
            if condition is not None:
                condition.on_event(event)

        system = Supervisor(reference, store, config, emit=emit)
        has_kept_all = uvloop.run(keep_running(system, config, printer, condition))
    if (error := store.maintenance_error) is not None:
        output.say(f"old snapshots could not be removed: {error}")
    _say_how_to_go_on(store, config)
    if condition is not None and printer.unwritten is None:
        _say_what_was_seen(condition)
    if not has_kept_all:
        end_with_failure()
    if printer.unwritten is not None:
        raise printer.unwritten


def _load_topology(reference: str) -> Topology:
    """Import a topology, and say what is waited for if that takes long: it runs code of users."""
    module = reference.partition(":")[0]
    words = f"waiting for the import of {module}; Ctrl-C ends this command"
    notice = threading.Timer(NOTICE_S, output.say, [words])
    notice.daemon = True
    notice.start()
    try:
        return load_topology(reference)
    finally:
        notice.cancel()


def _say_how_to_go_on(store: Store, config: SystemConfig) -> None:
    if config.pipeline is not None:
        output.say(
            f"stopped; to continue: {shell_command('pipeline', 'restore', config.pipeline)}, then "
            f"{shell_command('restore', store.path, '--pipeline', config.pipeline)}"
        )
        return
    try:
        current = store.current()
    except StillframeError as error:
        output.say(f"stopped; choose a snapshot to continue from with 'stillframe list': {error}")
        return
    if current is None:
        output.say("stopped; no snapshot was published, so there is nothing to continue from")
        return
    command = shell_command("restore", store.path)
    output.say(f"stopped; to continue from snapshot {current.id}: {command}")


def _say_what_was_seen(condition: StopCondition) -> None:
    is_known = condition.evaluate_last()
    name, seen = condition.name, condition.evaluations
    present = [one for one in seen if one.epoch == seen[-1].epoch]
    held = [one for one in present if one.verdict.holds]
    broken = not_stable(present)
    shown = next(reversed(held or present), None)
    document = {
        "event": "PredicateEvaluated",
        "predicate": name,
        "holds": bool(held) and broken is None,
        "newest": shown,
        "not_stable": broken and [one.snapshot for one in broken],
    }
    output.answer(document)
    if broken is not None:
        end_with_failure(not_stable_sentence(name, *broken), no="no")
    if not held and not is_known:
        output.report(f"no answer: {name} was still being evaluated when the system was stopped")
        end_with_failure()
    if shown is None:
        end_with_failure(f"no snapshot was published in which {name} could have held", no="no")
    holds = "holds" if held else "did not hold"
    sentence = f"{name} {holds} in {shown.snapshot}: {shown.verdict.sentence}"
    conclude(bool(held), sentence, yes="yes", no="no")


@contextlib.contextmanager
def _stdout_for_json() -> Iterator[None]:
    """Keep stdout for JSON: processes inherit it, and what they print goes to stderr meanwhile."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8")
    os.dup2(_STDERR, _STDOUT)
    try:
        with contextlib.redirect_stdout(ours):
            yield
    finally:
        os.dup2(ours.fileno(), _STDOUT)
        # Each line was flushed: what is left could not be written, and whoever wrote it knows.
        with contextlib.suppress(OSError):
            ours.close()


def _foretell(path: Location, name: str | None, pipeline: Location | None) -> None:
    """Print what a restore would do. Everything is read and decoded, and nothing is changed."""
    if pipeline is not None:
        raise UsageError("--dry-run is for systems outside a pipeline: leave out --pipeline")
    store = Store.open(path)
    entry = store.current() if name is None else store.entry(store.find(name))
    if entry is None:
        raise _no_snapshot_yet(path)
    add_cwd_to_path()
    topology = load_topology(_reference_of(store))
    migration = migrate_snapshot(store.load(entry.id), store.description_of(entry.id), topology)
    changes, losses = migration.changes, migration.losses
    is_agreed = not needs_agreement(store, entry.id, topology)
    state = migration.snapshot.state
    document = {
        "snapshot": entry.id,
        "process_count": len(state.processes),
        "channel_count": len(state.channels),
        "message_count": state.message_count,
        "needs_migrate": not is_agreed,
        "is_lossy": bool(losses),
        "changes": changes,
    }
    rows = [(one.subject, one.sentence, "lost" if one.is_loss else "") for one in changes]
    columns = ("what", "change", "recorded values")
    put = functools.partial(output.put_table, "changes of code", columns, rows, texts=3)
    output.answer(document, put if changes else None)
    lost = quantities.count(len(losses), "change")
    output.report(
        f"a restore would start from snapshot {entry.id}: "
        f"{quantities.count(len(state.processes), 'process')}, "
        f"{quantities.count(state.message_count, 'message')} in channels"
        + ("" if is_agreed else ", with --migrate, because the code has changed")
        + (f"; recorded values would be LOST by {lost}" if losses else "")
        + "; nothing was changed"
    )


def _reference_of(store: Store) -> str:
    if store.reference is None:
        raise UsageError(
            f"the store {store.path} does not say where its topology is defined: it was not "
            "created by 'stillframe run'"
        )
    return store.reference


@app.add(
    "join stillframe.examples.bank:bank P2 --coordinator 10.0.0.1 --listen 10.0.0.2 --tls tls/P2"
)
def join(
    reference: str = options.TOPOLOGY,
    process: str = argument("PROCESS", "Process to run."),
    *,
    coordinator: str = option(
        "HOST[:PORT]", "Address of the coordinator.  [default port: 8640]", default=...
    ),
    listen: str = option(
        "ADDRESS[:PORT]",
        "Address of this machine that the other processes can reach.  [default port: any]",
        default=...,
    ),
    tls: Path = option(
        "DIR", "Directory with ca.pem, cert.pem and key.pem of the process.", default=...
    ),
    traces: options.TraceOptions,
) -> None:
    """Run one process of a system on this machine. Start the system elsewhere with 'run
    --external PROCESS'. The process waits for the coordinator, and rejoins after every restore
    until Ctrl-C or SIGTERM. Exit 2 if its first attempt is rejected."""
    add_cwd_to_path()
    tls = tls.absolute()
    check_own(tls, process)
    launch = LaunchSpec(
        me=Credentials(process, 0, "", b"", str(tls)),
        reference=reference,
        search_path=search_path(),
        coordinator=Address.parse(coordinator, port=COORDINATOR_PORT),
        listen=Address.parse(listen, port=0),
        supervisor=current_process(),
        orphaned_s=ORPHANED_S,
        outputs=output_dirs(traces),
        is_elsewhere=True,
    )

    def emit(what: str, words: str) -> None:
        output.answer({"event": what, "process": process, "detail": words})
        output.say(f"process {process}: {words}")

    async def until_stop() -> int:
        with stop_signals() as stop:
            return await run_until_stopped(launch, stop.requested, emit)

    if code := uvloop.run(until_stop()):
        raise typer.Exit(code)


@app.add("certs tls P2 P3")
def certs(
    directory: Path = argument("DIR", "Directory of the CA. It is created if it does not exist."),
    processes: list[str] | None = argument(
        "PROCESS...", "External processes, or services.", default=None
    ),
    days: int = typer.Option(90, help="Days until the certificates expire.", min=1, max=DAYS_MAX),
) -> None:
    """Create a CA and certificates for the coordinator and for each external process or observed
    service, for testing. An existing CA is used again. In production, use your own CA."""
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError("certificates need the extra 'tls': pip install 'stillframe[tls]'")
    from stillframe.runtime.network import certificate_authority as authority  # noqa: PLC0415 - needs the extra

    folders = authority.issue_certificates(directory, processes or [], days=days)
    names = [str(folder) for folder in folders]
    output.answer({"folders": names, "days": days}, lambda: output.put_lines(names))
    output.say(
        f"valid for {days} days; copy each folder to its machine and give it to --tls there; "
        f"keep {directory / authority.CA_KEY_FILE} secret"
    )
