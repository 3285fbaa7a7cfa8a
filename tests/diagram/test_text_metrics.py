"""Text from foreign logs: bounded, printable, and as wide as estimated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.diagram import text_metrics


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("commit", "commit"),
        ("  two\n\n lines\t", "two lines"),
        ("a\x00b\x1b[31mc", "ab[31mc"),
        ("turned\u202earound", "turnedaround"),
        ("lone \ud800 half", "lone half"),
        ("not a character \uffff", "not a character"),
        ("exactly sixteen.", "exactly sixteen."),
        ("exactly seventee.", "exactly sevente…"),
        ("fifteen letters and more", "fifteen letters…"),
        ("x" * 10_000, "x" * 15 + "…"),
        ("\x00" * 10_000, ""),
    ],
)
def test_what_cannot_be_shown_is_left_out(text: str, shown: str) -> None:
    """Control characters go, white space becomes one space, and what is too long ends with …."""
    assert text_metrics.clean(text, char_count_max=16) == shown


@given(st.text(), st.integers(1, 40))
def test_clean_text_stays_clean(text: str, most: int) -> None:
    """It is printable, short enough, and cleaning it again changes nothing."""
    shown = text_metrics.clean(text, char_count_max=most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert text_metrics.clean(shown, char_count_max=most) == shown


@given(st.text(), st.floats(10, 400))
def test_text_is_cut_to_fit(text: str, width: float) -> None:
    """What fits stays, what does not ends with …, and takes no more than its room."""
    shown = text_metrics.fit(text, width)
    assert text_metrics.width(shown) <= width
    assert shown == text or shown.endswith("…")


def test_east_asian_letters_are_wide() -> None:
    """Twice as wide as others, or more."""
    assert text_metrics.width("収支") >= 2 * text_metrics.width("ab")


def test_names_that_begin_alike_stay_apart() -> None:
    """A long name loses its middle, and keeps more of its end than of its beginning."""
    shown = text_metrics.shorten_name("P42795-jvoldemortThread-Thread-27-5-main", char_count_max=20)
    assert shown == "P42795-…ad-27-5-main"
    assert text_metrics.shorten_name("P1", char_count_max=20) == "P1"
