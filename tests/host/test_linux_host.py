"""The interface through which the host is written to, against the running kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from agent.model.cpuset import EMPTY, CpuSet
from agent.node.host import EVERY_CPU, DryRunHost, Host, LinuxHost, Write
from tests.host.support import ALL, BOTH, ON_A, ON_B, A, mask, two_cpus

pytestmark = two_cpus


@pytest.fixture(params=[None, 512], ids=["smallest mask", "mask of 4,096 CPUs"])
def host(request: pytest.FixtureRequest) -> Host:
    return LinuxHost(request.param)


@pytest.fixture
def thread() -> Iterator[int]:
    """A thread that waits."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def test_a_mask_that_is_set_is_the_kernels(host: Host, thread: int) -> None:
    for cpus in (ON_B, ON_A, BOTH):
        host.set_affinity(thread, cpus)
        assert mask(thread) == set(cpus)
        assert host.get_affinity(thread) == cpus


def test_taskset_sees_the_same(host: Host, thread: int) -> None:
    host.set_affinity(thread, ON_B)
    shown = subprocess.run(["taskset", "-cp", str(thread)], capture_output=True, text=True, check=True).stdout
    assert shown.rpartition(": ")[2].strip() == str(ON_B)


def test_all_ones_are_whatever_the_machine_has(host: Host, thread: int) -> None:
    host.set_affinity(thread, ON_A)
    host.set_affinity(thread, EVERY_CPU)
    assert mask(thread) >= set(ALL)


def test_a_thread_that_is_gone_is_esrch(host: Host) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessLookupError):
        host.get_affinity(child.pid)
    with pytest.raises(ProcessLookupError):
        host.set_affinity(child.pid, ON_A)


def test_cpus_that_do_not_exist_are_einval(host: Host, thread: int) -> None:
    for cpu in (60, 4000):
        if cpu not in ALL:
            with pytest.raises(OSError, match="Invalid argument") as caught:
                host.set_affinity(thread, CpuSet({cpu}))
            assert caught.value.errno == errno.EINVAL
    assert mask(thread) == set(ALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_somebody_elses_thread_is_eperm(host: Host) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                host.set_affinity(child.pid, ON_A)
        finally:
            os.seteuid(0)
        assert mask(child.pid) == set(ALL)
    finally:
        child.kill()
        child.wait()


def test_an_empty_set_and_a_tid_that_means_oneself_are_refused_before_any_call(thread: int) -> None:
    for host in (LinuxHost(), DryRunHost(LinuxHost())):
        with pytest.raises(ValueError, match="empty"):
            host.set_affinity(thread, EMPTY)
        with pytest.raises(ValueError, match="thread id"):
            host.set_affinity(0, ON_A)
    assert mask(thread) == set(ALL)


def test_a_dry_run_reads_through_and_records_every_write_without_making_it(thread: int) -> None:
    host = DryRunHost(LinuxHost())
    host.set_affinity(thread, ON_A)
    host.set_affinity(thread, ON_B)
    assert host.writes == [Write(thread, ON_A), Write(thread, ON_B)]
    assert host.get_affinity(thread) == ALL
    assert mask(thread) == set(ALL)


def test_a_host_that_saw_thousands_of_masks_still_answers_rightly(thread: int) -> None:
    host = LinuxHost()
    for number in range(3000):
        host.set_affinity(thread, CpuSet.from_bits(1 << A | (number << 64)))
        assert host.get_affinity(thread) == ON_A
