"""A snapshot's recordings stand in for npu-smi, and lead nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.command import MAX_OUTPUT, RecordedNpuSmi
from agent.node.npu_smi.inventory import read_inventory
from tests.node.npu_smi.samples import fixture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "snapshot"
    (folder / "npu-smi").mkdir(parents=True)
    return folder


def test_recordings_are_found_by_the_arguments_of_the_query(folder: Path) -> None:
    for name in ("info", "info-m", "info-t-topo", "info-t-board-i-0-c-1"):
        (folder / "npu-smi" / f"{name}.txt").write_text(f"text of {name}\n")
    npu_smi = RecordedNpuSmi(folder)
    assert npu_smi.query("info") == "text of info\n"
    assert npu_smi.query("info", "-m") == "text of info-m\n"
    assert npu_smi.query("info", "-t", "topo") == "text of info-t-topo\n"
    assert npu_smi.query("info", "-t", "board", "-i", "0", "-c", "1") == "text of info-t-board-i-0-c-1\n"


def test_a_recorded_node_makes_an_inventory(folder: Path) -> None:
    (folder / "npu-smi" / "info.txt").write_text(fixture("info", "910b_tp4_residual_contexts"))
    reading = read_inventory(RecordedNpuSmi(folder), {})
    assert reading.inventory.ids == (0, 1, 2, 3)
    assert reading.driver_version == "25.0.rc1.1"


def test_a_missing_recording_is_a_query_that_the_host_does_not_answer(folder: Path) -> None:
    npu_smi = RecordedNpuSmi(folder)
    assert _refusal(npu_smi, "info").reason is Reason.NPU_SMI_NOT_FOUND
    assert _refusal(npu_smi, "info", "-m").reason is Reason.NOT_SUPPORTED
    assert _refusal(npu_smi, "info", "-t", "topo").reason is Reason.NOT_SUPPORTED
    assert _refusal(RecordedNpuSmi(folder / "nothing"), "info").reason is Reason.NPU_SMI_NOT_FOUND


@pytest.mark.parametrize("suffix", [".rc", ".txt.rc"])
def test_an_exit_status_beside_a_recording_counts(folder: Path, suffix: str) -> None:
    (folder / "npu-smi" / "info.txt").write_text("something went wrong\n")
    (folder / "npu-smi" / f"info{suffix}").write_text("3\n")
    refused = _refusal(RecordedNpuSmi(folder), "info")
    assert refused.reason is Reason.NPU_SMI_FAILED
    assert refused.message == "npu-smi info: exit status 3: something went wrong"


def test_an_exit_status_of_zero_changes_nothing(folder: Path) -> None:
    (folder / "npu-smi" / "info.txt").write_text("text\n")
    (folder / "npu-smi" / "info.rc").write_text("0\n")
    assert RecordedNpuSmi(folder).query("info") == "text\n"


def test_an_exit_status_may_stand_alone(folder: Path) -> None:
    (folder / "npu-smi" / "info.rc").write_text("127")
    assert _refusal(RecordedNpuSmi(folder), "info").reason is Reason.NPU_SMI_NOT_FOUND


@pytest.mark.parametrize("name", ["dcmi_8005", "libc_sec_missing", "error_parameter_of_t"])
def test_a_recorded_error_has_the_reason_of_the_real_one(folder: Path, name: str) -> None:
    (folder / "npu-smi" / "info.txt").write_text(fixture("errors", name))
    assert _refusal(RecordedNpuSmi(folder), "info").reason in {
        Reason.DRIVER_NOT_READY,
        Reason.NPU_SMI_LIBRARY_MISSING,
        Reason.NOT_SUPPORTED,
    }


def test_a_link_out_of_the_snapshot_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "npu-smi" / "info.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "npu-smi" / "info-m.txt").symlink_to("../../secret.txt")
    (folder / "elsewhere").symlink_to(tmp_path)
    (folder / "npu-smi" / "info-t-topo.txt").symlink_to("../elsewhere/secret.txt")
    (folder / "npu-smi" / "info-l.txt").symlink_to("info-l.txt")
    for args in (("info",), ("info", "-m"), ("info", "-t", "topo"), ("info", "-l")):
        refused = _refusal(RecordedNpuSmi(folder), *args)
        assert refused.reason is Reason.SNAPSHOT_UNREADABLE
        assert "secret" not in refused.message


def test_a_link_within_the_snapshot_is_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "npu-smi" / "one.txt").write_text("text\n")
    (folder / "npu-smi" / "info.txt").symlink_to("one.txt")
    (tmp_path / "link").symlink_to(folder)
    assert RecordedNpuSmi(tmp_path / "link").query("info") == "text\n"


def test_what_is_no_file_of_that_size_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "npu-smi" / "info.txt")
    (folder / "npu-smi" / "info-m.txt").mkdir()
    with (folder / "npu-smi" / "info-t-topo.txt").open("wb") as stream:
        stream.truncate(MAX_OUTPUT + 1)
    (folder / "npu-smi" / "info-l.txt").write_text("text\n")
    (folder / "npu-smi" / "info-l.rc").write_text("many")
    for args in (("info",), ("info", "-m"), ("info", "-t", "topo"), ("info", "-l")):
        assert _refusal(RecordedNpuSmi(folder), *args).reason is Reason.SNAPSHOT_UNREADABLE


def test_a_query_cannot_climb_out(folder: Path) -> None:
    for args in (("../../etc/passwd",), ("info", "-i", "/etc/passwd"), ("a\0b",)):
        assert _refusal(RecordedNpuSmi(folder), *args).reason is Reason.NOT_SUPPORTED


def test_bytes_that_are_no_text_are_replaced(folder: Path) -> None:
    (folder / "npu-smi" / "info.txt").write_bytes(b"a\xff\n")
    assert RecordedNpuSmi(folder).query("info") == "a\ufffd\n"


def _refusal(npu_smi: RecordedNpuSmi, *args: str) -> Refused:
    with pytest.raises(Refused) as refused:
        npu_smi.query(*args)
    return refused.value
