"""Who waits at a terminal is told what for; a script is not."""

from __future__ import annotations

import sys
import time

import pytest

from agent.cli.progress import told_when_slow


def test_at_a_terminal_a_long_wait_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = ""
    with told_when_slow("reading a3-0", seconds=0.0):
        while not told:
            told = capsys.readouterr().err
            time.sleep(0.01)
    assert told == "cpubind: still reading a3-0\n"


def test_what_is_done_at_once_is_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with told_when_slow("reading a3-0", seconds=60.0):
        pass
    assert capsys.readouterr().err == ""


def test_into_a_file_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with told_when_slow("reading a3-0", seconds=0.0):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
