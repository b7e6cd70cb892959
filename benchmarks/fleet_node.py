"""One node of a fleet: a virtual host and its agent, and what scheduler and kubelet would do.

The agent is the whole one of a cluster's node, with the settings that it has by default. What is virtual is the host
below it. A process has one of them, or some where memory is short: they share nothing but the interpreter. It is forked
from one that has imported the agent, so that hundreds begin within a second; it ends with the process that made it.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

from agent.demo.fake_kubelet import OPT_IN, VirtualPod
from agent.demo.workload import Worker
from agent.kube.retry import Backoffs
from tests.api.rig import KubeRig
from tests.cluster.base import ApiServer
from tests.cluster.cluster import Cluster

NAMESPACE = "prod"
PODS = 2
"""That serve models on each node, with a worker on each of their share of the NPUs."""
THREADS = 6
NOTE_BYTES = 7000
"""Of an annotation that makes a pod about as large as those of inference services are: 8 to 10 KB."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is, and what is on it."""

    name: str
    folder: Path
    port: int
    ca: str
    admin_token: str
    token: str
    """Of the agent's own."""
    profile: str
    others: int
    """Pods besides those that serve models."""
    settings: dict[str, Any]


class FleetError(Exception):
    """A node that did not do as it was told."""


class Member(ApiServer):
    """The API server as one node of the fleet knows it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.port, place.ca, place.admin_token)
        self._token = place.token

    @property
    def token(self) -> str:
        return self._token

    def ensure_namespace(self, name: str) -> None:
        """It was made before the nodes were."""


class Node:
    """What is asked of a node; each method is a command of `NodeProcess`."""

    def __init__(self, place: Place) -> None:
        member = Member(place)
        self._others = place.others
        self._rig = KubeRig(
            cast("Cluster", member), place.folder, place.profile, name=place.name, interrupts=True, **place.settings
        )
        self._rig.speed = 1.0
        self._rig.backoffs = Backoffs(1.0, 60.0)
        self._rig.patience = 120.0
        self._pods: list[tuple[VirtualPod, list[Worker]]] = []
        self._round = 0

    def make(self) -> None:
        """The Node and its pods, which run; no agent as yet."""
        rig = self._rig
        rig.register()
        for number in range(self._others):
            rig.cluster.pods.run(
                f"{rig.name}-other-{number}", node=rig.name, namespace=NAMESPACE, annotations=_note(), containers=("c",)
            )
            rig.cluster.pods.started(f"{rig.name}-other-{number}", {"c": f"{number:064x}"}, NAMESPACE)
        self._pods = [self._serve(number) for number in range(PODS)]

    def start(self) -> None:
        """The agent starts."""
        self._rig.start()

    def stop(self) -> None:
        """SIGTERM."""
        self._rig.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._rig.kill()

    def settled(self) -> bool:
        """Whether every worker is bound, and the API server's copy of the plan says what the agent has to say."""
        agent = self._rig.agent
        assert agent is not None
        if not (agent.pods.listed and agent.plan.known):
            return False
        said, theirs = agent.agent.plan_object().get("status"), agent.plan.read().get("status")
        if not said or said != theirs:
            return False
        bound = {
            worker["pid"] for npu in said["npus"] for worker in npu.get("workers", []) if worker["state"] == "Bound"
        }
        return bound == {worker.pid for _, workers in self._pods for worker in workers}

    def writes(self) -> int:
        """sched_setaffinity calls so far."""
        return self._rig.writes()

    def restart_pod(self, number: int) -> None:
        """One step of a rolling update: a pod is deleted, its processes end, it is gone; the next one is scheduled,
        starts, and its workers open the NPUs that became free."""
        pods = self._rig.cluster.pods
        pod, workers = self._pods[number]
        pods.delete(pod.name, NAMESPACE, grace=30)
        time.sleep(0.5)
        for worker in workers:
            worker.end()
        pods.set_status(pod.name, {"phase": "Succeeded"}, NAMESPACE)
        self._rig.node.kubelet.remove_pod(pod)
        pods.delete(pod.name, NAMESPACE, grace=0)
        self._pods[number] = self._serve(number)

    def _serve(self, number: int) -> tuple[VirtualPod, list[Worker]]:
        rig = self._rig
        npus = [npu.id for npu in rig.node.inventory.npus]
        share = npus[number * len(npus) // PODS : (number + 1) * len(npus) // PODS]
        self._round += 1
        pod, _ = rig.run_pod(f"{rig.name}-llm-{self._round}", annotations=OPT_IN | _note(), namespace=NAMESPACE)
        workers = [rig.start_worker(npu, pod, threads=THREADS) for npu in share]
        for worker in workers:
            worker.add_role_threads()
        rig.cluster.pods.set_status(pod.name, {"conditions": [{"type": "Ready", "status": "True"}]}, NAMESPACE)
        return pod, workers


def _note() -> dict[str, str]:
    return {"note": "x" * NOTE_BYTES}


class NodeProcess:
    """A process of one `Node` or some. Commands are sent to many, then their answers are awaited."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.name = places[0].name
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(places, theirs, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, command: str, *arguments: object) -> None:
        self._ours.send((command, arguments))

    def answers(self, timeout: float) -> list[Any]:
        """What the command returned on each node. `FleetError` where it raised on one, where the process ended, and
        after the timeout."""
        if not self._ours.poll(timeout):
            raise FleetError(f"{self.name}: no answer in {timeout:g} s")
        try:
            well, found = self._ours.recv()
        except EOFError:
            raise FleetError(f"{self.name}: its process has ended") from None
        if not well:
            raise FleetError(f"{self.name}: {found}")
        return list(found)

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._ours.close()


def ask_all(nodes: Sequence[NodeProcess], command: str, *arguments: object, timeout: float = 300.0) -> list[Any]:
    """The answers of all, which do it side by side."""
    for node in nodes:
        node.send(command, *arguments)
    until = time.monotonic() + timeout
    return [answer for node in nodes for answer in node.answers(max(0.0, until - time.monotonic()))]


def _serve(places: Sequence[Place], connection: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever made this process hears it, too, and ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    faults = logging.StreamHandler()
    faults.setLevel(logging.ERROR)  # warnings of an API server that is away are what is looked for
    logging.getLogger("agent").addHandler(faults)
    nodes: list[Node] = []
    with ThreadPoolExecutor(len(places)) as pool:
        while True:
            try:
                command, arguments = connection.recv()
            except EOFError:
                return
            try:
                nodes = nodes or [Node(place) for place in places]
                connection.send((True, list(pool.map(methodcaller(command, *arguments), nodes))))
            except Exception:
                connection.send((False, traceback.format_exc()))
