"""Snapshots that somebody made up: nothing is written or read outside of them, and none of them is a bomb."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.model.reason import Reason, Refused
from agent.node import archive
from agent.node.snapshot import open_snapshot

ABOUT = b'{"version":1,"node":"a3-0"}'
SECRET = "root:$6$salt$hash:19000:0:99999:7:::"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where archives are unpacked: nothing is left there, whatever happened."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "shadow"
    path.write_text(SECRET)
    return path


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def tar(*parts: bytes | tarfile.TarInfo, about: bool = True) -> bytes:
    """Headers, and blocks as they are, behind a snapshot.json."""
    out = b"".join(part if isinstance(part, bytes) else part.tobuf() for part in parts)
    first = header("snapshot.json", size=len(ABOUT)).tobuf() + ABOUT.ljust(512, b"\0") if about else b""
    return first + out + bytes(1024)


def record(key: str, value: str) -> bytes:
    """A record of a pax header, which begins with its own length."""
    rest = f" {key}={value}\n".encode()
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return f"{length}".encode() + rest


def pax(*records: bytes) -> bytes:
    content = b"".join(records)
    return header("pax", tarfile.XHDTYPE, len(content)).tobuf() + content + bytes(-len(content) % 512)


def refused(path: Path, match: str = ".") -> str:
    with pytest.raises(Refused, match=match) as caught, open_snapshot(path):
        pass
    assert caught.value.reason is Reason.SNAPSHOT_UNREADABLE
    assert caught.value.message.isprintable()
    return caught.value.message


# Folders


def folder(place: Path) -> Path:
    (place / "root/proc/7").mkdir(parents=True)
    (place / "npu-smi").mkdir()
    (place / "snapshot.json").write_bytes(ABOUT)
    return place


@pytest.mark.parametrize(
    "name",
    ["snapshot.json", "pod-resources.json", "journal.json", "npu-smi/info.txt", "root/proc/7/status", "root/x/y"],
)
def test_a_link_that_leads_out_of_a_folder_is_refused_and_what_it_leads_to_is_not_told(
    tmp_path: Path, secret: Path, name: str
) -> None:
    place = folder(tmp_path / "snap")
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).unlink(missing_ok=True)
    for target in (str(secret), os.path.relpath(secret, (place / name).parent)):
        (place / name).symlink_to(target)
        said = refused(place, f"{name} leads out of the snapshot")
        assert "salt" not in said
        (place / name).unlink()


def test_a_folder_that_is_a_link_to_another_one_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path / "snap")
    (place / "root/sys").symlink_to("/sys")
    refused(place, "root/sys leads out")


def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    place = folder(tmp_path / "snap")
    (place / "about.json").write_bytes(ABOUT)
    (place / "snapshot.json").unlink()
    (place / "snapshot.json").symlink_to("about.json")
    (place / "root/proc/self").symlink_to("7")
    (place / "npu-smi/round").symlink_to("round")
    with open_snapshot(place) as found:
        assert found.node == "a3-0"


@pytest.mark.parametrize("name", ["snapshot.json", "journal.json", "npu-smi/info.txt", "root/proc/7/stat", "root/x"])
def test_a_pipe_holds_nobody_up(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path / "snap")
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    refused(place, f"{name} is neither a file nor a folder")


def test_a_socket_or_a_device_is_no_file(tmp_path: Path, make_device: Callable[[Path, int, int], None]) -> None:
    place = folder(tmp_path / "snap")
    make_device(place / "root/dev/davinci0", 1, 5)  # /dev/zero never ends
    refused(place, "root/dev/davinci0 is neither")
    (place / "root/dev/davinci0").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "root/s"))
        refused(place, "root/s is neither")


def test_a_folder_of_very_many_files_or_folders_in_each_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path / "snap")
    (place / "/".join("a" * 110)).mkdir(parents=True)
    refused(place, "folders deep")
    monkeypatch.setattr("agent.node.snapshot.MAX_MEMBERS", 4)
    refused(place, "more than 8 files")


# Archives


def test_names_are_taken_as_they_are_as_long_as_they_stay_inside(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar"
    names = ["root/a\nb", "root/\x1b[31m", "root/\udcff", "root//x/./y/", "root/..x", "root/x.."]
    path.write_bytes(tar(*(header(name) for name in names)))
    with open_snapshot(path) as found:
        assert sorted(os.listdir(found.root)) == sorted(["a\nb", "\x1b[31m", "\udcff", "x", "..x", "x.."])


@pytest.mark.parametrize("long", ["x" * 300, "x/" * 3000, "\x1b[31m" * 60 + "/../x", "a/" * 101 + "b"])
@pytest.mark.parametrize("how", ["pax", "gnu"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, temporary: Path, long: str, how: str) -> None:
    path = tmp_path / "s.tar"
    made = header(long)
    path.write_bytes(tar(made.tobuf(tarfile.PAX_FORMAT) if how == "pax" else made.tobuf(tarfile.GNU_FORMAT)))
    refused(path)


def test_a_name_with_a_nul_in_it_is_refused(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(tar(pax(record("path", "root/a\0b")), header("x")))
    refused(path, "cannot be opened")


@pytest.mark.parametrize("way", ["pax", "global", "gnu", "prefix"])
def test_no_form_of_a_name_leads_out(tmp_path: Path, temporary: Path, way: str) -> None:
    path = tmp_path / "s.tar"
    away = "../../escaped"
    if way == "prefix":
        block = bytearray(header("escaped").tobuf(tarfile.USTAR_FORMAT))
        block[345:350] = b"../.."
        block[148:156] = b"        "
        block[148:156] = f"{sum(block):06o}\0 ".encode()
        part = bytes(block)
    elif way == "gnu":
        part = header("l", tarfile.GNUTYPE_LONGNAME, len(away)).tobuf() + away.encode().ljust(512, b"\0")
        part += header("x").tobuf()
    else:
        part = pax(record("path", away)) + header("x").tobuf()
    path.write_bytes(tar(part))
    if way == "global":  # a name for all members is nobody's
        block = bytearray(part)
        block[156:157] = tarfile.XGLTYPE
        block[148:156] = b"        "
        block[148:156] = f"{sum(block[:512]):06o}\0 ".encode()
        path.write_bytes(tar(bytes(block)))
        with open_snapshot(path) as found:
            assert (found.folder / "x").is_file()
    else:
        refused(path, "leads out of the snapshot")
    assert not (tmp_path / "escaped").exists()


def test_a_file_that_is_there_twice_is_the_last_one_and_one(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar"
    parts = [header("root/a", size=1).tobuf() + text.ljust(512, b"\0") for text in (b"1", b"2")]
    path.write_bytes(tar(*parts))
    with open_snapshot(path) as found:
        assert (found.root / "a").read_text() == "2"
    with path.open("rb") as file:
        place = tmp_path / "place"
        place.mkdir()
        assert archive.unpack(file, place) == 2


def test_a_file_where_a_folder_is_and_the_other_way_round_are_refused(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar"
    for parts in (["root/a", "root/a/b"], ["root/a/b", "root/a"]):
        path.write_bytes(tar(*map(header, parts)))
        refused(path, "cannot be opened")


@pytest.mark.parametrize("size", [-1, -512, 1 << 62])
def test_a_size_that_is_none_is_refused(tmp_path: Path, temporary: Path, size: int) -> None:
    path = tmp_path / "s.tar"
    block = bytearray(header("root/a").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (size & (1 << 96) - 1 | (0 if size < 0 else 1 << 95)).to_bytes(12, "big")  # base 256
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    path.write_bytes(tar(bytes(block)))
    refused(path, "negative size|more than")
    path.write_bytes(tar(pax(record("size", str(size))), header("root/a")))
    refused(path, "no number|more than")


@pytest.mark.parametrize("digits", ["9" * 5000, "\u0663", "1e3", ""])
def test_a_number_that_is_none_is_refused(tmp_path: Path, temporary: Path, digits: str) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(tar(pax(record("size", digits)), header("root/a")))
    refused(path, "no number")


@pytest.mark.parametrize("content", [b"9 a=b\n", b"0 a=b\n", b"6 ab=b\n", b"x", b"6 abcd\n", b"99999 a=b\n", b"6 \n"])
def test_a_damaged_record_is_refused(tmp_path: Path, temporary: Path, content: bytes) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(tar(pax(content), header("root/a")))
    refused(path, "record of an extended header is damaged")


def test_sparse_files_are_refused_in_each_of_their_forms(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar"
    old = bytearray(header("root/a", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    for part in (bytes(old), pax(record("GNU.sparse.major", "1"), record("GNU.sparse.realsize", "1000000000"))):
        path.write_bytes(tar(part, header("root/b")))
        refused(path, "sparse")


# Bombs


def peak_of(path: Path, match: str) -> int:
    tracemalloc.start()
    try:
        refused(path, match)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def zeros(first: bytes, count: int) -> bytes:
    """A gzip of some bytes and so many MiB of zeros behind them, of a thousandth of that."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(first)
        for _ in range(count):
            file.write(bytes(1 << 20))
    return out.getvalue()


def test_a_gigabyte_of_zeros_is_not_unpacked(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(zeros(header("root/a", size=(1 << 30)).tobuf(), 1024))
    assert path.stat().st_size < 6 << 20
    assert peak_of(path, "512 MiB") < 10 << 20


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_an_extended_header_of_megabytes_is_not_read(tmp_path: Path, temporary: Path, kind: bytes) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(zeros(header("x", kind, 64 << 20).tobuf(), 65))
    assert peak_of(path, "an extended header has") < 2 << 20


def test_zeros_behind_the_end_are_not_read_for_ever(tmp_path: Path, temporary: Path) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(zeros(tar(), 64))
    assert peak_of(path, "behind the end") < 2 << 20
    path.write_bytes(zeros(tar(), 0))
    with open_snapshot(path) as found:
        assert found.node == "a3-0"


def test_members_without_end_are_not_read(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1000)
    path = tmp_path / "s.tar"
    path.write_bytes(tar(*[header("root/l", tarfile.SYMTYPE, link="x")] * 2000))
    refused(path, "more than 1000 members")
    path.write_bytes(tar(pax(record("comment", "x")) * 2000, header("root/a")))
    refused(path, "too many extended headers")


def test_folders_that_names_make_are_counted(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1000)
    path = tmp_path / "s.tar"
    deep = "/".join("a" * 90)
    path.write_bytes(tar(*(header(f"{n}/{deep}/x").tobuf(tarfile.PAX_FORMAT) for n in range(50))))
    refused(path, "more than 1000 members")


# Whatever an archive holds

NAMES = st.lists(st.sampled_from(["..", ".", "", "a", "b", "root", "snapshot.json", "x" * 120]), max_size=5).map(
    "/".join
)
KINDS = st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"?"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NAMES, KINDS, NAMES, st.binary(max_size=20)), max_size=8), st.binary(max_size=6))
def test_nothing_is_made_outside_of_its_folder(
    tmp_path: Path, members: list[tuple[str, bytes, str, bytes]], damage: bytes
) -> None:
    place = tmp_path / "all" / "place"
    place.mkdir(parents=True, exist_ok=True)
    parts = [
        header(name or "x", kind, len(content), link).tobuf() + content.ljust(512, b"\0")[: 512 * bool(content)]
        for name, kind, link, content in members
    ]
    data = bytearray(tar(*parts))
    for at, byte in enumerate(damage):
        data[at * 97 % len(data)] ^= byte
    with tempfile.TemporaryDirectory(dir=place) as inner:
        with io.BytesIO(data) as file:
            try:
                archive.unpack(file, Path(inner))
            except (Refused, *archive.DAMAGE):
                pass
        for top, folders, files in os.walk(inner):
            assert not any(os.path.islink(os.path.join(top, name)) for name in (*folders, *files))
        assert os.listdir(place) == [os.path.basename(inner)]
    assert os.listdir(tmp_path / "all") == ["place"]
