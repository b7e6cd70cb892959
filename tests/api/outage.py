"""An agent whose API server is behind a proxy that can fail, and what is to hold meanwhile."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.demo.workload import Worker
from agent.kube import api, bounds, telling, traffic, watch
from tests.api.rig import KubeRig
from tests.cluster.cluster import Cluster
from tests.cluster.fault_proxy import FaultProxy

MEDDLED_THREADS = 3


class _Records(logging.Handler):
    """What the agent's log says, from the making of this to its `close`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []
        self._logger = logging.getLogger("agent")
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        super().close()


class Outage(KubeRig):
    """A rig that talks to its API server through `proxy`."""

    def __init__(self, cluster: Cluster, folder: Path, proxy: FaultProxy) -> None:
        super().__init__(cluster, folder, "a2")
        self.proxy = proxy
        self._log = _Records()
        self.address = (proxy.host, proxy.port)
        self.mount_service_account()

    def __enter__(self) -> Outage:
        return self

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._log.close()

    def mount_service_account(self) -> None:
        """kubelet writes the token and the CA as they are now."""
        self.service_account = self.proxy.service_account_dir(self.folder / "behind-the-proxy")

    def start_with(self, *npus: int) -> list[Worker]:
        """Starts the agent, with a worker in a pod of its own on each of these NPUs; until all is bound and told."""
        self.start()
        workers = [self.run_pod(f"llm-{npu}", [npu])[1][0] for npu in npus]
        self.until_bound(workers)
        self.until_quiet()
        self.until(lambda: len(self.events("CpuBound")) == len(workers), "it is told")
        return workers

    def until_quiet(self) -> None:
        """Until both watches are open, nothing is wrong any more, and nothing is left to be written."""
        self.until(self.follows, "both watches are open", 30)
        self.settle(0.4)

    def follows(self) -> bool:
        assert self.agent is not None
        wrong = [one.problem() for one in self.agent.watches]
        return self.proxy.streams() == 2 and wrong == [None, None]

    def keeps(self, worker: Worker, threads: int = MEDDLED_THREADS) -> None:
        """Threads of a worker get their whole cpuset, as kernels before 6.2 do whenever that is written, and which is
        never too often: these are put back, and no other is touched."""
        before, whole = self.writes(), worker.node.kubelet.shared
        worker.drift(whole, threads)
        self.until(lambda: all(task.mask != whole for task in worker.threads), "they are put back")
        assert self.writes() == before + threads

    def lines(self, level: int = logging.WARNING) -> list[str]:
        """What the log says so far."""
        return [one.getMessage() for one in list(self._log.records) if one.levelno >= level]

    def hear(self, part: str, do: Callable[[], object], level: int = logging.WARNING) -> str:
        """The line with these words that the log has after `do`, once it is there."""
        heard = len(self.lines(level))
        do()

        def found() -> str:
            return next((line for line in self.lines(level)[heard:] if part in line), "")

        return self.until(found, f"the log says {part!r}")


def usage() -> tuple[int, int]:
    """Threads and open files of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in seconds and minutes is waited for in tenths."""
    monkeypatch.setattr(traffic, "ANSWER_SECONDS", 0.6)
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.0)
    monkeypatch.setattr(watch, "SERVER_SECONDS", 1)
    monkeypatch.setattr(traffic, "LATE_SECONDS", 0.5)
    monkeypatch.setattr(bounds, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(api, "TIMEOUT", (0.6, 0.6))
    monkeypatch.setattr(telling, "STEADY_SECONDS", 3.0)  # on the agent's clock, which is fast
    monkeypatch.setattr(telling, "LASTING_SECONDS", 15.0)
