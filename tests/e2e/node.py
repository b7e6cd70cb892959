"""The node as somebody with a root shell on it sees it, and the stand-in for npu-smi there.

Everything goes through a pod, so that the node may be any machine.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping

from agent.demo import npu_smi_tables
from agent.demo.profiles import Profile
from agent.model.node import ProcessRow
from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.wait import until

FOLDER = "/run/cpubind-e2e"
"""On the node: everything that these tests put there."""
NPU_SMI = f"{FOLDER}/npu-smi/npu-smi"

_SCRIPT = """\
#!/bin/sh
# A stand-in for npu-smi: it prints what lies beside it for these arguments. The agent's image has no cat.
name=
for arg; do name=$name-${arg#-}; done
while IFS= read -r line; do printf '%s\\n' "$line"; done <"${0%/*}/${name#-}.txt"
"""


def pod(cluster: Cluster, name: str, namespace: str, **spec: object) -> Object:
    """A pod on the node that does nothing and ends at once when it is deleted."""
    container = {
        "name": "main",
        "image": cluster.tools,
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000000"],
        **spec.pop("container", {}),  # type: ignore[dict-item]
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": cluster.node,
            "hostNetwork": cluster.host_network,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            **spec,
        },
    }


class Shell:
    """A root shell on the node."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._kubectl = cluster.kubectl
        self._where = ("-n", namespace, "shell")
        self._pod = pod(
            cluster,
            "shell",
            namespace,
            hostPID=True,
            volumes=[{"name": "root", "hostPath": {"path": "/"}}],
            container={
                "volumeMounts": [{"name": "root", "mountPath": "/node"}],
                "securityContext": {"privileged": True, "runAsUser": 0},
            },
        )

    def start(self) -> None:
        self._kubectl.apply(self._pod)
        until(lambda: self("true") == "", "the shell runs", 60)

    def __call__(self, script: str, stdin: str | None = None) -> str:
        """What a script prints; the node's files are below /node."""
        flags = ["-i"] if stdin is not None else []
        return self._kubectl("exec", *flags, *self._where, "--", "sh", "-c", script, stdin=stdin)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Starts a program and does not wait for it."""
        return self._kubectl.begin("exec", *self._where, "--", *command)

    def write(self, files: Mapping[str, str]) -> None:
        """Replaces files of the node, text by path, each at once. They may be run."""
        script = ["set -e"]
        for path, text in files.items():
            name, folder = shlex.quote(f"/node{path}"), shlex.quote(f"/node{path.rpartition('/')[0]}")
            script += [f"mkdir -p {folder}", f"printf %s {shlex.quote(text)} >{name}.new"]
            script += [f"chmod 755 {name}.new", f"mv {name}.new {name}"]
        self("sh -s", "\n".join([*script, ""]))

    def pids(self, container_id: str) -> list[int]:
        """The processes of a container, in the host's PID namespace."""
        found = self(f"grep -l {shlex.quote(container_id)} /proc/[0-9]*/cgroup 2>/dev/null || true")
        return [int(line.split("/")[2]) for line in found.split()]


class StandIn:
    """npu-smi of a node whose NPUs are those of a profile."""

    def __init__(self, shell: Shell, profile: Profile) -> None:
        self._shell = shell
        self._profile = profile

    def install(self) -> None:
        folder = NPU_SMI.rpartition("/")[0]
        files = {NPU_SMI: _SCRIPT}
        for args in npu_smi_tables.queries(self._profile):
            text = npu_smi_tables.query(self._profile, (), args)
            assert text is not None, args
            files[f"{folder}/{'-'.join(arg.removeprefix('-') for arg in args)}.txt"] = text
        self._shell.write(files)

    def show(self, held: Mapping[int, int]) -> None:
        """`held`: who holds a context on which NPU, NPU by pid."""
        rows = [ProcessRow(npu=npu, pid=pid, memory_mib=4096, name="VLLMWorker_TP") for pid, npu in held.items()]
        text = npu_smi_tables.query(self._profile, rows, ("info",))
        assert text is not None
        self._shell.write({f"{NPU_SMI.rpartition('/')[0]}/info.txt": text})
