"""Pods as an API server would tell of them, for an agent on a virtual node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from agent.control.observe import Candidate, Choice
from agent.demo.fake_kernel import FakeTask
from agent.demo.fake_kubelet import VirtualPod
from agent.demo.workload import Worker
from agent.node.host import EVERY_CPU
from agent.planning.optin import invalid_annotation
from tests.control.rig import Rig

OUT = {"cpubind.dev/enabled": "false"}
IN = {"cpubind.dev/enabled": "true"}


def by_annotation(candidate: Candidate) -> Choice:
    """A `Chooser` that goes by a pod's `enabled` alone."""
    pod = candidate.pod
    if pod is None:
        return Choice.KEEP if candidate.identity.pod_uid else Choice.LEAVE
    if invalid_annotation(pod) is not None:
        return Choice.KEEP
    return Choice.BIND if pod.annotations.get("cpubind.dev/enabled") == "true" else Choice.RELEASE


def by_container(candidate: Candidate) -> Choice:
    """A `Chooser` that asks for containers called vllm, and can't tell while a name is not known."""
    if not candidate.container_name:
        return Choice.KEEP
    return Choice.BIND if candidate.container_name == "vllm" else Choice.RELEASE


def annotate(rig: Rig, pod: VirtualPod, annotations: dict[str, str]) -> VirtualPod:
    """Somebody edits the annotations of a running pod."""
    edited = replace(pod, annotations=annotations)
    rig.node.kubelet.pods[rig.node.kubelet.pods.index(pod)] = edited
    return edited


def delete(rig: Rig, pod: VirtualPod) -> None:
    """A pod is deleted by force: it is gone from the API server while its processes run on."""
    rig.node.kubelet.pods.remove(pod)


@contextmanager
def pods_not_listed(rig: Rig) -> Iterator[None]:
    """The API server does not answer."""
    pods = list(rig.node.kubelet.pods)
    rig.node.kubelet.pods.clear()
    try:
        yield
    finally:
        rig.node.kubelet.pods.extend(pods)


def free(*tasks: FakeTask) -> bool:
    """Whether threads have the mask of all ones, so that they follow their cpuset."""
    return all(task.asked == EVERY_CPU for task in tasks)


def is_free(worker: Worker) -> bool:
    """Whether every thread of a worker is."""
    return free(*worker.threads)
