"""An operator's request for a new baseline: ``STORE/baseline.json`` in a store of observations.

The operator writes it, and the collector, which looks for it, replaces it by what came of it. The
newest request counts, for as long as the operator waits: the decision does not concern later
losses. It is recognised by who made it, when and why, which are in the ledger when it was taken. So
a collector that dies between the two takes no request twice.
"""

from typing import Annotated

import msgspec

from stillframe.errors import UsageError
from stillframe.protocol.activities import TIME_MAX, Time
from stillframe.protocol.calls import NOTHING, Amounts, Baseline, CallLedger, add_amounts
from stillframe.storage.files import replace
from stillframe.storage.location import Location
from stillframe.storage.reading import is_there, read_file
from stillframe.store.layout import BASELINE_REQUEST, explain_io_errors, first_names
from stillframe.store.sealed_json import OBSERVATION_FORMAT, read_sealed_bytes, seal

TEXT_LENGTH_MAX = 200
"""Maximum characters of the name and of the reason."""
_BYTES_MAX = 2**20
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]


class GivenUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown calls and instances that are not counted any more.

    Attributes:
        gone: the instances that had left without a goodbye.
        unknown_count: how many earlier calls had an unknown fate.
        unknown: the amounts of these.
        forgotten_count: how often something was dropped whose amounts are not known.
    """

    gone: tuple[str, ...] = ()
    unknown_count: int = 0
    unknown: Amounts = NOTHING
    forgotten_count: int = 0

    def __str__(self) -> str:
        parts = []
        if self.gone:
            parts.append(f"{first_names(self.gone)}, gone without a goodbye")
        if self.unknown_count:
            amounts = ", ".join(f"{amount} {unit}" for unit, amount in self.unknown.items())
            calls = f"earlier calls of unknown fate: {self.unknown_count:,}"
            parts.append(f"{calls} ({amounts})" if amounts else calls)
        if self.forgotten_count:
            parts.append(f"dropped amounts that are not known: {self.forgotten_count:,} times")
        return f"not counted any more: {'; '.join(parts)}" if parts else "nothing was unknown"

    @classmethod
    def by(cls, ledger: CallLedger) -> "GivenUp":
        """Return what a collector with this ledger would not count any more."""
        unknown: dict[str, int] = {}
        for record in ledger.unknown.values():
            add_amounts(unknown, record.amounts())
        return cls(
            gone=tuple(ledger.gone),
            unknown_count=len(ledger.unknown),
            unknown=unknown,
            forgotten_count=ledger.forgotten_count,
        )


class BaselineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``baseline.json``.

    Attributes:
        format: the version of the format.
        by: who requests it.
        because: why.
        at: when, in seconds since 1970.
        until: when it expires: no collector takes it afterwards.
        is_taken: whether the collector has begun the baseline.
        given_up: what it gave up; None also if it died before it could say so.
    """

    format: int = OBSERVATION_FORMAT
    by: _Text
    because: _Text
    at: Time
    until: Time = 0.0
    is_taken: bool = False
    given_up: GivenUp | None = None

    @property
    def baseline(self) -> Baseline:
        """The baseline that it requests."""
        return Baseline(0, self.because, self.by, self.at)

    def is_in(self, ledger: CallLedger) -> bool:
        """Return whether a collector with this ledger has taken it."""
        known = (ledger.next_baseline, msgspec.structs.replace(ledger.since, number=0))
        return self.baseline in known


def new_request(by: str, because: str, at: float, timeout_s: float) -> BaselineRequest:
    """Return a request that expires after `timeout_s`; a UsageError if a text is none that can be
    stored."""
    for name, text in (("--by", by), ("--because", because)):
        if not text.strip() or len(text) > TEXT_LENGTH_MAX or not text.isprintable():
            raise UsageError(
                f"{name} has {len(text)} characters: give 1 to {TEXT_LENGTH_MAX}, all printable"
            )
    return BaselineRequest(by=by, because=because, at=at, until=min(at + timeout_s, TIME_MAX))


def withdraw(store: Location, request: BaselineRequest) -> None:
    """Let no collector take a request any more, unless another one has replaced it."""
    found = read_request(store)
    if found is not None and found.baseline == request.baseline and not found.is_taken:
        write_request(store, msgspec.structs.replace(found, until=0.0))


def read_request(store: Location) -> BaselineRequest | None:
    """Return the newest request in a store; None if there was none. Errors are as for
    ``read_sealed``."""
    place = store / BASELINE_REQUEST
    if not is_there(place):
        return None
    return read_sealed_bytes(place, read_file(place, bytes_max=_BYTES_MAX), BaselineRequest)


def write_request(store: Location, request: BaselineRequest) -> None:
    """Write a request, or what came of it; a StoreError if that fails."""
    place = store / BASELINE_REQUEST
    with explain_io_errors(place, "written"):
        replace(place, seal(request))
