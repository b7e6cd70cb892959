"""Reading a snapshot (design section 8): a host that was recorded, as a folder or as a .tar.gz of one.

Snapshots come from anywhere, by mail as a rule, and are handled as such: nothing in an archive can make the reader
write outside its temporary folder, fill the disk, or follow a link.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.model.pods import pod_from_manifest
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import Pod, PodResources
from agent.node.archive import DAMAGE, MAX_DEPTH, MAX_MEMBERS, unpack
from agent.node.documents import parse_json
from agent.node.files import read_text
from agent.node.kubelet import parse_pod_resources

VERSION: Final = 1
_MAX_JSON: Final = 64 << 20


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
                _check(path)
                snapshot = _read(path)
            elif path.is_file():
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-snapshot-")))
                with path.open("rb") as file:
                    files = unpack(file, place)
                snapshot = _read(_inner(place), files)
            else:
                raise _refused("is neither a folder nor a file")
        except Refused as refused:
            said = refused.message
            raise _refused(f"{name}: {_relative(said, path if place is None else place)}") from refused
        except DAMAGE as error:
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


def _check(folder: Path) -> None:
    """Refuses a folder in which something else than files and folders stands, or a link that leads out of it: what is
    read as a status or a table would be told in messages, whatever file it is."""
    top = os.path.realpath(folder)
    waiting = [(os.fspath(folder), 0)]
    count = 0
    while waiting:
        place, depth = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                count += 1
                name = printable(os.path.relpath(entry.path, folder), 100)
                if count > 2 * MAX_MEMBERS or depth > MAX_DEPTH:
                    raise _refused(
                        f"it has more than {2 * MAX_MEMBERS} files, or is more than {MAX_DEPTH} folders deep"
                    )
                if entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if real != top and not real.startswith(f"{top}/"):
                        raise _refused(f"{name} leads out of the snapshot")
                elif entry.is_dir():
                    waiting.append((entry.path, depth + 1))
                elif not entry.is_file():
                    raise _refused(f"{name} is neither a file nor a folder")


def _refused(message: str) -> Refused:
    return Refused(Reason.SNAPSHOT_UNREADABLE, message)
