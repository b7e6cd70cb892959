"""The commands that docs/upgrade.md gives for removing a release."""

from __future__ import annotations

import re
import shlex

from tests.e2e.kubectl import REPOSITORY
from tests.e2e.node import Shell
from tests.e2e.release import Release
from tests.e2e.workload import Worker

PAGE = REPOSITORY / "docs" / "upgrade.md"


def _section(name: str) -> str:
    parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


def _blocks(name: str) -> list[str]:
    """The shell blocks of a section, each command in one line."""
    return [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", _section(name), re.DOTALL)]


def documented() -> tuple[list[str], list[str]]:
    """The commands of the page that remove a release, and those for what remains."""
    (block,) = (block for block in _blocks("Remove") if "helm uninstall" in block)
    return block.splitlines(), re.findall(r"^\|.*\| `(.*?)`", _section("What remains"), re.MULTILINE)


def leftovers() -> list[str]:
    """Its commands for what is left of a release whose namespace was deleted."""
    return [line for block in _blocks("Removed without disabling it first") for line in block.splitlines()]


# The files of irqbalance are its own; cpubind only talks to it. Of folders, those that the chart lets kubelet make.
_STATE = """
cd /node
for folder in var/lib/cpubind run/cpubind run/irqbalance usr/local/dcmi usr/local/Ascend usr/local/sbin; do
  find "$folder" 2>/dev/null | grep -v irqbalance/irqbalance | sort
done
grep . /proc/irq/*/smp_affinity_list
"""


def of_the_host(shell: Shell, worker: Worker) -> str:
    """What an agent may change on a node, as text: folders and files, interrupts, and the masks of a worker."""
    return shell(f"{_STATE}\ntaskset -acp {worker.pid}")


def follow(release: Release, line: str, shell: Shell | None = None) -> None:
    """Runs a command of people's; what is neither for helm nor for kubectl is for the node."""
    program, *args = shlex.split(line, comments=True)
    if program == "helm":
        release.helm(*args)
    elif program == "kubectl":
        release.cluster.kubectl(*args, seconds=120)
    else:
        assert shell is not None
        assert program in ("rm", "rmdir")
        shell(line.replace(" /", " /node/"))
