"""How a server ends so that nobody is left between its door and its inside."""

import asyncio


def stop_listening(server: asyncio.Server) -> None:
    """Let a server take no more connections; those that it has taken are made first.

    CPython's own loop needs some steps to make a connection and loses it, open, if its server is
    closed meanwhile (https://github.com/python/cpython/issues/109564). So the server takes nobody
    more from now on, and closes when who was taken is in.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listener in server.sockets:
            loop.remove_reader(listener)
        loop.call_soon(server.close)
    else:
        server.close()
