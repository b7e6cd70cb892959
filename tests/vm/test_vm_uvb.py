"""UVB threads of Ascend 950: the host's are moved to what the clusters leave of node 0, a pod's are its own."""

from __future__ import annotations

from tests.vm.conftest import Told

NAME = "uvb_poll_window"
"""As the kernel cuts ``uvb_poll_window_thread``."""


def _masks(threads: list[dict[str, str]]) -> dict[str, str]:
    return {thread["comm"]: thread["mask"] for thread in threads}


def test_a_thread_of_the_host_goes_to_the_uvb_pool_and_its_neighbours_stay(told: Told) -> None:
    facts = told("n4c32")["ascend950.one_thread"]
    assert _masks(facts["host"]) == {NAME: "1-7", "bystander": "0-31"}
    uvb = facts["bound"]["status"]["uvb"]
    assert uvb["cpus"] == "1-7"
    assert (uvb["threads"], uvb["state"]) == (1, "Bound")


def test_a_thread_of_the_same_name_in_a_pod_is_left_alone(told: Told) -> None:
    facts = told("n4c32")["ascend950.one_thread"]
    assert _masks(facts["pod"]) == {NAME: "0-31", "bystander": "0-31"}


def test_mode_disabled_gives_uvb_threads_and_workers_their_masks_back(told: Told) -> None:
    facts = told("n4c32")["ascend950.one_thread"]["disabled"]
    assert {thread["mask"] for thread in [*facts["host"], *facts["threads"]]} == {"0-31"}, facts["log"]
    (condition,) = [c for c in facts["status"]["conditions"] if c["type"] == "Restored"]
    assert condition["status"] == "True"


def test_where_clusters_leave_nothing_of_node_0_no_uvb_thread_is_touched(told: Told) -> None:
    facts = told("n2c32smt")["ascend950.two_threads"]
    assert _masks(facts["host"]) == {NAME: "0-31", "bystander": "0-31"}
    assert facts["bound"]["status"]["uvb"]["reason"] == "NoUvbCpus"
