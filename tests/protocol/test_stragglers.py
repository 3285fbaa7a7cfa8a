"""Who holds a snapshot up, as far as the processes' own words tell."""

import itertools

import pytest
from msgspec.structs import replace

from stillframe.errors import ProtocolViolation
from stillframe.model import Channel, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.protocol.stragglers import (
    SENTENCE_COUNT_MAX,
    Cause,
    EndpointStatus,
    PendingSnapshot,
    ProcessStatus,
    RecordingStatus,
    Straggler,
    check_status,
    find_stragglers,
)
from stillframe.topology import Description
from tests.protocol.execution import describe

S = SnapshotId("A", 1)
MESH = describe("ABC", [(a, b) for a in "ABC" for b in "ABC" if a != b])
CHAIN = describe("ABC", [("A", "B"), ("B", "C")])
BEGAN, NOW = 100.0, 109.0


def status(
    description: Description,
    process: str,
    phase: Phase,
    *,
    awaited: str = "",
    is_busy: bool = False,
    unhandled: dict[str, int] | None = None,
    broken: str = "",
    full: str = "",
) -> ProcessStatus:
    """Return an answer: `unhandled` bytes by the other end, `broken` and `full` other ends."""
    size = unhandled or {}

    def end(other: str) -> EndpointStatus:
        return EndpointStatus(other not in broken, size.get(other, 0), other in full)

    return ProcessStatus(
        is_busy,
        (RecordingStatus(S, phase, tuple(awaited), 8.0 if phase is Phase.RECORDING else 0.0),),
        {source: end(source) for source in description.incoming(process)},
        {target: end(target) for target in description.outgoing(process)},
    )


def look(
    description: Description,
    missing: str,
    answers: dict[str, ProcessStatus],
    heard_at: dict[str, float] | None = None,
) -> PendingSnapshot:
    """Return the judgement of a snapshot that began at 100 s, at 109 s."""
    return find_stragglers(
        PendingSnapshot(S, BEGAN, 110.0, tuple(missing)), description, answers, heard_at or {}, NOW
    )


def test_in_a_mesh_the_one_that_stands_still_is_named_not_those_that_wait_for_it() -> None:
    """All parts are missing, and one process is why; its channels are named."""
    found = look(
        MESH,
        "ABC",
        {
            "A": status(MESH, "A", Phase.RECORDING, awaited="C"),
            "B": status(MESH, "B", Phase.RECORDING, awaited="C"),
        },
        {"C": 101.5},
    )
    channels = (Channel("C", "A"), Channel("C", "B"))
    assert found.stragglers == (Straggler("C", Cause.SILENT, 101.5, channels),)
    assert found.at_fault == ("C",)
    assert found.sentences(NOW) == [
        (
            "C does not answer, and has sent nothing for 7.5 s: it is stopped, or in a long "
            "action; markers are awaited on C->A, C->B"
        )
    ]


def test_what_was_heard_before_the_snapshot_began_says_nothing() -> None:
    """A process that had nothing to say is silent since the snapshot began."""
    found = look(CHAIN, "C", {}, {"C": 3.0})
    assert [(h.process, h.since) for h in found.stragglers] == [("C", BEGAN)]


def test_a_process_in_a_long_action_that_answers_is_busy() -> None:
    """It cannot record before the action ends, and markers are awaited from it."""
    found = look(
        MESH,
        "ABC",
        {
            "A": status(MESH, "A", Phase.RECORDING, awaited="B"),
            "B": status(MESH, "B", Phase.IDLE, is_busy=True),
            "C": status(MESH, "C", Phase.RECORDING, awaited="B"),
        },
    )
    assert [(h.process, h.cause, h.since) for h in found.stragglers] == [("B", Cause.BUSY, BEGAN)]
    assert {Channel("B", "A"), Channel("B", "C")} <= set(found.stragglers[0].channels)
    told = found.stragglers[0].sentence(BEGAN + 2)
    assert told.startswith(
        "B is in the middle of an action, and has been awaited for 2.0 s; markers are"
    )


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_channel_that_is_not_connected_is_named(end: str) -> None:
    """Whichever end has noticed."""
    found = look(
        CHAIN,
        "B",
        {
            "A": status(CHAIN, "A", Phase.RECORDED, broken="B" if end == "source" else ""),
            "B": status(CHAIN, "B", Phase.IDLE, broken="A" if end == "target" else ""),
            "C": status(CHAIN, "C", Phase.IDLE),
        },
    )
    assert found.stragglers == (Straggler("B", Cause.DISCONNECTED, BEGAN, (Channel("A", "B"),)),)
    assert found.sentences(NOW) == [
        "channel A->B is not connected; its marker has been awaited for 9.0 s"
    ]


def test_a_marker_behind_much_that_was_sent_tells_how_much() -> None:
    """The source knows more of it than the target, which has not received all."""
    found = look(
        CHAIN,
        "BC",
        {
            "A": status(CHAIN, "A", Phase.RECORDED, unhandled={"B": 70_000}),
            "B": status(CHAIN, "B", Phase.IDLE, unhandled={"A": 50_000}),
            "C": status(CHAIN, "C", Phase.IDLE),
        },
    )
    behind, unreached = found.stragglers
    assert behind == Straggler("B", Cause.BEHIND, BEGAN, (Channel("A", "B"),), 70_000)
    assert "behind at most 70,000 bytes that it has not handled" in behind.sentence(NOW)
    assert (unreached.process, unreached.cause) == ("C", Cause.UNREACHED)
    assert found.at_fault == ("B",)


def test_back_pressure_names_who_takes_nothing() -> None:
    """B handles no marker because C takes nothing."""
    found = look(
        CHAIN,
        "BC",
        {
            "A": status(CHAIN, "A", Phase.RECORDED, unhandled={"B": 9}),
            "B": status(CHAIN, "B", Phase.IDLE, unhandled={"A": 9}, full="C"),
        },
    )
    assert [(h.process, h.cause) for h in found.stragglers] == [
        ("C", Cause.SILENT),
        ("B", Cause.HELD),
    ]
    assert found.stragglers[1].waits_for == ("C",)


def test_a_silent_process_whose_marker_came_elsewhere_had_recorded() -> None:
    """What lies unhandled at the target is the target's affair; else the source is silent."""
    answers = {
        "A": status(MESH, "A", Phase.RECORDING, awaited="C", unhandled={"C": 5}),
        "B": status(MESH, "B", Phase.RECORDING, awaited="A"),
    }
    found = look(MESH, "ABC", answers)
    assert [(h.process, h.cause, h.channels) for h in found.stragglers] == [
        ("C", Cause.SILENT, ()),
        ("A", Cause.BEHIND, (Channel("C", "A"),)),
        ("B", Cause.BEHIND, (Channel("A", "B"),)),
    ]
    answers["A"] = status(MESH, "A", Phase.RECORDING, awaited="C")
    found = look(MESH, "ABC", answers)
    assert found.stragglers[0] == Straggler("C", Cause.SILENT, BEGAN, (Channel("C", "A"),))


def test_a_part_on_its_way_is_nobodys_fault() -> None:
    """The process has done what it had to."""
    found = look(CHAIN, "C", {"C": status(CHAIN, "C", Phase.RECORDED)})
    assert [h.cause for h in found.stragglers] == [Cause.SENDING]
    assert found.at_fault == ("C",)


def test_many_causes_are_told_in_few_words() -> None:
    """The first of them, and how many more there are."""
    names = [f"P{number:02}" for number in range(SENTENCE_COUNT_MAX + 3)]
    found = find_stragglers(
        PendingSnapshot(S, BEGAN, 110.0, tuple(names)), describe(names, []), {}, {}, NOW
    )
    told = found.sentences(NOW)
    assert len(told) == SENTENCE_COUNT_MAX + 1
    assert told[-1] == "and 3 more"


PHASES = (None, Phase.IDLE, Phase.RECORDING, Phase.RECORDED)


def test_whatever_is_said_every_missing_part_is_explained() -> None:
    """For every combination of answers in a mesh of three, also impossible ones, each missing part
    has a cause: its process, a channel into it, or the same for a process whose marker it awaits.
    """
    count = 0
    for phases in itertools.product(PHASES, repeat=3):
        answers = {
            process: status(MESH, process, phase, awaited="ABC".replace(process, ""))
            for process, phase in zip("ABC", phases, strict=True)
            if phase is not None
        }
        for missing in ("A", "B", "C", "AB", "AC", "BC", "ABC"):
            count += 1
            found = look(MESH, missing, answers)
            explained = {h.process for h in found.stragglers}
            explained |= {channel.target for h in found.stragglers for channel in h.channels}
            recording = {p for p, a in answers.items() if a.of(S).phase is Phase.RECORDING}
            assert explained, (phases, missing)
            assert set(missing) <= explained | recording, (phases, missing)
            assert all(h.sentence(NOW) for h in found.stragglers)
    assert count == 448


RIGHT = status(CHAIN, "B", Phase.RECORDING, awaited="A")
OTHER = SnapshotId("A", 2)
WRONG = {
    "another snapshot": replace(RIGHT, snapshots=(replace(RIGHT.snapshots[0], snapshot=OTHER),)),
    "a snapshot too many": replace(RIGHT, snapshots=RIGHT.snapshots * 2),
    "none": replace(RIGHT, snapshots=()),
    "no channel of that name": replace(RIGHT, incoming={"x": RIGHT.incoming["A"]}),
    "a channel too many": replace(RIGHT, outgoing=RIGHT.outgoing | RIGHT.incoming),
    "a marker that cannot come": status(CHAIN, "B", Phase.RECORDING, awaited="C"),
    "the same marker often": status(CHAIN, "B", Phase.RECORDING, awaited="AA"),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_an_answer_to_something_else_is_refused(answer: ProcessStatus) -> None:
    """A process can say what it likes: what it says of others' channels is not judged."""
    check_status(RIGHT, "B", (S,), CHAIN)
    with pytest.raises(ProtocolViolation, match="its answer does not match the request"):
        check_status(answer, "B", (S,), CHAIN)
