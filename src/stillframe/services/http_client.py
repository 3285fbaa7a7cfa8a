"""Observations of calls that services make with httpx.

The transport reads the whole answer before it returns, so that accepting the answer is one step
with the caller: between the two, httpx does not suspend.
"""

import httpx

from stillframe.protocol.calls import AnswerHeader
from stillframe.services.agent import Agent, Message
from stillframe.services.headers import NAME

_OF_GATEWAYS = (502, 503, 504)
"""With these, a gateway says that it had no answer."""


class ObservedTransport(httpx.AsyncBaseTransport):
    """A transport whose requests and answers take part in observations.

    Args:
        agent: the agent of this instance.
        transport: the transport that carries them.

    Example:
        ``httpx.AsyncClient(transport=ObservedTransport(agent))``
    """

    def __init__(self, agent: Agent, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._agent = agent
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer."""
        agent = self._agent
        body = await request.aread()
        target = target_of(request.url)
        message = Message(method=request.method, path=request.url.path, body=body)
        timeout_s = request.extensions.get("timeout", {}).get("read")
        call, header = agent.request(target, message, timeout_s=timeout_s)
        if header is None:
            try:
                return await self._transport.handle_async_request(request)
            finally:
                call.close()
        request.headers[NAME] = header
        try:
            response = await self._transport.handle_async_request(request)
            await response.aread()
        except BaseException:
            call.stop_waiting()
            raise
        answer = self._header(response)
        if answer is None:
            call.stop_waiting(was_answered=response.status_code not in _OF_GATEWAYS)
        else:
            call.accept_answer(answer)
        return response

    def _header(self, response: httpx.Response) -> AnswerHeader | None:
        text = response.headers.get(NAME)
        if text is None:
            return None
        header = self._agent.headers.decode(AnswerHeader, text)
        if header is None:
            self._agent.ignored_count += 1
        return header

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def target_of(url: httpx.URL) -> str:
    """Return the address to which a request is sent, as ``host:port``."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"{url.host}:{port}"
