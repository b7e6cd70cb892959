"""Asking kubelet for pod-resources, of a real gRPC server: what it answers, and what becomes of it when it does not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from agent.kube.pod_resources import MAX_ANSWER, PodResourcesPoll
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.reason import Reason
from agent.model.workload import PodResources
from tests.kube.podresources_server import PodResourcesServer, block, container, device, packed, pod

ONE = pod("prod", "llm-0", container("vllm", device("huawei.com/Ascend910", "Ascend910-3"), packed(3, 1, 2)))
ONE_READ = (PodResources("prod", "llm-0", "vllm", CpuSet({1, 2}), ("Ascend910-3",)),)
TWO = ONE + pod("prod", "llm-1", container("vllm"))
TWO_READ = (*ONE_READ, PodResources("prod", "llm-1", "vllm", EMPTY))

Start = Callable[..., "Polled"]


class Polled:
    """A poll that asks often, and how often it woke the loop."""

    def __init__(self, socket: Path, interval: float = 0.05, deadline: float = 2.0) -> None:
        self.wakes = 0
        self.poll = PodResourcesPoll(socket, self._wake, interval, deadline)
        assert self.poll.wait_first(30)

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def answer(self) -> tuple[PodResources, ...]:
        return self.poll.current()[0]

    @property
    def problem(self) -> str:
        problem = self.poll.current()[1]
        if problem is None:
            return ""
        assert problem.reason is Reason.KUBELET_STATE_UNREADABLE
        return problem.message

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not reached():
            assert time.monotonic() < end, f"did not happen in time: {self.poll.current()}"
            time.sleep(0.01)


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def start() -> Iterator[Start]:
    polls: list[Polled] = []

    def make(socket: Path, **how: float) -> Polled:
        polls.append(Polled(socket, **how))
        return polls[-1]

    yield make
    for one in polls:
        one.poll.stop()
    for one in polls:
        assert not one.poll._thread.is_alive()


@pytest.fixture
def kubelet(socket: Path) -> Iterator[PodResourcesServer]:
    server = PodResourcesServer(socket, ONE)
    yield server
    server.stop()


def test_what_kubelet_answers_is_known_after_the_first_call(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    polled = start(socket)
    assert polled.poll.current() == (ONE_READ, None)
    assert kubelet.requests[0] == b""


def test_the_loop_is_woken_when_the_answer_changes_and_only_then(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    polled = start(socket)
    polled.until(lambda: len(kubelet.requests) > 5)
    assert polled.wakes == 1
    kubelet.answer = lambda _: TWO
    polled.until(lambda: polled.answer == TWO_READ)
    seen = len(kubelet.requests)
    polled.until(lambda: len(kubelet.requests) > seen + 5)
    assert polled.wakes == 2


def test_another_order_of_the_same_pods_wakes_nobody(kubelet: PodResourcesServer, start: Start, socket: Path) -> None:
    kubelet.answer = lambda _: TWO
    polled = start(socket)
    kubelet.answer = lambda _: TWO[len(ONE) :] + ONE
    seen = len(kubelet.requests)
    polled.until(lambda: len(kubelet.requests) > seen + 3)
    assert polled.poll.current() == (TWO_READ, None)
    assert polled.wakes == 1


def test_without_a_socket_nothing_is_known_and_nothing_is_wrong(start: Start, tmp_path: Path) -> None:
    for socket in (tmp_path / "kubelet.sock", tmp_path / "no" / "such" / "folder" / "kubelet.sock"):
        polled = start(socket)
        assert polled.poll.current() == ((), None)
        assert polled.wakes == 0


def test_a_kubelet_that_comes_later_is_found(start: Start, socket: Path) -> None:
    polled = start(socket)
    kubelet = PodResourcesServer(socket, ONE)
    polled.until(lambda: polled.answer == ONE_READ)
    assert polled.wakes == 1
    kubelet.stop()


def test_the_last_answer_stands_while_kubelet_is_away_and_when_it_is_back_it_is_asked_again(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    polled = start(socket)
    kubelet.stop()
    polled.until(lambda: polled.problem.endswith("kubelet.sock: kubelet cannot be reached: Connection refused"))
    assert polled.answer == ONE_READ
    socket.unlink()
    polled.until(lambda: polled.problem.endswith("kubelet.sock is gone; its last answer stands"))
    assert polled.answer == ONE_READ
    assert polled.wakes == 1
    kubelet.answer = lambda _: TWO
    kubelet.start()
    polled.until(lambda: polled.poll.current() == (TWO_READ, None))
    assert polled.wakes == 2


def test_a_socket_that_is_replaced_while_the_old_kubelet_still_runs_is_the_one_that_is_asked(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    polled = start(socket)
    socket.unlink()
    new = PodResourcesServer(socket, TWO)
    polled.until(lambda: polled.poll.current() == (TWO_READ, None))
    asked = len(kubelet.requests)
    polled.until(lambda: len(new.requests) > 3)
    assert len(kubelet.requests) == asked
    new.stop()


def test_a_kubelet_that_hangs_is_given_up_at_the_deadline_and_asked_again(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    polled = start(socket, deadline=0.3)
    kubelet.hang()
    polled.until(lambda: polled.problem.endswith("kubelet does not answer in time"))
    assert polled.answer == ONE_READ
    kubelet.answer = lambda _: TWO
    polled.until(lambda: polled.poll.current() == (TWO_READ, None))


def test_a_socket_that_nobody_accepts_on_is_given_up_at_the_deadline(start: Start, socket: Path) -> None:
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as listening:
        listening.bind(str(socket))
        listening.listen(0)
        polled = start(socket, deadline=0.3)
        assert polled.problem.endswith("kubelet does not answer in time")


def test_stopping_does_not_wait_for_a_kubelet_that_hangs(
    kubelet: PodResourcesServer, start: Start, socket: Path
) -> None:
    kubelet.hang()
    poll = PodResourcesPoll(socket, lambda: None, interval=0.05, deadline=30.0)
    end = time.monotonic() + 10
    while not kubelet.requests:
        assert time.monotonic() < end
        time.sleep(0.01)
    started = time.monotonic()
    poll.stop()
    assert time.monotonic() - started < 5
    assert not poll._thread.is_alive()
    poll.stop()


def test_a_kubelet_without_this_api_is_said_to_be_one(start: Start, socket: Path) -> None:
    kubelet = PodResourcesServer(socket, method="/v1alpha1.PodResourcesLister/List")
    polled = start(socket)
    assert polled.problem.endswith("kubelet has no PodResources API v1, which came with Kubernetes 1.20")
    assert polled.answer == ()
    kubelet.stop()


def test_another_error_of_kubelet_is_passed_on(kubelet: PodResourcesServer, start: Start, socket: Path) -> None:
    kubelet.refuse(grpc.StatusCode.INTERNAL, "no checkpoint\x1b[31m\n")
    assert start(socket).problem.endswith("kubelet.sock: INTERNAL: no checkpoint\\x1b[31m\\x0a")


@pytest.mark.parametrize("answer", [b"\x0a", b"\xff" * 40, pod("prod", "a", container("b", packed(3, 5000)))])
def test_a_damaged_answer_changes_nothing_but_is_reported(
    kubelet: PodResourcesServer, start: Start, socket: Path, answer: bytes
) -> None:
    polled = start(socket)
    kubelet.answer = lambda _: answer
    polled.until(lambda: polled.problem != "")
    assert polled.answer == ONE_READ
    assert polled.wakes == 1
    kubelet.answer = lambda _: ONE
    polled.until(lambda: polled.problem == "")


def test_an_answer_that_is_too_large_is_refused(kubelet: PodResourcesServer, start: Start, socket: Path) -> None:
    kubelet.answer = lambda _: block(9, bytes(MAX_ANSWER))
    polled = start(socket)
    assert "RESOURCE_EXHAUSTED" in polled.problem


def test_a_file_that_is_no_socket_is_reported(start: Start, socket: Path) -> None:
    socket.write_text("")
    assert "kubelet cannot be reached" in start(socket).problem


@pytest.mark.parametrize("folder", ["x" * 120, "with space", "per%63ent", "a?b#c", "é"])
def test_long_and_odd_socket_paths_are_reached(start: Start, tmp_path: Path, folder: str) -> None:
    socket = tmp_path / folder / "kubelet.sock"
    socket.parent.mkdir()
    kubelet = PodResourcesServer(socket, ONE)
    assert start(socket).poll.current() == (ONE_READ, None)
    kubelet.stop()


def test_without_grpcio_it_is_said_to_be_missing(
    kubelet: PodResourcesServer, start: Start, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "grpc", None)
        polled = start(socket)
        assert polled.problem.startswith("pod-resources cannot be asked for without grpcio: ")
    polled.until(lambda: polled.poll.current() == (ONE_READ, None))


def test_a_fault_of_our_own_is_reported_and_does_not_end_the_asking(
    kubelet: PodResourcesServer, start: Start, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = start(socket)

    def broken(data: bytes) -> object:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr("agent.kube.pod_resources.parse_answer", broken)
        kubelet.answer = lambda _: TWO
        polled.until(lambda: polled.problem == "kubelet's pod-resources could not be asked for")
        assert polled.answer == ONE_READ
    polled.until(lambda: polled.poll.current() == (TWO_READ, None))


def test_calls_leave_no_files_open_behind_them(kubelet: PodResourcesServer, start: Start, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.symlink_to(tmp_path)
    polled = start(long / "kubelet.sock", interval=0.01)
    polled.until(lambda: len(kubelet.requests) > 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    polled.until(lambda: len(kubelet.requests) > 120)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10


_PROGRAM = """
import subprocess, sys, threading
from pathlib import Path
from agent.kube.pod_resources import PodResourcesPoll

poll = PodResourcesPoll(Path(sys.argv[1]), lambda: None, interval=0.01)
assert poll.wait_first(30)
for _ in range(20):
    subprocess.run(["true"], check=True)
print(len(poll.current()[0]), "grpc" in sys.modules)
if len(sys.argv) > 2:
    poll.stop()
"""


def _run(*arguments: object) -> tuple[str, str]:
    command = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60, cwd=root)
    return done.stdout, done.stderr


def test_grpc_is_loaded_only_where_there_is_a_socket(kubelet: PodResourcesServer, socket: Path, tmp_path: Path) -> None:
    assert _run(tmp_path / "none.sock", "stop") == ("0 False\n", "")
    assert _run(socket, "stop") == ("1 True\n", "")


def test_nothing_is_printed_and_children_start_while_kubelet_is_asked_or_away(
    kubelet: PodResourcesServer, socket: Path
) -> None:
    kubelet.stop()
    assert _run(socket, "stop") == ("0 True\n", "")


def test_an_agent_that_ends_without_stopping_ends(kubelet: PodResourcesServer, socket: Path) -> None:
    kubelet.hang()
    assert _run(socket) == ("0 True\n", "")


def test_several_threads_may_ask_for_the_answer(kubelet: PodResourcesServer, start: Start, socket: Path) -> None:
    polled = start(socket, interval=0.001)
    answers: set[tuple[PodResources, ...]] = set()
    threads = [threading.Thread(target=lambda: answers.update(polled.answer for _ in range(2000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for k in range(100):
        kubelet.answer = lambda _, k=k: TWO if k % 2 else ONE  # type: ignore[misc]
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    assert answers <= {ONE_READ, TWO_READ}
