"""How a guest is booted and its report taken, with a program in the place of the one that boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm import conftest, guest
from tests.vm.arm64 import BuildError
from tests.vm.masks import astray, cpus, places

REPORT = '{"nodes.a2": {"facts": {"settled": true}}, "nodes.a3": {"error": "Traceback: no such CPU"}}'


@pytest.fixture(autouse=True)
def _no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "build_site", lambda folder: folder)


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = folder / "boots"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv(guest.PROGRAM, str(path))


def test_the_report_between_the_marks_is_what_a_guest_has_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["3 s: nodes.a2: done", guest.BEGIN, REPORT, guest.END]
    program(tmp_path, monkeypatch, "\n".join(f"echo '{line}'" for line in lines))
    report = guest.boot("n4c16", ["nodes.a2", "nodes.a3"], tmp_path)
    assert report["nodes.a2"] == {"settled": True}
    with pytest.raises(AssertionError, match="no such CPU"):
        report["nodes.a3"]


def test_the_program_is_given_topology_folder_and_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f'echo "$@" >{tmp_path}/arguments; exit 125')
    root = guest.furnish(tmp_path / "root")
    with pytest.raises(guest.GuestError):
        guest.boot("n4mem2", ["nodes.a2"], root)
    expected = f"run --topology n4mem2 --timeout {guest.LIMIT} --add {root} {root}/{guest.SCRIPT} nodes.a2\n"
    assert (tmp_path / "arguments").read_text() == expected
    assert (root / "opt/cpubind-vm/tests/vm/inside/drive.py").is_file()


def test_a_guest_that_comes_to_no_report_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "echo Kernel panic; exit 124")
    with pytest.raises(guest.GuestError, match=r"(?s)status 124.*Kernel panic"):
        guest.boot("n4c16", ["nodes.a2"], tmp_path)


def test_a_guest_that_fails_once_is_booted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [guest.GuestError("no report"), guest.Report({})]

    def boot(*_: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(conftest, "boot", boot)
    assert isinstance(conftest.boot_twice("n4c16", lambda: tmp_path), guest.Report)
    answers[:] = [guest.GuestError("no report"), BuildError("no wheels")]
    assert "no wheels" in str(conftest.boot_twice("n4c16", lambda: tmp_path))


def test_without_a_program_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(guest.PROGRAM, raising=False)
    assert guest.PROGRAM in guest.missing()
    monkeypatch.setenv(guest.PROGRAM, str(tmp_path / "nothing"))
    assert "nothing" in guest.missing()


def test_masks_are_compared_as_sets_of_cpus() -> None:
    assert cpus("0-2,7,9-10") == {0, 1, 2, 7, 9, 10}
    threads = [{"comm": "worker", "mask": "2,3"}, {"comm": "acl_thread", "mask": "2-3"}]
    assert astray(threads, places("2-3", acl="4", release="5")) == [threads[1]]
    with pytest.raises(AssertionError):
        astray([], places("2-3", acl="4", release="5"))
