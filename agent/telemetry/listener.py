"""A small HTTP listener for probes and scrapes: GET and HEAD, plain text, in threads of its own.

It may face a whole network, so nobody can hold it up: a connection has a few seconds for its one request and answer,
there are only so many at a time, and the oldest of whoever has most gives way to a new one. Whoever opens more than a
few dozen a second is turned away, and what that costs is bounded as well. So a pod that does its worst keeps kubelet's
probes from their answers only from kubelet's own address. A port that somebody else has is a `Problem`
and not the end of the agent: it is tried again until it is free.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO, Final

from agent.model.address import Address
from agent.model.reason import Problem, Reason
from agent.telemetry.tls import TlsFiles
from agent.telemetry.turnstile import Turnstile

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 3.0
DEADLINE_SECONDS: Final = 5.0
"""From accepting a connection to the last byte of its answer. A scrape takes milliseconds."""
MAX_CONNECTIONS: Final = 32
"""Beyond these one is cut, the oldest of the address that has most. Twice as many, with the cut ones still ending, are
never passed."""
HEAD_BYTES: Final = 16 << 10
"""Of a request and its headers. Those of a browser have some hundreds; http.server alone would take 6 MiB of each
client."""
BACKLOG: Final = 4096
"""Connections that wait to be accepted: what the kernel allows by default (net.core.somaxconn). Where it is full a
client waits for a second, at least, until it tries again."""

_REFUSING_SECONDS: Final = 0.005
_PAUSE_SECONDS: Final = 0.02
"""After so long of nothing but turning away the listener rests: a fifth of a core at most goes into that."""

_POLL_SECONDS: Final = 0.5
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""struct linger: closed without waiting for anything."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered. Bodies end in a newline."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further ones."""


@dataclass(frozen=True, slots=True)
class Request:
    """A GET or HEAD. `path` is without its query, percent-encoded as it came; header names are lower case, and
    values one line."""

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[Request], Response]
"""Called from several threads at once."""


def text(status: HTTPStatus, line: str) -> Response:
    return Response(status, f"{line}\n".encode())


NOT_FOUND: Final = text(HTTPStatus.NOT_FOUND, "not found")


class Listener:
    """Serves `answer` on an address from its construction to `close`, as soon as the address can be had."""

    def __init__(
        self,
        name: str,
        address: Address,
        answer: Answer,
        *,
        retry: float = RETRY_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        tls: TlsFiles | None = None,
    ) -> None:
        """`name` says in messages what is served, such as ``metrics``. `retry` and `deadline` are seconds. With `tls`
        nothing is answered in the clear."""
        self.name, self.address = name, address
        self._answer, self._retry, self._deadline, self._tls = answer, retry, deadline, tls
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._problem: Problem | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cpubind-{name}", daemon=True)
        self._thread.start()

    def problem(self) -> Problem | None:
        """Why nobody is served at the moment; None when it is, and before the first try."""
        return self._problem

    def port(self) -> int | None:
        """The port that is listened on, which matters where the address asks for port 0; None while there is none."""
        server = self._server
        return server.server_address[1] if server is not None else None

    def close(self) -> None:
        """Ends serving; returns within a second. May be called twice."""
        with self._lock:
            self._closed.set()
            server = self._server
        if server is not None:
            server.shutdown()
        self._thread.join(1.0)  # a host name may still be looked up: that can't be ended, and need not be

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._tls is not None and (problem := self._no_certificate()) is not None:
                    self._problem = problem
                    self._closed.wait(self._retry)
                    continue
                server = _Server(_listen(self.address), self._answer, self._deadline, self._tls)
                with self._lock:
                    if self._closed.is_set():
                        server.server_close()
                        return
                    self._server, self._problem = server, None
                log.info("serving %s on %s%s", self.name, self.address, " with TLS" if self._tls else "")
                try:
                    server.serve_forever(_POLL_SECONDS)
                finally:
                    self._server = None
                    server.server_close()
            except OSError as error:  # socket.gaierror is one
                said = f"{self.name} cannot listen on {self.address}: {_said(error)}"
                self._problem = Problem(Reason.PORT_IN_USE, said)
                self._closed.wait(self._retry)

    def _no_certificate(self) -> Problem | None:
        """Before anything is listened on: a port that answers nobody would look like one that does."""
        assert self._tls is not None
        try:
            self._tls.context()
        except OSError as error:
            return Problem(Reason.TLS_UNUSABLE, f"{self.name} cannot be served with TLS: {_said(error)}")
        return None


def _listen(address: Address) -> socket.socket:
    if not address.host:
        try:
            where6 = ("::", address.port)
            return socket.create_server(where6, family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            # The kernel of a node may have no IPv6 at all.
            if error.errno not in _NO_IPV6:
                raise
            return socket.create_server(("0.0.0.0", address.port), backlog=BACKLOG)  # noqa: S104 - what ":PORT" asks for
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    return socket.create_server(where, family=family, backlog=BACKLOG)


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no certificate with its key"
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # create_server has the address once more in its own words


@dataclass(slots=True)
class _Connection:
    peer: str
    until: float
    """When it is cut, on the monotonic clock."""
    cut: bool = False


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection, and an eye on how many there are and how long they take."""

    daemon_threads = True
    server_address: tuple[Any, ...]

    def __init__(self, listening: socket.socket, answer: Answer, deadline: float, tls: TlsFiles | None = None) -> None:
        # Not TCPServer's own, which makes a socket of one family, and HTTPServer asks DNS for the name of its address.
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket = listening
        self.socket.setblocking(False)
        self.answer = answer
        self._deadline = deadline
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        """Oldest first."""
        self._turnstile = Turnstile()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, peer = self._accept()
        connection.settimeout(self._deadline)
        if self._tls is not None:
            try:
                # Nothing is said yet: a peer that is slow to shake hands holds up its own thread alone.
                connection = self._tls.context().wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            except (OSError, ValueError) as error:
                connection.close()
                raise OSError(str(error)) from error
        return connection, peer

    def _accept(self) -> tuple[socket.socket, Any]:
        """The next connection of somebody who may have one. OSError where none waits, or it is time to rest."""
        until = time.monotonic() + _REFUSING_SECONDS
        while True:
            try:
                connection, peer = self.socket.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    time.sleep(0.1)  # the connection stays in the queue: without a pause this is a busy loop
                raise
            if self._turnstile.admits(peer[0]):
                return connection, peer
            with contextlib.suppress(OSError):
                # A reset leaves nothing behind; whoever closes first keeps the connection for a minute else.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            connection.close()
            if time.monotonic() > until:
                time.sleep(_PAUSE_SECONDS)
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection, which is made where somebody has to give way."""
        with self._lock:
            if len(self._open) >= 2 * MAX_CONNECTIONS:
                return False
            living = [(socket_, each) for socket_, each in self._open.items() if not each.cut]
            if len(living) >= MAX_CONNECTIONS:
                peers = Counter(each.peer for _, each in living)
                peers[client_address[0]] += 1
                most = max(peers.values())
                old, each = next(entry for entry in living if peers[entry[1].peer] == most)
                each.cut = True
                _cut(old)
            self._open[request] = _Connection(client_address[0], time.monotonic() + self._deadline)
        return True

    def service_actions(self) -> None:
        """Called twice a second. A timeout of the socket alone would let a byte now and then keep it for ever."""
        now = time.monotonic()
        with self._lock:
            for connection, each in self._open.items():
                if each.until > now:
                    break
                each.cut = True
                _cut(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            super().shutdown_request(request)

    def shutdown(self) -> None:
        _cut(self.socket)  # ends the wait for connections now, not at its next timeout
        super().shutdown()

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._open:
                _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A peer that goes away, or was cut, is no fault of ours; socketserver would print a traceback."""
        error = sys.exception()
        if isinstance(error, OSError):
            log.debug("a connection to %s ended early: %s", self.server_address, error)
        else:
            log.error("a request to %s failed", self.server_address, exc_info=True)


def _cut(connection: socket.socket) -> None:
    """Wakes the thread that waits for it; that thread closes it."""
    with contextlib.suppress(OSError):  # the peer may have gone already
        # Not SSLSocket's own, which takes TLS off a connection that another thread speaks it on.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Head(io.RawIOBase):
    """The beginning of what a client sends, line by line, which is all that is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = HEAD_BYTES
        self._begun = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """As of a file; where there is too much, as http.server takes a line that is too long."""
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        first, self._begun = not self._begun, True
        if self._left >= 0:
            return line
        if first:
            return bytes(size or 0)
        raise LineTooLong("headers")

    def close(self) -> None:
        self._file.close()
        super().close()


class _Handler(BaseHTTPRequestHandler):
    """One request a connection: HTTP/1.0, which all probes and Prometheus speak."""

    server: _Server
    server_version = "cpubind"
    sys_version = ""

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()
        self.rfile: BinaryIO = _Head(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        headers = {name.lower(): " ".join(value.split()) for name, value in self.headers.items()}
        try:
            response = self.server.answer(Request(self.path.partition("?")[0], headers))
        except Exception:
            log.exception("no answer for a request to %s", self.server.server_address)
            response = text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        self._send(response)

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What http.server itself refuses, in one line and without repeating anything that the client sent."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.request_version = "HTTP/1.0"  # what can't be read counts as HTTP/0.9, whose answers have no status
        self._send(text(status, status.phrase.lower()))

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        """Nothing: probes come every few seconds."""
