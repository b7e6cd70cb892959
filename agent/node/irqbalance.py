"""irqbalance: whether it runs, and which interrupts it leaves alone, asked and told through its socket.

What it is was read in its source (irqbalance.c, versions 1.3 to 1.9 and later) and tried with 1.9.2:

* It does not ignore SIGPIPE: whoever asks and is gone when it comes to answer ends it. It comes to that late while it
  reads /proc/interrupts or places interrupts anew.
* It listens on ``/run/irqbalance/irqbalance<pid>.sock``, before 1.5 and where that folder is missing on an abstract
  address. One message a connection, sent with the credentials of uid 0; it answers and closes.
* ``setup`` is answered by ``SLEEP 10 IRQ 43 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000``: the interrupts named are those
  that it was told to leave alone, by ``--banirq`` or through the socket.
* ``settings ban irqs 43 44`` puts these in place of that list, ``settings ban irqs NONE`` empties it. It then places
  all other interrupts anew, so that it is told nothing that it knows.
* It reads 500 bytes of a message and drops the rest, in the middle of a number as well; newer ones read 255 bytes of
  the list. So one message holds the interrupts of five or of three NPUs, and there is no adding to the list.
"""

from __future__ import annotations

import atexit
import errno
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused, printable
from agent.model.workload import ProcessId
from agent.node.cgroups import CgroupTree
from agent.node.files import join, read_bytes
from agent.node.netns import unix_socket
from agent.node.proc_table import ProcTable
from agent.node.procfs import ProcFs

LIST_BYTES: Final = (500 - len("settings ban irqs "), 255)
"""What a version reads of a list, the larger first."""

_COMM: Final = "irqbalance"
_SECONDS: Final = 3.0
"""For a whole exchange. It answers within milliseconds, unless it is just reading /proc/interrupts."""
_PARTING_SECONDS: Final = 6.0
"""How long this process stays for answers that come late, which would end who gives them: shorter than what kubelet
leaves an agent to end in."""
_MAX_ANSWER: Final = 1 << 18
_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""
_ABSTRACT: Final = ("\0irqbalance{pid}.sock", "\0irqbalance-ui", "\0" * 108)
"""Versions 1.3 and 1.4; newer ones that have no folder; 1.5 to 1.9 that have none, which bind an address of zeros."""

_UNANSWERED: Final[dict[ProcessId, socket.socket]] = {}
"""Those that were asked and have not answered in time: kept, whoever asked, and closed once they have."""


class Irqbalance:
    """The irqbalance of the host below a root folder.

    Only a process of that name that belongs to root and is in no container counts: a pod may call its processes what
    it likes. And only a socket that this very process listens on is talked to (SO_PEERCRED). `stand_in` is the process
    that listens in its place on a virtual node.
    """

    def __init__(self, root: Path, *, stand_in: int | None = None) -> None:
        self.root = root
        self._root = join(root)
        self._proc = ProcFs(root)
        self._table = ProcTable(root)
        self._cgroups = CgroupTree(root)
        self._stand_in = stand_in

    def find(self) -> ProcessId | None:
        """The irqbalance that runs. Reads the name of every process: for once in a while."""
        for pid, stat in self._table.read().items():
            with suppress(Refused):
                if stat.comm == _COMM and (process := self._identity(pid)):
                    return process
        return None

    def lives(self, process: ProcessId) -> bool:
        """Whether one that was found still runs. One that can't be looked at does."""
        with suppress(Refused):
            stat = self._proc.stat(process.pid)
            return stat is not None and stat.start_time == process.start_time
        return True

    def banned_modules(self, process: ProcessId) -> tuple[str, ...]:
        """The values of ``--banmod`` on its command line: it leaves the interrupts of these drivers alone."""
        try:
            content = read_bytes(f"{self._root}/proc/{process.pid}/cmdline", Reason.PROCESS_UNREADABLE)
        except Refused:
            return ()
        arguments = (content or b"").decode("utf-8", "replace").split("\0")
        values = []
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            if argument in ("-m", "--banmod"):
                values.append(following)
            elif argument.startswith("--banmod="):
                values.append(argument.removeprefix("--banmod="))
            elif argument.startswith("-m"):
                values.append(argument.removeprefix("-m"))
        return tuple(value for value in values if value)

    def bans(self, process: ProcessId) -> frozenset[int]:
        """The interrupts that it was told to leave alone. Refused(IrqbalanceActive) where it can't be asked, or its
        answer is none."""
        try:
            answer = self._ask(process, b"setup")
        except OSError as error:
            raise Refused(Reason.IRQBALANCE_ACTIVE, f"irqbalance ({process.pid}): {_said(error)}") from error
        return parse_setup(answer)

    def ban(self, process: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
        """Puts `keep` and as many of `irqs`, the first ones first, in place of its list; returns what it holds then.

        Raises OSError: EMSGSIZE where a version may not have room for `keep`, which is not to be lost, TimeoutError,
        ConnectionRefusedError and the like where it can't be told. Refused(IrqbalanceActive) as `bans` does.
        """
        if set(fitting(keep, (), LIST_BYTES[-1])) != set(keep):
            raise OSError(errno.EMSGSIZE, "its own list is too long to be sent again")
        held: frozenset[int] = frozenset()
        for limit in LIST_BYTES:
            listed = fitting(keep, irqs, limit)
            text = " ".join(map(str, listed)) or "NONE"
            self._ask(process, f"settings ban irqs {text}".encode())
            held = parse_setup(self._ask(process, b"setup"))
            if held == frozenset(listed):
                break
        return held

    def _identity(self, pid: int) -> ProcessId | None:
        status, stat, cgroup = self._proc.status(pid), self._proc.stat(pid), self._cgroups.identity(pid)
        if status is None or stat is None or cgroup is None:
            return None
        return None if status.uid != 0 or cgroup.runtime or cgroup.pod_uid else ProcessId(pid, stat.start_time)

    def _ask(self, process: ProcessId, message: bytes) -> bytes:
        deadline = time.monotonic() + _SECONDS
        if not self.lives(process):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        _take_answers()
        if process in _UNANSWERED:
            raise TimeoutError(errno.ETIMEDOUT, "it has not answered yet")
        connection = self._connect(process.pid, deadline)
        try:
            # uid 0 has to be said: the kernel lets root alone say it.
            sender = _CREDENTIALS.pack(os.getpid(), 0, 0)
            connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, sender)])
            answer = _answer(connection, deadline)
        except TimeoutError:
            _UNANSWERED[process] = connection
            raise
        except BaseException:
            connection.close()
            raise
        connection.close()
        return answer

    def _connect(self, pid: int, deadline: float) -> socket.socket:
        failure = FileNotFoundError(errno.ENOENT, "it has no socket")
        error: OSError = failure
        # A mount of /run/irqbalance goes stale when systemd makes the folder anew: the process's own view does not.
        for folder in (f"{self._root}/run/irqbalance", f"{self._root}/proc/{pid}/root/run/irqbalance"):
            try:
                return self._in_folder(folder, pid, deadline)
            except OSError as said:
                error = error if said.errno == errno.ENOENT else said
        for pattern in _ABSTRACT:
            try:
                connection = unix_socket(f"{self._root}/proc/{pid}/ns/net")
            except OSError as said:
                raise (said if error is failure and said.errno != errno.ENOENT else error) from None
            try:
                return self._connected(connection, pattern.format(pid=pid), pid, deadline)
            except OSError as said:
                # Nobody has that address.
                error = error if said.errno == errno.ECONNREFUSED else said
        raise error

    def _in_folder(self, path: str, pid: int, deadline: float) -> socket.socket:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            own = f"irqbalance{pid}.sock"
            names = [name for name in sorted(os.listdir(folder)) if name.startswith("irqbalance")]  # noqa: PTH208
            names = [name for name in names if name.endswith(".sock") and len(name) < 64]
            error: OSError = FileNotFoundError(errno.ENOENT, "it has no socket")
            for name in sorted(names, key=lambda name: name != own)[:8]:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    # The path of a socket has at most 107 bytes, that of a root folder may have more.
                    return self._connected(connection, f"/proc/self/fd/{folder}/{name}", pid, deadline)
                except OSError as said:
                    error = said
            raise error
        finally:
            os.close(folder)

    def _connected(self, connection: socket.socket, address: str, pid: int, deadline: float) -> socket.socket:
        try:
            connection.settimeout(_left(deadline))
            connection.connect(address)
            size = _CREDENTIALS.size
            peer = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if peer[0] != (pid if self._stand_in is None else self._stand_in) or peer[1] != 0:
                raise PermissionError(errno.EPERM, f"the socket is that of process {peer[0]} of user {peer[1]}")
        except BaseException:
            connection.close()
            raise
        return connection


def fitting(keep: Iterable[int], irqs: Iterable[int], limit: int) -> list[int]:
    """`keep`, then of `irqs` the first that have room with it in a list of `limit` bytes; each once."""
    listed: dict[int, None] = {}
    size = -1
    for irq in (*sorted(keep), *irqs):
        if irq in listed:
            continue
        size += len(str(irq)) + 1
        if size > limit:
            break
        listed[irq] = None
    return list(listed)


def parse_setup(answer: bytes) -> frozenset[int]:
    """The interrupts in an answer to ``setup``. Refused(IrqbalanceActive) when it is none."""
    words = answer.decode("ascii", "replace").split()
    irqs = set()
    if len(words) >= 2 and words[0] == "SLEEP":
        position = 2
        while words[position : position + 1] == ["IRQ"]:
            number = words[position + 1 : position + 2]
            if not number or not number[0].isdecimal() or len(number[0]) > 9:
                break
            irqs.add(int(number[0]))
            position += 8
        if words[position : position + 1] == ["BANNED"]:
            return frozenset(irqs)
    shown = printable(answer[:80].decode("utf-8", "replace"), 60)
    raise Refused(Reason.IRQBALANCE_ACTIVE, f"irqbalance answers {shown!r}, which is nothing that it is known to say")


def _answer(connection: socket.socket, deadline: float) -> bytes:
    answer = b""
    while True:
        connection.settimeout(_left(deadline))
        try:
            chunk = connection.recv(1 << 16)
        except ConnectionResetError:
            return answer  # it closes with bytes of ours unread when the message was longer than it reads
        if not chunk:
            return answer
        answer += chunk
        if len(answer) > _MAX_ANSWER:
            raise OSError(errno.EMSGSIZE, "its answer does not end")


def _take_answers() -> None:
    for asked, waiting in list(_UNANSWERED.items()):
        if _done_with(waiting):
            _UNANSWERED.pop(asked, None)


@atexit.register
def _part() -> None:
    """A command that only asks ends soon after it has given up waiting, and so may the agent."""
    deadline = time.monotonic() + _PARTING_SECONDS
    _take_answers()
    while _UNANSWERED and time.monotonic() < deadline:
        time.sleep(0.02)
        _take_answers()


def _done_with(connection: socket.socket) -> bool:
    """Whether the other side has answered, and closed; then so does this one."""
    connection.settimeout(0)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
    return left


def _said(error: OSError) -> str:
    return printable(error.strerror or str(error) or "it does not answer", 100)
