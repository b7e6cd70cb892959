"""An ARM64 guest with several NUMA nodes: booted once for a list of scenarios, it answers with one report.

The program that boots it is named by $VM_NUMA_GUEST: ``numa-guest run --topology T --add FOLDER --timeout S SCRIPT``
lays FOLDER over the root of a guest with that topology, runs SCRIPT in there and prints what it prints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.vm.arm64 import BuildError, build_site
from tests.vm.inside.drive import REPORT

PROGRAM = "VM_NUMA_GUEST"
LIMIT = 2400
"""Seconds for one guest with all its scenarios. What hangs in there has shorter limits of its own."""
QEMU = "qemu-system-aarch64"

SCRIPT = Path("opt/cpubind-vm/script")
"""Below the root of a guest: what it is to run."""

BOOTED = "-----guest runs"

_SCRIPT = f"""\
#!/bin/sh
echo '{BOOTED}'
# Its messages would fall into a report's line: CPUs that are emulated on a busy machine are late.
echo 0 >/proc/sys/kernel/soft_watchdog
cd /opt/cpubind-vm
export PYTHONPATH=/opt/cpubind-vm
exec python3 -m tests.vm.inside.drive "$@"
"""
_HERE = Path(__file__).parent


class GuestError(Exception):
    """The guest did not boot. The message ends with what was printed last."""


def missing() -> str:
    """Why there can be no guest here; empty where there can."""
    program = os.environ.get(PROGRAM, "")
    if not program:
        return f"needs a program that boots an ARM64 guest with NUMA nodes: set {PROGRAM} to its path"
    if not os.access(program, os.X_OK):
        return f"{PROGRAM}={program} is no program"
    # The program may install QEMU, where it has the rights to.
    if shutil.which(QEMU) is None and os.geteuid() != 0:
        return f"needs {QEMU}"
    return ""


class Report:
    """What a guest has told, by scenario."""

    def __init__(self, told: Mapping[str, Mapping[str, Any]], end: str = "") -> None:
        """`end`: the last that it printed, for people."""
        self._told = told
        self._end = end

    def __getitem__(self, scenario: str) -> dict[str, Any]:
        """The facts of a scenario. AssertionError, with the traceback of the guest, where it broke in there, or with
        what was printed last, where it did not come to an end."""
        if scenario not in self._told:
            raise AssertionError(f"the guest has not told of {scenario}; the last lines:\n{self._end}")
        told = self._told[scenario]
        if "error" in told:
            raise AssertionError(f"{scenario} broke in the guest:\n{told['error']}")
        facts: dict[str, Any] = told["facts"]
        return facts


def furnish(folder: Path) -> Path:
    """Fills a folder with what guests run, the same for all of them; returns it. BuildError where it can't be had."""
    build_site(folder)
    inside = folder / "opt/cpubind-vm/tests/vm"
    inside.mkdir(parents=True)
    shutil.copytree(_HERE / "inside", inside / "inside", ignore=shutil.ignore_patterns("__pycache__"))
    script = folder / SCRIPT
    script.write_text(_SCRIPT)
    return folder


def boot(topology: str, scenarios: Sequence[str], root: Path) -> Report:
    """Boots a guest with a `root` that was furnished, runs the scenarios in it and returns its report.

    What it prints is printed here, too, for whoever waits. GuestError where it does not boot: once it has, what is
    missing in the report is for tests to find.
    """
    command = [os.environ[PROGRAM], "run", "--topology", topology, "--timeout", str(LIMIT), "--add", str(root)]
    with subprocess.Popen(
        [*command, str(root / SCRIPT), *scenarios],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as running:
        assert running.stdout is not None
        lines = []
        try:
            for line in running.stdout:
                lines.append(line.rstrip("\n"))
                if not line.startswith(REPORT):
                    print(f"[{topology}] {lines[-1]}", flush=True)
        except BaseException:
            # Below the shell there is QEMU, in a process group of its own.
            for process in psutil.Process(running.pid).children(recursive=True):
                process.kill()
            running.kill()
            raise
    last = [line for line in lines if not line.startswith(REPORT)][-15:]
    end = "\n".join([f"status {running.returncode}", *last])
    if BOOTED not in lines:
        raise GuestError(f"did not boot; {end}")
    told: dict[str, Any] = {}
    for line in lines:
        if line.startswith(REPORT):
            told |= json.loads(line.removeprefix(REPORT))
    return Report(told, end)


__all__ = ["BOOTED", "PROGRAM", "REPORT", "BuildError", "GuestError", "Report", "boot", "furnish", "missing"]
