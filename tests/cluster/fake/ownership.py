"""Server-side apply: who owns which field, and what an apply makes of an object.

The rules are those of structured-merge-diff v4.0.2, which v1.20 uses, with two that surprise: an object or a list map
of which an applier gives up *everything* it owns is set to null rather than left out (which validation refuses, so that
the apply fails for good), and empty ones are owned by nobody who applied them.

A path is a tuple of elements: `("f", name)` for a field, `("k", key)` for an item of a list map, `("v", value)` for an
item of a set. A set of paths holds leaves (scalars, atomic lists and objects) and items.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

Schema = Mapping[str, Any]
Element = tuple[str, Any]
Path = tuple[Element, ...]
Paths = frozenset[Path]

ABSENT: Final = object()
"""Of a field that is not there, as distinct from null."""
_ANY: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}


class TypedError(Exception):
    """An applied object that does not fit the schema; the message is the server's."""


def check(schema: Schema, value: Any, path: str = "") -> list[str]:
    """What keeps a value from being applied: unknown fields, other types, items without or with the same key."""
    if value is None or schema is _ANY:
        return []
    if is_map(schema):
        if not isinstance(value, dict):
            return [f"{path}: expected map, got &{{{value}}}"]
        faults: list[str] = []
        for key, child in value.items():
            known = field_schema(schema, key)
            if known is None:
                return [*faults, f"{path}.{key}: field not declared in schema"]
            faults += check(known, child, f"{path}.{key}")
        return faults
    if schema.get("type") == "array":
        if not isinstance(value, list):
            return [f"{path}: expected list, got &{{{value}}}"]
        return _check_items(schema, value, path)
    return _check_scalar(schema, value, path)


def keyed(schema: Schema, value: Any) -> bool:
    """Whether the items of its sets and list maps can be told from each other."""
    if isinstance(value, dict):
        return all(keyed(field_schema(schema, key) or _ANY, child) for key, child in value.items())
    if not isinstance(value, list):
        return True
    items = schema.get("items", _ANY)
    if not is_leaf(schema, value) and len(_by_key(schema, value)) < len(value):
        return False
    return all(keyed(items, item) for item in value)


def paths_of(schema: Schema, value: Any, path: Path = ()) -> Iterator[Path]:
    """Every leaf and item that a value mentions."""
    if is_leaf(schema, value):
        yield path
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from paths_of(field_schema(schema, key) or _ANY, child, (*path, ("f", key)))
            if key not in schema.get("properties", {}):
                yield (*path, ("f", key))
    elif isinstance(value, list):
        for item in value:
            element = element_of(schema, item)
            yield from paths_of(schema.get("items", _ANY), item, (*path, element))
            yield (*path, element)


def merge(schema: Schema, left: Any, right: Any) -> Any:
    """Both of them; where both have a leaf it is the right one's. Items keep the left one's order."""
    if left is ABSENT or right is ABSENT:
        return right if left is ABSENT else left
    if _are_leaves(schema, left, right):
        return right
    if is_map(schema):
        left, right = left or {}, right or {}
        return {
            key: merge(field_schema(schema, key) or _ANY, left.get(key, ABSENT), right.get(key, ABSENT))
            for key in {**left, **right}
        }
    before, after = _by_key(schema, left), _by_key(schema, right)
    items = schema.get("items", _ANY)
    return [merge(items, before.get(key, ABSENT), after.get(key, ABSENT)) for key in {**before, **after}]


def compare(schema: Schema, left: Any, right: Any, path: Path = ()) -> tuple[set[Path], set[Path], set[Path]]:
    """Paths that the right one has and the left has not, that differ, and that the left one alone has."""
    added: set[Path] = set()
    changed: set[Path] = set()
    removed: set[Path] = set()
    if left is ABSENT:
        added.add(path)
    elif right is ABSENT:
        removed.add(path)
    if _are_leaves(schema, left, right):
        if ABSENT not in (left, right) and left != right:
            changed.add(path)
        return added, changed, removed
    for element, child, before, after in _zip(schema, left, right):
        below = compare(child, before, after, (*path, element))
        added |= below[0]
        changed |= below[1]
        removed |= below[2]
    return added, changed, removed


def remove(schema: Schema, value: Any, paths: Set[Path]) -> Any:
    """Without these paths. A container in which something was looked for and nothing is left is null."""
    if is_leaf(schema, value):
        # As it is in the original: within an atomic container there is nothing to remove.
        return value if not isinstance(value, (dict, list)) else None
    if isinstance(value, dict):
        kept: Any = {}
        for key, child in value.items():
            element = ("f", key)
            if (element,) in paths:
                continue
            below = _below(paths, element)
            kept[key] = remove(field_schema(schema, key) or _ANY, child, below) if below else child
    else:
        kept = []
        for item in value:
            element = element_of(schema, item)
            if (element,) in paths:
                continue
            below = _below(paths, element)
            kept.append(remove(schema.get("items", _ANY), item, below) if below else item)
    return kept or None


def reconcile(schema: Schema, live: Any, paths: Paths) -> Paths:
    """The same paths by a schema that may have changed since they were owned.

    What was granular and is atomic now is owned as a whole; who owned all of what is granular now owns each part of it.
    The server takes the second case from what is written, and so for one that owns a container and nothing in it, too.
    """
    found: set[Path] = set()
    everything = list(paths_of(schema, live))
    for path in paths:
        whole = next((path[:end] for end in range(1, len(path)) if _is_atomic(_schema_at(schema, path[:end]))), path)
        found.add(whole)
        there = _schema_at(schema, path)
        container = is_map(there) or there.get("type") == "array"
        if container and not _is_atomic(there) and not any(_starts(other, path) for other in paths):
            found |= {other for other in everything if _starts(other, path)}
    return frozenset(found)


def fields_v1(paths: Paths) -> dict[str, Any]:
    """Paths as `fieldsV1` of managedFields."""
    tree: dict[str, Any] = {}
    for path in sorted(paths, key=repr):
        node = tree
        for element in path:
            node = node.setdefault(_written(element), {})
        node["."] = {}
    return _without_dots(tree)


def parse_fields_v1(tree: Mapping[str, Any], path: Path = ()) -> Paths:
    """The paths that `fields_v1` was made of."""
    found: set[Path] = set()
    for key, child in tree.items():
        if key == ".":
            found.add(path)
            continue
        below = (*path, _read(key))
        found |= parse_fields_v1(child, below) if child else {below}
    return frozenset(found)


def is_map(schema: Schema) -> bool:
    """Whether its values are objects; what has no schema may be one, too."""
    return schema is _ANY or schema.get("type") == "object" or "properties" in schema


def is_leaf(schema: Schema, value: Any) -> bool:
    """Whether a value is owned as a whole."""
    if isinstance(value, dict):
        return bool(schema.get("x-kubernetes-map-type") == "atomic")
    if isinstance(value, list):
        return bool(schema.get("x-kubernetes-list-type", "atomic") == "atomic")
    # Null in place of a container is nobody's.
    return value is not None or not (is_map(schema) or schema.get("type") == "array") or _is_atomic(schema)


def field_schema(schema: Schema, key: str) -> Schema | None:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if key in properties:
        return properties[key]
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        return others
    bare = schema.get("type") == "object" and not properties and others is None
    return _ANY if bare or others or schema.get("x-kubernetes-preserve-unknown-fields") else None


def element_of(schema: Schema, item: Any) -> Element:
    """What tells an item of a list map or a set from the others."""
    if schema.get("x-kubernetes-list-type") == "map":
        return ("k", tuple((key, item.get(key)) for key in sorted(schema["x-kubernetes-list-map-keys"])))
    return ("v", item)


def _starts(path: Path, with_path: Path) -> bool:
    return len(path) > len(with_path) and path[: len(with_path)] == with_path


def _schema_at(schema: Schema, path: Path) -> Schema:
    for kind, what in path:
        schema = (field_schema(schema, what) if kind == "f" else schema.get("items")) or {"type": "string"}
    return schema


def _is_atomic(schema: Schema) -> bool:
    if schema.get("type") == "array":
        return bool(schema.get("x-kubernetes-list-type", "atomic") == "atomic")
    return bool(schema.get("x-kubernetes-map-type") == "atomic")


def _are_leaves(schema: Schema, left: Any, right: Any) -> bool:
    """Whether two values are compared and merged as a whole; two empty containers are, so that empty stays empty."""
    there = [value for value in (left, right) if value is not ABSENT]
    container = is_map(schema) or schema.get("type") == "array" or any(isinstance(v, (dict, list)) for v in there)
    return not container or _is_atomic(schema) or not any(there) or any(is_leaf(schema, v) for v in there if v)


def _zip(schema: Schema, left: Any, right: Any) -> Iterator[tuple[Element, Schema, Any, Any]]:
    left, right = ("" if value is ABSENT else value for value in (left, right))
    if is_map(schema):
        left, right = left or {}, right or {}
        for key in {**left, **right}:
            yield ("f", key), field_schema(schema, key) or _ANY, left.get(key, ABSENT), right.get(key, ABSENT)
        return
    before, after = _by_key(schema, left), _by_key(schema, right)
    for key in {**before, **after}:
        yield key, schema.get("items", _ANY), before.get(key, ABSENT), after.get(key, ABSENT)


def _by_key(schema: Schema, items: Any) -> dict[Element, Any]:
    return {element_of(schema, item): item for item in items or ()}


def _below(paths: Set[Path], element: Element) -> set[Path]:
    return {path[1:] for path in paths if path[0] == element and len(path) > 1}


def _check_items(schema: Schema, value: list[Any], path: str) -> list[str]:
    kind = schema.get("x-kubernetes-list-type", "atomic")
    faults: list[str] = []
    seen = set()
    for index, item in enumerate(value):
        name = f"[{index}]"
        if kind != "atomic":
            missing = [key for key in schema.get("x-kubernetes-list-map-keys", ()) if key not in item]
            if missing:
                what = f'omits key field "{missing[0]}" (and doesn\'t have default value)'
                return [*faults, f"{path}: element {index}: associative list with keys has an element that {what}"]
            element = element_of(schema, item)
            name = _shown(element)
            if element in seen:
                faults.append(f"{path}: duplicate entries for key {name}")
            seen.add(element)
        faults += check(schema.get("items", _ANY), item, f"{path}{name}")
    return faults


def _check_scalar(schema: Schema, value: Any, path: str) -> list[str]:
    wanted = schema.get("type")
    if wanted in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return [f"{path}: expected numeric (int or float), got *value.valueUnstructured"]
    if wanted == "string" and not isinstance(value, str):
        return [f"{path}: expected string, got &value.valueUnstructured{{Value:{json.dumps(value)}}}"]
    if wanted == "boolean" and not isinstance(value, bool):
        return [f"{path}: expected boolean, got &{{{value}}}"]
    return []


def shown(path: Path) -> str:
    """A path as messages have it: `.status.conditions[type="Ready"].status`."""
    return "".join(map(_shown, path))


def _shown(element: Element) -> str:
    kind, what = element
    if kind == "f":
        return f".{what}"
    if kind == "k":
        return f"[{','.join(f'{key}={json.dumps(value)}' for key, value in what)}]"
    return f"[={json.dumps(what)}]"


def _written(element: Element) -> str:
    kind, what = element
    if kind == "k":
        return f"k:{json.dumps(dict(what), separators=(',', ':'))}"
    return f"f:{what}" if kind == "f" else f"v:{json.dumps(what)}"


def _read(text: str) -> Element:
    kind, _, what = text.partition(":")
    if kind == "k":
        return (kind, tuple(sorted(json.loads(what).items())))
    return (kind, what if kind == "f" else json.loads(what))


def _without_dots(tree: dict[str, Any]) -> dict[str, Any]:
    """A leaf is written as an empty object; only what has something below it says that it is owned itself."""
    children = {key: _without_dots(child) for key, child in tree.items() if key != "."}
    return {".": {}, **children} if "." in tree and children else children
