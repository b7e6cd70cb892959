"""``--select``: which processes on NPUs are to be bound, on a host without Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from agent.control.observe import Candidate, Choice, Chooser, everything
from agent.model.cpuset import CpuListError, CpuSet
from agent.model.reason import Reason, Refused, printable

Selector = Callable[[Candidate], bool]

KEYS = ("pid", "uid", "comm", "cgroup", "npu")


def chooser(texts: Sequence[str]) -> Chooser:
    """Who is chosen by ``KEY=VALUE`` texts: any value of a key, all keys. Malformed raises `Refused`, naming the text.

    ``comm`` and ``cgroup`` are shell patterns (``*`` also matches a slash), ``npu`` is a list such as ``0-3``, and
    ``pid`` and ``uid`` are numbers.
    """
    by_key: dict[str, list[Selector]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in KEYS or not value:
            raise _invalid(text, f"is not KEY=VALUE with a key of {', '.join(KEYS)}")
        by_key.setdefault(key, []).append(_MAKERS[key](text, value))
    if not by_key:
        return everything

    def choose(candidate: Candidate) -> Choice:
        chosen = all(any(accepts(candidate) for accepts in either) for either in by_key.values())
        return Choice.BIND if chosen else Choice.LEAVE

    return choose


def _number(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 10):  # int() refuses thousands of digits
        raise _invalid(text, "does not name a number")
    return int(value)


def _pid(text: str, value: str) -> Selector:
    wanted = _number(text, value)
    return lambda candidate: candidate.process.pid == wanted


def _uid(text: str, value: str) -> Selector:
    wanted = _number(text, value)
    return lambda candidate: candidate.uid == wanted


def _comm(_text: str, value: str) -> Selector:
    return lambda candidate: fnmatchcase(candidate.name, value)


def _cgroup(_text: str, value: str) -> Selector:
    return lambda candidate: fnmatchcase(candidate.identity.path, value)


def _npu(text: str, value: str) -> Selector:
    try:
        wanted = set(CpuSet.parse(value))
    except CpuListError:
        raise _invalid(text, "does not name NPUs as a list such as 0-3") from None
    return lambda candidate: bool(wanted.intersection(candidate.attribution.npus))


def _invalid(text: str, complaint: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, f"--select {printable(repr(text), 80)} {complaint}")


_MAKERS: dict[str, Callable[[str, str], Selector]] = {
    "pid": _pid,
    "uid": _uid,
    "comm": _comm,
    "cgroup": _cgroup,
    "npu": _npu,
}
