"""The map of the loop, which is read by whoever looks for something there the first time."""

from __future__ import annotations

import re
from pathlib import Path

from agent import control


def test_the_map_of_the_loop_names_every_file_of_it_and_nothing_else() -> None:
    (folder,) = map(Path, control.__path__)
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    told = re.sub(r"\([^)]*\)", " ", (control.__doc__ or "").split("\n", 2)[2])
    assert files - set(re.findall(r"\w+", told)) == set()
    heads = re.findall(r"^(\w+)  ", told, re.MULTILINE)
    assert set(heads) <= files
