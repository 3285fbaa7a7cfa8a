"""``stillframe observe``: what it prints, what it refuses, and a collector that is killed."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stillframe.cli.observe import (
    SECRET_VARIABLE,
    BaselineBegun,
    CleanupFailed,
    CollectorListening,
    Event,
    InstanceEnded,
    InstanceLeft,
    ObservationAbandoned,
    ObservationPrinter,
    ObservationStored,
    take_request,
)
from stillframe.protocol import calls
from stillframe.protocol.calls import Baseline, CallId, CallLedger, OpenCall
from stillframe.runtime.events import ConnectionWarning
from stillframe.storage.location import Location, locate
from stillframe.store.baseline_request import GivenUp, new_request, read_request, write_request
from stillframe.store.observations import ObservationReader, ObservationWriter
from tests.cli.conftest import Call
from tests.json_page import check_output
from tests.ports import free_port
from tests.services.deployment import SECRET
from tests.storage.faulty import restarted

ROOT = Path(__file__).parent.parent.parent

NOT_HEARD = "pay:80 has never answered with a header"


WHY, GONE = "it is the first one", "pay-1 has left without a goodbye"


def stored(number: int, *partial: str, quality: str = "exact", why: str = WHY) -> ObservationStored:
    """An observation of two instances that took 20 ms."""
    quality = "partial" if partial else quality
    reasons = list(partial) or [GONE] * (quality != "exact")
    of_baseline = (1, why, "ada" if why != WHY else "", 0.0)
    figures = (number, 1000.0, 1000.02, 2, 3, 1, quality == "exact")
    return ObservationStored(*figures, quality, reasons, partial, *of_baseline)


BEGUN = BaselineBegun("checked", "ada", 0.0, GivenUp(gone=("pay-1",)))


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        (
            [CollectorListening("127.0.0.1:8650")],
            ["waiting for agents at 127.0.0.1:8650; Ctrl-C ends this command"],
        ),
        (
            [stored(1), stored(2), stored(3, NOT_HEARD), stored(4, NOT_HEARD)],
            [
                "observation 1: 2 instances, complete after 20 ms",
                f"observation 3 is partial: {NOT_HEARD}",
            ],
        ),
        (
            [
                stored(1, NOT_HEARD),
                stored(2, quality="not exact"),
                *(stored(3), stored(4), stored(5, NOT_HEARD), stored(6, NOT_HEARD)),
            ],
            [
                f"observation 1 is partial: {NOT_HEARD}",
                f"observation 2 is not exact: {GONE}",
                "observation 3 is exact",
                f"observation 5 is partial: {NOT_HEARD}",
            ],
        ),
        (
            [stored(1), stored(2, why="moved"), BEGUN, stored(3, why="checked")],
            [
                "observation 1: 2 instances, complete after 20 ms",
                "a new baseline begins: 'moved' (ada)",
                f"a new baseline begins: 'checked' (ada); {BEGUN.given_up}",
            ],
        ),
        (
            [ObservationAbandoned(4, "no fragment of pay-1a2b3c4d")],
            ["observation 4 was abandoned: no fragment of pay-1a2b3c4d"],
        ),
        (
            [
                ObservationAbandoned(4, "seen/observations/4 could not be written"),
                ObservationAbandoned(5, "seen/observations/5 could not be written"),
                ObservationAbandoned(6, "no fragment of pay-1a2b3c4d"),
                stored(7),
                stored(8),
                ObservationAbandoned(9, "no fragment of pay-1a2b3c4d"),
            ],
            [
                "observation 4 was abandoned: seen/observations/4 could not be written",
                "observation 6 was abandoned: no fragment of pay-1a2b3c4d",
                "observation 7 is stored; abandoned before it: 3 observations",
                "observation 7: 2 instances, complete after 20 ms",
                "observation 9 was abandoned: no fragment of pay-1a2b3c4d",
            ],
        ),
        (
            [ConnectionWarning("refused"), ConnectionWarning("refused"), CleanupFailed("full")],
            ["refused", "full"],
        ),
    ],
)
def test_only_what_matters_is_printed(
    events: list[Event], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not each observation, and no sentence twice."""
    printer = ObservationPrinter(is_json=False)
    for event in events:
        printer.emit(event)
    printed = capsys.readouterr()
    assert (printed.err.splitlines(), printed.out) == (lines, "")


def test_in_json_every_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Each observation, too."""
    printer = ObservationPrinter(is_json=True)
    for change in ("joined", "left", "joined", "ended"):
        printer.member("pay-1a2b3c4d", change)
    for event in (
        CollectorListening("127.0.0.1:8650"),
        stored(1),
        stored(2, NOT_HEARD),
        BEGUN,
        ObservationAbandoned(3, "no fragment of pay-1a2b3c4d"),
        ConnectionWarning("refused"),
        CleanupFailed("full"),
    ):
        printer.emit(event)
    printed = capsys.readouterr().out
    check_output(["observe", "--json"], printed)
    assert len(printed.splitlines()) == 11


def test_an_instance_that_could_not_join_has_not_left(capsys: pytest.CaptureFixture[str]) -> None:
    """It tries again."""
    printer = ObservationPrinter(is_json=False)
    printer.member("pay-1a2b3c4d", "left")
    printer.emit(InstanceLeft("pay-5e6f7a8b"))
    printer.emit(InstanceEnded("pay-5e6f7a8b"))
    assert capsys.readouterr().err == (
        "instance pay-5e6f7a8b left\ninstance pay-5e6f7a8b ended in order\n"
    )


# --- refusals


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a secret."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    return file


def test_a_secret_is_needed(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none by default."""
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    result = call("observe", "--store", tmp_path / "seen")
    assert result.exit_code == 2
    assert f"give a file with --secret-file, or set {SECRET_VARIABLE}" in result.stderr


@pytest.mark.parametrize("mode", [0o644, 0o622, 0o604])
def test_a_secret_that_others_can_read_is_refused(
    mode: int, secret: Path, tmp_path: Path, call: Call
) -> None:
    """The error says how to change that."""
    secret.chmod(mode)
    result = call("observe", "--store", tmp_path / "seen", "--secret-file", secret)
    assert (result.exit_code, f"chmod 600 {secret}" in result.stderr) == (2, True)
    assert not (tmp_path / "seen").exists()


def test_a_short_secret_is_refused(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be guessed."""
    monkeypatch.setenv(SECRET_VARIABLE, "guess")
    result = call("observe", "--store", tmp_path / "seen")
    assert result.exit_code == 2
    assert f"the secret in {SECRET_VARIABLE} has 5 bytes: use 16 or more" in result.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--listen", "10.0.0.1"), "TLS is required; give a directory of certificates with --tls"),
        (("--interval", "0"), "--interval '0' is not a duration above 0"),
        (("--timeout", "soon"), "--timeout 'soon' is not a duration above 0"),
        (("--store", "memory://box/seen"), "is in the memory of this command, and is lost"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], error: str, secret: Path, tmp_path: Path, call: Call
) -> None:
    """Before anything is made."""
    result = call("observe", "--store", tmp_path / "seen", "--secret-file", secret, *options)
    assert (result.exit_code, error in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "seen").exists()


def test_a_second_collector_is_refused(secret: Path, tmp_path: Path, call: Call) -> None:
    """A store has one writer."""
    with contextlib.closing(ObservationWriter.open(tmp_path / "seen")):
        result = call("observe", "--store", tmp_path / "seen", "--secret-file", secret)
    assert result.exit_code == 2
    assert "is in use by another program that writes to it" in result.stderr


# --- processes


class Collector:
    """A collector in a process, which prints JSON."""

    def __init__(self, *options: object) -> None:
        self.arguments = ["observe", *map(str, options), "--json"]
        self.printed: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stillframe", *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        self.said = ""

    def until(self, kind: str, **members: object) -> dict[str, Any]:
        """Read events up to one of this kind with these members."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind and members.items() <= event.items():
                return event
        raise AssertionError(f"the collector ended without {kind}: {self.printed[-3:]}")

    def end(self, number: signal.Signals) -> int:
        """End it by a signal; return its exit code."""
        self.process.send_signal(number)
        rest = self.rest()
        if number is not signal.SIGKILL:
            self.printed += rest
        return self.process.returncode

    def rest(self) -> list[str]:
        """Wait until it ends; return the rest of its events."""
        rest, self.said = self.process.communicate(timeout=60)
        return rest.splitlines()


# --- a new baseline


class Operated:
    """A store whose collector has lost an instance, and with it a call of unknown fate."""

    def __init__(self, place: Location) -> None:
        self.store = ObservationWriter.open(place)
        call = CallId("pay-2", 3)
        self.collector = calls.Collector(CallLedger(gone={"pay-1": None}))
        self.collector.ledger.unknown[call] = OpenCall(3, "pay:80", {"EUR": 5})

    async def rebase(self, baseline: Baseline, until: float) -> tuple[str, ...]:
        """Begin a baseline."""
        assert until >= time.time()
        return self.collector.rebase(baseline)

    def look(self, *_: object) -> None:
        """Let the collector look for a request."""
        printer = ObservationPrinter(is_json=False)
        ledger = self.collector.ledger
        asyncio.run(take_request(self.store.path, self.rebase, ledger, printer))


@pytest.fixture(params=["directory", "object store"])
def operated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operated]:
    """Such a store, in each kind of storage."""
    address = Path(f"memory://{secrets.token_hex(8)}/seen")
    place = tmp_path / "seen" if request.param == "directory" else locate(address)
    found = Operated(place)
    with contextlib.closing(found.store):
        yield found


ASKED = ("--by", "ada", "--because", "compared by hand")
GAVE_UP = (
    "not counted any more: pay-1, gone without a goodbye; earlier calls of unknown fate: 1 (5 EUR)"
)


def test_an_operator_begins_a_baseline(
    operated: Operated, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits for the collector, and both say what is not counted any more."""
    monkeypatch.setattr("stillframe.cli.observe.time.sleep", operated.look)
    result = call("baseline", operated.store.path, *ASKED, "--json")
    assert result.exit_code == 0, result.output
    assert f"a new baseline begins: 'compared by hand' (ada); {GAVE_UP}" in result.stderr
    assert f"a new baseline begins with the next observation; {GAVE_UP}" in result.stderr
    found = json.loads(result.stdout)
    assert (found["is_taken"], found["given_up"]["unknown"]) == (True, {"EUR": 5})
    begun = operated.collector.ledger.next_baseline
    assert begun == Baseline(0, "compared by hand", "ada", found["at"])


def test_nothing_is_given_up_when_nobody_waits_for_it(
    operated: Operated, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made the request did not know what is lost after it has expired, or after Ctrl-C. A
    request from the future is not taken either: the clock of one machine is wrong."""
    late = call("baseline", operated.store.path, *ASKED, "--timeout", "1ms")
    assert (late.exit_code, "not taken it in 1ms: it has expired" in late.stdout) == (1, True)
    operated.look()
    with monkeypatch.context() as patched:
        patched.setattr("stillframe.cli.observe.time.sleep", Mock(side_effect=KeyboardInterrupt))
        assert call("baseline", operated.store.path, *ASKED).exit_code == 130
    operated.look()
    ahead = new_request("ada", "compared by hand", time.time() + 3600, 60.0)
    write_request(operated.store.path, ahead)
    operated.look()
    assert operated.collector.ledger.gone == {"pay-1": None}
    operated.store.close()
    result = call("baseline", operated.store.path, *ASKED)
    assert (result.exit_code, "no collector runs on" in result.stderr) == (2, True)


def test_no_request_is_taken_twice(operated: Operated) -> None:
    """Not even if the collector died before it could say that it had taken it."""
    request = new_request("ada", "compared by hand", time.time(), 60.0)
    write_request(operated.store.path, request)
    operated.look()
    write_request(operated.store.path, request)
    operated.collector.ledger.gone["pay-3"] = None
    operated.look()
    found = read_request(operated.store.path)
    assert found is not None
    assert (found.is_taken, found.given_up) == (True, None)
    assert operated.collector.ledger.gone == {"pay-3": None}


def test_a_request_that_is_replaced_is_told(
    operated: Operated, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not begun a baseline."""
    other = new_request("bob", "moved", 9.0, 60.0)
    path = operated.store.path
    monkeypatch.setattr("stillframe.cli.observe.time.sleep", lambda _: write_request(path, other))
    result = call("baseline", path, *ASKED)
    assert (result.exit_code, "was replaced by one of bob" in result.stderr) == (2, True)


@pytest.mark.parametrize("text", ["", " ", "x" * 201, "a\nb", "\udc80"])
def test_a_reason_is_a_line_of_text(text: str, tmp_path: Path, call: Call) -> None:
    """Everybody who looks at totals later reads it."""
    ObservationWriter.open(tmp_path / "seen").close()
    result = call("baseline", tmp_path / "seen", "--by", "ada", "--because", text)
    assert (result.exit_code, "--because has" in result.stderr) == (2, True)


@contextlib.contextmanager
def bank(collector_port: int) -> Iterator[None]:
    """Run a bank behind uvicorn that pays itself, and an address at which there is nothing."""
    port = free_port()
    targets = f"127.0.0.1:{port} 127.0.0.1:{free_port()}"
    command = [*(sys.executable, "-m", "uvicorn", "examples.services.bank:app")]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "critical"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "BANK_NAME": "bank",
            "BANK_PAYEES": targets,
            "BANK_TARGETS": targets,
            "BANK_COLLECTOR": f"127.0.0.1:{collector_port}",
            "BANK_RATE": "50",
            "STILLFRAME_SECRET": SECRET.decode(),
        },
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_collector_that_is_killed_continues(secret: Path, tmp_path: Path, call: Call) -> None:
    """Its numbers and its ledger; the instance has the same name. Ctrl-C ends it with 0, and all
    that it has stored stands up to verification."""
    store, port = tmp_path / "seen", free_port()
    options = ("--store", store, "--secret-file", secret, "--listen", f"127.0.0.1:{port}")
    with bank(port):
        first = Collector(*options, "--interval", "50ms")
        instance = first.until("InstanceJoined")["instance"]
        before = first.until("ObservationStored", instance_count=1)
        while not before["partial"]:
            before = first.until("ObservationStored", instance_count=1)
        first.end(signal.SIGKILL)
        second = Collector(*options, "--interval", "50ms", "--keep", "20")
        second.until("InstanceJoined", instance=instance)
        after = second.until("ObservationStored", instance_count=1)
        assert after["number"] > before["number"]
        for _ in range(25):
            newest = second.until("ObservationStored")
        assert second.end(signal.SIGINT) == 0
    check_output(first.arguments, "".join(first.printed))
    check_output(second.arguments, "\n".join(map(str.strip, second.printed)))
    numbers = ObservationReader(store).numbers()
    assert len(numbers) == 20
    assert numbers[-1] >= newest["number"]
    assert call("verify", store).exit_code == 0
    shown = json.loads(call("show", store, "--json").stdout)
    assert shown["instances"][0]["instance"] == instance
    assert "balance" in shown["instances"][0]["state"]
    with contextlib.closing(ObservationWriter.open(store)) as writer:
        assert writer.ledger.members == {instance}
        assert writer.ledger.targets


@pytest.mark.slow
def test_a_collector_that_lost_its_store_ends(secret: Path, moto_bucket: str, call: Call) -> None:
    """In an object store another one may take over; what the first one has stored stays."""
    store, port = f"{moto_bucket}/seen", free_port()
    options = ("--store", store, "--secret-file", secret, "--listen", f"127.0.0.1:{port}")
    with bank(port):
        first = Collector(*options, "--interval", "50ms", "--keep", "3")
        for _ in range(5):
            before = first.until("ObservationStored", instance_count=1)
        with restarted(), contextlib.closing(ObservationWriter.open(locate(store))) as writer:
            first.printed += first.rest()
            assert writer.number >= before["number"]
            assert len(writer.numbers()) == 3
    assert first.process.returncode == 2
    assert "another program has taken over" in first.said
    check_output(first.arguments, "\n".join(map(str.strip, first.printed)))
    assert call("verify", store).exit_code == 0
