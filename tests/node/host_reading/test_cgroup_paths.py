"""What a cgroup path says of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.workload import CgroupIdentity
from agent.node.cgroup_paths import CgroupLine, identify, parse_cgroup, resolve, written

UID = "12345678-1234-1234-1234-123456789abc"
SLICE_UID = UID.replace("-", "_")
OTHER_UID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
ID = "0123456789abcdef" * 4
OTHER_ID = "f" * 64
HASH = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"

FIXTURES = {
    "v1_burstable_podfd52": (
        "fd52ef25-a87d-11e9-9423-0800271a638e",
        "8c046cb0b72cd4c99f51b5591cd5b095967f58ee003710a45280c28ee1a9c7fa",
        "Burstable",
        True,
    ),
    "v1_cgroupfs_multi": (
        "490e13e0-000f-4365-bee4-9a846e9ebee9",
        "8a841081dbbf9fde35f9e8880e5a51ab0d249c0a6a423a9cac96a8b7d5047f7a",
        "BestEffort",
        True,
    ),
    "v1_containerd_service_colon": (
        "87a18a64-b74a-454a-b10b-a4a36059d0a3",
        "05c48c82caff3be3d7f1e896981dd410e81487538936914f32b624d168de9db0",
        "Guaranteed",
        True,
    ),
    "v1_cpuset_guaranteed": (
        "5eadac96-ab58-11ea-b82b-0242ac110009",
        "7fe41c8a2d1da09420117894f11dd91f6c3a44dfeb7d125dc594bd53468861df",
        "Guaranteed",
        True,
    ),
    "v1_docker_plain": ("", "4561e2e3ceb8377038c27ea5c40aa64a44c2dc02e53a141d20b7c98b2af59b1a", "", True),
    "v1_systemd_slice_bare_id": (
        "97f1ae73-7ad9-11ec-b4a7-9a35488b4fab",
        "3291bfddf3f3f8d87cb0cd1245fe9c45b2e1e5a9b6fe3de1bddf041aedaecbab",
        "Guaranteed",
        True,
    ),
    "v2_cgroupfs_containerd_burstable": (UID, ID, "Burstable", True),
    "v2_cgroupns_relative": ("", ID, "", True),
    "v2_crio_conmon_not_a_container": (UID, "", "Burstable", False),
    "v2_host_session": ("", "", "", False),
    "v2_static_pod_config_hash": (HASH, "ab12cd34ef56" * 5 + "ab12", "Burstable", True),
    "v2_systemd_containerd_burstable": (UID, ID, "Burstable", True),
    "v2_systemd_crio_besteffort": (UID, ID, "BestEffort", True),
    "v2_systemd_docker_guaranteed": (UID, ID, "Guaranteed", True),
}


def says(path: str, *, own: str = "/", kubepods_root: str | None = None) -> tuple[str, str, str, bool]:
    found = identify(path, own=own, kubepods_root=kubepods_root)
    return found.pod_uid, found.container_id, found.qos, found.runtime


def test_every_recorded_cgroup_has_its_answer_here(fixtures: Path) -> None:
    assert {path.stem for path in (fixtures / "cgroup").glob("*.txt")} == FIXTURES.keys()


@pytest.mark.parametrize("name", FIXTURES)
def test_recorded_cgroups_are_told_apart(fixtures: Path, name: str) -> None:
    line = parse_cgroup((fixtures / "cgroup" / f"{name}.txt").read_text())
    assert line is not None
    assert line.form == name[:2]
    assert says(line.path) == FIXTURES[name]


def test_a_container_in_the_agents_own_pod_is_found_through_its_namespace(fixtures: Path) -> None:
    line = parse_cgroup((fixtures / "cgroup/v2_cgroupns_relative.txt").read_text())
    assert line is not None
    found = identify(line.path, own=f"{BURSTABLE}/cri-containerd-{OTHER_ID}.scope")
    assert found == CgroupIdentity(f"{BURSTABLE}/cri-containerd-{ID}.scope", UID, ID, "Burstable", runtime=True)


# Which line counts


def test_the_line_with_cpuset_counts() -> None:
    text = f"12:cpu,cpuacct:/a\n4:memory,cpuset:/docker/{ID}\n1:name=systemd:/b\n0::/c\n"
    assert parse_cgroup(text) == CgroupLine(f"/docker/{ID}", "v1")


def test_on_a_hybrid_host_without_cpuset_in_v1_the_line_of_v2_counts() -> None:
    assert parse_cgroup("4:memory:/a\n1:name=systemd:/b\n0::/c\n") == CgroupLine("/c", "v2")


def test_a_controller_whose_name_only_contains_cpuset_does_not() -> None:
    assert parse_cgroup("4:name=cpuset:/a\n3:cpusets:/b\n0::/c\n") == CgroupLine("/c", "v2")


def test_without_either_the_first_line_below_the_root_counts() -> None:
    assert parse_cgroup("3:pids:/\n2:devices:/a\n1:name=systemd:/b\n") == CgroupLine("/a", "v1")
    assert parse_cgroup("3:pids:/\n") == CgroupLine("/", "v1")


def test_a_removed_cgroup_is_still_told() -> None:
    assert parse_cgroup(f"0::{BURSTABLE}/{ID} (deleted)\n") == CgroupLine(f"{BURSTABLE}/{ID}", "v2")


@pytest.mark.parametrize("text", ["", "\n", "0::", "0::relative", "nonsense", "3:cpuset", "0::/a\0b"])
def test_a_text_without_a_line_is_none(text: str) -> None:
    assert parse_cgroup(text) is None


# Drivers, runtimes, versions, nesting


@pytest.mark.parametrize(
    ("path", "qos"),
    [
        (f"/kubepods/pod{UID}/{ID}", "Guaranteed"),
        (f"/kubepods/burstable/pod{UID}/{ID}", "Burstable"),
        (f"/kubepods/besteffort/pod{UID}/{ID}", "BestEffort"),
        (f"/kubepods/burstable/pod{UID}/crio-{ID}", "Burstable"),
        (f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope", "Guaranteed"),
        (f"{BURSTABLE}/cri-containerd-{ID}.scope", "Burstable"),
        (f"{BURSTABLE}/crio-{ID}.scope", "Burstable"),
        (f"{BURSTABLE}/crio-{ID}.scope/container", "Burstable"),
        (f"{BURSTABLE}/docker-{ID}.scope", "Burstable"),
        (f"{BURSTABLE}/isulad-{ID}.scope", "Burstable"),
        (f"{BURSTABLE}/{ID}", "Burstable"),
        # containerd with the driver cgroupfs under a kubelet with the driver systemd
        (f"/kubepods-burstable-pod{SLICE_UID}.slice:cri-containerd:{ID}", "Burstable"),
        (
            f"/system.slice/containerd.service/kubepods-besteffort-pod{SLICE_UID}.slice:cri-containerd:{ID}",
            "BestEffort",
        ),
        (f"/system.slice/k3s.service/kubepods-pod{SLICE_UID}.slice:cri-containerd:{ID}", "Guaranteed"),
        # kind, and kubelets with a cgroup root of their own
        (f"{KIND}/kubelet-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope", "Burstable"),
        (f"/kubelet/kubepods/besteffort/pod{UID}/{ID}", "BestEffort"),
        (f"/podruntime/kubepods/pod{UID}/{ID}", "Guaranteed"),
    ],
)
def test_pods_are_found_whatever_made_the_cgroup(path: str, qos: str) -> None:
    assert says(path) == (UID, ID, qos, True)


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{ID}",
        f"/system.slice/docker-{ID}.scope",
        f"/machine.slice/libpod-{ID}.scope/container",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        f"/libpod_parent/libpod-{ID}",
        f"/system.slice:docker:{ID}",
        f"/k8s.io/{ID}",
        f"/isulad/{ID}",
    ],
)
def test_plain_containers_have_an_id_and_no_pod(path: str) -> None:
    assert says(path) == ("", ID, "", True)


@pytest.mark.parametrize("path", ["/lxc.payload.web", "/lxc/web", "/machine.slice/machine-web.scope"])
def test_system_containers_are_containers_without_an_id(path: str) -> None:
    assert identify(f"{path}/system.slice/x.service") == CgroupIdentity(path, runtime=True)


@pytest.mark.parametrize(
    "path",
    ["/", "/init.scope", "/system.slice/sshd.service", "/user.slice/user-1000.slice/session-1.scope", "/lxc", "/a/b"],
)
def test_the_hosts_own_processes_are_in_no_container(path: str) -> None:
    assert identify(path) == CgroupIdentity(path)


def test_the_path_is_cut_at_the_containers_own_component() -> None:
    assert identify(f"/kubepods/burstable/pod{UID}/{ID}/sub/sub").path == f"/kubepods/burstable/pod{UID}/{ID}"
    assert identify(f"/docker/{ID}/init.scope").path == f"/docker/{ID}"


def test_the_path_is_whole_where_there_is_no_container() -> None:
    assert identify("/system.slice/x.service/sub").path == "/system.slice/x.service/sub"
    assert identify(f"/kubepods/pod{UID}/sub").path == f"/kubepods/pod{UID}/sub"


@pytest.mark.parametrize(
    "path",
    [
        f"{BURSTABLE}/crio-conmon-{ID}.scope",
        f"/kubepods/burstable/pod{UID}/crio-conmon-{ID}",
        f"{BURSTABLE}:crio-conmon:{ID}",
    ],
)
def test_conmon_is_in_the_pod_and_no_container(path: str) -> None:
    assert says(path) == (UID, "", "Burstable", False)
    assert says(f"/machine.slice/libpod-conmon-{ID}.scope") == ("", "", "", False)


# What a container or a user makes up


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{ID}/kubepods/pod{OTHER_UID}/{OTHER_ID}",
        f"{BURSTABLE}/cri-containerd-{ID}.scope{BURSTABLE.replace('1234', '9999')}/cri-containerd-{OTHER_ID}.scope",
        f"/kubepods/burstable/pod{UID}/{ID}/docker/{OTHER_ID}",
    ],
)
def test_look_alikes_below_a_pods_container_are_its_own_doing(path: str) -> None:
    assert says(path) == (UID, ID, "Burstable", True)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/pod{UID}/sub/{OTHER_ID}",
        f"/kubepods/pod{UID}/sub/kubepods/pod{OTHER_UID}/{OTHER_ID}",
        f"/kubepods/pod{UID}/crio-conmon-{ID}/{OTHER_ID}",
    ],
)
def test_a_container_is_the_component_next_to_the_pod_or_none(path: str) -> None:
    assert says(path) == (UID, "", "Guaranteed", False)


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{ID}/kubepods/burstable/pod{UID}/{OTHER_ID}",
        f"/docker/{ID}/kubelet/kubepods/pod{UID}/{OTHER_ID}",
        f"/system.slice/docker-{ID}.scope{BURSTABLE}/cri-containerd-{OTHER_ID}.scope",
    ],
)
def test_a_pod_below_a_plain_container_is_no_pod(path: str) -> None:
    assert says(path) == ("", ID, "", True)


@pytest.mark.parametrize(
    "path",
    [
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/burstable/pod{UID}",
        f"/user.slice/user-1000.slice/user@1000.service{BURSTABLE}",
        f"/system.slice/some.service/kubepods/pod{UID}",
        f"/system.slice/some.service/kubepods-pod{SLICE_UID}.slice:cri-containerd:x",
        f"/lxc.payload.web/kubepods/pod{UID}",
    ],
)
def test_a_pod_below_what_can_be_delegated_is_no_pod(path: str) -> None:
    assert says(path)[0] == ""


@pytest.mark.parametrize(
    "path",
    [
        f"/pod{UID}/{'a' * 63}",
        f"/other/pod{UID}",
        f"/burstable/pod{UID}",
        f"/kubepods/other/pod{UID}",
        f"/kubepods/pod{UID}x",
        f"/kubepods/xpod{UID}",
        f"/kubepods/pod{UID[:-1]}",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}",
        f"/kubepods.slice/kubepods-other-pod{SLICE_UID}.slice",
        f"/xkubepods-pod{SLICE_UID}.slice",
    ],
)
def test_what_kubelet_never_writes_is_no_pod(path: str) -> None:
    assert says(path)[0] == ""


# A node that is itself a container


def test_a_node_in_a_container_has_its_pods_below_that_one_only() -> None:
    node = f"/docker/{ID}"
    pod = f"{node}/kubelet/kubepods/burstable/pod{UID}/{OTHER_ID}"
    assert says(pod) == ("", ID, "", True)
    assert says(pod, kubepods_root=node) == (UID, OTHER_ID, "Burstable", True)
    assert says(pod, kubepods_root=f"{node}/kubelet/kubepods") == (UID, OTHER_ID, "Burstable", True)
    assert says(f"{node}/init.scope", kubepods_root=node) == ("", "", "", False)
    assert says(f"/kubepods/pod{UID}/{OTHER_ID}", kubepods_root=node) == ("", OTHER_ID, "", True)


# Paths through another cgroup namespace

OWN = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{HASH}.slice/cri-containerd-{OTHER_ID}.scope"


@pytest.mark.parametrize(
    ("seen", "path"),
    [
        ("/", OWN),
        ("/sub", f"{OWN}/sub"),
        ("/../../../..", "/"),
        ("/../../../../init.scope", "/init.scope"),
        (f"/../cri-containerd-{ID}.scope", f"{OWN.rpartition('/')[0]}/cri-containerd-{ID}.scope"),
        (
            f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
            f"{BURSTABLE}/cri-containerd-{ID}.scope",
        ),
    ],
)
def test_paths_seen_through_a_namespace_are_made_absolute(seen: str, path: str) -> None:
    assert written(*resolve(seen, OWN)) == path
    assert identify(seen, own=OWN) == identify(path)


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (f"/../../kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope", (UID, ID, "Burstable", True)),
        (f"/../../kubepods/burstable/pod{UID}/{ID}", (UID, ID, "Burstable", True)),
        (f"/../../../besteffort/pod{UID}/{ID}", (UID, ID, "BestEffort", True)),
        (f"/../../pod{UID}/{ID}", (UID, ID, "", True)),
        (f"/../cri-containerd-{ID}.scope/kubepods/pod{UID}/{OTHER_ID}", ("", ID, "", True)),
        ("/../../../..", ("", "", "", False)),
    ],
)
def test_where_the_namespace_is_not_known_the_end_of_the_path_still_tells(
    seen: str, answer: tuple[str, str, str, bool]
) -> None:
    assert says(seen) == answer
    assert identify(seen).path.startswith("/..")


component = st.sampled_from(
    ["kubepods", "burstable", "kubepods.slice", "..", f"pod{UID}", ID, f"cri-containerd-{ID}.scope", "docker", "x:y"]
) | st.text(max_size=80)


@given(path=st.lists(component, max_size=8).map("/".join), own=st.lists(component, max_size=4).map("/".join))
@example(path="/" + "a-" * 2000 + ID, own="/")
@example(path=":" * 4000 + ID, own="/")
def test_any_path_has_an_answer(path: str, own: str) -> None:
    found = identify(path, own=own)
    assert found.path.startswith("/")
    assert found.runtime or not found.container_id
    assert not found.qos or found.pod_uid


@given(text=st.text() | st.lists(component, max_size=4).map(lambda parts: "0::/" + "/".join(parts)))
def test_any_text_has_a_line_or_none(text: str) -> None:
    line = parse_cgroup(text)
    assert line is None or line.path.startswith("/")


@given(tail=st.lists(component.filter(lambda part: part != ".."), max_size=6).map("/".join))
def test_nothing_below_a_container_changes_whose_it_is(tail: str) -> None:
    top = f"{BURSTABLE}/cri-containerd-{ID}.scope"
    assert identify(f"{top}/{tail}") == identify(top)
