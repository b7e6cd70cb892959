"""The arithmetic of benchmarks: medians, percentiles, the comparison with a baseline, the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.figures import (
    Figure,
    Outcome,
    absent,
    baseline_of,
    compare,
    figure,
    percentile,
    percentile_figure,
    quartiles,
    ratios,
    shown,
    single,
    table,
)


def ratio(name: str, value: float, **more: object) -> Figure:
    return single(name, value, compared=True, **more)


def outcomes(**cases: list[Figure] | str) -> dict[str, Outcome]:
    return {
        case: found if isinstance(found, str) else {entry.name: entry for entry in found}
        for case, found in cases.items()
    }


def test_a_figure_is_the_median_and_its_spread_the_quartiles() -> None:
    found = figure("bind", [5.0, 1.0, 2.0, 4.0, 30.0])
    assert (found.value, found.low, found.high, found.repeats) == (4.0, 2.0, 5.0, 5)


def test_of_one_sample_the_spread_is_itself() -> None:
    assert quartiles([7.0]) == (7.0, 7.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (0, 1.0), (99.5, 100.0)])
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(percent: float, expected: float) -> None:
    samples = [float(n) for n in range(100, 0, -1)]
    assert percentile(samples, percent) == expected


def test_the_99th_percentile_of_few_samples_is_the_largest() -> None:
    found = percentile_figure("placed", [3.0, 1.0, 2.0], 99)
    assert (found.value, found.low, found.high) == (3.0, 1.0, 3.0)


def test_ratios_are_those_of_the_same_repeat() -> None:
    assert ratios([10.0, 40.0], [5.0, 10.0]) == [2.0, 4.0]


@pytest.mark.parametrize(
    ("value", "budget", "at_least", "verdict"),
    [
        (5.0, 5.0, False, "ok"),
        (5.1, 5.0, False, "OVER"),
        (50.0, 50.0, True, "ok"),
        (49.0, 50.0, True, "OVER"),
        (0.0, 0.0, False, "ok"),
        (1.0, None, False, ""),
    ],
)
def test_a_budget_is_kept_or_not(value: float, budget: float | None, at_least: bool, verdict: str) -> None:
    assert single("x", value, budget=budget, at_least=at_least).verdict == verdict


def test_a_ratio_that_doubled_is_named() -> None:
    faults = compare(outcomes(threads=[ratio("cold", 6.0), ratio("warm", 1.9)]), {"threads": {"cold": 3, "warm": 1}})
    assert faults == ["threads: cold: 6, baseline 3: 2.0 times worse"]


def test_of_a_ratio_of_which_more_is_better_the_half_is_as_bad() -> None:
    now = outcomes(threads=[ratio("tools / cold", 24.0, at_least=True)])
    assert len(compare(now, {"threads": {"tools / cold": 50}})) == 1
    assert compare(now, {"threads": {"tools / cold": 12}}) == [], "twice as good"


def test_a_ratio_that_is_not_measured_any_more_is_a_fault() -> None:
    faults = compare(outcomes(threads=[ratio("cold", 1.0)]), {"threads": {"cold": 1, "warm": 1}})
    assert faults == ["threads: warm: in the baseline, not measured any more"]


def test_cases_that_were_left_out_or_skipped_are_not_compared() -> None:
    known = {"threads": {"cold": 1.0}, "naming": {"p50": 1.0}}
    assert compare(outcomes(naming="one CPU"), known) == []


def test_what_a_machine_can_not_show_is_told_and_not_compared() -> None:
    now = outcomes(threads=[absent("cold / C", "no compiler")])
    assert compare(now, {"threads": {"cold / C": 5.0}}) == []
    assert baseline_of(now) == {}
    lines = table(now).splitlines()
    assert lines[1].split() == ["threads", "cold", "/", "C", "–"]
    assert lines[2].strip() == "not measured: no compiler"


def test_what_is_no_ratio_can_not_be_compared() -> None:
    assert "no ratios" in compare(outcomes(pods=[ratio("growth", 0.0)]), {"pods": {"growth": 1.0}})[0]
    assert "no ratios" in compare(outcomes(pods=[ratio("growth", 1.0)]), {"pods": {"growth": 0.0}})[0]


def test_a_baseline_holds_what_is_compared_and_nothing_of_this_machine() -> None:
    now = outcomes(threads=[ratio("cold", 3.14159), single("ms", 9.0, unit="ms")], pods="skipped", other=[])
    assert baseline_of(now) == {"threads": {"cold": 3.14}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.4, "1234"),
        (99.94, "99.9"),
        (3.14159, "3.14"),
        (0.0123456, "0.0123"),
        (2.0, "2"),
        (100.0, "100"),
    ],
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_table_has_a_line_for_each_figure_and_says_what_is_over() -> None:
    text = table(
        outcomes(
            threads=[
                figure("cold / bare", [4.0, 6.0, 5.5], budget=5.0, note="4800 threads"),
                single("tools / cold", 80.0, budget=50.0, at_least=True),
            ],
            naming="one CPU",
        )
    )
    lines = text.splitlines()
    assert len(lines) == 5
    assert lines[1].split() == [
        "threads",
        "cold",
        "/",
        "bare",
        "5.5",
        "x",
        "4.75–5.75",
        "of",
        "3",
        "≤",
        "5",
        "x",
        "OVER",
    ]
    assert lines[2].strip() == "4800 threads"
    assert lines[3].split()[-4:] == ["≥", "50", "x", "ok"]
    assert lines[4] == "naming   not measured: one CPU"


def results(path: Path, **cases: list[Figure]) -> Path:
    document = {
        "machine": {"cpu": "none", "load": "0.0"},
        "quick": True,
        "cases": {case: {"figures": [entry.as_json() for entry in found]} for case, found in cases.items()},
    }
    path.write_text(json.dumps(document))
    return path


def test_compare_exits_with_1_and_names_what_doubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--results", str(tmp_path / "results.json"), "--baseline", str(tmp_path / "baseline.json")]
    results(tmp_path / "results.json", threads=[ratio("cold", 3.0)])
    assert main(["baseline", *files]) == 0
    assert main(["compare", *files]) == 0
    results(tmp_path / "results.json", threads=[ratio("cold", 6.1)])
    capsys.readouterr()
    assert main(["compare", *files]) == 1
    assert "threads: cold: 6.1, baseline 3: 2.0 times worse" in capsys.readouterr().out


def test_a_baseline_says_on_which_machine_it_was_made(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    found = results(tmp_path / "results.json", threads=[ratio("cold", 3.0), single("start", 2.0, unit="s")])
    main(["baseline", "--results", str(found), "--baseline", str(baseline)])
    assert json.loads(baseline.read_text()) == {"machine": {"cpu": "none"}, "ratios": {"threads": {"cold": 3.0}}}


def test_a_baseline_keeps_the_cases_that_were_not_measured_this_time(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"machine": {}, "ratios": {"pods": {"last": 1.0}, "none of today's": {"x": 1.0}}}))
    found = results(tmp_path / "results.json", threads=[ratio("cold", 3.0)])
    main(["baseline", "--results", str(found), "--baseline", str(baseline)])
    assert json.loads(baseline.read_text())["ratios"] == {"pods": {"last": 1.0}, "threads": {"cold": 3.0}}


def test_compare_says_which_cases_it_could_not_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"machine": {}, "ratios": {"steady": {"CPU": 1.0}, "threads": {"cold": 1.0}}}))
    found = results(tmp_path / "results.json", threads=[ratio("cold", 1.0)])
    assert main(["compare", "--results", str(found), "--baseline", str(baseline)]) == 0
    assert "steady: not compared: not run" in capsys.readouterr().out


def test_compare_without_results_says_what_to_run(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text('{"ratios": {}}')
    with pytest.raises(SystemExit, match="python -m benchmarks"):
        main(["compare", "--results", str(tmp_path / "none.json"), "--baseline", str(baseline)])
