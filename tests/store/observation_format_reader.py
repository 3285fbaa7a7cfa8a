"""A reader of observations, written from ``docs/observation-format.md`` alone.

It imports nothing of Stillframe: Python, and pyarrow for Parquet.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.msgpack_reader import unpack

VERSION, VERSION_IN_BUCKETS, VERSION_OF_OBSERVATIONS = 2, 3, 4
SEALED = re.compile(rb'\{"content":(\{.*\}),"hash":"([0-9a-f]{64})"\}', re.DOTALL)
NUMBER = re.compile(r"[1-9][0-9]*")
FILES = ["instances.parquet", "states.parquet", "calls.parquet", "unresolved.parquet"]
FAREWELLS = "farewells.parquet"
MANIFEST = (
    "format number initiated_at completed_at is_exact baseline instance_count open_count "
    "unresolved_count partial disconnected not_accepted unknown lost created forgotten_count "
    "settled_calls settled_answers files baseline_why baseline_by baseline_at ended gone "
    "unknown_count double_spent"
)
COLUMNS = {
    "instances.parquet": "observation instance service sent_count call_count served_count held "
    "conserved ignored_count lost encoded",
    "states.parquet": "observation instance service field value number",
    "calls.parquet": "observation call caller service target name place is_awaited began_at "
    "deadline serving served_by amounts fields status encoded",
    "unresolved.parquet": "observation kind call instance target name place known amounts brought "
    "status encoded",
    FAREWELLS: "observation instance service sent_count call_count served_count encoded",
}
MEMBERS = {
    "fragment": "instance after observation state sent_count calls forgotten_through served "
    "answer_counts highest_accepted received dropped targets lost dropped_count partial statements "
    "statements_forgotten_through",
    "state": "encoded held conserved locks task_waits ignored_count arrivals",
    "located": "call record place served returned",
    "statement": "number call returned",
    "record": "number target carries serving retirement_count is_awaited was_answered stream "
    "details was_sent",
    "served": "call brought number answer stream details",
    "stream": "sent_count accepted_count carried forgotten_through",
    "details": "name activity began_at deadline fields has_unknown_amounts status",
}
PLACES = {"request in transit", "being served", "answer in transit", "unknown", "outside"}


class NotReadable(Exception):
    """The files are not what the page says."""


def sealed(path: Path, members: str, version: int = VERSION) -> dict[str, Any]:
    """Return the content of a sealed file, which has exactly these members."""
    found = SEALED.fullmatch(path.read_bytes())
    if found is None or hashlib.sha256(found[1]).hexdigest().encode() != found[2]:
        raise NotReadable(f"{path} was changed")
    content: dict[str, Any] = json.loads(found[1])
    expect(content, members)
    if content["format"] != version:
        raise NotReadable(f"{path} has format {content['format']}")
    return content


def expect(value: dict[str, Any], members: str) -> None:
    """Check the members of an object."""
    if sorted(value) != sorted(members.split()):
        raise NotReadable(f"it has the members {sorted(value)}, not {members}")


class Reader:
    """The observations in a directory, or in a copy, object by object, of an object store."""

    def __init__(self, path: Path, *, is_of_bucket: bool = False) -> None:
        self.path = path
        self.is_of_bucket = is_of_bucket
        version = VERSION_IN_BUCKETS if is_of_bucket else VERSION
        head = sealed(path / "observations.json", "format kind", version)
        if head["kind"] != "observations":
            raise NotReadable(f"{path} holds no observations")

    def ledger(self) -> tuple[int, bytes]:
        """Return the newest observation that the ledger knows of, and the ledger."""
        content = self._ledger()
        return content["number"], base64.b64decode(content["ledger"])

    def _ledger(self) -> dict[str, Any]:
        path = self.path / "ledger.json"
        if self.is_of_bucket:
            return sealed(path, "format number ledger token published", VERSION_OF_OBSERVATIONS)
        return sealed(path, "format number ledger", VERSION_OF_OBSERVATIONS)

    def numbers(self) -> list[int]:
        """Return the numbers of all observations."""
        if self.is_of_bucket:
            return list(self._ledger()["published"])
        names = [one.name for one in (self.path / "observations").iterdir()]
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def read(self, number: int) -> dict[str, Any]:
        """Return the manifest, fragments, calls and unresolved calls of an observation."""
        directory = self.path / "observations" / str(number)
        manifest = sealed(directory / "manifest.json", MANIFEST, VERSION_OF_OBSERVATIONS)
        names = [one["name"] for one in manifest["files"]]
        if manifest["number"] != number or names not in (FILES, [*FILES, FAREWELLS]):
            raise NotReadable(f"{directory} has another manifest")
        tables = {}
        for record in manifest["files"]:
            path = directory / record["name"]
            content = path.read_bytes()
            if len(content) != record["bytes"]:
                raise NotReadable(f"{path} has another length")
            if hashlib.sha256(content).hexdigest() != record["hash"]:
                raise NotReadable(f"{path} was changed")
            tables[path.name] = rows = pq.read_table(path).to_pylist()
            for row in rows:
                expect(row, COLUMNS[path.name])
                if row["observation"] != number:
                    raise NotReadable(f"{path} has a row of observation {row['observation']}")
        found = {
            "manifest": manifest,
            "fragments": [fragment(row["encoded"]) for row in tables["instances.parquet"]],
            "ends": [ended(row["encoded"]) for row in tables.get(FAREWELLS, [])],
            "states": tables["states.parquet"],
            "calls": [located(row["encoded"]) for row in tables["calls.parquet"]],
            "late": [],
            "duplicate": [],
            "orphan": [],
        }
        for row in tables["unresolved.parquet"]:
            if row["kind"] == "late":
                found["late"].append(located(row["encoded"]))
            elif row["kind"] in ("duplicate", "orphan"):
                found[row["kind"]].append(accepted(unpack(row["encoded"])))
            elif row["kind"] != "not awaited" or row["encoded"] is not None:
                raise NotReadable(f"a call is of the kind {row['kind']}")
        return found


def fragment(encoded: bytes) -> dict[str, Any]:
    """Return a fragment."""
    found = ended(encoded)
    expect(found["state"], MEMBERS["state"])
    return found


def ended(encoded: bytes) -> dict[str, Any]:
    """Return a fragment of an instance that has ended, or one that has a state."""
    found: dict[str, Any] = unpack(encoded)
    expect(found, MEMBERS["fragment"])
    for one in found["calls"]:
        record(one)
    for one in found["served"]:
        served(one)
    for one in found["statements"]:
        expect(one, MEMBERS["statement"])
    return found


def located(encoded: bytes) -> dict[str, Any]:
    """Return a located call."""
    found: dict[str, Any] = unpack(encoded)
    expect(found, MEMBERS["located"])
    record(found["record"])
    if found["place"] not in PLACES:
        raise NotReadable(f"there is no place {found['place']}")
    for one in found["served"]:
        accepted(one)
    return found


def accepted(one: list[Any]) -> list[Any]:
    """Return an instance with a served call."""
    _, call = one
    served(call)
    return one


def record(one: dict[str, Any]) -> None:
    """Check a call as its caller keeps it."""
    expect(one, MEMBERS["record"])
    expect(one["stream"], MEMBERS["stream"])
    expect(one["details"], MEMBERS["details"])


def served(one: dict[str, Any]) -> None:
    """Check a served call."""
    expect(one, MEMBERS["served"])
    expect(one["stream"], MEMBERS["stream"])
    expect(one["details"], MEMBERS["details"])


def outside_states(found: dict[str, Any]) -> dict[str, int]:
    """Return the sum of the page, for each unit."""
    total: Counter[str] = Counter()
    for one in (*found["calls"], *found["late"]):
        caller, instances = one["record"], [call for _, call in one["served"]]
        carried: Counter[str] = Counter()
        if one["place"] == "request in transit":
            carried.update(caller["carries"])
            kept_after(carried, caller["stream"], 0)
        if instances:
            kept_after(carried, caller["stream"], instances[0]["stream"]["accepted_count"])
            kept_after(carried, instances[0]["stream"], caller["stream"]["accepted_count"])
        for call in instances:
            carried.update(call["answer"])
        total.update(carried)
        for unit, amount in one["returned"].items():
            taken = sorted((0, amount, carried[unit]))[1]
            total[unit] -= taken
        for call in instances[1:]:
            total.subtract(call["brought"])
    for kind in ("duplicate", "orphan"):
        for _, call in found[kind]:
            total.update(call["answer"])
            kept_after(total, call["stream"], 0)
            if kind == "duplicate":
                total.subtract(call["brought"])
    for one in found["fragments"]:
        total.update(one["lost"])
    for amounts in ("not_accepted", "lost"):
        total.update(found["manifest"][amounts])
    total.subtract(found["manifest"]["created"])
    return dict(total)


def kept_after(total: Counter[str], stream: dict[str, Any], count: int) -> None:
    """Add the amounts of messages above a number."""
    for number, amounts in stream["carried"]:
        if number > count:
            total.update(amounts)


def is_exact(found: dict[str, Any]) -> bool:
    """Return what the page says of it."""
    manifest = found["manifest"]
    is_open = any(one["place"] in ("unknown", "outside") for one in found["calls"])
    reasons = ("partial", "gone", "unknown_count", "forgotten_count")
    return not (is_open or any(manifest[name] for name in reasons))
