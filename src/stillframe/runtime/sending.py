"""The function with which an application sends."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from stillframe.errors import UsageError
from stillframe.model import ProcessId
from stillframe.process import Message, is_immutable
from stillframe.runtime.ends import ENCODING_ERRORS, Outgoing

if TYPE_CHECKING:  # loaded only by a process that writes an event log
    from stillframe.runtime.noting import Noting

Send = Callable[[ProcessId, Message], None]


def make_send(
    process: ProcessId, outgoing: Mapping[ProcessId, Outgoing], log: "Noting | None"
) -> Send:
    """Return the function that applications call: two lookups and an append.

    What cannot change is encoded with its batch, which is much faster than one by one; what holds a
    list or the like is encoded at once, because it could.

    Args:
        process: who sends.
        outgoing: the channels, by target.
        log: where each message is noted, if there is an event log.
    """
    entries = {
        target: {kind: _keeper(kind, channel.pending) for kind in channel.accepts}
        for target, channel in outgoing.items()
    }

    def send(target: ProcessId, message: Message) -> None:
        try:
            entries[target][message.__class__](message)
        except (KeyError, TypeError, *ENCODING_ERRORS) as error:
            raise _misaddressed(process, outgoing, target, message, error) from error

    if log is None:
        return send
    note = log.note
    entries_with_code = {
        target: {kind: (keep, log.sending[target]) for kind, keep in keepers.items()}
        for target, keepers in entries.items()
    }

    def send_and_note(target: ProcessId, message: Message) -> None:
        try:
            keep, code = entries_with_code[target][message.__class__]
            keep(message)
        except (KeyError, TypeError, *ENCODING_ERRORS) as error:
            raise _misaddressed(process, outgoing, target, message, error) from error
        note(code)

    return send_and_note


def _keeper(kind: type[Message], pending: list[Message | msgspec.Raw]) -> Callable[[Message], None]:
    """Return what puts a message of class `kind` behind the pending ones, safe from changes."""
    if is_immutable(kind):
        return pending.append
    encode = msgspec.msgpack.Encoder().encode
    return lambda message: pending.append(msgspec.Raw(encode(message)))


def _misaddressed(
    process: ProcessId,
    outgoing: Mapping[ProcessId, Outgoing],
    target: object,
    message: object,
    error: Exception,
) -> UsageError:
    channel = outgoing.get(str(target))
    if channel is None:
        return UsageError(
            f"process {process} has no channel to {target!r}; "
            f"outgoing: {', '.join(outgoing) or 'none'}"
        )
    if not isinstance(message, tuple(channel.accepts)):
        accepted = ", ".join(sorted(kind.__name__ for kind in channel.accepts))
        return UsageError(
            f"channel {channel.channel}: {target} accepts {accepted or 'no message'}, "
            f"not {type(message).__name__}; add it to the annotation of its receive()"
        )
    return UsageError(f"channel {channel.channel}: {message!r} cannot be encoded: {error}")
