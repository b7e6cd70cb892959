"""Faults of the host: what /proc, /sys, cgroups, sockets and the agent's own files can answer."""

from __future__ import annotations

from tests.faults.table import Row

ROWS: tuple[Row, ...] = ()
