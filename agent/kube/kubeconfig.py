"""The API server as a person reaches it: with a kubeconfig, and the rights that it gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import urllib3
from kubernetes import client, config

from agent import __version__
from agent.kube.access import Access
from agent.kube.api import Api, Object
from agent.model.reason import Reason, Refused, printable
from agent.node.documents import parse_yaml
from agent.node.files import read_text

MAX_BYTES: Final = 1 << 20
MAX_VALUES: Final = 10_000
"""Of a file: a cluster, its user and its context have some twenty. The client parses it with Python's own loader, which
takes a tenth of a millisecond for each."""


class UserAccess(Api):
    """The same requests as the agent makes, by a kubeconfig: ``--kubeconfig``, else ``$KUBECONFIG``, else
    ``~/.kube/config``. Tokens, client certificates and credential plugins are as kubectl knows them."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Refused(ApiUnreachable) where there is no such file or context, or it can't be used."""
        # The client reads the variable when it is imported, which may be another time.
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        configuration = client.Configuration()
        _check(files)
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                files, context, client_configuration=configuration
            )
            every, active = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
            if context:
                active = next(one for one in every if one["name"] == context)
            namespace = (active.get("context") or {}).get("namespace") or "default"
        except Exception as error:  # the client takes what it reads for well formed, and Python raises what it likes
            raise _refused(files, " ".join(str(error).split()) or type(error).__name__) from None
        super().__init__(Access(str(configuration.host), Path()))
        self.namespace = str(namespace)
        """The namespace of the context."""
        configuration.retries = urllib3.Retry(0)
        self._configuration = configuration

    def pod(self, namespace: str, name: str) -> Object:
        """A v1.Pod."""
        return self._request("Pod", "get", "GET", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}")

    def _connected(self) -> client.ApiClient:
        with self._lock:
            if self._client is None:
                self._client = client.ApiClient(self._configuration)
                self._client.user_agent = f"kubectl-cpubind/{__version__}"
            return self._client


def _check(files: str) -> None:
    """Refuses what the client would be busy with for minutes."""
    for file in filter(None, files.split(os.pathsep)):
        path = Path(file).expanduser()
        try:
            parse_yaml(
                read_text(path, Reason.API_UNREACHABLE, limit=MAX_BYTES) or "", file, Reason.API_UNREACHABLE, MAX_VALUES
            )
        except Refused as refused:
            raise _refused(files, refused.message) from None


def _refused(files: str, why: str) -> Refused:
    message = (
        f"kubeconfig {printable(files, 100)} cannot be used: {printable(why, 150)}; name another one with --kubeconfig"
    )
    return Refused(Reason.API_UNREACHABLE, message)
