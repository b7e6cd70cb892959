"""The agent of a cluster's node: a virtual host, and an API server, the real one or the small one of the tests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agent.cli.run import judge
from agent.cli.serving import Serving
from agent.demo.fake_kubelet import OPT_IN, VirtualPod, config_hash
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.kube.access import Access
from agent.kube.retry import Backoffs
from agent.kube.service import ClusterAgent, Ties
from agent.model.address import parse_address
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.pods import CONFIG_HASH
from agent.settings import load_settings
from agent.telemetry.health import Health, HealthServer
from tests.cluster.cluster import Cluster

T = TypeVar("T")

SPEED = 10.0
"""How much faster the agent's clock runs than time does: it asks npu-smi once a second when it awaits something. A test
that measures time sets `speed` to 1."""


class KubeRig:
    """One node with one agent. Nothing of it runs before `start`; `close` ends everything."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        profile: str = "a3",
        *,
        name: str = "",
        interrupts: bool = False,
        **settings: Any,
    ) -> None:
        """`settings` are those of the agent, by their names in `agent.settings`. The Node is called after its profile
        unless it has a `name`. Without `interrupts`, which take their time, the NPUs have none and the agent is not to
        bind any. With `metrics_address` it serves its metrics, with `health_address` it answers probes."""
        self.cluster = cluster
        self.folder = folder
        self.node = VirtualNode(folder / "root", profile, name=name, interrupts=interrupts)
        self.settings: dict[str, Any] = {
            "sweep_interval": 0.2,
            "status_interval": 0.5,
            "api_jitter": 0,
            "irq_binding": interrupts,
        }
        self.settings |= settings
        self.service_account = cluster.service_account_dir(folder / "service-account")
        self.address = (cluster.host, cluster.port)
        self.speed = SPEED
        self.backoffs = Backoffs(0.1, 0.5)
        self.patience = 20.0
        """How long the agent may take to stop."""
        self.agent: ClusterAgent | None = None
        self._serving: Serving | None = None
        self.probes: HealthServer | None = None
        self._thread: threading.Thread | None = None
        self.counted: Counter[tuple[str, str]] = Counter()
        """Requests of the agent as its metric has them: by verb and code."""
        cluster.ensure_namespace("prod")

    @property
    def name(self) -> str:
        return self.node.name

    def register(self, name: str = "") -> str:
        """kubelet registers the Node; returns its uid."""
        uid: str = self.cluster.nodes.named(name or self.name)["metadata"]["uid"]
        return uid

    def start(self, **settings: Any) -> ClusterAgent:
        """A new agent, as after an upgrade."""
        assert self.agent is None, "one is running"
        self.settings |= settings
        loaded = load_settings(
            {"node_name": self.name, "host_root": self.node.root, "architecture": "aarch64", **self.settings}
        )
        host, port = self.address
        health = Health(loaded.sweep_interval)
        if "health_address" in self.settings and (address := parse_address(loaded.health_address)):
            self.probes = HealthServer(address, health)
        if "metrics_address" in self.settings:
            self._serving = Serving(loaded)
        serving = self._serving

        def turned() -> None:
            if self.probes is not None and self.agent is not None:
                health.turned()
                judge(self.agent.agent.plan_object(), health.ready, health.not_ready)
            if serving is not None:
                serving.turned()

        ties = Ties(
            Access(f"https://{host}:{port}", self.service_account),
            self.node.npu_smi,
            self.node.kernel,
            journal=self.folder / "journal.json",
            backoffs=self.backoffs,
            count=lambda verb, code: self.counted.update([(verb, code)]),
            turned=turned,
            problems=serving.problems if serving is not None else list,
            clock=lambda: time.monotonic() * self.speed,
        )
        self.agent = ClusterAgent(loaded, loaded.spec(), ties)
        if self._serving is not None:
            self._serving.adopt(self.agent.agent, self.agent.watch_ages)
        self._thread = threading.Thread(target=self.agent.run, name="agent", daemon=True)
        self._thread.start()
        return self.agent

    def stop(self) -> None:
        """SIGTERM."""
        if self.agent is not None and self._thread is not None:
            self.agent.stop()
            self._thread.join(self.patience)
            assert not self._thread.is_alive(), "the agent did not stop"
        if self._serving is not None:
            self._serving.close()
        if self.probes is not None:
            self.probes.close()
        self.agent = self._serving = self.probes = None

    def kill(self) -> None:
        """SIGKILL: nothing is written any more, to the host or to the API server."""
        assert self.agent is not None
        self.agent.publisher._turn = lambda: time.monotonic() + 1  # type: ignore[method-assign]
        self.agent.agent.publication.leave = lambda: None  # type: ignore[method-assign]
        self.stop()

    def close(self) -> None:
        self.stop()

    def __enter__(self) -> KubeRig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_pod(
        self,
        name: str,
        npus: Sequence[int] = (),
        *,
        namespace: str = "prod",
        annotations: Mapping[str, str] = OPT_IN,
        containers: Sequence[str] = ("vllm",),
        own_cpus: CpuSet = EMPTY,
        static: bool = False,
        **spec: Any,
    ) -> tuple[VirtualPod, list[Worker]]:
        """A pod on this node, known to the API server, with one worker for each NPU in its first container."""
        self.cluster.ensure_namespace(namespace)
        said = dict(annotations) | ({CONFIG_HASH: config_hash(namespace, name)} if static else {})
        wanted: list[str | dict[str, Any]] = list(containers)
        if own_cpus:
            limits = {"cpu": str(len(own_cpus)), "memory": "1Gi"}
            wanted[0] = {"name": containers[0], "image": "image", "resources": {"limits": limits, "requests": limits}}
        made = self.cluster.pods.run(
            name, node=self.name, namespace=namespace, annotations=said, containers=wanted, **spec
        )
        pod = self.node.kubelet.add_pod(
            name,
            namespace=namespace,
            containers=containers,
            own_cpus=own_cpus,
            annotations=said,
            uid=made["metadata"]["uid"],
            static=static,
        )
        self.cluster.pods.started(name, {c.name: c.id for c in pod.containers}, namespace)
        return pod, [self.start_worker(npu, pod) for npu in npus]

    def start_worker(self, npu: int, pod: VirtualPod, container: str = "", threads: int = 28) -> Worker:
        """A worker begins, in the pod's first container unless another is named."""
        return Worker.start(self.node, npu, pod, container=container, threads=threads)

    def annotate(self, name: str, annotations: Mapping[str, str | None], namespace: str = "prod") -> None:
        self.cluster.pods.annotate(name, annotations, namespace)

    def plan(self) -> dict[str, Any]:
        """The object as the API server has it; {} where there is none."""
        return self.cluster.plans.find(self.name) or {}

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.plan().get("status", {})
        return status

    @property
    def version(self) -> str:
        """resourceVersion of the plan."""
        version: str = self.plan().get("metadata", {}).get("resourceVersion", "")
        return version

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition; {} where it is not there."""
        return next((entry for entry in self.status.get("conditions", []) if entry["type"] == kind), {})

    def npu(self, npu: int) -> dict[str, Any]:
        return next((entry for entry in self.status.get("npus", []) if entry["id"] == npu), {})

    def bound(self) -> set[int]:
        """Pids that the API server has as bound."""
        workers = (worker for npu in self.status.get("npus", []) for worker in npu.get("workers", []))
        return {worker["pid"] for worker in workers if worker["state"] == "Bound"}

    def edit(self, spec: Mapping[str, Any]) -> None:
        """`kubectl edit cbp`: merges into `spec`."""
        self.cluster.plans.merge_patch(self.name, {"spec": dict(spec)})

    def until(self, look: Callable[[], T], what: str, timeout: float = 15.0) -> T:
        """Looks again and again, ever more rarely, until what it finds is true."""
        deadline, pause = time.monotonic() + timeout, 0.02
        while not (found := look()):
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
            time.sleep(pause)
            pause = min(1.2 * pause, 0.1)
        return found

    def until_bound(self, workers: Sequence[Worker]) -> None:
        self.until(lambda: {w.pid for w in workers} <= self.bound(), "all are bound")

    def events(self, reason: str = "") -> list[dict[str, Any]]:
        """Events of ours, oldest first."""
        found = [e for e in self.cluster.events.list() if e.get("source", {}).get("component") == "cpubind-agent"]
        return [e for e in found if reason in ("", e["reason"])]

    def writes(self) -> int:
        """sched_setaffinity calls of the agent so far."""
        return self.node.kernel.calls["sched_setaffinity"]

    def settle(self, seconds: float = 1.0) -> str:
        """Waits until nothing was written for so long; returns the plan's resourceVersion."""
        before, since = self.version, time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(0.05)
            if (now := self.version) != before:
                before, since = now, time.monotonic()
        return before
