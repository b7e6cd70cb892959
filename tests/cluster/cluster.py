"""What tests ask of a cluster, whichever it is: the small one of this process, or the real API server."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.cluster.client import ApiClient
from tests.cluster.objects import PLANS, Objects, Pods

Object = dict[str, Any]
Rule = Mapping[str, Sequence[str]]
"""A PolicyRule of a ClusterRole."""

NAMESPACE = "cpubind-system"
SERVICE_ACCOUNT = "cpubind"
USER = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
FIELD_MANAGER = "cpubind-agent"

CRD = Path(__file__).parents[2] / "crds" / "cpubindingplans.yaml"
CRD_NAME = "cpubindingplans.cpubind.dev"


@functools.cache
def our_crd() -> Object:
    """The CRD of this repository; not to be changed."""
    document: Object = yaml.safe_load(CRD.read_text())
    return document


AGENT_RULES: tuple[Rule, ...] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["cpubind.dev"], "resources": ["cpubindingplans"], "verbs": ["list", "watch", "create"]},
    {"apiGroups": ["cpubind.dev"], "resources": ["cpubindingplans/status"], "verbs": ["patch"]},
)
"""All rights of the agent (design section 7)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the API server saw it."""

    verb: str
    """Kubernetes' word: get, list, watch, create, update, patch, delete, deletecollection."""
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    user: str = USER
    code: int = 200
    """The HTTP status; 200 for a watch as long as it is open."""
    time: float = 0.0
    """When it came, in seconds as of time.time()."""


class Cluster(Protocol):
    """An API server with nothing in it but what a test puts there: no kubelet, no scheduler, no controllers."""

    admin: ApiClient
    """May do everything."""
    nodes: Objects
    pods: Pods
    plans: Objects
    events: Objects

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def ca(self) -> str:
        """The certificate, in PEM, by which the server is known."""

    def start(self) -> None:
        """After `stop`: the same data on the same port."""

    def stop(self) -> None:
        """At once, as a crash: open connections are cut, new ones refused."""

    def close(self) -> None:
        """For good; nothing of it is left."""

    def reset(self) -> None:
        """As it was when it was new: no objects, the agent's rules, our CRD."""

    def install_crd(self, document: Object | None = None) -> None:
        """Makes it serve plans, by the CRD of this repository or another one. An older one is replaced, plans stay."""

    def remove_crd(self) -> None:
        """As `kubectl delete crd` does: its plans go, too."""

    def ensure_namespace(self, name: str) -> None: ...

    def gc(self) -> list[str]:
        """What the garbage collector would do now: deletes plans all of whose owners are gone, and names them."""

    def compact(self) -> None:
        """Forgets history: every resourceVersion handed out before is answered with 410. Open watches end."""

    @property
    def token(self) -> str:
        """The service account's token as it is now, a JWT."""

    def new_token(self) -> str:
        """Another token. The one before is refused, on the real server within ten seconds (it caches tokens)."""

    def service_account_dir(self, folder: Path) -> Path:
        """Makes `folder` what kubelet mounts into a pod: `token`, `ca.crt`, `namespace`. Returns it."""

    def rotate_token(self, folder: Path) -> str:
        """`new_token`, written to such a folder, too."""

    def as_service_account(self) -> ApiClient:
        """A client with the token as it is now."""

    def set_rules(self, rules: Sequence[Rule] = AGENT_RULES) -> None:
        """From now on the service account may do this, no more and no less."""

    def requests(self, since: float = 0.0) -> list[Request]:
        """What the service account asked, in order, since a time.time() and the last `reset`.

        A watch is in it as soon as it is answered. Requests with a token that is refused are not.
        """


def apply_status(cluster: Cluster, name: str, status: Object, **more: Any) -> Object:
    """Server-side apply to the status of a plan, as the agent does it and with its rights; the plan after it."""
    body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": name}, "status": status, **more}
    return cluster.as_service_account().apply(PLANS.path(name, subresource="status"), body, manager=FIELD_MANAGER)
