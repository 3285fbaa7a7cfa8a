"""The shape of results: a result that a test makes up must have the shape of a real one."""

from collections.abc import Iterator

import msgspec


def same_shape(canned: object, real: object) -> None:
    """Check that a result that a test made up has the shape of a real one: the same types and keys,
    all the way down, and each item of a list that of some item of the real list.

    Raises:
        AssertionError: it has not; the first place where they differ is named.
    """
    for difference in _differences(canned, real, "the result"):
        raise AssertionError(difference)


def _differences(canned: object, real: object, place: str) -> Iterator[str]:
    if type(canned) is not type(real):
        yield f"{place} is of type {type(canned).__name__}, and really {type(real).__name__}"
    elif isinstance(canned, msgspec.Struct) and isinstance(real, msgspec.Struct):
        for name in canned.__struct_fields__:
            yield from _differences(getattr(canned, name), getattr(real, name), f"{place}.{name}")
    elif isinstance(canned, dict) and isinstance(real, dict):
        if canned.keys() != real.keys():
            only = sorted(map(str, canned.keys() ^ real.keys()))
            yield f"{place}: only one of both has {', '.join(only)}"
            return
        for key, value in canned.items():
            yield from _differences(value, real[key], f"{place}.{key}")
    elif isinstance(canned, list | tuple) and isinstance(real, list | tuple):
        if canned and not real:
            yield f"{place} is really empty"
            return
        for number, item in enumerate(canned):
            found = [next(_differences(item, one, f"{place}[{number}]"), "") for one in real]
            if all(found):
                yield found[0]
