"""``restore --dry-run`` and ``--migrate``: what other code makes of a snapshot, said and done."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from typer.testing import Result

from stillframe import Channel, Message, Process, Topology
from stillframe.model import Snapshot
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.cli.conftest import Call, publish, purses, state_of
from tests.doc_pages import called
from tests.nightly import by_night


def _changed() -> Topology:
    class Coin(Message):
        """Money on its way, with a word."""

        amount: int
        word: str = "thanks"

    class Purse(Process):
        """A purse of another time."""

        renamed: ClassVar = {"cents": "balance"}

        cents: int = 0
        owner: str = "nobody"

        def receive(self, channel: Channel, message: Coin) -> None:
            """Take the money."""

    return Topology.mesh({"A": Purse(), "B": Purse()})


def _deaf() -> Topology:
    class Purse(Process):
        """Takes nothing."""

        balance: int = 0
        note: str = ""

    return Topology.mesh({"A": Purse(), "B": Purse()})


changed, deaf = _changed(), _deaf()
single = Topology({"A": purses.processes["A"]}, [])


def store_of(path: Path, name: str) -> Path:
    """Make a store of purses with two snapshots, whose code is now the topology called `name`."""
    reference = f"tests.cli.test_migration:{name}"
    store = Store.create(path / "money", description=purses.description, reference=reference)
    store.raise_epoch(None)
    publish(store, 1, state_of(95, "", [1, 1, 1, 1, 1]))
    publish(store, 2, state_of(98, "x", [1, 1]))
    store.close()
    return local(store.path)


def test_a_dry_run_of_unchanged_code(call: Call, tmp_path: Path) -> None:
    """It says which snapshot, how many processes and messages, and that all of it can be read."""
    path = store_of(tmp_path, "purses")
    result = call("restore", path, "A-1", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "a restore would start from snapshot A-1: 2 processes, 5 messages in channels; nothing was "
        "changed\n"
    )


def test_a_dry_run_of_changed_code(call: Call, tmp_path: Path) -> None:
    """Every change is a row; what would be lost is said twice; the store stays as it is."""
    path = store_of(tmp_path, "changed")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    result = call("restore", path, "--dry-run")
    assert result.exit_code == 0, result.stderr
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "class Purse cents was renamed from balance" in rows
    assert "class Purse note was removed lost" in rows
    assert "class Purse owner begins with 'nobody'" in rows
    assert "message Coin word begins with 'thanks'" in rows
    assert "snapshot A-2: 2 processes, 2 messages in channels, with --migrate" in result.stdout
    assert "recorded values would be LOST by 1 change; nothing was changed" in result.stdout
    shown = json.loads(call("restore", path, "--dry-run", "--json").stdout)
    assert (shown["snapshot"], shown["needs_migrate"], shown["is_lossy"]) == ("A-2", True, True)
    assert {"subject": "class Purse", "sentence": "note was removed", "is_loss": True} in shown[
        "changes"
    ]
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("deaf", ("--dry-run",), "message 11 on channel A->B (Coin): B no longer accepts Coin"),
        ("single", ("--dry-run",), "give the topology a function that distributes"),
        (
            "changed",
            (),
            "class Purse: note was removed: its recorded values are lost ... --dry-run', and cont",
        ),
        ("changed", ("--keep", "1"), "class Purse: note was removed"),
        ("deaf", ("--migrate",), "B no longer accepts Coin"),
        ("deaf", ("--migrate", "--keep", "1"), "B no longer accepts Coin"),
        ("purses", ("--pipeline", "x", "--migrate"), "--migrate is for systems outside a pipeline"),
        ("purses", ("--pipeline", "x", "--dry-run"), "--dry-run is for systems outside a pipeline"),
        ("changed", ("--migrate", "--initiator", "Q"), "there is no process 'Q'"),
    ],
)
def test_what_cannot_go_on_is_refused(
    call: Call, tmp_path: Path, name: str, options: tuple[str, ...], said: str
) -> None:
    """With exit 2 and the reason; no epoch is begun, and no snapshot removed."""
    path = store_of(tmp_path, name)
    result = call("restore", path, *options, "--duration", "1ms")
    assert result.exit_code == 2
    for words in said.split(" ... "):
        assert words in result.stderr
    store = Store.open(path)
    assert (store.epoch, len(store.entries())) == (1, 2)


def test_a_dry_run_without_a_snapshot(call: Call, empty: Path) -> None:
    """There is nothing to go on from."""
    result = call("restore", empty, "--dry-run")
    assert result.exit_code == 2
    assert "holds no snapshot yet" in result.stderr


def test_a_store_that_does_not_say_its_code(call: Call, money: Path) -> None:
    """Nothing can be foretold without it."""
    result = call("restore", money, "--dry-run")
    assert result.exit_code == 2
    assert "does not say where its topology is defined" in result.stderr


def test_snapshots_before_and_after_a_change(call: Call, tmp_path: Path) -> None:
    """Each is shown by its own fields, and they can be compared and verified."""
    path = store_of(tmp_path, "changed")
    store = Store.open_writer(path)
    store.raise_epoch(store.entries()[-1].id, changed.description)
    later = [msgspec.msgpack.encode({"cents": cents, "owner": "me"}) for cents in (98, 102)]
    state = state_of(98, "", [])
    processes = tuple(
        msgspec.structs.replace(process, encoded=encoded)
        for process, encoded in zip(state.processes, later, strict=True)
    )
    publish(store, 3, msgspec.structs.replace(state, processes=processes))
    store.close()
    columns = [call("show", path, name).stdout.splitlines() for name in ("A-2", "A-3")]
    assert any(line.split() == ["process", "balance", "note"] for line in columns[0])
    assert any(line.split() == ["process", "cents", "owner"] for line in columns[1])
    compared = call("diff", path, "A-2", "A-3", "--json")
    assert compared.exit_code == 1
    fields = {(f["process"], f["field"]): f["after"] for f in json.loads(compared.stdout)["fields"]}
    assert fields["B", "cents"] == 102
    assert fields["B", "balance"] is None
    assert call("verify", path).exit_code == 0
    assert [e["id"] for e in json.loads(call("list", path, "--json").stdout)["snapshots"]] == [
        "A-1",
        "A-2",
        "A-3",
    ]
    asked = call("detect", path, "select sum(cents) = 200 from processes")
    assert asked.exit_code == 0, asked.stderr
    assert call("detect", path, "termination").exit_code == 0


OLD_BANK = """
from typing import ClassVar
from stillframe import Channel, Message, Process, Topology, every

class Transfer(Message):
    amount: int

class Account(Process):
    balance: int = 1000
    paid_count: int = 0
    motto: str = "none"

    def receive(self, channel: Channel, message: Transfer) -> None:
        self.balance += message.amount

    @every(ms=0)
    def pay(self) -> None:
        if self.balance:
            self.balance -= 1
            self.paid_count += 1
            self.send(self.outgoing[self.paid_count % len(self.outgoing)], Transfer(1))

bank = Topology.mesh({name: Account() for name in ("P1", "P2", "P3")})
"""
NEW_BANK = (
    OLD_BANK.replace("    amount: int", "    amount: int\n    memo: str = 'old'")
    .replace(
        "    balance: int = 1000",
        "    renamed: ClassVar = {'cents': 'balance'}\n    cents: int = 0\n    limit: int = 7",
    )
    .replace("self.balance", "self.cents")
    .replace('    motto: str = "none"\n', "")
    .replace("Transfer(1))", "Transfer(1, 'new'))")
)


def total(snapshot: Snapshot, field: str) -> int:
    """Return all the money, in accounts and on its way."""
    owned = [msgspec.msgpack.decode(state.encoded)[field] for state in snapshot.state.processes]
    return sum([*owned, *(message[1] for message in messages(snapshot))])


def messages(snapshot: Snapshot) -> list[list[Any]]:
    """Return the messages on all channels, in plain values."""
    return [
        message
        for state in snapshot.state.channels
        for batch in state.batches
        for message in msgspec.msgpack.decode(batch.encoded)
    ]


def run(path: Path, code: str, *arguments: object) -> Result:
    """Call the command line in a directory with this code, until it ends."""
    path.mkdir(exist_ok=True)
    (path / "bank.py").write_text(code)
    result = called(f"stillframe {' '.join(map(str, arguments))}", path)
    assert result.exit_code == 0, result.stderr
    return result


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
def test_a_bank_goes_on_with_new_code_and_back(
    call: Call, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Fields added, removed and renamed, and messages in transit of another shape: the money is
    what it was; and the old code goes on from the old snapshot as if nothing had been."""
    path, old, new = tmp_path / "money", tmp_path / "old", tmp_path / "new"
    often = ("--every", "50ms", "--duration", by_night("1s", check="300ms"))
    run(old, OLD_BANK, "run", "bank:bank", "--store", path, *often)
    entry = max(Store.open(path).entries(), key=lambda entry: entry.message_count)
    before = Store.open(path).load(entry.id)
    assert entry.message_count > 0
    assert total(before, "balance") == 3000

    done = run(new, NEW_BANK, "restore", path, entry.id, "--migrate", *often, "--json")
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    changes = next(event for event in told if event["event"] == "CodeChanged")["changes"]
    assert [change["sentence"] for change in changes if change["is_loss"]] == ["motto was removed"]
    assert "class Account: motto was removed: its recorded values are lost" in done.stderr
    store = Store.open(path)
    after = [store.load(each.id) for each in store.entries() if each.epoch == 2]
    assert after
    assert {total(snapshot, "cents") for snapshot in after} == {3000}
    assert {message[2] for snapshot in after for message in messages(snapshot)} <= {"old", "new"}
    assert store.load(entry.id) == before
    assert call("verify", path).exit_code == 0

    run(old, OLD_BANK, "restore", path, entry.id, "--migrate", *often)
    store = Store.open(path)
    back = [store.load(each.id) for each in store.entries() if each.epoch == 3]
    assert Counter(total(snapshot, "balance") for snapshot in back).keys() == {3000}
