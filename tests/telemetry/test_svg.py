"""The picture of a node in SVG, as a parser reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.cpuset import CpuSet
from agent.telemetry.layout import LETTERS, MEANINGS, layout
from agent.telemetry.svg import CARD_WIDTH, STYLE, plan_svg
from tests.telemetry.plans import HOSTILE, KINDS, hostile, large, little, mangled, npu, odd, plan, virtual

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {"svg", "title", "desc", "style", "g", "rect", "text"}
SHAPES = {"viewBox", "width", "height", "style", "transform", "x", "y", "rx"}
ATTRIBUTES = {"class", "role", "aria-label", "aria-labelledby", "aria-hidden", "id"} | SHAPES


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def cells(picture: ElementTree.Element) -> list[tuple[str, str, set[str]]]:
    """Name, letter and classes of each cell that stands for a CPU."""
    found = []
    for group in picture.iter(f"{SVG}g"):
        name = group.find(f"{SVG}title")
        if group.get("role") == "img" and name is not None:
            letter = group.find(f"{SVG}text")
            text = (letter.text or "") if letter is not None else ""
            found.append((name.text or "", text, set((group.get("class") or "").split())))
    return found


def cpus_of(picture: ElementTree.Element) -> list[int]:
    return sorted(int(name.removeprefix("CPU ").partition(",")[0]) for name, _, _ in cells(picture))


@cache
def _virtual(folder: Path, kind: str) -> dict[str, Any]:
    return virtual(folder / kind, kind)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.mark.parametrize("kind", KINDS)
def test_every_cpu_of_a_node_is_one_cell(folder: Path, kind: str) -> None:
    doc = _virtual(folder, kind)
    picture = read(plan_svg(doc))
    assert cpus_of(picture) == list(CpuSet.parse(doc["status"]["topology"]["cpus"]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_cell_says_cpu_npu_and_role(folder: Path, kind: str) -> None:
    doc = _virtual(folder, kind)
    named = {name for name, _, _ in cells(read(plan_svg(doc)))}
    for entry in doc["status"]["npus"]:
        for role, listed in entry["roles"].items():
            for cpu in CpuSet.parse(listed):
                assert f"CPU {cpu}, NPU {entry['id']}, {MEANINGS[role]}" in named
    for cpu in CpuSet.parse(doc["status"].get("uvb", {}).get("cpus", "")):
        assert f"CPU {cpu}, UVB threads" in named


def test_cpus_that_nobody_may_use_are_called_what_they_are() -> None:
    named = {name for name, _, _ in cells(read(plan_svg(odd())))}
    assert {"CPU 0, reserved", "CPU 26, isolated", "CPU 44, offline", "CPU 10, unassigned"} <= named
    assert "CPU 24, NPU 1, ACL thread" in named


@pytest.mark.parametrize("doc", [large(), little(), odd()])
def test_roles_are_told_apart_by_letters_and_not_by_colour_alone(doc: dict[str, Any]) -> None:
    letters: dict[str, set[str]] = {}
    for name, letter, _ in cells(read(plan_svg(doc))):
        letters.setdefault(name.rpartition(", ")[2], set()).add(letter)
    meaning = {MEANINGS[role]: {letter} for role, letter in LETTERS.items()} | {"main": {""}}
    assert letters == {what: meaning[what] for what in letters}
    assert len({frozenset(letter) for letter in letters.values()}) == len(letters)


def test_cpus_that_wait_for_a_worker_look_otherwise_than_those_in_use() -> None:
    waiting = {name for name, _, classes in cells(read(plan_svg(little()))) if "idle" in classes}
    assert waiting == {name for name, _, _ in cells(read(plan_svg(little()))) if ", NPU 1, " in name}


def test_the_picture_says_what_it_is_for_those_who_do_not_see_it() -> None:
    picture = read(plan_svg(large(), drifted={3}))
    by_id = {element.get("id"): element.text for element in picture if element.get("id")}
    said = [by_id[name] for name in (picture.get("aria-labelledby") or "").split()]
    assert said[0] == "CPUs of node a3-0"
    assert said[1]
    assert "16 NPUs, 16 workers, 16 bound" in said[1]
    labels = [group.get("aria-label") for group in picture.iter(f"{SVG}g") if group.get("role") == "group"]
    assert "NUMA node 7 CPUs 560-639" in " ".join((label or "").replace("  ", " ") for label in labels)
    assert "NPU 3, ! drifted, CPUs 120-159, 4714 prod/llm-3/vllm" in labels


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def test_npus_state_and_workers_stand_beside_their_cells() -> None:
    shown = texts(read(plan_svg(odd())))
    for line in ("NPU 0", "bound", "4711 prod/llm-0/vllm", "! drifted", "and 4 more", "isolated 24-25", "Without CPUs"):
        assert line in shown
    assert "failed" in shown
    assert "Ready: False  InsufficientCpus: NPU 2: 4 CPUs" in shown


def test_drift_is_marked_where_it_is_told_or_the_plan_says_so() -> None:
    def marks(svg: str) -> int:
        return sum(rect.get("class") == "astray" for rect in read(svg).iter(f"{SVG}rect"))

    assert marks(plan_svg(large())) == 0
    assert marks(plan_svg(large(), drifted={3, 4})) == 2
    assert marks(plan_svg(odd())) == 1


def test_a_terminal_shows_the_same_cells() -> None:
    for doc in (large(), odd()):
        rows = [row for block in layout(doc).blocks for row in block.rows]
        there = [f"CPU {cpu}, {row.label}, {MEANINGS[row.roles[cpu]]}" for row in rows for cpu in row.cpus]
        here = [name for name, _, _ in cells(read(plan_svg(doc)))]
        assert [name.split(", ")[0] for name in here] == [name.split(", ")[0] for name in there]
        assert [name.rpartition(", ")[2] for name in here] == [name.rpartition(", ")[2] for name in there]


def harmless(svg: str) -> ElementTree.Element:
    """It is well-formed, of plain shapes and text, and refers to nothing."""
    picture = read(svg)
    for element in picture.iter():
        assert element.tag.removeprefix(SVG) in ELEMENTS
        assert element.attrib.keys() <= ATTRIBUTES
    styles = [element.text for element in picture.iter(f"{SVG}style")]
    assert styles == [STYLE]
    shown = "".join(picture.itertext()) + "".join(
        value for element in picture.iter() for value in element.attrib.values()
    )
    assert all(char.isprintable() or char == "\n" for char in shown)
    return picture


def test_the_style_refers_to_nothing() -> None:
    assert not re.search(r"url\(|@import|expression|<|&", STYLE)


ANY = st.text(st.characters(exclude_categories=()), max_size=300)
EVIL = st.sampled_from(
    [
        HOSTILE,
        "</text><script>alert(1)</script>",
        "]]><script>",
        '"><rect onload="x"/>',
        "' onload='x",
        "&lt;&#x3c;&amp;",
        "\u202e\u2066\u05d0\u0627",
        "\ud800\ufffe\x00\x0b",
        "e\u0301" * 200,
        "你" * 300,
        "x" * 100_000,
    ]
)


@given(ANY | EVIL)
def test_whatever_a_name_is_it_is_text_and_no_more(name: str) -> None:
    picture = harmless(plan_svg(hostile(name)))
    assert cpus_of(picture) == list(range(16))
    assert len(plan_svg(hostile(name))) < 60_000


def test_what_is_read_from_right_to_left_or_piles_up_is_shown_by_numbers() -> None:
    doc = little()
    doc["status"]["npus"][0]["workers"][0]["pod"] = "a\u05d0b\u202ec\u0301"
    assert "4711 prod/a\\x5d0b\\x202ec\\x301/vllm" in texts(read(plan_svg(doc)))


@pytest.mark.parametrize("replacement", [None, 7, -1, "5-3", {}, [None, 3, {}], "0-4095", True, 1e300])
def test_an_object_of_another_form_is_shown_as_far_as_it_goes(replacement: Any) -> None:
    for doc in [{}, {"status": replacement}, *mangled(little(), replacement)]:
        listed = cpus_of(harmless(plan_svg(doc)))
        assert len(listed) == len(set(listed))


LISTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=4).map(
    lambda spans: ",".join(f"{first}-{first + size}" for first, size in spans)
)
ROLES = st.fixed_dictionaries({}, optional=dict.fromkeys(("irq", "main", "acl", "release"), LISTS))


@given(
    st.fixed_dictionaries({}, optional={"cpus": LISTS, "reservedCpus": LISTS, "isolatedCpus": LISTS}),
    st.lists(st.fixed_dictionaries({"id": st.integers(0, 3)}, optional={"cpus": LISTS, "offlineCpus": LISTS})),
    st.lists(st.fixed_dictionaries({"id": st.integers(0, 5)}, optional={"pool": LISTS, "roles": ROLES}), max_size=6),
    LISTS,
)
def test_every_cpu_is_one_cell_whatever_lists_contradict_each_other(
    topology: Mapping[str, Any], nodes: list[dict[str, Any]], npus: list[dict[str, Any]], uvb: str
) -> None:
    doc = {"status": {"topology": {**topology, "numaNodes": nodes}, "npus": npus, "uvb": {"cpus": uvb}}}
    every = CpuSet.parse(topology.get("cpus", ""))
    for node in nodes:
        every = every | CpuSet.parse(node.get("cpus", "")) | CpuSet.parse(node.get("offlineCpus", ""))
    assert cpus_of(harmless(plan_svg(doc))) == list(every)


def test_a_node_as_large_as_it_can_be_makes_a_picture_of_bounded_size() -> None:
    """4,096 CPUs, each on a NUMA node of its own; 512 NPUs with sixteen workers, and as many that nobody may list."""
    name = "<" * 10_000
    worker = {"pid": 4_194_304, "namespace": name, "pod": name, "container": name, "reason": name, "message": name}
    npus = [
        {"id": k, "pool": f"{8 * k}-{8 * k + 7}", "workers": [worker] * 40, "reason": name, "message": name}
        for k in range(600)
    ]
    doc = plan([], 4096, 4096)
    doc["status"]["npus"] = npus
    doc["status"]["conditions"] = [{"type": f"{name[:50]}{k}", "status": "False"} for k in range(1000)]
    svg = plan_svg(doc)
    assert len(cpus_of(read(svg))) == 4096
    assert len(svg) < 16 << 20


def test_640_cpus_are_a_picture_of_a_hundred_kilobytes() -> None:
    assert len(plan_svg(large())) < 150_000


def test_nothing_is_drawn_beyond_the_edge() -> None:
    for doc in (large(), odd()):
        picture = read(plan_svg(doc))
        for group in picture.iter(f"{SVG}g"):
            if "cell" in (group.get("class") or "").split():
                x, _ = re.findall(r"[\d.]+", group.get("transform") or "")
                assert 0 <= float(x) <= CARD_WIDTH - 18 or group.get("aria-hidden")


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it; text needs 4.5."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_letters_and_lines_stand_out_from_their_ground(theme: str) -> None:
    light, _, dark = STYLE.partition("@media")
    rules = {
        selector: colour
        for selectors, colour in re.findall(r"([^{}]+)\{fill:(#\w+)", light if theme == "light" else dark)
        for selector in selectors.replace(".cpubind ", "").split(",")
    }
    card = rules[".card"]
    for selector in ("text", ".faint", ".bad", ".uvb text", *(f".name.k{k}" for k in range(4))):
        ground = rules[".uvb rect"] if selector == ".uvb text" else card
        assert contrast(rules[selector], ground) >= 4.5, selector
    for k in range(4):
        assert contrast(rules[".apart text"], rules[f".k{k}.apart rect"]) >= 4.5
    for shut in (".reserved rect", ".isolated rect"):
        assert contrast(rules["text"], rules[shut]) >= 4.5


def test_an_npu_with_much_to_say_says_it_in_lines_that_fit() -> None:
    doc = plan([npu(0, (0, 7), 0, reason="InsufficientCpus", message="word " * 50)], 16, 2)
    longest = max(texts(read(plan_svg(doc))), key=len)
    assert len(longest) * 6.7 <= 2 * CARD_WIDTH


def test_of_characters_that_take_two_columns_none_is_lost_between_two_lines() -> None:
    doc = little()
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    doc["status"]["npus"][0] |= {"state": "Failed", "reason": "NpuSmiFailed", "message": text}
    shown = "".join(
        line.text or "" for line in ElementTree.fromstring(plan_svg(doc)).iter() if line.tag.endswith("}text")
    )
    assert text in shown
