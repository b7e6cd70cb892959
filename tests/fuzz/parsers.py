"""Which functions of the agent take in what others wrote: found in its source, so that none is forgotten."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import agent

ROOT: Final = Path(agent.__file__).parent

TAKING: Final = frozenset(
    {
        *("read_bytes", "read_text", "loads", "parse_json", "parse_yaml", "frombuf", "numbered_devices"),
        *("unpack", "unpack_from", "iter_unpack", "fullmatch", "finditer", "findall", "splitlines", "fromhex"),
        *("recv", "recv_into", "recvmsg", "pread", "load_kube_config"),
    }
)
"""Calls of these names take bytes or text from outside, or take it apart."""

TAKING_OF: Final = frozenset({("os", "read"), ("yaml", "load"), ("yaml", "safe_load"), ("stream", "read")})
"""The same, where the name alone could be anything's."""

NAMED: Final = ("parse", "_parse", "decode", "_decode", "recognise")
"""How the names of functions begin that are parsers whatever they call."""


@functools.cache
def parsers() -> frozenset[str]:
    """``agent.node.procfs:parse_status``, ``agent.node.cgroups:CgroupTree.path``; the virtual node reads its own
    files alone, and is left out."""
    return frozenset(_parsers())


def _parsers() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("agent", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        if not module.startswith("agent.demo"):
            for name, function in _functions(ast.parse(path.read_text(encoding="utf-8")), ""):
                if name.rpartition(".")[2].startswith(NAMED) or any(map(_takes, _own_calls(function))):
                    yield f"{module}:{name}"


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
            yield from _functions(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _own_calls(function: ast.AST) -> Iterator[ast.Call]:
    """Those of the function itself, without the functions that are defined in it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _own_calls(node)


def _takes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in TAKING
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    return function.attr in TAKING or (owner, function.attr) in TAKING_OF
