"""Connecting, and keeping a channel connected whatever happens to its connections."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stillframe.errors import Refused
from stillframe.model import Channel, ProcessId
from stillframe.runtime.addresses import Address
from stillframe.runtime.ends import Outgoing
from stillframe.runtime.host import Host
from stillframe.runtime.link import ConnectingLink, Connection, Credentials
from stillframe.runtime.secured import Secured

RETRY_S_MIN = 0.01
RETRY_S_MAX = 1.0
DIAL_TIMEOUT_S = 5.0
"""So long may a connection take to be made: the kernel alone would wait for minutes."""
SILENT_AFTER_S = 5.0
"""A target that cannot be reached for so long is reported."""

SomeConnection = TypeVar("SomeConnection", bound=Connection)


async def dial(
    connection: SomeConnection, address: Address, certificates: str | None, target: ProcessId | None
) -> SomeConnection:
    """Connect `connection`, over TLS if there is a directory of `certificates`; return it.

    Args:
        connection: what speaks; it begins its handshake.
        address: where to.
        certificates: the directory of ours, None for none.
        target: whose certificate must be shown there; None is the coordinator's.

    Raises:
        OSError: nobody answers there in time, or our certificates cannot be read.
    """
    protocol: Connection | Secured = connection
    if certificates is not None:
        protocol = Secured(connection, Path(certificates), is_listening=False, target=target)
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, address.host, address.port
            )
    except ValueError as error:  # of a host that can be no name
        raise OSError(f"it cannot be looked up: {error}") from error
    return connection


async def keep_connected(
    host: Host,
    outgoing: Outgoing,
    me: Credentials,
    *,
    address: Address,
    trouble: Callable[[str], None],
    connected: Callable[[Channel], None],
) -> None:
    """Keep a channel connected to its target until cancelled.

    Args:
        host: whose channel it is.
        outgoing: the channel.
        me: what to show in the handshake.
        address: where the target listens.
        trouble: takes a sentence for the coordinator when a connection broke the rules, or the
            target cannot be reached.
        connected: called each time that the channel is connected.

    A refusal by a target that never let us in ends the process: trying again would not help.
    """
    loop, channel = asyncio.get_running_loop(), outgoing.channel
    retry_s, was_connected = RETRY_S_MIN, False
    report_due = loop.time() + SILENT_AFTER_S
    while True:
        link = ConnectingLink(host, outgoing, me, connected)
        try:
            await dial(link, address, me.certificates, channel.target)
        except OSError as silence:
            if loop.time() > report_due:
                reason = str(silence) or "no answer"
                trouble(f"channel {channel}: {address} cannot be reached: {reason}; still trying")
                report_due = float("inf")
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)
            continue
        try:
            error = await link.lost
        finally:
            link.close()
        if link.is_open:
            retry_s, was_connected = RETRY_S_MIN, True
            report_due = loop.time() + SILENT_AFTER_S
        if error is not None:
            detail = f"channel {channel}: the connection to {link.peer} was closed: {error}"
            # A target that let us in before and is gone now may have left its port to a stranger.
            if isinstance(error, Refused) and not was_connected:
                host.fail(Refused(detail))
                return
            trouble(detail)
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)
