"""A node on which nothing happens, for an agent that hears of processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.control.scanning import Cause
from agent.demo.workload import Worker
from tests.control.hearsay import Hearsay
from tests.control.pods import by_annotation
from tests.control.rig import Rig


class Quiet(Rig):
    """A virtual node with workers of pods, and other processes, with an agent that has been at rest for a while."""

    def __init__(self, folder: Path, *, workers: int = 2, others: int = 40, **parts: Any) -> None:
        self.hearsay = Hearsay()
        super().__init__(folder, "a2", news=self.hearsay, chooses=by_annotation, **parts)
        self.others = [self.node.kernel.start_process(f"other{k}").tid for k in range(others)]
        pods = [self.node.kubelet.add_pod(f"llm-{k}") for k in range(workers)]
        self.workers = [Worker.start(self.node, k, pod, threads=4) for k, pod in enumerate(pods)]
        for worker in self.workers:
            worker.add_role_threads()
        self.rest()

    def rest(self) -> None:
        """Until a pass finds no cause for anything."""
        self.settle()
        for _ in range(5):
            self.sweep()
            if self.cause is None:
                return
        raise AssertionError(f"still {self.cause}")

    @property
    def cause(self) -> Cause | None:
        """Why the last look read the process table."""
        return self.agent.parts.observer.cause

    def step(self) -> Cause | None:
        """One pass and no other; why its look read the process table."""
        self.now += 5.0
        self.agent.step()
        return self.cause

    def bound(self) -> set[int]:
        return {w["pid"] for npu in self.status["npus"] for w in npu.get("workers", []) if w["state"] == "Bound"}


@contextmanager
def opened(rig: Rig) -> Iterator[list[str]]:
    """Paths of the files of the node that are opened meanwhile, as seen from its root."""
    real, found, root = os.open, list[str](), os.fspath(rig.node.root)

    def noting(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = os.fspath(path) if dir_fd is None else f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"
        found.append(whole.removeprefix(root))
        return real(path, flags, mode, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", noting)
        yield found


def processes(paths: list[str]) -> set[int]:
    return {int(match[1]) for path in paths if (match := re.match(r"/proc/([0-9]+)(/|$)", path))}
