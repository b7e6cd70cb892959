"""Runs scenarios one after the other and reports on each: ``python3 -m tests.vm.inside.drive NAME…``.

A report is a line, after a mark: ``{"NAME": {"facts": {…}}}``, or ``{"error": TRACEBACK}`` where the scenario broke. It
has raw facts alone; what is right is for the tests on the other side to say.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from importlib import import_module
from typing import Any

REPORT = "-----report "


def main(names: list[str]) -> None:
    """The program."""
    begun = time.monotonic()
    for name in names:
        module, _, function = name.partition(".")
        try:
            report: dict[str, Any] = {"facts": getattr(import_module(f"tests.vm.inside.{module}"), function)()}
        except Exception:
            report = {"error": traceback.format_exc()}
        said = report.get("error", "done").strip().splitlines()[-1]
        print(f"{time.monotonic() - begun:.0f} s: {name}: {said}", flush=True)
        print(f"{REPORT}{json.dumps({name: report})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
