"""A small API server in this process: what the agent needs of v1.20.2, over TLS, up in some milliseconds.

It is as honest as `test_cluster.py` makes it, which asks the same of it and of the real one. What it does not model it
answers with 501, so that no test passes by its mercy.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence
from typing import Any

from tests.cluster.background import Background, free_port
from tests.cluster.base import ApiServer
from tests.cluster.certificates import Certificates
from tests.cluster.cluster import AGENT_RULES, NAMESPACE, USER, Request, Rule, our_crd
from tests.cluster.fake.plans import PlanSchema
from tests.cluster.fake.service import ADMIN, Service
from tests.cluster.service_account import unsigned_token
from tests.cluster.tls_server import TlsServer

Object = dict[str, Any]


class FakeApiServer(ApiServer):
    """Up as soon as it is made; `close` it."""

    def __init__(self) -> None:
        admin = secrets.token_hex(16)
        certificates = Certificates()
        super().__init__(free_port(), certificates.ca, admin)
        self._background = Background("fake API server")
        self._service = Service()
        self._service.users[admin] = ADMIN
        self._token = self.new_token()
        self._server = TlsServer(self._service.handle, self.port, certificates.for_server())
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
        self._background.run(self._server.start())

    def stop(self) -> None:
        self._background.run(self._server.stop())

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
