"""Mistakes of a host of the rules, which a check of a cut has to find."""

from collections.abc import Callable
from typing import Any

import msgspec

from stillframe.protocol.activities import NO_DETAILS, CallDetails
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    AnswerHeader,
    CallId,
    InstanceFragment,
    MessageHeader,
    RequestHeader,
)
from stillframe.services.agent import Agent

changed = msgspec.structs.replace


def _hide_colours(agent: Agent) -> dict[CallId, int]:
    """Let an agent read requests without their colours; return those."""
    hidden: dict[CallId, int] = {}
    decode = agent.headers.decode

    def wrong(kind: Any, text: str, stream: str = "") -> Any:
        header = decode(kind, text, stream)
        if not isinstance(header, RequestHeader):
            return header
        hidden[header.call] = header.colour
        return changed(header, colour=0)

    agent.headers.decode = wrong  # type: ignore[method-assign]
    return hidden


def request_without_colour(agent: Agent) -> None:
    """Let an instance not look at the colour of requests."""
    _hide_colours(agent)


def answer_without_colour(agent: Agent) -> None:
    """Let an instance not look at the colour of answers."""
    instance = agent.rules
    accept = instance.accept_answer

    def wrong(number: int, header: AnswerHeader) -> InstanceFragment | None:
        return accept(number, changed(header, colour=0))

    instance.accept_answer = wrong  # type: ignore[method-assign]


def message_without_colour(agent: Agent) -> None:
    """Let an instance look at the colour at the start of a call, and not at those of messages."""
    instance = agent.rules
    accept = instance.accept_message

    def wrong(end: Any, header: MessageHeader) -> InstanceFragment | None:
        return accept(end, changed(header, colour=0))

    instance.accept_message = wrong  # type: ignore[method-assign]


def capture_behind(agent: Agent) -> None:
    """Let an instance capture after it has accepted a request."""
    hidden, instance = _hide_colours(agent), agent.rules
    accept = instance.accept

    def wrong(
        header: RequestHeader, *, brought: Amounts = NOTHING, details: CallDetails = NO_DETAILS
    ) -> tuple[int, InstanceFragment | None]:
        ticket, _ = accept(header, brought=brought, details=details)
        return ticket, instance.meet(hidden[header.call])

    instance.accept = wrong  # type: ignore[method-assign]


def capture_after_processing(agent: Agent) -> None:
    """Let an instance meet the colour of a request when it answers it."""
    hidden, instance = _hide_colours(agent), agent.rules
    accept, answer = instance.accept, instance.answer
    colours: dict[int, int] = {}

    def accepted(header: RequestHeader, **settings: Any) -> tuple[int, InstanceFragment | None]:
        ticket, fragment = accept(header, **settings)
        colours[ticket] = hidden.pop(header.call)
        return ticket, fragment

    def answered(ticket: int, **settings: Any) -> AnswerHeader:
        agent.report(instance.meet(colours.pop(ticket)))
        return answer(ticket, **settings)

    instance.accept = accepted  # type: ignore[method-assign]
    instance.answer = answered  # type: ignore[method-assign]


def capture_behind_message(agent: Agent) -> None:
    """Let an instance capture after it has accepted a message of a stream."""
    instance = agent.rules
    accept = instance.accept_message

    def wrong(end: Any, header: MessageHeader) -> InstanceFragment | None:
        accept(end, changed(header, colour=0))
        return instance.meet(header.colour)

    instance.accept_message = wrong  # type: ignore[method-assign]


OF_HTTP: tuple[Callable[[Agent], None], ...] = (
    request_without_colour,
    answer_without_colour,
    capture_behind,
    capture_after_processing,
)
"""The mistakes of services over HTTP."""
