"""What can go wrong between an agent and an API server: a proxy that does it when it is told to.

It ends TLS with a certificate of its own, passes requests on with their token, and streams watches line by line. It
listens on 127.0.0.1 and talks to nobody but the one server.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
from aiohttp import web
from yarl import URL

from tests.cluster.background import Background, free_port
from tests.cluster.certificates import HOST, Certificates
from tests.cluster.cluster import NAMESPACE, Cluster, Request
from tests.cluster.fake.rbac import asked, is_true
from tests.cluster.fake.status import expired, failure
from tests.cluster.manners import EVENT, Manner, misbehave
from tests.cluster.service_account import write_service_account
from tests.cluster.tls_server import TlsServer

Object = dict[str, Any]
Body = Object | str | bytes

GONE: Object = {"type": "ERROR", "object": expired(1, 2)}
"""The line by which a server says in a watch that its version is too old."""

_OF_THE_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding"}
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class _Fault:
    """What to do with requests that match; `times` more of them."""

    method: str
    path: re.Pattern[str]
    watch: bool | None
    times: float
    code: int = 0
    """0: the server's own answer, cut in the middle, or sent in that manner."""
    body: Body = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    manner: Manner | None = None

    def takes(self, request: web.BaseRequest, *, watching: bool) -> bool:
        return (
            self.times > 0
            and self.method in ("", request.method)
            and self.path.search(request.path) is not None
            and self.watch in (None, watching)
        )


@dataclass(slots=True, eq=False)
class _Stream:
    """An open watch."""

    path: str
    response: web.StreamResponse
    silent: bool = False


class FaultProxy:
    """Up as soon as it is made; `close` it. `heal` ends whatever it was told to do wrong."""

    host = HOST

    def __init__(self, cluster: Cluster) -> None:
        self.port = free_port()
        self._cluster = cluster
        self._certificates = Certificates()
        self.ca = self._certificates.ca
        self._trust = ssl.create_default_context(cadata=cluster.ca)
        self._background = Background("fault proxy")
        self._server = TlsServer(self._handle, self.port, self._certificates.for_server())
        self._session: aiohttp.ClientSession | None = None
        self._faults: list[_Fault] = []
        self._streams: set[_Stream] = set()
        self._seen: list[Request] = []
        self._delay = 0.0
        self._hangs = False
        self._background.run(self._begin())

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._background.run(self._end())
        self._background.close()

    def service_account_dir(self, folder: Path) -> Path:
        """As the cluster's, with the CA by which this proxy is known."""
        return write_service_account(folder, token=self._cluster.token, ca=self.ca, namespace=NAMESPACE)

    def rotate_token(self, folder: Path) -> str:
        token = self._cluster.new_token()
        self.service_account_dir(folder)
        return token

    def change_ca(self) -> None:
        """Another CA vouches for it from now on. `service_account_dir` writes that one; before that nobody knows it."""
        self._certificates = Certificates()
        self.ca = self._certificates.ca
        self._background.run(self._server.exchange(self._certificates.for_server()))

    # Connections

    def refuse(self) -> None:
        """Open connections are cut, new ones refused, as if the server were gone."""
        self._background.run(self._server.stop())

    def cut(self) -> int:
        """Cuts all open connections once; how many there were."""
        return self._background.run(self._server.cut())

    def hang(self, at: Literal["request", "handshake"] = "request") -> None:
        """From now on requests get no answer, and open watches say nothing more, not even that they ended.

        With `handshake` open connections are cut, and new ones get no further than TCP.
        """
        self._background.run(self._hang(at))

    def delay(self, seconds: float) -> None:
        """Every answer waits for so long."""
        self._delay = seconds

    def heal(self) -> None:
        """All as before for new requests. What hangs already hangs on, as after a lost peer; `cut` ends that."""
        self._background.run(self._heal())

    # Answers

    def answer(
        self,
        code: int,
        body: Body | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        method: str = "",
        path: str = "",
        watch: bool | None = None,
        times: float = 1,
    ) -> None:
        """The next requests that match are not passed on but answered so; `times` of them (`math.inf` until `heal`).

        `path` is a regular expression that is found somewhere in the path. The body is a Status for this code unless
        one is given: an object as JSON, anything else as it is.
        """
        wanted = failure(code, _REASONS.get(code, ""), f"answered by the fault proxy: {code}") if body is None else body
        self._add(_Fault(method, re.compile(path), watch, times, code, wanted, headers or {}, content_type))

    def truncate(self, *, method: str = "", path: str = "", watch: bool | None = None, times: float = 1) -> None:
        """The next answers that match are the first half of what the server says: JSON that ends in the middle."""
        self._add(_Fault(method, re.compile(path), watch, times))

    def mishandle(
        self, manner: Manner, *, method: str = "", path: str = "", watch: bool | None = None, times: float = 1
    ) -> None:
        """The next requests that match get no whole answer, but what the manner says."""
        self._add(_Fault(method, re.compile(path), watch, times, manner=manner))

    def inject(self, line: Body, path: str = "") -> int:
        """Writes a line into all open watches whose path matches; how many these were."""
        return self._background.run(self._inject(_bytes(line).rstrip(b"\n") + b"\n", re.compile(path)))

    # What is seen

    def streams(self, path: str = "") -> int:
        """How many watches are open."""
        return self._background.call(lambda: sum(re.search(path, one.path) is not None for one in self._streams))

    @property
    def seen(self) -> list[Request]:
        """Every request that came here, answered by whomever; the code is 0 while there is no answer."""
        return self._background.call(lambda: list(self._seen))

    def _add(self, fault: _Fault) -> None:
        self._background.call(lambda: self._faults.append(fault))

    async def _begin(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        await self._server.start()

    async def _end(self) -> None:
        await self._server.stop()
        if self._session is not None:
            await self._session.close()

    async def _hang(self, at: str) -> None:
        self._hangs = True
        for stream in self._streams:
            stream.silent = True
        if at == "handshake":
            await self._server.deafen()

    async def _heal(self) -> None:
        self._hangs, self._delay = False, 0.0
        self._faults.clear()
        await self._server.release()

    async def _inject(self, line: bytes, path: re.Pattern[str]) -> int:
        matching = [one for one in self._streams if path.search(one.path) and not one.silent]
        for stream in matching:
            await stream.response.write(line)
        return len(matching)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        query: dict[str, str] = {}
        for key, value in request.rel_url.query.items():
            query.setdefault(key, value)
        verb = asked(request.method, request.path, query).verb
        watching = is_true(query.get("watch"))
        index = len(self._seen)
        self._seen.append(Request(verb, request.path, query, "", 0, time.time()))
        if self._hangs:
            await asyncio.Event().wait()
        if self._delay:
            await asyncio.sleep(self._delay)
        fault = next((one for one in self._faults if one.takes(request, watching=watching)), None)
        if fault is not None:
            fault.times -= 1
        if fault is not None and fault.code:
            response: web.StreamResponse = web.Response(
                status=fault.code,
                body=_bytes(fault.body),
                content_type=fault.content_type,
                headers=fault.headers,
            )
            self._told(index, fault.code)
            return response
        manner = fault.manner if fault is not None else None
        mislabelled = manner is Manner.MISLABELLED
        if manner is not None and not mislabelled and (watching or not manner.asks):
            return await misbehave(manner, request, 200, {"Content-Type": "application/json"}, EVENT)
        try:
            return await self._forward(request, index, watching=watching, fault=fault)
        except (aiohttp.ClientError, ConnectionError):
            # As the server did to us.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _forward(
        self, request: web.BaseRequest, index: int, *, watching: bool, fault: _Fault | None
    ) -> web.StreamResponse:
        manner = fault.manner if fault is not None else None
        halved = fault is not None and manner is None
        assert self._session is not None
        url = URL(f"https://{self._cluster.host}:{self._cluster.port}{request.raw_path}", encoded=True)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _OF_THE_HOP}
        body = await request.read()
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=body or None,
            allow_redirects=False,
            skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
        ) as answer:
            self._told(index, answer.status)
            passed = {key: value for key, value in answer.headers.items() if key.lower() not in _OF_THE_HOP}
            if watching and answer.status == 200:
                if manner is Manner.MISLABELLED:
                    passed["Content-Type"] = "text/plain"
                return await self._stream(request, answer, passed, halved=halved)
            content = await answer.read()
            if manner is not None:
                return await misbehave(manner, request, answer.status, passed, content)
            content = content[: len(content) // 2] if halved else content
            return web.Response(status=answer.status, body=content, headers=passed)

    async def _stream(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, headers: Mapping[str, str], *, halved: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Stream(request.path, response)
        self._streams.add(stream)
        try:
            rest = b""
            async for part in answer.content.iter_any():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if halved:
                        await response.write(line[: len(line) // 2])
                        await response.write_eof()
                        return response
                    if not stream.silent:
                        await response.write(line + b"\n")
            if stream.silent:
                await asyncio.Event().wait()
            await response.write_eof()
        finally:
            self._streams.discard(stream)
        return response

    def _told(self, index: int, code: int) -> None:
        one = self._seen[index]
        self._seen[index] = Request(one.verb, one.path, one.query, one.user, code, one.time)


def _bytes(body: Body) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
