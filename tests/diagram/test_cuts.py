"""When a process and a channel were recorded: as the rules say, and as the recorders did."""

import pytest
from hypothesis import given

from stillframe.cli.sim import Rules
from stillframe.diagram.cuts import Choice, record
from stillframe.errors import UsageError
from stillframe.model import Channel, Snapshot, SnapshotId
from stillframe.sim.campaign import RunConfig, run_seed
from stillframe.sim.network import Network
from stillframe.sim.scripted_process import RULES
from stillframe.trace import Event, MarkerStep, Trace
from tests.diagram.runs import HD, SNAPSHOT, lecture, traces


def by_rule(trace: Trace, snapshot: SnapshotId, channel: Channel) -> list[object]:
    """Return what the marker-receiving rule records of a channel, with the numbers of the steps in
    which it begins and ends (Chandy & Lamport 1985, 3.2)."""
    begin = end = None
    messages = []
    for number, step in enumerate(trace.steps, 1):
        if step.process != channel.target:
            continue
        if isinstance(step, Event):
            if begin is not None and end is None:
                messages += [(m, number) for m in step.accepted if m.channel == channel]
        elif isinstance(step, MarkerStep) and step.snapshot == snapshot:
            begin = number if step.is_cut else begin
            end = number if step.source == channel.source else end
    return [begin, end, messages]


@given(traces())
def test_it_is_what_the_rule_says(trace: Trace) -> None:
    """On channels that keep order: who has recorded when, and what came before the marker."""
    for snapshot in trace.snapshots:
        recording = record(trace, Choice(snapshot))
        for channel, found in recording.channels.items():
            if channel.source != channel.target:
                came = [(m, number) for m, number in found.caught if number is not None]
                assert [found.begin, found.end, came] == by_rule(trace, snapshot, channel)
                assert found.orphans == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "rules"),
    [(Network.FIFO, Rules.CHANDY_LAMPORT), (Network.REORDERING, Rules.LAI_YANG)],
)
def test_it_is_what_was_recorded(network: Network, rules: Rules) -> None:
    """Of snapshots that simulated processes took, also where messages come behind the marker."""
    config = RunConfig(topology=None, network=network, recorder=RULES[rules])
    caught_count = 0
    for seed in range(1, 25):
        world = run_seed(seed, config).world
        trace = world.epoch.trace(world.description)
        for snapshot, outcome in world.epoch.outcomes.items():
            if isinstance(outcome, Snapshot) and snapshot in trace.snapshots:
                recording = record(trace, Choice(snapshot))
                for state in outcome.state.channels:
                    found = recording.channels[state.channel]
                    assert len(found.caught) == state.message_count
                    assert None not in (found.begin, found.end)
                    caught_count += len(found.caught)
    assert caught_count > 20


def test_a_cut_that_was_asked_for_is_known_when_it_is_reached() -> None:
    """A process has reached it after the last event before it; a channel, when both ends have."""
    recording = record(lecture(), Choice(cut=(4, 3, 0)))
    assert recording.reached == {"P1": 13, "P2": 9, "P3": 0}
    found = recording.channels[Channel("P3", "P2")]
    assert (found.begin, found.end, len(found.orphans)) == (9, 9, 1)
    assert recording.channels[HD.channel].caught == ()


def test_a_process_that_never_records_keeps_its_channels_open() -> None:
    """All that it does is white, and what comes from it is kept."""
    trace = Trace(["P1", "P2", "P3"], lecture().steps[:10])
    recording = record(trace, Choice(SNAPSHOT))
    assert recording.reached == {"P1": 3, "P3": 5}
    assert recording.whites == (2, 3, 1)
    assert recording.channels[HD.channel].begin == 3
    assert recording.channels[HD.channel].end is None
    assert recording.channels[Channel("P1", "P2")].begin is None


def test_a_snapshot_that_is_not_there_is_named() -> None:
    """With those that are."""
    with pytest.raises(UsageError, match="no snapshot P2-7; it has P1-1"):
        record(lecture(), Choice(SnapshotId("P2", 7)))
