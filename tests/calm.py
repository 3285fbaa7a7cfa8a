"""The bank of the examples, at a rate that leaves the machine to what is tested beside it.

``stillframe.examples.bank`` pays as fast as it can, which keeps two cores busy for as long as a
test lasts.
"""

from stillframe import Topology, every
from stillframe.examples.bank import ACCOUNT_COUNT, TOTAL, Account, Auditor, Transfer

__all__ = ["BANK", "TOTAL", "CalmAccount", "CalmAuditor", "Transfer", "bank"]

BANK = "tests.calm:bank"


class CalmAccount(Account):
    """An account that pays a hundred times a second."""

    @every(ms=10)
    def pay(self) -> None:
        """Give some away."""
        super().pay()


class CalmAuditor(Auditor):
    """An auditor that pays a hundred times a second."""

    @every(ms=10)
    def pay(self) -> None:
        """Give some away."""
        super().pay()


bank = Topology.mesh(
    {"P1": CalmAuditor(), **{f"P{number}": CalmAccount() for number in range(2, ACCOUNT_COUNT + 1)}}
)
