"""Systems to look at that leave the machine some time for the browser."""

from stillframe import Process, Topology
from tests.calm import CalmAccount

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
