"""``docs/services.md``: its two services are attached as it says, and its commands show them."""

import asyncio
import contextlib
import functools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import Result

from stillframe.detect.call_waits import call_deadlock
from stillframe.services import Agent, ObservedChannel, ObservedTransport
from stillframe.store.observations import ObservationReader
from tests.doc_pages import blocks, called
from tests.ports import free_port
from tests.reader import wait_until

PAGE = (Path(__file__).parent.parent / "docs" / "services.md").read_text()
PORTS = ("8650", "8001", "8002", "50051")
SECRET = "0123456789abcdef0123"
CHANGED_LINE_COUNT_MAX = 5


def changes() -> dict[str, list[tuple[str, str]]]:
    """Return of each program of the page the parts that attaching replaces."""
    found = {}
    for block in blocks("diff", PAGE):
        name, _, text = block.removeprefix("# ").partition("\n")
        hunks = [hunk.splitlines(keepends=True) for hunk in text.split("@@\n")]
        found[name] = [
            (
                "".join(line[1:] for line in hunk if not line.startswith("+")),
                "".join(line[1:] for line in hunk if not line.startswith("-")),
            )
            for hunk in hunks
        ]
    return found


def test_attaching_takes_five_lines() -> None:
    """In each service."""
    found = blocks("diff", PAGE)
    assert len(found) == 2
    for block in found:
        lines = [line for line in block.splitlines() if line.startswith("+")]
        assert len(lines) <= CHANGED_LINE_COUNT_MAX


class Deployment:
    """The programs of the page in a directory, and what runs of them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ports = {port: str(free_port()) for port in PORTS}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for block in blocks("python", PAGE):
            name, program = block.splitlines()[0].removeprefix("# "), block
            for before, after in changes().get(name, ()):
                assert program.count(before) == 1
                program = program.replace(before, after)
            (place / name).write_text(self.moved(program))

    @functools.cached_property
    def store(self) -> ObservationReader:
        """The observations."""
        return ObservationReader(self.place / "seen")

    def moved(self, text: str) -> str:
        """Return a text of the page with other ports."""
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def commands(self) -> list[list[str]]:
        """Return the commands of each block."""
        return [
            [line.removeprefix("$ ").removesuffix(" &") for line in block.splitlines()]
            for block in map(self.moved, blocks("console", PAGE))
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment of the page."""
        return os.environ | {"STILLFRAME_SECRET": SECRET}

    def start(self, command: str) -> None:
        """Start a program that runs until the end."""
        with (self.place / f"{len(self.running)}.log").open("wb") as log:
            self.running[command] = subprocess.Popen(
                [sys.executable, "-m", *shlex.split(command)],
                cwd=self.place,
                env=self.variables(),
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        """Return what the collector has printed."""
        return (self.place / "0.log").read_text()

    def said(self, command: str) -> Result:
        """Call a command of the page."""
        return called(command, self.place)

    def listed_statuses(self, command: str) -> dict[int, bool]:
        """Return the statuses of calls as a command lists them, and whether each was accepted."""
        listed = json.loads(self.said(f"{command} --json").stdout)["calls"]
        return {one["status"]: one["was_accepted"] for one in listed if one["status"]}

    def close(self) -> None:
        """End what runs."""
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """The programs of the page."""
    begun = Deployment(tmp_path)
    yield begun
    begun.close()


def post(command: str) -> str:
    """Send the request of a command with curl; return the answer."""
    url = shlex.split(command)[-1]
    return httpx.post(f"http://{url}", timeout=60).text


@pytest.mark.slow
def test_the_services_of_the_page_can_be_observed(deployment: Deployment) -> None:
    """A call that timed out is found to have taken effect, and a deadlock is named."""
    starting, ordering, showing, listing, closing = deployment.commands()
    collector, *services = starting[1:]
    deployment.start(f"{collector} --listen {deployment.moved('127.0.0.1:8650')}")
    wait_until(lambda: "waiting for agents" in deployment.log(), "the collector listens")
    for service in services:
        deployment.start(service)
    wait_until(lambda: deployment.log().count(" joined") == 2, "both have joined")
    port = deployment.moved("50051")
    done = subprocess.run(
        [sys.executable, "grpc_bank.py", port, f"127.0.0.1:{port}"],
        cwd=deployment.place,
        env=deployment.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "{'balance': 100}\n", done.stderr
    see_a_payment(deployment, ordering, showing)
    [calls] = listing
    wait_until(lambda: bool(deployment.listed_statuses(calls)), "the call is answered")
    assert deployment.listed_statuses(calls) == {200: True}
    see_a_deadlock(deployment, closing)


def see_a_payment(deployment: Deployment, ordering: list[str], showing: list[str]) -> None:
    """Order as the page does, and look at the call that timed out."""
    first, second, listing = ordering
    assert post(first) == '"paid"'
    assert post(second) == '"no answer: was it paid?"'

    def unresolved() -> list[int]:
        found, _ = deployment.store.listing()
        return [one.number for one in found if one.unresolved_count]

    wait_until(lambda: bool(unresolved()), "an observation has the call")
    assert "unresolved" in deployment.said(listing).stdout
    show, verify = showing
    shown = deployment.said(show.replace("17", str(unresolved()[0])))
    assert re.search(r"POST /pay +was accepted by bank-\w{8}", shown.stdout)
    assert re.search(r"^EUR .* 100$", shown.stdout, re.MULTILINE)
    assert deployment.said(verify).stdout.startswith("PASS: ")


def see_a_deadlock(deployment: Deployment, closing: list[str]) -> None:
    """Close both at the same time, and detect that."""
    *requests, detect = closing

    def send(command: str) -> None:
        with contextlib.suppress(httpx.HTTPError):
            post(command)

    threads = [threading.Thread(target=send, args=(command,)) for command in requests]
    for thread in threads:
        thread.start()

    def holds() -> bool:
        found = deployment.store.load_if_present(deployment.store.newest())
        return found is not None and call_deadlock(found.observation).holds

    wait_until(holds, "the services wait for each other")
    said = deployment.said(detect).stdout
    assert "waits for the lock 'counter'" in said
    assert "waits for the lock 'safe'" in said
    deployment.close()
    for thread in threads:
        thread.join()


def test_the_short_programs_do_what_the_page_says(deployment: Deployment) -> None:
    """What is held is captured, a thread changes the state in one step, no answer is lost, and a
    server of gRPC ends with a goodbye."""
    agent = Agent("bank", dict, secret=SECRET.encode())

    def program(name: str) -> dict[str, Any]:
        return runpy.run_path(str(deployment.place / f"{name}.py"))

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps({"amount": int(request.url.path[-1])}))

    async def run() -> None:
        vault = {"EUR": 5, "count": 0}
        paying = asyncio.create_task(program("held")["pay_back"](agent, vault))
        await asyncio.sleep(0)
        fragment = agent.rules.meet(1)
        assert fragment is not None
        assert (fragment.state.held, vault["EUR"]) == ({"EUR": 5}, 0)
        assert await paying == 5
        program("step")["pay"](agent, vault, 7)
        assert vault == {"EUR": 7, "count": 1}
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            await program("gather")["collect"](client, vault)
        assert vault["EUR"] == 10
        said: list[bool] = []

        async def say_goodbye() -> bool:
            said.append(True)
            return True

        agent.say_goodbye = say_goodbye
        await program("leave")["stop"](grpc.aio.server(), agent)
        assert said == [True]
        await reconcile(program("reconcile"), program("reconcile_grpc"))

    asyncio.run(run())


async def reconcile(of_httpx: dict[str, Any], of_grpc: dict[str, Any]) -> None:
    """Run the two programs: of three orders one is lost, one is paid and not answered."""
    agent = Agent("shop", dict, secret=SECRET.encode(), targets=["bank:80"])
    said: list[tuple[str, Any]] = []
    settled = agent.settled

    def listen(call: Any, returned: Any = None) -> None:
        settled(call, returned)
        said.append((str(call), returned))

    agent.settled = listen  # type: ignore[method-assign]
    paid, attempts = {"b"}, Counter[str]()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=request.url.path[-1] in paid)
        order = json.loads(request.content)["order"]
        attempts[order] += 1
        if attempts[order] == 1 and order != "c":
            raise httpx.ReadTimeout("too late")
        return httpx.Response(200, json=True)

    till = {"EUR": 100}
    transport = ObservedTransport(agent, httpx.MockTransport(answer))
    async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
        orders = {"a": 5, "b": 7, "c": 9}
        assert await of_httpx["pay_all"](agent, client, till, orders) == [True] * 3
    assert (attempts, till) == ({"a": 2, "b": 1, "c": 1}, {"EUR": 79})
    assert [returned for _, returned in said] == [{"EUR": 5}, None]
    assert said[0][0] == f"{agent.rules.name}#1"
    async with ObservedChannel(
        agent, grpc.aio.insecure_channel("127.0.0.1:1"), "bank:80"
    ) as channel:
        stub = channel.unary_unary(
            "/bank.Bank/Pay", Int64Value.SerializeToString, Int64Value.FromString
        )
        state = {"balance": 100}
        call = await of_grpc["pay"](agent, stub, state, 5)
        assert state == {"balance": 95}
        of_grpc["give_back"](agent, state, call, 5)
        assert (said[-1], state) == ((call, {"EUR": 5}), {"balance": 100})
