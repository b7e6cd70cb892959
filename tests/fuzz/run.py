"""Fuzzes every parser for a while: ``make fuzz SECONDS=120``, or ``python -m tests.fuzz.run --seconds 60 cgroup maps``.

With atheris (``pip install '.[fuzz]'``), a fuzzer that goes by which lines of the agent an input gets to; without it
hypothesis looks for as long, which finds less. Each target starts from its seeds and from tests/fuzz/corpus. What is
found is a file in tests/fuzz/found, and the exit status is 1: mend it, and move the file into the target's corpus,
where tests/fuzz/test_parsers.py reads it ever after. ``--keep`` adds inputs that got to new lines to the corpus. CI
looks with the same ``--seed`` each time: what it finds comes of the change, and people look elsewhere with others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FOUND = HERE / "found"
LARGEST = 1 << 14
"""Bytes of an input. What large ones cost is tests/fuzz/test_sizes.py's."""
HANGS_SECONDS = 20
"""Of one call. What it may take is tests/fuzz/test_sizes.py's, which counts CPU time: others may have the CPU here."""
KEPT_BYTES = 2048
KEPT = 12
"""Inputs of a target that are kept, at most, and their size."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one target."""

    name: str
    runs: int
    new: int
    """Inputs that got to lines which the seeds don't."""
    fault: str


def main() -> int:
    """Exit status 1 where something was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together, on one CPU (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="a run that can be repeated (default: another each time)")
    parser.add_argument("--keep", action="store_true", help="add what got to new lines to the corpus")
    parser.add_argument("targets", nargs="*", help="default: all")
    asked = parser.parse_args()
    guided = importlib.util.find_spec("atheris") is not None
    if guided:
        _instrument()
    else:
        print("ATHERIS IS NOT INSTALLED: hypothesis looks in its place, and finds less", file=sys.stderr)
    from tests.fuzz.targets import TARGETS, UNGUIDED

    names = asked.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    seconds = max(1, asked.seconds // len(names))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:

        def one(name: str) -> Result:
            return _in_a_fork(name, guided and name not in UNGUIDED, seconds, keep=asked.keep, seed=asked.seed)

        results = list(pool.map(one, names))
    print(f"{'target':<24}{'runs':>10}{'new':>6}")
    for result in results:
        print(f"{result.name:<24}{result.runs:>10}{result.new:>6}  {result.fault}")
    found = sum(1 for result in results if result.fault)
    tool = "atheris" if guided else "hypothesis"
    print(
        f"{tool}: {len(results)} targets, {sum(r.runs for r in results)} runs, {seconds} s each; {found} with a fault"
    )
    return 1 if found else 0


def _instrument() -> None:
    """Imports the targets with every module of the agent told about."""
    atheris = importlib.import_module("atheris")
    # It names each of them on stderr.
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null), atheris.instrument_imports(include=["agent"]):
        import tests.fuzz.targets  # noqa: F401


def _in_a_fork(name: str, guided: bool, seconds: int, *, keep: bool, seed: int = 0) -> Result:
    """Each target in a process of its own: libFuzzer fuzzes one thing, and ends its process."""
    folder = Path(tempfile.mkdtemp(prefix=f"cpubind-{name}-"))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _child(name, folder, guided, seconds, seed)
        _, status = os.waitpid(child, 0)
        said = (folder / "said").read_text(errors="replace")
        runs = re.findall(r"stat::number_of_executed_units:\s*([0-9]+)", said)
        new = sorted((folder / "new").iterdir(), key=lambda path: path.stat().st_size)
        fault = ""
        if status:
            fault = _fault(said)
            FOUND.mkdir(exist_ok=True)
            for path in folder.glob("found-*"):
                shutil.copy(path, FOUND / f"{name}.{path.name}")
                fault += f" ({FOUND.name}/{name}.{path.name})"
            (FOUND / f"{name}.txt").write_text(said)
        elif keep:
            _keep(name, new)
        return Result(name, int(runs[-1]) if runs else 0, len(new), fault)
    finally:
        shutil.rmtree(folder)


def _keep(name: str, new: list[Path]) -> None:
    """The smallest, as many as there is room for: a corpus is to be read by people, too."""
    place = CORPUS / name
    there = len(list(place.iterdir())) if place.is_dir() else 0
    for path in new[: max(0, KEPT - there)]:
        if 0 < path.stat().st_size <= KEPT_BYTES:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place / path.name[:12])


def _fault(said: str) -> str:
    lines = [
        line for line in said.splitlines() if re.match(r"\w*(Error|Exception|Exit|Interrupt)\b|ALARM|==.*ERROR", line)
    ]
    return lines[0][:150] if lines else "it ended with an error"


def _child(name: str, folder: Path, guided: bool, seconds: int, seed: int) -> None:
    status = 1
    try:
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # they may have been somebody's who captures them
        (folder / "new").mkdir()
        if guided:
            _guided(name, folder, seconds, seed)
        else:
            _unguided(name, folder, seconds)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _guided(name: str, folder: Path, seconds: int, seed: int) -> None:
    atheris = importlib.import_module("atheris")
    from tests.fuzz.targets import TARGETS, check

    target = TARGETS[name]
    (folder / "seeds").mkdir()
    for number, given in enumerate(target.seeds):
        (folder / f"seeds/{number}").write_bytes(given)
    (folder / "words").write_text("".join(f'"{_quoted(word)}"\n' for word in target.words if word))
    folders = [folder / "new", folder / "seeds", *([CORPUS / name] if (CORPUS / name).is_dir() else [])]

    def one(data: bytes) -> None:
        check(target, data)

    options: dict[str, Any] = {
        "seed": seed,  # 0 is libFuzzer's word for any
        "max_total_time": seconds,
        "max_len": LARGEST,
        "timeout": HANGS_SECONDS,
        "rss_limit_mb": 1024,
        "print_final_stats": 1,
        "artifact_prefix": f"{folder}/found-",
    }
    flags = [f"-{key}={value}" for key, value in options.items()]
    if target.words:
        flags.append(f"-dict={folder}/words")
    atheris.Setup([name, *flags, *map(str, folders)], one)
    atheris.Fuzz()


def _quoted(word: bytes) -> str:
    """As a dictionary of libFuzzer has it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def _unguided(name: str, folder: Path, seconds: int) -> None:
    from hypothesis import HealthCheck, given, settings

    from tests.fuzz.targets import TARGETS, check
    from tests.fuzz.test_fuzzed import anything

    target, runs, until = TARGETS[name], 0, time.monotonic() + seconds

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(anything(target))
    def look(data: bytes) -> None:
        nonlocal runs
        runs += 1
        (folder / "found-last").write_bytes(data)
        check(target, data)

    while time.monotonic() < until:
        look()
    (folder / "found-last").unlink()
    print(f"stat::number_of_executed_units: {runs}")


if __name__ == "__main__":
    sys.exit(main())
