"""No false alarm and nothing missed, in executions in which the truth is known."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from stillframe.detect.predicate import Verdict
from stillframe.detect.view import SnapshotView
from tests.detect.truth import KINDS, judge
from tests.nightly import by_night, seeds

FIRST = (seeds("truth", night=1) or (1,))[0]
SEED_COUNT = by_night(3000, check=40)


def judge_all(name: str) -> Counter[str]:
    """Judge so many executions, and return how many snapshots were before, after and around."""
    return sum((judge(name, FIRST + index) for index in range(SEED_COUNT)), Counter())


@pytest.mark.nightly(part="simulator")
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_verdicts_agree_with_the_truth(name: str) -> None:
    """With slow messages, lost connections, deaths and restores, and snapshots that overlap; some
    begin after the onset, some end before it, and some lie around it."""
    assert {"before", "after", "around"} <= judge_all(name).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_who_ignores_what_is_on_its_way_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge finds false alarms: of processes that wait for what has been sent, are passive for
    the moment, or have just handed on the token."""
    kind = KINDS[name]

    def careless(view: SnapshotView) -> Verdict:
        emptied = dict.fromkeys(view.channels, ())
        return kind.predicate(msgspec.structs.replace(view, channels=emptied))

    monkeypatch.setitem(KINDS, name, replace(kind, predicate=careless))
    with pytest.raises(AssertionError, match="a false alarm"):
        judge_all(name)
