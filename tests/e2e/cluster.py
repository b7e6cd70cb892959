"""Which cluster the tests run against, and how the image gets there.

E2E_KUBECONFIG   kubeconfig of a cluster for tests, with rights to everything
E2E_IMAGE        name of the agent's image, which the node has already
E2E_TOOLS_IMAGE  name of one with a shell, python3 and taskset, which it has, too; see tests/e2e/tools
E2E_KUBE_NODE    path of a program that makes a one-node cluster: `up` prints the path of an admin kubeconfig
                 as its last line, `build NAME FOLDER` builds a Dockerfile into it, `down` removes it
E2E_NODE         the node to test on; default: the first that is Ready
E2E_HOST_NETWORK 1 where the node has no pod network
E2E_PATIENCE     factor for all waiting
KUBEBUILDER_ASSETS
                 folder with kubectl and helm; default: those on PATH
E2E_NUMA_GUEST   see tests/e2e/arm_node.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.kubectl import REPOSITORY, Failed, Kubectl, call, output, tool

IMAGE = "localhost/cpubind:e2e"
TOOLS = "localhost/cpubind-tools:e2e"
ATTEMPTS = 2
"""How often a cluster is brought up before the tests are skipped, and an image built before they fail."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up, with one node of it that the tests use."""

    kubectl: Kubectl
    helm: str
    """Path of the program."""
    image: str
    """The agent's."""
    tools: str
    """That of all other pods here; with a shell."""
    node: str
    cpus: int
    """Capacity of the node."""
    host_network: bool
    disposable: bool
    """It is removed after the tests, so that nothing has to be put in order."""


def missing() -> str:
    """Why there is no cluster to test on; empty where there is one, or can be made."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "they share one cluster, and need one process: make test-e2e"
    kubeconfig, maker = os.environ.get("E2E_KUBECONFIG"), os.environ.get("E2E_KUBE_NODE")
    if not kubeconfig and not maker:
        return "no cluster: set E2E_KUBECONFIG, E2E_IMAGE and E2E_TOOLS_IMAGE (see tests/e2e/cluster.py)"
    if not maker and not (os.environ.get("E2E_IMAGE") and os.environ.get("E2E_TOOLS_IMAGE")):
        return "E2E_IMAGE or E2E_TOOLS_IMAGE is not set: name images that the cluster's node has"
    if not tool("kubectl") or not tool("helm"):
        return "kubectl and helm are needed, on PATH or in the folder $KUBEBUILDER_ASSETS"
    return ""


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """The cluster that the environment names; the test is skipped where it can't be had."""
    if problem := missing():
        pytest.skip(problem)
    kubeconfig, maker = os.environ.get("E2E_KUBECONFIG"), os.environ.get("E2E_KUBE_NODE")
    if kubeconfig:
        yield _cluster(kubeconfig, maker, disposable=False)
        return
    assert maker
    kubeconfig = _up(maker)
    try:
        yield _cluster(kubeconfig, maker, disposable=True)
    finally:
        call(maker, "down", seconds=120)


def _up(maker: str) -> str:
    """Path of the kubeconfig of a cluster that was just made."""
    said = ""
    for _ in range(ATTEMPTS):
        done = call(maker, "up", env={"CPU_POLICY": "static"}, seconds=900)
        if done.returncode == 0:
            return done.stdout.strip().splitlines()[-1]
        said = (done.stderr + done.stdout).strip()
        call(maker, "down", seconds=120)
    pytest.skip(f"NOTHING WAS TESTED: {maker} up failed {ATTEMPTS} times: {said[-500:]}")


def _image(maker: str | None, variable: str, name: str, folder: Path) -> str:
    """Name of an image; built from a folder of this working tree where there is a program for that."""
    if given := os.environ.get(variable):
        return given
    assert maker
    for _ in range(ATTEMPTS):
        done = call(maker, "build", name, str(folder), seconds=900)
        if done.returncode == 0:
            break
    output(done)
    return name


def _cluster(kubeconfig: str, maker: str | None, *, disposable: bool) -> Cluster:
    image = _image(maker, "E2E_IMAGE", IMAGE, REPOSITORY)
    tools = _image(maker, "E2E_TOOLS_IMAGE", TOOLS, REPOSITORY / "tests/e2e/tools")
    kubectl = Kubectl(tool("kubectl") or "", kubeconfig)
    wanted = os.environ.get("E2E_NODE")
    try:
        nodes = kubectl.items("nodes")
    except Failed as failed:
        pytest.skip(f"NOTHING WAS TESTED: the cluster does not answer: {failed}")
    for node in nodes:
        name = node["metadata"]["name"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
        if name == wanted or (not wanted and ready):
            return Cluster(
                kubectl=kubectl,
                helm=tool("helm") or "",
                image=image,
                tools=tools,
                node=name,
                cpus=int(node["status"]["capacity"]["cpu"]),
                host_network=os.environ.get("E2E_HOST_NETWORK") == "1",
                disposable=disposable,
            )
    raise AssertionError(f"the cluster has no node that is Ready{f' and called {wanted}' if wanted else ''}")
