"""A listener as the agent has it for kubelet's probes, in a process of its own: ``python -m tests.hostile.serving``.

It prints its port, and serves until its input ends.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from agent.model.address import Address
from agent.telemetry.listener import Listener, text

KUBELET = "127.0.0.1"
POD = "127.0.0.9"

PROBE_SECONDS = 3.0
"""The shortest limit of the chart's probes."""


@dataclass(frozen=True)
class Serving:
    """One that runs."""

    pid: int
    port: int


@contextmanager
def serving() -> Iterator[Serving]:
    """Starts one; ends it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.serving"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield Serving(process.pid, int(process.stdout.readline()))
        finally:
            process.kill()


def probe(server: Serving, limit: float = PROBE_SECONDS) -> float:
    """Seconds until kubelet had its answer."""
    begun = time.monotonic()
    client = http.client.HTTPConnection(KUBELET, server.port, timeout=limit, source_address=(KUBELET, 0))
    with contextlib.closing(client):
        client.request("GET", "/healthz")
        assert client.getresponse().status == HTTPStatus.OK
    return time.monotonic() - begun


def main() -> None:
    listener = Listener("health", Address("0.0.0.0", 0), lambda request: text(HTTPStatus.OK, request.path))
    while listener.port() is None:
        time.sleep(0.01)
    print(listener.port(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
