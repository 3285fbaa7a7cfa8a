"""The calls that a loss in observations of services consists of.

A call is in the observation that finds its fate, and in no later one. So the calls are collected
from all observations, and what applications have said of them since is subtracted.
"""

from collections.abc import Iterable, Mapping

import msgspec

from stillframe.diagram.text_metrics import moment
from stillframe.protocol.calls import Amounts, Located, Observation, add_amounts, net_of
from stillframe.store.observation_tables import NOT_AWAITED, known_of

CALL_COUNT_MAX = 20
"""How many calls of each kind are listed."""


class _LostCall(msgspec.Struct):
    """A call whose caller does not wait for it, as the newest observation with it has it."""

    located: Located
    returned: dict[str, int]

    def left(self) -> dict[str, int]:
        """Return the amounts that are in no state."""
        left, _ = net_of(self.located.carried(), self.returned)
        return {unit: amount for unit, amount in left.items() if amount}

    def words(self) -> str:
        """Return who has called what and when, and what became of it."""
        record = self.located.record
        details = record.details
        began = f" at {moment(details.began_at)}" if details.began_at else ""
        name = f"{details.name} " if details.name else ""
        located = msgspec.structs.replace(self.located, returned=self.returned)
        return f"{name}to {record.target}{began}, {known_of(NOT_AWAITED, located)}"


class LostCalls:
    """The calls that observations show, the oldest observation first."""

    def __init__(self) -> None:
        self._calls: dict[str, _LostCall] = {}
        self._booked: dict[str, int] = {}

    def add(self, observation: Observation) -> None:
        """Take the calls and the statements of an observation."""
        for name, fragment in observation.everybody.items():
            for one in fragment.statements:
                if one.number > self._booked.get(name, 0):
                    self._booked[name] = one.number
                    if (call := self._calls.get(str(one.call))) is not None:
                        add_amounts(call.returned, one.returned)
        for located in (*observation.calls, *observation.late):
            if not located.record.is_awaited:
                self._calls[str(located.call)] = _LostCall(located, dict(located.returned))

    def lines(self, units: Iterable[str], before: Mapping[str, Amounts], now: Observation) -> str:
        """Return the calls with amounts of these units, as lines: calls whose amounts were spent
        twice, and were not `before`, and calls whose amounts are in no state."""
        spent: dict[str, dict[str, int]] = {name: dict(of) for name, of in now.double_spent.items()}
        for name, amounts in before.items():
            add_amounts(spent.setdefault(name, {}), amounts, -1)
        left = {name: call.left() for name, call in self._calls.items()}
        lines: list[str] = []
        for unit in units:
            lines += self._listed(unit, spent, "spent twice")
            lines += self._listed(unit, left, "in no state")
        return "".join(f"\n{line}" for line in lines)

    def _listed(self, unit: str, amounts: Mapping[str, Amounts], where: str) -> list[str]:
        having = [name for name, of in amounts.items() if of.get(unit)]
        found = []
        for name in having[-CALL_COUNT_MAX:]:
            call = self._calls.get(name)
            words = call.words() if call else "of an observation that is not kept any more"
            found.append(f"{amounts[name][unit]} {unit} {where}: call {name}, {words}")
        if (more := len(having) - CALL_COUNT_MAX) > 0:
            rest = sum(amounts[name][unit] for name in having[:-CALL_COUNT_MAX])
            found.append(f"{rest} {unit} {where}: {more:,} older calls")
        return found
