"""DESIGN section 3 as a test: imports go down only; the pure layers import nothing that acts."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "stillframe"

LAYERS = (
    ("channel_accounting", "errors", "model"),
    (
        *"trace cuts waiting process keyed outbox restorable".split(),
        *"state_codec keyed_changes topology".split(),
        "ordered_sets",
    ),
    ("protocol",),
    ("durable_files", "imports", "public_names"),
    ("storage", "secret_files"),
    ("json_values",),
    ("store", "restore", "importer", "tracefile", "eventlog", "diagram"),
    ("detect",),
    ("pipeline", "migration", "snapshot_store"),
    ("sim", "runtime"),
    ("spark", "pages", "running_system", "services"),
    ("analytics",),
    ("watch",),
    ("cli", "examples"),
    ("__main__",),
)
RUNTIME_LAYERS = (
    ("os_process", "loop_signals"),
    ("network",),
    ("control", "run_file", "events"),
    ("process", "coordinator"),
    ("supervisor",),
)
"""The same inside ``runtime``. Parts of one level do not import each other: a process and the
coordinator share only what is below both."""
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
RUNTIME_LAYER_OF = {name: number for number, names in enumerate(RUNTIME_LAYERS) for name in names}
PURE_LAYER_MAX = 2
"""Up to here the parts of a layer are single modules of one design and may import each other."""

PURE_IMPORTS = frozenset(
    "bisect collections collections.abc copy dataclasses enum functools json struct typing types "
    "inspect re hashlib hmac datetime decimal uuid itertools math operator msgspec sys".split()
)
"""``sys`` for the flags with which Python was started."""
IMPORT_CPU_S_MAX = 0.2
NEVER_AT_IMPORT = {"asyncio", "pyarrow", "pyspark"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(source: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever in it the import stands."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            if module == "stillframe":
                yield from (f"stillframe.{alias.name}" for alias in statement.names)
            else:
                yield module


def layer_errors(importer: str, source: str) -> list[str]:
    """Return what is wrong with the imports of a module of the part `importer`, as sentences."""
    errors = []
    layer = LAYER_OF[importer]
    for name in imports_of(source):
        package, _, rest = name.partition(".")
        if package != "stillframe":
            if layer <= PURE_LAYER_MAX and name not in PURE_IMPORTS:
                errors.append(f"{importer} is pure and must not import {name}")
            continue
        imported = rest.partition(".")[0]
        if imported not in LAYER_OF:
            errors.append(f"{importer} imports {name}: import the module that defines it")
        elif imported != importer and (
            LAYER_OF[imported] > layer or (LAYER_OF[imported] == layer and layer > PURE_LAYER_MAX)
        ):
            errors.append(f"{importer} (layer {layer}) must not import {name}: go down only")
    return errors


def runtime_errors(importer: str, source: str) -> list[str]:
    """Return what is wrong with the imports of a module of `importer`, a part of ``runtime``."""
    layer = RUNTIME_LAYER_OF[importer]
    errors = []
    for name in imports_of(source):
        if name == "stillframe.runtime":
            names = [n for part in ast.walk(ast.parse(source)) for n in _named_from(part, name)]
        elif name.startswith("stillframe.runtime."):
            names = [name.split(".")[2]]
        else:
            continue
        errors += [
            f"{importer} (layer {layer}) must not import runtime.{imported}: go down only"
            for imported in names
            if imported != importer and RUNTIME_LAYER_OF[imported] >= layer
        ]
    return errors


def _named_from(statement: ast.AST, module: str) -> list[str]:
    if isinstance(statement, ast.ImportFrom) and statement.module == module:
        return [alias.name for alias in statement.names]
    return []


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to: its folder or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down_only() -> None:
    """Each module imports only from layers below its own, and the pure ones nothing that acts."""
    found = {}
    for path in MODULES:
        if part_of(path) in ("__init__", "examples"):  # examples import what users do
            continue
        assert part_of(path) in LAYER_OF, f"{path.name} is in no layer: name it in LAYERS"
        found[str(path)] = layer_errors(part_of(path), path.read_text(encoding="utf-8"))
    assert {path: errors for path, errors in found.items() if errors} == {}


def test_imports_inside_the_runtime_go_down_only() -> None:
    """Network below process and coordinator, which do not know each other, below supervisor."""
    runtime = PACKAGE / "runtime"
    found = {}
    for path in sorted(runtime.rglob("*.py")):
        part = path.relative_to(runtime).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in RUNTIME_LAYER_OF, f"{path.name} is in no layer: name it in RUNTIME_LAYERS"
        found[str(path)] = runtime_errors(part, path.read_text(encoding="utf-8"))
    assert {path: errors for path, errors in found.items() if errors} == {}


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("network", "from stillframe.runtime import control"),
        ("process", "from stillframe.runtime.coordinator.membership import Membership"),
        ("coordinator", "def late():\n    import stillframe.runtime.process.host"),
        ("process", "from stillframe.runtime.supervisor import supervisor"),
    ],
)
def test_a_wrong_import_inside_the_runtime_is_found(importer: str, source: str) -> None:
    """This rule has teeth too."""
    assert len(runtime_errors(importer, source)) == 1


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("protocol", "import time"),
        ("model", "from pathlib import Path"),
        ("trace", "from stillframe.protocol.wire import Frame"),
        ("store", "from stillframe import sim"),
        ("sim", "def late():\n    import stillframe.runtime.process.host"),
        ("pages", "from stillframe.analytics.audit import audit"),
        ("spark", "from stillframe import Channel"),
        ("spark", "from stillframe.analytics.audit import audit"),
    ],
)
def test_a_wrong_import_is_found(importer: str, source: str) -> None:
    """The rule has teeth: each of these imports is refused."""
    assert len(layer_errors(importer, source)) == 1


def module_name(path: Path) -> str:
    """Return the dotted name of a module; a package has that of its directory."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, known: Collection[str]) -> set[str]:
    """Return which of the `known` modules a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            inner = {f"{module}.{alias.name}" for alias in statement.names}
            found.update(inner & set(known))
            if not inner <= set(known):
                found.add(module)
    return found & set(known)


def import_cycle(sources: dict[str, str]) -> list[str]:
    """Return modules of which each imports the next one, and the last the first; empty if none."""
    graph = {name: imported_modules(text, sources) - {name} for name, text in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_no_modules_import_each_other() -> None:
    """Not even inside a function, or for types alone."""
    assert import_cycle({module_name(p): p.read_text(encoding="utf-8") for p in MODULES}) == []


def test_an_import_cycle_is_found() -> None:
    """The rule has teeth."""
    found = import_cycle(
        {"a": "import b", "b": "def late():\n    from c import x", "c": "import a"}
    )
    assert sorted(set(found)) == ["a", "b", "c"]


def test_importing_stillframe_is_cheap_and_starts_nothing() -> None:
    """``import stillframe`` loads neither Spark, pyarrow nor asyncio, and takes under 0.2 s."""
    program = (
        "import time; begin = time.process_time(); import stillframe; "
        "took_s = time.process_time() - begin; import sys; "
        f"print(took_s, *sorted({NEVER_AT_IMPORT!r} & sys.modules.keys()))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT / "src")},
        ).stdout.split()
        for _ in range(3)
    ]
    assert [loaded for _, *loaded in answers] == [[], [], []]
    assert min(float(took_s) for took_s, *_ in answers) < IMPORT_CPU_S_MAX


NOT_IN_A_PLAIN_PROCESS = (
    "_cffi_backend",
    "cryptography",
    "duckdb",
    "numpy",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "stillframe.eventlog",
    "stillframe.migration",
    "stillframe.pipeline",
    "stillframe.runtime.coordinator",
    "stillframe.runtime.process.event_logging",
    "stillframe.runtime.process.fragment_recorder",
    "stillframe.runtime.process.pipeline_logs",
    "stillframe.runtime.supervisor",
    "stillframe.store.fragments",
    "stillframe.store.store",
    "typer",
)
"""What a process loads only if it uses it, each with all that is in it: many begin at once, and a
process has the memory of all that it loads."""


def loaded_of(names: tuple[str, ...], program: str) -> list[str]:
    """Return which of `names` a fresh interpreter has loaded that has run `program`."""
    program += f"\nimport sys; print(*(name for name in {names!r} if name in sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    ).stdout.split()


@pytest.mark.parametrize("module", ["process_main", "fork_server", "join"])
def test_a_plain_process_loads_only_what_it_uses(module: str) -> None:
    """A process that is started, what it is forked from, and a program that joins."""
    program = f"import stillframe.runtime.process.{module}"
    if module == "join":
        program += "; from stillframe import Keyed, Message, Process, Topology, every, join"
    assert loaded_of(NOT_IN_A_PLAIN_PROCESS, program) == []


def test_a_program_of_a_pipeline_loads_no_pandas(tmp_path: Path) -> None:
    """Neither one that makes a pipeline nor one that opens it, such as each source of a query."""
    program = (
        "import pyarrow as pa\n"
        "from pathlib import Path\n"
        "from stillframe.pipeline import Pipeline, channel, metadata\n"
        "log = channel('numbers', pa.schema([('n', pa.int64())]), source='sums')\n"
        f"root = Path({str(tmp_path)!r}, 'pipeline')\n"
        "Pipeline.create(root, queries=['sums'], channels=[log])\n"
        "metadata.read_metadata(root)"
    )
    assert loaded_of(("pandas", "pyarrow.dataset"), program) == []


def test_what_a_plain_process_must_not_load_is_there_to_be_loaded() -> None:
    """The list has teeth: each of its names is a module that can be loaded, and is seen then."""
    program = "\n".join(f"import {name}" for name in NOT_IN_A_PLAIN_PROCESS)
    assert loaded_of(NOT_IN_A_PLAIN_PROCESS, program) == list(NOT_IN_A_PLAIN_PROCESS)
