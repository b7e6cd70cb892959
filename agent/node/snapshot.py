"""Reading a snapshot (design section 8): a host that was recorded, as a folder or as a .tar.gz of one.

Snapshots come from anywhere, by mail as a rule, and are handled as such: nothing in an archive can make the reader
write outside its temporary folder, fill the disk, or follow a link.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from agent.model.pods import pod_from_manifest
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import Pod, PodResources
from agent.node.files import read_text
from agent.node.kubelet import parse_json, parse_pod_resources

VERSION: Final = 1
MAX_BYTES: Final = 512 << 20
MAX_MEMBERS: Final = 200_000
_MAX_JSON: Final = 64 << 20
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
    problems: tuple[Problem, ...] = ()
    """What is damaged and can be done without: pod-resources.json (KubeletStateUnreadable)."""


@contextlib.contextmanager
def open_snapshot(path: Path) -> Iterator[Snapshot]:
    """Opens a snapshot folder, .tar.gz, .tgz or .tar; an archive is unpacked until the end of the `with` block.

    Archives may have everything in one leading folder. Only their regular files are unpacked, at most 512 MiB and
    200,000 members of them; links and devices are left out. Refused(SnapshotUnreadable) when it is not there, damaged,
    too large, of another version, or has a member that leads out of it. Damaged pod resources are among its problems.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = path if path.is_dir() else _unpacked(path, stack)
        except _DAMAGE as error:
            said = printable(str(error) or type(error).__name__, 100)
            raise _refused(f"{printable(str(path), 100)} cannot be opened: {said}") from error
        yield _read(folder)


def _unpacked(path: Path, stack: contextlib.ExitStack) -> Path:
    """The folder with snapshot.json of an archive, unpacked until `stack` is closed."""
    if not path.is_file():
        raise _refused(f"{printable(str(path), 150)} is neither a folder nor a file")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-snapshot-")))
    with path.open("rb") as file:
        _unpack(file, folder)
    return _inner(folder)


def _read(folder: Path) -> Snapshot:
    text = _text(folder / "snapshot.json")
    if text is None:
        raise _refused(f"no snapshot.json in {printable(str(folder), 150)}")
    about = parse_json(text, "snapshot.json", Reason.SNAPSHOT_UNREADABLE)
    if not isinstance(about, Mapping):
        raise _refused("snapshot.json is not an object")
    version = about.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _refused(f"snapshot.json has version {printable(str(version), 40)}; {VERSION} is what is known here")
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


def _text(path: Path) -> str | None:
    return read_text(path, Reason.SNAPSHOT_UNREADABLE, limit=_MAX_JSON)


def _inner(folder: Path) -> Path:
    """The folder that holds snapshot.json: this one, or one in it."""
    if (folder / "snapshot.json").exists():
        return folder
    inner = [entry for entry in folder.iterdir() if (entry / "snapshot.json").is_file()]
    return inner[0] if len(inner) == 1 else folder


def _unpack(file: IO[bytes], folder: Path) -> None:
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    # A header may announce any length, and tarfile reads extended headers whole: so the stream itself is bounded, too.
    plain = _Bounded(gzip.GzipFile(fileobj=file) if gzipped else file, MAX_BYTES + MAX_MEMBERS * 2 * tarfile.BLOCKSIZE)
    size = count = 0
    with tarfile.open(fileobj=plain, mode="r|") as archive:
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
                archive.extract(member, folder, set_attrs=False, filter="data")


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
