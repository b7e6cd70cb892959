"""What the agent is made of on an ARM64 machine with Python 3.11, gathered on a machine of any kind.

Nothing in here runs what it gathers: wheels are unpacked, and the bytecode is that of the Python that this runs in.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
PACKAGES = Path("usr/lib/python3/dist-packages")
"""Where Debian's python3 looks for packages, below a root folder."""

PYTHON = (3, 11)
"""The Python of Debian 12, whose bytecode no other one reads."""
GLIBC_MINORS = range(17, 37)
"""Wheels made for glibc 2.17 up to 2.36, that of Debian 12. pip takes each name of a platform literally."""

_LAYOUT = "1"
"""Changes when what is gathered from one lock does."""


class BuildError(Exception):
    """The message says in one line why the packages can't be had here."""


def build_site(folder: Path) -> Path:
    """Fills `folder` with usr/lib/python3/dist-packages: the locked wheels for aarch64, and this checkout's agent.

    The wheels are downloaded once for each state of requirements.lock and kept below $XDG_CACHE_HOME/cpubind (default
    ~/.cache/cpubind); the agent is copied at each call. Everything is compiled, with bytecode that is read whatever the
    times of the files are. Returns `folder`. Raises `BuildError` where this is another Python than 3.11, or where pip
    can't get the wheels.
    """
    if sys.version_info[:2] != PYTHON:
        raise BuildError(f"bytecode for Python 3.11 can't be made by Python {sys.version.split()[0]}")
    packages = folder / PACKAGES
    packages.mkdir(parents=True, exist_ok=True)
    shutil.copytree(_wheels(), packages, dirs_exist_ok=True)
    agent = packages / "agent"
    shutil.rmtree(agent, ignore_errors=True)
    shutil.copytree(ROOT / "agent", agent, ignore=shutil.ignore_patterns("__pycache__"))
    _compile(agent)
    return folder


def _wheels() -> Path:
    """The folder in the cache with the wheels of the lock, unpacked and compiled."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpubind"
    key = hashlib.sha256(_LAYOUT.encode() + LOCK.read_bytes()).hexdigest()[:16]
    done = cache / f"arm64-{key}"
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arm64-", dir=cache) as scratch:
        fresh = Path(scratch) / "packages"
        _install(fresh)
        _trim(fresh)
        _compile(fresh)
        try:
            fresh.rename(done)
        except OSError:  # another run was faster
            if not done.is_dir():
                raise
    return done


def _install(target: Path) -> None:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in GLIBC_MINORS] + ["manylinux2014_aarch64"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command += ["--target", str(target), "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", ".".join(map(str, PYTHON))]
    for platform in platforms:
        command += ["--platform", platform]
    ran = subprocess.run([*command, "--requirement", str(LOCK)], capture_output=True, text=True, check=False)
    if ran.returncode:
        # pip warns on stderr, too, of what does no harm.
        errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or [f"status {ran.returncode}"]
        raise BuildError(f"pip can't install the locked wheels for aarch64: {errors[0]}")


def _trim(packages: Path) -> None:
    """Takes out what the image does without, too (see the Dockerfile): an initial RAM disk is memory of the guest."""
    shutil.rmtree(packages / "bin", ignore_errors=True)
    shutil.rmtree(packages / "kubernetes/aio", ignore_errors=True)
    for file in (packages / "kubernetes/client/api").glob("*_api.py"):
        if file.name != "custom_objects_api.py":
            file.unlink()


def _compile(folder: Path) -> None:
    # Some packages carry a file in a syntax of the future, which nobody imports: no reason to fail.
    compileall.compile_dir(folder, quiet=2, workers=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
