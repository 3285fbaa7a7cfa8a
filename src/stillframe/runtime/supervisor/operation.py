"""The operation of a system, shared by every program that runs one: open its store, take periodic
snapshots, and take the last one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from stillframe.durable_files import shell_command
from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.aligner import Mode
from stillframe.runtime.run_file import describe_owner, read_run_file
from stillframe.runtime.supervisor.config import RunConfig
from stillframe.runtime.supervisor.recovery import check_release
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically
from stillframe.storage.location import Location
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Description

WRITE_S = 5.0
"""How long writing the last snapshot may take, in seconds, after all processes recorded it."""
RETRY_S = 0.01
"""How long to wait, in seconds, before trying again while a pipeline takes another snapshot."""


def create_store(path: Location, description: Description, reference: str) -> Store:
    """Create the store of a new system. A UsageError if it has snapshots already, or
    as ``Store.create``."""
    try:
        is_used = bool(Store.open(path).entries())
    except UsageError:  # there is no store yet
        is_used = False
    if is_used:
        raise UsageError(
            f"the store {path} already has snapshots",
            path=path,
            remedy=f"use '{shell_command('restore', path)}' or, in Python, run(..., "
            "restore='newest') to continue from the last one, or give another directory for a "
            "fresh start",
        )
    return Store.create(path, description=description, reference=reference)


def open_writer(path: Location, *, takes_over: bool = False) -> Store:
    """Open the store of a system that continues. If the store is in use, Unavailable names the
    program. A supervisor that `takes_over` gets a UsageError if a pipeline decides where the system
    continues, and as for ``check_release``: before anything is written, which locks out an older
    release. Other errors are as for ``Store.open_writer``."""
    try:
        store = Store.open_writer(path)
    except Unavailable as error:
        if use := describe_owner(path):
            raise Unavailable(f"the store {path} is in use: {use}", path=path) from error
        raise
    try:
        left = read_run_file(path) if takes_over else None
        if left is not None and left.pipeline is not None:
            raise UsageError(
                f"the system of {path} is part of the pipeline {left.pipeline}, and can only be "
                f"restored with it: use '{shell_command('pipeline', 'restore', left.pipeline)}', "
                f"and then '{shell_command('restore', path, '--pipeline', left.pipeline)}'"
            )
        if left is not None:
            check_release(left, store)
    except BaseException:
        store.close()
        raise
    return store


def check_keep(config: RunConfig) -> None:
    """Raise a UsageError if `config` says how many snapshots to keep, but a pipeline decides."""
    if config.keep_count is not None and config.pipeline is not None:
        command = shell_command(
            "pipeline", "snapshot", config.pipeline, "--keep", config.keep_count
        )
        raise UsageError(
            "--keep cannot be used with a pipeline, whose snapshots need those of this system; "
            f"use '{command}'"
        )


@contextlib.asynccontextmanager
async def periodic_snapshots(system: Supervisor, config: RunConfig) -> AsyncIterator[None]:
    """Take the periodic snapshots of a running system while the body runs, if `config` has any.
    From now on it keeps as many as `config` says: a start that fails removes none."""
    if config.keep_count is not None:
        system.store.keep(config.keep_count)
    if config.every_s is None or config.pipeline is not None:
        yield
        return
    initiators = config.initiators or (system.first_process,)
    work = trigger_periodically(
        system, every_s=config.every_s, initiators=initiators, emit=system.emit
    )
    taking = asyncio.ensure_future(work)
    try:
        yield
    finally:
        taking.cancel()
        # If the system has ended, that is what this says too.
        with contextlib.suppress(asyncio.CancelledError, StillframeError):
            await taking


def last_snapshot_limit_s(config: RunConfig) -> float:
    """Return how many seconds the last snapshot may take. Those in progress may take as long as it,
    and both have deadlines: only the disk has none."""
    return 2 * config.timeout_s + WRITE_S


async def last_snapshot(
    system: Supervisor, config: RunConfig
) -> SnapshotEntry | Abandoned | Manifest:
    """Take the snapshot from which a system continues after it is stopped: its own, or that of its
    pipeline. Errors are as for ``Supervisor.last_snapshot`` and ``Pipeline.snapshot``."""
    if config.pipeline is None:
        initiator = config.initiators[0] if config.initiators else system.first_process
        return await system.last_snapshot(initiator)
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
