"""The cgroup tree: whose process, and which CPUs its cgroup gives it. On fakes, and on this machine's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import CgroupIdentity
from agent.node import cgroups as module
from agent.node.cgroups import CgroupTree, find_cpuset, own_cgroup
from tests.host.support import remove_cgroup

from .conftest import Tree

UID = "12345678-1234-1234-1234-123456789abc"
ID = "0123456789abcdef" * 4
OTHER_ID = "f" * 64
POD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"
V2 = {
    "proc/1/cgroup": "0::/init.scope\n",
    "proc/4711/cgroup": f"0::/{CONTAINER}/sub\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-191\n",
    "sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective": "4-191\n",
    f"sys/fs/cgroup/{CONTAINER}/cpuset.cpus.effective": "8-23\n",
    f"sys/fs/cgroup/{CONTAINER}/cpuset.cpus": "8-23\n",
}
V1 = {
    "proc/1/cgroup": "9:cpuset:/\n1:name=systemd:/init.scope\n",
    "proc/4711/cgroup": f"9:cpuset:/kubepods/pod{UID}/{ID}\n1:name=systemd:/x\n",
    "sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes": "1\n",
    "sys/fs/cgroup/cpuset/cpuset.cpus": "0-191\n",
    "sys/fs/cgroup/cpuset/cpuset.effective_cpus": "0-191\n",
    f"sys/fs/cgroup/cpuset/kubepods/pod{UID}/{ID}/cpuset.cpus": "8-23\n",
    f"sys/fs/cgroup/cpuset/kubepods/pod{UID}/{ID}/cpuset.effective_cpus": "8-15\n",
}


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


# Fakes


def test_in_v2_a_process_is_placed_and_its_container_cut_out(tree: Tree) -> None:
    cgroups = CgroupTree(tree(V2))
    assert cgroups.form == "v2"
    identity = cgroups.identity(4711)
    assert identity == CgroupIdentity(f"/{CONTAINER}", UID, ID, "Burstable", runtime=True)
    assert cgroups.effective_cpus(identity.path) == cpus("8-23")


def test_in_v1_the_effective_cpus_go_before_the_configured_ones(tree: Tree) -> None:
    cgroups = CgroupTree(tree(V1))
    assert cgroups.form == "v1"
    identity = cgroups.identity(4711)
    assert identity is not None
    assert (identity.pod_uid, identity.container_id, identity.qos) == (UID, ID, "Guaranteed")
    assert cgroups.process_cpus(4711) == cpus("8-15")


def test_in_v1_before_linux_3_17_the_configured_ones_count(tree: Tree) -> None:
    root = tree(V1)
    (root / f"sys/fs/cgroup/cpuset/kubepods/pod{UID}/{ID}/cpuset.effective_cpus").unlink()
    assert CgroupTree(root).process_cpus(4711) == cpus("8-23")


@pytest.mark.parametrize("name", ["cpu,cpuset", "cpuset,cpu,cpuacct"])
def test_cpuset_may_be_mounted_together_with_other_controllers(tree: Tree, name: str) -> None:
    root = tree(V1)
    (root / "sys/fs/cgroup/cpuset").rename(root / f"sys/fs/cgroup/{name}")
    (root / "sys/fs/cgroup/cpuset").symlink_to(name)
    assert find_cpuset(root) == (str(root / f"sys/fs/cgroup/{name}"), "v1")
    assert CgroupTree(root).process_cpus(4711) == cpus("8-15")


def test_a_hybrid_host_has_its_cpusets_in_v1(tree: Tree) -> None:
    root = tree(
        V1 | {"sys/fs/cgroup/unified/cgroup.procs": "1\n", "proc/4711/cgroup": f"9:cpuset:/\n0::/{CONTAINER}\n"}
    )
    cgroups = CgroupTree(root)
    assert cgroups.form == "hybrid"
    assert cgroups.process_cpus(4711) == cpus("0-191")
    assert cgroups.identity(4711) == CgroupIdentity("/")


def test_a_hybrid_host_may_have_them_in_v2(tree: Tree) -> None:
    files = {name.replace("sys/fs/cgroup/", "sys/fs/cgroup/unified/"): text for name, text in V2.items()}
    cgroups = CgroupTree(tree(files | {"sys/fs/cgroup/memory/tasks": ""}))
    assert cgroups.form == "hybrid"
    assert cgroups.process_cpus(4711) == cpus("8-23")


def test_the_nearest_cgroup_upwards_that_has_a_file_counts(tree: Tree) -> None:
    cgroups = CgroupTree(tree(V2))
    assert cgroups.effective_cpus(f"/{CONTAINER}/sub/sub") == cpus("8-23")
    assert cgroups.effective_cpus(f"/{POD}") == cpus("4-191")
    assert cgroups.effective_cpus("/system.slice/x.service") == cpus("0-191")


def test_an_empty_file_says_nothing_and_the_next_one_upwards_counts(tree: Tree) -> None:
    v2 = CgroupTree(tree(V2 | {f"sys/fs/cgroup/{CONTAINER}/cpuset.cpus.effective": "\n"}))
    assert v2.process_cpus(4711) == cpus("4-191")


def test_in_v1_a_cgroup_under_construction_has_an_empty_file(tree: Tree) -> None:
    name = f"sys/fs/cgroup/cpuset/kubepods/pod{UID}/{ID}/cpuset."
    assert CgroupTree(tree(V1 | {f"{name}effective_cpus": "\n", f"{name}cpus": "\n"})).process_cpus(4711) == cpus(
        "0-191"
    )


def test_the_root_cpuset_is_that_of_pid_1s_cgroup(tree: Tree) -> None:
    root = tree(V2)
    assert CgroupTree(root).root_cpus() == cpus("0-191")
    tree({"sys/fs/cgroup/init.scope/cpuset.cpus.effective": "0-7\n"})
    assert CgroupTree(root).root_cpus() == cpus("0-7")


def test_without_any_cpuset_there_is_no_answer(tree: Tree, tmp_path: Path) -> None:
    for cgroups in (CgroupTree(tmp_path), CgroupTree(tree({"proc/1/cgroup": "", "sys/fs/cgroup/memory/tasks": ""}))):
        assert cgroups.root_cpus() is None
        assert cgroups.process_cpus(1) is None
        assert cgroups.effective_cpus("/") is None
    assert CgroupTree(tmp_path).form == ""


def test_a_process_that_is_gone_has_neither_identity_nor_cpus(tree: Tree) -> None:
    cgroups = CgroupTree(tree(V2))
    assert cgroups.identity(1234) is None
    assert cgroups.process_cpus(1234) is None


def test_a_damaged_cpuset_is_refused_and_named(tree: Tree) -> None:
    with pytest.raises(Refused, match="8-x") as refused:
        CgroupTree(tree(V2 | {f"sys/fs/cgroup/{CONTAINER}/cpuset.cpus.effective": "8-x\n"})).process_cpus(4711)
    assert refused.value.reason is Reason.CPUSET_UNREADABLE


def test_links_in_the_tree_are_not_followed(tree: Tree) -> None:
    root = tree(V2 | {"elsewhere/cpuset.cpus.effective": "99\n"})
    (root / "sys/fs/cgroup/linked").symlink_to(root / "elsewhere")
    (root / "sys/fs/cgroup/plain").mkdir()
    (root / "sys/fs/cgroup/plain/cpuset.cpus.effective").symlink_to(root / "elsewhere/cpuset.cpus.effective")
    cgroups = CgroupTree(root)
    assert cgroups.effective_cpus("/linked") == cpus("0-191")
    assert cgroups.effective_cpus("/plain") == cpus("0-191")


def test_no_path_leads_out_of_the_mount(tree: Tree) -> None:
    root = tree(V2 | {"sys/fs/cpuset.cpus.effective": "99\n", "sys/fs/other/cpuset.cpus.effective": "98\n"})
    cgroups = CgroupTree(root)
    assert cgroups.effective_cpus("/../other") is None
    assert cgroups.effective_cpus("/kubepods.slice/../../other") is None
    assert cgroups.effective_cpus("/..") == cpus("0-191")


def test_a_process_a_thousand_cgroups_deep_is_looked_up_all_the_same(tree: Tree) -> None:
    assert CgroupTree(tree(V2)).effective_cpus(f"/{CONTAINER}" + "/a" * 2000) == cpus("8-23")


@given(path=st.text() | st.text(alphabet="./a\0\udcff", max_size=300))
def test_any_path_has_an_answer(path: str, tree: Tree) -> None:
    root = tree({})
    if not any(root.iterdir()):
        tree(V2)
    (root / "proc/4711/cgroup").write_bytes(f"0::/{path}\n".encode("utf-8", "surrogatepass"))
    cgroups = CgroupTree(root)
    cgroups.identity(4711)
    cgroups.process_cpus(4711)


def test_a_node_that_is_a_container_is_told_by_pid_1(tree: Tree) -> None:
    root = tree(
        V2
        | {
            "proc/1/cgroup": f"0::/docker/{OTHER_ID}/init.scope\n",
            "proc/4711/cgroup": f"0::/docker/{OTHER_ID}/kubelet/kubepods/pod{UID}/{ID}\n",
            "proc/4712/cgroup": f"0::/docker/{'d' * 64}/kubelet/kubepods/pod{UID}/{ID}\n",
        }
    )
    cgroups = CgroupTree(root)
    pod, host, other = (cgroups.identity(pid) for pid in (4711, 1, 4712))
    assert pod is not None
    assert (pod.pod_uid, pod.container_id) == (UID, ID)
    assert host is not None
    assert not host.runtime
    assert other is not None
    assert (other.pod_uid, other.container_id) == ("", "d" * 64)


# Another cgroup namespace, on fakes

OWN = f"{POD}/cri-containerd-{OTHER_ID}.scope"


def through_a_namespace(tree: Tree) -> Path:
    return tree(
        V2
        | {
            "proc/1/cgroup": "0::/../../../../init.scope\n",
            "proc/4711/cgroup": f"0::/../cri-containerd-{ID}.scope\n",
            f"sys/fs/cgroup/{OWN}/cgroup.procs": "99\n",
            "sys/fs/cgroup/init.scope/cgroup.procs": "1\n",
        }
    )


def test_paths_of_another_namespace_lead_on_from_the_agents_own(tree: Tree) -> None:
    cgroups = CgroupTree(through_a_namespace(tree), own=f"/{OWN}")
    assert cgroups.path(4711) == f"/{CONTAINER}"
    assert cgroups.process_cpus(4711) == cpus("8-23")
    assert cgroups.root_cpus() == cpus("0-191")


def test_the_agents_own_path_is_found_by_what_it_has_mounted(tree: Tree, tmp_path: Path) -> None:
    root = through_a_namespace(tree)
    # A mount shows the same folder a second time; so does a link to it.
    (tmp_path / "mount").symlink_to(root / "sys/fs/cgroup" / OWN)
    assert own_cgroup(root, mount=tmp_path / "mount") == f"/{OWN}"


def test_where_the_hosts_own_mount_is_mounted_the_list_of_processes_tells(tree: Tree) -> None:
    root = through_a_namespace(tree)
    (root / "proc/self").symlink_to("99")
    (root / "proc/99").mkdir()
    (root / "proc/99/cgroup").write_text("0::/\n")
    assert own_cgroup(root, mount=root / "sys/fs/cgroup") == f"/{OWN}"


def test_a_process_below_the_root_of_its_namespace_is_no_obstacle(tree: Tree, tmp_path: Path) -> None:
    root = through_a_namespace(tree)
    (root / f"sys/fs/cgroup/{OWN}/cgroup.procs").write_text("")
    (root / f"sys/fs/cgroup/{OWN}/inner").mkdir()
    (root / f"sys/fs/cgroup/{OWN}/inner/cgroup.procs").write_text("98\n99\n")
    (root / "proc/self").symlink_to("99")
    (root / "proc/99").mkdir()
    (root / "proc/99/cgroup").write_text("0::/inner\n")
    assert own_cgroup(root, mount=tmp_path / "nothing") == f"/{OWN}"


def test_without_a_namespace_of_its_own_the_agent_sees_whole_paths(tree: Tree) -> None:
    assert own_cgroup(tree(V2)) == "/"
    assert own_cgroup(Path("/")) == "/"


RELATIVE = [
    f"/../cri-containerd-{ID}.scope",
    f"/../../{POD.rpartition('/')[2]}/cri-containerd-{ID}.scope",
    f"/../cri-containerd-{ID}.scope/made/by/itself",
]


@pytest.mark.parametrize("path", RELATIVE)
def test_where_nothing_tells_the_agents_path_the_one_folder_that_ends_so_is_it(
    tree: Tree, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a recording: of the recorder's namespace nothing is left.
    root = tree(V2 | {"proc/1/cgroup": "0::/../../../../init.scope\n", "proc/4711/cgroup": f"0::{path}\n"})
    walks: list[str] = []
    walk = module._folders

    def counted(top: str) -> Iterator[tuple[list[str], str, int]]:
        walks.append(top)
        return walk(top)

    monkeypatch.setattr(module, "_folders", counted)
    cgroups = CgroupTree(root, own="/")
    identity = cgroups.identity(4711)
    assert identity == CgroupIdentity(f"/{CONTAINER}", UID, ID, "Burstable", runtime=True)
    assert cgroups.effective_cpus(identity.path) == cpus("8-23")
    assert cgroups.effective_cpus(path) == cpus("8-23")
    assert cgroups.process_cpus(4711) == cpus("8-23")
    assert len(walks) == 1


def test_the_recorded_relative_path_is_found_in_a_tree(tree: Tree, fixtures: Path) -> None:
    text = (fixtures / "cgroup/v2_cgroupns_relative.txt").read_text()
    container = f"{POD}/{text.strip().rpartition('/')[2]}"
    root = tree(V2 | {"proc/4711/cgroup": text, f"sys/fs/cgroup/{container}/cpuset.cpus.effective": "2-3\n"})
    cgroups = CgroupTree(root)
    identity = cgroups.identity(4711)
    assert identity is not None
    assert (identity.path, identity.pod_uid) == (f"/{container}", UID)
    assert cgroups.process_cpus(4711) == cpus("2-3")


@pytest.mark.parametrize("there", ["none", "several", "too many folders"])
def test_where_no_one_folder_tells_the_agents_path_no_cpuset_is_guessed(
    tree: Tree, tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = through_a_namespace(tree)
    if there == "none":
        (root / "proc/4711/cgroup").write_text(f"0::/../cri-containerd-{'e' * 64}.scope\n")
    elif there == "several":
        tree({f"sys/fs/cgroup/{OWN}/cri-containerd-{ID}.scope/cpuset.cpus.effective": "1\n"})
    else:
        monkeypatch.setattr(module, "_MOST_FOLDERS", 3)
    assert own_cgroup(root, mount=tmp_path / "nothing") == "/"
    cgroups = CgroupTree(root, own="/")
    identity = cgroups.identity(4711)
    assert identity is not None
    assert (identity.container_id, identity.pod_uid, identity.runtime) == (identity.path[-70:-6], "", True)
    # The nearest cgroup that happens to exist would be the root: all CPUs of the node.
    assert cgroups.effective_cpus(identity.path) is None
    assert cgroups.process_cpus(4711) is None
    # PID 1 is at the top all the same.
    assert cgroups.root_cpus() == cpus("0-191")


def test_pid_1_is_not_looked_for_in_containers(tree: Tree) -> None:
    inner = f"sys/fs/cgroup/{OWN}/init.scope/cpuset.cpus.effective"
    root = tree(V2 | {"proc/1/cgroup": "0::/../../../../init.scope\n", inner: "5\n"})
    cgroups = CgroupTree(root, own="/")
    assert cgroups.root_cpus() == cpus("0-191")
    identity = cgroups.identity(4711)
    assert identity is not None
    assert identity.pod_uid == UID


def test_a_folder_that_came_later_is_found_in_time(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = through_a_namespace(tree)
    (root / "proc/4711/cgroup").write_text(f"0::/../cri-containerd-{'e' * 64}.scope\n")
    now = 100.0
    monkeypatch.setattr("agent.node.cgroups.time.monotonic", lambda: now)
    cgroups = CgroupTree(root, own="/")
    assert cgroups.process_cpus(4711) is None
    tree({f"sys/fs/cgroup/{POD}/cri-containerd-{'e' * 64}.scope/cpuset.cpus.effective": "6\n"})
    now += 31
    assert cgroups.process_cpus(4711) == cpus("6")
    identity = cgroups.identity(4711)
    assert identity is not None
    assert identity.pod_uid == UID


def test_an_end_of_a_path_that_exists_from_the_top_is_believed(tree: Tree) -> None:
    root = through_a_namespace(tree)
    (root / "proc/4711/cgroup").write_text(f"0::/../../../../{CONTAINER}\n")
    assert CgroupTree(root, own="/").process_cpus(4711) == cpus("8-23")


# This machine's own


@pytest.fixture
def cpuset(needs_root: None) -> Iterator[Callable[[str, str], Path]]:
    """Makes real cpuset cgroups; removes them in the end."""
    found = find_cpuset(Path("/"))
    if found is None:
        pytest.skip("no cpusets on this machine")
    mount, form = found
    made: list[Path] = []

    def make(name: str, cpu_list: str) -> Path:
        folder = Path(mount) / name
        try:
            folder.mkdir()
            made.append(folder)
            if form == "v1":
                (folder / "cpuset.mems").write_text((folder.parent / "cpuset.mems").read_text())
            if cpu_list:
                (folder / "cpuset.cpus").write_text(cpu_list)
        except OSError as error:
            pytest.skip(f"cpuset cgroups cannot be made here: {error}")
        return folder

    yield make
    for folder in reversed(made):
        remove_cgroup(folder)


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_this_machines_root_cpuset_holds_this_process() -> None:
    cgroups = CgroupTree(Path("/"))
    root = cgroups.root_cpus()
    if root is None:
        pytest.skip("no cpusets on this machine")
    own = cgroups.process_cpus(os.getpid())
    assert own
    assert CpuSet(os.sched_getaffinity(0)) <= own <= root
    assert cgroups.identity(os.getpid()) is not None


def test_a_real_cpuset_is_read_and_followed_when_it_changes(cpuset: Callable[[str, str], Path], sleeper: int) -> None:
    cgroups = CgroupTree(Path("/"))
    whole = cgroups.root_cpus()
    assert whole is not None
    one = str(whole.take(1))
    name = f"cpubind-test-{uuid4()}"
    folder = cpuset(name, one)
    (folder / "cgroup.procs").write_text(str(sleeper))
    assert cgroups.path(sleeper) == f"/{name}"
    assert cgroups.process_cpus(sleeper) == whole.take(1)
    (folder / "cpuset.cpus").write_text(str(whole))
    assert cgroups.process_cpus(sleeper) == whole
    os.kill(sleeper, signal.SIGKILL)


def test_a_real_container_in_a_real_pod_is_told_with_its_cpus(cpuset: Callable[[str, str], Path], sleeper: int) -> None:
    cgroups = CgroupTree(Path("/"))
    whole = cgroups.root_cpus()
    assert whole is not None
    top = f"cpubind-test-{uuid4()}"
    for name in (top, f"{top}/kubepods", f"{top}/kubepods/pod{UID}"):
        cpuset(name, str(whole))
    container = cpuset(f"{top}/kubepods/pod{UID}/{ID}", str(whole.take(1)))
    inner = cpuset(f"{top}/kubepods/pod{UID}/{ID}/inner", "")
    (container / "cgroup.procs").write_text(str(sleeper))
    identity = cgroups.identity(sleeper)
    assert identity == CgroupIdentity(f"/{top}/kubepods/pod{UID}/{ID}", UID, ID, "Guaranteed", runtime=True)
    assert cgroups.effective_cpus(identity.path) == whole.take(1)
    # A v1 cpuset that was just made is empty: what is above it counts.
    assert cgroups.effective_cpus(f"{identity.path}/{inner.name}") == whole.take(1)
    os.kill(sleeper, signal.SIGKILL)


NAMESPACED = """
import ctypes, os, subprocess, sys
from pathlib import Path
from uuid import uuid4
from agent.node.cgroups import CgroupTree, own_cgroup

group, mounted, sibling = sys.argv[1:]
Path(group, "cgroup.procs").write_text(str(os.getpid()))
CLONE_NEWNS, CLONE_NEWCGROUP = 0x00020000, 0x02000000
if ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWCGROUP):
    sys.exit(77)
print(own_cgroup(Path("/")))
print(CgroupTree(Path("/")).path(int(sibling)))
kind = "cgroup2" if Path("/sys/fs/cgroup/cgroup.procs").exists() else "cgroup"
place = Path(mounted) / os.path.relpath(group, "/sys/fs/cgroup").split("/")[0] if kind == "cgroup" else Path(mounted)
place.mkdir(exist_ok=True)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
options = ["-o", "cpuset"] if kind == "cgroup" else []
if subprocess.run(["mount", "-t", kind, *options, "none", str(place)]).returncode:
    sys.exit(77)
print(own_cgroup(Path("/"), mount=Path(mounted)))
"""


def test_an_agent_in_a_real_cgroup_namespace_finds_itself_and_others(
    cpuset: Callable[[str, str], Path], sleeper: int, tmp_path: Path
) -> None:
    whole = CgroupTree(Path("/")).root_cpus()
    assert whole is not None
    top = f"cpubind-test-{uuid4()}"
    cpuset(top, str(whole))
    own = cpuset(f"{top}/own", str(whole))
    other = cpuset(f"{top}/other", str(whole))
    (other / "cgroup.procs").write_text(str(sleeper))
    (tmp_path / "mounted").mkdir()
    ran = subprocess.run(  # noqa: PLW1510 - what it returned is looked at below
        [sys.executable, "-c", NAMESPACED, str(own), str(tmp_path / "mounted"), str(sleeper)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        timeout=60,
    )
    if ran.returncode == 77:
        pytest.skip("no cgroup namespaces or mounts here")
    assert ran.returncode == 0, ran.stderr
    # By the list of processes, with the host's own mount in place; the sibling; by the mount of its namespace.
    assert ran.stdout.split() == [f"/{top}/own", f"/{top}/other", f"/{top}/own"]
    os.kill(sleeper, signal.SIGKILL)
