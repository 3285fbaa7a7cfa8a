"""``stillframe run`` and ``stillframe restore``: a system starts afresh, or goes on."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer
import uvloop

from stillframe.cli import output, quantities
from stillframe.cli.detection import not_stable_sentence
from stillframe.cli.migration import reference_of
from stillframe.cli.narration import Narrator
from stillframe.cli.supervision import NOT_NEEDED, Plan, keep_running
from stillframe.cli.verdict import EXIT_NO
from stillframe.cli.watching import Watch
from stillframe.detect.predicate import not_stable
from stillframe.detect.registry import check_predicate_name
from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.model import SnapshotId
from stillframe.runtime import events
from stillframe.runtime.run_file import describe_owner, find_stale
from stillframe.runtime.supervisor.admin_socket import NOTICE_S, RestoreSnapshot, send_command
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.history import readable_history
from stillframe.store.store import Store
from stillframe.topology import Description, Topology

_STDOUT, _STDERR = 1, 2


def run(reference: str, path: Path, plan: Plan) -> None:
    """Start the topology of `reference` afresh, with a new store at `path`."""
    add_cwd_to_path()
    topology = _load_topology(reference)
    _check_initiators(plan, topology.description)
    if plan.until is not None:
        check_predicate_name(plan.until)
    _refuse_used(path)
    with contextlib.closing(
        Store.create(path, description=topology.description, reference=reference)
    ) as store:
        watch = None if plan.until is None else Watch(plan.until, path, topology)
        _supervise(reference, store, None, plan, watch)


def restore(path: Path, name: str | None, plan: Plan) -> None:
    """Take the system of the store at `path` back to the snapshot `name`, or the current one.

    If it is running it goes back live, else it is started.
    """
    store = Store.open(path)
    wish = None if name is None else store.find(name)
    if plan.pipeline is not None:
        if plan.may_migrate:
            raise UsageError(
                "--migrate is for a system alone: the snapshots of this one are parts of those of "
                f"the pipeline {plan.pipeline}: go on with the old code, or start both afresh"
            )
        if wish is not None:
            raise UsageError(
                "the pipeline says with which snapshot this system begins: leave out the snapshot, "
                f"and choose one with 'stillframe spark restore {plan.pipeline}'"
            )
        _restore_stopped(path, None, plan)
        return
    if (store.current() if wish is None else store.entry(wish)) is None:
        raise UsageError(
            f"the store {path} holds no snapshot yet: start the system with 'stillframe run'"
        )
    if plan.may_migrate:
        _restore_stopped(path, wish, plan)
        return
    _check_initiators(plan, store.description)
    try:
        _restore_live(path, wish, is_json=plan.is_json)
    except Unavailable:
        _restore_stopped(path, wish, plan)


def resume(path: Path, plan: Plan) -> None:
    """Go on with the processes that the supervisor of the store at `path` left when it died; or,
    if that is not possible, from its last snapshot."""
    add_cwd_to_path()
    with contextlib.closing(_open_writer(path)) as store:
        left = find_stale(path)
        if left is not None and left.pipeline is not None:
            raise UsageError(
                f"the system of {path} is part of the pipeline {left.pipeline}, and goes back with "
                f"it alone: use 'stillframe spark restore {left.pipeline}', and then 'stillframe "
                f"restore {path} --pipeline {left.pipeline}'"
            )
        _supervise(reference_of(store), store, None, plan, None, takes_over=True)


def _restore_live(path: Path, wish: SnapshotId | None, *, is_json: bool) -> None:
    began = time.monotonic()
    done = uvloop.run(send_command(path, RestoreSnapshot(wish), notice=output.say))
    seconds = time.monotonic() - began
    for damage in readable_history(path)[1]:
        output.say(f"warning: {damage}; {NOT_NEEDED}")
    snapshot = Store.open(path).restored_from
    if is_json:
        output.put_json({"epoch": done.epoch, "snapshot": snapshot, "seconds": seconds})
    output.say(
        f"epoch {done.epoch}: the running system went back to snapshot {snapshot} in "
        f"{quantities.duration(seconds)}; it keeps the options that it was started with"
    )


def _restore_stopped(path: Path, wish: SnapshotId | None, plan: Plan) -> None:
    add_cwd_to_path()
    with contextlib.closing(_open_writer(path)) as store:
        _supervise(reference_of(store), store, wish, plan, None)


def _open_writer(path: Path) -> Store:
    try:
        return Store.open_writer(path)
    except Unavailable as error:
        if use := describe_owner(path):
            raise Unavailable(f"the store {path} is in use: {use}") from error
        raise


def _supervise(
    reference: str,
    store: Store,
    wish: SnapshotId | None,
    plan: Plan,
    watch: Watch | None,
    *,
    takes_over: bool = False,
) -> None:
    # Import it before the event loop runs, which takes no signal meanwhile.
    topology = _load_topology(reference)
    # With other code the processes can be others; else the supervisor sees that they are the same.
    description = topology.description if plan.may_migrate else store.description
    _check_initiators(plan, description)
    processes = description.processes
    initiators = plan.initiators or (next(iter(processes)),)
    if plan.keep_count is not None:
        if plan.pipeline is not None:
            raise UsageError(
                "--keep is for a system alone: the pipeline's snapshots need those of this one; "
                f"use 'stillframe spark snapshot {plan.pipeline} --keep {plan.keep_count}'"
            )
        store.keep(plan.keep_count)
    with _stdout_for_json() if plan.is_json else contextlib.nullcontext():
        narrator = Narrator(process_count=len(processes), is_json=plan.is_json)

        def emit(event: events.Event) -> None:
            narrator.emit(event)
            if watch is not None:
                watch.saw(event)

        plan = msgspec.structs.replace(
            plan, restore=wish, takes_over=takes_over, initiators=initiators
        )
        system = Supervisor(reference, store, plan, emit=emit)
        has_kept_all = uvloop.run(keep_running(system, plan, narrator, watch))
    if (trouble := store.maintenance_error) is not None:
        output.say(f"old snapshots could not be seen to: {trouble}")
    _say_how_to_go_on(store, plan)
    if watch is not None and narrator.unwritten is None:
        _say_what_was_seen(watch, is_json=plan.is_json)
    if not has_kept_all:
        raise typer.Exit(EXIT_NO)
    if narrator.unwritten is not None:
        raise narrator.unwritten


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


def _say_how_to_go_on(store: Store, plan: Plan) -> None:
    if plan.pipeline is not None:
        output.say(
            f"stopped; to go on: stillframe spark restore {plan.pipeline}, and then stillframe "
            f"restore {store.path} --pipeline {plan.pipeline}"
        )
        return
    try:
        current = store.current()
    except StillframeError as error:
        output.say(f"stopped; choose a snapshot to go on from with 'stillframe list': {error}")
        return
    output.say(
        "stopped; no snapshot was published, so there is nothing to go on from"
        if current is None
        else f"stopped; to go on from snapshot {current.id}: stillframe restore {store.path}"
    )


def _say_what_was_seen(watch: Watch, *, is_json: bool) -> None:
    """Say whether the predicate held.

    Raises:
        typer.Exit: with 1; it did not.
    """
    is_known = watch.look_at_last()
    present = [seen for seen in watch.sightings if seen.epoch == watch.sightings[-1].epoch]
    held = [seen for seen in present if seen.verdict.holds]
    broken = not_stable(present)
    shown = held[-1] if held else (present[-1] if present else None)
    if is_json:
        output.put_json(
            {
                "event": "Judged",
                "predicate": watch.name,
                "holds": bool(held) and broken is None,
                "newest": shown,
                "not_stable": broken and [seen.snapshot for seen in broken],
            }
        )
    if broken is not None:
        output.say(not_stable_sentence(watch.name, *broken))
    elif held and shown is not None:
        output.say(f"yes: {watch.name} holds in {shown.snapshot}: {shown.verdict.sentence}")
        return
    elif not is_known:
        output.say(f"no answer: {watch.name} was still being asked when the system was stopped")
    elif shown is None:
        output.say(f"no: no snapshot was published in which {watch.name} could have held")
    else:
        output.say(f"no: {watch.name} did not hold in {shown.snapshot}: {shown.verdict.sentence}")
    raise typer.Exit(EXIT_NO)


def _check_initiators(plan: Plan, description: Description) -> None:
    for initiator in plan.initiators:
        description.check_process(initiator)


def _refuse_used(path: Path) -> None:
    try:
        is_used = bool(Store.open(path).entries())
    except UsageError:  # there is no store yet
        return
    if is_used:
        raise UsageError(
            f"the store {path} has snapshots already: use 'stillframe restore {path}' to go on "
            "from the last one, or give another directory for a fresh start"
        )


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
