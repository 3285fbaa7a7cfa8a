"""Barriers: when a participant of a dataflow records its state, and how far it may read until then.

A barrier splits a log into the records before the cut and those after it (Carbone et al. 2015,
section 4). A participant (a query, a service) records between two atomic actions, and then puts the
barrier on every log that it writes, before anything else. Three ways to choose the moment:

* *aligned*: a channel whose barrier was reached is held until the others have reached theirs. The
  state is that of exactly the records before the barriers, and the channels are empty at the cut.
* *unaligned*: record as soon as one barrier is in sight, at the next end of an action. What lies
  between there and the barrier of a channel is that channel's state. These are the rules of
  Chandy & Lamport (1985, section 3.2) with a position in a log in the place of a recorded message,
  so they are right on cycles, too.
* *at-least-once*: hold nothing and cut no action short; record when every barrier was passed. What
  was read after a barrier is in the state and will be read again after a restore.

There is no machine here that remembers: both functions decide from facts that are on the disk
anyway, so they can be asked again after a crash, and by several readers of one query.
"""

import enum
from collections.abc import Mapping

import msgspec

from stillframe.errors import NotConsistent


class Mode(enum.Enum):
    """The kind of a snapshot of a dataflow; the value is its name on the command line."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    AT_LEAST_ONCE = "at-least-once"
    RETAINED = "retained"
    """Found in the versions that participants retain (``recovery_line``). Only those are asked that
    retain none, and record at once."""

    def __str__(self) -> str:
        return self.value


class Reading(msgspec.Struct, frozen=True):
    """The position of a participant on one incoming channel. `position` is the number of the next
    item that it would read, with every one before it accounted for in its state. `barrier` is that
    of the snapshot's barrier on the log, None while it is not there yet."""

    position: int
    barrier: int | None


def may_record(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Return whether a participant that stands between two actions records its state now.

    Ask at every end of an action until the answer is yes; then record, and put the barrier on every
    outgoing channel before the next action. `channels` are all incoming ones, by name. A
    participant without any always initiates; on a cycle one participant has to. NotConsistent if a
    barrier was overrun that should have held the channel.
    """
    readings = channels.values()
    match mode:
        case Mode.ALIGNED:
            for name, reading in channels.items():
                if reading.barrier is not None and reading.position > reading.barrier:
                    raise NotConsistent(
                        f"channel {name} was read up to {reading.position}, past the barrier at "
                        f"{reading.barrier} where it should have stopped"
                    )
            return all(reading.position == reading.barrier for reading in readings)
        case Mode.UNALIGNED:
            in_sight = any(reading.barrier is not None for reading in readings)
            return in_sight or is_initiator or not channels
        case Mode.AT_LEAST_ONCE:
            return all(
                reading.barrier is not None and reading.position >= reading.barrier
                for reading in readings
            )
        case Mode.RETAINED:
            return True  # a participant that is asked records at once


def read_end(mode: Mode, reading: Reading) -> int | None:
    """Return the position at which the next action must stop reading a channel; None for no limit.
    It holds until the participant has recorded its state. A channel that stands there already is
    held: nothing of it may be read."""
    return reading.barrier if mode is Mode.ALIGNED else None
