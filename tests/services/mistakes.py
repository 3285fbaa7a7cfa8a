"""Mistakes of a host of the rules, which a check of a cut has to find."""

from typing import Any

import msgspec

from stillframe.protocol.activities import NO_DETAILS, CallDetails
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    AnswerHeader,
    Instance,
    InstanceFragment,
    MessageHeader,
    RequestHeader,
)

changed = msgspec.structs.replace


def request_without_colour(instance: Instance) -> None:
    """Let an instance not look at the colour of requests."""
    accept = instance.accept

    def wrong(
        header: RequestHeader, *, brought: Amounts = NOTHING, details: CallDetails = NO_DETAILS
    ) -> tuple[int, InstanceFragment | None]:
        return accept(changed(header, colour=0), brought=brought, details=details)

    instance.accept = wrong  # type: ignore[method-assign]


def answer_without_colour(instance: Instance) -> None:
    """Let an instance not look at the colour of answers."""
    accept = instance.accept_answer

    def wrong(number: int, header: AnswerHeader) -> InstanceFragment | None:
        return accept(number, changed(header, colour=0))

    instance.accept_answer = wrong  # type: ignore[method-assign]


def message_without_colour(instance: Instance) -> None:
    """Let an instance look at the colour at the start of a call, and not at those of messages."""
    accept = instance.accept_message

    def wrong(end: Any, header: MessageHeader) -> InstanceFragment | None:
        return accept(end, changed(header, colour=0))

    instance.accept_message = wrong  # type: ignore[method-assign]


def capture_behind(instance: Instance) -> None:
    """Let an instance capture after it has accepted a request."""
    accept = instance.accept

    def wrong(
        header: RequestHeader, *, brought: Amounts = NOTHING, details: CallDetails = NO_DETAILS
    ) -> tuple[int, InstanceFragment | None]:
        ticket, _ = accept(changed(header, colour=0), brought=brought, details=details)
        return ticket, instance.meet(header.colour)

    instance.accept = wrong  # type: ignore[method-assign]


def capture_behind_message(instance: Instance) -> None:
    """Let an instance capture after it has accepted a message of a stream."""
    accept = instance.accept_message

    def wrong(end: Any, header: MessageHeader) -> InstanceFragment | None:
        accept(end, changed(header, colour=0))
        return instance.meet(header.colour)

    instance.accept_message = wrong  # type: ignore[method-assign]
