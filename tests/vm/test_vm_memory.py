"""Memory on another NUMA node than its worker's: what moves and what stays, as the kernel counts it in numa_maps."""

from __future__ import annotations

from tests.vm.conftest import Told
from tests.vm.masks import npu

PAGES = (64 << 20) // 4096
FILE_PAGES = (16 << 20) // 4096


def test_private_pages_move_to_the_node_of_the_workers_main_cpus(told: Told) -> None:
    facts = told("n4c16")["memory.far_away"]
    assert facts["before"]["private"]["0"] >= PAGES
    # Main is 10-13: two CPUs of node 2 and two of node 3, of which node 2 is the NPU's own.
    after = facts["after"]["private"]
    assert after.keys() == {"2"}, after
    assert after["2"] >= PAGES


def test_the_status_says_that_they_moved(told: Told) -> None:
    facts = told("n4c16")["memory.far_away"]
    (worker,) = npu(facts["status"], 0)["workers"]
    assert worker["memory"] == "Moved", worker
    assert facts["settled"], facts["log"]


def test_shared_memory_stays_even_where_the_worker_alone_has_touched_it(told: Told) -> None:
    facts = told("n4c16")["memory.far_away"]
    assert facts["before"]["shared"] == {"0": PAGES}
    assert facts["after"]["shared"] == {"0": PAGES}


def test_memory_shared_with_a_process_on_another_node_stays(told: Told) -> None:
    facts = told("n4c16")["memory.far_away"]
    assert facts["before"]["shared with another"] == {"0": PAGES}
    assert facts["after"]["shared with another"] == facts["after"]["of the other"] == {"0": PAGES}


def test_pages_of_a_mapped_file_stay(told: Told) -> None:
    facts = told("n4c16")["memory.far_away"]
    assert facts["before"]["file"] == {"0": FILE_PAGES}
    assert facts["after"]["file"] == {"0": FILE_PAGES}


def test_a_thread_goes_on_touching_the_memory_while_it_moves(told: Told) -> None:
    pace = told("n4c16")["memory.far_away"]["pace"]
    assert pace["touches"] > PAGES


def test_the_memory_of_a_worker_is_moved_once(told: Told) -> None:
    later = told("n4c16")["memory.far_away"]["later"]
    assert later["settled"], later["log"]
    # Its threads were put back; what it had allocated elsewhere meanwhile stays there.
    assert later["drifted"]["0"] > 0
    assert later["pages"] == later["drifted"]


def test_no_page_goes_to_a_node_without_cpus(told: Told) -> None:
    facts = told("n4mem2")["memory.memory_only"]
    assert facts["before"]["0"] >= PAGES
    # As many main CPUs are on node 0 as on node 1, which is the NPU's own.
    assert facts["after"].keys() == {"1"}, facts["after"]
