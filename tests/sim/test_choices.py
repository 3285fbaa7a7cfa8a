"""Choices are lines of text: what ``str`` writes, ``parse_choice`` reads."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.sim import choices
from stillframe.sim.choices import parse_channel, parse_choice

WORDS = frozenset({"partition", "crashes", "initiates"})
"""Who calls a process so cannot be told from what happens to it."""
processes = st.from_regex(r"[A-Za-z]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda name: name not in WORDS
)
channels = st.builds(Channel, processes, processes)
snapshots = st.builds(SnapshotId, processes, st.integers(0, 10**17))
positions = st.integers(0, 999_999)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_']{0,8}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
every_choice = st.one_of(
    st.builds(choices.Act, processes, names),
    st.builds(choices.Act, processes, names, st.lists(values, max_size=3).map(tuple)),
    st.builds(choices.Deliver, st.lists(channels, min_size=1, max_size=4).map(tuple), positions),
    st.builds(choices.Initiate, processes, snapshots),
    st.builds(choices.Expire),
    st.builds(choices.DeliverNotice, processes, snapshots),
    st.builds(choices.Lose, channels, positions),
    st.builds(choices.Duplicate, channels),
    st.builds(choices.Break, channels),
    st.builds(choices.Connect, channels),
    st.builds(choices.Partition, st.lists(processes, min_size=1, max_size=4).map(tuple)),
    st.builds(choices.Heal),
    st.builds(choices.Crash, processes),
    st.builds(choices.Restart),
)


@given(every_choice)
def test_every_choice_is_read_as_it_was_written(choice: choices.Choice) -> None:
    """Whatever its kind, and with spaces around it."""
    assert parse_choice(str(choice)) == choice
    assert parse_choice(f"  {choice} ") == choice


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("P1 does pay", choices.Act("P1", "pay")),
        ("P1 does pay(5)", choices.Act("P1", "pay", (5,))),
        (
            'P1 does pay(5, "a b", [1, {"x": null}])',
            choices.Act("P1", "pay", (5, "a b", [1, {"x": None}])),
        ),
        ("P1 does pay()", choices.Act("P1", "pay")),
        ("P1 does pay(null)", choices.Act("P1", "pay", (None,))),
        ("deliver P1->P2", choices.Deliver((Channel("P1", "P2"),))),
        ("deliver P1->P2 at 3", choices.Deliver((Channel("P1", "P2"),), 3)),
        ("deliver P1->P3,P2->P3", choices.Deliver((Channel("P1", "P3"), Channel("P2", "P3")))),
        ("P1 initiates P1-1", choices.Initiate("P1", SnapshotId("P1", 1))),
        ("P1 hears that P1-1 is over", choices.DeliverNotice("P1", SnapshotId("P1", 1))),
        ("expire", choices.Expire()),
        ("lose P1->P2 at 1", choices.Lose(Channel("P1", "P2"), 1)),
        ("double P1->P2", choices.Duplicate(Channel("P1", "P2"))),
        ("break P1->P2", choices.Break(Channel("P1", "P2"))),
        ("connect P1->P2", choices.Connect(Channel("P1", "P2"))),
        ("partition P1 P2", choices.Partition(("P1", "P2"))),
        ("heal", choices.Heal()),
        ("P1 crashes", choices.Crash("P1")),
        ("restart", choices.Restart()),
    ],
)
def test_each_form_is_one_kind_of_choice(text: str, choice: choices.Choice) -> None:
    """The forms that an error lists, each as people write it."""
    assert parse_choice(text) == choice


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, [{"x": math.inf}], (1, 2), {1: 2}, b"x", object()]
)
def test_what_a_schedule_would_not_repeat_is_refused(value: object) -> None:
    """No such argument is JSON: printed, it would be another one, or nothing."""
    with pytest.raises(UsageError, match=r"P1 does pay: its arguments \(5, .* not JSON values"):
        choices.Act("P1", "pay", (5, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P1",
        "P1 does",
        "P1 does a b",
        "1P does pay",
        "does pay",
        "deliver",
        "deliver P1",
        "deliver P1->",
        "deliver P1->P2 at",
        "deliver P1->P2 at -1",
        "deliver P1->P2 at 1234567",
        "deliver P1->P2,",
        "deliver P1->P2 P2->P1",
        "DELIVER P1->P2",
        "double P1->P2 at 1",
        "P1 hears P1-1",
        "partition",
        "restart P1",
        "heal\nheal",
        "\x00",
        "P1 does pay\x1b[31m now",
    ],
)
def test_what_is_no_choice_is_refused_with_the_forms(text: str) -> None:
    """What was written, unambiguously, and what could be."""
    with pytest.raises(UsageError) as caught:
        parse_choice(text)
    assert str(caught.value) == f"{text!r} is not a choice; choices are: {choices.FORMS}"


@pytest.mark.parametrize("name", ["", "P1", "P1-1-1-", "1-1", "P1-", "P1-x", "P1-" + "9" * 19])
def test_a_wrong_snapshot_id_is_named(name: str) -> None:
    """In the two choices that have one."""
    for text in (f"P1 initiates {name or '-'}", f"P1 hears that {name or '-'} is over"):
        with pytest.raises(UsageError, match="is not a snapshot id, which looks like P1-17"):
            parse_choice(text)


@pytest.mark.parametrize(
    "text", ["", "P1", "P1->", "->P2", "P1->P2->P3", "P1->2", "P1-P2", "a->b "]
)
def test_a_wrong_channel_is_named(text: str) -> None:
    """With what channels look like."""
    with pytest.raises(UsageError, match="is not a channel, such as P1->P2"):
        parse_channel(text)


@pytest.mark.parametrize("text", ["(x)", "(1", "(1,)", "([1)", "(1e999)", "(" + "[" * 5000 + ")"])
def test_arguments_are_json(text: str) -> None:
    """What is none is refused."""
    with pytest.raises(UsageError, match=r"are not arguments|is not a choice"):
        parse_choice(f"P1 does pay{text}")


@given(
    st.one_of(
        st.text(alphabet="P12 ->,at\n\x1b", max_size=40),
        st.text(alphabet='(["1e9.-,])', max_size=20).map("P1 does a{}".format),
    )
)
def test_any_text_is_a_choice_or_refused(text: str) -> None:
    """Never another error than ours; and what is read says the same again."""
    try:
        choice = parse_choice(text)
    except UsageError:
        return
    assert parse_choice(str(choice)) == choice
