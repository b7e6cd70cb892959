"""What both kinds of cluster do in the same way."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.certificates import HOST
from tests.cluster.client import ApiClient
from tests.cluster.cluster import NAMESPACE
from tests.cluster.objects import EVENTS, NODES, PLANS, Objects, Pods
from tests.cluster.service_account import write_service_account


class ApiServer:
    """The part of a `Cluster` that is requests and files."""

    host = HOST

    def __init__(self, port: int, ca: str, admin_token: str) -> None:
        self.port = port
        self.ca = ca
        self.admin_token = admin_token
        self.admin = ApiClient(HOST, port, ca, admin_token)
        self.nodes = Objects(self.admin, NODES)
        self.pods = Pods(self.admin)
        self.plans = Objects(self.admin, PLANS)
        self.events = Objects(self.admin, EVENTS)
        self._clients: list[ApiClient] = [self.admin]

    @property
    def token(self) -> str:
        raise NotImplementedError

    def new_token(self) -> str:
        raise NotImplementedError

    def service_account_dir(self, folder: Path) -> Path:
        return write_service_account(folder, token=self.token, ca=self.ca, namespace=NAMESPACE)

    def rotate_token(self, folder: Path) -> str:
        token = self.new_token()
        write_service_account(folder, token=token, ca=self.ca, namespace=NAMESPACE)
        return token

    def as_service_account(self) -> ApiClient:
        client = ApiClient(HOST, self.port, self.ca, self.token)
        self._clients.append(client)
        return client

    def gc(self) -> list[str]:
        nodes = {node["metadata"]["uid"] for node in self.nodes.list()}
        gone = []
        for plan in self.plans.list():
            owners = plan["metadata"].get("ownerReferences", ())
            if owners and not any(owner["kind"] == "Node" and owner["uid"] in nodes for owner in owners):
                self.plans.delete(plan["metadata"]["name"])
                gone.append(plan["metadata"]["name"])
        return gone

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
