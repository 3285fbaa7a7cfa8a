"""All observations of a store as DataFrames: what each of them holds, from verified bytes."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stillframe import analytics
from stillframe.errors import Damaged, UsageError
from stillframe.protocol.activities import service_of
from stillframe.storage.location import ObjectPath
from stillframe.store.layout import OBSERVATIONS
from stillframe.store.observation_tables import CALLS, amounts_of, fields_of, state_of
from stillframe.store.observations import ObservationReader, ObservationWriter
from tests.store.call_samples import BEGAN, INITIATED, SHOP, deadlocked, stored
from tests.store.observation_samples import filled, has_every_kind, observed, rewrite

pytestmark = pytest.mark.spark

KIND, SEED, OLDER = "leaves", 112, 6


def test_the_tables_hold_what_each_observation_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Instances, states, calls of each kind, and amounts as ``show`` adds them up; without the
    status where an older build has stored none."""
    assert has_every_kind(observed(KIND, SEED)[0])
    filled(tmp_path, KIND, SEED).close()
    rewrite(tmp_path, OLDER, lambda tables: tables.update({CALLS: tables[CALLS].drop(["status"])}))
    tables = analytics.observation_tables(spark, tmp_path)
    with analytics.spark_errors(tmp_path):
        rows = {name: [row.asDict() for row in table.collect()] for name, table in tables.items()}
    reader = ObservationReader(tmp_path)
    found = {number: reader.load(number).observation for number in reader.numbers()}
    assert {row["observation"]: row["is_exact"] for row in rows["observations"]} == {
        number: one.is_exact for number, one in found.items()
    }
    assert {
        (r["observation"], r["instance"]): (r["service"], r["held"]) for r in rows["instances"]
    } == {
        (number, name): (service_of(name), state_of(fragment).held)
        for number, one in found.items()
        for name, fragment in one.fragments.items()
    }
    assert len(rows["states"]) == sum(
        len(fields_of(fragment)) for one in found.values() for fragment in one.fragments.values()
    )
    assert {(r["observation"], r["call"]): (r["place"], r["amounts"]) for r in rows["calls"]} == {
        (number, str(call.call)): (call.place.value, call.amounts())
        for number, one in found.items()
        for call in one.calls
    }
    assert {(row["observation"], row["call"]): row["status"] for row in rows["calls"]} == {
        (number, str(call.call)): call.status for number, one in found.items() for call in one.calls
    }
    assert {row["status"] for row in rows["calls"]} == {None, 200}
    assert {row["kind"] for row in rows["unresolved"]} == {
        "not awaited",
        "late",
        "duplicate",
        "orphan",
    }
    amounts = sorted(rows["amounts"], key=lambda row: (row["observation"], row["unit"]))
    assert amounts == [
        {"observation": number} | row for number, one in found.items() for row in amounts_of(one)
    ]


def test_the_tables_are_the_same_in_an_object_store(
    spark: SparkSession, spark_bucket: ObjectPath
) -> None:
    """Tasks read it with what they find in their environment."""
    filled(spark_bucket / "seen", KIND, SEED).close()
    tables = analytics.observation_tables(spark, str(spark_bucket / "seen"))
    with analytics.spark_errors(spark_bucket / "seen"):
        rows = [row.asDict() for row in tables["amounts"].orderBy("observation", "unit").collect()]
    assert rows == [
        {"observation": observation.number} | row
        for observation in observed(KIND, SEED)[0]
        for row in amounts_of(observation)
    ]


def test_calls_say_how_long_they_were_open(spark: SparkSession, tmp_path: Path) -> None:
    """By the time at which the observation was initiated, which is in its own row."""
    stored(tmp_path / "seen", deadlocked())
    tables = analytics.observation_tables(spark, tmp_path / "seen")
    (row,) = tables["observations"].collect()
    assert row["initiated_at"].timestamp() == INITIATED
    assert (row["quality"], row["took_s"]) == ("partial", 0.25)
    assert row["partial"] == ["cards.example:443 has never answered with a header"]
    calls = tables["calls"].where("is_awaited")
    opened = {call["call"]: call["open_s"] for call in calls.collect()}
    assert opened[f"{SHOP}#2"] == INITIATED - BEGAN - 2
    assert len(opened) == 8


def test_a_changed_byte_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the file; a changed manifest is found before."""
    store = stored(tmp_path / "seen", deadlocked())
    path = store / OBSERVATIONS / "1" / "states.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    states = analytics.observation_tables(spark, store)["states"]
    with (
        pytest.raises(Damaged, match=r"1/states\.parquet was changed"),
        analytics.spark_errors(store),
    ):
        states.collect()
    (store / OBSERVATIONS / "1" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(Damaged, match=r"manifest\.json"):
        analytics.observation_tables(spark, store)


def test_other_directories_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """One without an observation, one with something else, and one that there is not."""
    ObservationWriter.open(tmp_path / "empty").close()
    with pytest.raises(UsageError, match="holds no observation yet"):
        analytics.observation_tables(spark, tmp_path / "empty")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="is not a store of observations"):
            analytics.observation_tables(spark, path)
