"""Observations of services that keep their transports, such as HTTP and gRPC.

`attach` lets an application of FastAPI or Starlette take part, and `connected_agent` any other
process. Both return the `Agent` of the process. `ObservedTransport` is for the calls that it makes
with httpx, `ObservedCalls` and `ObservedChannel` are for grpc.aio. ``stillframe observe`` collects.
"""

from typing import TYPE_CHECKING, Any

from stillframe.public_names import public_attribute

if TYPE_CHECKING:
    from stillframe.services.agent import Agent, MadeCall, Message, ObservedLock
    from stillframe.services.asgi import ObservedApplication
    from stillframe.services.attachment import Settings, attach, connected_agent
    from stillframe.services.grpc_client import ObservedChannel
    from stillframe.services.grpc_server import ObservedCalls
    from stillframe.services.http_client import ObservedTransport

__all__ = [
    "Agent",
    "MadeCall",
    "Message",
    "ObservedApplication",
    "ObservedCalls",
    "ObservedChannel",
    "ObservedLock",
    "ObservedTransport",
    "Settings",
    "attach",
    "connected_agent",
]

_MODULES = {
    "stillframe.services.agent": "Agent MadeCall Message ObservedLock",
    "stillframe.services.asgi": "ObservedApplication",
    "stillframe.services.attachment": "Settings attach connected_agent",
    "stillframe.services.grpc_client": "ObservedChannel",
    "stillframe.services.grpc_server": "ObservedCalls",
    "stillframe.services.http_client": "ObservedTransport",
}

if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a public name when it is used: few services need both httpx and grpc."""
        return public_attribute(__name__, name, _MODULES)
