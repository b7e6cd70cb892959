"""Tries the whole matrix and prints it: ``python -m tests.faults``. With ``--list`` it is printed and not tried; all
other arguments are pytest's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.rows import ALL
from tests.faults.table import matrix

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(matrix(ALL)))
        sys.exit(0)
    sys.exit(pytest.main([str(Path(__file__).parent), "--matrix", "-q", *sys.argv[1:]]))
