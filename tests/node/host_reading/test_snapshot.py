"""Opening snapshots, good and bad ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import Pod, PodResources
from agent.node import archive
from agent.node.snapshot import Snapshot, open_snapshot
from agent.node.sysfs import read_topology

ABOUT = '{"version":1,"node":"a3-0","architecture":"aarch64"}'
FILES = {
    "snapshot.json": ABOUT,
    "npu-smi/info.txt": "+---+\n",
    "root/sys/devices/system/cpu/online": "0-3\n",
    "root/proc/4711/comm": "VLLM::Worker\n",
}

Change = Callable[[tarfile.TarInfo], None]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every temporary folder is gone in the end, whatever happened."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert list(place.iterdir()) == []


def folder(place: Path, files: dict[str, str] | None = None) -> Path:
    for name, text in (FILES if files is None else files).items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def packed(files: dict[str, str], *more: tuple[str, Change], mode: str = "w:gz") -> bytes:
    """An archive of files, and of members that a function makes odd."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, change in more:
            member = tarfile.TarInfo(name)
            change(member)
            archive.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)
    return buffer.getvalue()


def is_the_snapshot(found: Snapshot) -> None:
    assert (found.node, found.architecture) == ("a3-0", "aarch64")
    assert (found.pods, found.pod_resources, found.journal) == ((), (), None)
    assert (found.npu_smi / "info.txt").read_text() == "+---+\n"
    assert found.npu_smi == found.folder / "npu-smi"
    assert read_topology(found.root, architecture=found.architecture).online == CpuSet.span(0, 3)


def refused(path: Path, match: str) -> None:
    with pytest.raises(Refused, match=match) as caught, open_snapshot(path):
        pass
    assert caught.value.reason is Reason.SNAPSHOT_UNREADABLE
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 256


def test_a_folder_is_read_in_place(tmp_path: Path) -> None:
    place = folder(tmp_path / "snap")
    with open_snapshot(place) as found:
        is_the_snapshot(found)
        assert found.root == place / "root"
    assert place.exists()


@pytest.mark.parametrize(("name", "mode"), [("s.tar.gz", "w:gz"), ("s.tgz", "w:gz"), ("s.tar", "w:"), ("odd", "w:gz")])
def test_an_archive_is_unpacked_for_as_long_as_it_is_open(tmp_path: Path, name: str, mode: str) -> None:
    path = tmp_path / name
    path.write_bytes(packed(FILES, mode=mode))
    with open_snapshot(path) as found:
        is_the_snapshot(found)
    assert not found.folder.exists()


@pytest.mark.parametrize("top", ["a3-0", "./a3-0", "."])
def test_an_archive_may_have_all_in_one_leading_folder(tmp_path: Path, top: str) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed({f"{top}/{name}": text for name, text in FILES.items()}))
    with open_snapshot(path) as found:
        is_the_snapshot(found)


def test_what_a_mac_puts_beside_that_folder_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed({"._a3-0": "x"} | {f"a3-0/{name}": text for name, text in FILES.items()}))
    with open_snapshot(path) as found:
        is_the_snapshot(found)


def test_what_is_raised_while_it_is_open_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES))
    with pytest.raises(OSError, match="mine"), open_snapshot(path):
        raise OSError("mine")


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "a\0b", ".")
    refused(tmp_path / ("x" * 300), ".")


def test_what_is_beside_the_tree_is_read_too(tmp_path: Path) -> None:
    resources = {
        "pod_resources": [{"name": "llm-0", "namespace": "prod", "containers": [{"name": "c", "cpu_ids": [3]}]}]
    }
    about = {"version": 1, "node": "n", "architecture": "x86_64", "pods": [{"metadata": {"name": "llm-0"}}]}
    files = {
        "snapshot.json": json.dumps(about),
        "pod-resources.json": json.dumps(resources),
        "journal.json": '{"version": 1}',
    }
    with open_snapshot(folder(tmp_path / "snap", files)) as found:
        assert found.pods == (Pod("", "", "llm-0"),)
        assert found.pod_resources == (PodResources("prod", "llm-0", "c", CpuSet({3})),)
        assert found.journal == '{"version": 1}'
        assert found.architecture == "x86_64"
        assert not found.root.exists()


def test_a_node_and_an_architecture_that_are_missing_are_nobody_and_arm(tmp_path: Path) -> None:
    with open_snapshot(folder(tmp_path / "snap", {"snapshot.json": '{"version":1}'})) as found:
        assert (found.node, found.architecture) == ("", "aarch64")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no JSON"),
        ("[]", "not an object"),
        ("{}", "version None"),
        ('{"version":2}', "version 2"),
        ('{"version":"1"}', "version 1"),
        ('{"version":true}', "version True"),
        ('{"version":1,"pods":{}}', "not a list"),
        ('{"version":1,"pods":[3]}', "not a list"),
        ('{"version":1,"node":3}', "node"),
        ('{"version":1,"architecture":["x"]}', "architecture"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_snapshot_json_of_another_form_is_refused(tmp_path: Path, text: str, match: str) -> None:
    refused(folder(tmp_path / "snap", {"snapshot.json": text}), match)


def test_a_place_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "neither a folder nor a file")
    refused(folder(tmp_path / "empty", {"x/y": ""}), "no snapshot.json")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "neither a folder nor a file")


@pytest.mark.parametrize("text", ["{", "[]", '{"pod_resources": 3}', '{"pod_resources": [{"containers": [4]}]}', None])
def test_damaged_pod_resources_are_told_and_the_rest_is_read(tmp_path: Path, text: str | None) -> None:
    place = folder(tmp_path / "snap", FILES if text is None else FILES | {"pod-resources.json": text})
    if text is None:
        (place / "pod-resources.json").mkdir()
    with open_snapshot(place) as found:
        is_the_snapshot(found)
    assert [problem.reason for problem in found.problems] == [Reason.KUBELET_STATE_UNREADABLE]
    assert "pod-resources" in found.problems[0].message


def test_pods_that_are_null_are_none(tmp_path: Path) -> None:
    with open_snapshot(folder(tmp_path / "snap", {"snapshot.json": '{"version":1,"pods":null}'})) as found:
        assert (found.pods, found.problems) == ((), ())


# Archives that try something


def link_to(target: str, kind: bytes = tarfile.SYMTYPE) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, target

    return change


def of_type(kind: bytes, size: int = 0) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.size = kind, size

    return change


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/{}/escaped", "//{}/escaped", "root/.."])
def test_a_member_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, (name.format(str(tmp_path).strip("/")), of_type(tarfile.REGTYPE, 3))))
    refused(path, "leads out of the snapshot")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "snapshot.json"])
def test_links_are_left_out(tmp_path: Path, kind: bytes, target: str) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, ("root/proc/4711/status", link_to(target, kind))))
    with open_snapshot(path) as found:
        is_the_snapshot(found)
        assert not (found.root / "proc/4711/status").is_symlink()
        assert not (found.root / "proc/4711/status").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    outside = tmp_path / "outside"
    outside.mkdir()
    path.write_bytes(packed(FILES, ("way", link_to(str(outside))), ("way/escaped", of_type(tarfile.REGTYPE, 3))))
    with open_snapshot(path) as found:
        assert (found.folder / "way/escaped").is_file()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, ("root/dev/davinci0", of_type(kind))))
    with open_snapshot(path) as found:
        assert not (found.root / "dev/davinci0").exists()


def test_modes_of_members_are_not_taken_over(tmp_path: Path) -> None:
    def change(member: tarfile.TarInfo) -> None:
        member.mode, member.uid = 0o6000, 4242

    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, ("root/odd", change)))
    with open_snapshot(path) as found:
        status = (found.root / "odd").stat()
        assert not status.st_mode & 0o6111
        assert status.st_uid == os.getuid()


def test_an_archive_that_would_fill_the_disk_is_refused_before_it_does(tmp_path: Path) -> None:
    # A header alone announces a gigabyte; a few bytes of gzip unpack to as much.
    header = tarfile.TarInfo("root/large")
    header.size = 1 << 30
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf()))
    refused(path, "512 MiB")


def test_many_files_that_would_fill_it_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 2500)
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, *((f"root/{n}", of_type(tarfile.REGTYPE, 1000)) for n in range(3))))
    refused(path, "more than")


def test_an_archive_of_very_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    path = tmp_path / "s.tar.gz"
    path.write_bytes(packed(FILES, *((f"root/{n}", link_to("x")) for n in range(7))))
    refused(path, "more than 10 members")


def test_a_header_of_no_file_that_announces_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 100_000)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    path = tmp_path / "s.tar.gz"
    for kind, said in ((tarfile.XHDTYPE, "an extended header has"), (b"?", "unpacks to more than")):
        header = tarfile.TarInfo("pax")
        header.type, header.size = kind, (1 << 33) - 1
        path.write_bytes(gzip.compress(header.tobuf() + bytes(1 << 24)))
        refused(path, said)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x", b"\x1f\x8b", b"\x1f\x8b" + bytes(100), bytes(10_000), b"text\n" * 1000):
        (tmp_path / "s.tar.gz").write_bytes(content)
        refused(tmp_path / "s.tar.gz", ".")


def test_an_archive_cut_or_damaged_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    whole = packed(FILES | {"root/noise": "".join(random.Random(1).choices("0123456789abcdef", k=3000))})
    for end in range(0, len(whole), 149):
        path.write_bytes(whole[:end])
        with suppress(Refused), open_snapshot(path) as found:
            is_the_snapshot(found)
    plain = bytearray(gzip.decompress(whole))
    for at in range(0, 1100, 23):
        damaged = bytearray(plain)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with suppress(Refused), open_snapshot(path):
            pass


@given(text=st.text(max_size=100) | st.integers(0, len(ABOUT)).map(lambda end: ABOUT[:end]))
def test_whatever_snapshot_json_holds_nothing_but_refused_is_raised(tmp_path: Path, text: str) -> None:
    place = tmp_path / "snap"
    place.mkdir(exist_ok=True)
    (place / "snapshot.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(Refused), open_snapshot(place):
        pass


# Damage in the middle of an archive


NOISE = FILES | {f"root/noise/{n}": "".join(random.Random(n).choices("0123456789abcdef", k=3000)) for n in range(9)}
MEMBER = 512 + 3072  # bytes of one of them in an archive


@pytest.mark.parametrize("part", [0.3, 0.5, 0.8, 0.97])
def test_a_gzip_with_wrong_bytes_is_refused(tmp_path: Path, part: float) -> None:
    damaged = bytearray(packed(NOISE))
    at = int(len(damaged) * part)
    damaged[at : at + 4] = bytes(255 - byte for byte in damaged[at : at + 4])
    path = tmp_path / "s.tar.gz"
    path.write_bytes(damaged)
    refused(path, r"s\.tar\.gz")


def test_the_checksum_at_the_end_of_a_gzip_counts(tmp_path: Path) -> None:
    damaged = bytearray(packed(NOISE))
    damaged[-8] ^= 1
    path = tmp_path / "s.tar.gz"
    path.write_bytes(damaged)
    refused(path, "CRC")
    path.write_bytes(packed(NOISE) + b"more")
    refused(path, "cannot be opened")


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("member", [1, 7, 12])
@pytest.mark.parametrize("how", ["header", "zeros", "end"])
def test_a_damaged_header_is_not_the_end_of_a_smaller_node(
    tmp_path: Path, member: int, how: str, gzipped: bool
) -> None:
    buffer = io.BytesIO(packed(NOISE, mode="w:"))
    with tarfile.open(fileobj=buffer) as archive:
        at = archive.getmembers()[member].offset
    plain = bytearray(buffer.getvalue())
    if how == "header":
        plain[at] ^= 0xFF
    elif how == "zeros":
        plain[at : at + 512] = bytes(512)
    else:
        del plain[at:]
    path = tmp_path / "s.tar"
    path.write_bytes(gzip.compress(plain) if gzipped else plain)
    refused(path, r"s\.tar cannot be opened")


def test_an_archive_with_fewer_files_than_were_captured_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    about = json.loads(ABOUT)
    for files, readable in ((len(FILES), True), (len(FILES) - 1, True), (len(FILES) + 1, False)):
        path.write_bytes(packed(FILES | {"snapshot.json": json.dumps(about | {"files": files})}))
        if readable:
            with open_snapshot(path) as found:
                is_the_snapshot(found)
        else:
            refused(path, "has 4 files of the 5")
    path.write_bytes(packed(FILES | {"snapshot.json": json.dumps(about | {"files": "4"})}))
    refused(path, "files in snapshot.json is not a number")


def test_messages_name_the_archive_and_not_where_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    long = "root/" + "x" * 300
    for files in (
        {"root/a": ""},
        FILES | {"snapshot.json": "{"},
        FILES | {long: "x"},
        {name: text for name, text in FILES.items() if name != "snapshot.json"} | {"snapshot.json/x": ""},
    ):
        path.write_bytes(packed(files))
        with pytest.raises(Refused, match=r"s\.tar\.gz") as caught, open_snapshot(path):
            pass
        assert "cpubind-snapshot-" not in caught.value.message
    path.write_bytes(packed(FILES | {"pod-resources.json/x": ""}))
    with open_snapshot(path) as found:
        assert "cpubind-snapshot-" not in found.problems[0].message
