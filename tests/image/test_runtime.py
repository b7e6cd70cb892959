"""What the image gets of its base, collected from this machine, which stands in for one, and run in there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from image.runtime import COMMANDS, DPKG, LIBRARIES, PROGRAMS, Root

SCRIPT = Path(__file__).parents[2] / "image/runtime.py"

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/sbin/ldconfig").exists(), reason="needs root, to change the root, and glibc"
)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a command of ours and others, as pip leaves it."""
    folder = tmp_path_factory.mktemp("opt") / "cpubind"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / "bin/cpubind").write_text(f"#!{folder}/bin/python\nimport ssl, ctypes, json, sys\nprint(sys.prefix)\n")
    (folder / "bin/cpubind").chmod(0o755)
    shutil.copy2(folder / "bin/cpubind", folder / "bin/dotenv")
    return folder


@pytest.fixture(scope="module")
def root(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the image."""
    folder = tmp_path_factory.mktemp("image") / "root"
    interpreter = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([interpreter, str(SCRIPT), str(folder), str(venv)], check=True, timeout=120)
    return folder


def inside(root: Path, *command: str | Path) -> str:
    """What a program prints that has this for its root."""
    done = subprocess.run(["chroot", str(root), *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_agents_command_runs_in_there(root: Path, venv: Path) -> None:
    assert inside(root, venv / "bin/cpubind").strip() == str(venv)


def test_what_the_drivers_library_asks_of_a_shell_works(root: Path) -> None:
    """As libdcmi does to see whether it is in a container."""
    told = "overlay on / type overlay (rw,lowerdir=/var/lib/containerd/x)"
    script = f"echo '{told}' | grep -Ei '\\s+/\\s+' | grep -E 'isulad|docker|containers|containerd'"
    assert inside(root, "/bin/sh", "-c", script).strip() == told
    assert "util-linux" in inside(root, "/bin/mount", "--version")
    assert (root / "usr/bin/mount").exists()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_program_of_the_node_finds_the_runtime_of_c_and_cpp(root: Path, venv: Path, name: str) -> None:
    inside(root, venv / "bin/python", "-c", f"import ctypes; ctypes.CDLL({name!r})")


def test_there_is_no_other_program_in_it(root: Path, venv: Path) -> None:
    folders = [root / name for name in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin")]
    programs = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}
    # What `sh` and `python3` are links to.
    shells, pythons = {"dash", "bash", "busybox"}, {name for name in programs if name.startswith("python")}
    assert programs - shells - pythons == set(PROGRAMS)
    assert {entry.name for entry in (root / venv.relative_to("/") / "bin").iterdir()} <= {
        *COMMANDS,
        *pythons,
        "python3.11",
    }
    for name in ("pip", "ensurepip", "apt", "dpkg", "perl"):
        assert not [path for path in root.rglob(name) if path.is_file() or name == "ensurepip"], name


def test_nothing_in_it_gives_rights_to_whoever_runs_it(root: Path) -> None:
    """/bin/mount is setuid on most systems."""
    modes = {path: path.lstat().st_mode for path in root.rglob("*") if not path.is_symlink()}
    assert [path for path, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert [path for path, mode in modes.items() if mode & stat.S_IWOTH and path != root / "tmp"] == []


def test_no_link_in_it_leads_nowhere(root: Path) -> None:
    dangling = []
    for link in (path for path in root.rglob("*") if path.is_symlink()):
        target = Path(os.path.normpath(Path("/") / link.parent.relative_to(root) / link.readlink()))
        if not os.path.lexists(root / target.relative_to("/")):
            dangling.append((link, target))
    assert dangling == []


@pytest.mark.skipif(not (DPKG / "info").is_dir(), reason="no Debian")
def test_scanners_of_images_find_the_packages_that_something_was_taken_of(root: Path) -> None:
    records = {entry.name: entry.read_text() for entry in (root / "var/lib/dpkg/status.d").iterdir()}
    assert {"libc6", "libstdc++6", "grep", "mount"} <= records.keys()
    assert not {"apt", "dpkg", "coreutils"} & records.keys()
    for name, text in records.items():
        assert f"Package: {name}\n" in text
        assert "\nVersion: " in text
    assert (root / "usr/share/doc/libc6/copyright").stat().st_size
    assert (root / "etc/os-release").read_text()


def test_links_on_the_way_to_a_file_are_made_as_the_base_has_them(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "usr/lib").mkdir(parents=True)
    (base / "usr/lib/real").write_text("it")
    (base / "lib").symlink_to("usr/lib")
    (base / "usr/lib/name").symlink_to(base / "lib/real")
    root = Root(tmp_path / "root")
    root.take(base / "lib/name")
    assert root.at(base / "lib").readlink() == Path("usr/lib")
    assert root.at(base / "usr/lib/name").is_symlink()
    assert root.at(base / "usr/lib/real").read_text() == "it"
    assert root.taken == {base / "usr/lib/real"}
