"""Runs scenarios one after the other and prints one report: ``python3 -m tests.vm.inside.drive NAME…``.

The report is a line of JSON between two marks, ``{"NAME": {"facts": {…}}}``, or ``{"error": TRACEBACK}`` where one
broke. It has raw facts alone; what is right is for the tests on the other side to say.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from importlib import import_module
from typing import Any

BEGIN, END = "-----report begins", "-----report ends"


def main(names: list[str]) -> None:
    """The program."""
    begun = time.monotonic()
    report: dict[str, Any] = {}
    for name in names:
        module, _, function = name.partition(".")
        try:
            report[name] = {"facts": getattr(import_module(f"tests.vm.inside.{module}"), function)()}
        except Exception:
            report[name] = {"error": traceback.format_exc()}
        said = report[name].get("error", "done").strip().splitlines()[-1]
        print(f"{time.monotonic() - begun:.0f} s: {name}: {said}", flush=True)
    print(f"{BEGIN}\n{json.dumps(report)}\n{END}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
