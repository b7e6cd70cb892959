"""Faults of npu-smi."""

from __future__ import annotations

from tests.faults.table import Row

ROWS: tuple[Row, ...] = ()
