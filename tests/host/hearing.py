"""A stand-in worker, bound on this machine, and what hears of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from subprocess import Popen

import pytest

from agent.control.act import Actor, ActResult
from agent.control.events import Events
from agent.control.observe import Observation
from agent.demo.standin import StandIn
from agent.model.node import DeviceType, Topology
from agent.model.plan import Allotment, Plan, Roles, WorkerPlan
from agent.model.reason import Refused
from agent.model.spec import Spec, Strategy
from agent.model.workload import ProcessId, Worker
from agent.node.proc_events import ProcEvents
from agent.node.procfs import ProcFs
from tests.host.support import ALL, CountingHost, identity

ROOT = Path("/")


@cache
def why_deaf() -> str:
    """Why this machine's kernel tells of no processes; empty where it does."""
    if not hasattr(socket, "AF_NETLINK"):
        return "no netlink"
    try:
        ProcEvents.listen().close()
    except Refused as refused:
        return str(refused)
    return ""


hears = pytest.mark.skipif(bool(why_deaf()), reason=f"needs the kernel's events of processes: {why_deaf()}")


@dataclass
class Hearing:
    """Whoever hears, and a loop that passes when the test says so."""

    actor: Actor
    events: Events
    host: CountingHost
    workers: dict[ProcessId, Roles] = field(default_factory=dict)
    woken: threading.Event = field(default_factory=threading.Event)

    def sweep(self, spec: Spec | None = None) -> ActResult:
        """One pass over the workers."""
        spec = spec or Spec()
        entries = tuple(
            WorkerPlan(Worker(process, (0,), ""), "", Allotment(ALL, roles)) for process, roles in self.workers.items()
        )
        plan = Plan(DeviceType.A2, Strategy.GLOBAL_SLICE, workers=entries)
        seen = Observation(Topology(ALL, ALL, (), ()), cpusets=dict.fromkeys(self.workers, ALL))
        self.actor.prepare(plan, seen, spec)
        return self.actor.act(plan, seen, spec, lambda keys: dict.fromkeys(keys, ()))

    def bind(self, worker: StandIn | Popen[str], roles: Roles, *, wait: bool = True) -> ProcessId:
        """Binds a worker, and forgets what was heard meanwhile."""
        process = identity(worker.pid)
        self.workers[process] = roles
        self.sweep()
        assert worker.pid in self.actor.watched.watches
        if wait:
            self.caught_up()
        self.events.take()
        self.woken.clear()
        self.host.written.clear()
        return process

    def caught_up(self) -> None:
        """Returns once everything that has happened until now was heard."""
        # Events keep their order: once the end of an awaited process has come through, all before it have.
        with StandIn() as last:
            self.events.interest((), {last.pid})
            wait_for(lambda: last.pid in self.events._kin)
        wait_for(lambda: last.pid not in self.events._family)


def wait_for(done: Callable[[], bool], seconds: float = 20.0) -> None:
    """For what another thread does."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"nothing for {seconds:.0f} seconds"
        time.sleep(0.002)


@contextmanager
def hearing(*, receive_bytes: int | None = None, keeps_names: bool = False) -> Iterator[Hearing]:
    """On this machine. No pass comes by itself. With `keeps_names` passes rely on what is heard of names."""
    host = CountingHost()
    actor = Actor(ROOT / "proc", host)
    size = {} if receive_bytes is None else {"receive_bytes": receive_bytes}
    events = Events(
        partial(ProcEvents.listen, **size),
        ProcFs(ROOT),
        host,
        actor.watched,
        comms=actor.comms if keeps_names else None,
    )
    ears = Hearing(actor, events, host)
    events.wake = ears.woken.set
    with events:
        wait_for(lambda: events.up)
        yield ears
    assert not actor.watched.watches
