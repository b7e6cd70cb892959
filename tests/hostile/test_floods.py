"""A pod that floods the agent's ports with connections, as fast as it can, for some seconds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import pytest

from agent.telemetry.turnstile import BURST
from benchmarks.clock import cpu_seconds
from tests.hostile.serving import POD, Serving, probe

LIVENESS_SECONDS = 5.0
"""What the chart gives kubelet's liveness probe, of which six have to fail in a row."""

_FLOOD = """
import socket, sys, time
port, pod, seconds, hold = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
end, count, held = time.monotonic() + seconds, 0, []
while time.monotonic() < end:
    client = socket.socket()
    client.setblocking(False)
    try:
        client.bind((pod, 0))
        client.connect_ex(("127.0.0.1", port))
        count += 1
    except OSError:
        time.sleep(0.001)
    held.append(client)
    if len(held) > hold:
        held.pop(0).close()
print(count)
"""


@pytest.mark.parametrize("hold", [0, 10_000], ids=["opened and closed", "held open"])
def test_probes_are_answered_in_a_flood_and_the_agents_time_is_bounded(server: Serving, hold: int) -> None:
    _many_files()
    flood = subprocess.Popen(
        [sys.executable, "-c", _FLOOD, str(server.port), POD, "5", str(hold)], stdout=subprocess.PIPE, text=True
    )
    time.sleep(1)
    begun, cpu = time.monotonic(), cpu_seconds(server.pid)
    probes = []
    while flood.poll() is None:
        probes.append(probe(server, LIVENESS_SECONDS))
        time.sleep(0.2)
    share = (cpu_seconds(server.pid) - cpu) / (time.monotonic() - begun)
    count = int(flood.communicate()[0])
    print(f"{count} connections; {len(probes)} probes, the slowest {max(probes):.2f} s; {100 * share:.0f} % of a core")
    assert count > 2 * BURST, "no flood"
    assert share < 0.35


def _many_files() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 10_500:
        pytest.skip("needs the right to open 10,500 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 10_500), limit[1]))
    assert os.sysconf("SC_OPEN_MAX") >= 10_500
