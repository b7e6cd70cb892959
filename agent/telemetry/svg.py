"""A CpuBindingPlan as SVG: a card for each NUMA node, in it a cell for each CPU. Pure, without any script.

Nothing is told by colour alone: what a CPU is for is a letter too, whose it is stands above it, and each cell has a
name for those who do not see it (``CPU 38, NPU 0, ACL thread``). Light and dark are the reader's own choice. All that
comes from elsewhere goes through `marked_up`; how much there is of it is bounded, and so is the picture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from agent.telemetry.layout import APART, LETTERS, MEANINGS, Block, Layout, Row, layout
from agent.telemetry.table import counts, facts, not_plain, uvb_text
from agent.telemetry.text import mapping, marked_up, word, wrapped

CARD_WIDTH: Final = 380
MAX_COLUMNS: Final = 3
MAX_PROBLEMS: Final = 12
"""Conditions that are shown; the agent has six."""
_GAP = 12
_PAD = 12
_CELL = 18
_PITCH = 20
_BETWEEN_GROUPS = 6
_NUMBERS = 26
"""Width of the column with the number of the first CPU of each line of cells."""
_LINE = 15
_CHAR = 6.7
"""Width of a character, in the widest of the usual fixed-width fonts at 11 px."""
_COLUMNS_OF_TEXT = int((CARD_WIDTH - 2 * _PAD) / _CHAR)
_WORKERS = 2
"""Workers that are listed beside an NPU's cells. The table has all."""

_WHY_LINES = 4

_FONT = "11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
_HUES = {
    # Of an NPU, by id modulo four, in the order of the terminal's: fill of main, line and letter, for light and dark.
    0: (("#bfdbfe", "#1d4ed8"), ("#1e3a8a", "#93c5fd")),
    1: (("#fde68a", "#92400e"), ("#78350f", "#fcd34d")),
    2: (("#a5f3fc", "#0e7490"), ("#155e75", "#67e8f9")),
    3: (("#bbf7d0", "#166534"), ("#14532d", "#86efac")),
}


def _style(theme: int) -> str:
    """The rules of the light theme (0) or the dark one (1)."""
    ground, card, edge, ink, faint, bad = (
        ("#f8fafc", "#ffffff", "#cbd5e1", "#0f172a", "#475569", "#b91c1c"),
        ("#0b1220", "#111827", "#475569", "#f1f5f9", "#a8b3c4", "#fca5a5"),
    )[theme]
    shut, line, uvb, uvb_line = (
        ("#e2e8f0", "#64748b", "#e9d5ff", "#6b21a8"),
        ("#334155", "#94a3b8", "#581c87", "#e9d5ff"),
    )[theme]
    rules = [
        f".ground{{fill:{ground}}}.card{{fill:{card};stroke:{edge}}}",
        f"text{{fill:{ink}}}.faint,.at{{fill:{faint}}}.bad{{fill:{bad};font-weight:bold}}",
        f".astray{{fill:none;stroke:{bad};stroke-width:2;stroke-dasharray:6 3}}",
        f".free rect{{fill:none;stroke:{line}}}",
        f".reserved rect,.isolated rect{{fill:{shut};stroke:{line}}}",
        f".offline rect{{fill:none;stroke:{line};stroke-dasharray:2 2}}",
        f".uvb rect{{fill:{uvb};stroke:{uvb_line}}}.uvb text{{fill:{uvb_line}}}",
        f".main rect{{fill:{shut};stroke:{line}}}.apart rect{{fill:{ink};stroke:{ink}}}.apart text{{fill:{card}}}",
    ]
    for k, themes in _HUES.items():
        fill, strong = themes[theme]
        rules += [
            f".k{k}.main rect{{fill:{fill};stroke:{strong}}}",
            f".k{k}.apart rect{{fill:{strong};stroke:{strong}}}",
            f".k{k}.idle rect{{fill:none}}.k{k}.apart.idle text{{fill:{strong}}}",
            f".name.k{k}{{fill:{strong}}}",
        ]
    return "".join(rules)


def _scoped(rules: str) -> str:
    """Rules that apply within pictures alone, whatever else is on the page."""
    parts = []
    for rule in rules.split("}")[:-1]:
        selectors, _, body = rule.partition("{")
        parts.append(",".join(f".cpubind {selector}" for selector in selectors.split(",")) + "{" + body + "}")
    return "".join(parts)


STYLE: Final = (
    f".cpubind text{{font:{_FONT};white-space:pre}}.cpubind .name{{font-weight:bold}}"
    ".cpubind .cell text{text-anchor:middle;font-weight:bold}"
    ".cpubind .end,.cpubind .at{text-anchor:end}.cpubind .at{font-size:9px}"
    ".cpubind .head{font-size:15px;font-weight:bold}"
    + _scoped(_style(0))
    + "@media (prefers-color-scheme:dark){"
    + _scoped(_style(1))
    + "}"
)


@dataclass(frozen=True, slots=True)
class Card:
    """One NUMA node as a fragment of SVG, CARD_WIDTH wide."""

    name: str
    """For those who do not see it; escaped."""
    least: int
    """The height that it needs."""
    body: str

    def drawn(self, height: int) -> str:
        frame = f'<rect class="card" x="0.5" y="0.5" width="{CARD_WIDTH - 1}" height="{height - 1}" rx="6"/>'
        return f'<g role="group" aria-label="{self.name}">{frame}{self.body}</g>'


def plan_svg(plan: Mapping[str, Any], *, drifted: Collection[int] = ()) -> str:
    """A CpuBindingPlan object as a picture that stands for itself. NPUs of `drifted` are marked as having threads
    astray."""
    status = mapping(plan.get("status"))
    found = layout(plan, drifted)
    made = cards(found)
    columns = max(1, min(MAX_COLUMNS, len(made)))
    width = columns * (CARD_WIDTH + _GAP) + _GAP
    head = list(_head(plan, status, int((width - 2 * _GAP) / _CHAR)))
    parts = []
    y = 28
    for cls, line in head:
        parts.append(_text(_GAP, y, line, cls))
        y += _LINE + 3 if cls == "head" else _LINE
    body, height = legend(found, width - 2 * _GAP)
    parts.append(f'<g transform="translate({_GAP} {y})">{body}</g>')
    y += height + _GAP
    for start in range(0, len(made), columns):
        level = made[start : start + columns]
        height = max(card.least for card in level)
        for k, card in enumerate(level):
            at = f"translate({_GAP + k * (CARD_WIDTH + _GAP)} {y})"
            parts.append(f'<g transform="{at}">{card.drawn(height)}</g>')
        y += height + _GAP
    name = marked_up(mapping(plan.get("metadata")).get("name"), 60) or "?"
    described = " ".join(_escaped(line) for cls, line in head if cls != "head")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cpubind" role="graphics-document document" '
        f'aria-labelledby="cpubind-title cpubind-desc" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'style="max-width:100%;height:auto">\n<title id="cpubind-title">CPUs of node {name}</title>\n'
        f'<desc id="cpubind-desc">{described} A card for each NUMA node, a cell for each CPU.</desc>\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="{width}" height="{y}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def cards(found: Layout) -> list[Card]:
    return [_card(block) for block in found.blocks]


def legend(found: Layout, width: int) -> tuple[str, int]:
    """What the cells mean that there are, in so many pixels, and the height that it takes."""
    parts = []
    x = y = 0
    for role in found.roles():
        size = int(_PITCH + 4 + len(MEANINGS[role]) * _CHAR + 18)
        if x and x + size > width:
            x, y = 0, y + _PITCH + 4
        shown = _cell(x, y, role, "k0" if role in ("main", *APART) else "", "")
        parts.append(shown + _text(x + _PITCH + 4, y + 13, MEANINGS[role], "faint"))
        x += size
    return f'<g role="group" aria-label="Legend">{"".join(parts)}</g>', (y + _PITCH if parts else 0)


def _head(plan: Mapping[str, Any], status: Mapping[str, Any], room: int) -> Iterator[tuple[str, str]]:
    """Class and text of each line above the cards."""
    yield "head", _cut(word(mapping(plan.get("metadata")).get("name"), 60) or "?", room * 2 // 3)
    said = counts(status)
    problems = [f"{one.head}: {one.message}" if one.message else one.head for one in not_plain(status)]
    for cls, line in (
        ("", "  ".join(facts(status))),
        ("", ", ".join(text for _, text in said)),
        ("", uvb_text(status)),
        *(("bad", problem) for problem in problems[:MAX_PROBLEMS]),
    ):
        for part in wrapped(line, room) if line else ():
            yield cls, _cut(part, room)
    yield "", ""


def _card(block: Block) -> Card:
    parts = [_text(_PAD, 20, _cut(block.title, _COLUMNS_OF_TEXT), "name")]
    y = 30
    for row in block.rows:
        body, height = _row(row, y)
        parts.append(body)
        y += height
    name = marked_up(block.title)
    return Card(name, y, "".join(parts))


def _row(row: Row, top: int) -> tuple[str, int]:
    """A row that begins at `top`, and its height."""
    hue = f"k{row.owner % len(_HUES)}" if row.owner >= 0 else ""
    said = row.note if row.drifted else row.state.lower()
    parts, y = [], top + 12
    room = _COLUMNS_OF_TEXT - (len(said) + 2 if said else 0)
    parts.append(_text(_PAD, y, row.label, f"name {hue}".rstrip()))
    if row.cpus and (left := room - len(row.label) - 2) > 0:
        parts.append(_text(_PAD + (len(row.label) + 2) * _CHAR, y, _cut(str(row.cpus), left), "faint"))
    if said:
        parts.append(_text(CARD_WIDTH - _PAD, y, said, "end bad" if row.drifted or row.state == "Failed" else "end"))
    hidden = len(row.workers) - _WORKERS + row.more
    why = wrapped(row.because, _COLUMNS_OF_TEXT)[:_WHY_LINES]
    lines = [*row.workers[:_WORKERS], f"and {hidden} more" if hidden > 0 else "", row.held, *why]
    for line in lines:
        if line:
            y += _LINE
            parts.append(_text(_PAD, y, _cut(line, _COLUMNS_OF_TEXT), "faint"))
    y += 6
    idle = " idle" if row.state == "Idle" else ""
    x = _PAD + _NUMBERS
    for k, group in enumerate(row.groups()):
        if k and x + len(group) * _PITCH > CARD_WIDTH - _PAD + _PITCH - _CELL:
            x, y = _PAD + _NUMBERS, y + _PITCH
        if x == _PAD + _NUMBERS:
            parts.append(_text(x - 5, y + 13, str(group[0]), "at"))
        for cpu in group:
            role = row.roles[cpu]
            parts.append(_cell(x, y, role, hue + idle, f"CPU {cpu}, {_whose(row, role)}"))
            x += _PITCH
        x += _BETWEEN_GROUPS
    y += (_PITCH if row.cpus else 0) + 8
    if row.drifted:
        frame = f'x="{_PAD - 6}" y="{top - 1}" width="{CARD_WIDTH - 2 * _PAD + 12}" height="{y - top - 3}" rx="4"'
        parts.append(f'<rect class="astray" {frame}/>')
    if row.owner < 0:
        name = f"{row.label}, CPUs {row.cpus}"
    else:
        facts_of = [row.label, said, f"CPUs {row.cpus}" if row.cpus else "", row.held, *row.workers, row.because]
        name = ", ".join(fact for fact in facts_of if fact)
    return f'<g role="group" aria-label="{marked_up(name, 400)}">{"".join(parts)}</g>', y - top


def _whose(row: Row, role: str) -> str:
    return f"{row.label}, {MEANINGS[role]}" if row.owner >= 0 else MEANINGS[role]


def _cell(x: int, y: int, role: str, classes: str, name: str) -> str:
    cls = f"cell {'apart' if role in APART else role} {classes}".rstrip()
    letter = LETTERS.get(role, "")
    text = f'<text x="9" y="13">{letter}</text>' if letter else ""
    named = f' role="img"><title>{_escaped(name)}</title>' if name else ' aria-hidden="true">'
    return (
        f'<g class="{cls}" transform="translate({x} {y})"{named}'
        f'<rect x="0.5" y="0.5" width="{_CELL - 1}" height="{_CELL - 1}" rx="3"/>{text}</g>'
    )


def _text(x: float, y: int, line: str, cls: str) -> str:
    named = f' class="{cls}"' if cls else ""
    return f'<text x="{x:g}" y="{y}"{named}>{_escaped(line)}</text>'


def _escaped(line: str) -> str:
    return marked_up(line, 1000)


def _cut(line: str, room: int) -> str:
    """A line in so many columns of text, of which a character may take two."""
    return line if cell_len(line) <= room else set_cell_size(line, room - 1).rstrip() + "…"
