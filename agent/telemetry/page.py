"""The agent's page ``/``: the picture of the node and its table, for a browser at the end of ``kubectl port-forward``.

HTML without any script, and nothing of it comes from elsewhere. It has what the plan has and no more: no environment
and no command line of anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from agent.telemetry.layout import MAX_NPUS, MAX_WORKERS, layout
from agent.telemetry.listener import Response
from agent.telemetry.svg import CARD_WIDTH, MAX_PROBLEMS, STYLE, cards, legend
from agent.telemetry.table import NpuRow, counts, facts, not_plain, npu_rows, uvb_text
from agent.telemetry.text import mapping, marked_up

RECENT_SECONDS: Final = 600.0
"""How long an NPU is marked whose threads or interrupts had moved and were put back."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Were there a mistake in the escaping, a browser would run nothing of it all the same."""

_CSS = (
    ":root{color-scheme:light dark}*{box-sizing:border-box}"
    "body{margin:0;padding:10px;background:#f8fafc;color:#0f172a;font:14px/1.45 system-ui,sans-serif}"
    "h1{font-size:20px;margin:0}h2{font-size:15px;margin:20px 0 8px}p{margin:2px 0}"
    "h1,p,li,td,th{overflow-wrap:anywhere}"
    ".quiet{color:#475569}.alarm{color:#b91c1c;font-weight:bold}ul{margin:0;padding-left:20px}"
    f".cards{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min({CARD_WIDTH}px,100%),{CARD_WIDTH}px));"
    "gap:12px;align-items:start}"
    "svg{display:block;max-width:100%;height:auto}.legend{margin-bottom:10px}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0;"
    "border-bottom:1px solid #cbd5e1}td{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px}"
    "td p{margin:0}"
    "@media (max-width:900px){thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
    "table,tbody,tr,td{display:block}tr{padding:6px 0;border-bottom:1px solid #cbd5e1}"
    "td{border:0;padding:0 0 0 72px;position:relative;min-height:1.45em}td:empty{display:none}"
    "td::before{content:attr(data-label);position:absolute;left:0;color:#475569;font-family:system-ui,sans-serif}}"
    "@media (prefers-color-scheme:dark){body{background:#0b1220;color:#f1f5f9}.quiet,td::before{color:#a8b3c4}"
    ".alarm{color:#fca5a5}th,td,tr{border-color:#475569}"
    "@media (max-width:900px){td::before{color:#a8b3c4}}}"
)

_TITLES = ("NPU", "State", "Pool", "IRQ", "Main", "ACL", "Release", "NUMA", "Workers")


@dataclass(frozen=True, slots=True)
class NodeHtml:
    """What a page says of a CpuBindingPlan object."""

    facts: str
    """What the node is, and counts."""
    rest: str
    """Problems, picture, table."""


class NodePage:
    """Serves the last pass that it was told of. All methods are safe from any thread."""

    def __init__(
        self,
        waiting: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`waiting` says in a line what is waited for while there is no plan."""
        self._waiting = waiting
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        self._document: Mapping[str, Any] = {}
        self._passed: tuple[float, float] | None = None
        self._moved: dict[int, tuple[int, float]] = {}
        self._made: tuple[Mapping[str, Any], frozenset[int], NodeHtml] | None = None

    def passed(self, document: Mapping[str, Any], moved: Mapping[int, int]) -> None:
        """A pass has ended with this object, and had found so many threads and interrupts of an NPU elsewhere. The
        object must not change any more."""
        now = self._clock()
        with self._lock:
            self._document = document
            self._passed = now, self._wall_clock()
            lately = {npu: one for npu, one in self._moved.items() if now - one[1] < RECENT_SECONDS}
            self._moved = lately | {npu: (count, now) for npu, count in moved.items() if count > 0}

    def response(self) -> Response:
        with self._lock:
            passed, document, moved = self._passed, self._document, self._moved
            now = self._clock()
            recent = {npu: (count, now - at) for npu, (count, at) in moved.items() if now - at < RECENT_SECONDS}
            if self._made is None or self._made[0] is not document or self._made[1] != recent.keys():
                # Made once for all who ask: a page that is asked for again and again is no work for the agent.
                self._made = document, frozenset(recent), node_html(document, frozenset(recent))
            html = self._made[2]
        if passed is None:
            age = "The agent has just started; it has not looked at the node yet."
        else:
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(passed[1]))
            age = f"As of {when}, {_ago(now - passed[0])} ago, when the agent last looked. Reload to look again."
        waiting = "" if mapping(document.get("status")) else self._waiting()
        said = [
            f"NPU {npu}: {count} {'threads or interrupts' if count != 1 else 'thread or interrupt'}, "
            f"found {_ago(seconds)} ago"
            for npu, (count, seconds) in sorted(recent.items())
        ]
        name = marked_up(mapping(document.get("metadata")).get("name"), 60)
        return Response(
            HTTPStatus.OK, _page(name, age, waiting, said, html).encode(), "text/html; charset=utf-8", HEADERS
        )


def node_html(document: Mapping[str, Any], drifted: frozenset[int] = frozenset()) -> NodeHtml:
    """A CpuBindingPlan object in HTML. Pure; empty for an empty one."""
    status = mapping(document.get("status"))
    said = [" · ".join(facts(status)), ", ".join(text for _, text in counts(status)), uvb_text(status)]
    intro = "\n".join(f"<p>{marked_up(line, 500)}</p>" for line in said if line)
    parts = []
    problems = not_plain(status)[:MAX_PROBLEMS]
    if problems:
        items = "".join(
            f'<li><span class="alarm">{marked_up(one.head)}</span> {marked_up(one.message, 256)}</li>'
            for one in problems
        )
        parts.append(f"<h2>What is not as it should be</h2><ul>{items}</ul>")
    found = layout(document, drifted)
    if drawn := cards(found):
        shown, height = legend(found, CARD_WIDTH)
        parts.append("<h2>CPUs</h2>" + _svg("Legend", height, shown, "legend"))
        parts.append('<div class="cards">')
        parts += [_svg(card.name, card.least, card.drawn(card.least), "") for card in drawn]
        parts.append("</div>")
    marked = {row.owner for block in found.blocks for row in block.rows if row.drifted}
    if rows := [_cells(row, drifted=row.npu in marked) for row in npu_rows(status)[:MAX_NPUS]]:
        # A column that is empty in every row (roles on Ascend 950) says nothing, here as on a terminal.
        used = [k for k in range(len(_TITLES)) if any(row[k] for row in rows)]
        head = "".join(f'<th role="columnheader" scope="col">{_TITLES[k]}</th>' for k in used)
        lines = "\n".join(_table_row(row, used) for row in rows)
        parts.append(
            "<h2>NPUs and their workers</h2>"
            f'<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
            f'<tbody role="rowgroup">\n{lines}\n</tbody></table>'
        )
    return NodeHtml(intro, "\n".join(parts))


def _cells(row: NpuRow, *, drifted: bool) -> list[str]:
    """The cells of one NPU, in the order of the titles."""
    first = [str(row.npu) if row.npu >= 0 else "?", f"{row.state}, drifted" if drifted else row.state]
    lists = [marked_up(text, 500).replace(",", ",<wbr>") for text in row.cells]
    cells = [*(marked_up(text) for text in first), *lists]
    lines = [*row.workers[:MAX_WORKERS], *row.notes[: 4 * MAX_WORKERS]]
    return [*cells, "".join(f"<p>{marked_up(line, 500)}</p>" for line in lines)]


def _table_row(cells: Sequence[str], used: Sequence[int]) -> str:
    labelled = "".join(f'<td role="cell" data-label="{_TITLES[k]}">{cells[k]}</td>' for k in used)
    return f'<tr role="row">{labelled}</tr>'


def _svg(name: str, height: int, body: str, cls: str) -> str:
    named = f"cpubind {cls}".rstrip()
    return (
        f'<svg class="{named}" role="graphics-document document" aria-label="{name}" '
        f'viewBox="0 0 {CARD_WIDTH} {height}" width="{CARD_WIDTH}" height="{height}">{body}</svg>'
    )


def _page(name: str, age: str, waiting: str, moved: list[str], html: NodeHtml) -> str:
    title = f"{name} - cpubind" if name else "cpubind"
    notes = "".join(f"<li>{line}</li>" for line in moved)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_CSS}{STYLE}</style>\n</head>\n<body>\n<header><h1>{name or 'cpubind'}</h1>\n"
        f'{html.facts}\n<p class="quiet">{age}</p></header>\n<main>\n'
        + (f'<p class="alarm">There is no plan yet: {marked_up(waiting, 300)}</p>\n' if waiting else "")
        + (f"<h2>What had moved</h2><ul>{notes}</ul>\n" if notes else "")
        + f"{html.rest}\n</main>\n</body>\n</html>\n"
    )


def _ago(seconds: float) -> str:
    """For people: ``4 s``, ``3 min``, ``2 h``."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
