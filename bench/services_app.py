"""A service of FastAPI behind uvicorn, with observations, with OpenTelemetry, or with neither.

``python -m bench.services_app KIND NAME FD NEXT ENDPOINT``: `FD` is the socket that it listens on,
`NEXT` the address of the service that it calls for each request, or empty, and `ENDPOINT` what the
collector of observations or of spans listens on.
"""

import socket
import sys

import fastapi
import httpx
import uvicorn

SECRET = b"the secret of a benchmark"
PAYMENT = {"account": "4711", "amount": 5, "text": "for the rent of November"}


class Counter:
    """The state of a service: how many requests it has served."""

    def __init__(self) -> None:
        self.served_count = 0
        self.amount = 0


def trace(app: fastapi.FastAPI, client: httpx.AsyncClient, kind: str, endpoint: str) -> None:
    """Let a service report spans as the documents of OpenTelemetry show it."""
    from opentelemetry import trace as tracing  # noqa: PLC0415 - the others do not load it
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor  # noqa: PLC0415
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.1 if kind == "otel-tenth" else 1))
    exporter = OTLPSpanExporter(endpoint=f"http://{endpoint}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing.set_tracer_provider(provider)
    FastAPIInstrumentor.instrument_app(
        app, exclude_spans=["receive", "send"] if kind == "otel-lean" else None
    )
    HTTPXClientInstrumentor.instrument_client(client)


def service(kind: str, name: str, target: str, endpoint: str) -> fastapi.FastAPI:
    """Return the application."""
    app, state = fastapi.FastAPI(), Counter()
    transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport()
    if kind == "stillframe":
        from stillframe.services import ObservedTransport, attach  # noqa: PLC0415

        agent = attach(
            app,
            service=name,
            state=state,
            collector=endpoint,
            secret=SECRET,
            targets=[target] if target else [],
        )
        transport = ObservedTransport(agent, transport)
    client = httpx.AsyncClient(transport=transport)
    if kind.startswith("otel"):
        trace(app, client, kind, endpoint)

    @app.post("/order")
    async def order() -> dict[str, int]:
        answer = await client.post(f"http://{target}/pay", json=PAYMENT)
        state.served_count += 1
        amount: int = answer.json()["amount"]
        return {"amount": amount}

    @app.post("/pay")
    async def pay(payment: dict[str, str | int]) -> dict[str, int]:
        state.served_count += 1
        state.amount += int(payment["amount"])
        return {"amount": state.amount}

    return app


def main() -> None:
    """Serve until terminated."""
    kind, name, listener, target, endpoint = sys.argv[1:]
    config = uvicorn.Config(
        service(kind, name, target, endpoint), log_level="warning", access_log=False
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(listener))])


if __name__ == "__main__":
    main()
