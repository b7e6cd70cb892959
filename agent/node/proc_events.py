"""Events of processes from the kernel: the netlink process connector (Documentation/driver-api/connector.rst), by a
plain socket.

Facts of Linux that this relies on:

* A socket hears of every process of the host, as far as its filter lets it, or of none. Of none without an error where
  the listener is in a PID or user namespace of its own; with ECONNREFUSED in a network namespace other than the initial
  one, whose sockets alone the connector has; with EPERM without CAP_NET_ADMIN (before Linux 6.6).
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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused
from agent.node import proc_filter
from agent.node.files import join
from agent.node.netns import socket_in
from agent.node.proc_messages import COMM, NONE, Event, comm_of, one, parse, request

_NETLINK_CONNECTOR: Final = 11
_GROUP: Final = 1
"""CN_IDX_PROC as a bit mask of groups."""
_SO_ATTACH_FILTER: Final = 26
_SO_RCVBUFFORCE: Final = 33
_PR_SET_NAME: Final = 15

RECEIVE_BYTES: Final = 8 << 20
"""Asked for; the kernel doubles it. An event takes less than a kilobyte of it: room for a burst of 16,000."""
PROOF_SECONDS: Final = 2.0
"""How long an event of one's own may take to arrive at the start. It takes a tenth of a millisecond mostly."""
REST_SECONDS: Final = 0.1
"""Between two looks at what other processes do: to be woken for each event costs many times what reading it does."""
_MOST: Final = 512
"""Events that are taken at once."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was there to be read."""

    events: list[Event]
    lost: bool
    """Others came and were dropped, or may have been."""
    others: list[Event] = field(default_factory=list)
    """Those of processes that nobody is near to, up to REST_SECONDS old."""
    others_lost: bool = False


class _Ear:
    """One socket."""

    def __init__(self, connection: socket.socket, receive_bytes: int) -> None:
        self.socket = connection
        self._buffer = bytearray(4096)
        self._lost = False
        self._program = b""
        try:
            connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
        except PermissionError:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)

    def begin(self) -> None:
        self.socket.bind((0, _GROUP))
        self.socket.send(request(listen=True))

    def filter(self, program: bytes) -> None:
        """Lets pass what the program keeps, from now on."""
        if program == self._program:
            return
        code = ctypes.create_string_buffer(program, len(program))
        fprog = _Program(len(program) // 8, ctypes.addressof(code))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(fprog))
        self._program = program

    def take(self, most: int) -> tuple[list[Event], bool]:
        """The events that are there, at most of so many datagrams, and whether any were lost."""
        events: list[Event] = []
        receive, buffer = self.socket.recvfrom_into, self._buffer
        try:
            for _ in range(most):
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
            return events, lost
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._lost = True
        return events, self._lost

    def close(self) -> None:
        """Before Linux 6.6 the kernel goes on making events for nobody unless it is told."""
        with contextlib.suppress(OSError):
            self.socket.send(request(listen=False))
        self.socket.close()


class _Program(ctypes.Structure):
    """``struct sock_fprog`` (linux/filter.h)."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class ProcEvents:
    """Two sockets on which events arrive: of processes that somebody is near to at once, of others now and then.

    One thread waits, takes, focuses and closes; any may interrupt.
    """

    def __init__(self, near: _Ear, far: _Ear) -> None:
        self._near, self._far = near, far
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        for descriptor in (near.socket.fileno(), far.socket.fileno(), self._alarm):
            self._poll.register(descriptor, select.POLLIN)
        self._far_ready = False
        self._rest_until: float | None = None
        """Until then nobody looks at the far socket; None while it is waited for."""
        self._open = True
        self._guard = threading.Lock()

    @classmethod
    def listen(
        cls, *namespaces: str, receive_bytes: int = RECEIVE_BYTES, proof_seconds: float = PROOF_SECONDS
    ) -> ProcEvents:
        """Begins to listen, and proves by an event of this process's own that events arrive. Nothing is near, at first.

        `namespaces` are files that stand for the host's network namespace, where the sockets are made if this thread's
        own is another: the first that leads there. Refused(EventsUnavailable) with the cause where there are none to be
        had.
        """
        ears: list[_Ear] = []
        try:
            ears.append(near := _begun(namespaces, receive_bytes, proc_filter.near((os.getpid(),))))
            ears.append(far := _begun(namespaces, receive_bytes, proc_filter.none_at_all()))
            _prove(near, proof_seconds)
            events = cls(near, far)
            events.focus((), (), ())
        except BaseException as error:
            for ear in ears:
                ear.close()
            if isinstance(error, OSError):
                raise Refused(Reason.EVENTS_UNAVAILABLE, _why(error)) from error
            raise
        return events

    @classmethod
    def of_host(cls, root: Path) -> ProcEvents:
        """`listen`, for the host whose /proc is below `root`."""
        proc = f"{join(root)}/proc"
        # Process 2 is kthreadd, whose network namespace is the initial one on every host.
        return cls.listen(f"{proc}/1/ns/net", f"{proc}/2/ns/net")

    def focus(self, near: Collection[int], family: Collection[int], quiet: Collection[int]) -> None:
        """Which processes somebody is near to: of these all is heard at once, but what they fork. Of others: threads
        that are born, except in those of `quiet`, and ends of processes; of those of `family` also execs. And of both
        what they fork.

        All that happens after this returned is heard by it.
        """
        try:
            self._near.filter(proc_filter.near(near))
            self._far.filter(proc_filter.far(near, family, quiet))
        except OSError:
            # No memory for programs of that size: all is heard at once then.
            self._near.filter(proc_filter.all_processes())
            self._far.filter(proc_filter.none_at_all())

    def wait(self, seconds: float | None) -> None:
        """Returns when there is something to take, after `interrupt`, or after that time (None: without end)."""
        if self._rest_until is not None:
            left = max(0.0, self._rest_until - time.monotonic())
            seconds = left if seconds is None else min(seconds, left)
        for descriptor, _ in self._poll.poll(None if seconds is None else max(0.0, seconds * 1000)):
            if descriptor == self._alarm:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._alarm)
            elif descriptor == self._far.socket.fileno():
                self._far_ready = True

    def interrupt(self) -> None:
        """Ends a `wait` under way, or the next one. Safe from any thread, and after `close`."""
        with self._guard:
            if self._open:
                os.eventfd_write(self._alarm, 1)

    def take(self) -> Batch:
        """What is there. Never waits. OSError when a socket is of no use any more."""
        events, lost = self._near.take(_MOST)
        if not self._far_ready and (self._rest_until is None or time.monotonic() < self._rest_until):
            return Batch(events, lost)
        others, others_lost = self._far.take(_MOST)
        self._far_ready = len(others) >= _MOST
        if others or others_lost:
            if self._rest_until is None:
                self._poll.unregister(self._far.socket)
            self._rest_until = time.monotonic() + (0.0 if self._far_ready else REST_SECONDS)
        elif self._rest_until is not None:
            self._poll.register(self._far.socket, select.POLLIN)
            self._rest_until = None
        return Batch(events, lost, others, others_lost)

    def close(self) -> None:
        """Ends listening."""
        with self._guard:
            if not self._open:
                return
            self._open = False
            for ear in (self._near, self._far):
                ear.close()
            os.close(self._alarm)


def _begun(namespaces: Sequence[str], receive_bytes: int, program: bytes) -> _Ear:
    """A listener with this filter, in this network namespace or, where that is the wrong one, the first that is not."""
    family, kind = socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        return _begin(socket.socket(family, kind, _NETLINK_CONNECTOR), receive_bytes, program)
    except OSError as error:
        # EPERM: in a user namespace that has a network namespace of its own, or without the right in either.
        if error.errno not in (errno.ECONNREFUSED, errno.EPERM):
            raise
        why = _why(error)
    tried = []
    for namespace in namespaces:
        try:
            return _begin(socket_in(namespace, family, kind, _NETLINK_CONNECTOR), receive_bytes, program)
        except OSError as error:
            tried.append(f"{namespace}: {os.strerror(error.errno or 0)}")
    raise Refused(Reason.EVENTS_UNAVAILABLE, f"{why} ({'; '.join(tried)})" if tried else why)


def _begin(connection: socket.socket, receive_bytes: int, program: bytes) -> _Ear:
    try:
        ear = _Ear(connection, receive_bytes)
        ear.filter(program)
        ear.begin()
    except BaseException:
        connection.close()
        raise
    return ear


def _prove(ear: _Ear, seconds: float) -> None:
    """Names a thread and waits for the event of that."""
    name = f"cpubind-{secrets.token_hex(3)}".encode()
    poll = select.poll()
    poll.register(ear.socket, select.POLLIN)
    end = time.monotonic() + seconds
    refusal, again = errno.ETIMEDOUT, True
    while (left := end - time.monotonic()) > 0:
        if again:
            threading.Thread(target=_name_this_thread, args=(name,), daemon=True).start()
        poll.poll(left * 1000)
        events, again = ear.take(_MOST)
        for what, _, pid, tgid, rest in events:
            if what == COMM and tgid == os.getpid() and comm_of(rest) == name:
                return
            if what == NONE and pid:
                refusal = pid  # the answer to somebody's LISTEN: an errno, where a pid is in the others
    raise OSError(refusal, os.strerror(refusal))


def _name_this_thread(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def _why(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "this is not the host's network namespace: hostNetwork is needed, or CAP_SYS_ADMIN and CAP_SYS_PTRACE"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "the kernel refuses them: CAP_NET_ADMIN is needed"
    if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
        return "this kernel has no process connector (CONFIG_PROC_EVENTS)"
    if error.errno == errno.ETIMEDOUT:
        return "none arrives: not the host's PID namespace (hostPID), or a kernel without CONFIG_PROC_EVENTS"
    return f"the process connector: {error.strerror or error}"
