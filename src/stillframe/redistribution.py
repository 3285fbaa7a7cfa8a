"""What a snapshot recorded, in plain values: for an application whose processes are others now.

Only the application knows which process should go on with what another one had. So a topology can
be given a function that takes what was recorded and says what each of the present processes begins
with, and which messages are on which channels: ``Topology(..., redistribute=spread)``.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from stillframe.model import ProcessId


class InTransit(msgspec.Struct, frozen=True):
    """A message that was on a channel: of the class called `kind`, with its fields by name."""

    source: ProcessId
    target: ProcessId
    kind: str
    fields: dict[str, Any]


class Recorded(msgspec.Struct, frozen=True):
    """The recorded fields of every process, and the messages on the channels, in order.

    Values are plain, as MessagePack gives them: a keyed field is a dict, a nested Struct a dict or
    a list.
    """

    states: dict[ProcessId, dict[str, Any]]
    messages: tuple[InTransit, ...]


Redistribute = Callable[[Recorded], Recorded]
"""Takes what was recorded of the processes of a snapshot, and returns it as if it had been recorded
of the present ones: a state for each, and messages only on the channels that there are. A message
that it takes into a state it leaves out. It must give the same whenever it is asked again."""
