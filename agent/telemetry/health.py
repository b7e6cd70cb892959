"""Whether the agent lives and is ready, for kubelet's probes: ``/healthz`` and ``/readyz``.

Live says one thing: the loop turns. What the node, npu-smi or the API server do is no reason to restart the agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from agent.model.address import Address
from agent.model.reason import Problem, printable
from agent.telemetry.listener import NOT_FOUND, RETRY_SECONDS, Listener, Request, Response, text

SWEEPS: Final = 3
FLOOR_SECONDS: Final = 15.0
"""Three sweeps of the default length. Who sets shorter ones wants drift to be found sooner; a pass that binds a whole
node, or waits for a slow disk to keep the journal, takes as long as before."""


class Health:
    """What the loop says of itself. All methods are safe from any thread."""

    def __init__(self, sweep_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = max(SWEEPS * sweep_seconds, FLOOR_SECONDS)
        """Seconds without a turn after which the agent counts as dead."""
        self._clock = clock
        self._lock = threading.Lock()
        self._turned_at = clock()
        self._readiness = False, "starting"

    def turned(self) -> None:
        """The loop has come round."""
        now = self._clock()
        with self._lock:
            self._turned_at = now

    def ready(self, said: str) -> None:
        """Topology is read and a plan computed, or found not applicable; `said` tells which."""
        self._set(True, said)

    def not_ready(self, said: str) -> None:
        self._set(False, said)

    def live(self) -> tuple[bool, str]:
        """Whether the loop turned lately, and one line about it."""
        with self._lock:
            ago = self._clock() - self._turned_at
        if ago <= self.limit:
            return True, f"the loop turned {ago:.1f} s ago"
        return False, f"the loop has not turned for {ago:.0f} s, of {self.limit:.0f} s that it may take"

    def readiness(self) -> tuple[bool, str]:
        """Whether there is a plan, and one line about it."""
        with self._lock:
            return self._readiness

    def _set(self, ready: bool, said: str) -> None:
        with self._lock:
            self._readiness = ready, printable(said, 300)


class HealthServer:
    """Serves ``/healthz`` and ``/readyz``: 200 or 503 and one line. A port in use is a problem, not an end."""

    def __init__(
        self,
        address: Address,
        health: Health,
        *,
        page: Callable[[], Response] | None = None,
        retry: float = RETRY_SECONDS,
    ) -> None:
        """Serves until `close`, in threads of its own; tries again every `retry` seconds for an address in use. `page`
        is served as ``/``, for people."""
        self._health, self._page = health, page
        self.listener = Listener("health", address, self._answer, retry=retry)

    def problem(self) -> Problem | None:
        """PortInUse while the address can't be had."""
        return self.listener.problem()

    def close(self) -> None:
        self.listener.close()

    def _answer(self, request: Request) -> Response:
        if request.path == "/healthz":
            good, said = self._health.live()
        elif request.path == "/readyz":
            good, said = self._health.readiness()
        elif request.path == "/" and self._page is not None:
            return self._page()
        else:
            return NOT_FOUND
        return text(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, said)
