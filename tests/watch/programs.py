"""Systems to look at that leave the machine some time for the browser."""

from examples.bank import Account, Transfer
from stillframe import Process, Topology, every


class CalmAccount(Account):
    """Pays its neighbours in turn, one unit at a time, a hundred times a second."""

    @every(ms=10)
    def pay(self) -> None:
        """Give some away."""
        self.balance -= 1
        self.paid_count += 1
        self.send(self.outgoing[self.paid_count % len(self.outgoing)], Transfer(1))


calm = Topology.mesh({f"P{number}": CalmAccount() for number in range(1, 4)})

ring = Topology.ring({f"P{number}": CalmAccount() for number in range(1, 51)})


class Shouting(Process):
    """Says things that would be markup, if anybody took them for it."""

    name: str = "<img src=x onerror=alert(1)>"
    note: str = "</script><script>alert(2)</script>"

    def conserved(self) -> dict[str, float]:
        """Name a quantity like that as well."""
        return {"<b onclick=alert(3)>gold</b>": 1, "toString": 2}


hostile = Topology({"constructor": Shouting(), "P2": Shouting()}, [])
