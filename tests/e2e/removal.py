"""The commands that docs/kubernetes.md gives for removing a release."""

from __future__ import annotations

import re
import shlex

from tests.e2e.kubectl import REPOSITORY
from tests.e2e.node import Shell
from tests.e2e.release import Release

PAGE = REPOSITORY / "docs" / "kubernetes.md"


def documented() -> tuple[list[str], list[str]]:
    """The commands of the page that remove a release, and those for what remains."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (text,) = (section for section in sections if section.startswith("Remove\n"))
    (block,) = (block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "helm uninstall" in block)
    return block.replace("\\\n", " ").splitlines(), re.findall(r"^\|.*\| `(.*?)`", text, re.MULTILINE)


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
