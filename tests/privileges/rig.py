"""Programs that run with just some capabilities, and a worker that is another user's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from agent.demo.standin import StandIn
from agent.node.capabilities import Capability

FIVE = frozenset(Capability)
"""All that the agent has a use for."""
STRANGER, AGENT = 54321, 12345
"""Users who are nobody's here: that of workers, and that of an agent which is not root."""


def need_root() -> None:
    """Skips the module that calls it where no rights can be taken off or given."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv", allow_module_level=True)
    own_network = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if own_network.returncode:
        pytest.skip(f"no network namespace to be had: {own_network.stderr.strip()}", allow_module_level=True)


def just(held: Collection[Capability], *, user: int = 0, own_network: bool = True) -> tuple[str, ...]:
    """A command that runs another with these capabilities and no others, as a pod's container has it: in a network
    namespace of its own, and with no way to more (allowPrivilegeEscalation: false)."""
    # Root is given all of its bounding set by execve(2); anybody else keeps the ambient ones alone (capabilities(7)).
    names = ",".join(["-all", *(f"+{one.name.lower()}" for one in sorted(held))])
    command = ["setpriv", "--no-new-privs", "--bounding-set", names]
    if user:
        command += ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
        command += ["--inh-caps", names, "--ambient-caps", names]
    return (*(("unshare", "--net") if own_network else ()), *command)


@contextmanager
def another_users_worker(*arguments: str) -> Iterator[StandIn]:
    """A stand-in worker of a user who is not root. It has one capability, without which it could not run a Python that
    lies in root's home."""
    with StandIn(*arguments, below=just({Capability.DAC_READ_SEARCH}, user=STRANGER)) as worker:
        yield worker
