"""A pod that floods the agent's ports: kubelet's probes are answered in time, and the agent's time and memory bounded.

The pod is another address of the loopback; what it sends is real.
"""

from __future__ import annotations

import contextlib
import socket

from agent.telemetry.listener import MAX_CONNECTIONS
from agent.telemetry.turnstile import ADDRESSES, BURST, PER_SECOND, Turnstile
from benchmarks.clock import rss_mib
from tests.hostile.serving import KUBELET, POD, PROBE_SECONDS, Serving, probe


def connect(server: Serving, address: str) -> socket.socket:
    client = socket.create_connection((KUBELET, server.port), timeout=10, source_address=(address, 0))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def answer(client: socket.socket) -> bytes:
    """All that comes; nothing where the connection was cut."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(4096):
            found += part
    return found


def test_a_probe_under_way_does_not_give_way_to_a_crowd_of_another_address(server: Serving) -> None:
    with contextlib.ExitStack() as stack:
        kubelet = stack.enter_context(connect(server, KUBELET))
        kubelet.sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(4 * MAX_CONNECTIONS):
            stack.enter_context(connect(server, POD)).sendall(b"GET / HTTP/1.1\r\nslow: ")
        kubelet.sendall(b"Host: node\r\n\r\n")
        assert answer(kubelet).startswith(b"HTTP/1.0 200 ")
        assert probe(server) < PROBE_SECONDS


def test_an_address_that_opens_hundreds_is_turned_away_and_nobody_else_is(server: Serving) -> None:
    turned_away = 0
    for _ in range(2 * BURST):
        try:
            with connect(server, POD) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                turned_away += not answer(client)
        except ConnectionError:
            turned_away += 1
    assert turned_away >= BURST // 2
    assert probe(server) < PROBE_SECONDS


def test_a_client_that_sends_headers_without_end_takes_next_to_no_memory(server: Serving) -> None:
    before = rss_mib(server.pid)
    header = b"x: " + 60_000 * b"y" + b"\r\n"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server, POD)) for _ in range(MAX_CONNECTIONS - 1)]
        with contextlib.suppress(ConnectionError, TimeoutError):
            for client in clients:
                client.settimeout(2)
                client.sendall(b"GET / HTTP/1.1\r\n")
        for client in clients:
            with contextlib.suppress(ConnectionError, TimeoutError):
                for _ in range(90):
                    client.sendall(header)
        grown = rss_mib(server.pid) - before
        assert probe(server) < PROBE_SECONDS
    assert grown < 16, f"{grown:.0f} MiB"


def test_a_turnstile_lets_an_address_in_again_as_time_goes_by() -> None:
    now = 0.0
    turnstile = Turnstile(lambda: now)
    assert [turnstile.admits("a") for _ in range(BURST + 1)] == [True] * BURST + [False]
    assert turnstile.admits("b")
    now += 3 / PER_SECOND
    assert [turnstile.admits("a") for _ in range(4)] == [True, True, True, False]
    now += 1e6
    assert [turnstile.admits("a") for _ in range(BURST + 1)] == [True] * BURST + [False]


def test_a_turnstile_remembers_a_bounded_number_of_addresses() -> None:
    turnstile = Turnstile(lambda: 0.0)
    for _ in range(BURST + 1):
        turnstile.admits("busy")
    for number in range(10 * ADDRESSES):
        turnstile.admits(str(number))
        assert not turnstile.admits("busy"), "it was forgotten while it went on"
    assert len(turnstile._left) <= ADDRESSES
