"""CPUs, cores and NUMA nodes, from trees made after recorded hosts and from this machine's own."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import NumaNode, Topology
from agent.model.reason import Reason, Refused
from agent.node.sysfs import read_topology

from .conftest import Tree

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def host(
    online: str,
    nodes: Mapping[int, str],
    *,
    cores: Iterable[str] = (),
    memory: Mapping[int, bool] | None = None,
    siblings: str = "core_cpus_list",
) -> dict[str, str]:
    """The files of /sys/devices/system for a host, as the kernel writes them."""
    files = {f"{CPU}/online": f"{online}\n", f"{CPU}/possible": f"{online}\n", f"{CPU}/isolated": "\n"}
    files |= {f"{NODE}/node{number}/cpulist": f"{cpus}\n" for number, cpus in nodes.items()}
    for core in cores:
        files |= {f"{CPU}/cpu{cpu}/topology/{siblings}": f"{core}\n" for cpu in CpuSet.parse(core)}
    if memory is not None:
        kilobytes = {number: 1024 if has else 0 for number, has in memory.items()}
        files |= {
            f"{NODE}/node{number}/meminfo": f"Node {number} MemTotal:       {kb} kB\nNode {number} MemFree: 0 kB\n"
            for number, kb in kilobytes.items()
        }
    return files


def read(root: Path) -> Topology:
    return read_topology(root, architecture="aarch64")


def from_lscpu(text: str) -> dict[str, str]:
    """The host that an output of lscpu describes."""
    nodes = {int(number): cpus for number, cpus in re.findall(r"NUMA node(\d+) CPU\(s\):\s*(\S+)", text)}
    found = re.search(r"On-line CPU\(s\) list:\s*(\S+)", text)
    online = found[1] if found else str(union(map(CpuSet.parse, nodes.values())))
    return host(online, nodes, cores=map(str, CpuSet.parse(online)))


def from_table(text: str) -> dict[str, str]:
    """The host that an output of ``lscpu -e=CPU,NODE`` describes."""
    rows = [line.split() for line in text.splitlines()[1:]]
    members: dict[int, set[int]] = {}
    for cpu, node in rows:
        if node != "-":
            members.setdefault(int(node), set()).add(int(cpu))
    online = str(CpuSet(int(cpu) for cpu, _ in rows))
    return host(online, {node: str(CpuSet(cpus)) for node, cpus in members.items()})


# Recorded hosts


def test_an_a3_host_has_320_cpus_on_eight_nodes(tree: Tree, fixtures: Path) -> None:
    topology = read(tree(from_lscpu((fixtures / "lscpu/kunpeng920_7285Z_320c_8numa.txt").read_text())))
    assert topology.online == topology.root == topology.possible == CpuSet.span(0, 319)
    assert topology.nodes == tuple(NumaNode(n, CpuSet.span(40 * n, 40 * n + 39)) for n in range(8))
    assert topology.cores == tuple(CpuSet({cpu}) for cpu in range(320))
    assert topology.isolated == EMPTY
    assert topology.architecture == "aarch64"


def test_two_outputs_of_lscpu_on_one_a2_host_describe_the_same_topology(tree: Tree, fixtures: Path) -> None:
    listed = read(tree(from_lscpu((fixtures / "lscpu/kunpeng920_5250_192c_8numa.txt").read_text())))
    table = read(tree(from_table((fixtures / "lscpu/e_cpu_node_192c_8numa.txt").read_text())))
    assert listed == table
    assert [str(node.cpus) for node in listed.nodes][:2] == ["0-23", "24-47"]


def test_an_smt_host_whose_siblings_are_192_apart_has_192_cores(tree: Tree, fixtures: Path) -> None:
    files = from_table((fixtures / "lscpu/e_cpu_node_384c_smt_2numa.txt").read_text())
    files |= host("0-383", {}, cores=(f"{cpu},{cpu + 192}" for cpu in range(192)))
    topology = read(tree(files))
    assert topology.cores == tuple(CpuSet({cpu, cpu + 192}) for cpu in range(192))
    assert [str(node.cpus) for node in topology.nodes] == ["0-95,192-287", "96-191,288-383"]


def test_node_ids_may_have_holes(tree: Tree, fixtures: Path) -> None:
    topology = read(tree(from_lscpu((fixtures / "lscpu/sparse_numa_nodes_2_3_5_6_7.txt").read_text())))
    assert [(node.id, str(node.cpus)) for node in topology.nodes] == [
        (2, "0-7"),
        (3, "8-31"),
        (5, "32-39"),
        (6, "40-47"),
        (7, "48-95"),
    ]


def test_nodes_may_lack_cpus_and_nodes_may_lack_memory(tree: Tree, fixtures: Path) -> None:
    text = (fixtures / "lscpu/cpuless_and_memless_nodes_numactl.txt").read_text()
    cpus = {int(n): str(CpuSet(map(int, row.split()))) for n, row in re.findall(r"node (\d+) cpus:(.*)", text)}
    memory = {int(n): int(size) > 0 for n, size in re.findall(r"node (\d+) size: (\d+)", text)}
    expected = (
        NumaNode(0, EMPTY),
        NumaNode(1, EMPTY),
        NumaNode(2, CpuSet.span(0, 7), has_memory=False),
        NumaNode(3, EMPTY),
    )
    assert read(tree(host("0-7", cpus, memory=memory))).nodes == expected
    # has_memory goes before the meminfo of each node.
    assert read(tree({f"{NODE}/has_memory": "0-1,3\n"})).nodes == expected
    assert [n.has_memory for n in read(tree({f"{NODE}/has_memory": "2\n"})).nodes] == [False, False, True, False]


def test_a_host_of_which_nothing_is_known_but_its_cpus_is_one_node(tree: Tree, fixtures: Path) -> None:
    for name in ("e_cpu_node_dash.txt", "openeuler_container_socket_dash.txt"):
        text = (fixtures / "lscpu" / name).read_text()
        files = from_table(text) if name.startswith("e_") else from_lscpu(text)
        topology = read(tree(files))
        assert topology.nodes == (NumaNode(0, topology.online),)
        assert len(topology.cores) == len(topology.online)


# Holes


def test_offline_cpus_belong_to_no_node_and_no_core(tree: Tree) -> None:
    files = host("0,2-3,5", {0: "0-3", 1: "4-7"}, cores=["0-1", "2-3", "4-5", "6-7"])
    files[f"{CPU}/possible"] = "0-7\n"
    topology = read(tree(files))
    assert [str(node.cpus) for node in topology.nodes] == ["0,2-3", "5"]
    assert [str(core) for core in topology.cores] == ["0", "2-3", "5"]
    assert str(topology.possible) == "0-7"


def test_memory_that_nothing_is_said_of_is_taken_to_be_there(tree: Tree) -> None:
    assert read(tree(host("0-3", {0: "0-3"}))).nodes[0].has_memory


def test_isolated_cpus_are_told(tree: Tree) -> None:
    assert read(tree(host("0-7", {}) | {f"{CPU}/isolated": "4-5\n"})).isolated == CpuSet({4, 5})


def test_siblings_go_by_their_older_name_too(tree: Tree) -> None:
    topology = read(tree(host("0-3", {}, cores=["0,2", "1,3"], siblings="thread_siblings_list")))
    assert [str(core) for core in topology.cores] == ["0,2", "1,3"]


def test_the_newer_name_goes_first(tree: Tree) -> None:
    files = host("0-3", {}, cores=["0-3"], siblings="thread_siblings_list") | host("0-3", {}, cores=["0-1", "2-3"])
    assert [str(core) for core in read(tree(files)).cores] == ["0-1", "2-3"]


def test_a_cpu_without_a_file_is_a_core_by_itself(tree: Tree) -> None:
    assert [str(core) for core in read(tree(host("0-3", {}, cores=["2-3"]))).cores] == ["0", "1", "2-3"]


@pytest.mark.parametrize(
    ("lists", "cores"),
    [
        ({0: "0-1", 1: "1"}, ["0-1", "2", "3"]),
        ({0: "0", 1: "0-1"}, ["0-1", "2", "3"]),
        ({0: "0-1", 1: "1-2", 2: "2-3"}, ["0-3"]),
        ({0: "1"}, ["0-1", "2", "3"]),
        ({3: "0,3", 0: "0,2", 1: "1"}, ["0,2-3", "1"]),
    ],
)
def test_files_that_contradict_each_other_keep_cpus_together(
    tree: Tree, lists: Mapping[int, str], cores: list[str]
) -> None:
    files = {f"{CPU}/cpu{cpu}/topology/core_cpus_list": f"{text}\n" for cpu, text in lists.items()}
    assert [str(core) for core in read(tree(host("0-3", {}) | files)).cores] == cores


def test_a_cpu_that_two_nodes_list_is_on_the_first(tree: Tree) -> None:
    assert [str(node.cpus) for node in read(tree(host("0-3", {0: "0-2", 1: "2-3"}))).nodes] == ["0-2", "3"]


# The root cpuset


def test_the_root_cpuset_is_that_of_pid_1s_cgroup_and_not_its_mask(tree: Tree) -> None:
    status = {"proc/1/status": "Name:\tsystemd\nCpus_allowed_list:\t0\n"}  # systemd with CPUAffinity=0
    cgroup = {
        "proc/1/cgroup": "0::/init.scope\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-5,99\n",
    }
    assert read(tree(host("0-7", {}))).root == CpuSet.span(0, 7)
    assert read(tree(status)).root == CpuSet({0})
    assert read(tree(cgroup)).root == CpuSet.span(0, 5)


def test_an_earlier_topology_saves_the_cores_while_the_same_cpus_are_online(tree: Tree) -> None:
    root = tree(host("0-3", {}, cores=["0-1", "2-3"]))
    before = read(root)
    tree(host("0-3", {}, cores=["0-3"]))
    assert read_topology(root, architecture="aarch64", before=before).cores == before.cores
    tree({f"{CPU}/online": "0-2\n"})
    assert [str(core) for core in read_topology(root, before=before).cores] == ["0-2"]


# What can't be read


@pytest.mark.parametrize("text", ["", "\n", "x", "3-1", "0-99999", "0-\x1b[31m"])
def test_an_online_that_is_empty_or_damaged_is_refused(tree: Tree, text: str) -> None:
    with pytest.raises(Refused) as refused:
        read(tree(host("0-3", {0: "0-3"}) | {f"{CPU}/online": text}))
    assert refused.value.reason is Reason.TOPOLOGY_UNREADABLE
    assert refused.value.message.isprintable()


def test_a_recording_without_online_has_what_is_possible_or_what_its_nodes_list(tree: Tree) -> None:
    root = tree(host("0-3", {0: "0-1", 1: "4-5"}))
    (root / f"{CPU}/online").unlink()
    assert str(read(root).online) == "0-3"
    (root / f"{CPU}/possible").unlink()
    assert str(read(root).online) == "0-1,4-5"


def test_a_tree_that_lists_no_cpu_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="lists no CPU") as refused:
        read(tmp_path)
    assert refused.value.reason is Reason.TOPOLOGY_UNREADABLE


@pytest.mark.parametrize(
    "name", [f"{NODE}/node0/cpulist", f"{NODE}/has_memory", f"{CPU}/isolated", f"{CPU}/cpu1/topology/core_cpus_list"]
)
def test_any_other_damaged_list_is_refused_and_named(tree: Tree, name: str) -> None:
    with pytest.raises(Refused, match=name):
        read(tree(host("0-3", {0: "0-3"}) | {name: "0-x\n"}))


def test_possible_cpus_beyond_what_can_be_numbered_are_no_reason_to_refuse(tree: Tree) -> None:
    assert read(tree(host("0-3", {}) | {f"{CPU}/possible": "0-8191\n"})).possible == CpuSet.span(0, 3)


@given(text=st.text(max_size=40) | st.text(alphabet="0123,-\n ", max_size=40))
def test_whatever_the_files_say_nothing_but_refused_is_raised(text: str, tree: Tree) -> None:
    files = host("0-3", {0: "0-3"}, cores=["0-1", "2-3"], memory={0: True})
    root = tree({})
    if not any(root.iterdir()):
        tree(files)
    for name in (f"{CPU}/online", f"{CPU}/cpu1/topology/core_cpus_list", f"{NODE}/node0/cpulist"):
        (root / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        with suppress(Refused):
            topology = read(root)
            assert union(topology.cores) == topology.online
            assert union(node.cpus for node in topology.nodes) <= topology.online
        tree({name: files[name]})


# This machine's own, and large ones


def test_this_machines_topology_is_what_psutil_counts() -> None:
    topology = read_topology(Path("/"))
    assert len(topology.online) == psutil.cpu_count()
    assert len(topology.cores) == (psutil.cpu_count(logical=False) or len(topology.cores))
    assert CpuSet(os.sched_getaffinity(0)) <= topology.root <= topology.online <= topology.possible
    assert topology.architecture == platform.machine()
    assert any(node.has_memory for node in topology.nodes)


@pytest.mark.parametrize("cpus", [640, 4096])
def test_a_large_host_is_read_in_well_under_a_second(tree: Tree, cpus: int) -> None:
    half = cpus // 2
    files = host(f"0-{cpus - 1}", {n: f"{n * cpus // 8}-{(n + 1) * cpus // 8 - 1}" for n in range(8)})
    root = tree(files | host(f"0-{cpus - 1}", {}, cores=(f"{cpu},{cpu + half}" for cpu in range(half))))
    start = time.process_time()
    topology = read(root)
    assert time.process_time() - start < 0.5
    assert len(topology.cores) == half
