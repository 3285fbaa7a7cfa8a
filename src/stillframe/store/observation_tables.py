"""An observation of services as Parquet files, and back.

The columns `encoded` hold everything as it was recorded, as MessagePack. All other columns repeat
it for queries with any reader of Parquet.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.errors import NotConsistent, StoreError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.protocol.activities import InstanceState, service_of
from stillframe.protocol.calls import (
    NOTHING,
    Accepted,
    Amounts,
    CallPlace,
    InstanceFragment,
    Located,
    Observation,
    ServedCall,
    TimedOutCall,
    add_amounts,
)
from stillframe.store.parquet import check_columns, read_parquet
from stillframe.store.tables import CONVERSION_ERRORS, to_array
from stillframe.topology import Column

INSTANCES = "instances.parquet"
STATES = "states.parquet"
CALLS = "calls.parquet"
UNRESOLVED = "unresolved.parquet"
FAREWELLS = "farewells.parquet"
FILES = (INSTANCES, STATES, CALLS, UNRESOLVED, FAREWELLS)
"""The files of an observation, in the order in which a manifest lists them. The last one is there
if it has a row."""

KINDS = NOT_AWAITED, LATE, DUPLICATE, ORPHAN = ("not awaited", "late", "duplicate", "orphan")
"""The kinds of unresolved calls."""
_TEXT, _COUNT, _NUMBER, _BYTES = pa.string(), pa.int64(), pa.float64(), pa.binary()
STATUS = "status"
OPTIONAL = {STATUS: _COUNT}
"""The columns that older builds did not write."""
_INSTANCE = {
    "observation": _COUNT,
    "instance": _TEXT,
    "service": _TEXT,
    "sent_count": _COUNT,
    "call_count": _COUNT,
    "served_count": _COUNT,
}
_SCHEMAS = {
    INSTANCES: {
        **_INSTANCE,
        "held": _TEXT,
        "conserved": _TEXT,
        "ignored_count": _COUNT,
        "lost": _TEXT,
        "encoded": _BYTES,
    },
    STATES: {
        "observation": _COUNT,
        "instance": _TEXT,
        "service": _TEXT,
        "field": _TEXT,
        "value": _TEXT,
        "number": _NUMBER,
    },
    CALLS: {
        "observation": _COUNT,
        "call": _TEXT,
        "caller": _TEXT,
        "service": _TEXT,
        "target": _TEXT,
        "name": _TEXT,
        "place": _TEXT,
        "is_awaited": pa.bool_(),
        "began_at": _NUMBER,
        "deadline": _NUMBER,
        "serving": _TEXT,
        "served_by": _TEXT,
        "amounts": _TEXT,
        "fields": _TEXT,
        STATUS: _COUNT,
        "encoded": _BYTES,
    },
    UNRESOLVED: {
        "observation": _COUNT,
        "kind": _TEXT,
        "call": _TEXT,
        "instance": _TEXT,
        "target": _TEXT,
        "name": _TEXT,
        "place": _TEXT,
        "known": _TEXT,
        "amounts": _TEXT,
        "brought": _TEXT,
        STATUS: _COUNT,
        "encoded": _BYTES,
    },
    FAREWELLS: {**_INSTANCE, "encoded": _BYTES},
}
SCHEMAS = {name: pa.schema(list(columns.items())) for name, columns in _SCHEMAS.items()}
"""The columns of each file."""
_NULLABLE = {
    INSTANCES: (),
    STATES: ("value", "number"),
    CALLS: ("deadline", "serving", "served_by", STATUS),
    UNRESOLVED: ("instance", "target", STATUS, "encoded"),
    FAREWELLS: (),
}
_VALUE = Column("value", "json")
_Read = TypeVar("_Read")
Row = dict[str, Any]


def _refuse_extension(code: int, _content: memoryview) -> Any:
    raise msgspec.ValidationError(f"a value has the MessagePack extension type {code}")


# Sets and maps in one order, so that equal values have equal bytes.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_fragment = msgspec.msgpack.Decoder(InstanceFragment).decode
_decode_located = msgspec.msgpack.Decoder(Located).decode
_decode_accepted = msgspec.msgpack.Decoder(Accepted).decode
_decode_fields = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_refuse_extension).decode


class Unresolved(msgspec.Struct, frozen=True):
    """A call that its caller does not wait for, and what is known about it.

    Attributes:
        kind: `NOT_AWAITED`, `LATE`, `DUPLICATE` or `ORPHAN`.
        call: the call.
        instance: the instance that has accepted it, if one has. Several are separated by commas.
        target: the address to which it was sent, if its caller's record is known.
        name: what was called, if that is known.
        place: where it is.
        known: what is known about it, as a sentence.
        amounts: the amounts of its messages that no state contains.
        fields: those fields of the request's body that may be stored, as JSON.
        status: the status of its answer, if it has one.
    """

    kind: str
    call: str
    instance: str | None
    target: str | None
    name: str
    place: CallPlace
    known: str
    amounts: dict[str, int]
    fields: dict[str, str]
    status: int | None


def state_of(fragment: InstanceFragment) -> InstanceState:
    """Return the state in a fragment."""
    assert isinstance(fragment.state, InstanceState)
    return fragment.state


def fields_of(fragment: InstanceFragment) -> dict[str, Any]:
    """Return the fields of the state that the application of an instance captured."""
    return _decode_fields(state_of(fragment).encoded)


def unresolved_of(observation: Observation) -> list[Unresolved]:
    """Return the calls that their callers do not wait for."""
    return [one for one, _, _ in _unresolved(observation)]


def _unresolved(observation: Observation) -> Iterable[tuple[Unresolved, Amounts, bytes | None]]:
    """Yield each unresolved call, the amounts that its request brought once more, and what another
    file does not hold of it."""
    for located in observation.calls:
        if not located.record.is_awaited:
            yield _of_located(NOT_AWAITED, located), NOTHING, None
    for located in observation.late:
        yield _of_located(LATE, located), NOTHING, _encode(located)
    for accepted in observation.duplicates:
        yield _of_accepted(DUPLICATE, accepted), accepted[1].brought, _encode(accepted)
    for accepted in observation.orphans:
        yield _of_accepted(ORPHAN, accepted), NOTHING, _encode(accepted)


def _of_located(kind: str, located: Located) -> Unresolved:
    record = located.record
    return Unresolved(
        kind,
        str(located.call),
        served_by(located),
        record.target or None,
        record.details.name,
        located.place,
        known_of(kind, located),
        located.amounts(),
        record.details.fields,
        located.status,
    )


def _of_accepted(kind: str, accepted: Accepted) -> Unresolved:
    name, served = accepted
    known = f"was accepted by {name}, {_progress(served)}; its caller is not connected"
    if kind == DUPLICATE:
        known = f"was accepted once more by {name}, {_progress(served)}"
    place = CallPlace.ANSWERED if served.number else CallPlace.SERVED
    details = served.details
    return Unresolved(
        *(kind, str(served.call), name, None, details.name),
        *(place, known, served.amounts(), details.fields, details.status),
    )


def _progress(served: ServedCall) -> str:
    return "which has answered" if served.number else "which still serves it"


def known_of(kind: str, located: Located) -> str:
    """Return what is known about a call whose caller has stopped waiting."""
    known = fate_of(located.timed_out())
    if kind == LATE:
        known = f"{known}; an earlier observation had found it not accepted"
    return known


def fate_of(call: TimedOutCall) -> str:
    """Return what is known of such a call, as a sentence without its subject."""
    count = len(call.accepted_by)
    times = f" {count} times," if count > 1 else ""
    accepted = f"was accepted{times} by {call.callee}"
    known = {
        CallPlace.REQUESTED: "was accepted by no instance; its request is in transit or lost",
        CallPlace.SERVED: f"{accepted}, which still serves it",
        CallPlace.ANSWERED: f"{accepted} and answered; the answer did not arrive",
        CallPlace.UNKNOWN: "may have been accepted by an instance that died or dropped its record",
        CallPlace.OUTSIDE: "was accepted by no instance that is observed; its target has never "
        "answered with a header",
    }[call.place]
    if call.place is CallPlace.OUTSIDE and call.was_answered:
        known = "was answered without a header; its effect is unknown"
    if not (call.accepted_by or call.was_sent):
        known = "was accepted by no instance; it was not sent, for lack of a connection"
    if call.was_returned:
        return f"{known}; its amounts were given back"
    if call.is_settled:
        return f"{known}; its application says that it took effect"
    return f"{known}; an operator has begun a baseline since" if call.was_given_up else known


def served_by(located: Located) -> str | None:
    """Return the instances that have accepted a call, separated by commas; None if none has."""
    return ", ".join(dict.fromkeys(name for name, _ in located.served)) or None


def ended_amounts(ended: Mapping[str, Amounts]) -> dict[str, int]:
    """Return by unit the amounts of instances that have ended, which are given by service."""
    found: dict[str, int] = {}
    for amounts in ended.values():
        add_amounts(found, amounts)
    return found


def amounts_of(observation: Observation) -> list[Row]:
    """Return for each unit where its amounts are.

    `outside_states` is the sum of the columns before it, without `doubled`. `total` is that with
    `held`, what states report, and `ended`.
    """
    columns = _amounts_by_column(observation)
    return [
        {"unit": unit} | {name: of.get(unit, 0) for name, of in columns.items()}
        for unit in _units(columns)
    ]


def amounts_table(observation: Observation) -> pa.Table:
    """Return the rows of ``amounts_of`` as a table, which has its columns without rows, too."""
    columns = _amounts_by_column(observation)
    units = _units(columns)
    found = {name: [of.get(unit, 0) for unit in units] for name, of in columns.items()}
    schema = pa.schema([("unit", _TEXT), *((name, _COUNT) for name in columns)])
    return pa.table({"unit": units} | found, schema)


def _units(columns: Mapping[str, Amounts]) -> list[str]:
    return sorted(set().union(*columns.values()))


def _amounts_by_column(observation: Observation) -> dict[str, dict[str, int]]:
    awaited: dict[str, int] = {}
    unresolved: dict[str, int] = {}
    lost: dict[str, int] = {}
    doubled: dict[str, int] = {}
    held: dict[str, int] = {}
    in_states: dict[str, int] = {}
    ended = ended_amounts(observation.ended)
    for located in observation.calls:
        add_amounts(awaited if located.record.is_awaited else unresolved, located.amounts())
    for located in observation.late:
        add_amounts(unresolved, located.amounts())
    for _, served in (*observation.duplicates, *observation.orphans):
        add_amounts(unresolved, served.amounts())
    for _, served in observation.duplicates:
        add_amounts(doubled, served.brought)
    for fragment in observation.fragments.values():
        add_amounts(lost, fragment.lost)
        add_amounts(held, state_of(fragment).held)
        add_amounts(in_states, state_of(fragment).conserved)
    for amounts in (observation.not_accepted, observation.lost):
        add_amounts(lost, amounts)
    add_amounts(doubled, observation.created)
    columns: dict[str, dict[str, int]] = {
        "in_open_calls": awaited,
        "in_unresolved_calls": unresolved,
        "lost": lost,
        "doubled": doubled,
        "outside_states": observation.outside_states(),
        "held": held,
        "in_states": in_states,
        "ended": ended,
        "unknown": dict(observation.unknown),
    }
    columns["total"] = {}
    for part in ("outside_states", "held", "in_states", "ended"):
        add_amounts(columns["total"], columns[part])
    return columns


# --- to tables


def to_tables(observation: Observation) -> dict[str, pa.Table]:
    """Return the tables of an observation by the names of their files, in their order.

    Raises:
        StoreError: a state is not a MessagePack map, or a value does not fit into its column.
    """
    fragments = [observation.fragments[name] for name in sorted(observation.fragments)]
    ends = [observation.ends[name] for name in sorted(observation.ends)]
    rows: dict[str, Iterable[Row]] = {
        INSTANCES: map(_instance_row, fragments),
        STATES: (row for fragment in fragments for row in _state_rows(fragment)),
        CALLS: map(_call_row, observation.calls),
        UNRESOLVED: (_unresolved_row(*one) for one in _unresolved(observation)),
        FAREWELLS: map(_common_row, ends),
    }
    try:
        tables = {name: _table(name, observation.number, rows[name]) for name in FILES}
    except (*CONVERSION_ERRORS, *DECODING_ERRORS) as error:
        raise StoreError(
            f"observation {observation.number} cannot be stored, because a value does not fit into "
            f"its column: {' '.join(text_of(error).split())}"
        ) from error
    if not ends:
        del tables[FAREWELLS]
    return tables


def _table(name: str, number: int, rows: Iterable[Row]) -> pa.Table:
    listed = [{"observation": number} | row for row in rows]
    columns = {field.name: [row[field.name] for row in listed] for field in SCHEMAS[name]}
    if name == STATES:
        return pa.table(
            columns
            | {
                "value": to_array(
                    _VALUE,
                    columns["value"],
                    lambda index: f"the state of {listed[index]['instance']}",
                )
            },
            SCHEMAS[name],
        )
    return pa.table(columns, SCHEMAS[name])


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(dict(sorted(value.items()))).decode()


def _common_row(fragment: InstanceFragment) -> Row:
    return {
        "instance": fragment.instance,
        "service": service_of(fragment.instance),
        "sent_count": fragment.sent_count,
        "call_count": len(fragment.calls),
        "served_count": len(fragment.served),
        "encoded": _encode(fragment),
    }


def _instance_row(fragment: InstanceFragment) -> Row:
    return _common_row(fragment) | {
        "held": _json(state_of(fragment).held),
        "conserved": _json(state_of(fragment).conserved),
        "ignored_count": state_of(fragment).ignored_count,
        "lost": _json(fragment.lost),
    }


def _state_rows(fragment: InstanceFragment) -> list[Row]:
    try:
        fields = fields_of(fragment)
    except DECODING_ERRORS as error:
        raise StoreError(
            f"the state of {fragment.instance} cannot be read: {text_of(error)}"
        ) from error
    return [
        {
            "instance": fragment.instance,
            "service": service_of(fragment.instance),
            "field": name,
            "value": value,
            "number": float(value) if type(value) in (int, float) else None,
        }
        for name, value in fields.items()
    ]


def _call_row(located: Located) -> Row:
    record, details = located.record, located.record.details
    return {
        "call": str(located.call),
        "caller": located.call.caller,
        "service": service_of(located.call.caller),
        "target": record.target,
        "name": details.name,
        "place": located.place.value,
        "is_awaited": record.is_awaited,
        "began_at": details.began_at,
        "deadline": details.deadline,
        "serving": None if record.serving is None else str(record.serving),
        "served_by": served_by(located),
        "amounts": _json(located.amounts()),
        "fields": _json(details.fields),
        "status": located.status,
        "encoded": _encode(located),
    }


def _unresolved_row(one: Unresolved, brought: Amounts, encoded: bytes | None) -> Row:
    row = msgspec.structs.asdict(one)
    amounts = {"amounts": _json(one.amounts), "brought": _json(brought)}
    return row | amounts | {"place": one.place.value, "encoded": encoded}


# --- and back


def read_table(name: str, content: bytes, columns: Collection[str] = ()) -> pa.Table:
    """Read a file of an observation, or some of its columns; ``parquet.as_written`` turns its
    errors into one."""
    schema = SCHEMAS[name]
    if columns:
        schema = pa.schema([field for field in schema if field.name in columns])
    table = read_parquet(content, schema.names, optional=OPTIONAL)
    filled = {column for column in schema.names if column not in _NULLABLE[name]}
    check_columns(table, schema, filled=filled)
    return table


def fragments_in(table: pa.Table) -> dict[str, InstanceFragment]:
    """Return the fragments in the table of instances.

    Raises:
        NotConsistent: an instance has two.
    """
    return {
        name: msgspec.structs.replace(one, state=msgspec.convert(one.state, InstanceState))
        for name, one in ends_in(table).items()
    }


def ends_in(table: pa.Table) -> dict[str, InstanceFragment]:
    """Return the fragments in the table of farewells, as they are.

    Raises:
        NotConsistent: an instance has two.
    """
    found: dict[str, InstanceFragment] = {}
    for fragment in _decoded(table, "encoded", _decode_fragment):
        if fragment.instance in found:
            raise NotConsistent(f"{fragment.instance} has two fragments")
        found[fragment.instance] = fragment
    return found


def calls_in(table: pa.Table) -> tuple[Located, ...]:
    """Return the calls in the table of calls."""
    return tuple(_decoded(table, "encoded", _decode_located))


def late_in(table: pa.Table) -> tuple[Located, ...]:
    """Return the late calls in the table of unresolved calls."""
    return tuple(_decoded(_of_kind(table, LATE), "encoded", _decode_located))


def accepted_in(table: pa.Table, kind: str) -> tuple[Accepted, ...]:
    """Return the duplicates or the orphans in the table of unresolved calls."""
    return tuple(_decoded(_of_kind(table, kind), "encoded", _decode_accepted))


def _of_kind(table: pa.Table, kind: str) -> pa.Table:
    return table.filter(pc.equal(table.column("kind"), kind))


def _decoded(table: pa.Table, column: str, decode: Callable[[bytes], _Read]) -> list[_Read]:
    return [decode(encoded) for encoded in table.column(column).to_pylist()]
