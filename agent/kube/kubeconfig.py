"""The API server as a person reaches it: with a kubeconfig, and the rights that it gives."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import urllib3
from kubernetes import client
from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

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
    ``~/.kube/config``. Tokens, client certificates and credential plugins are as kubectl knows them; what it knows
    and is not known here is refused."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Refused(ApiUnreachable) where there is no such file or context, or it can't be used."""
        # The client reads the variable when it is imported, which may be another time.
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        configuration = client.Configuration()
        documents = _documents(files)
        try:
            name, active = _context(list(documents.values()), context)
            # By the files, so that a token that the client renews is kept there, as kubectl keeps it.
            merged = KubeConfigMerger(os.pathsep.join(documents))  # type: ignore[no-untyped-call]
            _complete(merged.config, active)
            with _errors_raised():
                KubeConfigLoader(  # type: ignore[no-untyped-call]
                    merged.config, name, config_base_path="", config_persister=merged.save_changes
                ).load_and_set(configuration)
            if "://" not in configuration.host:  # it would be asked in the clear
                raise ValueError(f"the server {configuration.host} has no https:// before it")
            if str(configuration.proxy).startswith("socks") and find_spec("socks") is None:
                raise ValueError("its SOCKS proxy takes PySocks (pip install PySocks)")
            # It is not asked for again, be it about to expire: a command takes seconds, and a plugin may be a person
            # who logs in.
            for key, token in configuration.api_key.items():
                configuration.api_key[key] = token.strip()  # a plugin's may have a last newline
                if not (token.isascii() and token.strip().isprintable()):
                    raise ValueError("its token is none: it has bytes that no token has")
            configuration.refresh_api_key_hook = None
        except Exception as error:  # the client takes what it reads for well formed, and Python raises what it likes
            raise _refused(files, " ".join(str(error).split()) or type(error).__name__) from None
        super().__init__(Access(str(configuration.host), Path()))
        self.namespace = str(active.get("namespace") or "default")
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


def _documents(files: str) -> dict[str, Any]:
    """Path -> what is in it, of the files that there are and that are not empty, in their order. Refused where there is
    none, and where the client would be busy with one for minutes."""
    documents = {}
    for file in filter(None, files.split(os.pathsep)):
        path = os.path.expanduser(file)  # noqa: PTH111 - Path's own raises for a user without a home
        try:
            text = read_text(path, Reason.API_UNREACHABLE, limit=MAX_BYTES) or ""
            document = parse_yaml(text, file, Reason.API_UNREACHABLE, MAX_VALUES)
        except Refused as refused:
            raise _refused(files, refused.message) from None
        if document is not None:
            documents[path] = document
    if not documents:
        raise _refused(files, "there is no such file, or nothing in it")
    return documents


def _context(documents: list[Any], name: str | None) -> tuple[str, Mapping[str, Any]]:
    """The context of this name, or the current one. Of several files the first that says something counts, as it does
    for kubectl; for the client the last one does, which may be another cluster. ValueError where there is none, and
    where its user is none, or another than the API server would be told."""
    name = name or next((str(one["current-context"]) for one in documents if one.get("current-context")), "")
    if not name:
        raise ValueError("it has no current context; --context names one")
    context = _named("contexts", name, documents).get("context") or {}
    if user := context.get("user"):
        about = _named("users", user, documents).get("user") or {}
        if other := next((key for key in about if key in ("as", "as-uid", "as-groups", "as-user-extra")), ""):
            raise ValueError(f"user {user} acts as somebody else ({other}), which is not done here")
    return name, context


def _complete(config: ConfigNode, context: Mapping[str, Any]) -> None:
    """Makes cluster and user of the context mean to the client what they mean to kubectl: a path is relative to the
    file in which it stands, and what is empty is not there. For the client certificates of a user are relative to the
    file of the cluster, and an empty value counts more than a file."""
    for what, key in (("clusters", "cluster"), ("users", "user")):
        entries = config.value[what]
        for number, entry in enumerate(entries):
            if entry.value.get("name") != context.get(key):
                continue
            folder = os.path.abspath(os.path.dirname(entry.path))  # noqa: PTH100, PTH120
            about = {name: value for name, value in (entry.value.get(key) or {}).items() if value not in (None, "")}
            for name in about.keys() & _PATHS:
                about[name] = os.path.join(folder, about[name])  # noqa: PTH118
            plugin = about.get("exec")
            if isinstance(plugin, Mapping) and "/" in str(plugin.get("command")):  # else it is looked for in $PATH
                about["exec"] = {**plugin, "command": os.path.join(folder, plugin["command"])}  # noqa: PTH118
            if file := about.pop("tokenFile", None):
                about["token"] = _token(file) or about.get("token")
                if not about["token"]:
                    raise ValueError(f"its tokenFile {file} cannot be read, or nothing is in it")
            entries[number] = ConfigNode(entry.name, {**entry.value, key: about}, entry.path)  # type: ignore[no-untyped-call]


_PATHS: Final = frozenset({"certificate-authority", "client-certificate", "client-key", "tokenFile"})


def _token(file: str) -> str:
    """What is in a tokenFile, which counts more than a token beside it (client-go's BearerTokenFile); empty where it
    can't be read, when that one serves. client-go reads it again each minute; no command here takes as long."""
    try:
        return (read_text(file, Reason.API_UNREACHABLE, limit=MAX_BYTES) or "").strip()
    except Refused:
        return ""


def _named(what: str, name: object, documents: list[Any]) -> Mapping[str, Any]:
    entries: list[Mapping[str, Any]] = [entry for one in documents for entry in one.get(what) or []]
    found = next((entry for entry in entries if entry.get("name") == name), None)
    if found is None:
        raise ValueError(f"{name} is not in its {what}")
    return found


@contextmanager
def _errors_raised() -> Iterator[None]:
    """What the client logs as an error and does without: the answer of a credential plugin, in whose place it would ask
    as nobody. ValueError with the first of these."""
    heard: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
    if heard:
        raise ValueError(f"its credential plugin: {heard[0].removeprefix('exec: ')}")


def _refused(files: str, why: str) -> Refused:
    message = (
        f"kubeconfig {printable(files, 100)} cannot be used: {printable(why, 150)}; name another one with --kubeconfig"
    )
    return Refused(Reason.API_UNREACHABLE, message)
