"""What a dead supervisor has left, and whether another one can go on with it.

Nothing but the coordinator writes to the store, and that needs the store's lock, which dies with
it: so whoever holds the lock may decide. Either every process that ran goes on in the same epoch,
or each of them is ended before the next one begins.
"""

import asyncio

from stillframe.errors import UsageError
from stillframe.model import ProcessId
from stillframe.protocol.wire import check_version
from stillframe.runtime.os_process import is_there, kill
from stillframe.runtime.running import RunningSystem, remove_commands
from stillframe.runtime.site import Site
from stillframe.store.store import Store

WISHED: str | None = "the system is to begin a new epoch"


def why_not(
    left: RunningSystem, store: Store, site: Site, started_here: tuple[ProcessId, ...]
) -> str | None:
    """Return why another supervisor cannot go on with what is `left`; None if it can.

    Args:
        left: what an earlier supervisor left.
        store: of the system, open for writing.
        site: where the new one is to listen, and with which certificates.
        started_here: the processes that it would start on this machine.
    """
    if left.pipeline is not None:
        return f"the system is part of the pipeline {left.pipeline} and goes back with it alone"
    if left.epoch != store.epoch:
        return f"they are of epoch {left.epoch}, and epoch {store.epoch} had begun"
    if left.topology_hash != store.description.hash:
        return "they run another topology than the store is for now"
    if (other := _other_place(left, site, started_here)) is not None:
        return other
    if left.children and not any(map(is_there, left.children.values())):
        return "none of them runs any more"
    return None


def check_release(left: RunningSystem, store: Store) -> None:
    """Check that who wants to take over speaks with what runs of the system, or may run elsewhere.

    Raises:
        Refused: it could not let anybody in: everybody would end, and lose what no snapshot has.
    """
    elsewhere = store.description.processes.keys() - left.children.keys()
    if elsewhere or any(map(is_there, left.children.values())):
        check_version(left.protocol_version, f"what runs of the system of {store.path}")


def check_place(left: RunningSystem, site: Site, started_here: tuple[ProcessId, ...]) -> None:
    """Check that who wants to take over runs the system where it ran, as long as it runs.

    Raises:
        UsageError: it would have to be ended instead.
    """
    reason = _other_place(left, site, started_here)
    if reason is not None and any(map(is_there, left.children.values())):
        raise UsageError(
            f"what runs of the system cannot be taken over: {reason}; give the options --listen, "
            "--tls and --elsewhere that it was started with, or end it and go back to its last "
            "snapshot with 'stillframe restore'"
        )


def _other_place(
    left: RunningSystem, site: Site, started_here: tuple[ProcessId, ...]
) -> str | None:
    """Return what `site` has otherwise than what is `left`; None if nothing."""
    if left.has_tls != (site.certificates is not None):
        return f"they run {'with' if left.has_tls else 'without'} TLS"
    if site.listen.port and site.listen != left.coordinator:
        return f"they come back to {left.coordinator}, and the coordinator is at {site.listen} now"
    if left.children.keys() != set(started_here):
        now, then = ", ".join(started_here) or "none", ", ".join(left.children) or "none"
        return f"{now} are the processes of this machine now, and {then} were"
    return None


async def end_all(left: RunningSystem) -> tuple[str, ...]:
    """End what runs on this machine of the system that is `left`; return its processes.

    Those that joined by themselves hear that the epoch is over when they come back, and end without
    that when they have waited for long enough.

    Raises:
        Unavailable: a process cannot be ended.
    """
    running = {process: known for process, known in left.children.items() if is_there(known)}
    await asyncio.gather(*(asyncio.to_thread(kill, known) for known in running.values()))
    remove_commands(left)
    return tuple(running)
