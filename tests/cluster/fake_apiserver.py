"""A small API server in this process: what the agent needs of v1.20.2, over TLS, up in some milliseconds.

It is as honest as `test_cluster.py` makes it, which asks the same of it and of the real one. What it does not model it
answers with 501, so that no test passes by its mercy.
"""

from __future__ import annotations

import copy
import secrets
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.cluster.background import Background, free_port
from tests.cluster.base import ApiServer
from tests.cluster.certificates import HOST, Certificates
from tests.cluster.cluster import AGENT_RULES, NAMESPACE, USER, Request, Rule, our_crd
from tests.cluster.fake.plans import PlanSchema
from tests.cluster.fake.service import ADMIN, Service
from tests.cluster.service_account import unsigned_token

Object = dict[str, Any]


class FakeApiServer(ApiServer):
    """Up as soon as it is made; `close` it."""

    def __init__(self) -> None:
        admin = secrets.token_hex(16)
        self._certificates = Certificates()
        super().__init__(free_port(), self._certificates.ca, admin)
        self._background = Background("fake API server")
        self._service = Service()
        self._service.users[admin] = ADMIN
        self._token = self.new_token()
        self._runner: web.ServerRunner | None = None
        self._server: web.Server | None = None
        self._background.call(lambda: self._service.registry.ensure_namespace(NAMESPACE))
        self.install_crd()
        self.start()

    @property
    def token(self) -> str:
        return self._token

    @property
    def bookmark_interval(self) -> float:
        """Seconds between bookmarks, for watches that are opened from now on; a minute unless it is changed."""
        return self._service.bookmark_interval

    @bookmark_interval.setter
    def bookmark_interval(self, seconds: float) -> None:
        self._service.bookmark_interval = seconds

    def start(self) -> None:
        if self._runner is None:
            self._background.run(self._listen())

    def stop(self) -> None:
        if self._runner is not None:
            self._background.run(self._hang_up())

    def close(self) -> None:
        """Raises where this server was at fault itself."""
        self._close_clients()
        self.stop()
        self._background.close()
        assert not self._service.crashes, "\n".join(self._service.crashes)

    def reset(self) -> None:
        raise NotImplementedError("a fake API server is made anew for each test")

    def install_crd(self, document: Object | None = None) -> None:
        wanted = copy.deepcopy(our_crd() if document is None else document)
        schema = PlanSchema(wanted)
        self._background.call(lambda: self._service.registry.install(schema))

    def remove_crd(self) -> None:
        self._background.call(self._service.registry.uninstall)

    def ensure_namespace(self, name: str) -> None:
        self._background.call(lambda: self._service.registry.ensure_namespace(name))

    def compact(self) -> None:
        self._background.call(self._service.registry.store.compact)

    def new_token(self) -> str:
        users = self._service.users
        token = unsigned_token(USER)
        self._background.call(lambda: users.pop(getattr(self, "_token", ""), None))
        self._background.call(lambda: users.update({token: USER}))
        self._token = token
        return token

    def set_rules(self, rules: Sequence[Rule] = AGENT_RULES) -> None:
        wanted = copy.deepcopy(list(rules))
        self._background.call(lambda: setattr(self._service, "rules", wanted))

    def requests(self, since: float = 0.0) -> list[Request]:
        return self._background.call(lambda: [one for one in self._service.requests if one.time >= since])

    async def _listen(self) -> None:
        self._server = web.Server(self._service.handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = socket.create_server((HOST, self.port))
        await web.SockSite(self._runner, listener, ssl_context=self._certificates.for_server()).start()

    async def _hang_up(self) -> None:
        assert self._runner is not None
        assert self._server is not None
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for connection in list(self._server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()
