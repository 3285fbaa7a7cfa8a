"""Cuts as options write them: ``P1=3,P2=5``."""

import re

from stillframe.errors import UsageError
from stillframe.trace import Cut, Trace

_COUNT = re.compile(r"(?P<process>[^=,#\s]+)=(?P<count>[0-9]{1,18})")


def parse_cut(text: str, trace: Trace) -> Cut:
    """Return the cut of `trace` that `text` says; processes left out have no event before it.

    Raises:
        UsageError: it is none, or `trace` has no such process or event.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if found is None or found["process"] in counts:
            raise UsageError(
                f"{part!r} is no part of a cut: write once for each process how many of its "
                "events lie before the cut, as in P1=3,P2=5; 0 for those left out"
            )
        counts[found["process"]] = int(found["count"])
    if strangers := [process for process in counts if process not in trace.index_of]:
        raise UsageError(
            f"the trace has no process {strangers[0]!r}: it has {', '.join(trace.processes)}"
        )
    cut = tuple(counts.get(process, 0) for process in trace.processes)
    trace.check_cut(cut)
    return cut
