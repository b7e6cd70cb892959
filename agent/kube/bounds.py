"""What an answer of the API server may take, whatever sends it: so many bytes, and so long.

The timeouts of aiohttp and urllib3 are not enough. Those of urllib3 count anew with each byte that comes, so that one
byte in ten seconds is an answer for ever; and neither of them minds how much comes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import urllib3

MAX_ANSWER = 32 << 20
"""Bytes. The pods of a full node are some megabytes; 110 of them with as much in annotations as Kubernetes allows are
28 MiB."""
MAX_LINE = 16 << 20
"""Bytes of one event of a watch. etcd takes objects of 1.5 MiB."""
SILENT_SECONDS = 70.0
"""In a watch in which one bookmark came the next one is due a minute later (Kubernetes 1.19 and newer). That one comes
is not sure: the API server sends none as long as nothing of the resource has changed since it came up."""
_BOOKMARK = b'{"type":"BOOKMARK"'
"""The beginning of one. What else is in the same piece of the stream may hide it: there is the next one."""


class TooLargeError(OSError):
    """An answer that goes on and on."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit >> 20} MiB came")


class BoundedContent:
    """The content of aiohttp's answers, as far as it is read here and by kopf."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self.lines = 0
        """How many were read to their end."""
        self.ended_at: float | None = None
        """When nobody read on, as it had come to its end or broke off, or was not wanted any more; monotonic."""
        self.patience: float | None = None
        """Seconds without the end of a line, after which `iter_chunked` awaits nothing more; None: no limit."""
        self.given_up = False
        """Whether that was its end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self) -> bytes:
        """All of it."""
        parts, size = [], 0
        async for part in self._content.iter_any():
            size += len(part)
            if size > MAX_ANSWER:
                raise _too_large(MAX_ANSWER)
            parts.append(part)
        return b"".join(parts)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As it comes; of lines, none of which may be too long. TimeoutError where no end of one came for too long."""
        line, heard = 0, asyncio.get_running_loop().time()
        parts = aiter(self._content.iter_chunked(size))
        try:
            while (part := await self._next(parts, heard)) is not None:
                end, begin = part.find(b"\n"), part.rfind(b"\n")
                line += len(part) if end < 0 else end
                if line > MAX_LINE:
                    raise _too_large(MAX_LINE)
                if begin >= 0:
                    line = len(part) - begin - 1
                    self.lines += part.count(b"\n")
                    heard = asyncio.get_running_loop().time()
                if part.startswith(_BOOKMARK):
                    self.patience = SILENT_SECONDS
                yield part
        finally:
            self.ended_at = time.monotonic()

    async def _next(self, parts: AsyncIterator[bytes], heard: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(None if self.patience is None else heard + self.patience) as limit:
                return await anext(parts, None)
        finally:
            self.given_up = limit.expired()


def _too_large(limit: int) -> aiohttp.ClientPayloadError:
    error = aiohttp.ClientPayloadError()
    error.__cause__ = TooLargeError(limit)
    return error


class Limits:
    """What is left of the time and the bytes that one answer may take; for one request at a time."""

    def __init__(self) -> None:
        self._until = 0.0
        self._bytes = 0

    def begin(self, seconds: float) -> None:
        """Of the next request."""
        self._until, self._bytes = time.monotonic() + seconds, MAX_ANSWER

    def seconds(self) -> float:
        """TimeoutError where none are left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def take(self, count: int) -> None:
        """TooLargeError where so many bytes are not left."""
        self._bytes -= count
        if self._bytes < 0:
            raise TooLargeError(MAX_ANSWER)


class BoundedPool(urllib3.PoolManager):
    """Connections whose answers keep to `limits`. No redirect is followed, since the token is for this server; nothing
    is unpacked, since nothing packed was asked for, and a bomb is small until then."""

    def __init__(self, trust: ssl.SSLContext, limits: Limits) -> None:
        trust.sslsocket_class = _bounded_sockets(limits)
        super().__init__(ssl_context=trust, cert_reqs="CERT_REQUIRED", retries=urllib3.Retry(0))

    def urlopen(self, method: str, url: str, redirect: bool = True, **how: Any) -> urllib3.BaseHTTPResponse:  # type: ignore[override]
        del redirect
        return super().urlopen(method, url, redirect=False, **{**how, "decode_content": False})


def _bounded_sockets(limits: Limits) -> type[ssl.SSLSocket]:
    class Bounded(ssl.SSLSocket):
        """Everything that is read of an answer is read by this one call: its head, too."""

        def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
            self.settimeout(limits.seconds())
            count = super().recv_into(buffer, nbytes, flags)
            limits.take(count)
            return count

    return Bounded
