"""Faults of kubelet's pod-resources."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import grpc  # type: ignore[import-untyped]

from agent.kube.pod_resources import MAX_ANSWER
from agent.model.reason import Reason
from tests.faults.table import Row, Side
from tests.kube.podresources_server import PodResourcesServer, block, container, listen, packed, pod

Begin = Callable[[PodResourcesServer], Callable[[], None]]
"""Brings a fault about; what it returns ends it, once kubelet answers as before."""


def _nothing(_kubelet: PodResourcesServer) -> Callable[[], None]:
    return lambda: None


@dataclass(frozen=True, slots=True)
class KubeletRow(Row):
    """A fault of kubelet's, while and before the agent learns from it which containers own CPUs."""

    begin: Begin = _nothing


def _answers(data: bytes) -> Begin:
    def begin(kubelet: PodResourcesServer) -> Callable[[], None]:
        kubelet.answer = lambda _context: data
        return lambda: None

    return begin


def _refuses(code: grpc.StatusCode) -> Begin:
    def begin(kubelet: PodResourcesServer) -> Callable[[], None]:
        kubelet.refuse(code, "no")
        return lambda: None

    return begin


def _hangs(kubelet: PodResourcesServer) -> Callable[[], None]:
    kubelet.hang()

    def end() -> None:
        kubelet.stop()
        kubelet.start()

    return end


def _is_down(kubelet: PodResourcesServer) -> Callable[[], None]:
    kubelet.stop()
    return kubelet.start


def _is_gone(kubelet: PodResourcesServer) -> Callable[[], None]:
    kubelet.stop()
    kubelet.socket.unlink()
    return kubelet.start


def _is_no_socket(kubelet: PodResourcesServer) -> Callable[[], None]:
    kubelet.stop()
    kubelet.socket.unlink()
    kubelet.socket.write_text("")

    def end() -> None:
        kubelet.socket.unlink()
        kubelet.start()

    return end


def _is_another_server(says: bytes | None) -> Begin:
    """Somebody else listens on the socket: takes no connection, or says so much on each."""

    def begin(kubelet: PodResourcesServer) -> Callable[[], None]:
        kubelet.stop()
        kubelet.socket.unlink()
        other = listen(kubelet.socket, backlog=0 if says is None else 16)
        if says is not None:
            _greet(other, says)

        def end() -> None:
            other.close()
            kubelet.socket.unlink(missing_ok=True)
            kubelet.start()

        return end

    return begin


def _greet(listening: socket.socket, says: bytes) -> None:
    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(says)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()


_FAULTS: dict[str, Begin] = {
    "refused": _is_down,
    "socket gone": _is_gone,
    "no socket": _is_no_socket,
    "half-open before the connection": _is_another_server(None),
    "half-open": _hangs,
    "closed at once": _is_another_server(b""),
    "HTTP/1.1": _is_another_server(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "UNIMPLEMENTED": _refuses(grpc.StatusCode.UNIMPLEMENTED),
    "UNAVAILABLE": _refuses(grpc.StatusCode.UNAVAILABLE),
    "INTERNAL": _refuses(grpc.StatusCode.INTERNAL),
    "PERMISSION_DENIED": _refuses(grpc.StatusCode.PERMISSION_DENIED),
    "RESOURCE_EXHAUSTED": _refuses(grpc.StatusCode.RESOURCE_EXHAUSTED),
    "no protobuf": _answers(b"\xff" * 40),
    "protobuf that ends early": _answers(b"\x0a\x7f\x0a"),
    "a name that is no UTF-8": _answers(block(1, block(1, b"\xff"))),
    "a CPU that no host has": _answers(pod("prod", "a", container("b", packed(3, 1 << 40)))),
    "an answer of more than 16 MiB": _answers(block(9, bytes(MAX_ANSWER))),
}

ROWS: tuple[KubeletRow, ...] = tuple(
    KubeletRow(
        Side.API,
        "kubelet's pod-resources, List",
        fault,
        Reason.KUBELET_STATE_UNREADABLE,
        begin=begin,
    )
    for fault, begin in _FAULTS.items()
)
