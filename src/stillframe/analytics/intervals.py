"""Sets and sequences of message numbers as runs of consecutive ones: ``(first, count)``.

What is right has one run, so a set of a million messages takes one pair. Pure; runs in tasks.
"""

from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]
"""The numbers ``first .. first + count - 1``."""
Runs = Sequence[Run]


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return a sequence of runs in which no run goes on with the next; empty ones are left out."""
    found: list[Run] = []
    for first, count in runs:
        if count <= 0:
            continue
        if found and sum(found[-1]) == first:
            found[-1] = found[-1][0], found[-1][1] + count
        else:
            found.append((first, count))
    return found


def between(runs: Runs, begin: int, end: int) -> list[Run]:
    """Return the numbers of a sequence from place `begin`, from 0, to before place `end`."""
    found: list[Run] = []
    place = 0
    for first, count in runs:
        low, high = max(begin, place), min(end, place + count)
        if low < high:
            found.append((first + low - place, high - low))
        place += count
        if place >= end:
            break
    return found


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the set of all numbers in a sequence: sorted, each once."""
    found: list[Run] = []
    for first, count in sorted(run for run in runs if run[1] > 0):
        if found and first <= sum(found[-1]):
            begin, end = found[-1][0], max(sum(found[-1]), first + count)
            found[-1] = begin, end - begin
        else:
            found.append((first, count))
    return found


def minus(left: Runs, right: Runs) -> list[Run]:
    """Return what is in the set `left` and not in the set `right`; both as ``union`` gives them."""
    found: list[Run] = []
    others = iter(right)
    other = next(others, None)
    for first, count in left:
        begin, end = first, first + count
        while other is not None and sum(other) <= begin:
            other = next(others, None)
        while other is not None and other[0] < end:
            if other[0] > begin:
                found.append((begin, other[0] - begin))
            begin = sum(other)
            if begin >= end:
                break
            other = next(others, None)
        if begin < end:
            found.append((begin, end - begin))
    return found


def size(runs: Iterable[Run]) -> int:
    """Return how many numbers a sequence has, those that are there twice counted twice."""
    return sum(count for _, count in runs)


def repeated(runs: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that are in a sequence more than once."""
    seen: list[Run] = []
    twice: list[Run] = []
    for run in runs:
        twice += minus([run], minus([run], seen))
        seen = union([*seen, run])
    return union(twice)


def out_of_order(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield what of a sequence comes after a greater number, for the first time."""
    seen: list[Run] = []
    greatest = 0
    for first, count in runs:
        new = minus([(first, count)], seen) if count > 0 else []
        for begin, length in new:
            if begin < greatest:
                yield begin, min(length, greatest - begin)
        seen = union([*seen, *new])
        greatest = max(greatest, first + count - 1)
