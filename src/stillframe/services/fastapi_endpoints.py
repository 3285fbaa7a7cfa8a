"""Requests that are accepted when FastAPI calls an endpoint.

FastAPI has no hook for it. It calls every endpoint by one function of its routing module, which it
keeps apart for profilers, so this function is replaced.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import fastapi.routing

from stillframe.errors import Unavailable
from stillframe.services.asgi import Scope, endpoint_begins

_FUNCTION = "run_endpoint_function"


def accept_where_endpoints_begin() -> None:
    """Let every endpoint of FastAPI accept the request that it serves. Doing so twice changes
    nothing.

    Raises:
        Unavailable: this version of FastAPI has no such function.
    """
    original: Callable[..., Awaitable[Any]] | None = getattr(fastapi.routing, _FUNCTION, None)
    if original is None:
        raise Unavailable(
            f"FastAPI {fastapi.__version__} has no fastapi.routing.{_FUNCTION}: use another "
            "version of FastAPI, or of Stillframe"
        )
    if getattr(original, "accepts", False):
        return

    async def run_endpoint_function(**arguments: Any) -> Any:
        in_thread = not arguments.get("is_coroutine", True)
        with endpoint_begins(arguments["dependant"].call, is_in_thread=in_thread):
            return await original(**arguments)

    run_endpoint_function.accepts = True  # type: ignore[attr-defined]
    setattr(fastapi.routing, _FUNCTION, run_endpoint_function)


def accepts_in_endpoint(scope: Scope) -> bool:
    """Return whether the endpoint to which a request was routed accepts it when it begins. Those of
    Starlette and generators do not, nor do applications that are mounted."""
    endpoint = scope["endpoint"]
    is_generator = inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint)
    return isinstance(scope.get("route"), fastapi.routing.APIRoute) and not is_generator
