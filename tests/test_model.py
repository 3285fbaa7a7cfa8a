"""The nouns: ids that can be read back, batches, and the books of a channel."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    Reason,
    SnapshotId,
    array_count,
    check_process_id,
    encode_array,
)

AB = Channel("A", "B")


def encoded(count: int) -> list[bytes]:
    """Return `count` messages, encoded one by one."""
    return [msgspec.msgpack.encode(["M", number]) for number in range(count)]


@pytest.mark.parametrize("name", ["P", "P1", "a-b", "a.b_", "x" * 64])
def test_names_of_processes(name: str) -> None:
    """Letters, digits and some signs, a letter first."""
    assert check_process_id(name) == name


@pytest.mark.parametrize(
    "name", ["", "1P", "-P", ".P", "P-", "P.", "x" * 65, "a b", "a/b", "ä", "P\n", None, 5]
)
def test_what_cannot_name_a_process(name: str) -> None:
    """Everything else is refused, and the error says what is allowed."""
    with pytest.raises(UsageError, match="cannot name a process: use 1 to 64 letters"):
        check_process_id(name)


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,5}[A-Za-z0-9_]", fullmatch=True),
    st.integers(0, 10**18 - 1),
)
def test_a_snapshot_id_is_read_as_it_was_written(initiator: str, number: int) -> None:
    """Also when the name of the initiator holds dashes and digits."""
    snapshot = SnapshotId(initiator, number)
    assert SnapshotId.parse(str(snapshot)) == snapshot


@pytest.mark.parametrize(
    "text", ["", "P1", "P1-", "-1", "P1-x", "P1--1", "P1-1 ", "P1-²", "../P1-1", "P1-" + "9" * 19]
)
def test_what_is_no_snapshot_id(text: str) -> None:
    """The error shows what one looks like."""
    with pytest.raises(UsageError, match="not a snapshot id, which looks like P1-17"):
        SnapshotId.parse(text)


def test_ids_are_shown_as_people_write_them() -> None:
    """A channel is an arrow, a snapshot a dash."""
    assert (str(AB), str(SnapshotId("P1", 17))) == ("A->B", "P1-17")


def test_a_batch_counts_its_messages() -> None:
    """Numbers go on from the first; the array is MessagePack with the 32-bit header."""
    batch = Batch.of(5, encoded(3))
    assert (batch.first, batch.count, batch.last) == (5, 3, 7)
    assert msgspec.msgpack.decode(batch.encoded) == [["M", 0], ["M", 1], ["M", 2]]
    assert array_count(batch.encoded) == 3


@given(count=st.integers(2, 9), data=st.data())
def test_a_split_batch_is_the_same_messages(count: int, data: st.DataObject) -> None:
    """Both parts together are the whole, number by number; so are single messages."""
    batch = Batch.of(7, encoded(count))
    head_count = data.draw(st.integers(1, count - 1))
    head, tail = batch.split(head_count)
    assert (head.first, head.count, tail.first, tail.last) == (
        *(7, head_count, 7 + head_count, batch.last),
    )
    everything: list[object] = msgspec.msgpack.decode(batch.encoded)
    for parts in ((head, tail), batch.singles()):
        joined = [message for part in parts for message in msgspec.msgpack.decode(part.encoded)]
        assert joined == everything
    assert [single.first for single in batch.singles()] == list(range(7, 7 + count))


@pytest.mark.parametrize("array", [b"", b"\xdd\x00\x00", b"\x90", b"\xdc\x00\x01\x01", b"\xc0" * 5])
def test_another_header_is_not_ours(array: bytes) -> None:
    """Only the 32-bit header that we write is counted."""
    assert array_count(array) == -1


def test_an_empty_array_has_a_header() -> None:
    """No message is still an array."""
    assert array_count(encode_array([])) == 0


@pytest.mark.parametrize(
    ("sent", "received", "batches"),
    [
        (0, 0, ()),
        (7, 7, ()),
        (3, 0, (Batch.of(1, encoded(3)),)),
        (9, 4, (Batch.of(5, encoded(2)), Batch.of(7, encoded(3)))),
    ],
)
def test_books_that_balance(sent: int, received: int, batches: tuple[Batch, ...]) -> None:
    """The recorded messages are received + 1 .. sent, in any number of batches."""
    state = ChannelState(AB, sent, received, batches)
    state.check_books()
    assert state.message_count == sent - received


@pytest.mark.parametrize(
    ("sent", "received", "batches", "found"),
    [
        (3, 5, (), "the target had received 5 messages"),
        (3, -1, (), "the target had received -1"),
        (3, 0, (), "3 sent - 0 received = 3, but 0 messages"),
        (3, 0, (Batch.of(1, encoded(2)),), "= 3, but 2 messages"),
        (3, 0, (Batch.of(1, encoded(4)),), "= 3, but 4 messages"),
        (3, 0, (Batch.of(2, encoded(3)),), "number 1, but a batch of 3 begins with 2"),
        (4, 0, (Batch.of(3, encoded(2)), Batch.of(1, encoded(2))), "begins with 3"),
        (2, 0, (Batch.of(1, encoded(1)),) * 2, "number 2, but a batch of 1 begins with 1"),
        (3, 0, (Batch(1, 3, encode_array(encoded(2))),), "holds 2"),
        (3, 0, (Batch(1, 3, b"\x93\x01\x02\x03"),), "holds -1"),
    ],
)
def test_books_that_do_not_balance(
    sent: int, received: int, batches: tuple[Batch, ...], found: str
) -> None:
    """Missing, surplus, doubled or disordered messages: the channel and the figures are named."""
    state = ChannelState(AB, sent, received, batches)
    with pytest.raises(NotConsistent, match=r"channel A->B: ") as caught:
        GlobalState((), (ChannelState(Channel("A", "A2"), 1, 1, ()), state)).check_books()
    assert found in str(caught.value)


@given(sent=st.integers(0, 6), received=st.integers(0, 6), numbers=st.lists(st.integers(1, 6)))
def test_books_balance_exactly_if_nothing_is_missing_or_twice(
    sent: int, received: int, numbers: list[int]
) -> None:
    """Against the plainest oracle: the list of numbers is received + 1 .. sent."""
    batches = tuple(Batch.of(number, encoded(1)) for number in numbers)
    state = ChannelState(AB, sent, received, batches)
    if received <= sent and numbers == list(range(received + 1, sent + 1)):
        state.check_books()
    else:
        with pytest.raises(NotConsistent):
            state.check_books()


def test_a_global_state_counts_what_is_on_its_way() -> None:
    """All messages on all channels."""
    states = tuple(
        ChannelState(Channel("A", target), count, 0, (Batch.of(1, encoded(count)),))
        for target, count in (("B", 2), ("C", 3))
    )
    assert GlobalState((), states).message_count == 5


def test_a_snapshot_that_was_given_up_says_why() -> None:
    """The reason is a sentence; who is missing and the cause follow if there is more to say."""
    snapshot = SnapshotId("P1", 3)
    assert str(Abandoned(snapshot, Reason.STOPPED)) == (
        f"snapshot P1-3 was abandoned: {Reason.STOPPED.value}"
    )
    full = Abandoned(snapshot, Reason.DEADLINE, ("P2", "P4"), "after 5 s")
    assert str(full).endswith("; missing: P2, P4; after 5 s")
