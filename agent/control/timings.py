"""How long binding takes, for whoever exports it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from agent.model.figures import FAST_SECONDS, PASS_SECONDS, START_SECONDS, WORKER_ROLES, Distribution
from agent.model.spec import Role
from agent.model.workload import ProcessId

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def uptime() -> float:
    """Seconds since boot as start times of processes count them: those in which the machine slept, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Timings:
    """Of what the loop does. `uptime` is as above."""

    def __init__(self, uptime: Callable[[], float] = uptime) -> None:
        self._uptime = uptime
        self._begun = uptime()
        self.bind_seconds = Distribution(PASS_SECONDS)
        """Of each pass over the threads of one worker in which one was written."""
        self.start_to_bound = Distribution(START_SECONDS)
        """From a worker's start, by /proc, to the end of the pass that first bound it."""

    def held_back(self) -> None:
        """The mode is that nobody is bound just now: who runs by now waits for people, and not for the agent."""
        self._begun = self._uptime()

    def bound(self, process: ProcessId) -> None:
        """A worker was bound for the first time. One that is older than this run of the agent waited for nobody."""
        started = process.start_time / _TICKS
        if started >= self._begun:
            self.start_to_bound.observe(max(0.0, self._uptime() - started))


class Pinned:
    """Of what is put in place as soon as the kernel tells of it. One thread writes."""

    def __init__(self) -> None:
        self.seconds = Distribution(FAST_SECONDS)
        """From the kernel's event to the mask set."""
        self.roles: dict[Role, int] = dict.fromkeys(WORKER_ROLES, 0)
        """Threads of workers, by role."""
        self.children = 0
        """Processes that workers made on CPUs that are set apart."""
