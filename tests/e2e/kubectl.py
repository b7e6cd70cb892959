"""kubectl, as people use it: a program and its output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.wait import patience

REPOSITORY = Path(__file__).parents[2]

Object = dict[str, Any]


class Failed(AssertionError):  # noqa: N818 - it says what a command did
    """A command that ended with another status than 0."""


def tool(name: str) -> str | None:
    """Path of kubectl or helm: beside the API server's assets, else on PATH."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(path := Path(assets) / name, os.X_OK):
        return str(path)
    return shutil.which(name)


def call(
    *command: str, stdin: str | None = None, env: Mapping[str, str] | None = None, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs a program in the repository's folder, to its end, whatever that is."""
    try:
        return subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds * patience(),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(command)}: still running after {late.timeout:g} s") from None


def output(done: subprocess.CompletedProcess[str]) -> str:
    """stdout of a program that ended well; `Failed` with all that it said else."""
    if done.returncode:
        said = (done.stderr + done.stdout).strip()
        raise Failed(f"{' '.join(done.args)}: exit {done.returncode}: {said[-3000:]}")
    return done.stdout


class Kubectl:
    """kubectl for one cluster."""

    def __init__(self, path: str, kubeconfig: str) -> None:
        self.path = path
        self.kubeconfig = kubeconfig

    def attempt(self, *args: str, stdin: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return call(self.path, *args, stdin=stdin, env={"KUBECONFIG": self.kubeconfig}, seconds=seconds)

    def __call__(self, *args: str, stdin: str | None = None, seconds: float = 60) -> str:
        return output(self.attempt(*args, stdin=stdin, seconds=seconds))

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """Starts it and does not wait; what it says is to be read from its stdout."""
        env = {**os.environ, "KUBECONFIG": self.kubeconfig}
        return subprocess.Popen(
            (self.path, *args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", env=env
        )

    def get(self, *args: str) -> Object:
        """`kubectl get ARGS` as an object, or a List."""
        found: Object = json.loads(self("get", *args, "-o", "json"))
        return found

    def items(self, *args: str) -> list[Object]:
        """`kubectl get ARGS` of several objects."""
        return list(self.get(*args)["items"])

    def apply(self, *documents: Mapping[str, Any]) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))

    def create(self, document: Mapping[str, Any]) -> None:
        """Makes an object as it is, whatever kubectl thinks of it."""
        self("create", "--validate=false", "-f", "-", stdin=json.dumps(document))
