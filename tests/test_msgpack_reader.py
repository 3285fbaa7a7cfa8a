"""The decoder of the readers that know the documents alone finds what msgspec finds."""

import datetime
import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from tests.msgpack_reader import DEPTH_MAX, NotMessagePack, unpack

LENGTHS = (0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536)
NUMBERS = [sign * (2**bits + more) for sign in (1, -1) for bits in range(63) for more in (-1, 0, 1)]
TIMES = [
    datetime.datetime(year, 1, 1, 0, 0, 7, micros, tzinfo=datetime.UTC)
    for year in (1, 1900, 1970, 2024, 2106, 2514, 9999)
    for micros in (0, 250)
]
VALUES: list[Any] = [
    *(None, True, False, 0.5, -0.0, 1e300, 2**63, 2**64 - 1, *NUMBERS, *TIMES),
    *("ä" * (length // 2) + "a" * (length % 2) for length in LENGTHS),
    *(b"b" * length for length in LENGTHS),
    *([1] * length for length in LENGTHS),
    *(dict.fromkeys(range(length)) for length in LENGTHS),
    {(1, (2, "a")): [{"b": [b"c", {"d": None}]}]},
]


def test_every_value_is_decoded() -> None:
    """Of each type and each length that MessagePack distinguishes."""
    for value in VALUES:
        encoded = msgspec.msgpack.encode(value)
        assert repr(unpack(encoded)) == repr(msgspec.msgpack.decode(encoded)) == repr(value)


def test_what_is_not_one_value_is_refused() -> None:
    """Wherever it is cut, with bytes that follow, and other extensions than times."""
    chance = random.Random(7)
    for value in VALUES:
        encoded = msgspec.msgpack.encode(value)
        for wrong in (encoded[: chance.randrange(len(encoded))], encoded + b"\0"):
            with pytest.raises(NotMessagePack):
                unpack(wrong)
    for wrong in (b"\xc1", b"\xa1\xff", b"\xd4\x05\x00", b"\x81\x80\x00", b"\xdd" + b"\xff" * 9):
        with pytest.raises(NotMessagePack):
            unpack(wrong)


def test_depth_is_bounded() -> None:
    """What is nested too deeply is refused, before Python fails."""
    assert unpack(b"\x91" * DEPTH_MAX + b"\xc0") is not None
    with pytest.raises(NotMessagePack, match="too deeply"):
        unpack(b"\x91" * 10**6)


@pytest.mark.parametrize("reader", ["store", "eventlog", "pipeline"])
def test_the_readers_need_nothing_of_stillframe(reader: str) -> None:
    """Only Python and pyarrow are loaded with them."""
    code = (
        f"import sys; import tests.{reader}.format_reader; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"stillframe", "msgspec"} & {*done.stdout.split()}
