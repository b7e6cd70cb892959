"""``python -m benchmarks``: what the agent costs on this machine, beside what it may cost.

Each case runs in a process of its own. It prints one table and writes results.json beside this file. A figure in x is a
ratio within the run, such as CPU time over CPU time; every other figure is this machine's, which is named above the
table. The spread is that between the quartiles of the repeats; for percentiles it is least and largest.

  python -m benchmarks                             everything, less than three minutes on two cores
  python -m benchmarks --case threads --case pods  only these
  python -m benchmarks --quick                     fewer repeats and shorter windows, for CI
  python -m benchmarks compare                     results.json against baseline.json: exit 1 and a line for each
                                                   ratio that has doubled
  python -m benchmarks baseline                    puts the cases of results.json into baseline.json: on a quiet
                                                   machine, after a change that is meant to cost what it costs

Real agents run against stand-in workers, with real threads of this machine's kernel. They run as root, or as anybody:
what needs a right that is missing says so. Nothing but the stand-ins is moved.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Skipped
from benchmarks.clock import machine
from benchmarks.figures import Figure, Outcome, baseline_of, compare, table

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
BASELINE = HERE / "baseline.json"

CHILD_LIMIT = 200.0
"""Seconds after which a case is taken for hung."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.child:
        return _child(options.child, options.out, quick=options.quick)
    if options.do == "compare":
        return _compare(options.results, options.baseline)
    if options.do == "baseline":
        return _rebase(options.results, options.baseline)
    return _measure(options.case or list(CASES), options.results, quick=options.quick)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:10}{case.title} ({case.seconds} s)" for name, case in CASES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"cases:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("do", nargs="?", choices=("measure", "compare", "baseline"), default="measure")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one; can be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and shorter windows")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--child", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser


def _measure(names: list[str], results: Path, *, quick: bool) -> int:
    about = machine()
    if float(about["load"]) > 0.5:
        print(
            f"this machine is busy (load {about['load']}): what is no ratio will look worse than it is", file=sys.stderr
        )
    outcomes: dict[str, Outcome] = {}
    failed = False
    begun = time.monotonic()
    for number, name in enumerate(names, 1):
        case = CASES[name]
        expected = case.quick_seconds if quick else case.seconds
        print(f"[{number}/{len(names)}] {name}: {case.title} (about {expected} s)", file=sys.stderr, flush=True)
        outcomes[name], well = _in_its_own_process(name, quick=quick)
        failed = failed or not well
    results.write_text(json.dumps(_document(about, outcomes, quick=quick), indent=1) + "\n")
    took = time.monotonic() - begun
    print(", ".join(f"{key} {value}" if key != "cpu" else value for key, value in about.items()))
    print(f"{'quick, ' if quick else ''}{took:.0f} s; x: a ratio within this run, all else is this machine's\n")
    print(table(outcomes))
    over = [f for o in outcomes.values() if not isinstance(o, str) for f in o.values() if f.verdict == "OVER"]
    print(f"\n{len(over)} over budget" if over else "\nall within budget", f"— written to {results}")
    return 1 if failed else 0


def _in_its_own_process(name: str, *, quick: bool) -> tuple[Outcome, bool]:
    """A case's figures, or why there are none; and whether that is as it should be."""
    with tempfile.TemporaryDirectory(prefix="cpubind-bench-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "--child", name, "--out", str(out)]
        try:
            status = subprocess.run([*command, *["--quick"] * quick], cwd=HERE.parent, timeout=CHILD_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return f"no end in {CHILD_LIMIT:g} s", False
        if status.returncode != 0:
            return f"failed with status {status.returncode}", False
        return _outcome(json.loads(out.read_text())), True


def _child(name: str, out: Path, *, quick: bool) -> int:
    document: dict[str, Any]
    try:
        document = {"figures": [figure.as_json() for figure in CASES[name].run(quick=quick)]}
    except Skipped as skipped:
        document = {"skipped": str(skipped)}
    out.write_text(json.dumps(document))
    return 0


def _document(about: dict[str, str], outcomes: dict[str, Outcome], *, quick: bool) -> dict[str, Any]:
    return {
        "machine": about,
        "quick": quick,
        "cases": {
            name: {"skipped": outcome}
            if isinstance(outcome, str)
            else {"figures": [figure.as_json() for figure in outcome.values()]}
            for name, outcome in outcomes.items()
        },
    }


def _outcome(document: dict[str, Any]) -> Outcome:
    if "skipped" in document:
        return str(document["skipped"])
    figures = [Figure.from_json(entry) for entry in document["figures"]]
    return {figure.name: figure for figure in figures}


def _read(results: Path) -> dict[str, Outcome]:
    if not results.exists():
        raise SystemExit(f"{results} is not there: run `python -m benchmarks` first")
    return {name: _outcome(entry) for name, entry in json.loads(results.read_text())["cases"].items()}


def _compare(results: Path, baseline: Path) -> int:
    before: dict[str, dict[str, float]] = json.loads(baseline.read_text())["ratios"]
    now = _read(results)
    for case in sorted(before):
        if isinstance(reason := now.get(case, "not run"), str):
            print(f"{case}: not compared: {reason}")
    faults = compare(now, before)
    for fault in faults:
        print(fault)
    print("slower than the baseline" if faults else "no ratio has doubled against the baseline")
    return 1 if faults else 0


def _rebase(results: Path, baseline: Path) -> int:
    document = json.loads(results.read_text()) if results.exists() else {"machine": {}}
    ratios = baseline_of(_read(results))
    if baseline.exists():
        # Those of cases that were not measured this time stay.
        before = json.loads(baseline.read_text())["ratios"]
        ratios = {case: values for case, values in before.items() if case in CASES} | ratios
    machine_then = {key: value for key, value in document["machine"].items() if key != "load"}
    baseline.write_text(json.dumps({"machine": machine_then, "ratios": ratios}, indent=1) + "\n")
    print(f"{sum(map(len, ratios.values()))} ratios of {len(ratios)} cases are in {baseline}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
