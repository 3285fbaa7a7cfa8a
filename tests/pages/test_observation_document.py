"""The document of the page of an observation: what is in it, and what it leaves out."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from stillframe.detect.call_waits import find_call_deadlock
from stillframe.pages import self_contained_page
from stillframe.pages.call_diagram import draw_calls
from stillframe.pages.observation_document import observation_document
from stillframe.protocol.activities import TIME_MAX
from stillframe.protocol.calls import CallPlace, Observation
from stillframe.store.observations import ObservationReader
from tests.store.call_samples import (
    BANK,
    DEADLINE,
    OTHER_BANK,
    SHOP,
    STOCK,
    call,
    crowd,
    deadlocked,
    fragment,
    stored,
)

PAGE_BYTES_MAX = 4_000_000


def document_of(path: Path, observation: Observation) -> dict[str, Any]:
    """Return the document of an observation that was stored and read again."""
    reader = ObservationReader(stored(path, observation))
    return observation_document(reader.load(observation.number))


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """The document of an observation with a deadlock."""
    return document_of(tmp_path / "seen", deadlocked())


def kinds_of(document: dict[str, Any]) -> dict[str, set[str]]:
    """Return the words of each group of the diagram that has a key, with the classes of it."""
    root = ElementTree.fromstring(document["diagram"]["svg"])
    return {
        group[0].text or "": set(group.attrib["class"].split())
        for group in root.iter("{http://www.w3.org/2000/svg}g")
        if "data-key" in group.attrib
    }


def test_each_open_call_is_drawn_where_it_is(document: dict[str, Any]) -> None:
    """What is in transit crosses the cut, and what a target does not show is dotted."""
    drawn = {
        words.partition("(")[2].partition(")")[0]: kind - {"message"}
        for words, kind in kinds_of(document).items()
        if "message" in kind
    }
    assert drawn == {
        f"{OTHER_BANK}#1": set(),
        f"{SHOP}#2": {"blocked"},
        f"{STOCK}#3": {"blocked"},
        f"{BANK}#4": {"blocked"},
        f"{SHOP}#5": {"caught"},
        f"{STOCK}#6": {"caught"},
        f"{SHOP}#7": {"unseen"},
        f"{STOCK}#8": {"unseen"},
    }


def test_only_what_is_in_transit_crosses_the_cut() -> None:
    """Every other arrow ends left of it."""
    observation = deadlocked()
    diagram = draw_calls(observation, find_call_deadlock(observation)).diagram
    x_cut = diagram.curves[0].points[0][0]
    crossing = {
        arrow.message.channel.source
        for arrow in diagram.messages
        if arrow.path.begin[0] < x_cut < arrow.path.end[0]
    }
    assert crossing == {SHOP, OTHER_BANK}
    assert all(arrow.path.begin[0] < arrow.path.end[0] for arrow in diagram.messages)
    (lock,) = diagram.locks
    assert lock.path.end[0] < lock.path.begin[0] < x_cut
    assert lock.is_blocked


def test_a_deadlock_is_told_with_its_lock_and_time_out(document: dict[str, Any]) -> None:
    """And who waits for it."""
    (ring,) = document["deadlock"]["rings"]
    sentences = [wait["sentence"] for wait in ring["waits"]]
    assert len(sentences) == 4
    assert any("the lock 'ledger', which bank-0000000d#1 holds" in one for one in sentences)
    assert document["deadlock"]["ends_at"] == DEADLINE + 2
    assert len(document["deadlock"]["behind"]) == 1
    assert [one["is_blocked"] for one in document["calls"]] == [True] * 3 + [False] * 5


def test_why_it_is_partial_is_told(document: dict[str, Any]) -> None:
    """With the instances that are disconnected, and the unresolved calls."""
    assert document["quality"] == "partial"
    assert document["reasons"] == ["partial: cards.example:443 has never answered with a header"]
    assert document["disconnected"] == ["gone-0000000e"]
    assert [one["kind"] for one in document["unresolved"]] == ["not awaited", "orphan"]
    assert [one["kind"] for one in document["processes"]] == ["bank", "bank", "shop", "stock"]


def test_many_instances_and_calls_are_bounded(tmp_path: Path) -> None:
    """The page says how many are not in it, and the picture too."""
    document = document_of(tmp_path / "seen", crowd(300, 4000))
    assert document["calls_left_out_count"] == 4000 - len(document["calls"]) > 0
    assert document["processes_left_out_count"] == 300 - len(document["processes"])
    assert document["diagram"]["left_out"] == (
        "60 of 4,000 open calls are drawn; 55 of 300 instances have a line"
    )
    assert len(self_contained_page.render(document, title="")) < PAGE_BYTES_MAX


def test_texts_and_times_of_services_do_no_harm(tmp_path: Path) -> None:
    """Long names, letters that turn the text, the last and no time, and calls in a circle."""
    hostile = "\u202e<b>" * 250
    calls = (
        call("A", 1, hostile, CallPlace.SERVED, [("A", 0)], activity="A#2", name=hostile),
        call("A", 2, "", CallPlace.SERVED, [("A", 0)], activity="A#1"),
    )
    details = msgspec.structs.replace(calls[1].record.details, deadline=TIME_MAX, began_at=0.0)
    record = msgspec.structs.replace(calls[1].record, details=details)
    calls = (calls[0], msgspec.structs.replace(calls[1], record=record))
    observation = msgspec.structs.replace(
        deadlocked(), fragments={"A": fragment("A", calls)}, calls=calls, orphans=()
    )
    document = document_of(tmp_path / "seen", observation)
    assert len(msgspec.json.encode(document)) < 12_000
    assert "\u202e" not in document["diagram"]["svg"]
    found = {one["call"]: one for one in document["calls"]}
    assert (found["A#2"]["began_at"], found["A#2"]["deadline"]) == (None, TIME_MAX)
