"""Every program and command of the documents is run by a test, or stands here with a reason."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
RUN = ("python", "console", "sh", "bash", "shell", "yaml", "sql")
"""Languages of which every block must be run; others are output, files and pictures of formats."""

SIMULATOR = "tests/test_docs_simulator.py::test_the_programs_of_the_page_print_what_it_shows"
README = "tests/test_docs.py::test_the_readme_program_does_what_the_readme_shows"
PROVING = "tests/test_docs.py::test_the_commands_that_prove_do_what_the_page_says"
TUTORIAL = "tests/test_tutorial.py::test_the_tutorial_can_be_followed"
EXISTING = "tests/test_existing_program.py::test_two_programs_that_exist_become_a_system"
KUBERNETES = (
    "tests/test_kubernetes_page.py::test_their_commands_make_a_system_that_outlives_its_coordinator"
)
CLUSTER = "tests/spark/test_cluster_page.py::test_commands_and_program_of_the_page_run_on_a_cluster"
HISTORY = "tests/analytics/test_history_page.py::test_commands_and_programs_of_the_page"
CODE = "tests/migration/test_page.py::test_the_till_goes_on_with_new_code"
ALERTS = "tests/watch/test_dashboard.py::test_every_alert_asks_for_what_there_is"
MACHINES = "tests/cli/test_machines.py::test_the_commands_of_the_page_run_a_system"
PIPELINE = (
    "tests/spark/test_pipeline_page.py::test_the_programs_of_the_page_add_up_and_its_commands_work"
)
KAFKA = "tests/spark/test_kafka_page.py::test_two_ordinary_queries_become_a_pipeline"
DATABASE = (
    "tests/spark/test_ends.py::test_with_a_transaction_for_each_micro_batch_a_record_counts_once"
)
SERVICES = "tests/test_services_page.py::test_the_services_of_the_page_can_be_observed"
SHORT = "tests/test_services_page.py::test_the_short_programs_do_what_the_page_says"
OBSERVED = "tests/cli/test_observations.py::test_the_predicates_of_the_page_are_evaluated"
WATCH = "tests/watch/test_server.py::test_the_command_of_the_page_prints_the_link"

INSTALL = "tests/test_distributions.py::test_the_install_commands_work"

RUN_BY: dict[str, dict[str, list[str]]] = {
    "README.md": {
        "python": [README, README],
        "console": [
            INSTALL,
            "-",
            README,
            "tests/cli/test_readme_pipeline.py::test_the_pipeline_commands_of_the_readme",
            "-",
            PROVING,
        ],
    },
    "docs/changing-code.md": {
        "python": [CODE, CODE],
        "console": [CODE, "tests/migration/test_page.py::test_the_shards_are_split_and_merged"],
    },
    "docs/detection.md": {
        "python": ["tests/detect/test_page.py::test_spark_says_so_of_all_epochs", OBSERVED],
        "console": [
            "tests/detect/test_page.py::test_philosophers_lock_and_detect_says_so",
            "tests/detect/test_page.py::test_spark_says_so_of_all_epochs",
            OBSERVED,
        ],
        "sql": ["-"],
    },
    "docs/existing-program.md": {"python": [EXISTING] * 8, "console": [EXISTING] * 5},
    "docs/history.md": {
        "python": [HISTORY] * 6,
        "console": ["-", *[HISTORY] * 9],
        "sql": [
            HISTORY,
            "tests/runtime/test_event_logging.py::test_the_documented_question_is_answered",
        ],
    },
    "docs/kafka.md": {"python": [*[KAFKA] * 3, "-", KAFKA, "-"], "console": [KAFKA] * 5},
    "docs/kubernetes.md": {
        "python": [KUBERNETES],
        "console": [KUBERNETES, KUBERNETES],
        "yaml": [KUBERNETES, KUBERNETES],
    },
    "docs/install.md": {"console": [INSTALL]},
    "docs/machines.md": {"console": [MACHINES] * 3, "yaml": ["-"]},
    "docs/metrics.md": {"console": ["-"] * 3, "yaml": ["-", ALERTS]},
    "docs/pipeline.md": {
        "python": [*[PIPELINE] * 4, DATABASE],
        "console": [PIPELINE] * 3,
        "sql": [DATABASE],
    },
    "docs/player.md": {"console": [PROVING] * 4},
    "docs/proof.md": {"console": [PROVING] * 6},
    "docs/services.md": {"python": [*[SERVICES] * 4, *[SHORT] * 6], "console": [SERVICES] * 5},
    "docs/simulator.md": {"python": [SIMULATOR] * 9},
    "docs/python.md": {
        "python": ["tests/test_docs_python.py::test_the_programs_of_the_page_print_what_it_shows"]
        * 6
    },
    "docs/snapshot-view.md": {
        "console": [
            "tests/test_docs_snapshot_view.py::test_the_commands_of_the_page_write_what_it_says"
        ]
        * 2
    },
    "docs/spark-cluster.md": {
        "python": [CLUSTER, "tests/spark/test_s3.py::test_the_program_of_the_page_sets_them"],
        "console": [
            "-",
            CLUSTER,
            CLUSTER,
            "tests/spark/test_s3.py::test_the_commands_of_the_page_work",
        ],
    },
    "docs/state.md": {
        "python": [
            "tests/test_docs.py::test_the_process_of_the_page_on_large_states_can_be_recorded"
        ],
        "sql": ["tests/store/test_keyed.py::test_the_statement_of_the_documentation_reads_a_chain"],
    },
    "docs/watch.md": {"console": [WATCH, "-"]},
    "docs/tutorial.md": {"python": [TUTORIAL], "console": [TUTORIAL] * 9},
}
"""For each page and language which test runs its blocks, in their order; "-" is an exception."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("README.md", "./demo "): "whole demonstrations of a minute and more; ./check runs this test",
    ("docs/history.md", "pip install"): "installs Jupyter; the notebook itself is run by "
    "tests/analytics/test_history_notebook.py",
    ("docs/kafka.md", "# ledger.py"): "runs until it is stopped; "
    "tests/pipeline/topic_services.py has services like it",
    ("docs/kafka.md", "# money.py"): "for a pipeline of the reader's own; "
    "tests/pipeline/test_cut_view.py has functions like it",
    ("docs/machines.md", "- name: tls"): "a part of a manifest, for a cluster with cert-manager",
    ("docs/metrics.md", "stillframe watch money --listen 127"): "serves until it is stopped, at a "
    "port of the reader's choice; tests/watch asks the same of it",
    ("docs/metrics.md", "stillframe watch money --listen 0"): "the same, to the whole network",
    ("docs/metrics.md", "# prometheus.yml"): "for a Prometheus on another machine",
    ("docs/metrics.md", "pip install"): "installs the extra and starts Jaeger; "
    "tests/watch/test_snapshot_traces.py has its own endpoint take the traces",
    (
        "docs/watch.md",
        "stillframe watch money --listen 10",
    ): "listens on an address of the reader's",
    ("docs/spark-cluster.md", "export PYSPARK_PYTHON"): "names a Python of your executors; the "
    "test sets another",
    ("docs/detection.md", "select s.snapshot"): "a pattern for messages of the reader's own",
}
"""(page, what a block begins with) -> why no test runs it. This list only shrinks."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and text of each block that must be run."""
    text = (ROOT / page).read_text()
    return [(found[1], found[2]) for found in FENCE.finditer(text) if found[1] in RUN]


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_every_block_is_run_or_excepted(page: str) -> None:
    """A block that nobody has named a test for is an error, and so is one that is gone."""
    named = RUN_BY.get(page, {})
    for language in RUN:
        found = [text for one, text in blocks(page) if one == language]
        tests = named.get(language, [])
        shown = [text.splitlines()[0] for text in found]
        assert len(found) == len(tests), f"{page}: which tests run these {language} blocks? {shown}"
        for text, test in zip(found, tests, strict=True):
            beginning = text.removeprefix("$ ")
            excepted = [
                begin
                for where, begin in EXCEPTIONS
                if where == page and beginning.startswith(begin)
            ]
            assert bool(excepted) == (test == "-"), (page, text)


def test_every_page_and_exception_that_is_named_is_there() -> None:
    """Nothing is excepted that is not there."""
    assert RUN_BY.keys() <= {"README.md", *PAGES}
    for page, begin in EXCEPTIONS:
        assert any(text.removeprefix("$ ").startswith(begin) for _, text in blocks(page)), begin


def test_every_test_that_is_named_is_there_and_names_the_page() -> None:
    """The module of each has the test, and says which page it reads."""
    for page, languages in RUN_BY.items():
        for test in {test for tests in languages.values() for test in tests} - {"-"}:
            path, _, name = test.partition("::")
            module = (ROOT / path).read_text()
            functions = {
                one.name for one in ast.walk(ast.parse(module)) if isinstance(one, ast.FunctionDef)
            }
            assert name in functions, test
            assert Path(page).name in module, f"{path} does not read {page}"
