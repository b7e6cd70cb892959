"""Events of processes from the kernel: the netlink process connector (Documentation/driver-api/connector.rst), by a
plain socket.

Facts of Linux that this relies on:

* A socket hears of every process of the host, or of none. Of none without an error where the listener is in a PID
  namespace or user namespace of its own; with ECONNREFUSED in a network namespace other than the initial one, whose
  sockets alone the connector has; with EPERM without CAP_NET_ADMIN (before Linux 6.6).
* Events come in the order in which things happened, each as a datagram of its own.
* When the socket's buffer is full what comes is dropped: ENOBUFS is said once, and everything else is dropped, too,
  without a word, until the socket was read empty (netlink_overrun, NETLINK_S_CONGESTED).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final

from agent.model.reason import Reason, Refused
from agent.node.netns import socket_in
from agent.node.proc_messages import (
    COMM,
    NONE,
    Event,
    comm_of,
    kinds_filter,
    one,
    parse,
    request,
)

_NETLINK_CONNECTOR: Final = 11
_GROUP: Final = 1
"""CN_IDX_PROC as a bit mask of groups."""
_SO_ATTACH_FILTER: Final = 26
_SO_RCVBUFFORCE: Final = 33

RECEIVE_BYTES: Final = 8 << 20
"""Asked for; the kernel doubles it. An event takes less than a kilobyte of it: room for a burst of 16,000."""
PROOF_SECONDS: Final = 2.0
"""How long an event of one's own may take to arrive at the start. It takes a tenth of a millisecond mostly."""
_MOST: Final = 512
"""Events that are taken at once."""
_PR_SET_NAME: Final = 15


@dataclass(frozen=True, slots=True)
class Batch:
    """What was there to be read."""

    events: list[Event]
    lost: bool
    """Others came and were dropped, or may have been."""


class ProcEvents:
    """A socket on which events arrive. One thread waits, takes and closes; any may interrupt."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray(4096)
        self._lost = False
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(self._alarm, select.POLLIN)
        self._open = True
        self._guard = threading.Lock()

    @classmethod
    def listen(
        cls, namespace: str | None = None, *, receive_bytes: int = RECEIVE_BYTES, proof_seconds: float = PROOF_SECONDS
    ) -> ProcEvents:
        """Begins to listen, and proves by an event of this process's own that events arrive.

        `namespace` is a file that stands for the host's network namespace (``/proc/1/ns/net``), where the socket is
        made if this thread's own is another. Refused(EventsUnavailable) with the cause where there are none to be had.
        """
        events: ProcEvents | None = None
        try:
            events = cls._asked(namespace, receive_bytes)
            events._prove(proof_seconds)
        except BaseException as error:
            if events is not None:
                events.close()
            if isinstance(error, OSError):
                raise Refused(Reason.EVENTS_UNAVAILABLE, _why(error)) from error
            raise
        return events

    @classmethod
    def _asked(cls, namespace: str | None, receive_bytes: int) -> ProcEvents:
        """A listener in this network namespace or, where that is the wrong one, in the other."""
        family, kind = socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            return cls._begun(socket.socket(family, kind, _NETLINK_CONNECTOR), receive_bytes)
        except OSError as error:
            # EPERM: in a user namespace that has a network namespace of its own, or without the right in either.
            if namespace is None or error.errno not in (errno.ECONNREFUSED, errno.EPERM):
                raise
            try:
                there = socket_in(namespace, family, kind, _NETLINK_CONNECTOR)
            except OSError as other:
                message = f"{_why(error)} ({namespace}: {other.strerror})"
                raise Refused(Reason.EVENTS_UNAVAILABLE, message) from other
        return cls._begun(there, receive_bytes)

    @classmethod
    def _begun(cls, connection: socket.socket, receive_bytes: int) -> ProcEvents:
        try:
            try:
                connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
            except PermissionError:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            _attach(connection, kinds_filter())
            connection.bind((0, _GROUP))
            connection.send(request(listen=True))
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    def wait(self, seconds: float | None) -> None:
        """Returns when there is something to read, after `interrupt`, or after that time (None: without end)."""
        for descriptor, _ in self._poll.poll(None if seconds is None else max(0.0, seconds * 1000)):
            if descriptor == self._alarm:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._alarm)

    def interrupt(self) -> None:
        """Ends a `wait` under way, or the next one. Safe from any thread, and after `close`."""
        with self._guard:
            if self._open:
                os.eventfd_write(self._alarm, 1)

    def take(self, most: int = _MOST) -> Batch:
        """The events that are there, at most so many. Never waits. OSError when the socket is of no use any more."""
        events: list[Event] = []
        receive, buffer = self._socket.recvfrom_into, self._buffer
        try:
            while len(events) < most:
                size, sender = receive(buffer)
                if sender[0]:
                    continue  # another process's: the kernel's port is 0
                event = one(buffer, size)
                if event is not None:
                    events.append(event)
                else:
                    events += parse(memoryview(buffer)[:size])
        except BlockingIOError:
            # Only now does the kernel queue again: until here something may have been dropped.
            lost, self._lost = self._lost, False
            return Batch(events, lost)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._lost = True
        return Batch(events, self._lost)

    def close(self) -> None:
        """Ends listening. Before Linux 6.6 the kernel goes on making events for nobody unless it is told."""
        with self._guard:
            if not self._open:
                return
            self._open = False
            with contextlib.suppress(OSError):
                self._socket.send(request(listen=False))
            self._socket.close()
            os.close(self._alarm)

    def _prove(self, seconds: float) -> None:
        """Names a thread and waits for the event of that."""
        name = f"cpubind-{secrets.token_hex(3)}".encode()
        own = os.getpid()
        thread = threading.Thread(target=_call_this_thread, args=(name,), daemon=True)
        thread.start()
        end = time.monotonic() + seconds
        refusal = errno.ETIMEDOUT
        while (left := end - time.monotonic()) > 0:
            self.wait(left)
            for what, _, pid, tgid, rest in self.take().events:
                if what == COMM and tgid == own and comm_of(rest) == name:
                    thread.join()
                    return
                if what == NONE and pid:
                    refusal = pid  # the answer to somebody's LISTEN: an errno, where a pid is in the others
        raise OSError(refusal, os.strerror(refusal))


def _call_this_thread(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


class _Program(ctypes.Structure):
    """``struct sock_fprog`` (linux/filter.h)."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _attach(connection: socket.socket, program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    fprog = _Program(len(program) // 8, ctypes.addressof(code))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(fprog))


def _why(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "this is not the host's network namespace: hostNetwork or CAP_SYS_ADMIN is needed"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "the kernel refuses them: CAP_NET_ADMIN is needed"
    if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
        return "this kernel has no process connector (CONFIG_PROC_EVENTS)"
    if error.errno == errno.ETIMEDOUT:
        return "none arrives: not the host's PID namespace (hostPID), or a kernel without CONFIG_PROC_EVENTS"
    return f"the process connector: {error.strerror or error}"
