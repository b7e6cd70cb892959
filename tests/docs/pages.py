"""The pages that people read, taken apart: code blocks, command lines, tables, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
CHART = ROOT / "charts/cpubind"

PAGES = tuple(sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/runbooks").glob("*.md")]))
DESIGN = ROOT / "docs/design.md"
"""Tells of what is to come, too."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_COMMENT = re.compile(r"\s{2,}#.*$")


@dataclass(frozen=True, slots=True)
class Command:
    """One command as a page has it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    def after(self, *names: str) -> str | None:
        """What follows the first of these flags: ``--flag value`` or ``--flag=value``."""
        return next(self.all_after(*names), None)

    def all_after(self, *names: str) -> Iterator[str]:
        for at, word in enumerate(self.words):
            if word in names and at + 1 < len(self.words):
                yield self.words[at + 1]
            flag, equals, value = word.partition("=")
            if equals and flag in names:
                yield value


def named(path: Path) -> str:
    """A page's name for people."""
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def blocks(page: Path, *languages: str) -> list[str]:
    """Its code blocks in these languages."""
    return [body for language, body in _FENCE.findall(page.read_text()) if language in languages]


def spans(page: Path) -> list[str]:
    """What stands in backticks, outside of code blocks, in one line each."""
    return [one_line(text) for _, text in _CODE.findall(prose(page))]


def commands(*pages: Path) -> list[Command]:
    """Every command line of the pages' shell blocks, and what in backticks begins as one; without pages, of all."""
    found = []
    for page in pages or [page for page in PAGES if page != DESIGN]:
        lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
        lines += [span for span in spans(page) if re.match(r"(cpubind|helm|kubectl|make) [a-z]", span)]
        found += [command for line in lines for command in _commands(named(page), line)]
    return found


def _commands(page: str, line: str) -> Iterator[Command]:
    """The commands of a line, those in ``$(…)`` and those that `kubectl exec` runs in a pod among them."""
    text = _COMMENT.sub("", line).strip()
    if not text or text.startswith("#"):
        return
    if assigned := re.fullmatch(r"[A-Z_]+=\$\((.*)\)", text):
        text = assigned[1]
    for part in re.split(r" \| | && ", text):
        words = tuple(word for word in shlex.split(part) if not word.startswith(">"))
        yield Command(page, words)
        if words[:2] == ("kubectl", "exec") and "--" in words:
            yield Command(page, words[words.index("--") + 1 :])


def sections(page: Path) -> dict[str, str]:
    """Text by heading, without the text of headings below it."""
    parts = re.split(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def one_line(text: str) -> str:
    """A text in one line, to look for a sentence in."""
    return " ".join(text.split())


def table(text: str) -> list[list[str]]:
    """The cells of the first table in a text, without its head."""
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
        elif rows:
            break
    return rows[2:]


def code(cell: str) -> list[str]:
    """What of a cell is in backticks."""
    return [text for _, text in _CODE.findall(cell)]


def links(page: Path) -> list[str]:
    """Where its links lead."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
