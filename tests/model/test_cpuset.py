"""CPU sets: the kernel's two texts, set algebra, and what is refused."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, MAX_CPUS, CpuListError, CpuSet, union

CPU = st.integers(0, MAX_CPUS - 1)


def _filled(spans: list[tuple[int, int]]) -> set[int]:
    return {cpu for first, length in spans for cpu in range(first, min(first + length, MAX_CPUS))}


# Sparse sets, and sets made of runs as real ones are: both reach CPU 4095.
CPUS = st.one_of(
    st.sets(CPU, max_size=40),
    st.lists(st.tuples(CPU, st.integers(1, 700)), max_size=8).map(_filled),
)


def kernel_list(cpus: set[int]) -> str:
    """What %*pbl prints, written down CPU by CPU."""
    parts: list[str] = []
    for cpu in sorted(cpus):
        if cpu - 1 in cpus:
            continue
        last = cpu
        while last + 1 in cpus:
            last += 1
        parts.append(f"{cpu}" if last == cpu else f"{cpu}-{last}")
    return ",".join(parts)


def kernel_mask(cpus: set[int], possible: int) -> str:
    """What %*pb prints for a bitmap of that many bits: 32-bit groups, the highest cut to the digits its bits need."""
    digits = []
    for nibble in range((possible + 3) // 4):
        digits.append("0123456789abcdef"[sum(1 << bit for bit in range(4) if 4 * nibble + bit in cpus)])
        if nibble % 8 == 7:
            digits.append(",")
    return "".join(reversed(digits)).lstrip(",")


@given(CPUS)
def test_a_list_is_what_the_kernel_prints_and_reads_back(cpus: set[int]) -> None:
    text = str(CpuSet(cpus))
    assert text == kernel_list(cpus)
    assert CpuSet.parse(text) == CpuSet(cpus)
    assert CpuSet.parse(f" {text}\n") == CpuSet(cpus)


@given(CPUS, st.integers(0, 200))
def test_a_mask_is_what_the_kernel_prints_and_reads_back(cpus: set[int], wider: int) -> None:
    possible = max(cpus, default=0) + 1 + wider
    text = CpuSet(cpus).mask(possible)
    assert text == kernel_mask(cpus, possible)
    if possible <= MAX_CPUS:
        assert CpuSet.parse_mask(text) == CpuSet(cpus)
        assert CpuSet.parse_mask(text.upper() + "\n") == CpuSet(cpus)
    assert CpuSet.parse_mask(CpuSet(cpus).mask()) == CpuSet(cpus)


@given(CPUS)
def test_a_mask_is_read_in_its_short_forms(cpus: set[int]) -> None:
    groups = CpuSet(cpus).mask(MAX_CPUS).split(",")
    short = ",".join(group.lstrip("0") or "0" for group in groups)
    assert CpuSet.parse_mask(short) == CpuSet(cpus)
    while len(groups) > 1 and not int(groups[0], 16):
        del groups[0]
    assert CpuSet.parse_mask(",".join(groups)) == CpuSet(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3,7", {0, 1, 2, 3, 7}),
        ("7,0-3", {0, 1, 2, 3, 7}),
        ("0-2,1-3", {0, 1, 2, 3}),
        ("007", {7}),
        ("4095", {4095}),
        ("4094-4095", {4094, 4095}),
    ],
)
def test_a_list_is_read(text: str, cpus: set[int]) -> None:
    assert CpuSet.parse(text) == CpuSet(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", set()),
        ("f", {0, 1, 2, 3}),
        ("00000000,0000000f", {0, 1, 2, 3}),
        ("1,00000000", {32}),
        ("1,0", {32}),
        ("80000000,00000000,00000001", {0, 95}),
        ("FF", set(range(8))),
    ],
)
def test_a_mask_is_read(text: str, cpus: set[int]) -> None:
    assert CpuSet.parse_mask(text) == CpuSet(cpus)


@pytest.mark.parametrize(
    ("possible", "text"),
    [
        (1, "1"),
        (4, "1"),
        (5, "01"),
        (8, "01"),
        (31, "00000001"),
        (32, "00000001"),
        (33, "0,00000001"),
        (36, "0,00000001"),
        (37, "00,00000001"),
        (64, "00000000,00000001"),
        (192, "00000000,00000000,00000000,00000000,00000000,00000001"),
    ],
)
def test_a_mask_is_as_wide_as_the_kernels_possible_cpus(possible: int, text: str) -> None:
    assert CpuSet([0]).mask(possible) == text


def test_a_mask_too_narrow_for_its_set_is_refused() -> None:
    assert CpuSet([31]).mask(32) == "80000000"
    with pytest.raises(CpuListError, match="CPU 32 does not fit"):
        CpuSet([0, 32]).mask(32)


@pytest.mark.parametrize(
    "text",
    [
        "5-3",
        "0-",
        "-3",
        "-1",
        "1,,2",
        ",1",
        "1,",
        ",",
        "a",
        "0x1",
        "1.0",
        "1e3",
        "+1",
        "1_0",
        "0 - 3",
        "0 1",
        "0, 1",
        "1-2-3",
        "4096",
        "0-4096",
        "99999999999999999999",
        "0-99999999999999999999",
        "١-٣",
        "１",
        "²",
        "0–3",
        "0-3\n4",
        "0\x00",
        "\x1b[31m0",
        "xx-xx",
        "all",
        "0-3:1/2",
        "9" * 1_000_000,
        "0-1," * 300_000,
        "\N{SNOWMAN}" * 100_000,
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_bad_list_is_refused_in_one_short_printable_line(text: str) -> None:
    with pytest.raises(CpuListError) as caught:
        CpuSet.parse(text)
    _is_one_short_printable_line(str(caught.value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "g",
        "0x1",
        "-1",
        "1,,2",
        "f,",
        "123456789",
        "1 2",
        "1_0",
        "٣",
        "ｆ",
        "f\nf",
        "f" * 1_000_000,
        "1" + ",00000000" * (MAX_CPUS // 32),
        "0,1" + ",00000000" * (MAX_CPUS // 32),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_bad_mask_is_refused_in_one_short_printable_line(text: str) -> None:
    with pytest.raises(CpuListError) as caught:
        CpuSet.parse_mask(text)
    _is_one_short_printable_line(str(caught.value))


@given(st.text())
@example("0-3")
def test_any_text_is_a_list_or_a_cpu_list_error(text: str) -> None:
    try:
        cpus = CpuSet.parse(text)
    except CpuListError as refused:
        _is_one_short_printable_line(str(refused))
    else:
        assert CpuSet.parse(str(cpus)) == cpus


@given(st.text(alphabet="0123456789-, \n"))
def test_any_text_of_digits_is_a_list_or_a_cpu_list_error(text: str) -> None:
    try:
        cpus = CpuSet.parse(text)
    except CpuListError as refused:
        _is_one_short_printable_line(str(refused))
    else:
        assert CpuSet.parse(str(cpus)) == cpus


@given(st.text(alphabet="0123456789abcdefABCDEF,x \n"))
def test_any_text_of_hexadecimal_digits_is_a_mask_or_a_cpu_list_error(text: str) -> None:
    try:
        cpus = CpuSet.parse_mask(text)
    except CpuListError as refused:
        _is_one_short_printable_line(str(refused))
    else:
        assert CpuSet.parse_mask(cpus.mask()) == cpus


def _is_one_short_printable_line(message: str) -> None:
    assert message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) <= 256


@pytest.mark.parametrize("cpu", [-1, MAX_CPUS, 10**30])
def test_a_cpu_number_out_of_bounds_is_refused(cpu: int) -> None:
    with pytest.raises(CpuListError):
        CpuSet([0, cpu])
    with pytest.raises(CpuListError):
        CpuSet.span(0, cpu)
    with pytest.raises(CpuListError):
        CpuSet.from_bits(-1 if cpu < 0 else 1 << min(cpu, MAX_CPUS))


@given(CPUS, CPUS)
def test_set_algebra_is_that_of_pythons_sets(a: set[int], b: set[int]) -> None:
    x, y = CpuSet(a), CpuSet(b)
    assert set(x) == a
    assert list(x) == sorted(a)
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert x & y == CpuSet(a & b)
    assert x | y == CpuSet(a | b)
    assert x - y == CpuSet(a - b)
    assert union([x, y]) == CpuSet(a | b)
    assert (x == y) == (a == b)
    assert (x <= y) == (a <= b)
    assert (x < y) == (a < b)
    assert (x >= y) == (a >= b)
    assert (x > y) == (a > b)
    assert x.isdisjoint(y) == a.isdisjoint(b)
    assert x & y <= x <= x | y
    if a:
        assert x.first == min(a)
    if a == b:
        assert hash(x) == hash(y)


@given(CPUS)
def test_membership_is_that_of_pythons_sets(cpus: set[int]) -> None:
    x = CpuSet(cpus)
    assert {cpu for cpu in range(MAX_CPUS + 10) if cpu in x} == cpus


@given(CPUS)
def test_ranges_are_ascending_and_apart_and_cover_the_set(cpus: set[int]) -> None:
    ranges = CpuSet(cpus).ranges()
    assert [cpu for first, last in ranges for cpu in range(first, last + 1)] == sorted(cpus)
    assert all(first <= last for first, last in ranges)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


@given(CPUS, st.integers(-2, 1000))
def test_take_gives_the_lowest(cpus: set[int], count: int) -> None:
    assert list(CpuSet(cpus).take(count)) == sorted(cpus)[: max(count, 0)]


@given(CPUS, st.lists(st.integers(0, 300), max_size=8))
def test_cut_gives_consecutive_pieces(cpus: set[int], sizes: list[int]) -> None:
    rest = sorted(cpus)
    expected = []
    for size in sizes:
        expected.append(rest[:size])
        rest = rest[size:]
    assert [list(piece) for piece in CpuSet(cpus).cut(sizes)] == expected


@given(CPU, CPU)
def test_a_span_holds_both_its_ends(first: int, last: int) -> None:
    assert set(CpuSet.span(first, last)) == set(range(first, last + 1))


@given(CPUS)
def test_a_set_survives_copying_and_pickling(cpus: set[int]) -> None:
    x = CpuSet(cpus)
    assert pickle.loads(pickle.dumps(x)) == x
    assert copy.deepcopy(x) == x
    assert CpuSet.from_bits(x.bits) == x


def test_a_set_cannot_be_changed() -> None:
    cpus = CpuSet([1])
    with pytest.raises(AttributeError, match="immutable"):
        cpus.bits = 2
    assert cpus == CpuSet([1])


def test_the_empty_set_is_an_empty_text_and_has_no_first_cpu() -> None:
    assert str(EMPTY) == ""
    assert EMPTY.mask() == "0"
    assert EMPTY.mask(64) == "00000000,00000000"
    assert union([]) == EMPTY
    with pytest.raises(ValueError, match="no first CPU"):
        _ = EMPTY.first


def test_a_set_is_no_python_set() -> None:
    assert CpuSet([1]) != {1}
    assert CpuSet([1]) != 2
    assert repr(CpuSet([0, 1, 7])) == "CpuSet('0-1,7')"


# Against this machine's kernel.

_POSSIBLE = Path("/sys/devices/system/cpu/possible")


def _status(path: str) -> tuple[str, str]:
    fields = dict(line.split(":\t", 1) for line in Path(path).read_text().splitlines() if ":\t" in line)
    return fields["Cpus_allowed"], fields["Cpus_allowed_list"]


def _possible_cpus() -> int:
    return max(CpuSet.parse(_POSSIBLE.read_text())) + 1


needs_kernel = pytest.mark.skipif(
    not (_POSSIBLE.exists() and "Cpus_allowed_list" in Path("/proc/self/status").read_text()),
    reason="no Linux with CPU files",
)


@needs_kernel
def test_our_texts_of_this_process_are_the_kernels() -> None:
    mask, cpu_list = _status("/proc/self/status")
    assert str(CpuSet.parse(cpu_list)) == cpu_list
    assert str(CpuSet.parse_mask(mask)) == cpu_list
    assert CpuSet.parse(cpu_list).mask(_possible_cpus()) == mask
    assert set(CpuSet.parse(cpu_list)) == os.sched_getaffinity(0)


@needs_kernel
def test_our_texts_of_every_small_affinity_are_the_kernels() -> None:
    mine = sorted(os.sched_getaffinity(0))
    wanted = [set(some) for size in (1, 2, 3) for some in combinations(mine[:6] + mine[6:][-2:], size)]
    seen: list[tuple[str, str]] = []

    def pin_and_read() -> None:  # in a thread of its own, so that this process's mask stays as it is
        for cpus in wanted:
            os.sched_setaffinity(0, cpus)
            seen.append(_status("/proc/thread-self/status"))

    thread = threading.Thread(target=pin_and_read)
    thread.start()
    thread.join()
    assert seen == [(CpuSet(cpus).mask(_possible_cpus()), str(CpuSet(cpus))) for cpus in wanted]


@needs_kernel
def test_our_texts_of_siblings_and_nodes_are_the_kernels() -> None:
    system = Path("/sys/devices/system")
    pairs = [
        (masks, masks.with_name(lists))
        for pattern, lists in (
            ("cpu/cpu[0-9]*/topology/thread_siblings", "thread_siblings_list"),
            ("cpu/cpu[0-9]*/topology/core_siblings", "core_siblings_list"),
            ("node/node[0-9]*/cpumap", "cpulist"),
        )
        for masks in system.glob(pattern)
    ]
    for mask_file, list_file in pairs:
        mask, cpu_list = mask_file.read_text().strip(), list_file.read_text().strip()
        assert str(CpuSet.parse_mask(mask)) == cpu_list, mask_file
        assert CpuSet.parse(cpu_list).mask(_possible_cpus()) == mask, mask_file
