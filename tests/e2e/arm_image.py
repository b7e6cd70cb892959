"""An image of this project for ARM64, packed on a machine of any kind: nothing in it runs here.

What the Dockerfile makes is put together from parts: of a Debian root what a container needs, the locked wheels, and
this checkout's agent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.kubectl import call, output
from tests.e2e.wait import until
from tests.vm.arm64 import PACKAGES, build_site

IMAGE = "localhost/cpubind:arm64"
"""Its name on the node."""

_FOLDERS = ("lib", "usr/lib/aarch64-linux-gnu", "usr/lib/python3.11")
_PROGRAMS = ("usr/bin/python3.11", "usr/bin/taskset", "bin/busybox")
# Kernel modules, and what desktops, firewalls and authors of programs need.
_LEFT_OUT = (
    *("modules", "systemd", "udev", "gconv", "gio", "tc", "xtables", "krb5", "perl*", "libperl*", "libg[iol]*-2*"),
    *("idlelib", "lib2to3", "pydoc_data", "ensurepip", "tkinter", "turtle*"),
)
_APPLETS = "sh cat chmod cp grep head kill ls mkdir mv rm rmdir sleep true"
_EMPTY = "dev etc host proc root run sys tmp"

_CPUBIND = """\
#!/usr/bin/python3
import sys
from agent.cli import main
sys.exit(main())
"""

_CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{address}"
"""

_APT = """
set -e
mkdir -p lists/partial archives/partial
apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
    -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD" -o Dir::Cache::archives="$PWD/archives" "$@"
}
apt update
apt download libstdc++6
dpkg-deb -x libstdc++6_*.deb unpacked
"""


def pack_image(debian: Path, packer: str, scratch: Path) -> Path:
    """Returns an archive with the image. `debian` is a root of it for ARM64, `packer` the program kube-node."""
    root = scratch / "rootfs"
    for folder in _FOLDERS:
        shutil.copytree(debian / folder, root / folder, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for program in _PROGRAMS:
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(debian / program, root / program)
    for file in _libstdcxx().iterdir():
        shutil.copy2(file, root / "usr/lib/aarch64-linux-gnu", follow_symlinks=False)
    for name in _APPLETS.split():
        (root / "bin" / name).symlink_to("busybox")
    (root / "usr/bin/python3").symlink_to("python3.11")
    for folder in _EMPTY.split():
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    build_site(root)
    _leave_bytecode(root / "usr/lib/python3.11")
    _leave_bytecode(root / PACKAGES)
    entry = root / "usr/local/bin/cpubind"
    entry.parent.mkdir(parents=True)
    entry.write_text(_CPUBIND)
    entry.chmod(0o755)
    archive = scratch / "image.tar"
    output(call(packer, "pack", IMAGE, str(root), str(archive), "cpubind", env={"ARCH": "arm64"}, seconds=300))
    shutil.rmtree(root)
    return archive


def take_in(archive: Path, scratch: Path, root: Path) -> None:
    """Imports an image into a containerd of this machine that has `root` for its own, to be taken elsewhere.

    The same in an emulated guest is two programs that hand each other 100 MB in small pieces: minutes.
    """
    address = scratch / "containerd.sock"
    config = scratch / "containerd.toml"
    config.write_text(_CONTAINERD.format(root=root, state=scratch / "containerd", address=address))
    with (scratch / "containerd.log").open("wb") as log:
        running = subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log)
    try:
        ctr = ("ctr", "--address", str(address), "--namespace", "k8s.io")
        until(lambda: call(*ctr, "version").returncode == 0, "a containerd runs")
        options = ("--platform", "linux/arm64", "--snapshotter", "overlayfs")
        output(call(*ctr, "images", "import", *options, str(archive), seconds=120))
    finally:
        running.terminate()
        running.wait(30)


def _leave_bytecode(folder: Path) -> None:
    """Takes the source away wherever there is bytecode, which halves what the guest must hash and unpack."""
    for compiled in folder.rglob("__pycache__/*.cpython-311.pyc"):
        source = compiled.parent.with_name(f"{compiled.name.partition('.')[0]}.py")
        if source.exists():
            source.unlink()
            compiled.rename(source.with_suffix(".pyc"))


def _libstdcxx() -> Path:
    """The folder with the C++ library that grpcio's wheel is linked to; Debian's python3 does without."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpubind"
    found = cache / "arm64-libstdc++6" / "usr/lib/aarch64-linux-gnu"
    if not found.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="libstdc++-", dir=cache) as scratch:
            output(call("sh", "-c", f"cd '{scratch}'\n{_APT}", seconds=300))
            (Path(scratch) / "unpacked").rename(cache / "arm64-libstdc++6")
    return found
