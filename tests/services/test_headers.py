"""Headers: what was written is read again, and nothing that a stranger makes is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.protocol.activities import NUMBER_MAX
from stillframe.protocol.calls import AnswerHeader, CallId, MessageHeader, RequestHeader
from stillframe.services.headers import COLOUR_MAX, LENGTH_MAX, Header, HeaderCodec

SECRET = b"0123456789abcdef"
CODEC = HeaderCodec(SECRET)
HEADERS: list[Header] = [
    RequestHeader(3, CallId("orders-1", 17)),
    AnswerHeader(3, "orders-1", 99, CallId("carts-1", 7), 17, 2),
    MessageHeader(3, "orders-1", 99, 17),
]
numbers = st.integers(0, NUMBER_MAX)
colours = st.integers(0, COLOUR_MAX)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,80}", fullmatch=True)


@given(
    st.one_of(
        st.builds(RequestHeader, colours, st.builds(CallId, names, numbers)),
        st.builds(
            AnswerHeader,
            *(colours, names, numbers, st.builds(CallId, names, numbers), numbers, numbers),
        ),
        st.builds(MessageHeader, colours, names, numbers, numbers),
    )
)
def test_what_is_written_is_read_again(header: Header) -> None:
    """And fits into the bound."""
    text = CODEC.encode(header)
    assert len(text) <= LENGTH_MAX
    assert CODEC.decode(type(header), text) == header


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_no_changed_character_is_accepted(header: Header) -> None:
    """Nor one that is missing, nor a header of another kind or secret."""
    text = CODEC.encode(header)
    for place in range(len(text)):
        assert CODEC.decode(type(header), text[:place] + text[place + 1 :]) is None
        for other in "0;~":
            changed = text[:place] + other + text[place + 1 :]
            assert changed == text or CODEC.decode(type(header), changed) is None
    for kind in {type(one) for one in HEADERS} - {type(header)}:
        assert CODEC.decode(kind, text) is None
    assert HeaderCodec(SECRET[::-1]).decode(type(header), text) is None


def test_a_message_of_another_stream_is_not_accepted() -> None:
    """Nor one of the other direction."""
    header = MessageHeader(3, "orders-1", 99, 17)
    text = CODEC.encode(header, "carts-1#7>")
    assert CODEC.decode(MessageHeader, text, "carts-1#7>") == header
    for stream in ("", "carts-1#7<", "carts-1#8>"):
        assert CODEC.decode(MessageHeader, text, stream) is None


@pytest.mark.parametrize(
    "header",
    [
        RequestHeader(COLOUR_MAX + 1, CallId("orders-1", 17)),
        AnswerHeader(3, "orders-1", 99, CallId("carts-1", NUMBER_MAX + 1), 17, 2),
        MessageHeader(3, "orders-1", 99, NUMBER_MAX + 1),
        MessageHeader(-1, "orders-1", 99, 17),
        RequestHeader(3, CallId("o" * 81, 17)),
        AnswerHeader(3, "orders-1", 99, CallId("carts 1", 7), 17, 2),
    ],
    ids=["colour", "call", "message", "negative", "long name", "other name"],
)
def test_fields_out_of_their_bounds_are_no_header(header: Header) -> None:
    """Also if it was made with the secret."""
    assert CODEC.decode(type(header), CODEC.encode(header)) is None


@pytest.mark.parametrize("text", ["", ";", "1;2", "\u0661;2;a;3;x", "1" * 10_000, "1;0;a;1;é"])
def test_other_text_is_no_header(text: str) -> None:
    """It is refused without an error."""
    assert CODEC.decode(RequestHeader, text) is None
