"""The picture of a snapshot's cut: of what an event log says, or of what a store knows."""

from pathlib import Path
from typing import Any

import msgspec

from stillframe.eventlog.around import NotInLog
from stillframe.model import Snapshot
from stillframe.view import known_cut, logged_cut, logged_steps
from stillframe.view.shapes import Diagram

WITHOUT_LOG = (
    "A store knows each cut, the counts and the messages that were on the channels; not what the "
    "processes did around the cut, nor which marker came first: the cuts of all processes stand "
    "below each other here, and only the order of messages on one channel is true. "
    "Let the system write an event log ('stillframe run --log DIR') and give it with --log DIR."
)

WITH_LOG = (
    "From the event log: the steps of the snapshot, the messages that channels held, and what "
    "happened right before and after the cut. The order from left to right is what happened before "
    "what, not a clock."
)


class CutPicture(msgspec.Struct, frozen=True):
    """A diagram with what there is to say of it.

    Attributes:
        diagram: the picture.
        left_out: what of the cut is not drawn, in a sentence; empty if all is.
        note: where it comes from, and what is not known.
        contradictions: in what the log says something else than the snapshot.
        steps: of the recording, for a page; none without a log.
        steps_left_out_count: how many more there are.
    """

    diagram: Diagram
    left_out: str
    note: str
    contradictions: list[str] = []
    steps: list[dict[str, Any]] = []
    steps_left_out_count: int = 0


def look(snapshot: Snapshot, log: Path | None) -> CutPicture:
    """Return the picture of the cut of `snapshot`.

    Args:
        snapshot: as a store holds it.
        log: the directory of the event log of the same system; None: there is none.

    Raises:
        UsageError: there is no event log at `log`.
        Damaged, OSError: it cannot be read.
    """
    note = WITHOUT_LOG
    if log is not None:
        try:
            logged = logged_cut.lay_out(snapshot, log)
        except NotInLog as error:
            note = f"{str(error)[:1].upper()}{str(error)[1:]}. {WITHOUT_LOG}"
        else:
            return CutPicture(
                logged.diagram,
                logged.left_out,
                WITH_LOG,
                logged_steps.contradictions(logged, snapshot),
                *logged_steps.steps(logged, snapshot),
            )
    known = known_cut.lay_out(snapshot)
    return CutPicture(known.diagram, known.left_out, note)
