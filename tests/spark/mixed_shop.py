"""A shop with channels of every kind: logs, topics of Kafka (with a star) and TCP (==>).

    till --orders--> first --unique*--> ledger --entries*--> back --totals--> clerk ==> vault
    till --cash--------------------------------------------> back --audit*    clerk <== vault
    vault --returns--> first                                   vault --done--> till

``till`` sends orders, some of them twice; the query ``first`` lets each through once. The services
``ledger`` and ``clerk`` keep a fee of each order that they pass. ``vault`` sends an order back to
``first`` as long as it has hops left, and keeps it then. The query ``back`` reads and writes both a
topic and a log. No money is made or lost.

``mixed_shop.py till ROOT END`` and ``mixed_shop.py ledger ROOT`` are the two services that are
programs. The file END says, once it is there, after how many orders the till ends.
"""

import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import stillframe
from stillframe.model import Channel
from stillframe.pipeline import JoinedTopicService, Pipeline, channel, kafka_channel
from stillframe.pipeline.dataflow import Log, Topic

ORDER = pa.schema([("serial", pa.int64()), ("amount", pa.int64()), ("hops", pa.int64())])
TEXT = pa.schema([("key", pa.string()), ("value", pa.string())])
DONE = pa.schema([("serial", pa.int64())])
TOPICS = ("unique", "entries", "audit")
HOPS = 1
"""How often an order is sent back."""
OPEN_MAX = 20
"""How many orders are on their round at once."""
FEE = 1
"""What the ledger and the clerk keep of each order that they pass."""
RECEIPT = 2
"""What the vault gives back to the clerk of each order that it gets."""


def amount_of(serial: int) -> int:
    """Return the money of an order when the till sends it."""
    return 10 + serial * 7 % 13


def is_cash(serial: int) -> bool:
    """Return whether an order goes to ``back`` at first."""
    return serial % 2 == 1


def rounds_of(serial: int) -> list[tuple[int, int, int]]:
    """Return an order as ``back`` writes it in each round: its serial, amount and hops."""
    found, amount = [], amount_of(serial)
    for hops in range(HOPS, -1, -1):
        if hops < HOPS or not is_cash(serial):
            amount -= FEE  # of the ledger
        found.append((serial, amount, hops))
        amount -= FEE + RECEIPT  # of the clerk
    return found


def orders(*serials: int) -> pa.Table:
    """Return orders as the till sends them."""
    rows = [{"serial": one, "amount": amount_of(one), "hops": HOPS} for one in serials]
    return pa.Table.from_pylist(rows, schema=ORDER)


@dataclass
class Till:
    """The orders that the till has sent, and those of them that have ended."""

    sent: int = 0
    done: int = 0


@dataclass
class Ledger:
    """The money that the ledger has kept."""

    fees: int = 0


class Parcel(stillframe.Message):
    """An order between the clerk and the vault."""

    serial: int
    amount: int
    hops: int


class Receipt(stillframe.Message):
    """Money that the vault gives back."""

    amount: int


class Clerk(stillframe.Process):
    """Passes orders from a log on to the vault."""

    fees: int = 0

    def receive_records(self, log: str, records: pa.Table) -> None:
        """Pass orders on."""
        for one in map(json.loads, records["value"].to_pylist()):
            self.fees += FEE
            self.send("vault", Parcel(one["serial"], one["amount"] - FEE, one["hops"]))

    def receive(self, channel: Channel, message: Receipt) -> None:
        """Keep what is given back."""
        self.fees += message.amount


class Vault(stillframe.Process):
    """Sends orders back, or keeps them."""

    balance: int = 0
    kept: list[int] = field(default_factory=list)

    def receive(self, channel: Channel, message: Parcel) -> None:
        """Take an order."""
        self.send("clerk", Receipt(RECEIPT))
        rest = message.amount - RECEIPT
        if message.hops > 0:
            row = {"serial": message.serial, "amount": rest, "hops": message.hops - 1}
            self.append("returns", pa.Table.from_pylist([row], schema=ORDER))
            return
        self.balance += rest
        self.kept.append(message.serial)
        self.append("done", pa.table({"serial": [message.serial]}, schema=DONE))


system = stillframe.Topology(
    {"clerk": Clerk(), "vault": Vault()}, [("clerk", "vault"), ("vault", "clerk")]
)


def topic_of(prefix: str, name: str) -> str:
    """Return the name of a topic."""
    return f"{prefix}-{name}"


def create(root: Path, servers: str, prefix: str) -> Pipeline:
    """Make the pipeline, with a prefix of its topics."""

    def topic(name: str, source: str, *targets: str) -> Topic:
        return kafka_channel(
            name, topic=topic_of(prefix, name), servers=servers, source=source, targets=targets
        )

    channels: list[Log | Topic] = [
        channel("orders", ORDER, source="till", targets=["first"]),
        channel("cash", ORDER, source="till", targets=["back"]),
        topic("unique", "first", "ledger"),
        topic("entries", "ledger", "back"),
        channel("totals", TEXT, source="back", targets=["clerk"]),
        topic("audit", "back"),
        channel("returns", ORDER, source="vault", targets=["first"]),
        channel("done", DONE, source="vault", targets=["till"]),
    ]
    return Pipeline.create(
        root,
        queries=["first", "back"],
        services={"till": Till, "ledger": Ledger, "clerk": Clerk, "vault": Vault},
        channels=channels,
    )


def say(line: str) -> None:
    """Write a line for the program that has started this one."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_till(pipeline: Pipeline, end_file: Path) -> None:
    """Send orders, each as soon as there is room for one, until the end is known and reached."""
    state = Till()
    with pipeline.join_service("till", state=state) as me:
        say("joined")
        while (end := _end_in(end_file)) is None or state.done < end:
            may_send = end is None or state.sent < end
            if may_send and state.sent - state.done < OPEN_MAX:
                # Of those that go to ``first``, it sends the one before again.
                serials = [one for one in (state.sent - 2, state.sent) if one >= 0]
                if is_cash(state.sent):
                    me.append("cash", orders(state.sent))
                else:
                    me.append("orders", orders(*serials))
                state.sent += 1
                me.boundary()
            elif (received := me.receive(timeout_s=0.1)) is not None:
                state.done += received[1].num_rows
                say("done")


def _end_in(end_file: Path) -> int | None:
    return int(end_file.read_text()) if end_file.exists() else None


def run_ledger(pipeline: Pipeline) -> None:
    """Pass orders on until SIGTERM."""
    state = Ledger()
    with pipeline.join_service("ledger", state=state, kind=JoinedTopicService) as me:
        signal.signal(signal.SIGTERM, lambda *_: me.leave())
        say("joined")
        for _, records in me:
            for record in records:
                one = json.loads(record.value or b"")
                state.fees += FEE
                me.append("entries", json.dumps(one | {"amount": one["amount"] - FEE}), record.key)


if __name__ == "__main__":
    if sys.argv[1] == "till":
        run_till(Pipeline(sys.argv[2]), Path(sys.argv[3]))
    else:
        run_ledger(Pipeline(sys.argv[2]))
