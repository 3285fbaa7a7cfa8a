"""Figures with units, in and out."""

import pytest

from stillframe.cli import quantities
from stillframe.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("1s", 1.0), ("2m", 120.0), ("1h", 3600.0), ("0.5s", 0.5)],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    """A number and a unit become seconds."""
    assert quantities.parse_duration("--duration", text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "5", "0s", "-1s", "1 s", "1d", "1e3s", "\u0661s", "inf", "nans", "1s\n", "9" * 10 + "s"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Nothing is guessed: the error names the option and shows what to write."""
    with pytest.raises(UsageError, match=r"--duration .* for example 250ms, 1s, 2m or 1h"):
        quantities.parse_duration("--duration", text)


@pytest.mark.parametrize("text", ["never", "0"])
def test_an_interval_may_be_never(text: str) -> None:
    """Both ways to want no periodic snapshots are understood."""
    assert quantities.parse_interval("--every", text) is None


def test_a_wait_may_be_nothing_and_is_bounded() -> None:
    """0 needs no unit; more than the bound is refused with the bound."""
    assert quantities.parse_wait("--marker-linger", "0", max_s=1.0) == 0
    assert quantities.parse_wait("--marker-linger", "5ms", max_s=1.0) == 0.005
    with pytest.raises(UsageError, match=r"--marker-linger '2m' is too long: at most 1\.00 s"):
        quantities.parse_wait("--marker-linger", "2m", max_s=1.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.0142, "14.2 ms"),
        (0.25, "250 ms"),
        (1.254, "1.25 s"),
        (59.996, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_are_written_in_the_unit_that_suits(seconds: float, text: str) -> None:
    """Short times are read in ms, long ones in minutes and hours."""
    assert quantities.duration(seconds) == text


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (9489, "9.5 kB"),
        (1_200_000, "1.2 MB"),
        (5 * 10**12, "5000.0 GB"),
    ],
)
def test_sizes_are_written_in_decimal_units(byte_count: int, text: str) -> None:
    """Bytes, kilobytes, megabytes, gigabytes."""
    assert quantities.size(byte_count) == text


def test_things_are_counted_in_words() -> None:
    """One is singular, thousands are set apart."""
    assert quantities.count(1, "message") == "1 message"
    assert quantities.count(12345, "message") == "12,345 messages"
    assert quantities.count(0, "process") == "0 processes"


def test_moments_are_utc_to_the_millisecond() -> None:
    """The time of day says its zone."""
    assert quantities.moment(1_000_000_000.0625) == "2001-09-09 01:46:40.062 UTC"
