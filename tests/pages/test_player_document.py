"""The document of the player: bounded, and counted in the steps that are shown."""

from pathlib import Path

import msgspec

from stillframe.model import Channel, Snapshot, SnapshotId
from stillframe.pages.player_document import CHANNELS_MAX, SNAPSHOT_COUNT_MAX, player_document
from stillframe.trace import Event, MarkerStep, Trace
from tests.diagram.runs import SNAPSHOT, by_chance, lecture
from tests.diagram.scripts import played, trace_of

ROOT = Path(__file__).parent.parent.parent


def test_it_has_the_outcome_of_the_script() -> None:
    """What is recorded at the end is what the snapshot holds, as the narrator says it."""
    world = played("lecture").world
    found = player_document(trace_of("lecture"), title="lecture", played=played("lecture"))
    (choice,) = found["choices"]
    held = [
        f"  {p} {state}" for p, (_, state) in zip(found["processes"], choice["states"], strict=True)
    ]
    held += [
        f"  {channel['name']} held {', '.join(name for _, name in channel['holds'])}"
        for channel in choice["channels"]
        if channel["holds"]
    ]
    snapshot = world.epoch.outcomes[SNAPSHOT]
    assert isinstance(snapshot, Snapshot)
    contents = played("lecture").narrator.contents(snapshot)
    assert held == contents[: len(held)]
    assert all(len(channel["holds"]) == 0 for channel in choice["channels"][3:])


def test_it_can_be_written_as_json_and_says_how_much_there_is() -> None:
    """Also of executions by chance with names of any kind."""
    found = player_document(by_chance(3, 4, 50, 2), title="x\u202e")
    assert msgspec.json.decode(msgspec.json.encode(found))["kind"] == "play"
    assert found["title"] == "x\\u202e"
    assert found["about"].startswith("4 processes, ")


def test_steps_are_counted_from_the_first_that_is_shown() -> None:
    """What was recorded before is known from the beginning."""
    found = player_document(lecture(), title="part", first=6, step_count_max=8)
    (choice,) = found["choices"]
    assert [at for at, _ in choice["states"]] == [0, 6, 0]
    assert found["notice"] == "steps 6 to 13 of 18 are shown"
    assert len(found["steps"]) == 8


def test_of_many_snapshots_some_can_be_chosen() -> None:
    """The first, the one that was asked for, and the cut; how many others there are is said."""
    steps = [MarkerStep("P1", SnapshotId("P1", number), is_cut=True) for number in range(1, 21)]
    trace = Trace(["P1"], [Event("P1", "A"), *steps])
    wanted = SnapshotId("P1", 17)
    found = player_document(trace, title="many", snapshot=wanted, cuts=[(1,)])
    names = [choice["name"] for choice in found["choices"]]
    assert names == [*(f"P1-{number}" for number in range(1, 8)), "P1-17", "cut"]
    assert (found["unlisted"], names[found["chosen"]]) == (12, "P1-17")
    assert player_document(trace, title="many", cuts=[(1,)])["chosen"] == 8


def test_of_many_channels_those_that_hold_something_come_first() -> None:
    """They are all of use; of the empty ones as many as there is room for."""
    names = [f"P{number}" for number in range(1, 8)]
    channels = [Channel(a, b) for a in names for b in names if a != b]
    run = lecture()
    trace = Trace(names, run.steps, channels)
    (choice,) = player_document(trace, title="wide")["choices"]
    assert len(choice["channels"]) == CHANNELS_MAX
    assert choice["unlisted"] == len(channels) - CHANNELS_MAX
    assert any(channel["name"] == "P2->P1" for channel in choice["channels"])


def test_the_page_on_the_player_says_what_is_shown() -> None:
    """The sentence that it quotes and the step that its link leads to are those of the lecture."""
    page = (ROOT / "docs" / "player.md").read_text(encoding="utf-8")
    found = player_document(trace_of("lecture"), title="lecture", played=played("lecture"))
    assert f"After the third step: `{found['steps'][2][0]}`." in page
    assert found["steps"][12][0] == "P1 accepts H>D from P2: does D; P2->P1 keeps H>D for P1-1"
    assert "lecture.html#snapshot=P1-1&step=13" in page
    assert "more than eight snapshots" in page
    assert SNAPSHOT_COUNT_MAX == 8
