"""On which NUMA nodes the memory of a cgroup is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.node.numa_stat import anonymous_memory, parse_numa_stat

PAGE = os.sysconf("SC_PAGE_SIZE")

V2 = """\
anon N0=1048576 N1=0 N3=4096
file N0=8192 N1=8192 N3=0
inactive_anon N0=1048576 N1=0 N3=0
"""
V1 = """\
total=44 N0=24 N1=20
file=40 N0=24 N1=16
anon=4 N0=0 N1=4
unevictable=0 N0=0 N1=0
hierarchical_total=51 N0=31 N1=20
hierarchical_file=41 N0=25 N1=16
hierarchical_anon=10 N0=6 N1=4
hierarchical_unevictable=0 N0=0 N1=0
"""


def test_v2_has_bytes_and_its_nodes_may_have_holes() -> None:
    assert parse_numa_stat(V2, "v2") == {0: 1048576, 1: 0, 3: 4096}


def test_v1_has_pages_and_what_is_below_on_lines_of_its_own() -> None:
    assert parse_numa_stat(V1, "v1") == {0: 6 * PAGE, 1: 4 * PAGE}


@pytest.mark.parametrize("text", ["", "file N0=1\n", "anonymous N0=1\n", "xanon N0=1\n"])
def test_without_such_a_line_nothing_is_told(text: str) -> None:
    assert parse_numa_stat(text, "v2") is None


def put(root: Path, path: str, text: str) -> None:
    file = root / "sys/fs/cgroup" / path / "memory.numa_stat"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_it_is_read_where_the_memory_controller_is(tmp_path: Path) -> None:
    put(tmp_path, "kubepods.slice/pod1", V2)
    assert anonymous_memory(tmp_path, "/kubepods.slice/pod1") == {0: 1048576, 1: 0, 3: 4096}
    put(tmp_path, "memory/kubepods.slice/pod1", V1)
    assert anonymous_memory(tmp_path, "/kubepods.slice/pod1") == {0: 6 * PAGE, 1: 4 * PAGE}, "v1 beside an empty v2"


@pytest.mark.parametrize("path", ["/", "/kubepods.slice", "/../pod1", "/../../etc"])
def test_a_cgroup_that_is_gone_or_whose_path_is_not_known_tells_nothing(tmp_path: Path, path: str) -> None:
    put(tmp_path, "pod1", V2)
    assert anonymous_memory(tmp_path, path) is None


def test_a_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    put(tmp_path, "pod1", "x" * (2 << 20))
    assert anonymous_memory(tmp_path, "/pod1") is None


def test_the_running_kernel_has_one_of_these_forms() -> None:
    top = Path("/sys/fs/cgroup")
    files = [*top.glob("*/memory.numa_stat"), *top.glob("memory/*/memory.numa_stat")]
    if not files:
        pytest.skip("NO CGROUP WITH memory.numa_stat HERE")
    form = "v1" if "/sys/fs/cgroup/memory" in str(files[0]) else "v2"
    assert parse_numa_stat(files[0].read_text(), form)
