"""``stillframe view STORE``: a page or a picture of a snapshot, or a page of two compared."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.pipeline import Pipeline
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store
from tests.cli.conftest import Call, Coin, Purse
from tests.cli.pipelines import commit, sell


def document_in(page: Path) -> dict[str, Any]:
    """Return what a page of one file shows."""
    text = page.read_text(encoding="utf-8")
    (held,) = re.findall(r'<script type="application/json" id="document">(.*?)</script>', text)
    document: dict[str, Any] = json.loads(held)
    return document


def test_a_snapshot_becomes_a_page(call: Call, money: Path, tmp_path: Path) -> None:
    """What ``show --json`` prints is in it; without a name it is the newest."""
    result = call("view", money, "--snapshot", "A-1", "--out", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert re.search(r"a\.html: snapshot A-1 of 2 processes, 5 messages in transit", result.stdout)
    document = document_in(tmp_path / "a.html")
    shown = json.loads(call("show", money, "A-1", "--json").stdout)
    assert document["kind"] == "snapshot"
    states = {
        state["process"]: {field["name"]: json.loads(field["text"]) for field in state["fields"]}
        for state in document["processes"]
    }
    assert states == {each["process"]: each["state"] for each in shown["processes"]}
    counts = ("channel", "sent_count", "received_count", "message_count")
    channels = [{name: each[name] for name in counts} for each in document["channels"]]
    assert channels == [{name: each[name] for name in counts} for each in shown["channels"]]
    assert call("view", money, "--json").exit_code == 0
    assert document_in(tmp_path / "money-A-3.html")["id"] == "A-3"


def test_a_damaged_manifest_blocks_no_other_page(call: Call, money: Path, tmp_path: Path) -> None:
    """Only if it may be the newest it is not known which one that is; then it is named."""
    out = tmp_path / "a.html"
    (money / "snapshots" / "A-1" / "manifest.json").write_bytes(b"")
    result = call("view", money, "--out", out)
    assert result.exit_code == 0, result.output
    assert (document_in(out)["id"], document_in(out)["is_current"]) == ("A-3", True)
    (money / "snapshots" / "A-3" / "manifest.json").write_bytes(b"")
    result = call("view", money, "--out", out)
    assert "A-3/manifest.json" in "".join(result.stderr.split())
    assert result.exit_code != 0
    result = call("view", money, "--snapshot", "A-2", "--out", out)
    assert result.exit_code == 0, result.output
    assert (document_in(out)["id"], document_in(out)["is_current"]) == ("A-2", False)


def test_a_savepoint_stands_for_its_snapshot(call: Call, money: Path, tmp_path: Path) -> None:
    """As in every command; and the page says that there is one."""
    assert call("savepoint", money, "first", "--snapshot", "A-2").exit_code == 0
    out = tmp_path / "s.html"
    assert call("view", money, "--snapshot", "first", "--out", out).exit_code == 0
    assert (document_in(out)["id"], document_in(out)["savepoints"]) == ("A-2", ["first"])


def test_the_cut_alone_becomes_a_picture(call: Call, money: Path, tmp_path: Path) -> None:
    """As SVG; what a store does not know is said."""
    out = tmp_path / "cut.svg"
    result = call("view", money, "--snapshot", "A-1", "--out", out)
    assert result.exit_code == 0
    assert "not contain what the processes did around the cut" in " ".join(result.stderr.split())
    root = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    keys = [element.get("data-key", "") for element in root.iter()]
    assert sum(key.startswith("message A->B #") for key in keys) == 5
    assert {"step A-1 A", "step A-1 B", "cut snapshot A-1"} <= {*keys}


def test_two_snapshots_are_compared(call: Call, money: Path, tmp_path: Path) -> None:
    """What ``diff`` finds is in the page."""
    out = tmp_path / "c.html"
    result = call("view", money, "--snapshot", "A-2", "--compare", "A-1", "--out", out)
    assert result.exit_code == 0
    assert "from A-1 to A-2: they differ in 1 field and 0 channels" in result.stdout
    document = document_in(out)
    found = json.loads(call("diff", money, "A-1", "A-2", "--json").stdout)
    assert document["kind"] == "comparison"
    assert [(f["process"], f["field"]) for f in document["fields"]] == [
        (f["process"], f["field"]) for f in found["fields"]
    ]
    assert call("view", money, "--snapshot", "A-3", "--compare", "A-1").exit_code == 0
    (channel,) = document_in(tmp_path / "money-A-1-A-3.html")["channels"]
    assert channel["is_same_count"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--snapshot", "A-9"), "there is no snapshot A-9"),
        (("--out", "{tmp}/x.pdf"), "use a name that ends in .html, .svg or .png"),
        (("--compare", "A-1", "--out", "{tmp}/x.svg"), "a comparison is a page"),
        (("--compare", "A-1", "--event-log", "{tmp}"), "a comparison takes no --event-log"),
        (("--event-log", "{tmp}/none"), "holds no event log"),
        (("--out", "{tmp}/money/x.html"), "is inside"),
        (("--steps",), "are for traces"),
        (("--cut", "A=1"), "are for traces"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    call: Call, money: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """With what to do instead, and nothing is written."""
    before = {*tmp_path.rglob("*")}
    result = call("view", money, *(each.format(tmp=tmp_path) for each in arguments))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert {*tmp_path.rglob("*")} == before


def test_a_store_is_needed_to_compare(call: Call, tmp_path: Path) -> None:
    """A trace has no other snapshot to compare with, and an empty store has none."""
    assert "are for stores" in call("view", "lecture", "--compare", "A-1").stderr
    result = call("view", tmp_path)
    assert result.exit_code == 2


def test_an_empty_store_says_how_to_get_a_snapshot(call: Call, empty: Path) -> None:
    """And exits with 2."""
    result = call("view", empty)
    assert result.exit_code == 2
    assert "stillframe snapshot" in result.stderr


def test_a_snapshot_of_a_pipeline_becomes_a_page(
    call: Call, shop: Pipeline, tmp_path: Path
) -> None:
    """States of services, micro-batches of queries, positions, and the counts of each channel."""
    commit(shop, 3, 1)
    shop.savepoint("gold")
    out = tmp_path / "gold.html"
    result = call("view", shop.path, "--snapshot", "gold", "--out", out)
    assert result.exit_code == 0, result.output
    document = document_in(out)
    shown = json.loads(call("pipeline", "show", shop.path, "gold", "--json").stdout)
    states = {
        state["process"]: {field["name"]: json.loads(field["text"]) for field in state["fields"]}
        for state in document["processes"]
    }
    for part in shown["participants"]:
        fields = part["state"] or {"after micro-batch": part["batch"]}
        fields |= {f"read {log} up to": at for log, at in part["positions"].items()}
        fields |= {f"barrier in {log} at": at for log, at in part["barriers"].items()}
        assert states[part["participant"]] == fields
    counts = {(c["source"], c["target"]): c["message_count"] for c in document["channels"]}
    assert counts == {(c["source"], c["target"]): c["record_count"] for c in shown["channels"]}
    assert document["savepoints"] == ["gold"]
    assert call("view", shop.path, "--out", tmp_path / "x.html").exit_code == 0


def test_two_snapshots_of_a_pipeline_are_compared(
    call: Call, shop: Pipeline, tmp_path: Path
) -> None:
    """In a page, whose name says which they are; what became of the two is in words as well."""
    commit(shop, 3, 1)
    shop.snapshot()
    sell(shop, 40)
    shop.snapshot()
    result = call("view", shop.path, "--snapshot", "shop-2", "--compare", "shop-1")
    assert result.exit_code == 0, result.output
    out = tmp_path / "shop-shop-1-shop-2.html"
    assert out.name in result.stdout
    document = document_in(out)
    assert (document["kind"], document["before"]["id"]) == ("comparison", "shop-1")
    assert f"from shop-1 to shop-2: they differ in {document['field_count']} field" in " ".join(
        result.stdout.split()
    )


def test_a_pipeline_has_no_picture(call: Call, shop: Pipeline, tmp_path: Path) -> None:
    """Nor an event log: the error says what can be."""
    for arguments in (("--out", tmp_path / "x.svg"), ("--event-log", tmp_path)):
        result = call("view", shop.path, *arguments)
        assert result.exit_code == 2
        assert "its snapshots are shown as a page" in " ".join(result.stderr.split())


def test_a_page_stays_small_however_much_is_held(call: Call, tmp_path: Path, empty: Path) -> None:
    """10 MB of text in a field and 10^5 messages on a channel make a page of less than a MB."""
    codec = StateCodec(Purse)
    coins = [msgspec.msgpack.encode(Coin(1)) for _ in range(1000)]
    batches = tuple(Batch.of(1 + 1000 * number, coins) for number in range(100))
    state = GlobalState(
        (
            ProcessState("A", "Purse", codec.capture(Purse(note="x" * 10**7))),
            ProcessState("B", "Purse", codec.capture(Purse())),
        ),
        (
            ChannelState(Channel("A", "B"), 10**5, 0, batches),
            ChannelState(Channel("B", "A"), 0, 0, ()),
        ),
    )
    store = Store.open_writer(empty)
    store.raise_epoch(None)
    store.publish(Snapshot(SnapshotId("A", 1), 1, 1.0, 2.0, state))
    store.close()
    out = tmp_path / "large.html"
    assert call("view", empty, "--out", out).exit_code == 0
    assert out.stat().st_size < 10**6
    document = document_in(out)
    note = document["processes"][0]["fields"][1]
    assert note["left_out"] == "and 9,998,002 characters more"
    channel = document["channels"][0]
    assert len(channel["messages"]) + channel["messages_left_out_count"] == 10**5
    assert "of 100,000 messages are drawn" in document["diagram"]["left_out"]
