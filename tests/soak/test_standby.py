"""Two supervisors on machines of their own, which share nothing but a store in an object store."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stillframe.storage.lease import LEASE_S
from tests.nightly import Figure
from tests.runtime.network import Machine, Wire, why_impossible
from tests.s3_servers import KEY, REGION, SECRET, VERSITYGW
from tests.spark.flows import wait_until

ROOT = Path(__file__).parent.parent.parent
STORE = "s3://standby/money"
PORT = 7070
IMPOSSIBLE = why_impossible()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly(part="storage", only=True),
    pytest.mark.skipif(bool(IMPOSSIBLE), reason=IMPOSSIBLE),
]


class Host:
    """A machine with a home of its own, on which ``stillframe`` is called."""

    def __init__(self, machine: Machine, home: Path, server: Machine) -> None:
        self.machine = machine
        self.home = home
        home.mkdir()
        self.environment = os.environ | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home),
            "AWS_ENDPOINT_URL": f"http://{server.address}:{PORT}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command, whose messages are in a pipe; it leads a process group."""
        command = self.machine.command(
            "unshare", "--mount", sys.executable, "-m", "stillframe", *words
        )
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self.environment, cwd=ROOT, stdout=pipe, stderr=pipe, text=True
        )

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Call a command until it ends."""
        with self.start(*words) as program:
            out, messages = program.communicate(timeout=120)
        return subprocess.CompletedProcess(words, program.returncode, out, messages)

    def process_ids(self) -> list[str]:
        """Return what runs on the machine."""
        command = ["ip", "netns", "pids", self.machine.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def listed(self) -> dict[str, Any]:
        """Return what ``list`` says of the store, which may not exist yet."""
        answer = self.call("list", STORE, "--json").stdout
        found: dict[str, Any] = json.loads(answer or '{"snapshots": [], "epoch": 0}')
        return found


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Two machines, and a third one with an S3 server."""
    machines = [Machine(number) for number in (1, 2, 3)]
    wire = Wire(machines, delay_s=0.0005, loss=0.0, seed=1)
    server, *others = machines
    (tmp_path / "buckets" / "standby").mkdir(parents=True)
    command = server.command(
        VERSITYGW, "--port", f"{server.address}:{PORT}", "posix", tmp_path / "buckets"
    )
    environment = os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with (tmp_path / "server.log").open("wb") as log:
        program = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        first, second = (Host(one, tmp_path / one.address, server) for one in others)
        wait_until(lambda: "does not exist" in first.call("list", STORE).stderr)
        yield first, second
    finally:
        program.kill()
        program.wait()
        wire.close()
        for machine in machines:
            machine.close()


def test_a_frozen_supervisor_publishes_nothing_after_it_wakes(
    hosts: tuple[Host, Host], figure: Figure
) -> None:
    """While it lives it keeps the store; frozen for longer than its lease it loses that, and stops
    with its processes as soon as it wakes. Nothing is lost."""
    first, second = hosts
    frozen = first.start(
        "run", "stillframe.examples.bank:bank", "--store", STORE, "--interval", "200ms"
    )
    wait_until(lambda: len(first.listed()["snapshots"]) > 5)
    refused = second.call("resume", STORE)
    assert refused.returncode == 2
    assert "is in use by another program that writes to it: process" in refused.stderr
    os.kill(frozen.pid, signal.SIGSTOP)
    before = [one["id"] for one in second.listed()["snapshots"]]
    standby = second.start("resume", STORE, "--interval", "200ms", "--duration", "20s")
    wait_until(lambda: second.listed()["epoch"] == 2, timeout_s=4 * LEASE_S)
    os.kill(frozen.pid, signal.SIGCONT)
    _, messages = frozen.communicate(timeout=60)
    assert frozen.returncode == 2, messages
    assert f"another program has taken over the store {STORE}" in messages
    assert first.process_ids() == []
    _, messages = standby.communicate(timeout=120)
    assert standby.returncode == 0, messages
    found = second.listed()["snapshots"]
    assert [one["id"] for one in found if one["epoch"] == 1] == before
    assert [one["id"] for one in found if one["epoch"] == 2]
    assert second.call("verify", STORE).returncode == 0
    assert "nothing is missing" in second.call("detect", STORE, "loss").stdout
    figure(
        "snapshots before and after the takeover", f"{len(before)} and {len(found) - len(before)}"
    )


def test_of_two_that_start_at_once_one_wins(hosts: tuple[Host, Host]) -> None:
    """The other one is refused, or stops; the store is whole."""
    first, second = hosts
    made = first.call(
        "run",
        "stillframe.examples.bank:bank",
        "--store",
        STORE,
        "--interval",
        "200ms",
        "--duration",
        "2s",
    )
    assert made.returncode == 0, made.stderr
    for epoch in range(2, 7):
        words = ("resume", STORE, "--interval", "200ms", "--duration", "3s")
        programs = [host.start(*words) for host in (first, second)]
        ends = [program.communicate(timeout=120) for program in programs]
        codes = sorted(program.returncode for program in programs)
        assert codes == [0, 2], ends
        assert first.listed()["epoch"] == epoch
    assert first.call("verify", STORE).returncode == 0
    assert "nothing is missing" in second.call("detect", STORE, "loss").stdout
