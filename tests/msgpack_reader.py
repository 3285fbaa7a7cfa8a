"""A decoder of MessagePack that was written from its specification: Python alone."""

import datetime
import struct
from typing import Any

DEPTH_MAX = 128
NUMBERS = dict(zip(range(0xCA, 0xD4), "f d B H I Q b h i q".split(), strict=True))
SIZED = dict(
    zip((0xC4, 0xC7, 0xD9, 0xDC, 0xDE), ("bin", "ext", "str", "array", "map"), strict=True)
)
"""First byte -> what it is, with the smallest length; the longer ones follow it."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class NotMessagePack(Exception):
    """The bytes are not one value."""


def unpack(content: bytes) -> Any:
    """Return the value; times with a zone in UTC. Arrays that are keys become tuples."""
    decoder = _Decoder(content)
    try:
        value = decoder.value(0)
    except (struct.error, UnicodeError, TypeError, OverflowError) as error:
        raise NotMessagePack(str(error)) from error
    if decoder.place != len(content):
        raise NotMessagePack(f"bytes follow after {decoder.place}")
    return value


class _Decoder:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.content):
            raise NotMessagePack("bytes are missing")
        self.place += count
        return self.content[self.place - count : self.place]

    def number(self, form: str) -> Any:
        return struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise NotMessagePack("it is nested too deeply")
        first = self.number("B")
        if first < 0x80 or first >= 0xE0:
            return first if first < 0x80 else first - 0x100
        if first < 0xC0:
            what = "map" if first < 0x90 else "array" if first < 0xA0 else "str"
            return self.sized(what, first & (0x1F if what == "str" else 0x0F), depth)
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in NUMBERS:
            return self.number(NUMBERS[first])
        if 0xD4 <= first <= 0xD8:
            return self.sized("ext", 1 << first - 0xD4, depth)
        for begin, what in SIZED.items():
            forms = "HI" if what in ("array", "map") else "BHI"
            if begin <= first < begin + len(forms):
                return self.sized(what, self.number(forms[first - begin]), depth)
        raise NotMessagePack(f"no value begins with {first:#x}")

    def sized(self, what: str, count: int, depth: int) -> Any:
        match what:
            case "str":
                return self.take(count).decode()
            case "bin":
                return self.take(count)
            case "ext":
                return self.time(self.number("b"), count)
            case "array":
                return [self.value(depth + 1) for _ in range(count)]
            case _:
                return {
                    hashable(self.value(depth + 1)): self.value(depth + 1) for _ in range(count)
                }

    def time(self, kind: int, length: int) -> datetime.datetime:
        if kind != -1 or length not in (4, 8, 12):
            raise NotMessagePack(f"extension {kind} of {length} bytes")
        if length == 4:
            nanoseconds, seconds = 0, self.number("I")
        elif length == 8:
            nanoseconds, seconds = divmod(self.number("Q"), 2**34)
        else:
            nanoseconds, seconds = self.number("I"), self.number("q")
        return EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


def hashable(key: Any) -> Any:
    """Return a key, with arrays as tuples."""
    return tuple(map(hashable, key)) if isinstance(key, list) else key
