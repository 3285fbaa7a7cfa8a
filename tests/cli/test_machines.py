"""``run --external``, ``join`` and ``certificates`` as people use them; and the page on them."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra 'tls'")

from stillframe.eventlog.reader import epochs
from stillframe.examples.bank import bank
from stillframe.runtime.network.addresses import COORDINATOR_PORT
from stillframe.store.store import Store
from tests import calm
from tests.analytics.test_log_checks import faults_in, found_in
from tests.cli.conftest import Call
from tests.cli.test_runs import ROOT, Program
from tests.ports import free_port
from tests.runtime.certificate_dirs import papers, shifted
from tests.runtime.test_event_logging import check_log

PAGE = ROOT / "docs" / "machines.md"


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Hold programs, which end with the test."""
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


def commands_of_the_page(port: int) -> list[list[str]]:
    """Return the commands of docs/machines.md, with addresses of this machine alone, and with its
    bank at a rate that leaves the machine to the commands."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    text = (
        "".join(blocks)
        .replace("10.0.0.", "127.0.0.")
        .replace("stillframe.examples.bank:bank", calm.BANK)
    )
    commands = [shlex.split(line)[2:] for line in text.splitlines()]
    for command in commands:
        for position, word in enumerate(command):
            if word == "127.0.0.1":
                command[position] = f"{word}:{port}"
    return commands


@pytest.mark.slow
def test_the_commands_of_the_page_run_a_system(
    programs: list[Program], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates are made, the system waits for its processes, and runs with them; one that is
    stopped is waited for, and comes back to what the snapshot says; all end in order."""
    certificates, run, *joins = commands_of_the_page(free_port())

    def start(command: list[str]) -> Program:
        programs.append(Program(*command, cwd=tmp_path))
        return programs[-1]

    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    made = call(*certificates)
    assert (made.exit_code, made.stdout) == (0, "tls/coordinator\ntls/P2\ntls/P3\n")
    system = start(run)
    system.until("waiting for P2, P3 to join")
    joined = [start(command) for command in joins]
    system.until("epoch 1: the system runs")
    system.until("in transit")
    code, _, err = joined[0].end(signal.SIGTERM)
    assert code == 0
    assert err.endswith("process P2: stopped; the system waits until it joins again\n")
    system.until("process P2 died: its connection to the coordinator was lost; restoring")
    start(joins[0])
    assert "from snapshot P1-" in system.until("epoch 2: the system runs")
    joined[1].until("this epoch has ended for it; joining again")
    code, _, err = system.end(signal.SIGINT)
    assert code == 0
    assert "to continue from snapshot" in err
    said = programs[-1].until("the coordinator does not answer at 127.0.0.1:")
    assert "Connection refused; is the system running?" in said
    assert "Errno" not in said
    assert [program.end(signal.SIGINT)[0] for program in (programs[-1], joined[1])] == [0, 0]
    assert len(Store.open(tmp_path / "money").entries()) >= 2


@pytest.mark.slow
def test_who_is_refused_at_its_first_coming_ends(
    programs: list[Program], call: Call, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Another topology, no such process: exit 2 and the reason. Whose place is taken waits."""
    address = f"127.0.0.1:{free_port()}"
    tls = ("--listen", address, "--tls", papers() / "coordinator")
    system = Program(
        *("run", "tests.runtime.programs:rally", "--store", tmp_path / "store"),
        *("--external", "B", *tls),
    )
    programs.append(system)
    system.until("waiting for B to join")
    for reference, process, words in (
        ("stillframe.examples.bank:bank", "A", "there is no process 'A'; there are P1, P2"),
        ("tests.runtime.programs:joining", "A", "the topologies differ"),
    ):
        where = ("--coordinator", address, "--listen", "127.0.0.1", "--tls", papers() / "A")
        other = call("join", reference, process, *where)
        assert other.exit_code == 2
        assert words in capfd.readouterr().err
    assert "the topologies differ" in system.until("to the coordinator was closed")
    place = ("--coordinator", address, "--listen", "127.0.0.1", "--tls", papers() / "B")
    joining = ("join", "tests.runtime.programs:rally", "B", "--json")
    both = [Program(*joining, *place) for _ in range(2)]
    programs.extend(both)
    system.until("epoch 1: the system runs")
    assert "each process can join once" in system.until("process 'B' has joined already")
    assert [program.process.poll() for program in both] == [None, None]
    ends = [program.end(signal.SIGTERM) for program in (system, *both)]
    assert [code for code, _, _ in ends] == [0, 0, 0]
    happened = [json.loads(line) for line in ends[1][1].splitlines()]
    assert happened[0] == {
        "version": 2,
        "event": "Started",
        "process": "B",
        "detail": f"looking for the coordinator at {address}",
    }
    assert happened[-1]["event"] == "Stopped"


@pytest.mark.slow
def test_event_logs_of_several_machines_are_one(
    programs: list[Program], call: Call, tmp_path: Path
) -> None:
    """``join --event-log`` writes what the process does there, in every epoch; with the logs of the
    other machines in one directory, every snapshot is as the log says, and nothing is wrong."""
    rally, address = "tests.runtime.programs:rally", f"127.0.0.1:{free_port()}"
    store, log, log_there = tmp_path / "store", tmp_path / "log", tmp_path / "log there"
    system = Program(
        *(
            "run",
            rally,
            "--store",
            store,
            "--every",
            "never",
            "--external",
            "B",
            "--event-log",
            log,
        ),
        *("--listen", address, "--tls", papers() / "coordinator"),
    )
    programs.append(system)
    system.until("waiting for B to join")
    joined = Program(
        *("join", rally, "B", "--coordinator", address, "--listen", "127.0.0.1"),
        *("--tls", papers() / "B", "--event-log", log_there),
    )
    programs.append(joined)
    system.until("epoch 1: the system runs")
    for _ in range(3):
        assert call("snapshot", store).exit_code == 0
    assert call("restore", store).exit_code == 0
    system.until("epoch 2: the system runs")
    for _ in range(3):
        assert call("snapshot", store).exit_code == 0
    assert [program.end(signal.SIGTERM)[0] for program in (system, joined)] == [0, 0]
    for epoch in epochs(log_there):
        assert [path.name for path in (log_there / f"e{epoch}").iterdir()] == ["B"]
        shutil.move(log_there / f"e{epoch}" / "B", log / f"e{epoch}")
    for epoch in (1, 2):
        trace = check_log(log, store, epoch)
        assert trace.processes == ("A", "B")
        assert len(trace.snapshots) >= 3
    assert faults_in(found_in(log).to_pylist()) == set()


BANK = "stillframe.examples.bank:bank"
AWAY = ("--coordinator", "127.0.0.1:1", "--listen", "127.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run", BANK, "--store", "s", "--listen", "10.0.0.1"],
            "TLS is required; give a directory",
        ),
        (
            ["run", BANK, "--store", "s", "--listen", "0.0.0.0"],
            "is not an address at which other machines can reach",
        ),
        (["run", BANK, "--store", "s", "--listen", "a:b"], "'a:b' is not an address"),
        (["join", BANK, "P2", *AWAY, "--tls", "none"], "none/cert.pem cannot be read"),
        (["join", BANK, "P2", *AWAY], "Missing option '--tls'"),
        (["certs", "new", "1st"], "'1st' cannot name a process"),
        (["certs", "new", "P1", "P1"], "process 'P1' is named twice"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(
    call: Call, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit 2 before anything is started."""
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "s").exists()


def test_a_bad_certificate_is_seen_before_anything_is_started(call: Call, tmp_path: Path) -> None:
    """The file is named, with its dates; and what a process of this machine would need."""
    result = call("join", BANK, "A", *AWAY, "--tls", shifted(-20))
    assert result.exit_code == 2
    assert re.search(r"cert.pem has expired: it is for A\.\S+, valid from", result.stderr)
    result = call("run", BANK, "--store", tmp_path / "s", "--tls", papers() / "A")
    assert result.exit_code == 2
    assert "not for coordinator.stillframe" in result.stderr
    result = call("run", BANK, "--store", tmp_path / "t", "--external", "Q")
    assert result.exit_code == 2
    assert "there is no process 'Q'" in result.stderr


def test_the_page_names_what_there_is() -> None:
    """The port, the processes and the addresses of the page are those of the program."""
    assert f"is {COORDINATOR_PORT} unless" in PAGE.read_text()
    assert {"P2", "P3"} < set(bank.processes)


def test_certificates_as_json(call: Call, tmp_path: Path) -> None:
    """The folders, for a program that copies them."""
    result = call("certs", tmp_path / "new", "P1", "--days", "3", "--json")
    folders = [str(tmp_path / "new" / name) for name in ("coordinator", "P1")]
    assert json.loads(result.stdout) == {"version": 2, "folders": folders, "days": 3}
    assert "keep " in result.stderr
