"""Programs by which the kernel drops the events of processes that nobody wants, before they wake anybody.

Classic BPF (Documentation/networking/filter.rst): a short program that is run for each datagram of a socket and returns
how many bytes of it are kept, none to drop it. `agent.node.proc_messages` has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

from agent.node.proc_messages import COMM, EXEC, EXIT, FORK, NONE

WANTED: Final = (NONE, FORK, EXEC, COMM, EXIT)
"""Not wanted: UID, GID, SID, PTRACE, COREDUMP."""

MOST_NEAR: Final = 128
MOST_FAMILY: Final = 128
MOST_QUIET: Final = 64
"""Longer lists would be more than one jump can pass (255 instructions), and more than older kernels give a socket to
keep programs in (net.core.optmem_max, 20 KiB)."""

_WHAT: Final = 36
_PID: Final = 52
_TGID: Final = 56
"""Of a FORK: the parent's."""
_CHILD: Final = 60
_CHILD_TGID: Final = 64

_INSTRUCTION: Final = struct.Struct("=HBBI")
"""``struct sock_filter`` (linux/filter.h): code, how many instructions to jump if true, if false, and k."""

_LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS: a word of the datagram, as if it were in network order."""
_TO_X: Final = 0x07
"""BPF_MISC | BPF_TAX"""
_EQUAL: Final = 0x15
"""BPF_JMP | BPF_JEQ | BPF_K"""
_EQUAL_X: Final = 0x1D
"""BPF_JMP | BPF_JEQ | BPF_X"""
_RETURN: Final = 0x06
"""BPF_RET | BPF_K"""

_JUMP: Final = 255
"""Instructions that one conditional jump can pass."""

_Code: TypeAlias = list[bytes]

_DROP: Final = _INSTRUCTION.pack(_RETURN, 0, 0, 0)
_KEEP: Final = _INSTRUCTION.pack(_RETURN, 0, 0, 0xFFFFFFFF)


def all_processes() -> bytes:
    """The wanted kinds, of whichever process."""
    return b"".join([_load(_WHAT), *_choose(WANTED, found=_KEEP, otherwise=_DROP)])


def none_at_all() -> bytes:
    """Nothing."""
    return _DROP


def near(pids: Collection[int]) -> bytes:
    """Everything of these processes but what they fork, and the kernel's answers. `all_processes` where they are too
    many.

    A child has its maker's mask and name, so that most are where they belong: `far` tells of them soon enough, and a
    worker that forks all the time wakes nobody each time.
    """
    if len(pids) > MOST_NEAR:
        return all_processes()
    own = [_load(_TGID), *_choose(pids, found=_KEEP, otherwise=_DROP)]
    # The parent of a thread is its process's: a thread is known by the process that it belongs to.
    born = [_load(_CHILD_TGID), *_choose(pids, found=_KEEP, otherwise=_DROP)]
    return b"".join(
        [_load(_WHAT), *_case(FORK, born), *_choose((NONE,), found=_KEEP), *_case_of((EXEC, COMM, EXIT), own)]
    )


def far(pids: Collection[int], family: Collection[int], quiet: Collection[int]) -> bytes:
    """What is worth knowing of all but these processes: threads that are born, but for those in processes of `quiet`,
    and of those of `family` what they fork and what programs they become. Besides, what these processes fork, and what
    processes end at all.

    Where the family is too large everybody counts as of it. Nothing where `pids` are too many for `near`, which then
    hears everything.
    """
    if len(pids) > MOST_NEAR:
        return none_at_all()
    kin = sorted(set(family).difference(pids))
    relatives = [_KEEP] if len(kin) > MOST_FAMILY else [_load(_TGID), *_choose(kin, found=_KEEP, otherwise=_DROP)]
    makers = [*kin, *pids]
    forked = [_KEEP] if len(makers) > _JUMP else [_load(_TGID), *_choose(makers, found=_KEEP, otherwise=_DROP)]
    thread = [*_choose([*pids, *sorted(set(quiet).difference(pids))[:MOST_QUIET]], found=_DROP), _KEEP]
    born = [_load(_CHILD), _instruction(_TO_X), _load(_CHILD_TGID), *_if_x(forked, thread)]
    # A thread that ends is its process when its own id is the process's.
    ended = [_load(_PID), _instruction(_TO_X), _load(_TGID), *_if_x([_KEEP], [_DROP])]
    return b"".join([_load(_WHAT), *_case(FORK, born), *_case(EXIT, ended), *_case(EXEC, relatives), _DROP])


def _instruction(code: int, k: int = 0, *, true: int = 0, false: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, true, false, k)


def _load(at: int) -> bytes:
    return _instruction(_LOAD, at)


def _as_loaded(value: int) -> int:
    return int.from_bytes(struct.pack("=I", value & 0xFFFFFFFF), "big")


def _choose(values: Iterable[int], *, found: bytes, otherwise: bytes | None = None) -> _Code:
    """Returns `found` where what was loaded is one of them; else returns `otherwise`, or goes on after this."""
    listed: Sequence[int] = sorted(values)
    code = [_instruction(_EQUAL, _as_loaded(value), true=len(listed) - place) for place, value in enumerate(listed)]
    if otherwise is not None:
        return [*code, otherwise, found]
    return [*code, _jump(1), found]


def _jump(over: int) -> bytes:
    return _instruction(0x05, over)  # BPF_JMP | BPF_JA


def _case(value: int, then: _Code) -> _Code:
    """`then`, which returns, where this was loaded; else goes on after it."""
    return [_instruction(_EQUAL, _as_loaded(value), true=1), _jump(len(then)), *then]


def _case_of(values: Sequence[int], then: _Code) -> _Code:
    """`then`, which returns, where one of them was loaded; else drops."""
    code = [_instruction(_EQUAL, _as_loaded(value), true=len(values) - place) for place, value in enumerate(values)]
    return [*code, _DROP, *then]


def _if_x(then: _Code, otherwise: _Code) -> _Code:
    """`then` where what was loaded is X, else `otherwise`. Both return."""
    return [_instruction(_EQUAL_X, true=1), _jump(len(then)), *then, *otherwise]
