"""kubectl and helm, as people run them, against the real API server of the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.real_apiserver import RealApiServer


class ToolError(Exception):
    """The program ended with an error; the message is what it said on stderr."""

    def __init__(self, said: str, out: str = "") -> None:
        super().__init__(said)
        self.out = out
        """What it printed all the same."""


class Tools:
    """Both programs with a kubeconfig and a home of their own."""

    def __init__(self, cluster: RealApiServer, folder: Path) -> None:
        self._folder = folder
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": f"https://{cluster.host}:{cluster.port}",
                        "certificate-authority": str(folder / "ca.crt"),
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": cluster.admin_token}}],
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_text(cluster.ca)
        (folder / "kubeconfig").write_text(json.dumps(config))

    def kubectl(self, *args: str) -> str:
        return self._run("kubectl", *args)

    def helm(self, *args: str) -> str:
        return self._run("helm", *args)

    def get(self, *args: str) -> Any:
        """What `kubectl get … -o json` prints."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def _run(self, name: str, *args: str) -> str:
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._folder),
            "KUBECONFIG": str(self._folder / "kubeconfig"),
        }
        done = subprocess.run(
            [tool(name), *args], capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        if done.returncode:
            raise ToolError(done.stderr.strip(), done.stdout)
        return done.stdout


def tool(name: str) -> str:
    """Its path: beside the API server, or anywhere on PATH; empty where there is none."""
    return shutil.which(name, path=os.environ.get("KUBEBUILDER_ASSETS", "")) or shutil.which(name) or ""
