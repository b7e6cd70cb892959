"""Ways of answering that are none: what a fault proxy does with a connection instead of sending an answer down it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus

from aiohttp import web

DRIP_SECONDS = 0.1
BLOCK = b" " * (1 << 16)
"""White space is how any JSON may begin: nobody can tell from it that there is no end."""
EVENT = b'{"type": "MODIFIED", "object": {"metadata": {"annotations": {"x": "' + b"x" * 4000
"""What a watch sends that is on its way, and never complete."""


class Manner(StrEnum):
    """What becomes of a request; where an answer begins, the server has done what it was asked for."""

    RESET = "reset before the answer"
    SILENCE = "silence"
    RESET_MIDWAY = "reset within the answer"
    SILENCE_MIDWAY = "silence within the answer"
    SHORT = "fewer bytes than announced"
    SLOW = "a byte at a time"
    SLOW_HEAD = "a byte at a time from the first on"
    ENDLESS = "no end"
    MISLABELLED = "another content type"

    @property
    def asks(self) -> bool:
        """Whether the server is asked, and its answer mishandled."""
        return self not in (Manner.RESET, Manner.SILENCE, Manner.ENDLESS)


async def misbehave(
    manner: Manner, request: web.BaseRequest, status: int, headers: Mapping[str, str], body: bytes
) -> web.StreamResponse:
    """Returns what is to be sent, where that is whole; else it waits until the client is gone."""
    if manner is Manner.MISLABELLED:
        return web.Response(status=status, body=body, headers={**headers, "Content-Type": "text/plain"})
    transport = request.transport
    if transport is None:
        return web.Response()
    head, half = _head(status, headers, len(body)), body[: len(body) // 2]
    match manner:
        case Manner.RESET:
            await _reset(transport)
        case Manner.RESET_MIDWAY:
            transport.write(head + half)
            await asyncio.sleep(0.05)  # what was not sent yet would go with the connection
            await _reset(transport)
        case Manner.SHORT:
            transport.write(head + half)
            transport.close()
        case Manner.SILENCE_MIDWAY:
            transport.write(head + half)
        case Manner.SLOW:
            transport.write(head)
            await _drip(transport, body)
        case Manner.SLOW_HEAD:
            await _drip(transport, head + body)
        case Manner.ENDLESS:
            await _flood(request)
        case Manner.SILENCE:
            pass
    await asyncio.Event().wait()
    return web.Response()


def _head(status: int, headers: Mapping[str, str], length: int) -> bytes:
    said = {**headers, "Content-Length": str(length)}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{key}: {value}" for key, value in said.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _reset(transport: asyncio.Transport) -> None:
    """Ends the connection with an RST, without a goodbye by TLS or TCP."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    await asyncio.sleep(0)


async def _drip(transport: asyncio.Transport, data: bytes) -> None:
    for k in range(len(data)):
        if transport.is_closing():
            return
        transport.write(data[k : k + 1])
        await asyncio.sleep(DRIP_SECONDS)


async def _flood(request: web.BaseRequest) -> None:
    """As much as the client takes."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await response.write(BLOCK)
        await asyncio.sleep(0)  # a write to who takes all at once, or is gone, does not wait
