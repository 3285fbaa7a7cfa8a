"""A system of two processes over TCP that are also services of a pipeline: money goes round.

``till`` pays coins to ``bank`` over TCP; ``bank`` appends them to the log ``coins``, which the
service ``mint`` (a program of its own) reads and appends to ``change``, which ``till`` reads.
"""

from dataclasses import dataclass

import pyarrow as pa

import stillframe
from stillframe.model import Channel
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


@dataclass
class Mint:
    """What the mint holds back."""

    held: int = 0


system = stillframe.Topology({"till": Till(), "bank": Bank()}, [("till", "bank")])

CHANNELS = (
    channel("coins", COINS, source="bank", targets=["mint"]),
    channel("change", COINS, source="mint", targets=["till"]),
)
SERVICES = {"till": Till, "bank": Bank, "mint": Mint}
