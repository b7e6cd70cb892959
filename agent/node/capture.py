"""Writing a snapshot (design section 8): what `cpubind capture` puts into a support bundle.

Only what planning and binding read: no file contents of any process, and no environment and no command line unless
they are asked for; of a pod its names, ids, CPU limits and the annotations that are cpubind's own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from agent.model.pods import ANNOTATIONS, manifest_of
from agent.model.reason import Reason, Refused, printable
from agent.model.workload import Pod, PodResources
from agent.node.archive import MAX_BYTES, MAX_MEMBERS
from agent.node.host_copy import copy_host
from agent.node.kubelet import document_of
from agent.node.snapshot import VERSION

_QUERIES: Final = (("info",), ("info", "-m"), ("info", "-t", "topo"))


@dataclass(frozen=True, slots=True)
class CaptureSummary:
    """What a capture wrote."""

    files: int
    size: int
    """Bytes of the files together."""
    processes: int
    notes: tuple[str, ...] = ()
    """What could not be had, one printable line each."""
    inventory: bool = True
    """Whether npu-smi info gave its table. There is no plan to make of a snapshot without it."""


def capture(
    root: Path,
    npu_smi_query: Callable[..., str],
    target: Path,
    *,
    node: str,
    architecture: str,
    pids: Iterable[int] = (),
    chips: Iterable[tuple[int, int]] = (),
    pods: Sequence[Pod] = (),
    pod_resources: Sequence[PodResources] | None = None,
    journal: str | None = None,
    settings: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    private: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _line: None,
) -> CaptureSummary:
    """Writes a snapshot of the host below `root`: an archive where `target` ends in .tar.gz, .tgz or .tar, or a folder.

    `npu_smi_query` is `NpuSmi.query`; `pids` are the processes to record beside PID 1; `chips` are the (card, chip)
    whose board is asked for. `settings` and `status` are as in `Snapshot`. `private` names files of the processes that
    may hold secrets and are wanted all the same: ``environ``, ``cmdline``. `target` appears when it is complete, and
    not at all otherwise. What can't be read is left out and said in the summary. Refused(SnapshotNotWritten) when
    `target` can't be written, would become too large to be opened again, or is a folder with something in it.
    """
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        progress(line)

    try:
        with _writing(target) as sink:
            # Kept until all is there: snapshot.json comes first and says how many files there are.
            files = _Files()
            if pod_resources is not None:
                files.add("pod-resources.json", _json(document_of(pod_resources)))
            if journal is not None:
                files.add("journal.json", journal.encode("utf-8", "surrogateescape"))
            queries = [*_QUERIES, *(("info", "-t", "board", "-i", str(i), "-c", str(c)) for i, c in chips)]
            answered = []
            for number, args in enumerate(queries, 1):
                progress(f"npu-smi {' '.join(args)} ({number} of {len(queries)})")
                answered.append(_ask(npu_smi_query, args, files.add, note))
            processes = copy_host(root, sorted({1, *pids}), files.add, note, progress, private=private)
            about: dict[str, Any] = {
                "version": VERSION,
                "node": node,
                "architecture": architecture,
                "files": len(files.content) + 1,
                "pods": [_trimmed(p) for p in pods],
                **({"settings": dict(settings)} if settings else {}),
                **({"status": dict(status)} if status else {}),
            }
            files.add("snapshot.json", _json(about))
            sink.add("snapshot.json", files.content.pop("snapshot.json"))
            for name, content in files.content.items():
                sink.add(name, content)
    except OSError as error:
        said = error.strerror or printable(str(error), 60)
        raise Refused(Reason.SNAPSHOT_NOT_WRITTEN, f"{printable(str(target), 150)}: {said}") from error
    return CaptureSummary(about["files"], files.size, processes, tuple(notes), inventory=answered[0])


def _ask(
    query: Callable[..., str], args: tuple[str, ...], add: Callable[[str, bytes], None], note: Callable[[str], None]
) -> bool:
    """One query of npu-smi, and whether it was answered; its file is named after the arguments without their dashes."""
    name = "npu-smi/" + "-".join(arg.lstrip("-") for arg in args)
    try:
        add(f"{name}.txt", query(*args).encode("utf-8", "surrogateescape"))
    except Refused as refused:
        note(f"npu-smi {' '.join(args)}: {refused}")
        # A missing file is how a snapshot says these. The text of any other error says it once more when replayed.
        absent = Reason.NPU_SMI_NOT_FOUND if args == ("info",) else Reason.NOT_SUPPORTED
        if refused.reason is not absent:
            add(f"{name}.txt", f"{refused.message}\n".encode("utf-8", "replace"))
            add(f"{name}.rc", b"1\n")
        return False
    return True


def _trimmed(pod: Pod) -> dict[str, Any]:
    kept = {name: value for name, value in pod.annotations.items() if name.startswith(ANNOTATIONS)}
    return manifest_of(replace(pod, annotations=kept))


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


class _Sink(Protocol):
    def add(self, name: str, content: bytes) -> None: ...


class _Files:
    """The files of a snapshot, kept small enough for `open_snapshot`."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.size = 0

    def add(self, name: str, content: bytes) -> None:
        self.size += len(content) - len(self.content.get(name, b""))
        self.content[name] = content
        if len(self.content) > MAX_MEMBERS or self.size > MAX_BYTES:
            limit = f"{MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB"
            raise Refused(Reason.SNAPSHOT_NOT_WRITTEN, f"the snapshot would have more than {limit}")


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: set[PurePosixPath] = set()

    def add(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if (parent := PurePosixPath(name).parent) not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        path.write_bytes(content)


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def add(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o600
        self._archive.addfile(member, io.BytesIO(content))


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[_Sink]:
    """Something to add files to; what was added becomes `target` at the end, unless an exception ends the block."""
    name = target.name
    packed = name.endswith((".tar.gz", ".tgz", ".tar"))
    if packed:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                mode: Any = "w:" if name.endswith(".tar") else "w:gz"
                with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:
                    yield _Archive(archive)
                file.flush()
                os.fsync(descriptor)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    else:
        temporary = tempfile.mkdtemp(dir=target.parent, prefix=f".{name}.")
        try:
            yield _Folder(Path(temporary))
            # rename(2) replaces an empty folder and refuses one with something in it.
            Path(temporary).rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
