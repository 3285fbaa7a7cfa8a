"""Targets: one is known in every form in which a user can write it, and what is none is refused."""

import math

import grpc
import httpx
import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from stillframe.errors import UsageError
from stillframe.protocol.activities import NO_DETAILS, TEXT_LENGTH_MAX, CallDetails
from stillframe.protocol.calls import InstanceFragment, ObservationStart, OpenCall
from stillframe.services.agent import Agent, Message
from stillframe.services.grpc_client import ObservedChannel
from stillframe.services.headers import NAME
from stillframe.services.http_client import ObservedTransport
from tests.services.deployment import SECRET
from tests.services.test_observer import run

SPELLINGS = {
    "bank:8000": ["bank:8000", "Bank:8000", "http://bank:8000", "HTTP://BANK:8000/"],
    "bank:80": ["http://bank", "http://bank/", "bank:80"],
    "bank:443": ["https://bank", "bank:443", "https://bank:443/"],
    "[::1]:80": ["[::1]:80", "[0:0::1]:80", "http://[::1]", "ipv6:[::1]:80"],
    "bank:50051": ["bank:50051", "dns:bank:50051", "dns:///Bank:50051"],
    "10.0.0.1:50051": ["10.0.0.1:50051", "ipv4:10.0.0.1:50051"],
    "dns:8000": ["dns:8000"],
    "dns:///bank": ["dns:///bank"],
    "unix:/run/bank": ["unix:/run/bank"],
    "xds:///bank": ["xds:///bank"],
    "ipv4:10.0.0.1:1,10.0.0.2:1": ["ipv4:10.0.0.1:1,10.0.0.2:1"],
}


@pytest.mark.parametrize("target", SPELLINGS)
def test_a_target_is_known_however_it_is_written(target: str) -> None:
    """Otherwise it would be sent no header."""
    agent = Agent("A", dict, secret=SECRET, targets=SPELLINGS[target])
    assert agent.targets == {target}


@pytest.mark.parametrize(
    "text",
    [
        *["bank", "", ":80", "bank:0", "bank:70000", "bank:80/", "http://bank/pay", "::1"],
        *["http://me@bank", "grpc://bank:1", "http://bank:x", "a bank:80", "http://"],
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    """The error names the entry, and says what to write."""
    with pytest.raises(UsageError) as refused:
        Agent("A", dict, secret=SECRET, targets=["bank:8000", text])
    assert str(refused.value) == (
        f"{text!r} is not a target: write host:port, as the client uses it, such as bank:8000"
    )


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://[::1]:8000/", "http://[0:0::1]:8000/pay"),
        ("Bank:80", "http://bank/pay"),
        ("bank:443", "https://BANK/pay"),
    ],
)
def test_a_client_of_http_uses_the_same_form(target: str, url: str) -> None:
    """Its request has a header."""
    agent = Agent("A", dict, secret=SECRET, targets=[target])
    found: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        found.append(request.headers.get(NAME))
        return httpx.Response(200, content=b"")

    async def body() -> None:
        transport = ObservedTransport(agent, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(url)

    run(body)
    [header] = found
    assert header is not None


@pytest.mark.parametrize("name", ["dns:///localhost:1", "LOCALHOST:1", "localhost"])
def test_a_channel_of_grpc_uses_the_same_form(name: str) -> None:
    """One with a name that is no target is not observed, and works."""
    agent = Agent("A", dict, secret=SECRET, targets=["localhost:1"])

    async def body() -> None:
        plain = grpc.aio.insecure_channel("localhost:1")
        async with ObservedChannel(agent, plain, name) as channel:
            call = channel.unary_unary("/b/c", Int64Value.SerializeToString)
            call(Int64Value(value=1)).cancel()

    run(body)
    fragment: InstanceFragment | None = agent.rules.meet(1)
    assert fragment is not None
    assert fragment.targets == {"localhost" if name == "localhost" else "localhost:1": False}


LONG = "x" * (TEXT_LENGTH_MAX + 1)


@pytest.mark.parametrize(
    "call",
    [
        OpenCall(1, LONG),
        OpenCall(1, "b:1", details=CallDetails(name=LONG)),
        OpenCall(1, "b:1", details=CallDetails(fields={LONG: "1"})),
        *(
            OpenCall(1, "b:1", details=msgspec.structs.replace(NO_DETAILS, **{field: moment}))
            for field in ("began_at", "deadline")
            for moment in (math.inf, math.nan, -1.0)
        ),
    ],
)
def test_the_collector_refuses_endless_texts_and_times_that_are_none(call: OpenCall) -> None:
    """They would fill its ledger, and nothing could show them."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=OpenCall)


@pytest.mark.parametrize("timeout_s", [math.inf, math.nan, 1e12, 5.0])
def test_the_collector_refuses_no_call_of_an_application(timeout_s: float) -> None:
    """Whatever address and time-out it has: its whole instance would not be observed."""
    found: list[InstanceFragment | None] = []

    async def body() -> None:
        agent = Agent("A", dict, secret=SECRET)
        message = Message(method="GET", path="/" * 5000, body=b"")
        agent.request("x" * 5000, message, timeout_s=timeout_s)
        found.append(agent.rules.start(ObservationStart(1, 0)))

    run(body)
    [fragment] = found
    encoded = msgspec.msgpack.encode(fragment)
    [call] = msgspec.msgpack.decode(encoded, type=InstanceFragment).calls
    assert (call.details.deadline is not None) == (timeout_s == 5.0)
