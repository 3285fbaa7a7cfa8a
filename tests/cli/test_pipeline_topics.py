"""The commands of pipelines with topics of Kafka: they say what is there, and nothing more."""

import json
import re
from pathlib import Path

import pytest

from stillframe.pipeline.known_topics import KnownTopics
from stillframe.pipeline.locks import participant_lock
from tests.cli.conftest import Call
from tests.pipeline.topics_shop import Shop


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop that has run, and has stopped, without a snapshot."""
    made = Shop(tmp_path / "shop.pipeline", monkeypatch)
    made.run()
    return made


def test_a_snapshot_is_retained_by_default(call: Call, topics: Shop) -> None:
    """Its staleness is said, and no number of records that were in transit in topics."""
    topics.lose("dedup")
    result = call("pipeline", "snapshot", topics.path)
    assert (result.exit_code, result.stdout) == (0, "shop-1\n")
    assert re.fullmatch(
        r"snapshot shop-1: retained, epoch 1, staleness 0 ms, data age 0 ms, recorded in .*, "
        r"published after .*\n",
        result.stderr,
    )
    topics.lose("dedup")
    published = json.loads(call("pipeline", "snapshot", topics.path, "--json").stdout)["published"]
    assert (published["mode"], published["record_count"]) == ("retained", 0)
    assert published["staleness_s"] >= 59
    refused = call("pipeline", "savepoint", topics.path, "gold", "--mode", "aligned")
    assert refused.exit_code == 2
    assert "orders is a topic of Kafka: use mode retained" in refused.stderr


def test_the_list_has_the_staleness(call: Call, topics: Shop) -> None:
    """Instead of records in transit, which only Kafka could count."""
    empty = call("pipeline", "list", topics.path)
    assert f"'stillframe pipeline restore {topics.path} --newest-consistent'" in empty.stdout
    without = call("pipeline", "restore", topics.path)
    assert "take one while it runs, or restore the newest consistent point" in without.stderr
    topics.pipeline.savepoint("gold")
    result = call("pipeline", "list", topics.path)
    head, _, row, _ = result.stdout.splitlines()
    assert head.split()[-7:] == ["staleness", "data", "age", "in", "transit", "duplicates", "size"]
    assert row.split()[:4] == ["shop-1", "gold", "present", "retained"]
    assert row.split()[-7:-2] == ["0", "ms", "0", "ms", "0"]
    (listed,) = json.loads(call("pipeline", "list", topics.path, "--json").stdout)["snapshots"]
    assert (listed["staleness_s"], listed["data_age_s"]) == (0.0, 0.0)


def test_the_newest_consistent_point_is_restored_in_one_step(call: Call, topics: Shop) -> None:
    """What it is, and what is repeated, is said; the next one has nothing to repeat."""
    topics.lose("dedup")
    topics.lose("dedup")
    result = call("pipeline", "restore", topics.path, "--newest-consistent")
    assert (result.exit_code, result.stderr) == (0, "")
    found, restored, following = result.stdout.splitlines()
    assert re.fullmatch(
        r"newest consistent point: dedup continues after micro-batch 0; sums continues after "
        r"micro-batch 0, which repeats 1 committed micro-batch; the first repeated one was planned "
        r"[\d.]+ \w+ ago",
        found,
    )
    assert restored.startswith(f"epoch 2: pipeline {topics.path} was restored from snapshot shop-1")
    assert following.startswith("next, start its programs")
    again = call("pipeline", "restore", topics.path, "--newest-consistent", "--json")
    document = json.loads(again.stdout)
    assert (document["snapshot"], document["epoch"]) == ("shop-2", 3)
    assert (document["staleness_s"], document["repeated_batch_counts"]) == (
        0.0,
        {"dedup": 0, "sums": 0},
    )
    assert "repeat" not in again.stderr


def test_a_pipeline_that_never_began_continues_at_its_start(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is its newest consistent point."""
    shop = Shop(tmp_path / "new.pipeline", monkeypatch)
    result = call("pipeline", "restore", shop.path, "--newest-consistent")
    assert result.stdout.startswith(
        "newest consistent point: dedup continues at its start; sums continues at its start\n"
    )


def test_a_running_query_keeps_it_from_being_looked_for(
    call: Call, topics: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 names the query, and there is no snapshot."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.0)
    lock = participant_lock(topics.path, "dedup")
    assert lock.acquire()
    result = call("pipeline", "restore", topics.path, "--newest-consistent")
    lock.release()
    assert result.exit_code == 2
    assert "dedup is running" in result.stderr
    assert topics.pipeline.snapshots() == []


def test_records_in_flight_are_not_counted_without_end(
    call: Call, topics: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number, it is only said that there are more."""
    topics.pipeline.snapshot()
    for most, count in ((3, None), (4, 4)):
        monkeypatch.setattr("stillframe.cli.pipeline.IN_FLIGHT_MAX", most)
        result = call("pipeline", "show", topics.path, "--json")
        shown = json.loads(result.stdout)["topics"]
        assert [one["record_count"] for one in shown] == [count, count]
        more = "unique to sums: more than 3 records are in flight"
        assert (more in result.stderr) is (count is None)


def test_a_snapshot_is_not_given_as_well(call: Call, topics: Shop) -> None:
    """One of both would be ignored."""
    result = call("pipeline", "restore", topics.path, "shop-1", "--newest-consistent")
    assert result.exit_code == 2
    assert "give either a snapshot or --newest-consistent" in result.stderr


def test_the_other_commands_know_topics(call: Call, topics: Shop, tmp_path: Path) -> None:
    """No snapshot is ever pending; two pipelines cannot write one topic; what is deleted is gone,
    and what is viewed has its staleness."""
    for _ in range(3):
        assert call("pipeline", "snapshot", topics.path).exit_code == 0
    status = call("pipeline", "status", topics.path)
    assert (status.exit_code, status.stderr) == (0, "")
    assert "waits for no participant" in status.stdout
    fork = call("pipeline", "fork", topics.path, "shop-1", tmp_path / "second.pipeline")
    assert fork.exit_code == 2
    assert "such a pipeline cannot be forked" in fork.stderr
    assert call("pipeline", "delete", topics.path, "shop-2").exit_code == 0
    assert call("pipeline", "delete", topics.path, "--keep", "1").exit_code == 0
    assert [str(one.snapshot) for one in topics.pipeline.snapshots()] == ["shop-3"]
    assert call("pipeline", "show", topics.path).exit_code == 0
    assert call("pipeline", "restore", topics.path).exit_code == 0


def test_a_query_that_runs_without_stillframe_is_named(call: Call, topics: Shop) -> None:
    """What it reads was not compared. A restore to before that ends it."""
    topics.commit("sums", 2, {"shop-unique": {0: 5, 1: 5}}, is_seen=False)
    words = "query sums has committed micro-batch 2 at its checkpoint with neither start_query nor"
    found = json.loads(call("pipeline", "status", topics.path, "--json").stdout)
    assert [words in warning for warning in found["warnings"]] == [True]
    assert words in call("pipeline", "status", topics.path).stdout
    assert words in call("pipeline", "snapshot", topics.path).stderr
    topics.commit("sums", 3, {"shop-unique": {0: 6, 1: 6}})
    assert words not in call("pipeline", "status", topics.path).stdout


def test_a_topic_that_was_created_again_is_reported(call: Call, topics: Shop) -> None:
    """By all that says how the pipeline is, and by what would use its positions."""
    channels = topics.pipeline.dataflow.topics
    KnownTopics(topics.path, channels, lambda _: topics.brokers).adopt()
    topics.brokers.ids["shop-totals"] = "another id"
    words = "topic shop-totals was deleted and created again"
    (warning,) = json.loads(call("pipeline", "status", topics.path, "--json").stdout)["warnings"]
    assert words in warning
    assert words in call("pipeline", "snapshot", topics.path).stdout
    assert words in call("pipeline", "restore", topics.path, "--newest-consistent").stderr


def test_a_snapshot_is_viewed_without_a_number_of_records_in_topics(
    call: Call, topics: Shop, tmp_path: Path
) -> None:
    """The page has where the cut lies on each topic, and its staleness."""
    topics.pipeline.snapshot()
    result = call("view", topics.path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "0 records in transit in logs" in result.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"positions":"0: 6, 1: 6"' in page.replace("\\", "")
    assert '"staleness_s":0.0' in page
