"""The node's pods as a mirror, and which of their processes are to be bound."""

from __future__ import annotations

from typing import Any

import pytest

from agent.control.observe import Candidate, Choice
from agent.kube.pods import GONE_SECONDS, PodSelection, PodStore
from agent.model.workload import CgroupIdentity, Pod, ProcessId
from agent.planning.attribution import Attribution


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Mirror:
    """A store, and how often it woke the agent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.woken = 0
        self.store = PodStore(self._wake, self.clock)

    def _wake(self) -> None:
        self.woken += 1


def manifest(name: str, uid: str = "", *, namespace: str = "prod", **annotations: str) -> dict[str, Any]:
    said = {f"cpubind.dev/{key.replace('__', '.').replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "annotations": said},
        "spec": {"containers": [{"name": "vllm"}]},
        "status": {"containerStatuses": [{"name": "vllm", "containerID": f"containerd://{name:0<64}"}]},
    }


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


def candidate(mirror: Mirror, name: str = "", container: str = "vllm") -> Candidate:
    """A process in a pod of the mirror."""
    pod = next(pod for pod in mirror.store.pods() if pod.name == name)
    return of(CgroupIdentity("/kubepods/pod", pod_uid=pod.uid), pod, container)


def of(identity: CgroupIdentity, pod: Pod | None = None, container: str = "") -> Candidate:
    return Candidate(ProcessId(4711, 1), "VLLM::Worker", 0, identity, pod, container, Attribution((0,)))


def test_before_the_first_list_nothing_is_known(mirror: Mirror) -> None:
    before = mirror.store.listed
    mirror.store.replace([])
    assert (before, mirror.store.listed) == (False, True)
    assert mirror.woken == 1


def test_only_what_matters_wakes_the_agent(mirror: Mirror) -> None:
    mirror.store.replace([manifest("a")])
    mirror.store.replace([manifest("a")])
    mirror.store.apply("MODIFIED", manifest("a") | {"extra": 1})
    assert mirror.woken == 1
    mirror.store.apply("MODIFIED", manifest("a", enabled="true"))
    assert mirror.woken == 2


def test_a_pod_that_a_list_no_longer_has_is_gone(mirror: Mirror) -> None:
    """After a 410 nothing tells of what was deleted meanwhile."""
    mirror.store.replace([manifest("a", enabled="true"), manifest("b")])
    mirror.store.replace([manifest("b")])
    assert [pod.name for pod in mirror.store.pods()] == ["b", "a"]
    assert mirror.store.is_gone("uid-a")
    assert mirror.store.uid("prod", "a") == ""
    assert mirror.store.uid("prod", "b") == "uid-b"


def test_a_deleted_pod_is_remembered_while_its_processes_are_seen(mirror: Mirror) -> None:
    mirror.store.replace([manifest("a", enabled="true")])
    mirror.store.apply("DELETED", manifest("a"))
    selection = PodSelection(mirror.store)
    for _ in range(5):
        mirror.clock.now += GONE_SECONDS / 2
        assert selection.choose(candidate(mirror, "a")) is Choice.KEEP
        mirror.store.forget()
    mirror.clock.now += GONE_SECONDS + 1
    mirror.store.forget()
    assert mirror.store.pods() == ()


def test_a_pod_that_is_there_again_is_followed_again(mirror: Mirror) -> None:
    """A LIST of an API server that knew less, or whose store was restored, had it not."""
    mirror.store.replace([manifest("a", enabled="true")])
    mirror.store.replace([])
    mirror.store.apply("ADDED", manifest("a", enabled="false"))
    assert not mirror.store.is_gone("uid-a")
    assert PodSelection(mirror.store).choose(candidate(mirror, "a")) is Choice.RELEASE


def test_a_name_that_comes_again_is_the_living_pod(mirror: Mirror) -> None:
    mirror.store.replace([manifest("a", "uid-1")])
    mirror.store.apply("DELETED", manifest("a", "uid-1"))
    mirror.store.apply("ADDED", manifest("a", "uid-2", enabled="true"))
    assert [pod.uid for pod in mirror.store.pods()] == ["uid-2", "uid-1"]
    assert mirror.store.uid("prod", "a") == "uid-2"


def test_a_deletion_of_somebody_unknown_changes_nothing(mirror: Mirror) -> None:
    mirror.store.replace([])
    mirror.store.apply("DELETED", manifest("a"))
    assert mirror.store.pods() == ()
    assert mirror.woken == 1


@pytest.mark.parametrize(
    ("said", "annotated", "all_pods"),
    [
        ({}, Choice.RELEASE, Choice.BIND),
        ({"enabled": "true"}, Choice.BIND, Choice.BIND),
        ({"enabled": "false"}, Choice.RELEASE, Choice.RELEASE),
        ({"enabled": "yes"}, Choice.KEEP, Choice.KEEP),
        ({"enabled": "true", "helpers": "maybe"}, Choice.KEEP, Choice.KEEP),
        ({"enabled__vllm": "true"}, Choice.BIND, Choice.BIND),
        ({"enabled__other": "true"}, Choice.RELEASE, Choice.BIND),
        ({"enabled": "true", "enabled__vllm": "false"}, Choice.RELEASE, Choice.RELEASE),
        ({"enabled": "false", "enabled__vllm": "true"}, Choice.RELEASE, Choice.RELEASE),
        ({"enabled": "true", "containers": "vllm"}, Choice.BIND, Choice.BIND),
        ({"enabled": "true", "containers": "other"}, Choice.RELEASE, Choice.RELEASE),
        ({"containers": "vllm"}, Choice.RELEASE, Choice.BIND),
    ],
)
def test_annotations_decide(mirror: Mirror, said: dict[str, str], annotated: Choice, all_pods: Choice) -> None:
    mirror.store.replace([manifest("a", **said)])
    assert PodSelection(mirror.store).choose(candidate(mirror, "a")) is annotated
    assert PodSelection(mirror.store, "AllNpuPods").choose(candidate(mirror, "a")) is all_pods


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        ({"enabled": "true"}, Choice.BIND),
        ({"enabled": "true", "enabled__sidecar": "false"}, Choice.KEEP),
        ({"enabled": "true", "containers": "vllm"}, Choice.KEEP),
        ({"enabled": "false", "enabled__vllm": "true"}, Choice.RELEASE),
    ],
)
def test_a_container_that_is_not_named_yet_is_decided_as_far_as_the_pod_is(
    mirror: Mirror, said: dict[str, str], choice: Choice
) -> None:
    """kubelet reports the id of a restarted container after its processes have begun."""
    mirror.store.replace([manifest("a", **said)])
    assert PodSelection(mirror.store).choose(candidate(mirror, "a", container="")) is choice


def test_namespaces_are_taken_in_and_left_out(mirror: Mirror) -> None:
    mirror.store.replace([manifest("a", enabled="true"), manifest("b", namespace="test", enabled="true")])
    only = PodSelection(mirror.store, namespaces=("prod",))
    assert only.choose(candidate(mirror, "a")) is Choice.BIND
    assert only.choose(candidate(mirror, "b")) is Choice.RELEASE
    without = PodSelection(mirror.store, "AllNpuPods", exclude_namespaces=("prod",))
    assert without.choose(candidate(mirror, "a")) is Choice.RELEASE
    assert without.choose(candidate(mirror, "b")) is Choice.BIND


def test_a_process_of_the_host_or_of_docker_is_nobodys_pod(mirror: Mirror) -> None:
    mirror.store.replace([])
    selection = PodSelection(mirror.store, "AllNpuPods")
    assert selection.choose(of(CgroupIdentity("/system.slice/x.service"))) is Choice.LEAVE
    assert selection.choose(of(CgroupIdentity("/docker/abc", container_id="abc"))) is Choice.LEAVE


def test_a_pod_that_is_not_known_leaves_things_as_they_are(mirror: Mirror) -> None:
    """Absence never acts on the host: it may be gone, or not have been listed yet."""
    selection = PodSelection(mirror.store, "AllNpuPods")
    unknown = of(CgroupIdentity("/kubepods/pod1", pod_uid="uid-9", container_id="abc"))
    hidden = of(CgroupIdentity("/../../kubepods", container_id="abc"))
    assert selection.choose(unknown) is Choice.KEEP
    assert selection.choose(hidden) is Choice.KEEP
    mirror.store.replace([])
    assert selection.choose(unknown) is Choice.KEEP
