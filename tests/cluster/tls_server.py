"""An HTTPS server on 127.0.0.1 that can be stopped and started, and cut its connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.cluster.certificates import HOST

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class TlsServer:
    """Always the same port. All of it is for the thread of one event loop; a handler ends when its client goes."""

    def __init__(self, handler: Handler, port: int, context: ssl.SSLContext) -> None:
        self._handler = handler
        self._port = port
        self._context = context
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._deaf: socket.socket | None = None

    async def start(self) -> None:
        """Does nothing where it runs already."""
        if self._runner is not None:
            return
        self._server = web.Server(self._handler, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.SockSite(self._runner, socket.create_server((HOST, self._port)), ssl_context=self._context)
        await site.start()

    async def stop(self) -> None:
        """Refuses connections, cuts those that are open."""
        if self._deaf is not None:
            self._deaf.close()
            self._deaf = None
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        await self.cut()
        await runner.cleanup()

    async def deafen(self) -> None:
        """Connections are taken by the kernel, and nobody ever says a word on them."""
        await self.stop()
        self._deaf = socket.create_server((HOST, self._port), backlog=128)

    async def release(self) -> None:
        """Hears again, or runs again after `stop`."""
        if self._deaf is not None:
            self._deaf.close()
            self._deaf = None
        await self.start()

    async def exchange(self, context: ssl.SSLContext) -> None:
        """Runs on with another certificate; open connections are cut."""
        self._context = context
        await self.stop()
        await self.start()

    async def cut(self) -> int:
        """Ends all open connections without a goodbye; how many these were."""
        connections = self._server.connections if self._server is not None else []
        open_ones = [one.transport for one in connections if one.transport is not None]
        for transport in open_ones:
            with contextlib.suppress(AttributeError):  # of Python 3.11.2, where the client has ended it
                transport.abort()
        await asyncio.sleep(0)
        return len(open_ones)
