"""Faults of the API server, and of kubelet's pod-resources."""

from __future__ import annotations

from tests.faults.table import Row

ROWS: tuple[Row, ...] = ()
