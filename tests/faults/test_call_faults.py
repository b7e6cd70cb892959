"""Calls that fail, and sockets and pipes that do not answer."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.storage import HostLock
from agent.telemetry.health import Health
from tests.control.hearing import ears_of
from tests.control.rig import wait_until
from tests.faults.call_rows import CLOSES, EVENTS, LOCK, NONSENSE, PIPES, ROWS, SILENT, SLEEPS, CallRow
from tests.faults.injector import READS, WRITES, Fault, Injector
from tests.faults.scene import Scene, scene
from tests.faults.table import Row
from tests.faults.trial import while_bound

CALL_ROWS = [row for row in ROWS if isinstance(row, CallRow)]


@contextmanager
def failing(node: Scene, call: str, code: int) -> Iterator[None]:
    """A call of the agent's fails with this errno."""

    def fails(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.node.kernel, call, fails)
        yield


@pytest.mark.parametrize("row", CALL_ROWS, ids=[row.key for row in CALL_ROWS])
def test_a_call_that_fails_unbinds_nobody_is_told_and_heals(row: CallRow, tmp_path: Path) -> None:
    code = getattr(errno, row.fault)
    lasting = frozenset({row.reason.value}) if row.reason and row.lasts else frozenset()
    seen = while_bound(tmp_path, row.device, lambda node: failing(node, row.call, code), lasting=lasting)
    assert seen.strays == {}
    assert seen.reasons == ({row.reason.value} if row.reason else set())


@contextmanager
def silent(node: Scene) -> Iterator[None]:
    """irqbalance takes what is sent and does not answer."""
    end = threading.Event()

    def answer(_message: bytes) -> bytes:
        end.wait(60)
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.balancer, "_answer", answer)
        try:
            yield
        finally:
            end.set()


@contextmanager
def raw(node: Scene, answer: bytes) -> Iterator[None]:
    node.balancer.raw = answer
    try:
        yield
    finally:
        node.balancer.raw = None


@pytest.mark.parametrize("row", [SILENT, NONSENSE, CLOSES], ids=lambda row: row.key)
def test_an_irqbalance_that_cannot_be_understood_stays_as_it_was_told(row: Row, tmp_path: Path) -> None:
    broken = {SILENT: silent, NONSENSE: lambda node: raw(node, b"\0\xff" * 99), CLOSES: lambda node: raw(node, b"")}
    seen = while_bound(tmp_path, "a2", broken[row])
    assert seen.strays == {}
    assert seen.reasons == {"IrqbalanceActive"}


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.key)
def test_events_that_do_not_come_are_done_without(row: Row, tmp_path: Path) -> None:
    @contextmanager
    def breaks(node: Scene) -> Iterator[None]:
        rig, refused = node.rig, row.fault == "ECONNREFUSED"
        with ears_of(rig, streams=0 if refused else 1) as ears:
            if row.fault == "ENOBUFS":
                ears.stream.tell(lost=True)
            elif not refused:
                code = getattr(errno, row.fault)
                ears.stream.break_off(OSError(code, os.strerror(code)))
                wait_until(lambda: ears.events.problem() is not None)
            yield
            rig.agent.parts = replace(rig.agent.parts, news=None)

    seen = while_bound(tmp_path, "a2", breaks)
    assert seen.strays == {}
    assert seen.reasons == ({row.reason.value} if row.reason else set())


@pytest.mark.parametrize("row", LOCK, ids=lambda row: row.key)
def test_a_lock_that_cannot_be_had_is_a_start_that_fails_and_the_next_one_goes_well(row: Row, tmp_path: Path) -> None:
    lock = HostLock(tmp_path / "run/lock")
    fault = Fault(re.compile("/run(/lock)?"), code=getattr(errno, row.fault), calls=READS | WRITES)
    with Injector(tmp_path).installed() as injector:
        with injector.broken(fault), pytest.raises(Refused) as refused:
            lock.acquire("cpubind test")
        assert refused.value.reason is row.reason
        assert fault.met
        lock.acquire("cpubind test")
    with pytest.raises(Refused) as refused:
        HostLock(lock.path).acquire("another")
    assert refused.value.reason is Reason.LOCKED
    lock.release()


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    """A FIFO, into which nobody ever writes, stands where the file was."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    os.mkfifo(path)
    try:
        yield
    finally:
        path.unlink()
        aside.rename(path)


@pytest.mark.parametrize("row", PIPES, ids=lambda row: row.key)
def test_a_pipe_in_place_of_a_file_holds_up_nobody(row: Row, tmp_path: Path) -> None:
    def breaks(node: Scene) -> object:
        files = {"the state file": node.rig.state_file, "the journal": node.rig.journal_file}
        return pipe(files.get(row.place, node.node.root / row.place[1:]))

    seen = while_bound(tmp_path, "a2", breaks)  # type: ignore[arg-type]
    assert seen.strays == {}
    assert row.reason is not None
    assert seen.reasons == {row.reason.value}


@pytest.mark.parametrize("row", [SLEEPS], ids=lambda row: row.key)
def test_a_file_of_the_kernel_that_hangs_stops_the_loop_and_the_probe_says_so(row: Row, tmp_path: Path) -> None:
    now = 0.0
    with scene(tmp_path) as node:
        node.settle()
        health = Health(5.0, lambda: now)
        asleep, awake = threading.Event(), threading.Event()
        real = os.read

        def read(descriptor: int, size: int) -> bytes:
            if threading.current_thread() is loop:
                asleep.set()
                awake.wait(60)
            return real(descriptor, size)

        def turn() -> None:
            node.rig.agent.step()
            health.turned()

        before = node.masks()
        loop = threading.Thread(target=turn)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "read", read)
            loop.start()
            assert asleep.wait(10)
            now = health.limit + 1
            assert not health.live()[0]
            assert before.moved(node.masks()) == {}
            awake.set()
            loop.join(20)
        assert not loop.is_alive()
        wait_until(lambda: health.live()[0])
        assert before.moved(node.masks()) == {}
        assert node.reasons() == set()
