"""A kubelet as far as its PodResources API goes: a real gRPC server on a real socket, whose answers are bytes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

METHOD = "/v1.PodResourcesLister/List"


def varint(value: int) -> bytes:
    """Base 128, lowest first; a negative int64 as its 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def block(field: int, content: bytes | str) -> bytes:
    """A field that is a message, a string or packed numbers."""
    content = content.encode() if isinstance(content, str) else content
    return tag(field, 2) + varint(len(content)) + content


def packed(field: int, *numbers: int) -> bytes:
    return block(field, b"".join(varint(number) for number in numbers))


def unpacked(field: int, *numbers: int) -> bytes:
    return b"".join(tag(field, 0) + varint(number) for number in numbers)


def device(resource: str, *ids: str) -> bytes:
    """ContainerDevices, as a field of ContainerResources."""
    return block(2, block(1, resource) + b"".join(block(2, one) for one in ids))


def container(name: str, *content: bytes) -> bytes:
    """ContainerResources, as a field of PodResources."""
    return block(3, block(1, name) + b"".join(content))


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    """PodResources, as a field of the answer."""
    return block(1, block(1, name) + block(2, namespace) + b"".join(containers))


class PodResourcesServer:
    """Answers List with what `answer` makes; a test puts another one there whenever it likes."""

    def __init__(self, path: Path, answer: bytes = b"", *, method: str = METHOD) -> None:
        self.socket, self.method = path, method
        self.answer: Callable[[Any], bytes] = lambda _context: answer
        self.requests: list[bytes] = []
        self._release = threading.Event()
        self._server: Any = None
        self.start()

    def start(self) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        outer = self

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: Any) -> Any:
                if details.method != outer.method:
                    return None
                return grpc.unary_unary_rpc_method_handler(outer._list)

        server.add_generic_rpc_handlers((Handler(),))
        # The kernel takes 107 bytes, and paths of tests may be longer.
        folder = os.open(self.socket.parent, os.O_PATH)
        try:
            assert server.add_insecure_port(f"unix:/proc/self/fd/{folder}/{self.socket.name}")
            server.start()
        finally:
            os.close(folder)
        self._release.clear()
        self._server = server

    def hang(self) -> None:
        """Takes calls and does not answer them, until it is stopped."""

        def wait(_context: Any) -> bytes:
            self._release.wait(60)
            return b""

        self.answer = wait

    def refuse(self, code: Any, details: str) -> None:
        self.answer = lambda context: context.abort(code, details)

    def stop(self) -> None:
        """As a kubelet that is killed: the socket's file stays."""
        self._release.set()
        self._server.stop(0).wait(10)
        if not self.socket.exists():
            listen(self.socket).close()

    def _list(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        return self.answer(context)


def listen(path: Path, backlog: int = 16) -> socket.socket:
    """A socket there that nobody serves as yet."""
    listening = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        listening.bind(f"/proc/self/fd/{folder}/{path.name}")
        listening.listen(backlog)
    finally:
        os.close(folder)
    return listening
