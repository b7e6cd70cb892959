"""Known vulnerabilities of what the locks pin, as pip-audit finds them:

    python -m image.audit

They are asked for at PyPI's API, which mirrors often do not have. Exit 1 where a package has one; 0 where none has, and
where nobody could be asked, which is said in one line that nobody overlooks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from image.lock import BUILD, RUNTIME

COMMAND = (sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--progress-spinner", "off")

PATIENCE = 300.0
"""Seconds for one lock."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of the question, for one lock."""

    asked: int
    """Packages for which there was an answer."""
    unanswered: tuple[str, ...]
    """Names of those for which there was none."""
    found: tuple[str, ...]
    """A line for each vulnerability."""
    why: str = ""
    """Why there was no answer at all."""


def read(answer: str, complaint: str = "") -> Audit:
    """What pip-audit wrote as JSON; its complaint counts where that is none."""
    try:
        entries = json.loads(answer)["dependencies"]
        skipped = tuple(entry["name"] for entry in entries if "skip_reason" in entry)
        found = tuple(
            f"{entry['name']} {entry['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'none'}"
            for entry in entries
            for one in entry.get("vulns", [])
        )
    except (ValueError, KeyError, TypeError):
        return Audit(0, (), (), complaint.strip().rpartition("\n")[2] or "pip-audit gave no answer")
    why = "" if len(skipped) < len(entries) else "none of these packages is known where it was asked"
    return Audit(len(entries) - len(skipped), skipped, found, why)


def ask(lock: Path) -> Audit:
    """Runs pip-audit, and does not wait for ever: where packets are dropped it would try each package for long."""
    command = [*COMMAND, "--format", "json", "--requirement", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return Audit(0, (), (), f"no answer within {PATIENCE:g} s")
    return read(done.stdout, done.stderr)


def report(name: str, audit: Audit) -> int:
    """Says it; the exit status."""
    for line in audit.found:
        print(f"{name}: VULNERABLE: {line}")
    if audit.asked == 0:
        print(f"{name}: NOT AUDITED: NO DATA ON VULNERABILITIES COULD BE HAD HERE ({audit.why[:200]})")
    elif audit.unanswered:
        print(f"{name}: {audit.asked} packages audited; NOT AUDITED: {', '.join(audit.unanswered)}")
    else:
        print(f"{name}: {audit.asked} packages audited, {len(audit.found)} vulnerabilities known")
    return bool(audit.found)


if __name__ == "__main__":
    sys.exit(max([report(lock.name, ask(lock)) for lock in (RUNTIME, BUILD)]))
