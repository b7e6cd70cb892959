"""The metrics of the agent that this process runs, from before there is one until the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from agent.control.exposed import Exposed
from agent.control.loop import Agent
from agent.model.address import parse_address
from agent.model.reason import Problem
from agent.settings import Settings
from agent.telemetry.metrics import Metrics, MetricsServer
from agent.telemetry.tls import TlsFiles, TlsPaths


class Serving:
    """Serves them as the settings say, be it nowhere, until `close`."""

    def __init__(self, settings: Settings) -> None:
        self._exposed: Exposed | None = None
        self._watch_ages: Callable[[], Mapping[str, float]] = dict
        self.metrics = Metrics(
            lambda: self._exposed.document() if self._exposed else {},
            lambda: self._exposed.figures() if self._exposed else None,
            watch_ages=self._ages,
            per_pod=settings.metrics_per_pod,
        )
        address = parse_address(settings.metrics_address)
        certificate, key = settings.metrics_tls_cert, settings.metrics_tls_key
        paths = TlsPaths(certificate, key, settings.metrics_tls_client_ca) if certificate and key else None
        self.server = MetricsServer(address, self.metrics, tls=TlsFiles(paths) if paths else None) if address else None

    def adopt(self, agent: Agent, watch_ages: Callable[[], Mapping[str, float]] = dict) -> None:
        """From now on there is an agent."""
        self._exposed, self._watch_ages = Exposed(agent), watch_ages

    def _ages(self) -> Mapping[str, float]:
        return self._watch_ages()

    def turned(self) -> None:
        """A pass has ended. One that failed does not count: what is exported is that of the last one that did not."""
        if self._exposed is None or not self._exposed.failing:
            self.metrics.swept(time.time())

    def problems(self) -> list[Problem]:
        """Why nobody is served."""
        problem = self.server.problem() if self.server is not None else None
        return [] if problem is None else [problem]

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
