"""The chart as it is installed, and the agent's pod that it brings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import REPOSITORY, Object, call, output
from tests.e2e.node import NPU_SMI
from tests.e2e.wait import until

CHART = REPOSITORY / "charts" / "cpubind"
NAMESPACE = "cpubind"

_ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1])
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode(), sep="\\n")
"""


class Release:
    """A release of the chart, installed by helm."""

    def __init__(self, cluster: Cluster, home: Path, name: str = "cpubind", plain: Mapping[str, Any] | None = None):
        """`home`: a folder for helm's own files. `plain`: values that replace those which all tests have."""
        self.cluster = cluster
        self.name = name
        self._env = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self._env["KUBECONFIG"] = cluster.kubectl.kubeconfig
        self._plain = plain or {}
        self._values: Object | None = None

    def values(self, **more: Any) -> Object:
        """Values for the node of the tests; `more` replaces top-level ones."""
        repository, _, tag = self.cluster.image.rpartition(":")
        return {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "allowAnyArchitecture": True,
            "hostNetwork": self.cluster.host_network,
            "npuSmi": {"path": NPU_SMI},
            "sweepInterval": 1,
            "statusInterval": 1,
            # The smallest node for tests has one CPU to give, and pods of the tests want it.
            "resources": {"requests": {"cpu": "0"}},
            **self._plain,
            **more,
        }

    def helm(self, *args: str, stdin: str | None = None, seconds: float = 120) -> str:
        return output(call(self.cluster.helm, *args, stdin=stdin, env=self._env, seconds=seconds))

    def install(self, *, chart: Path = CHART, **more: Any) -> None:
        """Installs or upgrades the release with exactly these values, and waits until its agent is ready."""
        values = self.begin(chart=chart, **more)
        AgentPod(self).wait_rolled_out()
        self._values = values if chart == CHART else None

    def begin(self, *, chart: Path = CHART, **more: Any) -> Object:
        """The same without waiting."""
        self.touched()
        values = self.values(**more)
        where = ("--namespace", NAMESPACE, "--create-namespace", "--values", "-")
        self.helm("upgrade", "--install", self.name, str(chart), *where, stdin=json.dumps(values))
        return values

    def ensure(self) -> None:
        """Brings it back to the plain values, when a test left it otherwise."""
        if self._values != self.values():
            self.install()

    def touched(self) -> None:
        """Somebody changed or removed it without this object."""
        self._values = None

    def uninstall(self) -> None:
        self.touched()
        self.helm("uninstall", self.name, "--namespace", NAMESPACE, "--ignore-not-found")
        AgentPod(self).wait_gone()

    def remove(self) -> None:
        """With everything that it leaves on the cluster."""
        self.uninstall()
        self.cluster.kubectl("delete", "crd", "cpubindingplans.cpubind.dev", "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


class AgentPod:
    """The pod of a release on the node of the tests, whichever it is just now."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.kubectl = release.cluster.kubectl
        self.selector = f"app.kubernetes.io/name=cpubind,app.kubernetes.io/instance={release.name}"

    def pods(self) -> list[Object]:
        node = f"spec.nodeName={self.release.cluster.node}"
        return self.kubectl.items("pods", "-n", NAMESPACE, "-l", self.selector, "--field-selector", node)

    def pod(self) -> Object:
        """The one that is not on its way out."""
        living = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        assert len(living) == 1, f"{len(living)} pods of release {self.release.name}"
        return living[0]

    @property
    def name(self) -> str:
        return str(self.pod()["metadata"]["name"])

    def is_ready(self) -> bool:
        return ready(self.pod())

    def wait_ready(self, other_than: str = "", seconds: float = 60) -> None:
        def replaced() -> bool:
            names = {pod["metadata"]["name"] for pod in self._hurried() if ready(pod)}
            return bool(names - {other_than})

        until(replaced, "an agent is ready", seconds)

    def wait_rolled_out(self, seconds: float = 90) -> None:
        """Until the pod is of the DaemonSet's newest revision, and ready."""
        until(lambda: len(self._hurried()) == 1 and self._rolled_out(), "the DaemonSet is rolled out", seconds)

    def wait_gone(self, seconds: float = 60) -> None:
        until(lambda: not self._hurried(), "the agent is gone", seconds)

    def _rolled_out(self) -> bool:
        found = self.kubectl.get("daemonset", "-n", NAMESPACE, self.release.name)
        status = found["status"]
        return bool(
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status["desiredNumberScheduled"] > 0
            and status["desiredNumberScheduled"] == status.get("updatedNumberScheduled") == status["numberReady"]
        )

    def _hurried(self) -> list[Object]:
        """Its pods. Old kubelets let a pod's object go up to half a minute after its containers ended: here it goes
        at once, so that nobody waits for the next one."""
        pods = self.pods()
        for pod in pods:
            # Some containers that have ended are said to be waiting.
            runs = any("running" in status["state"] for status in pod["status"].get("containerStatuses", []))
            if not runs and "deletionTimestamp" in pod["metadata"]:
                name = pod["metadata"]["name"]
                self.kubectl.attempt("delete", "pod", "-n", NAMESPACE, name, "--grace-period=0", "--force")
        return pods

    def restarts(self) -> int:
        return sum(status["restartCount"] for status in self.pod()["status"].get("containerStatuses", []))

    def complaints(self) -> list[str]:
        """What no test should leave: restarts of its container, and faults in its log. Nothing without a pod."""
        found = []
        for pod in self.pods():
            name, statuses = pod["metadata"]["name"], pod["status"].get("containerStatuses", [])
            found += [f"{name} was restarted: {status}" for status in statuses if status["restartCount"]]
            log = self.kubectl.attempt("logs", "-n", NAMESPACE, name).stdout.splitlines()
            found += [line for line in log if re.search(r" ERROR | CRITICAL |Traceback|^\s+File ", line)]
        return found

    def logs(self) -> str:
        return self.kubectl("logs", "-n", NAMESPACE, self.name)

    def run(self, *command: str) -> str:
        """What `cpubind COMMAND` prints, run beside the agent as the documents tell people to."""
        return output(self.attempt(*command))

    def attempt(self, *command: str) -> CompletedProcess[str]:
        """The same, whatever its exit status."""
        return self.kubectl.attempt("exec", "-n", NAMESPACE, self.name, "--", "cpubind", *command)

    @contextmanager
    def away(self) -> Iterator[None]:
        """No agent runs: its DaemonSet asks for nodes that do not exist."""
        self._place({"cpubind.dev/nowhere": "true"})
        try:
            self.wait_gone()
            yield
        finally:
            self._place(None)
        self.wait_ready()

    def _place(self, selector: Mapping[str, str] | None) -> None:
        patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})
        self.kubectl("patch", "daemonset", "-n", NAMESPACE, self.release.name, "--type", "merge", "-p", patch)

    def delete(self, *flags: str) -> str:
        """Deletes the pod, and does not wait; returns its name."""
        name = self.name
        self.kubectl("delete", "pod", "-n", NAMESPACE, name, "--wait=false", *flags)
        return name

    def scrape(self) -> str:
        """Its metrics, through the pod's address as Prometheus would get them."""
        if self.release.cluster.host_network:  # it listens on the node's loopback alone
            return self.ask(9486, "metrics")[1]
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{self.name}:9486/proxy/metrics")

    def ask(self, port: int, path: str) -> tuple[int, str]:
        """Status and body of the answer of a listener, asked from inside the pod."""
        done = self.kubectl("exec", "-n", NAMESPACE, self.name, "--", "python3", "-c", _ASK, f"{port}/{path}")
        status, _, body = done.partition("\n")
        return int(status), body

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of the sample of this name with these labels."""
        for family in text_string_to_metric_families(self.scrape()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None


def ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is, as its readiness probe has it, and is to stay."""
    conditions = pod["status"].get("conditions", [])
    well = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return well and "deletionTimestamp" not in pod["metadata"]


def conditions(plan: Mapping[str, Any]) -> dict[str, Object]:
    """Conditions of a plan by type."""
    return {one["type"]: one for one in plan.get("status", {}).get("conditions", [])}


def workers(plan: Mapping[str, Any]) -> list[Object]:
    """Workers of a plan, each with the id of its NPU as `npu`."""
    npus = plan.get("status", {}).get("npus", [])
    return [{**worker, "npu": npu["id"]} for npu in npus for worker in npu.get("workers", [])]


def notes(release: Release) -> str:
    """What helm tells whoever installed it."""
    return release.helm("get", "notes", release.name, "--namespace", NAMESPACE)
