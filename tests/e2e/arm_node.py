"""A real ARM64 node for the cluster of the tests: a guest of four NUMA nodes whose kubelet has the static CPU manager.

E2E_NUMA_GUEST   path of a program that boots it. `root` prints a folder with the guest's root. `run --kubelet
                 --topology n4c16 --timeout SECONDS --add FOLDER COMMAND…` lays FOLDER over that root, joins the
                 cluster of $E2E_KUBE_NODE as node-arm, and lives until COMMAND ends
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agent.demo.profiles import Profile, small
from agent.model.cpuset import CpuSet
from agent.model.node import Inventory, NumaNode
from tests.e2e.arm_image import IMAGE, pack_image, take_in
from tests.e2e.cluster import ATTEMPTS, Cluster
from tests.e2e.kubectl import call, output
from tests.e2e.node import Shell
from tests.e2e.release import ready
from tests.vm.arm64 import BuildError

PROGRAM = "E2E_NUMA_GUEST"
NODE = "node-arm"
TOPOLOGY = "n4c16"
"""The smallest that has several NUMA nodes: each emulated CPU costs all others something."""
LIFE = 3600
"""Seconds after which a guest that nobody ended ends."""
JOIN = 900
"""Seconds in which it must have booted, taken the image in, and joined."""

STORE = "containerd"
"""Folder below the guest's root where its containerd has its images."""
_CHANGED = {
    'root = "/var/lib/containerd"': f'root = "/{STORE}"',
    # With the guest's own choice there would be a copy of the image for each container.
    'snapshotter = "native"': 'snapshotter = "overlayfs"',
}
# Each CPU that runs something waits for all others that do whenever pages are unmapped, and 16 share the host's few.
# What containers run is not held to these two: the kernel gives it the mask of its cpuset when it enters that.
_FEW_CPUS = """\
#!/bin/sh
export GOMAXPROCS=2
exec /usr/bin/taskset -c 0-1 /usr/bin/${0##*/} "$@"
"""
# kubelet writes the cpuset of every container again in each period, for which a program is run.
_KUBELET = """\
#!/bin/sh
export GOMAXPROCS=2
sed -i 's/^cpuManagerReconcilePeriod: .*/cpuManagerReconcilePeriod: 10s/' /guest/kubelet.yaml
exec /usr/bin/taskset -c 0-1 /usr/bin/kubelet --housekeeping-interval=60s "$@"
"""


class _BootError(Exception):
    """The guest did not become a node; the message has what it printed last."""


def missing_guest() -> str:
    """Why there can be no such node; empty where there can."""
    for name in (PROGRAM, "E2E_KUBE_NODE"):
        if not os.access(os.environ.get(name, ""), os.X_OK):
            return f"an ARM64 node needs programs that make it: {name} names none (see tests/e2e/arm_node.py)"
    return ""


@contextmanager
def open_arm_node(cluster: Cluster, scratch: Path) -> Iterator[Cluster]:
    """The cluster, with the guest as its node for tests. One that can't be had is tried once more, then skipped."""
    if problem := missing_guest():
        pytest.skip(problem)
    said = ""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            try:
                running = _boot(cluster, Path(folder))
            except (_BootError, BuildError, AssertionError, OSError) as error:
                said = str(error)
                print(f"\nTHE ARM64 NODE FAILED: {said}", flush=True)
                continue
            try:
                yield replace(cluster, image=IMAGE, tools=IMAGE, node=NODE, host_network=True)
            finally:
                _end(running)
                _forget(cluster)
            return
    pytest.skip(f"NOTHING WAS TESTED ON ARM64: the guest could not be had, tried {ATTEMPTS} times: {said[-500:]}")


def _boot(cluster: Cluster, scratch: Path) -> subprocess.Popen[bytes]:
    """Starts the guest and returns it when its node is Ready."""
    program = os.environ[PROGRAM]
    _fill(program, scratch / "root", scratch)
    command = [program, "run", "--kubelet", "--topology", TOPOLOGY, "--timeout", str(LIFE)]
    command += ["--add", str(scratch / "root"), "sleep", str(LIFE)]
    console = scratch / "console"
    with console.open("wb") as log:
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "CPU_POLICY": "static", "TMPDIR": str(scratch)},
        )
    end = time.monotonic() + JOIN
    try:
        while not _joined(cluster):
            if running.poll() is not None or time.monotonic() > end:
                why = "it did not join" if running.returncode is None else f"it ended with {running.returncode}"
                raise _BootError(f"{why}: {console.read_text(errors='replace').strip()[-1000:]}")
            time.sleep(2)
    except BaseException:
        _end(running)
        _forget(cluster)
        raise
    return running


def _fill(program: str, folder: Path, scratch: Path) -> None:
    """What is laid over the guest's root: the image, and what makes kubelet and containerd bearable in there."""
    base = Path(output(call(program, "root", seconds=900)).strip().splitlines()[-1])
    archive = pack_image(base, os.environ["E2E_KUBE_NODE"], scratch)
    take_in(archive, scratch, folder / STORE)
    archive.unlink()
    config = Path("etc/containerd/config.toml")
    text = (base / config).read_text()
    for theirs, ours in _CHANGED.items():
        if theirs not in text:
            raise _BootError(f"the guest's {config} does not say {theirs}")
        text = text.replace(theirs, ours)
    programs = folder / "usr/local/bin"
    for made in (folder / config.parent, programs):
        made.mkdir(parents=True)
    (folder / config).write_text(text)
    for name, text in (("containerd", _FEW_CPUS), ("ctr", _FEW_CPUS), ("kubelet", _KUBELET)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


def _joined(cluster: Cluster) -> bool:
    nodes = cluster.kubectl.items("nodes")
    return any(node["metadata"]["name"] == NODE and ready(node) for node in nodes)


def _end(running: subprocess.Popen[bytes]) -> None:
    """Ends the emulator; the program then cleans up behind it and ends, too."""
    try:
        below = psutil.Process(running.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    for process in below:
        try:
            if process.name().startswith("qemu"):
                process.kill()
        except psutil.NoSuchProcess:
            continue
    try:
        running.wait(30)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _forget(cluster: Cluster) -> None:
    """Takes the node and its pods off the cluster: nobody is there who would."""
    kubectl = cluster.kubectl
    kubectl.attempt("delete", "node", NODE, "--ignore-not-found")
    where = ("--all-namespaces", "--field-selector", f"spec.nodeName={NODE}")
    for pod in kubectl.items("pods", *where):
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        kubectl.attempt("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force", "--wait=false")


def profile_of(shell: Shell) -> Profile:
    """Two NPUs 910B3 on the NUMA nodes that this node has, at home on the second and on the last."""
    listed = shell("cd /sys/devices/system/node && for n in node[0-9]*; do echo ${n#node} $(cat $n/cpulist); done")
    nodes = tuple(
        NumaNode(int(number), CpuSet.parse(cpus)) for number, cpus in (line.split() for line in listed.splitlines())
    )
    model = small(npus=2)
    homes = (nodes[1], nodes[-1])
    npus = tuple(replace(npu, affinity=home.cpus) for npu, home in zip(model.inventory.npus, homes, strict=True))
    online = CpuSet(cpu for node in nodes for cpu in node.cpus)
    topology = replace(model.topology, online=online, root=online, possible=online, nodes=nodes)
    return replace(model, topology=topology, inventory=Inventory(npus, model.inventory.device_type))
