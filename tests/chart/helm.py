"""The chart, rendered by the helm binary: whatever fills KUBEBUILDER_ASSETS, or the one on PATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts/cpubind"

Object = dict[str, Any]


def find_helm() -> str | None:
    """Path of the helm binary; None where there is none."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which("helm", path=assets) if assets and shutil.which("helm", path=assets) else shutil.which("helm")


def need_helm() -> None:
    """Skips the module that calls it where there is no helm: one line for all of them, being one place."""
    if find_helm() is None:
        pytest.skip(
            "no helm: put it on PATH, or into the folder that KUBEBUILDER_ASSETS names", allow_module_level=True
        )


class Refusal(Exception):  # noqa: N818 - it says what happened
    """helm ended with an error."""


class Helm:
    """Runs helm without a cluster."""

    def __init__(self, program: str, scratch: Path) -> None:
        self._program = program
        self._scratch = scratch

    def run(self, *args: str) -> str:
        """What helm prints on stdout. Raises Refusal with what it prints on stderr."""
        home = {"HOME": str(self._scratch), "PATH": os.environ.get("PATH", "")}
        done = subprocess.run([self._program, *args], capture_output=True, text=True, env=home, timeout=60, check=False)
        if done.returncode:
            raise Refusal(done.stderr.strip())
        return done.stdout

    def lint(self, values: Object | None = None) -> str:
        return self.run("lint", "--strict", str(CHART), *self._files(values))

    def render(
        self,
        values: Object | None = None,
        *sets: str,
        release: str = "cpubind",
        namespace: str = "npu-system",
        kubernetes: str = "1.32.0",
        apis: Iterable[str] = (),
    ) -> Rendered:
        """The chart with these values, and with `sets` as people write them after --set, on a cluster that has these
        APIs besides its own."""
        flags = [flag for item in sets for flag in ("--set", item)]
        flags += [flag for api in apis for flag in ("--api-versions", api)]
        where = ["--namespace", namespace, "--kube-version", kubernetes]
        return Rendered(self.run("template", release, str(CHART), *where, *self._files(values), *flags))

    def notes(self, values: Object | None = None) -> str:
        """What people read after the installation."""
        args = ["cpubind", str(CHART), "--dry-run=client", "--namespace", "npu-system", *self._files(values)]
        return self.run("install", *args).partition("NOTES:\n")[2]

    def refusal(self, values: Object | None = None, *sets: str) -> str:
        """The sentence with which helm refuses these values."""
        try:
            self.render(values, *sets)
        except Refusal as refused:
            text = str(refused)
        else:
            raise AssertionError(f"rendered with {values} {sets}")
        found = re.search(r"execution error at \([^)]*\): (.*)", text)
        return found[1] if found else text

    def _files(self, values: Object | None) -> list[str]:
        if not values:
            return []
        file = self._scratch / "values.json"
        file.write_text(json.dumps(values))  # YAML too; PyYAML and helm differ on what a bare `n` is
        return ["--values", str(file)]


class Rendered:
    """The objects of a release."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [document for document in yaml.safe_load_all(text) if document]

    def kinds(self, kind: str) -> list[Object]:
        return [document for document in self.objects if document["kind"] == kind]

    def the(self, kind: str, name: str = "") -> Object:
        """The one object of a kind, or the one with this name."""
        (found,) = [o for o in self.kinds(kind) if not name or o["metadata"]["name"] == name]
        return found

    @property
    def pod(self) -> Object:
        """Spec of the agent's pod."""
        spec: Object = self.the("DaemonSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (only,) = self.pod["containers"]
        agent: Object = only
        return agent

    @property
    def env(self) -> dict[str, str]:
        """The variables with a value; that from a field has its path."""
        return {
            item["name"]: item["value"] if "value" in item else item["valueFrom"]["fieldRef"]["fieldPath"]
            for item in self.container["env"]
        }

    @property
    def mounts(self) -> dict[str, Object]:
        """Each mount by its path in the container, with `volume` for what is mounted."""
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        return {
            mount["mountPath"]: {**mount, "volume": volumes[mount["name"]]} for mount in self.container["volumeMounts"]
        }
