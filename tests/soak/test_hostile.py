"""The soak of hostile input: by the hundred in the check, by the hundred thousand at night.

``python -m tests.soak.hostile`` runs it alone.
"""

import asyncio
import gc
from pathlib import Path

import msgspec
import pytest

from stillframe.protocol import wire
from stillframe.runtime import control
from tests.nightly import Figure, by_night, seeds
from tests.soak.hostile import throw_files, throw_frames
from tests.soak.hostile_files import WAYS
from tests.soak.hostile_frames import STATUS, part
from tests.soak.hostile_search import Tally
from tests.soak.hostile_streams import PLACES, frame, giants
from tests.soak.hostile_trial import Trial

NO_TEXT = b"\xa2\xff\xfe"
TOO_DEEP = b"\x91" * 2_000
UNREADABLE = {"no text": NO_TEXT, "nested too deep": TOO_DEEP}


def answer(place: str, data: bytes) -> str:
    """Return what becomes of a stream at a place."""

    async def trial() -> str:
        return await PLACES[place][0](Trial(), data, 2**20)

    return asyncio.run(trial())


def note(tally: Tally, figure: Figure) -> None:
    """Report what became of the inputs."""
    figure("inputs", f"{tally.count:,}")
    figure("refused", f"{sum(n for said, n in tally.outcomes.items() if 'refused' in said):,}")
    figure("longest", f"{tally.longest_s:.2f} s")
    figure("more memory", f"{(tally.peak_kb - tally.begun_kb) // 1024} MiB")


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("place", ["a process at the coordinator", "the coordinator at a process"])
def test_a_line_is_closed_by_what_cannot_be_read(place: str, content: bytes) -> None:
    """Text that is none, and values nested too deep, are the other end's fault, not ours."""
    assert answer(place, frame(wire.Kind.CONTROL, content)) == "refused: ProtocolViolation"


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_channel_is_closed_by_messages_that_cannot_be_read(content: bytes) -> None:
    """They end the connection, which can be taken up again, and not the process."""
    message = msgspec.Raw(b"\x92\xa6Narrow" + content)
    data = bytes(wire.encode_messages(1, 1, [message]))
    assert answer("a source at its target", data) == "refused: ProtocolViolation"


def test_a_process_refuses_to_begin_elsewhere() -> None:
    """A start with a channel that it does not have, or without one, is refused by name."""
    whole = part("A")
    start = {
        "kind": "Keeper",
        "encoded": whole.state.encoded,
        "sent_counts": {"C": 1},
        "incoming": whole.incoming,
    }
    setup = {"type": "Setup", "epoch": 1, "run": "run", "start": start, "marker_wait_s": 0.0}
    data = frame(wire.Kind.CONTROL, msgspec.msgpack.encode(setup))
    ended = "ended the process: ProtocolViolation"
    assert answer("the coordinator at a process", data) == ended


def test_a_port_that_there_is_not_is_refused() -> None:
    """It never comes to whoever would connect to it."""
    listening = {"type": "ListeningOn", "address": {"host": "127.0.0.1", "port": 2**16}}
    data = frame(wire.Kind.CONTROL, msgspec.msgpack.encode(listening))
    assert answer("a process at the coordinator", data) == "refused: ProtocolViolation"


def test_an_answer_that_names_others_closes_the_line() -> None:
    """It is the fault of the process that says so; who holds a snapshot up is told without it."""
    strange = msgspec.structs.replace(STATUS, incoming={"C": STATUS.incoming["B"]})
    for status, became in ((STATUS, "legal"), (strange, "refused: ProtocolViolation")):
        data = wire.encode_control(control.StatusReply(1, status))
        assert answer("a process at the coordinator", data) == became


def test_what_is_sent_ahead_of_a_part_is_bounded_also_if_it_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces without bytes count, and so do the names of fields."""
    monkeypatch.setattr("stillframe.runtime.control.FRAGMENT_BYTES_MAX", 10_000)
    piece = wire.encode_control(control.FragmentChunk(part("A").snapshot, b""))
    assert answer("a process at the coordinator", piece * 10) == "legal"
    assert answer("a process at the coordinator", piece * 100) == "refused: ProtocolViolation"


@pytest.mark.nightly(part="hostile")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("hostile frames", night=1) or (1,))
def test_hostile_frames_are_refused_with_a_reason_or_legal(
    seed: int, tmp_path: Path, figure: Figure
) -> None:
    """At every place: the valid ones, the giants, and mutations of all; some of them are legal."""
    gc.freeze()  # memory is collected after most inputs: not that of all tests before
    mutation_count = by_night(200_000, check=400)
    valid_count = sum(len(valid) + len(giants()) for _, valid in PLACES.values())
    tally = asyncio.run(throw_frames(seed, valid_count + mutation_count, tmp_path))
    note(tally, figure)
    assert tally.count == valid_count + mutation_count
    for place in PLACES:
        assert any(outcome.startswith(f"{place}: refused") for outcome in tally.outcomes), place
        assert tally.outcomes.get(f"{place}: legal"), place


@pytest.mark.nightly(part="hostile")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("hostile files", night=1) or (1,))
def test_hostile_files_are_refused_with_a_reason_or_legal(
    seed: int, tmp_path: Path, figure: Figure
) -> None:
    """Changed, cut, swapped and forged."""
    tally = asyncio.run(throw_files(seed, by_night(10_000, check=100), tmp_path))
    note(tally, figure)
    for way in WAYS:
        name = way.__name__.strip("_").replace("_", " ")
        assert any(outcome.startswith(f"{name}: refused") for outcome in tally.outcomes), name
