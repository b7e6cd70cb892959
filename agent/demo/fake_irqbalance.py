"""A fake irqbalance: a process on paper that listens on a real socket, as version 1.9 does.

What it imitates was read in its irqbalance.c: one message a connection, of which it reads 500 bytes (newer versions
255 bytes of a list); only uid 0 is heard; whoever sent more is reset; a list takes the place of the one before.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from types import TracebackType

from agent.demo.virtual import VirtualNode
from agent.model.cpuset import CpuSet
from agent.model.workload import ProcessId

READS = 500
_PREFIX = b"settings ban irqs "


class FakeIrqbalance:
    """The irqbalance of a virtual node; a context manager, after which it has ended.

    `list_bytes` is what a newer version reads of a list. `raw` is answered to everything, whatever it is.
    """

    def __init__(
        self,
        node: VirtualNode,
        *,
        banned: tuple[int, ...] = (),
        list_bytes: int | None = None,
        arguments: tuple[str, ...] = (),
        raw: bytes | None = None,
        cgroup: str = "/system.slice/irqbalance.service",
        listens: bool = True,
    ) -> None:
        self.node = node
        self.banned = list(banned)
        self.messages: list[bytes] = []
        """What it was sent, but for questions."""
        self.heard = 0
        """How many messages it had."""
        self.raw = raw
        self._list_bytes = list_bytes
        if not (node.root / f"sys/fs/cgroup{cgroup}").is_dir():
            node.kernel.cgroups.create(cgroup, cpuset=False)
        task = node.kernel.start_process("irqbalance", cgroup=cgroup)
        self.process = ProcessId(task.tid, task.start_time)
        command = "\0".join(("/usr/sbin/irqbalance", "--foreground", *arguments, ""))
        (node.root / f"proc/{task.tid}/cmdline").write_text(command)
        self._socket: socket.socket | None = None
        if listens:
            self._listen()

    def balance(self) -> None:
        """Places every interrupt that is not banned where it thinks best."""
        for number, irq in enumerate(self.node.irqs):
            if irq.number not in self.banned:
                self.node.set_irq(irq.number, CpuSet([number % len(self.node.kernel.online)]))

    def stop(self) -> None:
        """It ends."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._socket.close()
            self._path.unlink()
        self.node.kernel.end(self.process.pid)

    def __enter__(self) -> FakeIrqbalance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.pid in self.node.kernel.tasks:
            self.stop()

    def _listen(self) -> None:
        folder = self.node.root / "run/irqbalance"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"irqbalance{self.process.pid}.sock"
        self._socket = listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The path of a socket has at most 107 bytes.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        listening.bind(f"/proc/self/fd/{descriptor}/{self._path.name}")
        os.close(descriptor)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listening.listen(1)
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                message, extra, _, _ = connection.recvmsg(READS, socket.CMSG_SPACE(12))
                user = next((struct.unpack("3i", data)[1] for _, _, data in extra), None)
                self.heard += bool(message)
                if user == 0 and (answer := self._answer(message)):
                    connection.sendall(answer)

    def _answer(self, message: bytes) -> bytes:
        if self.raw is not None:
            return self.raw
        if message == b"setup":
            irqs = "".join(f"IRQ {irq} LOAD 0 DIFF 0 CLASS 0 " for irq in self.banned)
            return f"SLEEP 10 {irqs}BANNED 00000000".encode()
        if message.startswith(_PREFIX):
            self.messages.append(message)
            text = message[len(_PREFIX) :][: self._list_bytes].decode()
            self.banned = [] if text.startswith("NONE") else [int(word) for word in text.split()]
        return b""
