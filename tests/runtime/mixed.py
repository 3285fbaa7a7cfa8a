"""A system of two processes over TCP that are also services of a pipeline: money goes round.

``till`` pays coins to ``bank`` over TCP; ``bank`` appends them to the log ``coins``, which the
service ``mint`` (a program of its own) reads and appends to ``change``, which ``till`` reads.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import stillframe
from stillframe import Due, Outbox
from stillframe.model import Channel, SnapshotId
from stillframe.pipeline import channel

COINS = pa.schema([("amount", pa.int64())])
START = 1000


class Coin(stillframe.Message):
    """Money on its way."""

    amount: int


class Till(stillframe.Process):
    """Pays as long as it has money, and takes what comes back."""

    balance: int = START

    @stillframe.every(ms=1)
    def pay(self) -> None:
        """Pay one."""
        if self.balance > 0:
            self.balance -= 1
            self.send("bank", Coin(amount=1))

    def receive_records(self, log: str, records: pa.Table) -> None:
        """Take what comes back."""
        self.balance += sum(records["amount"].to_pylist())


class Bank(stillframe.Process):
    """Keeps the coins of a few messages, then passes them on."""

    balance: int = 0

    def receive(self, channel: Channel, message: Coin) -> None:
        """Take a coin."""
        self.balance += message.amount
        if self.balance >= 10:
            self.append("coins", pa.table({"amount": [self.balance]}, schema=COINS))
            self.balance = 0


def tell(what: object) -> None:
    """Append a line to the file that the variable TOLD names."""
    with Path(os.environ["TOLD"]).open("a") as told:
        print(what, file=told)


class CarefulTill(Till):
    """Tells what it is told of, and what it commits: not too early."""

    effects: Outbox[int] = field(default_factory=lambda: Outbox(lambda due: tell("committed")))

    @stillframe.every(ms=1)
    def act(self) -> None:
        """Put an effect; the request is in vain, as the pipeline decides on snapshots."""
        self.effects.put(self.balance)
        self.snapshot()

    def on_published(self, snapshot: SnapshotId) -> None:
        """Tell it."""
        tell(f"published {snapshot}")


async def commit_later(due: Due[int]) -> None:
    """Commit without keeping the process waiting, which a service cannot."""


class WaitingTill(Till):
    """Has an ``async`` commit function."""

    effects: Outbox[int] = field(default_factory=lambda: Outbox(commit_later))


@dataclass
class Mint:
    """What the mint holds back."""

    held: int = 0


system = stillframe.Topology({"till": Till(), "bank": Bank()}, [("till", "bank")])
waiting = stillframe.Topology({"till": WaitingTill(), "bank": Bank()}, [("till", "bank")])
careful = stillframe.Topology({"till": CarefulTill(), "bank": Bank()}, [("till", "bank")])

CHANNELS = (
    channel("coins", COINS, source="bank", targets=["mint"]),
    channel("change", COINS, source="mint", targets=["till"]),
)
SERVICES = {"till": Till, "bank": Bank, "mint": Mint}
