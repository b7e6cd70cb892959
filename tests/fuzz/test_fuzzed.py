"""Bytes of any kind, words of a parser in any order, and texts that it knows with damage in them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target, check


@st.composite
def damaged(draw: st.DrawFn, target: Target) -> bytes:
    """A text that is known, in which some parts are cut out, doubled, or have something else in their place."""
    data = draw(st.sampled_from(target.seeds))
    words = st.sampled_from(target.words or (b"\n", b" ", b"0", b"\0", b"\xff"))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        part = draw(st.one_of(words, st.just(data[start:end] * 2), st.binary(max_size=8), st.just(b"")))
        data = data[:start] + part + data[end:]
    return data


def anything(target: Target) -> st.SearchStrategy[bytes]:
    jumble = st.lists(st.sampled_from(target.words or (b"\n", b"0", b":")), max_size=60).map(b"".join)
    return st.one_of(damaged(target), jumble, st.binary(max_size=300), st.text(max_size=100).map(_encoded))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_it_is_given_a_parser_reads_it_or_refuses_it(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    check(target, data.draw(anything(target)))
