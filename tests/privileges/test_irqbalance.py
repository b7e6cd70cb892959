"""What it takes to ask the real irqbalance, and so to tell it: user 0, and for an old one a capability."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.node.capabilities import NEEDS, Capability
from tests.host.irqbalance_daemon import alone, daemon, needs
from tests.privileges.rig import AGENT, FIVE, just, need_root

need_root()

_ASK = """\
import sys
from pathlib import Path
from agent.model.reason import Refused
from agent.node.irqbalance import Irqbalance
from agent.model.workload import ProcessId
pid = int(sys.argv[1])
start = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
try:
    Irqbalance(Path("/")).bans(ProcessId(pid, start))
except Refused as refused:
    print(refused)
"""

_OLD = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$0" "$@"')
"""Without /run/irqbalance it listens on an abstract address, as those before 1.5 do on every host."""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    needs()
    with alone():
        yield


def asked(process: subprocess.Popen[bytes], held: Collection[Capability], **how: Any) -> str:
    """What it was answered with these capabilities; empty where irqbalance answered."""
    command = [*just(held, **how), sys.executable, "-c", _ASK, str(process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.fixture
def folder() -> Iterator[None]:
    """Where newer ones have their sockets; systemd makes it."""
    path = Path("/run/irqbalance")
    made = not path.exists()
    path.mkdir(exist_ok=True)
    yield
    if made:
        path.rmdir()


@pytest.mark.usefixtures("folder")
def test_one_with_a_socket_in_a_folder_is_asked_without_any_capability() -> None:
    with daemon() as process:
        assert asked(process, ()) == ""
        assert "IrqbalanceActive" in asked(process, FIVE, user=AGENT), "its socket is user 0's"


def test_one_with_an_abstract_address_is_asked_in_its_network_and_that_takes_sys_admin() -> None:
    with daemon(prefix=_OLD) as process:
        assert asked(process, FIVE) == ""
        assert "IrqbalanceActive" in asked(process, FIVE - {Capability.SYS_ADMIN})
    assert "irqbalance before 1.5 is not told" in NEEDS[Capability.SYS_ADMIN].besides
