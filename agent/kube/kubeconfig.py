"""The API server as a person reaches it: with a kubeconfig, and the rights that it gives."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import urllib3
import yaml
from kubernetes import client, config

from agent import __version__
from agent.kube.access import Access
from agent.kube.api import Api, Object
from agent.model.reason import Reason, Refused, printable


class UserAccess(Api):
    """The same requests as the agent makes, by a kubeconfig: ``--kubeconfig``, else ``$KUBECONFIG``, else
    ``~/.kube/config``. Tokens, client certificates and credential plugins are as kubectl knows them."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Refused(ApiUnreachable) where there is no such file or context, or it can't be used."""
        # The client reads the variable when it is imported, which may be another time.
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        configuration = client.Configuration()
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                files, context, client_configuration=configuration
            )
            every, active = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
            if context:
                active = next(one for one in every if one["name"] == context)
        except (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, StopIteration) as error:
            said = printable(" ".join(str(error).split()), 150)
            message = f"kubeconfig {printable(files, 100)} cannot be used: {said}; name another one with --kubeconfig"
            raise Refused(Reason.API_UNREACHABLE, message) from None
        super().__init__(Access(configuration.host, Path()))
        self.namespace = str((active.get("context") or {}).get("namespace") or "default")
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
