"""Host trees for the readers: small fakes, and the recorded texts in tests/fixtures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a shared build machine stalls now and then. The examples are the same at every run of the CI.
settings.register_profile(
    "cpubind-host-reading",
    deadline=None,
    max_examples=60,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("cpubind-host-reading")


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """tests/fixtures."""
    return Path(__file__).parents[2] / "fixtures"


Tree = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def tree() -> Iterator[Tree]:
    """Makes a host tree of path -> text, or adds to it, and returns its root."""
    # In memory where that is to be had: a host of 4,096 CPUs is as many folders.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cpubind-host-", dir=memory) as name:
        root = Path(name).resolve()
        made: set[str] = set()

        def make(files: Mapping[str, str]) -> Path:
            for path, text in files.items():
                folder = path.rpartition("/")[0]
                if folder not in made:
                    (root / folder).mkdir(parents=True, exist_ok=True)
                    made.add(folder)
                with open(f"{root}/{path}", "wb") as file:
                    file.write(text.encode("utf-8", "surrogateescape"))
            return root

        yield make


@pytest.fixture
def needs_root() -> None:
    """Skips where the kernel would not let this user do what the test is about."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def make_device(needs_root: None) -> Callable[[Path, int, int], None]:
    """mknod of a character device; skips where the kernel does not allow it."""

    def make(path: Path, major: int, minor: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("the kernel does not allow mknod here (a user namespace)")

    return make
