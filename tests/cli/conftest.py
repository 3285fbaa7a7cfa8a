"""What the tests of the command line share: a way to call it, and a store with three snapshots."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from stillframe import Channel, Message, Process, SnapshotId, Topology
from stillframe.cli.app import app
from stillframe.model import Batch, ChannelState, GlobalState, ProcessState, Snapshot
from stillframe.pipeline import Pipeline
from stillframe.process import Quantities
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store
from tests.cli.pipelines import resting_shop
from tests.json_page import check_output

Call = Callable[..., Result]


class Coin(Message):
    """Money on its way."""

    amount: int

    def conserved(self) -> Quantities:
        """It is not lost on the way."""
        return {"coins": self.amount}


class Purse(Process):
    """Holds money."""

    balance: int = 100
    note: str = ""

    def conserved(self) -> Quantities:
        """Nor here."""
        return {"coins": self.balance}

    def receive(self, channel: Channel, message: Coin) -> None:
        """Take the money."""
        self.balance += message.amount


purses = Topology.mesh({"A": Purse(), "B": Purse()})


def state_of(balance: int, note: str, coins: list[int]) -> GlobalState:
    """Return a state in which A owns `balance` and has sent B `coins`, which are on their way."""
    codec = StateCodec(Purse)
    encoded = [msgspec.msgpack.encode(Coin(amount)) for amount in coins]
    sent = 10 + len(coins)
    return GlobalState(
        processes=(
            ProcessState("A", "Purse", codec.capture(Purse(balance=balance, note=note))),
            ProcessState("B", "Purse", codec.capture(Purse())),
        ),
        channels=(
            ChannelState(Channel("A", "B"), sent, 10, (Batch.of(11, encoded),) if encoded else ()),
            ChannelState(Channel("B", "A"), 3, 3, ()),
        ),
    )


def restored(path: Path, number: int) -> Store:
    """Make a store in which the money is lost in A-2 and not in A-1, and go back to one of them."""
    store = Store.create(path, description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(100, "", []))
    publish(store, 2, state_of(95, "", []))
    store.raise_epoch(SnapshotId("A", number))
    return store


def publish(store: Store, number: int, state: GlobalState) -> None:
    """Publish a snapshot that took 20 ms."""
    snapshot = SnapshotId("A", number)
    at = 999.0 + snapshot.number
    store.publish(Snapshot(snapshot, store.epoch, at, at + 0.02, state))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A store without a snapshot."""
    path = tmp_path / "empty"
    Store.create(path, description=purses.description).close()
    return path


@pytest.fixture
def money(tmp_path: Path) -> Path:
    """A store: A-1 with five coins on their way; A-2 the same but for a field; A-3 but for a
    coin."""
    path = tmp_path / "money"
    store = Store.create(path, description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(95, "", [1, 1, 1, 1, 1]))
    publish(store, 2, state_of(95, "x" * 200, [1, 1, 1, 1, 1]))
    publish(store, 3, state_of(95, "", [1, 1, 1, 1, 2]))
    store.close()
    return path


@pytest.fixture
def shop(tmp_path: Path) -> Pipeline:
    """A pipeline at rest, without a snapshot: two sales and one total are on its channels."""
    return resting_shop(tmp_path / "shop.pipeline")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command line with arguments; what it does to ``sys.path`` is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    runner = CliRunner()

    def call(*arguments: object) -> Result:
        words = [str(argument) for argument in arguments]
        result = runner.invoke(app, words)
        check_output(words, result.stdout)
        return result

    return call


def rows_and_words(output: str) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the tables of an output, split at spaces, and its other lines but their
    heads: titles and sentences."""
    rows: list[list[str]] = []
    words: list[str] = []
    width = 0
    for line in output.splitlines():
        if line and not line.strip("─ "):
            words.pop()  # the head
            width = len(line)
        elif len(line) == width:
            rows.append(line.split())
        else:
            words.append(line)
            width = 0
    return rows, words
