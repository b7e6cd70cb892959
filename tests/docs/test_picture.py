"""The picture that the pages show is what the command makes today."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.picture import FILE, document, picture


def test_the_picture_of_the_readme_is_up_to_date() -> None:
    assert FILE.read_text() == picture(), "make picture"


def test_the_readme_shows_it_and_says_in_words_what_is_on_it(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (said,) = re.findall(rf"!\[([^\]]+)\]\({FILE.relative_to(ROOT)}\)", text)
    idle, used = sorted(document(tmp_path)["status"]["npus"], key=lambda npu: npu["state"] != "Idle")
    assert (
        f"NPU {used['id']}, in use by pod {used['workers'][0]['pod']}, has {used['pool'].replace('-', ' to ')};" in said
    )
    assert f"NPU {idle['id']} is idle and has {idle['pool'].replace('-', ' to ')}." in said
