"""``list``, ``show``, ``view``, ``verify``, ``detect`` and ``diff`` on observations; all other
commands refuse them."""

import contextlib
import json
import math
import re
import secrets
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stillframe.cli.observations import difference
from stillframe.detect.complete_tables import TABLES
from stillframe.detect.observations import FIRST
from stillframe.protocol.calls import (
    SILENT,
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    TimedOutCall,
)
from stillframe.sim.service_judge import UNIT
from stillframe.storage.location import ObjectPath
from stillframe.store.layout import OBSERVATIONS
from stillframe.store.observation_tables import (
    INSTANCES,
    amounts_of,
    fragments_in,
    state_of,
    to_tables,
)
from stillframe.store.observations import ObservationReader, ObservationWriter
from tests.cli.conftest import Call
from tests.cli.test_snapshot_page import document_in
from tests.store.call_samples import crowd, deadlocked, stored
from tests.store.observation_samples import TIMES, filled, observed, rewrite

KIND, SEED, RICH = "deaths", 4, 3


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of observations that no test changes."""
    path = tmp_path_factory.mktemp("observations") / "seen"
    filled(path, KIND, SEED).close()
    return path


@pytest.fixture
def seen(original: Path, tmp_path: Path) -> Path:
    """A store of observations."""
    return shutil.copytree(original, tmp_path / "seen")


def test_list_shows_what_each_observation_has(original: Path, call: Call) -> None:
    """And that none of them can be restored."""
    result = call("list", original)
    assert result.exit_code == 0
    first = result.stdout.splitlines()[2].split()
    assert first[0] == "1"
    assert first[-6:-2] == ["3", "14", "16", "1"]
    assert "5 observations; none can be restored" in result.stdout
    assert "not exact: B-00000002 has left without a goodbye: it is unknown what" in result.stdout
    assert "totals are comparable since observation 1 (it is the first one" in result.stdout
    document = json.loads(call("list", original, "--json").stdout)
    assert [one["number"] for one in document["observations"]] == [1, 3, 4, 5, 6]


def test_list_gives_each_reason_once(tmp_path: Path, call: Call) -> None:
    """With the observations that it is a reason for."""
    filled(tmp_path, "outside", 13).close()
    result = call("list", tmp_path)
    lines = [line for line in result.stdout.splitlines() if "outside has never answered" in line]
    assert lines == [f"partial: {SILENT.format('outside')} (in 1, 2, 3, 4, 5)"]


def test_list_goes_beyond_a_damaged_observation(seen: Path, call: Call) -> None:
    """It names that one, and exits with 1."""
    (seen / OBSERVATIONS / "4" / "manifest.json").write_bytes(b"{}")
    result = call("list", seen, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [one["number"] for one in document["damaged"]] == [4]
    assert "put the file back from a copy, or delete the directory" in result.stderr


def test_an_empty_store_says_so(tmp_path: Path, call: Call) -> None:
    """Nothing has been observed yet."""
    ObservationWriter.open(tmp_path).close()
    assert "holds no observation yet" in call("list", tmp_path).stdout
    assert "holds no observation yet" in call("verify", tmp_path).stdout
    result = call("show", tmp_path)
    assert (result.exit_code, "holds no observation yet" in result.stderr) == (2, True)


def test_a_copy_is_made_by_other_programs(seen: Path, tmp_path: Path, call: Call) -> None:
    """Of files as they are."""
    result = call("store", "copy", seen, tmp_path / "elsewhere")
    assert (result.exit_code, "such as with 'cp -r'" in result.stderr) == (2, True)
    assert not (tmp_path / "elsewhere").exists()
    assert call("verify", shutil.copytree(seen, tmp_path / "elsewhere")).exit_code == 0


def test_stats_summarize_all_observations(seen: Path, call: Call) -> None:
    """As of snapshots, with the observation that has the maximum; a damaged one is left out."""
    entries = json.loads(call("list", seen, "--json").stdout)["observations"]
    (seen / OBSERVATIONS / "4" / "manifest.json").write_bytes(b"{}")
    left = [one for one in entries if one["number"] != 4]
    result = call("store", "stats", seen, "--json")
    assert (result.exit_code, "observation 4 is left out: " in result.stderr) == (1, True)
    document = json.loads(result.stdout)
    assert document["observations"] == left
    assert document["quality_counts"]["not exact"] == sum(not one["is_exact"] for one in left)
    spread = {row["figure"]: row for row in document["spread"]}
    for figure, row in spread.items():
        values = sorted(float(one[figure]) for one in left)
        assert row["max"] == values[-1]
        assert row["median"] == (values[1] + values[2]) / 2
        assert row["p90"] == pytest.approx(values[2] + 0.7 * (values[3] - values[2]))
        of_most = [one["number"] for one in left if one[figure] == row["max"]]
        assert row["observation"] == of_most[-1]
    assert set(spread) >= {"took_s", "bytes", "open_count"}
    lines = call("store", "stats", seen).stdout.splitlines()
    assert any(line.startswith("unresolved calls") for line in lines)


def test_stats_of_one_observation(tmp_path: Path, call: Call) -> None:
    """It is the median of itself, and none has no statistics."""
    ObservationWriter.open(tmp_path / "empty").close()
    result = call("store", "stats", tmp_path / "empty")
    assert (result.exit_code, "holds no observation yet" in result.stderr) == (2, True)
    document = json.loads(
        call("store", "stats", stored(tmp_path / "one", deadlocked()), "--json").stdout
    )
    for row in document["spread"]:
        assert row["median"] == row["p90"] == row["max"]


@pytest.fixture(scope="module")
def remote(original: Path) -> str:
    """The address of the same observations in an object store."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
    filled(place, KIND, SEED).close()
    return str(place)


@pytest.mark.parametrize(
    "command",
    [
        "list {}",
        "show {}",
        "show {} 3",
        "verify {}",
        "verify {} 3",
        "diff {} 1 3",
        "detect {} deadlock",
        "calls {}",
        "store stats {}",
    ],
)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_answers_from_an_object_store_are_those_of_a_directory(
    call: Call, original: Path, remote: str, command: str, how: tuple[str, ...]
) -> None:
    """With the address in place of the path; a list says what it cost."""
    there = call(*command.format(remote).split(), *how)
    here = call(*command.format(original).split(), *how)
    assert there.exit_code == here.exit_code
    if command.startswith("list") and how:
        document = json.loads(there.stdout)
        assert document.pop("requests")["requests"] > len(document["observations"])
        assert document == json.loads(here.stdout) | {"store": remote}
        return
    assert there.stdout == here.stdout.replace(str(original), remote)
    said = [line for line in there.stderr.splitlines() if "to the object store" not in line]
    assert said == here.stderr.replace(str(original), remote).splitlines()


def test_what_an_object_store_lacks_is_said(call: Call, remote: str, tmp_path: Path) -> None:
    """As of a directory."""
    for arguments, expected in (
        (("show", remote, "2"), "there is no observation 2"),
        (("restore", remote), "which can be looked at and not restored"),
        (("pipeline", "list", remote), "which can be looked at and not restored"),
        (("store", "stats", remote, "--event-log", "x"), "--event-log applies to snapshots"),
    ):
        result = call(*arguments)
        assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr
    assert call("view", remote, "3", "--out", tmp_path / "a.svg").exit_code == 0
    assert call("view", remote, "--out", tmp_path / "a.html").exit_code == 0


def detected(call: Call, store: Path, predicate: str, code: int) -> dict[str, Any]:
    """Return what ``detect`` says; it exits with this code."""
    result = call("detect", store, predicate, "--json")
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of observations that are all exact."""
    path = tmp_path_factory.mktemp("bank") / "seen"
    filled(path, "losses", 1).close()
    return path


def test_nothing_is_lost_in_exact_observations(bank: Path, call: Call) -> None:
    """Though messages are: their amounts are known."""
    found = detected(call, bank, "loss", 1)
    assert found["held"] == []
    assert found["observation_count"] > 1
    first = ObservationReader(bank).numbers()[0]
    assert re.fullmatch(
        rf"nothing is missing: .*, compared with observation {first}", found["found"]
    )
    [begun] = found["baselines"]
    assert begun["baseline"] == first
    assert found["not_evaluated"] == [{"reason": FIRST, "observations": [[first, first]]}]


def test_what_a_baseline_alone_has_is_not_decided(bank: Path, tmp_path: Path, call: Call) -> None:
    """Of one that begins there is nothing to compare. Those before stay comparable."""
    store = shutil.copytree(bank, tmp_path / "seen")
    newest = ObservationReader(store).newest()
    begun: dict[str, Any] = {"baseline_why": "compared by hand"}
    begun |= {"baseline_by": "ada", "baseline_at": 1000.0}
    rewrite(store, newest, baseline=newest, **begun)
    result = call("detect", store, "loss")
    assert result.exit_code == 3
    assert f"since observation {newest} (1970-01-01 00:16:40.000 UTC, by ada: because" in (
        result.stdout
    )
    assert f"not decided: since observation {newest} there are no two exact ones" in result.stdout
    assert "before, loss holds in none of 3 observations: nothing is missing" in result.stdout
    assert detected(call, store, "loss", 3)["holds"] is None


def test_a_loss_is_found_from_the_first_observation_on(
    bank: Path, tmp_path: Path, call: Call
) -> None:
    """What is missing, and of what there was."""
    store = shutil.copytree(bank, tmp_path / "seen")
    numbers = ObservationReader(store).numbers()

    def poorer(tables: dict[str, pa.Table]) -> None:
        fragments = fragments_in(tables[INSTANCES])
        name = min(fragments)
        state = fragments[name].state
        less = msgspec.structs.replace(state, conserved={UNIT: state.conserved[UNIT] - 7})
        fragments[name] = msgspec.structs.replace(fragments[name], state=less)
        observation = msgspec.structs.replace(
            ObservationReader(bank).load(numbers[-1]).observation, fragments=fragments
        )
        tables.update(to_tables(observation))

    rewrite(store, numbers[-1], poorer)
    found = detected(call, store, "loss", 0)
    assert found["held"] == [[numbers[-1], numbers[-1]]]
    assert found["found"].startswith("7 EUR lost: in states")


def test_an_alarm_lists_the_calls_that_it_is_made_of(tmp_path: Path, call: Call) -> None:
    """What was spent twice since the first observation, and what is in no state."""
    filled(tmp_path / "seen", "returns", 1).close()
    store = ObservationReader(tmp_path / "seen")
    found = detected(call, tmp_path / "seen", "loss", 1)
    head, *lines = found["found"].splitlines()
    listed: Counter[str] = Counter()
    for line in lines:
        amount, where = re.findall(r"^(-?\d+) EUR (spent twice|in no state): ", line)[0]
        listed[where] += int(amount)
    first, newest = (
        sum(amounts["EUR"] for amounts in store.manifest(number).double_spent.values())
        for number in (found["baselines"][0]["baseline"], found["held"][-1][1])
    )
    assert " EUR too much: " in head
    assert listed["spent twice"] == newest - first > 0
    assert listed["in no state"] > 0
    [call_found] = [line for line in lines if "B-00000001#67" in line]
    assert call_found == (
        "2 EUR spent twice: call B-00000001#67, to A, was accepted by no instance; its request is "
        "in transit or lost; its amounts were given back"
    )


def test_sql_is_evaluated_in_exact_observations(bank: Path, call: Call) -> None:
    """On the tables of an observation, and on its amounts."""
    total = "(select total from amounts) = (select sum(number) from states where field='balance')"
    count = len(ObservationReader(bank).numbers())
    held = detected(call, bank, f"select {total} + (select outside_states + held from amounts)", 0)
    assert held["observation_count"] == count
    text = call("detect", bank, "select count(*) = 0 from instances").output
    assert f"holds in none of {count} observations" in text


def test_sql_is_evaluated_where_the_tables_that_it_reads_are_complete(
    tmp_path: Path, call: Call
) -> None:
    """In a partial observation the answer says so; all reasons say why one was not evaluated."""
    keeps, torn = (
        "a-1: a task keeps the answer of /b",
        "a-1: /b runs in a thread, so the state may be torn",
    )
    partial = msgspec.structs.replace(crowd(2, 2), partial=(keeps, torn))
    store = stored(
        tmp_path / "seen", partial, msgspec.structs.replace(deadlocked(2), since=Baseline(2))
    )
    calls = "select count(*) = 2 from calls"
    found = detected(call, store, calls, 0)
    assert found["found"] == (
        f"{calls} is true (observation 1 is partial, and calls, which the query reads, is complete)"
    )
    assert (found["observation"], found["observation_count"]) == (1, 1)
    fate = "it is unknown whether some calls were accepted"
    silent = "cards.example:443 has never answered with a header"
    assert found["not_evaluated"] == [
        {"reason": reason, "observations": [[2, 2]]} for reason in (silent, fate)
    ]
    assert f"not evaluated: {silent} (in 2)" in call("detect", store, calls).stdout
    assert "reads no table" in detected(call, store, "select true", 0)["found"]
    result = call("detect", store, "select total = 200 from amounts")
    assert result.exit_code == 3
    assert "could not be evaluated in any observation" in result.stdout
    for reason in (f"{keeps} (in 1)", f"{torn} (in 1)", f"{silent} (in 2)", f"{fate} (in 2)"):
        assert reason in result.stdout


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        (
            "select 1 from calls; select true",
            "cannot be evaluated: Invalid Input Error: Expected a single",
        ),
        ("select nothing from", "cannot be evaluated: Parser Error"),
        ("select nothing from calls", "cannot be evaluated in observation 1: Binder Error"),
    ],
)
def test_sql_that_is_not_one_query_is_refused(bank: Path, call: Call, sql: str, error: str) -> None:
    """With the error of DuckDB."""
    result = call("detect", bank, sql)
    assert (result.exit_code, error in " ".join(result.stderr.split())) == (2, True), result.stderr


def test_a_function_is_given_an_observation(
    bank: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges in which it returns True are named."""
    numbers = ObservationReader(bank).numbers()
    text = f"def late(observation):\n    return observation.number not in {numbers[1:-1]}\n"
    (tmp_path / "observed_function.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = detected(call, bank, "observed_function:late", 0)
    assert found["held"] == [[numbers[0], numbers[0]], [numbers[-1], numbers[-1]]]


def test_calls_that_timed_out_stay_listed(seen: Path, call: Call) -> None:
    """When their observations are removed. Open ones are those of the newest observation."""
    every = observed(KIND, SEED)[1].timed_out
    document = json.loads(call("calls", seen, "--timed-out", "--json").stdout)
    assert {one["call"] for one in document["calls"]} == set(map(str, every))
    counts = Counter(one["was_accepted"] for one in document["calls"])
    assert counts == Counter(one.was_accepted for one in every.values())
    assert counts.keys() == {True, None}
    assert {one["status"] for one in document["calls"]} == {200, None}
    with contextlib.closing(ObservationWriter.open(seen, keep_count=1)) as store:
        store.remove_old()
        newest = store.load(store.newest()).observation
    opened = [str(one.call) for one in newest.calls if one.record.is_awaited]
    after = json.loads(call("calls", seen, "--json").stdout)
    assert [one for one in after["calls"] if not one["is_awaited"]] == document["calls"]
    assert sorted(one["call"] for one in after["calls"] if one["is_awaited"]) == sorted(opened)


def test_calls_since_some_time_are_listed(tmp_path: Path, call: Call) -> None:
    """The newest first; one whose time is unknown is among them."""
    now = time.time()
    listed = {
        CallId("shop-0000000a", number): TimedOutCall(
            *(1, "bank:80", f"POST /{name}", began_at, place, by, status)
        )
        for number, name, began_at, place, by, status in (
            (1, "old", now - 8000, CallPlace.ANSWERED, ("bank-0000000b",), 200),
            (2, "paid", now - 3600, CallPlace.ANSWERED, ("bank-0000000b",), 409),
            (3, "lost", now - 60, CallPlace.REQUESTED, (), None),
            (4, "timeless", 0.0, CallPlace.UNKNOWN, (), None),
        )
    }
    with contextlib.closing(ObservationWriter.open(tmp_path)) as store:
        store.store_ledger(CallLedger(timed_out=listed, timed_out_count=7))
    result = call("calls", tmp_path, "--timed-out", "--since", "2h")
    head, _, *rows = (re.split(r"  +", line.strip()) for line in result.stdout.splitlines()[:5])
    assert head == "call caller callee name sent status accepted outcome".split()
    lost, paid, timeless = rows
    assert lost[:4] == ["shop-0000000a#3", "shop-0000000a", "bank:80", "POST /lost"]
    assert lost[5:] == ["no", "was accepted by no instance; its request is in transit or lost"]
    assert paid[2:4] + paid[5:7] == ["bank-0000000b", "POST /paid", "409", "yes"]
    assert timeless[4] == "unknown"
    assert "3 calls; accepted: yes of 1, no of 1, unknown of 1" in result.stdout
    assert "3 older calls whose callers did not wait: not listed any more" in result.stdout
    assert call("calls", tmp_path, "--since", "1").exit_code == 2


def test_the_predicates_of_the_page_are_evaluated(
    bank: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its table has the columns of each table for queries."""
    page = Path(__file__).parents[2].joinpath("docs/detection.md").read_text()
    part = page.partition("## Observations of services")[2]
    [program] = re.findall(r"```python\n# overdrawn.py\n(.*?)```", part, re.DOTALL)
    (tmp_path / "overdrawn.py").write_text(program)
    (tmp_path / "seen").symlink_to(bank)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ stillframe (.*)$", part, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        result = call(*shlex.split(command))
        assert (result.exit_code, "in none of 5 observations" in result.stdout) == (1, True)
    store = ObservationReader(bank)
    listed = {
        name: re.findall(r"`(\w+)`", columns)
        for name, columns in re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", part, re.MULTILINE)
        if name in TABLES
    }
    for name, table in store.tables(store.manifest(store.newest()), TABLES).items():
        columns = table.column_names if name == "amounts" else table.column_names[1:]
        assert listed.pop(name) == columns
    assert listed == {}


@pytest.mark.parametrize(
    ("predicate", "error"),
    [
        ("termination", "termination cannot be detected in services"),
        ("nothing", "there is no predicate 'nothing'"),
    ],
)
def test_what_cannot_be_detected_is_refused(
    bank: Path, call: Call, predicate: str, error: str
) -> None:
    """With the reason."""
    result = call("detect", bank, predicate)
    assert (result.exit_code, error in result.stderr) == (2, True), result.stderr


def test_amounts_are_not_judged_in_observations_that_are_not_exact(
    tmp_path: Path, call: Call
) -> None:
    """A deadlock is, since calls and locks prove it."""
    filled(tmp_path / "seen", "outside", 13).close()
    result = call("detect", tmp_path / "seen", "loss")
    assert (result.exit_code, "there are no two exact ones" in result.stdout) == (3, True)
    assert "not evaluated: " in result.stdout
    assert detected(call, tmp_path / "seen", "deadlock", 1)["observation_count"] == 5


def test_show_says_who_waits_and_what_is_known(original: Path, call: Call) -> None:
    """States for each service, open calls, unresolved ones, and amounts."""
    result = call("show", original, RICH)
    assert result.exit_code == 0
    for text in (
        "instances: A",
        "open calls",
        "answer in transit by B-0000000",
        "and answered; the answer did not arrive",
        "has left without a goodbye: it is unknown what it did",
        "totals are comparable since observation",
        "in unresolved calls",
    ):
        assert text in result.stdout
    assert "this is no snapshot and cannot be restored" in result.stdout
    document = json.loads(call("show", original, RICH, "--json").stdout)
    assert {one["kind"] for one in document["unresolved"]} == {
        "not awaited",
        "late",
        "duplicate",
        "orphan",
    }
    assert document["instances"][0]["state"]["owner"] == "Ada"


def test_show_shows_bodies_and_locks(ring: Path, call: Call) -> None:
    """Of open and unresolved calls, and what the tasks that hold a lock, or wait for it, serve."""
    shown = call("show", ring, 1).stdout
    open_calls, _, rest = shown.partition("unresolved calls")
    assert open_calls.count('order: "A7"') == 8
    unresolved, _, locks = rest.partition("locks")
    assert unresolved.count('order: "A7"') == 1
    holder, waiting = "GET /buy (bank-0000000d#1)", "POST /shop (bank-0000000c#4)"
    [row] = [line for line in locks.splitlines() if line.startswith("ledger")]
    assert re.split(r"  +", row.strip()) == ["ledger", "shop-0000000a", holder, waiting]
    document = json.loads(call("show", ring, 1, "--json").stdout)
    held = {one["instance"]: one["locks"] for one in document["instances"] if one["locks"]}
    lock = {"lock": "ledger", "holders": [holder], "waiting": [waiting]}
    assert held == {"shop-0000000a": [lock]}
    kinds = {one["kind"]: one["fields"] for one in document["unresolved"]}
    assert kinds == {"not awaited": {"order": '"A7"'}, "orphan": {}}


def test_show_shows_the_newest_by_default(original: Path, call: Call) -> None:
    """As of snapshots."""
    assert json.loads(call("show", original, "--json").stdout)["number"] == 6


def test_the_columns_of_amounts_add_up() -> None:
    """In every observation: nothing outside of the states is in no column."""
    found = 0
    for kind, seed in ((KIND, SEED), ("broken streams", 2), ("losses", 3)):
        for observation in observed(kind, seed)[0]:
            for row in amounts_of(observation):
                parts = row["in_open_calls"] + row["in_unresolved_calls"] + row["lost"]
                assert row["outside_states"] == parts - row["doubled"]
                found += row["outside_states"]
    assert found > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", RICH, "--live"), "--live applies to snapshots"),
        (("show", RICH, "--books"), "--books applies to snapshots"),
        (("show", 99), "there is no observation 99"),
        (("show", "P1-17"), "'P1-17' is not the number of an observation"),
        (("diff", 1, 2), "there is no observation 2"),
    ],
)
def test_what_is_not_there_is_refused(
    arguments: tuple[object, ...], error: str, original: Path, call: Call
) -> None:
    """With what there is."""
    result = call(arguments[0], original, *arguments[1:])
    assert (result.exit_code, error in result.stderr) == (2, True)


def test_verify_reads_all_or_one(seen: Path, call: Call) -> None:
    """Exit 1 if one is wrong, which is named."""
    assert "PASS: 5 observations" in call("verify", seen).stdout
    assert json.loads(call("verify", seen, "--json").stdout)["observation_count"] == 5
    assert f"PASS: observation {RICH} is consistent" in call("verify", seen, RICH).stdout
    assert json.loads(call("verify", seen, RICH, "--json").stdout)["observation"] == RICH
    rewrite(seen, RICH, is_exact=True)
    result = call("verify", seen, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"] == "NotConsistent"
    assert "is_exact of manifest.json differs" in result.stdout


def test_diff_says_what_changed(seen: Path, call: Call) -> None:
    """Instances, fields and calls; exit 1 if anything did."""
    result = call("diff", seen, RICH, 4)
    assert result.exit_code == 1
    assert "differ in 1 field of instances and" in result.stdout
    document = json.loads(call("diff", seen, RICH, 4, "--json").stdout)
    [field] = document["fields"]
    assert (field["field"], field["before"] != field["after"]) == ("balance", True)
    assert None in {one["after"] for one in document["calls"]}
    result = call("diff", seen, RICH, RICH)
    assert (result.exit_code, "show the same states" in result.stdout) == (0, True)


def test_diff_names_instances_that_came_or_left() -> None:
    """A later one may have others."""
    observation = observed(KIND, SEED)[0][0]
    name, *rest = observation.fragments
    fewer = msgspec.structs.replace(
        observation, fragments={one: observation.fragments[one] for one in rest}
    )
    assert difference(observation, fewer)["left"] == [name]
    assert difference(fewer, observation)["joined"] == [name]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (math.nan, -math.nan, True),
        ({"a": [math.nan], "b": 1}, {"b": 1, "a": [math.nan]}, True),
        (1, True, False),
        (0.0, -0.0, False),
        ({1: 2}, {"1": 2}, False),
        ([1, 2], [2, 1], False),
        ({math.nan: 1, float("nan"): 2}, {math.nan: 2}, False),
        ({math.nan: 1, float("nan"): 2}, {math.nan: 2, float("nan"): 2}, False),
        ({math.nan: 1, float("nan"): 2}, {math.nan: 1, float("nan"): 2}, True),
    ],
)
def test_a_value_is_compared_with_its_types(one: Any, other: Any, is_same: bool) -> None:
    """As recorded; only the order of keys does not count."""
    observation = observed(KIND, SEED)[0][0]
    name, fragment = next(iter(observation.fragments.items()))

    def holding(value: Any) -> Any:
        state = msgspec.structs.replace(
            state_of(fragment), encoded=msgspec.msgpack.encode({"value": value})
        )
        changed = {name: msgspec.structs.replace(fragment, state=state)}
        return msgspec.structs.replace(observation, fragments=changed)

    assert difference(holding(one), holding(other))["is_equal"] is is_same


@pytest.mark.parametrize(
    "arguments",
    [
        ("restore", "SEEN"),
        ("resume", "SEEN"),
        ("snapshot", "SEEN"),
        ("savepoint", "SEEN", "name"),
        ("delete", "SEEN", "P1-17"),
        ("events", "SEEN"),
        ("store", "diff", "SEEN", "1", "3"),
        ("store", "audit", "SEEN", "--states", "sum(balance)"),
        ("store", "detect", "SEEN", "deadlock"),
        ("store", "compact", "SEEN", "--out", "elsewhere"),
        ("store", "follow", "SEEN", "--checkpoint", "elsewhere"),
        ("pipeline", "list", "SEEN"),
        ("run", "stillframe.examples.bank:bank", "--store", "SEEN"),
    ],
)
def test_commands_on_snapshots_refuse_observations(
    arguments: tuple[str, ...], original: Path, call: Call
) -> None:
    """Each with the same sentence, which says what can be done instead."""
    result = call(*(original if word == "SEEN" else word for word in arguments))
    assert result.exit_code == 2
    assert "which can be looked at and not restored" in result.stderr
    assert f"stillframe show {original}" in result.stderr


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an observation that has a deadlock, and a newer one."""
    return stored(tmp_path_factory.mktemp("ring") / "seen", deadlocked(), deadlocked(2))


def test_view_makes_a_page_of_an_observation(ring: Path, tmp_path: Path, call: Call) -> None:
    """What ``show --json`` prints is in it; without a number it is the newest."""
    result = call("view", ring, "1", "--out", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "a.html: observation 1 of 4 instances, 8 open calls, partial, " in result.stdout
    document = document_in(tmp_path / "a.html")
    shown = json.loads(call("show", ring, "1", "--json").stdout)
    assert document["kind"] == "observation"
    places = {one["call"]: one["place"] for one in document["calls"]}
    assert places == {one["call"]: one["place"] for one in shown["calls"]}
    assert [(one["call"], one["known"]) for one in document["unresolved"]] == [
        (one["call"], one["known"]) for one in shown["unresolved"]
    ]
    assert call("view", ring).exit_code == 0
    assert document_in(ring.with_name("seen-2.html"))["number"] == 2


def test_view_makes_a_picture_that_says_why_it_is_partial(
    ring: Path, tmp_path: Path, call: Call
) -> None:
    """Above the diagram, with the deadlock and its earliest time-out."""
    assert call("view", ring, "--out", tmp_path / "a.svg").exit_code == 0
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "partial: cards.example:443 has never answered with a header" in picture
    assert "waits for the lock 'ledger', which bank-0000000d#1 holds" in picture
    assert "its first known time-out is at 2023-11-14 22:13:27.000 UTC" in picture


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--snapshot", "1"), "--snapshot: "),
        (("--compare", "1", "--steps"), "--compare, --steps: "),
        (("--event-log", "log", "--cut", "A=1", "--first", "2"), "--event-log, --cut, --first: "),
        (("--out", "a.txt"), "use a name that ends in .html, .svg or .png"),
        (("--out", "SEEN/a.html"), "is inside"),
        (("3",), "there is no observation 3"),
        (("P1-3",), "is not the number of an observation"),
    ],
)
def test_view_refuses_what_is_not_for_observations(
    ring: Path, call: Call, arguments: tuple[str, ...], expected: str
) -> None:
    """With one error, and nothing is written."""
    result = call("view", ring, *(word.replace("SEEN", str(ring)) for word in arguments))
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_view_takes_a_number_for_observations_only(call: Call) -> None:
    """A snapshot is selected by an option."""
    result = call("view", "lecture", "17")
    assert (result.exit_code, "select a snapshot with --snapshot" in result.stderr) == (2, True)


def test_a_second_reader_sees_new_observations(seen: Path) -> None:
    """While a collector stores them."""
    reader = ObservationReader(seen)
    observations, ledger = observed(KIND, SEED)
    writer = ObservationWriter.open(seen)
    writer.publish(msgspec.structs.replace(observations[0], number=8), TIMES, ledger)
    assert reader.newest() == 8
    writer.close()
