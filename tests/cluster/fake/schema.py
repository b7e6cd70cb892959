"""The schema of a custom resource: what it drops without a word, and what it refuses with 422."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.cluster.fake.status import Fault, invalid_value, required

Object = dict[str, Any]
Schema = Mapping[str, Any]

_KNOWN = {"type", "description", "title", "example", "enum", "format", "nullable", "pattern", "minimum", "maximum"} | {
    *("minLength", "maxLength", "minItems", "maxItems", "required", "properties", "items", "additionalProperties"),
    *(f"x-kubernetes-{key}" for key in ("list-type", "list-map-keys", "map-type", "preserve-unknown-fields")),
}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_SERVERS_OWN = ("apiVersion", "kind", "metadata")
"""In every object, whether the schema names them or not."""


def unsupported(schema: Schema, path: str = "") -> list[str]:
    """Keywords that this module would ignore, with their paths: a schema that has any can't be served honestly."""
    found = [f"{path}.{key}" for key in schema if key not in _KNOWN]
    for name, child in _children(schema):
        found += unsupported(child, f"{path}.{name}")
    return found


def prune(schema: Schema, value: Any, *, root: bool = True) -> Any:
    """A copy without the fields that the schema does not have."""
    if isinstance(value, dict):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return value
        kept = {}
        for key, child in value.items():
            if root and key in _SERVERS_OWN:
                kept[key] = child
            elif (known := _field(schema, key)) is not None:
                kept[key] = prune(known, child, root=False)
        return kept
    if isinstance(value, list):
        items = schema.get("items", {})
        return [prune(items, child, root=False) for child in value]
    return value


def validate(schema: Schema, value: Any, path: str = "") -> list[Fault]:
    """Everything that is wrong, in the words of v1.20, which names fields of list items without their index."""
    if value is None and schema.get("nullable"):
        return []
    wanted = schema.get("type", "")
    faults = []
    if wanted and not _is_a(value, wanted):
        kind = _type(value)
        faults.append(invalid_value(path, kind, f'{path} in body must be of type {wanted}: "{kind}"'))
    if "enum" in schema and value not in schema["enum"]:
        faults.append(_not_supported(path, value, schema["enum"]))
    if faults:
        return faults
    if isinstance(value, str):
        return list(_text(schema, value, path))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return list(_number(schema, value, path))
    if isinstance(value, list):
        return list(_list(schema, value, path))
    if isinstance(value, dict):
        return list(_object(schema, value, path))
    return []


def duplicates(schema: Schema, value: Any, path: str = "") -> list[Fault]:
    """Items of sets and keys of list maps that come twice."""
    faults: list[Fault] = []
    if isinstance(value, dict):
        for key, child in value.items():
            if (known := _field(schema, key)) is not None:
                faults += duplicates(known, child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        kind, seen = schema.get("x-kubernetes-list-type"), []
        for index, item in enumerate(value):
            faults += duplicates(schema.get("items", {}), item, f"{path}[{index}]")
            key = [item.get(name) for name in schema["x-kubernetes-list-map-keys"]] if kind == "map" else item
            if kind in ("map", "set") and key in seen:
                faults.append(Fault(f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {key}"))
            seen.append(key)
    return faults


def _children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield from schema.get("properties", {}).items()
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield key, schema[key]


def _field(schema: Schema, key: str) -> Schema | None:
    """The schema of a field; None where it has no such field."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if key in properties:
        return properties[key]
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        return others
    return {"x-kubernetes-preserve-unknown-fields": True} if others else None


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _is_a(value: Any, wanted: str) -> bool:
    kind = _type(value)
    return (
        kind == wanted
        or (wanted == "number" and kind == "integer")
        or (wanted == "integer" and isinstance(value, float) and value.is_integer())
    )


def _not_supported(path: str, value: Any, allowed: list[Any]) -> Fault:
    shown = f'"{value}"' if isinstance(value, str) else _shown(value)
    supported = ", ".join(f'"{one}"' for one in allowed)
    return Fault(path, "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {supported}")


def _shown(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, list) else "[]"


def _text(schema: Schema, value: str, path: str) -> Iterator[Fault]:
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if len(value) > schema.get("maxLength", len(value)):
        yield invalid_value(path, value, f"{path} in body should be at most {schema['maxLength']} chars long")
    if "pattern" in schema and not re.search(_go_pattern(schema["pattern"]), value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _RFC3339.fullmatch(value):
        yield invalid_value(path, value, f'{path} in body must be of type date-time: "{value}"')


def _go_pattern(pattern: str) -> str:
    """In Go `$` is the very end of the text; in Python a line feed may follow it."""
    return re.sub(r"\$$", r"\\Z", pattern)


def _number(schema: Schema, value: float, path: str) -> Iterator[Fault]:
    if value < schema.get("minimum", value):
        yield invalid_value(path, value, f"{path} in body should be greater than or equal to {schema['minimum']}")
    if value > schema.get("maximum", value):
        yield invalid_value(path, value, f"{path} in body should be less than or equal to {schema['maximum']}")


def _list(schema: Schema, value: list[Any], path: str) -> Iterator[Fault]:
    for item in value:
        yield from validate(schema.get("items", {}), item, path)
    if len(value) < schema.get("minItems", 0):
        yield invalid_value(path, len(value), f"{path} in body should have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", len(value)):
        yield invalid_value(path, len(value), f"{path} in body should have at most {schema['maxItems']} items")


def _object(schema: Schema, value: Object, path: str) -> Iterator[Fault]:
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield required(f"{prefix}{name}")
    for key, child in value.items():
        known = _field(schema, key)
        if known is not None:
            yield from validate(known, child, f"{prefix}{key}")
