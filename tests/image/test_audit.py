"""`make audit`: what is made of pip-audit's answer, and of none."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import pytest

from image import audit
from image.audit import Audit, read, report
from image.lock import RUNTIME

CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
SKIPPED = {"name": "kopf", "skip_reason": "Dependency not found on PyPI and could not be audited: kopf (1.45.2)"}
BAD = {
    "name": "grpcio",
    "version": "1.0",
    "vulns": [{"id": "CVE-2026-1", "fix_versions": ["1.1", "2.0"], "aliases": []}],
}


def answer(*entries: Mapping[str, object]) -> str:
    return json.dumps({"dependencies": entries, "fixes": []})


def test_where_nothing_is_known_against_any_package_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("the.lock", read(answer(CLEAN, CLEAN))) == 0
    assert capsys.readouterr().out == "the.lock: 2 packages audited, 0 vulnerabilities known\n"


def test_a_known_vulnerability_fails_and_says_what_mends_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("the.lock", read(answer(CLEAN, BAD, SKIPPED))) == 1
    said = capsys.readouterr().out
    assert "the.lock: VULNERABLE: grpcio 1.0: CVE-2026-1, fixed in 1.1, 2.0\n" in said
    assert "2 packages audited; NOT AUDITED: kopf\n" in said


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (answer(SKIPPED, SKIPPED), ""),
        ("", "Traceback\nConnectionError: Name or service not known"),
        ("", ""),
        ("[]", ""),
        ('{"dependencies": 3}', ""),
    ],
)
def test_where_nobody_can_be_asked_one_loud_line_says_that_nothing_was_audited(
    told: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("the.lock", read(told, complaint)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the.lock: NOT AUDITED: NO DATA ON VULNERABILITIES COULD BE HAD HERE (")
    assert complaint.rpartition("\n")[2] in line


def test_of_a_package_without_an_answer_nothing_is_claimed() -> None:
    assert read(answer(CLEAN, SKIPPED)) == Audit(1, ("kopf",), ())


def test_who_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(audit, "PATIENCE", 0.3)
    assert audit.ask(RUNTIME) == Audit(0, (), (), "no answer within 0.3 s")
