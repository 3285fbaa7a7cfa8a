"""Hostile changes of valid inputs: of bytes as bytes, and of decoded values as values.

Everything is drawn from a ``random.Random``, so an input is found again by its seed and number.
"""

import random
from collections.abc import Callable
from typing import Any

INTERESTING = (0, 1, 2, 4, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC4, 0xC7, 0xD4, 0xD9, 0xDC, 0xDE, 0xFF)
HOSTILE_BYTES = (
    b"\xdd\xff\xff\xff\xff",  # an array that announces 2**32 - 1 items
    b"\xdf\xff\xff\xff\xff",  # a map that does
    b"\xc6\xff\xff\xff\xff",  # so many bytes
    b"\xdb\xff\xff\xff\xff",  # so much text
    b"\xcf" + b"\xff" * 8,  # 2**64 - 1
    b"\xd3\x80" + bytes(7),  # -2**63
    b"\xcb\x7f\xf8" + bytes(6),  # not a number
    b"\xcb\x7f\xf0" + bytes(6),  # infinite
    b"\xa2\xff\xfe",  # text that is none
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time that there is not
    b"\xc1",  # never used
    b"\x91" * 2_000,  # nested deeper than Python goes
)
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    0.5,
    float("nan"),
    float("inf"),
    -1e308,
    "",
    "\x00",
    "\x1b[2J",
    "../../etc/passwd",
    "P1-1",
    "é" * 300,
    "x" * 100_000,
    b"",
    b"\xff" * 300,
    b"\xdd\xff\xff\xff\xff",
    [],
    {},
    [[]] * 50,
    {"a": {"b": {}}},
    {1: 2, b"x": None},
)
DEPTH = 100_000


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return one of `seeds` after some random changes, maybe spliced with another."""
    data = bytearray(chance.choice(seeds))
    for _ in range(1 << chance.randrange(4)):
        chance.choice(_CHANGES)(chance, data, seeds)
        if chance.random() < 0.3:
            break
    return bytes(data)


def _flip(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice(INTERESTING)


def _cut(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _drop(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.randrange(1, 9)]


def _insert(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.randrange(1, 9))


def _overwrite(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at, hostile = chance.randrange(len(data) + 1), chance.choice(HOSTILE_BYTES)
    data[at : at + (len(hostile) if chance.random() < 0.5 else 1)] = hostile


def _repeat(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    piece = data[at : at + chance.randrange(1, 65)]
    data[at:at] = piece * chance.randrange(1, 9)


def _splice(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = chance.choice(seeds)
    at, start = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    data[at:] = other[start:]


def _number(chance: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    size = chance.choice((1, 2, 4, 8))
    at = chance.randrange(len(data) + 1)
    value = chance.choice((0, 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1, len(data)))
    data[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "big")


_CHANGES: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip,
    _flip,
    _set,
    _cut,
    _drop,
    _insert,
    _overwrite,
    _overwrite,
    _repeat,
    _splice,
    _number,
)


def mutated_value(chance: random.Random, value: Any) -> Any:
    """Return a decoded value with one part of it, somewhere, replaced, dropped or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        return _mutated_dict(chance, value)
    if isinstance(value, list | tuple) and value and chance.random() < 0.85:
        changed = list(value)
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                del changed[at]
            case 1:
                changed.insert(at, changed[at])
            case _:
                changed[at] = mutated_value(chance, changed[at])
        return changed
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return value + chance.choice((-1, 1, 7))
    if isinstance(value, str | bytes) and value and chance.random() < 0.3:
        return value[: chance.randrange(len(value))]
    return chance.choice(HOSTILE_VALUES)


def _mutated_dict(chance: random.Random, value: dict[Any, Any]) -> dict[Any, Any]:
    changed = dict(value)
    key = chance.choice(list(changed))
    match chance.randrange(8):
        case 0:
            del changed[key]
        case 1:
            changed[chance.choice(("", "type", "A", "x" * 5_000, 7))] = changed[key]
        case _:
            changed[key] = mutated_value(chance, changed[key])
    return changed
