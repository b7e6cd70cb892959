"""kubectl cpubind reads a kubeconfig as kubectl does: the same cluster, as the same user, or it says why not."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from agent.kube.kubeconfig import UserAccess
from tests.cli.conftest import Plugin
from tests.cli.plan_server import Server


def written(path: Path, url: str, name: str, **more: Any) -> Path:
    """A kubeconfig with one context, whose cluster, user and token have its name."""
    entry = {"name": name, "context": {"cluster": name, "user": name}}
    user = more.pop("user", {"token": name})
    document = {
        "contexts": [entry],
        "clusters": [{"name": name, "cluster": {"server": url, **more.pop("cluster", {})}}],
        "users": [{"name": name, "user": user}],
        "current-context": name,
        **more,
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("current", [{"current-context": None}, {"current-context": ""}, {"current-context": "gone"}])
def test_a_context_that_is_named_needs_no_current_one(
    plugin: Plugin, server: Server, tmp_path: Path, current: dict[str, str | None]
) -> None:
    path = written(tmp_path / "own", server.url, "own", **current)
    plugin("--kubeconfig", path, "--context", "own", "status")
    assert {asked[1] for asked in server.asked} == {"Bearer own"}
    unnamed = plugin("--kubeconfig", path, "status")
    assert (unnamed.status, unnamed.err.count("\n")) == (1, 1)
    assert ("gone" if current.get("current-context") else "--context names one") in unnamed.err


@pytest.mark.parametrize("last", [{"current-context": "second"}, {"current-context": ""}, None])
def test_of_several_kubeconfigs_the_first_says_which_context_is_current(
    plugin: Plugin,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: dict[str, str] | None,
) -> None:
    """As kubectl has it: of the client's own rule, the last one, came the plans of another cluster."""
    none = written(tmp_path / "none", server.url, "none", **{"current-context": None})
    first = written(tmp_path / "first", server.url, "first")
    second = tmp_path / "second"
    second.write_text("") if last is None else written(second, server.url, "second", **last)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (none, tmp_path / "missing", first, second))))
    plugin("status")
    assert {asked[1] for asked in server.asked} == {"Bearer first"}


def test_a_token_s_file_may_end_in_a_newline(plugin: Plugin, server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-a-file\n")
    plugin("--kubeconfig", written(tmp_path / "own", server.url, "own", user={"tokenFile": "token"}), "status")
    assert {asked[1] for asked in server.asked} == {"Bearer of-a-file"}


@pytest.mark.parametrize(
    ("text", "token", "bearer"),
    [
        ("of-a-file", "beside", "of-a-file"),
        ("of-a-file", "", "of-a-file"),
        ("", "beside", "beside"),
        (None, "beside", "beside"),
    ],
)
def test_a_token_s_file_counts_more_than_a_token_as_long_as_there_is_one(
    plugin: Plugin, server: Server, tmp_path: Path, text: str | None, token: str, bearer: str
) -> None:
    """As client-go has it: what stands in the kubeconfig may have expired long ago."""
    if text is not None:
        (tmp_path / "token").write_text(text)
    plugin(
        "--kubeconfig",
        written(tmp_path / "own", server.url, "own", user={"tokenFile": "token", "token": token}),
        "status",
    )
    assert {asked[1] for asked in server.asked} == {f"Bearer {bearer}"}


def test_what_a_user_names_is_beside_the_file_of_that_user(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client looks for a user's certificate beside the file of the cluster, and for its plugin, too."""
    (tmp_path / "of-user").mkdir()
    (tmp_path / "of-cluster").mkdir()
    for name in ("token", "certificate", "key"):
        (tmp_path / "of-user" / name).write_text(name)
    (tmp_path / "of-cluster/ca").write_text("ca")
    plain = {"tokenFile": "token", "client-certificate": "certificate", "client-key": "key", "client-key-data": ""}
    cluster = written(
        tmp_path / "of-cluster/config",
        server.url.replace("http", "https"),
        "own",
        users=[],
        cluster={"certificate-authority": "ca", "certificate-authority-data": ""},
    )
    user = tmp_path / "of-user/config"
    monkeypatch.chdir("/")

    def access() -> client.Configuration:
        with closing(UserAccess(f"{cluster}{os.pathsep}{user}")) as api:
            return api._configuration

    user.write_text(yaml.safe_dump({"users": [{"name": "own", "user": plain}]}))
    found = access()
    assert found.api_key == {"BearerToken": "Bearer token"}
    assert found.cert_file == str(tmp_path / "of-user/certificate")
    assert found.key_file == str(tmp_path / "of-user/key")
    assert found.ssl_ca_cert == str(tmp_path / "of-cluster/ca")

    script = tmp_path / "of-user/plugin"
    answer = {"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "of-the-plugin"}}
    script.write_text(f"#!/bin/sh\ntest $PWD = / && echo '{json.dumps(answer)}'\n")  # it is run where kubectl is
    script.chmod(0o755)
    user.write_text(
        yaml.safe_dump({"users": [{"name": "own", "user": {"exec": {"apiVersion": "v1", "command": "./plugin"}}}]})
    )
    assert access().api_key == {"BearerToken": "Bearer of-the-plugin"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"user": {"exec": {"apiVersion": "v1", "command": "no-such-plugin"}}}, "its credential plugin: [Errno 2]"),
        (
            {
                "user": {
                    "exec": {"apiVersion": "v1", "command": "sh", "args": ["-c", "echo log >&2; echo in >&2; false"]}
                }
            },
            "its credential plugin: process returned 1. log in;",
        ),
        (
            {"user": {"exec": {"apiVersion": "v1", "command": "echo", "args": ["{}"]}}},
            "its credential plugin: malformed",
        ),
        ({"user": {"tokenFile": "none"}}, "/none cannot be read, or nothing is in it"),
        ({"user": {"token": "\u4e2d"}}, "its token is none"),
        ({"user": {"token": "t", "as": "jane"}}, "user own acts as somebody else (as)"),
        ({"users": []}, "own is not in its users"),
        ({"cluster": {"server": "127.0.0.1:6443"}}, "the server 127.0.0.1:6443 has no https:// before it"),
        ({"cluster": {"proxy-url": "socks5://127.0.0.1:1"}}, "its SOCKS proxy takes PySocks (pip install PySocks)"),
    ],
)
def test_a_kubeconfig_is_never_followed_in_part(
    plugin: Plugin, server: Server, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    """Nobody is asked as another user than it says, or in another way."""
    result = plugin("--kubeconfig", written(tmp_path / "own", server.url, "own", **more), "status")
    assert (result.status, result.err.count("\n"), server.asked) == (1, 1, [])
    assert said in result.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_user_s_key_is_left_in_no_temporary_file(tmp_path: Path, number: signal.Signals) -> None:
    key = base64.b64encode(b"a key, as far as the client knows").decode()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # Only for TLS the client writes one out.
        path = written(tmp_path / "own", url.replace("http", "https"), "own", user={"client-key-data": key})
        code = "from agent.cli import kubectl_main; kubectl_main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "--kubeconfig", path, "status"],
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # the TLS client's hello
            assert [one.read_bytes() for one in temporary.iterdir()] == [base64.b64decode(key)]
            process.send_signal(number)
            assert process.wait(30) == (130 if number is signal.SIGINT else 128 + number)
    assert list(temporary.iterdir()) == []
