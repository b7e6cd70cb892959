"""Pods whose process holds an NPU, as the stand-in npu-smi has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.node import Shell, StandIn, pod
from tests.e2e.release import workers
from tests.e2e.wait import until

NAMESPACE = "cpubind-e2e"
OPT_IN = {"cpubind.dev/enabled": "true"}


def _container(pod: Object) -> str:
    """Id of the one container of a pod."""
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"]).partition("://")[2]


@dataclass(frozen=True)
class Worker:
    """A pod with the process of its one container."""

    namespace: str
    name: str
    uid: str
    pid: int


class Workload:
    """Makes workers, and removes them again."""

    _numbers = count()

    def __init__(self, cluster: Cluster, shell: Shell, stand_in: StandIn, namespace: str = NAMESPACE) -> None:
        self._cluster = cluster
        self._kubectl = cluster.kubectl
        self._shell = shell
        self._stand_in = stand_in
        self._namespace = namespace
        self._held: dict[int, int] = {}
        self._made: list[tuple[str, str]] = []

    def start(
        self,
        npu: int | None,
        *,
        annotations: Mapping[str, str] = OPT_IN,
        cpus: int = 0,
        namespace: str | None = None,
        **container: object,
    ) -> Worker:
        """A pod that runs, with its process on an NPU. With `cpus` it is Guaranteed and asks for so many. `container`:
        fields of its one container."""
        namespace, name = namespace or self._namespace, f"worker-{next(self._numbers)}"
        amount = {"cpu": str(cpus), "memory": "64Mi"}
        if cpus:
            container["resources"] = {"requests": amount, "limits": amount}
        document = pod(self._cluster, name, namespace, container=container)
        document["metadata"]["annotations"] = dict(annotations)
        self._made.append((namespace, name))
        self._kubectl.create(document)
        return self._hold(namespace, name, npu)

    def _hold(self, namespace: str, name: str, npu: int | None, other_than: str = "") -> Worker:
        made = until(lambda: self._running(namespace, name, other_than), f"{name} runs", 60)
        (pid,) = until(lambda: self._shell.pids(_container(made)), f"{name} has a process")
        if npu is not None:
            self._held[pid] = npu
            self._stand_in.show(self._held)
        return Worker(namespace, name, made["metadata"]["uid"], pid)

    def restart(self, worker: Worker) -> Worker:
        """Kills the process, so that kubelet starts the container anew; its new process takes the NPU."""
        pod = self._kubectl.get("pod", "-n", worker.namespace, worker.name)
        npu = self._held.pop(worker.pid)
        self._shell(f"kill -KILL {worker.pid}")
        return self._hold(worker.namespace, worker.name, npu, _container(pod))

    def _running(self, namespace: str, name: str, other_than: str) -> Object | None:
        found = self._kubectl.get("pod", "-n", namespace, name)
        running = [status for status in found["status"].get("containerStatuses", []) if "running" in status["state"]]
        assert running, found["status"]
        return found if _container(found) != other_than else None

    def annotate(self, worker: Worker, *changes: str) -> None:
        """`KEY=VALUE`, or `KEY-` to remove one."""
        self._kubectl("annotate", "--overwrite", "pod", "-n", worker.namespace, worker.name, *changes)

    def events(self, worker: Worker, reason: str) -> list[Object]:
        """Events of a reason on the worker's pod."""
        selector = f"involvedObject.uid={worker.uid},reason={reason}"
        return self._kubectl.items("events", "-n", worker.namespace, "--field-selector", selector)

    def entry(self, worker: Worker) -> Object | None:
        """What the node's plan says of it."""
        plan = self._kubectl.get("cbp", self._cluster.node)
        return next((entry for entry in workers(plan) if entry["pid"] == worker.pid), None)

    def wait_entry(self, worker: Worker, seconds: float = 30) -> Object:
        """The same, once it says something."""
        return until(lambda: self.entry(worker), f"{worker.name} is in the plan", seconds)

    def clear(self) -> None:
        """Removes all of them."""
        for namespace, name in self._made:
            self._kubectl("delete", "pod", "-n", namespace, name, "--ignore-not-found", "--wait=false")
        for namespace, name in self._made:
            self._kubectl("wait", "pod", "-n", namespace, name, "--for=delete", "--timeout=60s")
        if self._held:  # their CPUs are free when they have ended
            living = " || ".join(f"test -e /proc/{pid}" for pid in self._held)
            until(lambda: self._shell(f"if {living}; then echo; else echo ended; fi").strip(), "they ended", 30)
        self._made.clear()
        if self._held:
            self._held.clear()
            self._stand_in.show({})
