"""What tests of the HTTP listeners share: addresses of this machine, and a client that says what it got."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from typing import Protocol

from agent.telemetry.listener import Listener

LOOPBACK = "127.0.0.1"


class Listens(Protocol):
    listener: Listener


def wait_for(reached: Callable[[], bool], seconds: float = 10.0) -> None:
    """Until it is so; fails when it does not become so."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def port_of(server: Listens | Listener) -> int:
    """The port, once it is listened on."""
    listener = server if isinstance(server, Listener) else server.listener
    wait_for(lambda: listener.port() is not None)
    port = listener.port()
    assert port is not None
    return port


def ask(
    port: int, path: str, method: str = "GET", host: str = LOOPBACK, headers: dict[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of one request; fails after three seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=3)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def raw(port: int, request: bytes) -> bytes:
    """Everything that is answered to these bytes, until the server closes the connection."""
    with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer
