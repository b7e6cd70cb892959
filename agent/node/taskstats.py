"""The names of many threads with few system calls: taskstats, over generic netlink.

A name from /proc costs opening, reading and closing a file, most of which is the walk to it. The kernel's interface for
accounting (Documentation/accounting/taskstats.rst) tells a thread's name by its number, `ac_comm`, and a message may
hold many requests: each is answered before send(2) returns. It is the same name; those of kernel threads are cut.

It needs CONFIG_TASKSTATS, which distributions have, and CAP_NET_ADMIN in the initial user namespace (GENL_ADMIN_PERM);
any network namespace will do, and numbers are those of this process's PID namespace. Where it is not to be had, or
answers in a way that was not foreseen, names are read from /proc.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from array import array
from collections.abc import Sequence
from threading import Lock, get_native_id
from typing import Final

BATCH: Final = 64
"""Requests in a message. Each answer takes some 1.3 KiB of the socket's buffer, of which there are 208 KiB by default
(net.core.rmem_default); what does not fit would be lost without a word."""

_NETLINK_GENERIC: Final = 16
_REQUEST: Final = 1
"""NLM_F_REQUEST."""
_GETFAMILY: Final = struct.pack("=IHHIIBBHHH12s", 36, 16, _REQUEST, 0, 0, 3, 1, 0, 14, 2, b"TASKSTATS")
"""To GENL_ID_CTRL: CTRL_CMD_GETFAMILY with CTRL_ATTR_FAMILY_NAME (linux/genetlink.h)."""
_FAMILY_ID: Final = 1
"""CTRL_ATTR_FAMILY_ID."""
_ATTRIBUTE: Final = struct.Struct("=HH")

_GET: Final = struct.Struct("=IHHIIBBHHHI")
"""A whole request: its length, family, flags, sequence number, port; TASKSTATS_CMD_GET and the version; the attribute
TASKSTATS_CMD_ATTR_PID with the thread's number."""
_GET_BYTES: Final = 28
_TID_WORD: Final = 6

_ANSWER: Final = struct.Struct("=28sI4s80x16s40x")
"""The beginning of an answer, as long as `_SLOT`: `_HEAD`, the number, the length and type of an attribute,
TASKSTATS_TYPE_STATS with a `struct taskstats`; of this `ac_comm`, whose place is the same in all versions
(linux/taskstats.h)."""
_HEAD: Final = struct.Struct("=4xH2xI10xHHH")
"""Family and sequence number; TASKSTATS_TYPE_AGGR_PID, in which are TASKSTATS_TYPE_PID (its length and type) with the
number, and what follows it."""
_SLOT: Final = 172
_AGGREGATE: Final = 4
_PID: Final = (8, 1)
_STATS: Final = 3


class _Buffer(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct mmsghdr; of the last two members the lower half counts, the rest is padding."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),
        ("received", ctypes.c_size_t),
    )


class TaskStats:
    """Names by tid, from the running kernel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._usable = True
        self._family = 0
        self._sequence = 0

    def names(self, tids: Sequence[int]) -> list[bytes | None] | None:
        """The name of each thread; None for one that is not told, be it that it ended. None instead of the list where
        nothing can be asked. Raises nothing."""
        if not self._usable or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._socket is None:
                self._open()
            names: list[bytes | None] = []
            for first in range(0, len(tids), BATCH):
                names += self._ask(tids[first : first + BATCH])
        except (OSError, ValueError, struct.error):
            # EPERM and ENOENT will not get better, and a kernel that answers otherwise is none to ask.
            self._usable = False
            self._close()
            return None
        else:
            return names
        finally:
            self._lock.release()

    def _open(self) -> None:
        """OSError or ValueError where there is no such thing, or it does not know this thread by its name."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
        self._socket.bind((0, 0))
        self._socket.send(_GETFAMILY)
        self._family = _family(self._socket.recv(8192, socket.MSG_DONTWAIT))
        self._slots = ctypes.create_string_buffer(_SLOT * BATCH)
        start = ctypes.addressof(self._slots)
        self._buffers = (_Buffer * BATCH)(*[_Buffer(start + _SLOT * n, _SLOT) for n in range(BATCH)])
        self._messages = (_Message * BATCH)()
        for message, buffer in zip(self._messages, self._buffers, strict=True):
            message.buffers, message.buffer_count = ctypes.pointer(buffer), 1
        # PyDLL: it waits for nothing, since the answers are there.
        self._receive = ctypes.PyDLL(None, use_errno=True).recvmmsg
        tid = get_native_id()
        with open(f"/proc/self/task/{tid}/comm", "rb") as file:
            name = file.read().removesuffix(b"\n")
        if self._ask([tid]) != [name]:
            raise ValueError("the kernel tells another name")

    def _ask(self, tids: Sequence[int]) -> list[bytes | None]:
        assert self._socket is not None
        self._sequence = sequence = (self._sequence + 1) & 0xFFFFFFFF
        request = _GET.pack(_GET_BYTES, self._family, _REQUEST, sequence, 0, 1, 1, 0, 8, 1, 0)
        words = array("I", request) * len(tids)
        words[_TID_WORD :: _GET_BYTES // 4] = array("I", tids)
        self._socket.send(words)
        answers: list[tuple[bytes, int, bytes, bytes]] = []
        while len(answers) < len(tids):
            received = self._receive(self._socket.fileno(), self._messages, BATCH, socket.MSG_DONTWAIT, None)
            if received <= 0:
                raise OSError(ctypes.get_errno(), "answers are missing")
            answers += _ANSWER.iter_unpack(memoryview(self._slots)[: received * _SLOT])
        heads, threads, tails, comms = zip(*answers, strict=True)
        names = [comm.rstrip(b"\0") for comm in comms]
        # Nearly always all answers are alike but for the number and the name.
        told = {form: self._tells(*form, sequence) for form in set(zip(heads, tails, strict=True))}
        if all(told.values()) and threads == tuple(tids):
            return names
        forms = zip(heads, tails, strict=True)
        found = {tid: name for form, tid, name in zip(forms, threads, names, strict=True) if told[form]}
        return list(map(found.get, tids))

    def _tells(self, head: bytes, tail: bytes, sequence: int) -> bool:
        """Whether this is how an answer with a name looks; ValueError when it is neither that nor an error."""
        kind, number, aggregate, *pid = _HEAD.unpack(head)
        if number != sequence:
            raise ValueError("an answer to another question")
        if kind == self._family and (aggregate != _AGGREGATE or tuple(pid) != _PID or tail[2] != _STATS):
            raise ValueError("an answer of another form")
        return bool(kind == self._family)

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _family(answer: bytes) -> int:
    """The number of the family; ValueError where the answer has none."""
    at = 20
    while at + 4 <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _FAMILY_ID and length >= 6:
            return int.from_bytes(answer[at + 4 : at + 6], "little")
        at += max(4, (length + 3) & ~3)
    raise ValueError("no such family")
