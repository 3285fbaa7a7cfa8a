"""What of a checkpoint is pinned, and what in one shows that somebody went back by hand."""

import json
import zipfile
from pathlib import Path

import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.pipeline import checkpoint
from stillframe.storage.files import copy_all


def make_checkpoint(root: Path, *, planned: int, done: int) -> Path:
    """Make what looks like the checkpoint of a query with state in RocksDB."""
    store = root / "state" / "0" / "0"
    for directory in (root / "offsets", root / "commits", store / "SSTs"):
        directory.mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": "one"}))
    for batch in range(planned + 1):
        (root / "offsets" / str(batch)).write_text('v1\n{}\n{"stillframe": {"in": 1}}')
    for batch in range(done + 1):
        (root / "commits" / str(batch)).write_text("v1\n{}")
        (store / f"{batch + 1}.changelog").write_text("")
    return root


def add_full_file(store: Path, name: str, sst_file: str) -> None:
    """Add a full file of a RocksDB state store, which refers to one other file."""
    write_full_file(store / name, metadata_naming(sst_file))
    (store / "SSTs" / sst_file).write_text(sst_file)


def metadata_naming(sst_file: str) -> str:
    """Return the metadata of a full file that refers to one other file."""
    files = [{"localFileName": "9.sst", "dfsSstFileName": sst_file, "sizeBytes": 1}]
    return "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}, separators=(",", ":"))


def write_full_file(
    path: Path, content: str, *, name: str = "metadata", method: int = zipfile.ZIP_DEFLATED
) -> None:
    """Write an archive with one file in it."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, content)


def sst_named_after(name: str) -> str:
    """Return a name as Spark makes them, which tells of the full file that refers to it."""
    return f"000008-{name.replace('.', '-')}.sst"


@pytest.mark.parametrize("names", [("3.zip", "5.zip", "9.zip"), ("3_a.zip", "5_b.zip", "9_c.zip")])
def test_only_what_the_pinned_version_refers_to_is_linked(
    tmp_path: Path, names: tuple[str, str, str]
) -> None:
    """A file of RocksDB that a later version will name may still be growing: it is left out."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=8, done=8)
    store = path / "state" / "0" / "0"
    for name in names:
        add_full_file(store, name, sst_named_after(name))
    (store / "SSTs" / "growing.sst").write_text("half of i")
    checkpoint.pin(path, 6, tmp_path / "pinned")
    pinned = tmp_path / "pinned" / "state" / "0" / "0"
    found = {file.name for file in (pinned / "SSTs").iterdir()}
    assert sst_named_after(names[1]) in found
    assert not found & {"growing.sst", sst_named_after(names[2])}
    assert (pinned / "7.changelog").exists()
    assert not (pinned / "8.changelog").exists()


def test_a_checkpoint_from_the_start_of_a_query_has_no_state(tmp_path: Path) -> None:
    """Spark describes the state of the first micro-batch before it commits that, and starts no
    query that finds a description and no plan."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=0, done=-1)
    (path / "sources" / "0").mkdir(parents=True)
    (path / "sources" / "0" / "0").write_text("v1\n{}")
    described = path / "state" / "0" / "_metadata" / "metadata"
    described.parent.mkdir()
    described.write_text("v2\n{}")
    checkpoint.pin(path, checkpoint.START, tmp_path / "pinned")
    assert files_in(tmp_path / "pinned") == {"metadata", "sources/0/0"}
    # Snapshots of older versions have it.
    described.rename(tmp_path / "metadata")
    (tmp_path / "pinned" / "state" / "0").mkdir(parents=True)
    (tmp_path / "metadata").rename(tmp_path / "pinned" / "state" / "0" / "metadata")
    checkpoint.export(tmp_path / "pinned", tmp_path / "new", checkpoint.START, {})
    assert files_in(tmp_path / "new") == {"metadata", "sources/0/0"}


def test_a_query_that_has_only_an_id_is_restored_to_its_start(tmp_path: Path) -> None:
    """The snapshot was taken between two of the files that Spark writes when a query starts."""
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "metadata").write_text(json.dumps({"id": "one"}))
    checkpoint.pin(path, checkpoint.START, tmp_path / "pinned")
    checkpoint.export(tmp_path / "pinned", tmp_path / "new", checkpoint.START, {})
    assert files_in(tmp_path / "new") == {"metadata"}


def files_in(directory: Path) -> set[str]:
    """Return the names of all files below a directory."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix() for path in found}


@pytest.mark.parametrize("position", ["7.5", '"7"', "null", "[]", "-1", "9" * 19, "9" * 300])
def test_an_offset_of_a_channel_that_is_no_whole_number_is_damage(
    tmp_path: Path, position: str
) -> None:
    """Rounded or left out, the query would seem to have read other records than it did."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=0, done=0)
    plan = path / "offsets" / "0"
    plan.write_text(f'v1\n{{}}\n{{"topic": {{"0": 5}}}}\n{{"stillframe": {{"in": {position}}}}}')
    with pytest.raises(Damaged, match="is not an offset of a channel: Expected `int`"):
        checkpoint.last_committed(path)
    plan.write_text('v1\n{}\n{"topic": {"0": 5}}\n-\n{"stillframe": {"in": 7}}')
    assert checkpoint.last_committed(path) == checkpoint.Committed(0, {"in": 7})


def test_a_plan_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """The disk changed it, or another program wrote it."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=0, done=0)
    (path / "offsets" / "0").write_bytes(b"v1\n{}\n\xff")
    with pytest.raises(Damaged, match="offsets/0 is not an offset file of Spark"):
        checkpoint.last_committed(path)


def test_what_spark_is_still_writing_is_not_linked(tmp_path: Path) -> None:
    """Neither the file nor its checksum: both change, or go, after the snapshot was published."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=8, done=8)
    (path / "sources" / "0").mkdir(parents=True)
    for directory in ("state/0/0", "state/0/0/_metadata", "sources/0"):
        (path / directory).mkdir(exist_ok=True)
        for name in (".10.delta.5f2e.TID363.tmp", ".9.snapshot.5f2e.tmp", ".schema.5f2e.tmp"):
            (path / directory / name).write_text("half of i")
            (path / directory / f".{name}.crc").write_text("half of i")
            (path / directory / name.removesuffix(".tmp")).write_text("all of it")
    checkpoint.pin(path, 8, tmp_path / "pinned")
    names = [file.name for file in (tmp_path / "pinned").rglob("*") if file.is_file()]
    assert "9.changelog" in names
    assert ".schema.5f2e" in names
    assert [name for name in names if ".tmp" in name] == []


@pytest.mark.parametrize(
    "name",
    ["../../../../secret.key", "../../../../secret.sst", "/etc/passwd", "", ".sst", "x/y.sst"],
)
def test_a_full_file_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    """What it refers to is linked from beside it, or not at all: the file is named."""
    for secret in ("secret.key", "secret.sst"):
        (tmp_path / secret).write_text("precious")
    path = make_checkpoint(tmp_path / "checkpoint", planned=4, done=4)
    store = path / "state" / "0" / "0"
    write_full_file(store / "3.zip", metadata_naming(name))
    with pytest.raises(Damaged, match=r"3\.zip was not written by Spark: it refers to"):
        checkpoint.pin(path, 3, tmp_path / "pending" / "pinned")
    linked = [file.name for file in (tmp_path / "pending").rglob("*")]
    assert not {"secret.key", "secret.sst", "passwd"} & set(linked)


def test_a_full_file_that_unpacks_to_very_much_is_damaged(tmp_path: Path) -> None:
    """No more than its metadata may have is ever unpacked."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=4, done=4)
    file = path / "state" / "0" / "0" / "3.zip"
    write_full_file(file, " " * (16 * 2**20 + 1))
    with pytest.raises(Damaged, match=r"3\.zip .* its metadata has more than 16777216 bytes"):
        checkpoint.pin(path, 3, tmp_path / "pinned")


def damage(checkpoint_path: Path, target: Path) -> str:
    """Pin the first micro-batch, and return what was damaged; nothing if nothing was."""
    try:
        checkpoint.pin(checkpoint_path, 0, target)
    except Damaged as error:
        return str(error)
    return ""


def test_a_full_file_that_cannot_be_unpacked_is_damaged(tmp_path: Path) -> None:
    """Cut short anywhere, with a changed byte that matters, without metadata, or strangely packed:
    the file is named, whatever is wrong with it."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=0, done=0)
    file = path / "state" / "0" / "0" / "1.zip"
    write_full_file(file, metadata_naming("000008-a.sst"))
    (file.parent / "SSTs" / "000008-a.sst").touch()
    whole = file.read_bytes()
    assert damage(path, tmp_path / "whole") == ""
    found = []
    for length in range(0, len(whole), 29):
        file.write_bytes(whole[:length])
        found.append(damage(path, tmp_path / f"cut-{length}"))
    for name, method in (("other", zipfile.ZIP_DEFLATED), ("metadata", zipfile.ZIP_BZIP2)):
        write_full_file(file, metadata_naming("000008-a.sst"), name=name, method=method)
        found.append(damage(path, tmp_path / f"strange-{name}"))
    assert all("1.zip was not written by Spark" in one for one in found)
    for place in range(0, len(whole), 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        found.append(damage(path, tmp_path / f"changed-{place}"))
    assert all("1.zip was not written by Spark" in one for one in found if one)
    # Dates, and what else says nothing of the content, do not matter.
    assert found.count("") < len(found) // 3


@pytest.mark.parametrize(("planned", "done"), [(0, -1), (0, 0), (4, 3), (4, 4)])
def test_what_spark_leaves_is_taken(tmp_path: Path, planned: int, done: int) -> None:
    """The last micro-batch may be planned and not committed."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=planned, done=done)
    assert checkpoint.contradiction(path) is None


def test_nothing_is_no_contradiction(tmp_path: Path) -> None:
    """A query that never ran has no checkpoint."""
    assert checkpoint.contradiction(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("gone", "what"),
    [
        (["offsets/4", "commits/4", "offsets/3", "commits/3"], "state of micro-batch 4"),
        (["commits/4", "commits/3"], "micro-batch 4 is the last one planned, and 2 the last"),
        (["offsets/4", "offsets/3"], "micro-batch 2 is the last one planned, and 4 the last"),
        (["metadata"], "its metadata is missing"),
        ([f"offsets/{batch}" for batch in range(5)], "its plans of micro-batches are missing"),
    ],
)
def test_going_back_by_hand_shows(tmp_path: Path, gone: list[str], what: str) -> None:
    """Whatever is deleted, something else tells of it."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=4, done=4)
    for name in gone:
        (path / name).unlink()
    assert what in str(checkpoint.contradiction(path))


def test_an_export_is_another_query_at_another_place(tmp_path: Path) -> None:
    """A new id, so that no sink takes a replay for done; what was pinned stays as it was."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=4, done=4)
    pinned, exported = tmp_path / "pinned", tmp_path / "exported"
    checkpoint.pin(path, 3, pinned)
    before = {file: file.read_bytes() for file in pinned.rglob("*") if file.is_file()}
    checkpoint.export(pinned, exported, 3, {"in": 7})
    assert (exported / "metadata").read_bytes() != (path / "metadata").read_bytes()
    assert checkpoint.last_committed(exported) == checkpoint.Committed(3, {"in": 7})
    assert checkpoint.last_committed(pinned) == checkpoint.Committed(3, {"in": 1})
    assert checkpoint.contradiction(exported) is None
    assert {file: file.read_bytes() for file in pinned.rglob("*") if file.is_file()} == before


def test_offsets_have_one_text() -> None:
    """Spark compares offsets as text: the order in which channels are named does not matter."""
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert checkpoint.encode_offset(one) == checkpoint.encode_offset(other)
    assert json.loads(checkpoint.encode_offset(one)) == checkpoint.offset_of(other)


def test_what_is_no_number_of_a_micro_batch_is_passed_over(tmp_path: Path) -> None:
    """A superscript two is a digit to Python, and no number."""
    path = make_checkpoint(tmp_path / "checkpoint", planned=3, done=2)
    (path / "commits" / "\N{SUPERSCRIPT TWO}").touch()
    (path / "offsets" / "\N{SUPERSCRIPT TWO}").touch()
    assert checkpoint.last_committed(path) == checkpoint.Committed(2, {"in": 1})
    assert checkpoint.planned_batch(path) == 3


def purge(root: Path, before: int) -> None:
    """Delete the plans and commits before a micro-batch, as Spark does."""
    for directory in (root / "offsets", root / "commits"):
        for file in directory.iterdir():
            if int(file.name) < before:
                file.unlink()


def add_topic(root: Path, *lines: str) -> None:
    """Let the query read topics of Kafka, from these first offsets on."""
    for number, line in enumerate(lines):
        source = root / "sources" / str(number)
        source.mkdir(parents=True)
        (source / "0").write_text(f"\0v1\n{line}")


@pytest.mark.parametrize(
    ("planned", "done", "before", "retained"),
    [
        (-1, -1, 0, [checkpoint.START]),
        (0, -1, 0, [checkpoint.START]),
        (3, 2, 0, [checkpoint.START, 0, 1, 2]),
        (3, 3, 0, [checkpoint.START, 0, 1, 2, 3]),
        (9, 8, 6, [7, 8]),
    ],
)
def test_micro_batches_are_retained_with_the_plan_before(
    tmp_path: Path, planned: int, done: int, before: int, retained: list[int]
) -> None:
    """Spark continues after a micro-batch only if it has the plan of the previous one."""
    path = make_checkpoint(tmp_path, planned=planned, done=done)
    purge(path, before)
    assert checkpoint.retained_batches(path) == retained
    assert all(checkpoint.is_retained(path, batch) for batch in retained)
    if before:
        assert not checkpoint.is_retained(path, before)


def test_positions_on_topics_are_read_from_a_plan_and_from_the_start(tmp_path: Path) -> None:
    """Of a topic that two sources read it is the later one, or the earlier one if that is asked
    for; offsets of other sources are not read."""
    path = make_checkpoint(tmp_path, planned=0, done=0)
    plan = ['{"a":{"0":5,"1":2}}', '{"a":{"0":3,"1":9}}', '{"stillframe": {"in": 1}}', "17", "-"]
    (path / "offsets" / "0").write_text("\n".join(["v1", "{}", *plan]))
    add_topic(path, '{"a":{"0":1,"1":0}}', '{"b":{"0":4}}')
    assert checkpoint.topic_positions(path, 0) == {"a": {0: 5, 1: 9}}
    assert checkpoint.topic_positions(path, 0, is_earlier=True) == {"a": {0: 3, 1: 2}}
    first = {"a": {0: 1, 1: 0}, "b": {0: 4}}
    assert checkpoint.topic_positions(path, checkpoint.START) == first


def test_a_query_that_was_adopted_continues_from_a_copy(tmp_path: Path) -> None:
    """The copy has the last micro-batch and the next plan, and no way back to the start; the old
    checkpoint stays as it is."""
    old = make_checkpoint(tmp_path / "old", planned=1, done=0)
    add_topic(old, '{"a":{"0":1}}')
    before = sorted(path.relative_to(old) for path in old.rglob("*"))
    new = tmp_path / "new"
    (new / "offsets").mkdir(parents=True)
    (new / "offsets" / "7").write_text("left by an attempt that was cut short")
    checkpoint.adopt(old, new)
    assert checkpoint.has_started(new)
    assert checkpoint.planned_batch(new) == 1
    assert checkpoint.retained_batches(new) == [0]
    assert checkpoint.oldest_adopted(new) == 0
    assert checkpoint.oldest_adopted(old) == checkpoint.START
    assert sorted(path.relative_to(old) for path in old.rglob("*")) == before
    checkpoint.pin(new, 0, tmp_path / "pinned")
    checkpoint.export(tmp_path / "pinned", tmp_path / "again", 0, {"in": 1})
    assert checkpoint.retained_batches(tmp_path / "again") == [0]
    assert checkpoint.oldest_adopted(tmp_path / "again") == 0


def test_a_commit_is_copied_after_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a snapshot that looks meanwhile would take a part of the state for the whole. The
    metadata come last: with them a query has started."""
    old = make_checkpoint(tmp_path / "old", planned=2, done=1)
    kinds: list[str] = []

    def noting(pairs: list[tuple[Path, Path]]) -> None:
        kinds.extend(target.relative_to(tmp_path / "new").parts[0] for _, target in pairs)
        copy_all(pairs)

    monkeypatch.setattr(checkpoint, "copy_all", noting)
    checkpoint.adopt(old, tmp_path / "new")
    order = list(dict.fromkeys(kinds))
    assert order[-2:] == ["commits", "metadata"]
    assert {"offsets", "state"} <= {*order}


def test_only_a_whole_checkpoint_is_adopted(tmp_path: Path) -> None:
    """A missing checkpoint, and one that was reset by hand, are refused."""
    with pytest.raises(UsageError, match="is not the checkpoint of a query that has run"):
        checkpoint.adopt(tmp_path / "none", tmp_path / "new")
    old = make_checkpoint(tmp_path / "old", planned=4, done=2)
    with pytest.raises(Damaged, match="was edited"):
        checkpoint.adopt(old, tmp_path / "new")
    assert not checkpoint.has_started(tmp_path / "new")


def test_the_start_of_a_query_is_pinned_and_exported(tmp_path: Path) -> None:
    """The query starts again at the same first offsets, with a new id and no micro-batch."""
    path = make_checkpoint(tmp_path / "one", planned=3, done=2)
    add_topic(path, '{"a":{"0":7}}')
    checkpoint.pin(path, checkpoint.START, tmp_path / "pinned")
    checkpoint.export(tmp_path / "pinned", tmp_path / "new", checkpoint.START, {})
    new = tmp_path / "new"
    assert checkpoint.topic_positions(new, checkpoint.START) == {"a": {0: 7}}
    assert checkpoint.planned_batch(new) is None
    assert checkpoint.last_committed(new) is None
    assert not list(new.rglob("*.changelog"))
    assert json.loads((new / "metadata").read_text())["id"] != "one"
    assert checkpoint.contradiction(new) is None


def test_when_a_micro_batch_was_planned_is_known_from_its_plan(tmp_path: Path) -> None:
    """Its time is in seconds; one that was not planned has none."""
    path = make_checkpoint(tmp_path, planned=0, done=0)
    (path / "offsets" / "0").write_text('v1\n{"batchTimestampMs":1500,"batchWatermarkMs":0}\n{}')
    assert checkpoint.planned_at(path, 0) == 1.5
    assert checkpoint.planned_at(path, 1) is None
    (path / "offsets" / "1").write_text("v1\n{}\n{}")
    with pytest.raises(Damaged, match="no plan of micro-batch 1"):
        checkpoint.planned_at(path, 1)


def test_a_run_continues_with_all_that_the_run_before_retained(tmp_path: Path) -> None:
    """So a cut can go back to before the start of the run; state of a micro-batch that was not
    committed stays behind."""
    path = make_checkpoint(tmp_path / "one", planned=8, done=7)
    purge(path, 4)
    add_topic(path, '{"a":{"0":7}}')
    (path / "state" / "0" / "0" / "9.changelog").write_text("of micro-batch 8")
    (path / "commits" / "8.tmp").write_text("half of i")
    checkpoint.continue_in(path, tmp_path / "two", is_retained=True)
    assert checkpoint.retained_batches(tmp_path / "two") == checkpoint.retained_batches(path)
    assert checkpoint.planned_batch(tmp_path / "two") == 8
    names = {file.name for file in (tmp_path / "two").rglob("*.changelog")}
    assert names == {f"{version}.changelog" for version in range(1, 9)}
    assert not list((tmp_path / "two").rglob("*.tmp"))
