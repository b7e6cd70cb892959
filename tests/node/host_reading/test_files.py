"""Reading small files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.files import list_folder, numbered_devices, read_bytes, read_text

REASON = Reason.PROCESS_UNREADABLE


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "file").write_bytes(content)
    assert read_bytes(tmp_path / "file", REASON) == content


def test_an_empty_file_is_empty_and_not_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_text(tmp_path / "file", REASON) == ""


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_text(tmp_path / "nothing", REASON) is None
    assert read_text(tmp_path / "file" / "below", REASON) is None


def test_a_file_of_a_process_that_ended_while_it_was_open_is_none() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    folder = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY)
    os.waitpid(pid, 0)
    try:
        # The folder is still open, its process is gone: the kernel says ESRCH or ENOENT.
        assert read_bytes("stat", REASON, at=folder) is None
    finally:
        os.close(folder)


def test_a_file_beyond_the_limit_is_refused_with_the_reason_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(200_000))
    assert read_bytes(tmp_path / "file", REASON, limit=200_000) == bytes(200_000)
    with pytest.raises(Refused, match="larger than 199999 bytes") as refused:
        read_bytes(tmp_path / "file", REASON, limit=199_999)
    assert refused.value.reason is REASON


def test_a_stream_without_end_is_refused_and_not_read_for_ever() -> None:
    with pytest.raises(Refused, match="larger than"):
        read_bytes("/dev/zero", REASON)


def test_another_error_is_refused_with_what_the_kernel_said(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Is a directory"):
        read_bytes(tmp_path, REASON)


def test_a_pipe_does_not_hold_up_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "pipe", REASON) == ""


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\xff\xfeb")
    text = read_text(tmp_path / "file", REASON)
    assert text is not None
    assert os.fsencode(text) == b"a\xff\xfeb"


def test_below_an_open_folder_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "secret")
    folder = os.open(tmp_path / "folder", os.O_PATH)
    try:
        assert read_text("link", REASON, at=folder) is None
    finally:
        os.close(folder)


def test_a_message_is_one_printable_line(tmp_path: Path) -> None:
    folder = tmp_path / "a\n\x1b[31m"
    folder.mkdir()
    with pytest.raises(Refused) as refused:
        read_bytes(folder, REASON)
    assert refused.value.message.isprintable()


def test_the_names_in_a_folder_that_is_not_there_are_none(tmp_path: Path) -> None:
    assert list_folder(tmp_path / "nothing", REASON) == []
    (tmp_path / "file").touch()
    assert list_folder(tmp_path, REASON) == ["file"]


def test_a_recorded_list_of_devices_is_read() -> None:
    assert numbered_devices("0 236:0\n\n  7   236:7  \n", "davinci", REASON) == [(0, (236, 0)), (7, (236, 7))]


@pytest.mark.parametrize("line", ["0", "0 236", "0 236:", "x 236:0", "-1 236:0", "0 236:0 1", "٣ 236:0", "0 9e9:0"])
def test_a_damaged_list_of_devices_is_refused(line: str) -> None:
    with pytest.raises(Refused, match="major:minor"):
        numbered_devices(f"1 2:3\n{line}\n", "davinci", REASON)
