"""kubelet's PodResources API: which CPUs and devices it gave to which container.

`v1.PodResourcesLister/List` on a unix socket, asked every few seconds from a thread of its own, since kubelet tells
nobody of changes and may not answer at all. grpc costs 15 MiB and is imported only where there is such a socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from agent.kube.wire import WireError, decode_pod_resources
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import PodResources
from agent.node.files import ABSENT, refusal

log = logging.getLogger(__name__)

SOCKET: Final = "var/lib/kubelet/pod-resources/kubelet.sock"
"""Below the host root."""
INTERVAL_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 2.0
MAX_ANSWER: Final = 16 << 20
"""Bytes; what kubelet's own client takes."""

_METHOD: Final = "/v1.PodResourcesLister/List"
_MAX_SOCKET_PATH: Final = 107
"""Bytes that fit in a sockaddr_un."""
_OPTIONS: Final = (
    # Without it the authority is the socket's path, percent-encoded: no host name, and strict servers refuse it.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", MAX_ANSWER),
    # Shared connections remember failures: a kubelet that comes back would be waited for, up to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


def parse_answer(data: bytes) -> tuple[PodResources, ...]:
    """A ListPodResourcesResponse in protobuf's wire format, ordered, since kubelet's order changes from call to call.

    Refused(KubeletStateUnreadable) when it is damaged.
    """
    try:
        found = decode_pod_resources(data)
    except WireError as error:
        message = f"kubelet's pod-resources answer cannot be read: {error}"
        raise Refused(Reason.KUBELET_STATE_UNREADABLE, message) from None
    resources = [replace(one, devices=tuple(sorted(one.devices))) for one in found]
    return tuple(sorted(resources, key=lambda one: (one.namespace, one.pod, one.container, one.cpus.bits, one.devices)))


class PodResourcesPoll:
    """Asks kubelet from its construction to `stop`, and keeps its last good answer.

    Where there never was a socket, nothing is known and nothing is wrong. Where there was an answer, it stands until
    there is another: a kubelet that is away starts no containers, and its absence is no reason to plan anew.
    """

    def __init__(
        self,
        socket: Path,
        wake: Callable[[], None],
        interval: float = INTERVAL_SECONDS,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """`wake` is called from the polling thread when the answer has changed. Times are seconds."""
        self._socket, self._wake = socket, wake
        self._interval, self._deadline = interval, deadline
        self._lock = threading.Lock()
        self._answer: tuple[PodResources, ...] = ()
        self._problem: Problem | None = None
        self._answered = False
        self._raw: bytes | None = None
        self._channel: Any = None
        self._tried = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpubind-pod-resources", daemon=True)
        self._thread.start()

    def current(self) -> tuple[tuple[PodResources, ...], Problem | None]:
        """The last good answer, empty where there is none, and what is wrong at the moment."""
        with self._lock:
            return self._answer, self._problem

    def wait_first(self, timeout: float) -> bool:
        """Waits until kubelet was asked once, with whatever result; False where that takes more than `timeout` seconds.

        A plan made before would take containers with CPUs of their own for shared ones, for a moment.
        """
        return self._tried.wait(timeout)

    def stop(self) -> None:
        """Ends asking, a call under way included. May be called twice."""
        self._stopped.set()
        if (channel := self._channel) is not None:
            channel.close()
        self._thread.join(self._deadline)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask()
            except Refused as refused:
                self._fail(refused.problem)
            except Exception:  # a fault of our own: what was read last is as good as with kubelet away
                log.exception("asking for pod-resources failed")
                self._fail(Problem(Reason.KUBELET_STATE_UNREADABLE, "kubelet's pod-resources could not be asked for"))
            self._tried.set()
            self._stopped.wait(self._interval)

    def _fail(self, problem: Problem) -> None:
        if not self._stopped.is_set():
            with self._lock:
                self._problem = problem

    def _ask(self) -> None:
        if not _exists(self._socket):
            if self._answered:
                raise Refused(
                    Reason.KUBELET_STATE_UNREADABLE, f"{_shown(self._socket)} is gone; its last answer stands"
                )
            with self._lock:
                self._problem = None
            return
        raw = self._list()
        # Most answers are the same, byte for byte; on a large node that spares most of the work.
        answer = self._answer if raw == self._raw else parse_answer(raw)
        with self._lock:
            changed = answer != self._answer
            self._answer, self._problem, self._answered, self._raw = answer, None, True, raw
        if changed:
            self._wake()

    def _list(self) -> bytes:
        """One call over a connection of its own: 1.6 ms, and a kubelet that was replaced is no special case."""
        try:
            import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - see above
        except ImportError as error:
            message = f"pod-resources cannot be asked for without grpcio: {printable(str(error), 120)}"
            raise Refused(Reason.KUBELET_STATE_UNREADABLE, message) from None
        with _target(self._socket) as target, grpc.insecure_channel(target, options=_OPTIONS) as channel:
            self._channel = channel
            try:
                if self._stopped.is_set():
                    raise Refused(Reason.AGENT_STOPPED, "stopped")
                answer: bytes = channel.unary_unary(_METHOD)(b"", timeout=self._deadline)
            except grpc.RpcError as error:
                raise _refusal(self._socket, error.code().name, error.details()) from None
            except ValueError:  # the channel was closed by `stop`
                raise Refused(Reason.AGENT_STOPPED, "stopped") from None
            finally:
                self._channel = None
            return answer


@contextlib.contextmanager
def _target(socket: Path) -> Iterator[str]:
    """The socket as grpc names it. A path that is too long for the kernel is reached through its open folder."""
    path, folder = os.fsencode(socket.absolute()), None
    try:
        if len(path) > _MAX_SOCKET_PATH:
            try:
                folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise refusal(Reason.KUBELET_STATE_UNREADABLE, socket.parent, error) from None
            path = b"/proc/self/fd/%d/%s" % (folder, os.fsencode(socket.name))
        yield f"unix:{quote(path)}"
    finally:
        if folder is not None:
            os.close(folder)


def _exists(socket: Path) -> bool:
    try:
        socket.stat()
    except OSError as error:
        if error.errno in ABSENT:
            return False
        raise refusal(Reason.KUBELET_STATE_UNREADABLE, socket, error) from None
    return True


def _refusal(socket: Path, code: str, details: object) -> Refused:
    said = str(details)
    what = {
        "DEADLINE_EXCEEDED": "kubelet does not answer in time",
        "UNIMPLEMENTED": "kubelet has no PodResources API v1, which came with Kubernetes 1.20",
        "UNAVAILABLE": f"kubelet cannot be reached: {printable(said.rpartition('error: ')[2], 80)}",
    }.get(code) or f"{code}: {printable(said, 120)}"
    return Refused(Reason.KUBELET_STATE_UNREADABLE, f"{_shown(socket)}: {what}")


def _shown(socket: Path) -> str:
    return printable(str(socket), 120)
