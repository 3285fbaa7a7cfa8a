"""Route arrows: always to the right, and around the dots of the lines in between."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from stillframe.diagram.shapes import Path, Point, midpoint

BENDS = (0.0, 12.0, -12.0, 24.0, -24.0, 40.0, -40.0)
CLEARANCE = 7.0
STUB_WIDTH = 24.0
STUB_STEP = 7.0
STUB_COUNT = 4
"""Number of arrows without a target that are fanned out at one event."""

STUB_WIDTH_MAX = STUB_WIDTH + STUB_STEP * (STUB_COUNT - 1)


class Router:
    """Finds paths; no two of them are the same.

    Args:
        xs_at: for each line's y, the x of all steps on it, sorted.
        row_height: from one line to the next, in pixels.
    """

    def __init__(self, xs_at: Mapping[float, Sequence[float]], row_height: float) -> None:
        self._xs_at = xs_at
        self._ys = sorted(xs_at)
        self._row_height = row_height
        self._taken: set[Path] = set()
        self._stub_count: dict[tuple[Point, bool], int] = {}

    def whole(self, begin: Point, end: Point) -> Path:
        """Return the path of an arrow; `end` is to the right of `begin`."""
        if begin[1] == end[1]:
            return self._arch(begin, end)
        x, y = midpoint(begin, end)
        controls = (min(max(x + bend, begin[0] + 1), end[0] - 1) for bend in BENDS)
        paths = [Path(begin, (control, y), end) for control in controls]
        free = [path for path in paths if path not in self._taken] or paths
        best = next(filter(self._is_clear, free), free[0])
        self._taken.add(best)
        return best

    def leaving(self, begin: Point, y_towards: float) -> Path:
        """Return the path of an arrow that does not arrive: a stub towards another line."""
        width, height = self._stub(begin, y_towards, is_leaving=True)
        end = (begin[0] + width, begin[1] + height)
        return Path(begin, midpoint(begin, end), end)

    def entering(self, end: Point, y_from: float) -> Path:
        """Return the path of an arrow that comes from outside: a stub from another line."""
        width, height = self._stub(end, y_from, is_leaving=False)
        begin = (end[0] - width, end[1] + height)
        return Path(begin, midpoint(begin, end), end)

    def _stub(self, at: Point, y: float, *, is_leaving: bool) -> Point:
        number = self._stub_count.get((at, is_leaving), 0)
        self._stub_count[at, is_leaving] = number + 1
        height = self._row_height * 0.45
        return STUB_WIDTH + STUB_STEP * (number % STUB_COUNT), height if y > at[1] else -height

    def _arch(self, begin: Point, end: Point) -> Path:
        """Return an arch over a line, for a process that sends to itself."""
        x, y = midpoint(begin, end)
        height = self._row_height * 0.7
        path = Path(begin, (x, y - height), end)
        while path in self._taken and height > 1:
            height *= 0.8
            path = Path(begin, (x, y - height), end)
        self._taken.add(path)
        return path

    def _is_clear(self, path: Path) -> bool:
        """Return whether the path keeps away from the dots of all lines that it crosses."""
        top, bottom = sorted((path.begin[1], path.end[1]))
        first = bisect_left(self._ys, top + 1)
        last = bisect_left(self._ys, bottom - 1)
        for y in self._ys[first:last]:
            x, _ = path.at((y - path.begin[1]) / (path.end[1] - path.begin[1]))
            xs = self._xs_at[y]
            nearest = bisect_left(xs, x - CLEARANCE)
            if nearest < len(xs) and xs[nearest] < x + CLEARANCE:
                return False
        return True


def under_way(path: Path, row_height: float) -> Path:
    """Return about the first half of a path. The arrow is in flight and ends between two lines: on
    a line it would look like an arrival."""
    rows = round(abs(path.end[1] - path.begin[1]) / row_height)
    part = 0.5 if rows % 2 or not rows else 0.5 - 0.5 / rows
    control = (
        path.begin[0] + (path.control[0] - path.begin[0]) * part,
        path.begin[1] + (path.control[1] - path.begin[1]) * part,
    )
    return Path(path.begin, control, path.at(part))
