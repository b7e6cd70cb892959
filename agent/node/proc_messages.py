"""Messages of the process connector, as the kernel lays them out. Pure: bytes in, events out.

A datagram is one message or several, each a ``struct nlmsghdr`` (linux/netlink.h), a ``struct cn_msg``
(linux/connector.h) and a ``struct proc_event`` (linux/cn_proc.h), in the byte order of the machine::

    0   u32 length of the message, this header included      nlmsghdr
    4   u16 type (NLMSG_DONE)  u16 flags  u32 seq  u32 port
    16  u32 idx (CN_IDX_PROC)  u32 val (CN_VAL_PROC)         cn_msg
    24  u32 seq  u32 ack  u16 length of what follows  u16 flags
    36  u32 what  u32 cpu  u64 nanoseconds of CLOCK_MONOTONIC    proc_event
    52  24 bytes by what:
        NONE  u32 errno: the answer to LISTEN
        FORK  s32 parent_pid parent_tgid child_pid child_tgid
        EXEC  s32 process_pid process_tgid
        COMM  s32 process_pid process_tgid  char comm[16]
        EXIT  s32 process_pid process_tgid  u32 exit_code exit_signal

A "pid" there is a thread's id and a "tgid" a process's. The parent of a thread that is born is its process's parent,
not the thread that made it (kernel/fork.c: CLONE_THREAD shares real_parent); the parent of a process is the thread that
forked it. All are numbers of the initial PID namespace.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

CN_IDX_PROC: Final = 1
CN_VAL_PROC: Final = 1
NLMSG_DONE: Final = 3

NONE: Final = 0
FORK: Final = 0x1
EXEC: Final = 0x2
COMM: Final = 0x200
EXIT: Final = 0x80000000

Event: TypeAlias = tuple[int, int, int, int, bytes]
"""(what, nanoseconds of CLOCK_MONOTONIC, pid, tgid, the other 16 bytes). A plain tuple: on a busy host there are
thousands a second that concern nobody."""

_HEADER: Final = struct.Struct("=IHHII")
_CN_MSG: Final = struct.Struct("=IIIIHH")
_EVENT: Final = struct.Struct("=I4xQii16s")
_AT: Final = _HEADER.size + _CN_MSG.size
"""Where the event begins."""
MESSAGE_BYTES: Final = _AT + _EVENT.size
"""Of the only form that a kernel since 3.2 sends."""

_HEAD: Final = struct.pack("=IH", MESSAGE_BYTES, NLMSG_DONE)
_ID: Final = struct.pack("=II", CN_IDX_PROC, CN_VAL_PROC)
_SIZE: Final = struct.pack("=H", _EVENT.size)
_PAIR: Final = struct.Struct("=ii")

_LISTEN, _IGNORE = 1, 2


def parse(data: bytes | bytearray | memoryview) -> list[Event]:
    """The events of one datagram. What is no message of the process connector, or too short for one, is left out:
    whatever `data` is, nothing is raised."""
    return list(_events(data))


def _events(data: bytes | bytearray | memoryview) -> Iterator[Event]:
    at = 0
    while at + _AT <= len(data):
        length, _, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return  # it could not be told where the next one begins
        idx, val, _, _, size, _ = _CN_MSG.unpack_from(data, at + _HEADER.size)
        end = at + length
        whole = end <= len(data) and length >= _AT + size and size >= _EVENT.size
        if whole and (idx, val) == (CN_IDX_PROC, CN_VAL_PROC):
            yield _EVENT.unpack_from(data, at + _AT)
        at += (length + 3) & ~3  # NLMSG_ALIGN


def one(buffer: bytearray, size: int) -> Event | None:
    """The event of a datagram of `size` bytes that is one message of the usual form, else None: what `parse` finds,
    faster."""
    if size != MESSAGE_BYTES or buffer[:6] != _HEAD or buffer[16:24] != _ID or buffer[32:34] != _SIZE:
        return None
    return _EVENT.unpack_from(buffer, _AT)


def child_of(rest: bytes) -> tuple[int, int]:
    """Thread id and process id of the child, of a FORK. It is a thread where they differ."""
    return _PAIR.unpack_from(rest)


def comm_of(rest: bytes) -> bytes:
    """The name, of a COMM: at most 15 bytes, any but NUL."""
    return rest.partition(b"\0")[0]


def request(*, listen: bool) -> bytes:
    """What tells the kernel to begin, or that one who listened ends. (``enum proc_cn_mcast_op``, 4 bytes: every kernel
    understands this form; since 6.6 there is a longer one, with a filter.)"""
    op = struct.pack("=I", _LISTEN if listen else _IGNORE)
    cn_msg = _CN_MSG.pack(CN_IDX_PROC, CN_VAL_PROC, 0, 0, len(op), 0)
    return _HEADER.pack(_AT + len(op), NLMSG_DONE, 0, 0, 0) + cn_msg + op
