"""Reading a snapshot (design section 8): a host that was recorded, as a folder or as a .tar.gz of one.

Snapshots come from anywhere, by mail as a rule, and are handled as such: nothing in an archive can make the reader
write outside its temporary folder, fill the disk, or follow a link.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from agent.model.pods import pod_from_manifest
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import Pod, PodResources
from agent.node.files import read_text
from agent.node.kubelet import parse_json, parse_pod_resources

VERSION: Final = 1
MAX_BYTES: Final = 512 << 20
MAX_MEMBERS: Final = 200_000
_MAX_JSON: Final = 64 << 20
_CHUNK: Final = 1 << 16
_DAMAGE: Final = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A recorded host."""

    folder: Path
    """The snapshot's own folder, with ``npu-smi`` in it: what `RecordedNpuSmi` takes."""
    root: Path
    """Stands in for the host's root folder. May not exist: then the host has none of the files."""
    npu_smi: Path
    """The folder with the outputs of npu-smi. May not exist."""
    node: str
    architecture: str
    pods: tuple[Pod, ...] = ()
    pod_resources: tuple[PodResources, ...] = ()
    journal: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What people had asked for: ``spec`` and ``accepted``, the last spec that could be used, with every field;
    ``selection``, which pods are to be bound. Each may be missing."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """`status` of the plan as the agent had written it last; empty where it had written none."""
    problems: tuple[Problem, ...] = ()
    """What is damaged and can be done without: pod-resources.json (KubeletStateUnreadable)."""


@contextlib.contextmanager
def open_snapshot(path: Path) -> Iterator[Snapshot]:
    """Opens a snapshot folder, .tar.gz, .tgz or .tar; an archive is unpacked until the end of the `with` block.

    Archives may have everything in one leading folder. Only their regular files are unpacked, at most 512 MiB and
    200,000 members of them; links and devices are left out. Refused(SnapshotUnreadable) when it is not there, damaged,
    too large, of another version, or has a member that leads out of it. Damaged pod resources are among its problems.
    """
    name = printable(str(path), 100)
    with contextlib.ExitStack() as stack:
        place: Path | None = None
        try:
            if path.is_dir():
                snapshot = _read(path)
            elif path.is_file():
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-snapshot-")))
                with path.open("rb") as file:
                    files = _unpack(file, place)
                snapshot = _read(_inner(place), files)
            else:
                raise _refused("is neither a folder nor a file")
        except Refused as refused:
            said = refused.message
            raise _refused(f"{name}: {_relative(said, path if place is None else place)}") from refused
        except _DAMAGE as error:
            said = _relative(str(error) or type(error).__name__, path if place is None else place)
            raise _refused(f"{name} cannot be opened: {printable(said, 100)}") from error
        problems = tuple(replace(p, message=_relative(p.message, snapshot.folder)) for p in snapshot.problems)
        yield replace(snapshot, problems=problems)


def _relative(text: str, folder: Path) -> str:
    """A message without the place where an archive happens to be unpacked."""
    return text.replace(f"{folder}/", "")


def _read(folder: Path, files: int | None = None) -> Snapshot:
    """The snapshot in a folder; `files` is how many an archive had, where it was one."""
    text = _text(folder / "snapshot.json")
    if text is None:
        raise _refused("no snapshot.json in it")
    about = parse_json(text, "snapshot.json", Reason.SNAPSHOT_UNREADABLE)
    if not isinstance(about, Mapping):
        raise _refused("snapshot.json is not an object")
    version = about.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _refused(f"snapshot.json has version {printable(str(version), 40)}; {VERSION} is what is known here")
    recorded = about.get("files")
    if recorded is not None and (isinstance(recorded, bool) or not isinstance(recorded, int)):
        raise _refused("files in snapshot.json is not a number")
    if files is not None and recorded is not None and files < recorded:
        raise _refused(f"the archive is damaged: it has {files} files of the {recorded} that were captured")
    pods = about.get("pods")
    if pods is None:
        pods = []
    if not isinstance(pods, list) or not all(isinstance(pod, Mapping) for pod in pods):
        raise _refused("pods in snapshot.json is not a list of objects")
    resources, problems = _pod_resources(folder / "pod-resources.json")
    return Snapshot(
        folder=folder,
        root=folder / "root",
        npu_smi=folder / "npu-smi",
        node=_string(about, "node", ""),
        architecture=_string(about, "architecture", "aarch64"),
        pods=tuple(map(pod_from_manifest, pods)),
        pod_resources=resources,
        journal=_text(folder / "journal.json"),
        settings=_object(about, "settings"),
        status=_object(about, "status"),
        problems=problems,
    )


def _pod_resources(path: Path) -> tuple[tuple[PodResources, ...], tuple[Problem, ...]]:
    """What kubelet listed, or what is wrong with the list: a node without it can be planned all the same."""
    try:
        text = read_text(path, Reason.KUBELET_STATE_UNREADABLE, limit=_MAX_JSON)
        if text is None:
            return (), ()
        return parse_pod_resources(parse_json(text, path.name, Reason.KUBELET_STATE_UNREADABLE)), ()
    except Refused as refused:
        return (), (refused.problem,)


def _string(about: Mapping[str, object], field: str, default: str) -> str:
    value = about.get(field) or default
    if not isinstance(value, str):
        raise _refused(f"{field} in snapshot.json is not text")
    return value


def _object(about: Mapping[str, object], field: str) -> Mapping[str, Any]:
    value = about.get(field) or {}
    if not isinstance(value, Mapping):
        raise _refused(f"{field} in snapshot.json is not an object")
    return value


def _text(path: Path) -> str | None:
    return read_text(path, Reason.SNAPSHOT_UNREADABLE, limit=_MAX_JSON)


def _inner(folder: Path) -> Path:
    """The folder that holds snapshot.json: this one, or one in it."""
    if (folder / "snapshot.json").exists():
        return folder
    inner = [entry for entry in folder.iterdir() if (entry / "snapshot.json").is_file()]
    return inner[0] if len(inner) == 1 else folder


def _unpack(file: IO[bytes], folder: Path) -> int:
    """Unpacks an archive, and returns how many regular files it has. What is damaged raises one of _DAMAGE."""
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    # A header may announce any length, and tarfile reads extended headers whole: so the stream itself is bounded, too.
    plain = _Bounded(gzip.GzipFile(fileobj=file) if gzipped else file, MAX_BYTES + MAX_MEMBERS * 2 * tarfile.BLOCKSIZE)
    size = count = files = 0
    with tarfile.open(fileobj=plain, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            # tarfile remembers every member that it has read, for nothing here.
            archive.members.clear()  # type: ignore[attr-defined]
            count += 1
            size += max(member.size, 0) if member.isreg() else 0
            if count > MAX_MEMBERS or size > MAX_BYTES:
                raise _refused(f"the archive has more than {MAX_MEMBERS} members or {MAX_BYTES >> 20} MiB")
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise _refused(f"member {printable(member.name, 100)} leads out of the snapshot")
            if member.isreg() or member.isdir():
                _extract(archive, member, folder)
            files += member.isreg()
        # To the end of it: gzip has its checksum there, and tarfile would take a damaged archive for a short one.
        assert archive.fileobj is not None
        while rest := archive.fileobj.read(_CHUNK):
            if rest.count(0) != len(rest):
                raise tarfile.ReadError("there is something behind the end of the archive")
    return files


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Writes a folder, or a file with its content and nothing else of it. `TarFile.extract` has a filter for that, but
    not before Python 3.11.4. No link was ever written that a path could lead through."""
    path = folder / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


class _Member(tarfile.TarInfo):
    """A member whose header is whole. tarfile takes one that is not for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if len(buf) != tarfile.BLOCKSIZE:  # the end is marked by blocks of zeros
            raise tarfile.ReadError("the archive ends early")
        if any(buf):
            try:
                return super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                raise tarfile.ReadError(f"a header is damaged: {error}") from None
        return super().frombuf(buf, encoding, errors)


class _Bounded(io.RawIOBase):
    """A stream that gives out no more than so many bytes."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _refused(f"the archive unpacks to more than {MAX_BYTES >> 20} MiB")
        return data


def _refused(message: str) -> Refused:
    return Refused(Reason.SNAPSHOT_UNREADABLE, message)
