"""The recovery line: against all combinations of versions, with wrong searches, and its cost."""

import dataclasses
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import NotConsistent, UsageError
from stillframe.protocol import recovery_line
from stillframe.protocol.recovery_line import Edge, Line, NoLine, check_line, newest_line
from tests.nightly import seeds

NOTHING = -(10**9)
"""What a target has consumed before its first record."""
GRAPH_COUNT = 10_000
MUTANT_GRAPH_COUNT = 1_000

Search = Callable[[Mapping[str, Sequence[int]], Iterable[Edge], Any], Line | NoLine]


@dataclasses.dataclass
class Graph:
    """What the participants of a dataflow retain, and what each has consumed at each version."""

    retained: dict[str, list[int]]
    reads: dict[Edge, dict[int, int]]
    calls: Counter[tuple[Edge, int]] = dataclasses.field(default_factory=Counter)

    def consumed(self, edge: Edge, version: int) -> int:
        """Return what the target has consumed, and count the call."""
        self.calls[edge, version] += 1
        return self.reads[edge][version]

    def find(self, search: Search = newest_line) -> Line | NoLine:
        """Search for the line."""
        return search(self.retained, self.reads, self.consumed)

    def cuts(self) -> list[dict[str, int]]:
        """Return every consistent cut, found by trying all."""
        every = (
            dict(zip(self.retained, chosen, strict=True))
            for chosen in itertools.product(*self.retained.values())
        )
        return [
            cut
            for cut in every
            if all(
                reads[cut[edge.target]] <= cut[edge.source] for edge, reads in self.reads.items()
            )
        ]

    def with_older(self, participant: str) -> "Graph":
        """Return the graph where a participant also retains a version before its first record."""
        older = self.retained[participant][0] - 1
        return Graph(
            self.retained | {participant: [older, *self.retained[participant]]},
            {
                edge: {older: NOTHING} | reads if edge.target == participant else reads
                for edge, reads in self.reads.items()
            },
        )


def random_graph(chance: Random) -> Graph:
    """Return two to five participants with up to five versions each, or two with up to 16, joined
    at random: in cycles, by parallel channels, by channels with several targets, and to
    themselves."""
    names = "abcde"[: chance.randint(2, 5)]
    count_max = 16 if len(names) == 2 else 5
    retained = {
        name: sorted(chance.sample(range(-1, count_max + 3), chance.randint(1, count_max)))
        for name in chance.sample(names, len(names))
    }
    reads = {}
    for _ in range(chance.randint(1, len(names) + 3)):
        source, target = chance.choice(names), chance.choice(names)
        edge = Edge(f"{source}{chance.randrange(2)}", source, target)
        versions, oldest, newest = retained[target], retained[source][0], retained[source][-1]
        read = sorted(chance.randint(oldest - 4, newest + 1) for _ in versions)
        nothing_count = chance.choice((0, 0, chance.randint(1, len(versions))))
        read[:nothing_count] = [NOTHING] * nothing_count
        reads[edge] = dict(zip(versions, read, strict=True))
    return Graph(retained, reads)


def check(graph: Graph, found: Line | NoLine) -> None:
    """Compare what a search found with all consistent cuts."""
    cuts = graph.cuts()
    if isinstance(found, NoLine):
        assert cuts == []
        check_reason(graph, found)
        return
    newest = {name: max(cut[name] for cut in cuts) for name in graph.retained}
    assert newest in cuts, "the consistent cuts have no maximum"
    assert found.versions == newest
    assert found.needed_counts == {
        name: sum(version >= newest[name] for version in versions)
        for name, versions in graph.retained.items()
    }


def check_reason(graph: Graph, found: NoLine) -> None:
    """Check what is reported instead of a line: with a version of the participant from before its
    first record, no cut has any other version of it, nor a newer one of the source."""
    edge, versions = found.edge, graph.retained[found.participant]
    assert edge.target == found.participant
    assert (found.oldest, found.retained_count) == (versions[0], len(versions))
    assert found.wanted == graph.reads[edge][found.oldest]
    assert found.chosen < found.wanted
    assert found.chosen in graph.retained[edge.source]
    assert found.needed_count is None or found.needed_count > found.retained_count
    for cut in graph.with_older(found.participant).cuts():
        assert cut[found.participant] < found.oldest
        assert cut[edge.source] <= found.chosen


@pytest.mark.slow
@pytest.mark.nightly(part="verdicts")
@pytest.mark.parametrize("seed", seeds("recovery lines", 1, night=5))
def test_the_line_is_the_newest_of_all_consistent_cuts(seed: int) -> None:
    """On 10,000 random graphs the search finds the maximum of all consistent cuts, and none exactly
    if there is none."""
    chance = Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(GRAPH_COUNT):
        graph = random_graph(chance)
        found = graph.find()
        check(graph, found)
        assert set(graph.calls.values()) <= {1}
        at_newest = isinstance(found, Line) and set(found.needed_counts.values()) == {1}
        outcomes["newest" if at_newest else type(found).__name__] += 1
    assert min(outcomes.values()) > GRAPH_COUNT / 10, outcomes
    assert len(outcomes) == 3


def mutant(old: str, new: str) -> Search:
    """Return the search with one place of its source replaced."""
    source = inspect.getsource(recovery_line)
    assert source.count(old) == 1, f"{source.count(old)} places to change: {old}"
    functions = source[source.index("def newest_line") :].replace(old, new)
    names = dict(vars(recovery_line))
    exec(compile(functions, "mutant", "exec"), names)
    search: Search = names["newest_line"]
    return search


MUTANTS = {
    "a version that is just old enough is ruled out": (
        "consumed(edge, versions[place]) <= chosen",
        "consumed(edge, versions[place]) < chosen",
    ),
    "the bisection rules out what is just old enough": ("bisect_right", "bisect_left"),
    "the bisection leaves out the version where it begins": (
        "start + 1, first_out",
        "start + 2, first_out",
    ),
    "the bisection leaves out the version before its end": (
        "start + 1, first_out",
        "start + 1, first_out - 1",
    ),
    "the last version before one that is ruled out is taken": (
        "key=partial(consumed, edge)) - 1",
        "key=partial(consumed, edge)) and first_out - 1",
    ),
    "the version where the steps end is taken instead of the bisected one": (
        "key=partial(consumed, edge)) - 1",
        "key=partial(consumed, edge)) and start",
    ),
    "the steps leave out the oldest version": ("while first_out > 0", "while first_out > 1"),
    "the oldest version is taken where every one is ruled out": (
        "step * 2\n    return None",
        "step * 2\n    return 0",
    ),
    "one pass instead of a fixed point": ("pending.add(target)", "pass"),
    "only sources of the first pass limit their targets": (
        "chosen = kept[source][places[source]]",
        "chosen = kept[source][-1]",
    ),
    "the search begins at the oldest versions": ("len(versions) - 1 for", "0 for"),
    "only the last of parallel channels counts": (
        "in edges:\n        outgoing[",
        "in {(e.source, e.target): e for e in edges}.values():\n        outgoing[",
    ),
    "only the last target of a channel counts": (
        "in edges:\n        outgoing[",
        "in {e.channel: e for e in edges}.values():\n        outgoing[",
    ),
    "a channel from a participant to itself does not count": (
        "for edge in outgoing[source]:",
        "for edge in (e for e in outgoing[source] if e.target != source):",
    ),
    "the other targets are left out when one was lowered": (
        "pending.add(target)",
        "pending.add(target); break",
    ),
    "answers for one target serve for all targets of a channel": (
        "consumed = _Memo(consumed)",
        "consumed = _Memo(lambda e, v, f=consumed, m={}: m.setdefault((e.channel, v), f(e, v)))",
    ),
    "answers for one edge are compared with those for others": (
        "self._seen.setdefault(edge, [])",
        "self._seen.setdefault(None, [])",
    ),
    "one version too few is needed": ("len(kept[name]) - place", "len(kept[name]) - place - 1"),
    "the reason names the newest version": ("oldest=versions[0]", "oldest=versions[-1]"),
    "the reason names what the newest version has consumed": (
        "wanted = consumed(edge, versions[0])",
        "wanted = consumed(edge, versions[-1])",
    ),
    "the reason names the newest version of the source": (
        "_no_line(edge, kept[target], chosen,",
        "_no_line(edge, kept[target], kept[source][-1],",
    ),
}


def check_search(search: Search) -> None:
    """Compare a search with the cuts of some random graphs."""
    chance = Random(1)
    for _ in range(MUTANT_GRAPH_COUNT):
        graph = random_graph(chance)
        check(graph, graph.find(search))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_search_is_found(name: str) -> None:
    """Every plausible wrong version of the search fails on a random graph."""
    search = mutant(*MUTANTS[name])
    with pytest.raises((AssertionError, NotConsistent)):
        check_search(search)


def test_the_right_search_passes_where_wrong_ones_are_found() -> None:
    """The graphs that find the wrong searches find nothing in the right one."""
    check_search(mutant("while pending:", "while pending:"))


def test_no_inconsistent_line_is_returned() -> None:
    """A search that stops too early raises an error: the line is checked before it is returned."""
    search = mutant("pending.add(target)", "pass")
    chance = Random(1)
    error_count = 0
    for _ in range(MUTANT_GRAPH_COUNT):
        graph = random_graph(chance)
        try:
            found = graph.find(search)
        except NotConsistent as error:
            assert "the cut is not consistent" in str(error)  # noqa: PT017 - it may also return
            error_count += 1
        else:
            assert isinstance(found, NoLine) or found.versions in graph.cuts()
    assert error_count > 0


AB = Edge("ab", "a", "b")
BC = Edge("bc", "b", "c")


def test_a_target_that_is_ahead_is_lowered() -> None:
    """A target at which records of a lost version arrived takes an older version, and its own
    target follows."""
    graph = Graph(
        {"a": [0, 1, 2], "b": [5, 6, 7], "c": [0, 4]},
        {AB: {5: 1, 6: 2, 7: 3}, BC: {0: NOTHING, 4: 7}},
    )
    assert graph.find() == Line({"a": 2, "b": 6, "c": 0}, {"a": 1, "b": 2, "c": 2})


def test_a_source_may_be_ahead() -> None:
    """Records that were written and not yet consumed are no reason to lower a source."""
    graph = Graph({"a": [1, 9], "b": [3]}, {AB: {3: 2}})
    assert graph.find() == Line({"a": 9, "b": 3}, {"a": 1, "b": 1})


def test_participants_without_channels_are_at_their_newest() -> None:
    """Without channels nothing limits a version."""
    assert newest_line({"a": [1, 2], "b": [7]}, [], never) == Line(
        {"a": 2, "b": 7}, {"a": 1, "b": 1}
    )


def test_a_reason_says_what_to_retain() -> None:
    """The participant that retains too few versions, what limits it, and how many it needs at the
    rate at which it consumes."""
    versions = range(10, 21)
    graph = Graph(
        {"a": [0, 1, 2], "b": [3, 4], "c": list(versions)},
        {AB: {3: 2, 4: 3}, BC: {version: 2 * version for version in versions}},
    )
    found = graph.find()
    needed_count = 20
    assert found == NoLine(
        participant="c",
        edge=BC,
        wanted=20,
        chosen=3,
        oldest=10,
        retained_count=11,
        needed_count=needed_count,
        limited_by="a",
    )
    assert str(found) == (
        "there is no consistent cut: the oldest version that c retains, 10, has read from version "
        "20 of b on channel bc, but the newest version of b that can be in a cut is 3, limited by "
        "the newest version of a"
    )
    versions = range(21 - needed_count, 21)
    graph.retained["c"] = list(versions)
    graph.reads[BC] = {version: 2 * version for version in versions}
    assert graph.find() == Line({"a": 2, "b": 3, "c": 1}, {"a": 1, "b": 2, "c": 20})


def test_the_limit_of_a_source_is_followed_upstream() -> None:
    """Over several channels, the reason names the participant whose newest version is too old."""
    fits = {0: 0, 1: 1}
    graph = Graph(
        {"d": [1], "c": [0, 1], "b": [0, 1], "a": [0]},
        {AB: fits, BC: fits, Edge("cd", "c", "d"): {1: 1}},
    )
    found = graph.find()
    assert isinstance(found, NoLine)
    assert (found.participant, found.edge.source, found.limited_by) == ("d", "c", "a")


@pytest.mark.parametrize("versions", [[7], [7, 8]])
def test_without_a_rate_there_is_no_estimate(versions: list[int]) -> None:
    """A single version, or several that consumed nothing more, do not tell how many are missing."""
    found = Graph({"a": [1], "b": versions}, {AB: dict.fromkeys(versions, 2)}).find()
    assert isinstance(found, NoLine)
    assert (found.participant, found.needed_count, found.limited_by) == ("b", None, "a")


def test_a_domino_effect_ends_at_the_start() -> None:
    """Two participants that each need a little less of the other go down to the start, and have no
    line if that is not retained."""
    versions = list(range(100))
    ring = {
        AB: {version: version + 1 for version in versions},
        Edge("ba", "b", "a"): {version: version for version in versions},
    }
    graph = Graph({"a": versions, "b": versions}, ring)
    found = graph.find()
    assert isinstance(found, NoLine)
    assert (found.participant, found.oldest, found.chosen) == ("b", 0, 0)
    started = graph.with_older("a").with_older("b")
    assert started.find() == Line({"a": -1, "b": -1}, {"a": 101, "b": 101})
    assert set(started.calls.values()) == {1}


def test_a_participant_may_read_its_own_channel() -> None:
    """A version that has consumed from a later version of itself is ruled out."""
    loop = Edge("aa", "a", "a")
    graph = Graph({"a": [0, 1, 2, 3]}, {loop: {0: 0, 1: 1, 2: 3, 3: 4}})
    assert graph.find() == Line({"a": 1}, {"a": 3})


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_long_chain_costs_a_search_per_channel(is_reversed: bool) -> None:
    """Of ten participants with 100 versions each, no channel is looked at for more versions than
    steps that double, and a bisection, need; whatever the order of the arguments."""
    names = [f"p{number}" for number in range(10)]
    versions = list(range(100))
    edges = [Edge(f"{a}-{b}", a, b) for a, b in itertools.pairwise(names)]
    if is_reversed:
        names.reverse()
        edges.reverse()
    graph = Graph(
        dict.fromkeys(names, versions),
        {edge: {version: version + 7 for version in versions} for edge in edges},
    )
    found = graph.find()
    assert isinstance(found, Line)
    assert sorted(found.versions.values()) == [99 - 7 * number for number in reversed(range(10))]
    counts = Counter(edge for edge, _ in graph.calls)
    for number, edge in enumerate(sorted(edges, key=lambda edge: int(edge.target[1:])), start=1):
        assert counts[edge] <= calls_max(7 * number)
    assert set(graph.calls.values()) == {1}


def test_newest_versions_that_fit_cost_one_call_per_channel() -> None:
    """Where the newest versions are consistent, only they are looked at."""
    versions = list(range(100))
    reads = {edge: {version: version - 1 for version in versions} for edge in (AB, BC)}
    graph = Graph(dict.fromkeys("abc", versions), reads)
    assert graph.find() == Line(dict.fromkeys("abc", 99), dict.fromkeys("abc", 1))
    assert set(graph.calls) == {(AB, 99), (BC, 99)}


def never(edge: Edge, version: int) -> int:
    """Fail: nothing may be read."""
    raise AssertionError(f"version {version} on {edge} was looked at")


graphs = st.randoms(use_true_random=False).map(random_graph)


@given(graphs, st.randoms(use_true_random=False))
def test_the_order_of_arguments_does_not_matter(graph: Graph, chance: Random) -> None:
    """Participants and channels in another order have the same line, or none."""
    found = graph.find()
    names, edges = list(graph.retained), list(graph.reads)
    chance.shuffle(names)
    chance.shuffle(edges)
    again = newest_line({name: graph.retained[name] for name in names}, edges, graph.consumed)
    assert again == found or (isinstance(again, NoLine) and isinstance(found, NoLine))


@given(graphs)
def test_older_versions_do_not_change_a_line(graph: Graph) -> None:
    """A line stays the newest one when participants retain older versions too."""
    found = graph.find()
    if isinstance(found, Line):
        for name in graph.retained:
            graph = graph.with_older(name)
        assert graph.find() == found


@given(graphs)
def test_a_line_needs_as_many_versions_as_it_says(graph: Graph) -> None:
    """With the needed number of versions of each participant the line is found, and with fewer of
    any it is not."""
    found = graph.find()
    if isinstance(found, NoLine):
        return
    retained = {name: graph.retained[name][-n:] for name, n in found.needed_counts.items()}
    assert newest_line(retained, graph.reads, graph.consumed) == found
    for name, versions in retained.items():
        if len(versions) > 1:
            fewer = newest_line(retained | {name: versions[1:]}, graph.reads, graph.consumed)
            assert fewer != found


@given(graphs)
def test_following_the_reasons_leads_to_a_line(graph: Graph) -> None:
    """If each participant that a reason names retains an old enough version, there is a line after
    as many reasons as participants."""
    found = graph.find()
    named = []
    while isinstance(found, NoLine):
        named.append(found.participant)
        graph = graph.with_older(found.participant)
        found = graph.find()
    assert len(named) == len(set(named))


@given(graphs)
def test_without_cycles_each_channel_is_searched_once(graph: Graph) -> None:
    """A dataflow without cycles costs a search per channel, by how far back the line is, and one
    call per channel to check it."""
    graph.reads = {e: reads for e, reads in graph.reads.items() if e.source < e.target}
    found = graph.find()
    counts = Counter(edge for edge, _ in graph.calls)
    for edge, count in counts.items():
        versions = graph.retained[edge.target]
        back = len(versions)
        if isinstance(found, Line):
            back = found.needed_counts[edge.target] - 1
        assert count <= 1 + calls_max(back)


def calls_max(back: int) -> int:
    """Return the maximum number of calls for a channel if the line is `back` versions before the
    newest one."""
    return 2 + 2 * int(math.log2(back)) if back else 1


@pytest.mark.parametrize(
    ("reads", "told"),
    [
        ({0: 8, 1: 9, 2: 7, 3: 9}, "from version 8 of a at its version 0, but only from 7 at 2"),
        ({0: 1, 1: 9, 2: 9, 3: 6}, "from version 9 of a at its version 2, but only from 6 at 3"),
    ],
)
def test_consumption_that_falls_is_refused(reads: dict[int, int], told: str) -> None:
    """A target that has consumed less at a newer version: the channel, and both versions, are
    named."""
    graph = Graph({"a": [5], "b": list(reads)}, {AB: reads})
    with pytest.raises(NotConsistent, match=f"on channel ab, b has read {told}: check") as raised:
        graph.find()
    assert raised.value.process == "b"


def test_a_cut_can_be_checked() -> None:
    """An inconsistent cut is refused with the channel and the versions; a consistent one passes."""
    reads = {AB: {1: 4, 2: 5}}
    graph = Graph({"a": [4, 5], "b": [1, 2]}, reads)
    check_line({"a": 4, "b": 1}, reads, graph.consumed)
    with pytest.raises(
        NotConsistent,
        match="version 2 of b has read from version 5 of a on channel ab, but a is at version 4",
    ):
        check_line({"a": 4, "b": 2}, reads, graph.consumed)


@pytest.mark.parametrize(
    ("retained", "edges", "told"),
    [
        ({}, [], "at least one participant"),
        ({"a": [], "b": [1]}, [AB], "a retains no version"),
        ({"a": [1, 2, 2], "b": [1]}, [AB], "versions of a do not rise: 2 comes after 2"),
        ({"a": [3, 1], "b": [1]}, [], "versions of a do not rise: 1 comes after 3"),
        ({"a": [1]}, [AB], "channel ab joins a and b, but no versions of b are given"),
        ({"b": [1]}, [AB], "channel ab joins a and b, but no versions of a are given"),
    ],
)
def test_wrong_arguments_are_refused(
    retained: dict[str, list[int]], edges: list[Edge], told: str
) -> None:
    """Arguments that would give a wrong line are refused before anything is read."""
    with pytest.raises(UsageError, match=told):
        newest_line(retained, edges, never)
