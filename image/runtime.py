#!/usr/bin/env python3
"""Puts what the agent needs at run time into a folder of its own, which becomes the image:

    python3 runtime.py ROOT VENV

Of the base it takes the interpreter that VENV was made with, its standard library, every shared library that these and
VENV are linked to, the C and C++ runtime for npu-smi, which comes from the node and brings no such thing along, and
`PROGRAMS`. It takes no package manager, no installer and no other program; nothing that it takes is setuid or setgid.

The base is any Linux with glibc and with Python 3.11 or newer. Where it is Debian's kind, the records and the copyright
notices of the packages that something was taken of come along, in the form that scanners of images know.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

PROGRAMS = ("sh", "mount", "grep")
"""libdcmi, the driver's library below npu-smi, tells a container from a machine by `mount | grep`, run with system(3);
where that can't be run it takes the container for a machine."""

LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libutil.so.1"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
)
"""What a C or C++ program that was built elsewhere may be linked to."""

LEFT_OUT = (
    *("ensurepip", "venv", "site-packages", "dist-packages", "config-*"),
    *("idlelib", "lib2to3", "pydoc_data", "tkinter", "_tkinter.*", "turtle*", "nis.*"),
    *("test", "tests", "_test*", "_xxtest*", "xxlimited*"),
)
"""Of the standard library: installers and packages, for VENV has its own; windows; tests."""

COMMANDS = ("cpubind", "python", "python3")
"""Of VENV's. Others came with what was installed there."""

FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var")

FILES = (
    *("/etc/os-release", "/etc/ssl/certs/ca-certificates.crt", "/usr/lib/locale/C.utf8"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)
"""Taken where they are there: which system the base is, who is trusted, UTF-8, where libraries are."""


DPKG = Path("/var/lib/dpkg")


class Root:
    """A folder that grows into the root of the image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: set[Path] = set()
        """Files of the base, by their real paths."""

    def at(self, path: Path) -> Path:
        return self.folder / path.relative_to("/")

    def take(self, path: Path, skip: Iterable[str] = ()) -> None:
        """Copies a file, or a folder with all that is in it but what has a name of the patterns in `skip`; links stay
        links, and what they lead to is copied, too."""
        path = self._followed(path)
        if path.is_dir():
            self.at(path).mkdir(parents=True, exist_ok=True)
            for entry in sorted(path.iterdir()):
                if not any(fnmatch(entry.name, pattern) for pattern in skip):
                    self.take(entry, skip)
        elif path.is_file() and path not in self.taken:
            self.at(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, self.at(path))
            self.at(path).chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
            self.taken.add(path)

    def _followed(self, path: Path) -> Path:
        """The real path; each link on the way there is made in the root as the base has it."""
        real = Path("/")
        parts = list(path.parts[1:])
        while parts:
            step = real / parts.pop(0)
            if not step.is_symlink():
                real = step
                continue
            target = step.readlink()
            made = self.at(step)
            made.parent.mkdir(parents=True, exist_ok=True)
            if not made.is_symlink():
                made.symlink_to(target)
            whole = Path(os.path.normpath(real / target))
            parts = [*whole.parts[1:], *parts]
            real = Path("/")
        return real


def linked(file: Path) -> Iterator[Path]:
    """The shared libraries of a program or library, and its loader."""
    told = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
    if "not found" in told.stdout:
        raise SystemExit(f"{file} is linked to what this base does not have:\n{told.stdout}")
    for line in told.stdout.splitlines():
        if found := re.search(r"(?:=>|^)\s*(/\S+) \(0x", line):
            yield Path(found[1])


def elf_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield path


def library(name: str) -> Path:
    """Where the base has a shared library that anything may ask for by name."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    # More than one: of another architecture, or for a processor that this one is not.
    for path in re.findall(rf"^\s*{re.escape(name)} \(libc6,[^)]*\) => (/\S+)$", known, re.MULTILINE):
        return Path(path)
    raise SystemExit(f"this base has no {name}, which npu-smi may need: install it there, or take another base")


def take_python(root: Root) -> None:
    """The interpreter that runs this, and its standard library."""
    interpreter = Path(getattr(sys, "_base_executable", sys.executable))
    root.take(interpreter)
    root.take(interpreter.with_name("python3"))
    for kind in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix}))
        root.take(folder, LEFT_OUT)


def take_environment(root: Root, venv: Path) -> None:
    """What is installed in VENV, and the commands that the image is for."""
    for entry in venv.iterdir():
        if entry.name != "bin":
            root.take(entry)
    for name in COMMANDS:
        root.take(venv / "bin" / name)


def take_records(root: Root) -> None:
    """Of Debian's packages that something was taken of: their entry, and their copyright notice."""
    if not (DPKG / "info").is_dir():
        return
    owners: dict[str, str] = {}
    for listed in (DPKG / "info").glob("*.list"):
        package = listed.stem.partition(":")[0]
        owners |= dict.fromkeys(listed.read_text().splitlines(), package)
    # dpkg knows many files by the path that they had before /lib was a link to /usr/lib.
    packages = {
        owners[name] for path in root.taken for name in (str(path), str(path).removeprefix("/usr")) if name in owners
    }
    entries = {
        entry.partition("\n")[0].removeprefix("Package: "): entry
        for entry in (DPKG / "status").read_text().split("\n\n")
        if entry.startswith("Package: ")
    }
    folder = root.at(DPKG / "status.d")
    folder.mkdir(parents=True)
    for package in sorted(packages):
        (folder / package).write_text(entries[package].strip() + "\n")
        root.take(Path("/usr/share/doc") / package / "copyright")


def build(folder: Path, venv: Path) -> Root:
    """Fills `folder`, which must not be there yet. SystemExit says what the base lacks."""
    folder.mkdir(parents=True)
    root = Root(folder)
    for name in FOLDERS:
        (folder / name).mkdir()
    (folder / "tmp").chmod(0o1777)
    take_python(root)
    take_environment(root, venv)
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is None:
            raise SystemExit(f"this base has no {name}, which npu-smi's library runs")
        root.take(Path("/bin") / name if (Path("/bin") / name).exists() else Path(found))
    for name in LIBRARIES:
        root.take(library(name))
    for path in map(Path, FILES):
        if path.exists():
            root.take(path)
    for file in sorted(elf_files(root.taken)):
        for needed in linked(file):
            root.take(needed)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (folder / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (folder / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    take_records(root)
    subprocess.run(["/sbin/ldconfig", "-r", str(folder)], check=True)
    return root


if __name__ == "__main__":
    destination, environment = map(Path, sys.argv[1:])
    build(destination, environment)
