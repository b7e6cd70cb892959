"""The table of capabilities in docs/security.md, made of the agent's own: ``python -m tests.docs.privileges``."""

from __future__ import annotations

import re

from agent.node.capabilities import NEEDS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/security.md"
BEGIN = "<!-- Made from agent/node/capabilities.py by `make docs`. -->"
END = "<!-- End. -->"

_PART = re.compile(f"^{re.escape(BEGIN)}\n.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)


def table() -> str:
    """What each is for, how far it reaches, and what goes without it."""
    lines = [
        "| capability | what the agent does with it | what it reaches | what goes without it | what says so |",
        "|---|---|---|---|---|",
    ]
    for capability, need in NEEDS.items():
        said = "; ".join(dict.fromkeys(feature.said for feature in need.features))
        lines.append(f"| `{capability.name}` | {need.use} | {need.reach} | {need.without} | {said} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table anew."""
    made, count = _PART.subn(lambda _: f"{BEGIN}\n{table()}\n{END}", text)
    assert count == 1, f"{PAGE.name} has {count} places for the table"
    return made


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
