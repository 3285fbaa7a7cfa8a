"""Messages between the agents of a system and its collector, over one connection for each agent."""

import msgspec

from stillframe.protocol.activities import Count
from stillframe.protocol.calls import (
    Acknowledgement,
    Amounts,
    Farewell,
    InstanceFragment,
    Name,
    ObservationStart,
    Settlement,
)


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message of an agent.

    Attributes:
        instance: its name.
        colour: its colour.
        retirement_count: its count of retirements.
        was_connected: whether it was connected before under this name.
        began_with: the amounts that its state had before its first message, by unit; None if they
            are not known.
    """

    instance: Name
    colour: Count
    retirement_count: Count
    was_connected: bool
    began_with: Amounts | None


class Captured(msgspec.Struct, frozen=True, tag=True):
    """A fragment of an observation."""

    fragment: InstanceFragment


class Forward(msgspec.Struct, frozen=True, tag=True):
    """An acknowledgement for another instance."""

    instance: Name
    acknowledgement: Acknowledgement


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The last message of an agent: its instance ends in order."""

    farewell: Farewell


FromAgent = Join | Captured | Forward | Goodbye


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The agent takes part from now on."""


class Rename(msgspec.Struct, frozen=True, tag=True):
    """The agent was disconnected for too long: it needs another name."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """An observation begins."""

    start: ObservationStart


class Settle(msgspec.Struct, frozen=True, tag=True):
    """An observation is stored."""

    settlement: Settlement


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """An acknowledgement of another instance."""

    acknowledgement: Acknowledgement


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The goodbye of the agent is stored."""


ToAgent = Welcome | Rename | Begin | Settle | Acknowledged | Ended
