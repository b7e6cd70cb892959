"""The real API server: etcd and kube-apiserver from the folder KUBEBUILDER_ASSETS, as envtest runs them.

There is no controller-manager: no garbage collector (`gc` stands in for it), no deletion of namespaces, no service
account tokens but those that are asked for. All of it listens on 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import urllib3

from agent.demo.fake_files import scratch
from tests.cluster.audit import POLICY, AuditLog
from tests.cluster.background import free_port
from tests.cluster.base import ApiServer
from tests.cluster.certificates import HOST, Certificates, write_signing_key
from tests.cluster.client import ApiError, Watch, eventually
from tests.cluster.cluster import AGENT_RULES, CRD_NAME, NAMESPACE, SERVICE_ACCOUNT, USER, Request, Rule, our_crd
from tests.cluster.objects import NAMESPACES, NODES, PLANS, PODS, Kind
from tests.cluster.processes import Program, StartError

Object = dict[str, Any]

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}"
_ROLE = "cpubind"
_START_TIMEOUT = 90.0

START_ERRORS = (StartError, ApiError, AssertionError, OSError, urllib3.exceptions.HTTPError)
"""What it looks like when it does not come up: a busy machine, a port that somebody else took, binaries that fail."""


def missing_assets(environment: Mapping[str, str] = os.environ) -> str | None:
    """One line that says why there is no real API server here; None where there is one."""
    folder = environment.get("KUBEBUILDER_ASSETS", "")
    how = "fill a folder with `setup-envtest use` and export KUBEBUILDER_ASSETS"
    if not folder:
        return f"KUBEBUILDER_ASSETS is not set: no etcd and kube-apiserver to test against ({how})"
    absent = [name for name in ("etcd", "kube-apiserver") if not os.access(Path(folder, name), os.X_OK)]
    return f"KUBEBUILDER_ASSETS={folder} has no {' and no '.join(absent)} ({how})" if absent else None


class RealApiServer(ApiServer):
    """Up, with our CRD and the agent's service account, once it is made; one of START_ERRORS where it is not."""

    def __init__(self, assets: Path, parent: Path | None = None) -> None:
        """`parent` is where its data go; in memory unless there is a wish, for etcd waits for its disk."""
        self._folder = Path(tempfile.mkdtemp(prefix="cpubind-apiserver-", dir=parent or scratch()))
        certificates, admin = Certificates(), secrets.token_hex(16)
        super().__init__(free_port(), certificates.ca, admin)
        self._etcd_port, self._peer_port, self._other_port = free_port(), free_port(), free_port()
        self._assets = assets
        self._audit = AuditLog(self._folder / "audit.log")
        self._etcd = self._make_etcd(self._etcd_port)
        self._server = self._make_server(certificates, admin)
        self._counter = itertools.count(1)
        self._token = self._secret = ""
        self._rules: Sequence[Rule] = ()
        self._installed: Object | None = None
        try:
            self._etcd.start(self._etcd_answers, _START_TIMEOUT)
            self.start()
            self._make_account()
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """As v1.20.2."""
        version: str = self.admin.request("GET", "/version")["gitVersion"]
        return version

    @property
    def token(self) -> str:
        return self._token

    def start(self) -> None:
        if not self._server.runs:
            self._server.start(self._answers, _START_TIMEOUT)

    def stop(self) -> None:
        self._server.kill()

    def close(self) -> None:
        self._close_clients()
        self._server.kill()
        self._etcd.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def reset(self) -> None:
        self.start()
        self.install_crd()
        self.set_rules()
        for objects in (self.pods, self.plans, self.events, self.nodes):
            objects.clear()
        self._audit.forget()

    def install_crd(self, document: Object | None = None) -> None:
        wanted = copy.deepcopy(our_crd() if document is None else document)
        if wanted == self._installed:
            return
        if self._installed is None:
            self.admin.request("POST", _CRDS, wanted)
            eventually(self._serves_plans, "the API server serves plans")
        else:
            # When the new schema is in force nobody says; one field more is seen to come, and to go again.
            probe = f"probe{next(self._counter)}"
            self._replace_crd(_with_field(wanted, probe))
            eventually(lambda: self._knows(probe), "the API server has the new CRD")
            self._replace_crd(wanted)
            eventually(lambda: not self._knows(probe), "the API server has the new CRD")
        self._installed = wanted

    def remove_crd(self) -> None:
        if self._installed is not None:
            self.admin.request("DELETE", f"{_CRDS}/{CRD_NAME}")
            eventually(lambda: self.admin.ask("GET", PLANS.path()).code == 404, "plans are gone")
            eventually(lambda: self.admin.ask("GET", f"/apis/{PLANS.group}").code == 404, "their group is gone")
            self._installed = None

    def ensure_namespace(self, name: str) -> None:
        self._ensure(NAMESPACES.path(), {"metadata": {"name": name}})

    def compact(self) -> None:
        # The watch cache of the API server would still know. It asks etcd anew when its own watch there fails, which
        # is when the revision it goes on from is compacted; so etcd is stopped, and compacted where nobody looks.
        before = {kind: self._revision(kind) for kind in self._watched()}
        self._etcd.kill()
        elsewhere = self._make_etcd(self._other_port)
        elsewhere.start(lambda: _put(self._other_port) > 0, _START_TIMEOUT)
        try:
            revision = _put(self._other_port)
            _ask_etcd(self._other_port, "kv/compaction", {"revision": revision, "physical": True})
        finally:
            elsewhere.kill()
        self._etcd.start(self._etcd_answers, _START_TIMEOUT)
        for kind, version in before.items():
            eventually(partial(self._is_forgotten, kind, version), f"old versions of {kind.plural} are forgotten", 60)
        eventually(self._writes, "writes are taken again", 60)

    def new_token(self) -> str:
        # The token lives as long as the secret that it is bound to.
        name = f"token-{next(self._counter)}"
        secret = self.admin.request("POST", f"{_ACCOUNT}/secrets", {"metadata": {"name": name}})
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret["metadata"]["uid"]}
        token = self._ask_for_token({"boundObjectRef": bound})
        if self._secret:
            self.admin.request("DELETE", f"{_ACCOUNT}/secrets/{self._secret}")
        self._token, self._secret = token, name
        return self._token

    def another_token(self) -> str:
        """One more token, which is good for two hours whatever becomes of the others: each pod has its own."""
        return self._ask_for_token({})

    @property
    def server_pid(self) -> int:
        """Of kube-apiserver."""
        return self._server.pid

    def etcd_metrics(self) -> str:
        """What etcd serves to Prometheus."""
        answer = urllib3.request("GET", f"http://{HOST}:{self._etcd_port}/metrics", retries=False, timeout=15)
        return answer.data.decode()

    def _ask_for_token(self, spec: Object) -> str:
        asked = {"spec": {"expirationSeconds": 7200, **spec}}
        answer = self.admin.request("POST", f"{_ACCOUNT}/serviceaccounts/{SERVICE_ACCOUNT}/token", asked)
        token: str = answer["status"]["token"]
        return token

    def set_rules(self, rules: Sequence[Rule] = AGENT_RULES) -> None:
        if rules == self._rules:
            return
        # The authorizer hears of it a little later. A path that nobody serves, allowed by the same role, tells when.
        mark = f"/rules/{next(self._counter)}"
        everything = [*copy.deepcopy(list(rules)), {"nonResourceURLs": [mark], "verbs": ["get"]}]
        self.admin.request("PUT", f"{_RBAC}/clusterroles/{_ROLE}", {"metadata": {"name": _ROLE}, "rules": everything})
        eventually(lambda: self._may_get(mark), "the new rules are in force")
        self._rules = rules

    def requests(self, since: float = 0.0) -> list[Request]:
        return [request for request in self._audit.requests() if request.time >= since]

    def _make_etcd(self, port: int) -> Program:
        client, peer = f"http://{HOST}:{port}", f"http://{HOST}:{self._peer_port}"
        urls = {"listen-client-urls": client, "advertise-client-urls": client, "listen-peer-urls": peer}
        urls |= {"initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        # One member alone elects itself; short terms let it do so at once.
        terms = {"heartbeat-interval": "10", "election-timeout": "100"}
        options = [f"--{key}={value}" for key, value in (urls | terms).items()]
        data = f"--data-dir={self._folder / 'etcd'}"
        return Program([str(self._assets / "etcd"), data, *options], self._folder / "etcd.log")

    def _make_server(self, certificates: Certificates, admin: str) -> Program:
        folder = self._folder
        chain, key = certificates.write(folder)
        write_signing_key(folder / "accounts.key")
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "tokens.csv").write_text(f"{admin},admin,admin,system:masters\n")
        options = {
            "etcd-servers": f"http://{HOST}:{self._etcd_port}",
            "bind-address": HOST,
            "external-hostname": HOST,
            "secure-port": self.port,
            "cert-dir": folder,
            "tls-cert-file": chain,
            "tls-private-key-file": key,
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-key-file": folder / "accounts.key",
            "service-account-signing-key-file": folder / "accounts.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "authorization-mode": "RBAC",
            # As every cluster has it whose own parts run in pods.
            "allow-privileged": "true",
            "token-auth-file": folder / "tokens.csv",
            # It would want a service account in every namespace, which a controller makes.
            "disable-admission-plugins": "ServiceAccount",
            "audit-policy-file": folder / "policy.yaml",
            "audit-log-path": self._audit.path,
        }
        command = [str(self._assets / "kube-apiserver"), *(f"--{key}={value}" for key, value in options.items())]
        return Program(command, folder / "kube-apiserver.log")

    def _make_account(self) -> None:
        self.ensure_namespace(NAMESPACE)
        self._ensure(f"{_ACCOUNT}/serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE}
        who = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}
        self._ensure(f"{_RBAC}/clusterroles", {"metadata": {"name": _ROLE}, "rules": []})
        binding = {"metadata": {"name": _ROLE}, "roleRef": role, "subjects": [who]}
        self._ensure(f"{_RBAC}/clusterrolebindings", binding)
        self.install_crd()
        self.set_rules()
        self.new_token()

    def _ensure(self, path: str, document: Object) -> None:
        answer = self.admin.ask("POST", path, document)
        if answer.code not in (201, 409):
            raise ApiError(answer.code, answer.document, answer.text)

    def _answers(self) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            ready = self.admin.ask("GET", "/readyz").code == 200
            return ready and self.admin.ask("GET", NAMESPACES.path("default")).code == 200
        return False

    def _etcd_answers(self) -> bool:
        return _put(self._etcd_port) > 0

    def _serves_plans(self) -> bool:
        groups = self.admin.request("GET", "/apis")["groups"]
        return any(group["name"] == PLANS.group for group in groups) and all(
            self.admin.ask("GET", path).code == 200 for path in (PLANS.path(), PLANS.prefix)
        )

    def _replace_crd(self, document: Object) -> None:
        now = self.admin.request("GET", f"{_CRDS}/{CRD_NAME}")
        metadata = {**document["metadata"], "resourceVersion": now["metadata"]["resourceVersion"]}
        self.admin.request("PUT", f"{_CRDS}/{CRD_NAME}", {**document, "metadata": metadata})

    def _knows(self, field: str) -> bool:
        plan = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "probe"}, field: "x"}
        return field in self.admin.request("POST", PLANS.path(), plan, query={"dryRun": "All"})

    def _may_get(self, path: str) -> bool:
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]
        what = {"nonResourceAttributes": {"path": path, "verb": "get"}}
        review = {"spec": {"user": USER, "groups": groups, **what}}
        answer = self.admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    def _watched(self) -> list[Kind]:
        return [NODES, PODS, PLANS] if self._installed is not None else [NODES, PODS]

    def _revision(self, kind: Kind) -> str:
        version: str = self.admin.request("GET", kind.path())["metadata"]["resourceVersion"]
        return version

    def _is_forgotten(self, kind: Kind, version: str) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError, ApiError):
            watch: Watch = self.admin.watch(kind.path(), {"resourceVersion": version, "timeoutSeconds": "1"})
            with watch:
                watch.wait_for_end(5)
                return any(event["type"] == "ERROR" for event in watch.events)
        return False

    def _writes(self) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            answer = self.admin.ask("POST", NAMESPACES.path(), {"metadata": {"name": "probe"}})
            return answer.code in (201, 409)
        return False


def started_twice(assets: Path) -> RealApiServer:
    """A server that can't be brought up is tried once more, on other ports."""
    with contextlib.suppress(*START_ERRORS):
        return RealApiServer(assets)
    time.sleep(1)
    return RealApiServer(assets)


def _with_field(document: Object, name: str) -> Object:
    changed = copy.deepcopy(document)
    for version in changed["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"].setdefault("properties", {})[name] = {"type": "string"}
    return changed


def _put(port: int) -> int:
    """Writes something of no interest; the revision of it, or 0 where etcd does not answer yet."""
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        answer = _ask_etcd(port, "kv/put", {"key": base64.b64encode(b"/cpubind-tests").decode(), "value": ""})
        return int(answer.get("header", {}).get("revision", 0))
    return 0


def _ask_etcd(port: int, path: str, body: Object) -> Object:
    answer = urllib3.request("POST", f"http://{HOST}:{port}/v3/{path}", json=body, retries=False, timeout=5)
    document: Object = answer.json()
    return document
