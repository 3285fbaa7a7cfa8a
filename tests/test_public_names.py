"""The public names: where they are, what they are, and what the last release called them."""

import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import stillframe
import stillframe.analytics
import stillframe.pipeline
import stillframe.services
import stillframe.sim
import stillframe.spark
from stillframe.public_names import RENAMED
from tests.doc_pages import blocks

ROOT = Path(__file__).parent.parent
ON_SPARK = ("stillframe.spark", "stillframe.analytics")
PACKAGES = (
    *("stillframe", "stillframe.pipeline", "stillframe.sim", "stillframe.trace"),
    *("stillframe.tracefile", "stillframe.cuts", "stillframe.importer", "stillframe.services"),
    *("stillframe.runtime.events", *ON_SPARK),
)
NAMES = [
    (package, name) for package in PACKAGES for name in importlib.import_module(package).__all__
]
NEEDS_PYSPARK = {f"{package}.{name}" for package, name in NAMES if package in ON_SPARK}


def resolved(package: str, name: str) -> object:
    """Return the object of a public name; skip the test if it needs PySpark and that is missing."""
    if package in ON_SPARK:
        pytest.importorskip("pyspark", reason="needs PySpark")
    return getattr(importlib.import_module(package), name)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_is_there_with_a_docstring(package: str, name: str) -> None:
    """Under the name that its class or function has, with types of all arguments and results."""
    found = resolved(package, name)
    if (package, name) in ALIASES:
        return
    assert inspect.isclass(found) or inspect.isfunction(found)
    assert found.__name__ == name
    assert inspect.getdoc(found), "it has no docstring"
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        parts = [*(one.annotation for one in signature.parameters.values())]
        assert inspect.Signature.empty not in (*parts, signature.return_annotation)


ALIASES = {
    ("stillframe", "ProcessId"),
    ("stillframe", "Quantities"),
    ("stillframe.cuts", "Predicate"),
    ("stillframe.sim", "Effect"),
    ("stillframe.runtime.events", "Event"),
    ("stillframe.sim", "Choice"),
    ("stillframe.trace", "Cut"),
    ("stillframe.trace", "Step"),
}
"""Names of types that are no classes."""


def test_names_are_sorted_and_found_by_a_type_checker() -> None:
    """What is imported lazily is what a type checker sees, and what ``__all__`` says."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        assert sorted(module.__all__) == module.__all__, package
    for lazy in (stillframe, stillframe.services, stillframe.sim):
        block = inspect.getsource(lazy).partition("if TYPE_CHECKING:")[2]
        seen = re.sub(r"from [\w.]+ import|[(),]", " ", block.partition("__all__")[0]).split()
        assert sorted(seen) == lazy.__all__
        assert sorted(" ".join(lazy._MODULES.values()).split()) == lazy.__all__


def test_a_notebook_completes_names_that_are_not_imported_yet() -> None:
    """It takes them from ``dir``."""
    program = "import stillframe; print(*dir(stillframe))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(stillframe.__all__) <= set(done.stdout.split())


def test_the_package_has_its_version() -> None:
    """It is read when it is used."""
    assert stillframe.__version__ == importlib.metadata.version("stillframe")


def test_a_service_needs_only_what_it_uses() -> None:
    """Attaching imports no client of HTTP and no gRPC."""
    program = (
        "import sys; from stillframe.services import Message, attach; "
        "print(callable(attach), {'fastapi', 'google', 'grpc', 'httpx'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True set()\n"


METHODS = {old for old in RENAMED if old.startswith("stillframe.pipeline.Pipeline.")}


@pytest.mark.parametrize("old", sorted(RENAMED.keys() - METHODS))
def test_an_old_name_still_works_and_says_what_is_new(old: str) -> None:
    """With a DeprecationWarning at the line that uses it."""
    package, _, name = old.rpartition(".")
    if package == "stillframe.spark":
        pytest.importorskip("pyspark", reason="needs PySpark")
    module = importlib.import_module(package)
    with pytest.warns(
        DeprecationWarning, match=re.escape(f"{old} is removed in 0.3: use ")
    ) as caught:
        found = getattr(module, name)
    assert caught[0].filename == __file__
    new, _, attribute = RENAMED[old].rpartition(".")
    expected = getattr(importlib.import_module(new), attribute, None)
    assert found is (expected or importlib.import_module(RENAMED[old]))


def test_old_names_of_methods_still_work(tmp_path: Path) -> None:
    """As those of functions and classes do; any other name is missing."""
    pipeline = stillframe.Pipeline.create(tmp_path / "shop", queries=["q"], channels=[])
    for old in sorted(METHODS):
        with pytest.warns(DeprecationWarning, match=f"use {RENAMED[old]}$") as caught:
            found = getattr(pipeline, old.rpartition(".")[2])
        assert caught[0].filename == __file__
        assert found == getattr(pipeline, RENAMED[old].rpartition(".")[2])
    with pytest.raises(AttributeError, match=r"class .* has no attribute 'nothing'"):
        getattr(pipeline, "nothing")  # noqa: B009 - a type checker knows that it is missing


def test_old_names_are_no_public_names() -> None:
    """Each has one new name, which is documented instead."""
    assert not {f"{package}.{name}" for package, name in NAMES} & RENAMED.keys()


@pytest.mark.parametrize("package", [*PACKAGES, "stillframe.detect.view"])
def test_any_other_name_is_missing(package: str) -> None:
    """As in every module."""
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing


PROGRAM = '''
    """A small program of a user."""

    from collections.abc import Callable
    from pathlib import Path

    import httpx
    import stillframe
    from observed import SETTINGS
    from stillframe import (
        Abandoned,
        Channel,
        Damaged,
        ExternalProcess,
        Message,
        Pipeline,
        Process,
        SnapshotView,
        Topology,
        every,
    )
    from stillframe.analytics import audit_store
    from stillframe.pipeline import JoinedTopicService, channel
    from stillframe.services import ObservedTransport, attach
    from stillframe.sim import Effect, Marker, Recorder, SmallSystem, assemble, explore, replay
    from stillframe.spark import register, start_query

    VERSION: str = stillframe.__version__


    class Coin(Message):
        amount: int


    class Purse(Process):
        balance: int = 100

        def receive(self, channel: Channel, message: Coin) -> None:
            self.balance += message.amount

        @every(ms=10)
        def pay(self) -> None:
            self.send(self.outgoing[0], Coin(1))


    class Books:
        total: int = 0


    bank = Topology.mesh({"A": Purse(), "B": ExternalProcess(state=Books, accepts=Coin)})


    def is_rich(view: SnapshotView) -> bool:
        return sum(len(messages) for messages in view.channels.values()) > 3


    def newest(path: Path) -> int:
        store = stillframe.open_store(path, topology=bank)
        try:
            loaded = store.load("newest")
        except Damaged as damage:
            print(damage.path, damage.remedy)
            raise
        entry: stillframe.SnapshotEntry = loaded.entry
        predicate: Callable[[SnapshotView], bool] = is_rich
        return entry.message_count if predicate(loaded.view) else 0


    def drive(path: Path) -> float:
        with stillframe.run(bank, store=path, interval_s=None) as system:
            outcome = system.snapshot()
            if isinstance(outcome, Abandoned):
                print(outcome.reason, outcome.missing)
                return 0.0
            return outcome.duration_s


    async def join(path: Path, books: Books) -> None:
        async with stillframe.join("B", topology=bank, store=path, state=books) as me:
            async for source, message in me:
                books.total += message.amount
                await me.send(source.source, Coin(1))


    def serve(path: Path) -> None:
        with Pipeline(path).join_service("books", state=Books()) as me:
            for name, table in me:
                print(name, table.num_rows)
            name, table = me.receive()
            if (received := me.receive(timeout_s=0.1)) is not None:
                name, table = received


    def pass_on(path: Path) -> None:
        with Pipeline(path).join_service("books", state=Books(), kind=JoinedTopicService) as me:
            _, records = me.receive()
            me.append("sums", records[0].value or "", key=records[0].key)


    def balance(path: Path) -> int:
        loaded = stillframe.open_store(path, topology=bank).load()
        return loaded.process("A", Purse).balance + loaded.view.process("B", Books).total


    class Rules(Recorder):
        def marker(self, source: str, marker: Marker) -> list[Effect]:
            return super().marker(source, marker)


    def examine() -> tuple[Message | Marker, ...]:
        small = SmallSystem(
            topology=bank, acts={"A": ("pay", "initiates A-1", "pay")}, recorder=Rules
        )
        found = explore(small, invariants={"some": lambda it: it.process("A", Purse).balance > 0})
        world = replay(small, found.broken["some"].run)
        for choice in world.enabled():
            print(choice)
        print(assemble(bank, world.fragments("A-1").values()).state, bank.processes["A"])
        return world.in_transit(bank.channels[0])


    async def shop(app: object, books: Books) -> None:
        agent = attach(app, service="shop", state=books, **SETTINGS)
        async with httpx.AsyncClient(transport=ObservedTransport(agent)) as client:
            await client.get("http://bank")
'''
WRONG = """
    import stillframe
    import stillframe.analytics
    import stillframe.sim, stillframe.spark

    stillframe.open_shop("x"), stillframe.spark.detect, stillframe.analytics.detekt
    store = stillframe.open_store("x")
    store.load(17)
    stillframe.run(store, store="x")
    store.load().process("A", dict).balance
    with stillframe.Pipeline("x").join_service("books", state=store) as me:
        me.append("x", b"", key=b"")


    class Rules(stillframe.sim.Recorder):
        def settle(self, last_number: int) -> None: ...
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_types_of_a_user(tmp_path: Path) -> None:
    """``mypy --strict`` accepts a program, and finds the mistakes of another one: the types of the
    installed package are found (``py.typed``), and none is Any that need not be."""
    programs = {"good.py": textwrap.dedent(PROGRAM), "wrong.py": textwrap.dedent(WRONG)}
    for page, name in (("services.md", "observed.py"), ("kafka.md", "ledger.py")):
        found = blocks("python", (ROOT / "docs" / page).read_text(encoding="utf-8"))
        (programs[name],) = (one for one in found if one.startswith(f"# {name}"))
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".cache", *programs],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith("wrong.py")] == []
    assert [re.sub(r"^wrong.py:(\d+):.*\[([\w-]+)\]$", r"\1 \2", line) for line in errors] == [
        *["6 attr-defined"] * 3,
        "8 arg-type",
        "9 arg-type",
        "10 attr-defined",
        "12 call-arg",
        "16 misc",
    ]
