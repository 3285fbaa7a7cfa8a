"""What is recorded of the data, and how: the pipeline, and what the commands say of all of it."""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.eventlog import reader
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import join
from stillframe.store.fragments import find_fragments, read_fragment, read_topologies
from tests.golden import travelling
from tests.golden.systems import SALES, Books, Till
from tests.store.format_reader import Reader, id_of

HERE = Path(__file__).parent
DATA = HERE / "data"
DATA_2 = HERE / "data-2"
"""What 0.2.0 writes."""
EXPECTED = HERE / "expected.json"
EXPECTED_2 = HERE / "expected-2.json"
WIRE = HERE / "wire-2.json"
WIRE_1 = HERE / "wire.json"
"""What 0.1.0 wrote."""
CHECKSUMS = HERE / "checksums.json"
SHOWN_COUNT = 3
"""So many rows of each file of an event log are in the expected results; of all there is a hash."""

FORMER = {"is_current": "is_of_present_course"}
WORDS = ("found", "sentence", "what", "why")
"""What is said in words for people, which may be said better one day."""
NEW = ("version", "is_message_count_exact", "filled_count", "consistent_cut_count_min")
"""Keys that 0.1.0 did not have."""

COMMANDS = (
    "verify store",
    "verify store A-4",
    "list store",
    *(f"show store {one}" for one in "A-2 B-3 A-4 A-6 A-7 A-8 B-9 A-10".split()),
    "show store audited --books",
    "diff store A-2 B-3",
    "diff store A-4 A-6",
    "diff store A-8 A-10",
    "history store",
    "detect store termination",
    "detect store deadlock",
    "detect store loss",
    "detect store tests.golden.systems:has_paid",
    "restore store --dry-run",
    "restore store audited --dry-run",
    "verify migrated",
    "list migrated",
    "show migrated G-1",
    "show migrated G-2",
    "diff migrated G-1 G-2",
    "history migrated",
    "restore migrated G-1 --dry-run",
    "cuts imported.trace",
    "cuts lecture.trace",
    "cuts lecture.trace --prove P1-1",
    "sim lecture.run",
    "spark list shop.pipeline",
    *(f"spark show shop.pipeline shop-{number}" for number in (1, 2, 4, 5)),
    "spark show shop.pipeline",
    "spark progress shop.pipeline",
    "spark list counted.pipeline",
    "spark show counted.pipeline gold",
)
"""What is asked of the data, each with ``--json``; what is a path is one in the data."""


def run(root: Path, command: str) -> tuple[int, str]:
    """Run a command of which one word is a path in `root`; return its exit code and output."""
    words = [str(root / word) if (root / word).exists() else word for word in command.split()]
    with mock.patch.object(sys, "path", list(sys.path)):
        result = CliRunner().invoke(app, words)
    return result.exit_code, result.stdout


def answer(root: Path, command: str) -> dict[str, Any]:
    """Return what a command says with ``--json``, with paths as they are in the data."""
    exit_code, output = run(root, f"{command} --json")
    text = output.replace(str(root), "ROOT")
    says = json.loads(text, object_hook=without_words) if text else None
    return {"exit_code": exit_code, "says": says}


def without_words(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what is said in words for people, and without the keys that 0.1.0
    did not have; a key that was called otherwise then gets that name."""
    return {
        FORMER.get(key, key): value for key, value in document.items() if key not in WORDS + NEW
    }


def logged(root: Path) -> dict[str, Any]:
    """Return what is in each file of the event log."""
    found = {}
    for part in reader.list_segments(root / "log"):
        rows = [row for table in reader.read_segment(part) for row in table.to_pylist()]
        text = msgspec.json.encode(rows, order="deterministic")
        found[Path(str(part.path)).relative_to(root).as_posix()] = {
            "row_count": part.row_count,
            "span": msgspec.to_builtins(part.header),
            "first_rows": json.loads(msgspec.json.encode(rows[:SHOWN_COUNT])),
            "hash": hashlib.sha256(text).hexdigest(),
        }
    return found


def fragments(root: Path) -> dict[str, Any]:
    """Return the manifest of each fragment, and what they are parts of."""
    directory = root / "fragments"
    topologies = read_topologies(directory)
    found: dict[str, Any] = {"topologies": msgspec.to_builtins(topologies)}
    for place in find_fragments(directory):
        manifest = read_fragment(directory, place, topologies)
        name = place.path(directory).relative_to(root).as_posix()
        found[name] = msgspec.to_builtins(manifest)
    return found


def answers(root: Path) -> Iterator[tuple[str, Any]]:
    """Yield what is asked of the data in `root`, and what comes of it."""
    for command in COMMANDS:
        yield command, answer(root, command)
    yield "log", logged(root)
    yield "fragments", fragments(root)


def answers_2(root: Path) -> dict[str, Any]:
    """Return what the data of 0.2.0 in `root` say to the reader of the document, and what is in
    the event log, the fragments and the pipeline."""
    reader = Reader(root / "store")
    states = {}
    for snapshot in reader.snapshots():
        processes, channels = reader.read(snapshot)
        text = json.dumps([processes, [*channels.items()]], default=repr)
        states[snapshot] = {
            "based_on": sorted(
                {id_of(one) for one in (reader.manifest(snapshot)["bases"] or {}).values()}
            ),
            "in_flight": sum(map(len, channels.values())),
            "hash": hashlib.sha256(text.encode()).hexdigest(),
        }
    manifests = Pipeline(root / "shop.pipeline").snapshots()
    found = {
        "savepoints": reader.savepoints,
        "store": states,
        "log": logged(root),
        "fragments": fragments(root),
        "pipeline": [msgspec.to_builtins(manifest, enc_hook=str) for manifest in manifests],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=repr))
    return plain


def sales(*amounts: int) -> pa.Table:
    """Return records of sales."""
    return pa.table({"amount": amounts}, schema=SALES)


def sell(shop: Pipeline, *amounts: int) -> None:
    """Run the till until it has sold something for each of `amounts`."""
    till = Till()
    with join("till", pipeline=shop.path, state=till) as me:
        for amount in amounts:
            till.sold += amount
            me.append("sales", sales(amount))


def add_up(shop: Pipeline, count: int) -> Books:
    """Run the books until they have read `count` sales."""
    books = Books()
    with join("books", pipeline=shop.path, state=books) as me:
        for _ in range(count):
            _, table = next(iter(me))
            books.total += sum(table["amount"].to_pylist())
            books.notes[str(books.total)] = "noted"
            me.append("totals", sales(books.total))
    return books


def make_pipeline(path: Path) -> None:
    """Make a pipeline of two services, and a query that has not run, in its second epoch."""
    shop = Pipeline.create(
        path,
        services={"till": Till, "books": Books},
        queries=["audit"],
        channels=[
            channel("sales", SALES, source="till", targets=["books"]),
            channel("totals", SALES, source="books", targets=["audit"], partition_count=2),
        ],
    )
    sell(shop, 5, 6, 7)
    add_up(shop, 1)
    shop.snapshot("unaligned")
    add_up(shop, 1)
    shop.savepoint("gold", "unaligned")
    with join("till", pipeline=path, state=Till()):
        shop.snapshot("unaligned", timeout_s=0.5)  # it is abandoned
    add_up(shop, 1)
    shop.snapshot("at-least-once")
    shop.restore("gold")
    sell(shop, 10)
    add_up(shop, 1)
    shop.snapshot("aligned")
    sell(shop, 11)


def write_expected() -> None:
    """Write what the commands say of the data now, a line for each answer."""
    with tempfile.TemporaryDirectory() as place:
        root = shutil.copytree(DATA, Path(place) / "data")
        lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in answers(root)]
    EXPECTED.write_text("\n".join(["{", ",\n".join(lines), "}", ""]), encoding="utf-8")


def write_wire() -> None:
    """Write the bytes of every example, a line for each."""
    texts = {
        name: travelling.text_of(case.encode(case.example))
        for name, case in travelling.cases().items()
    }
    WIRE.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")


def checksums() -> dict[str, str]:
    """Return the SHA-256 of each recorded file, or of all files in a directory of the data."""
    found = {}
    for path in (
        *sorted(HERE.glob("expected*.json")),
        WIRE_1,
        WIRE,
        *sorted(DATA.iterdir()),
        *sorted(DATA_2.iterdir()),
    ):
        digest = hashlib.sha256()
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.relative_to(HERE).as_posix()}\n".encode())
                digest.update(file.read_bytes())
        found[path.relative_to(HERE).as_posix()] = digest.hexdigest()
    return found


def write_checksums() -> None:
    """Write the SHA-256 of each recorded file."""
    CHECKSUMS.write_text(json.dumps(checksums(), indent=1) + "\n", encoding="utf-8")
