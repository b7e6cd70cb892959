"""Bodies of requests: what they say, and what a patch makes of an object."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.cluster.client import APPLY_PATCH, MERGE_PATCH
from tests.cluster.fake.status import (
    bad_request,
    internal,
    invalid,
    invalid_value,
    not_modelled,
    unsupported_media_type,
)
from tests.cluster.objects import Kind

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def patch_type(kind: Kind, content_type: str) -> str:
    """The media type of a patch, if the kind takes it."""
    media = content_type.partition(";")[0].strip()
    accepted = [JSON_PATCH, MERGE_PATCH, *([] if kind.group else [STRATEGIC]), APPLY_PATCH]
    if media not in accepted:
        raise unsupported_media_type(accepted)
    if media == JSON_PATCH:
        raise not_modelled("JSON patches")
    return media


def merge_patch(body: bytes, media: str) -> Object:
    try:
        patch = json.loads(body)
    except ValueError:
        raise internal("Invalid JSON Patch") from None
    if not isinstance(patch, dict):
        why = "couldn't get version/kind; json parse error: json: cannot unmarshal it into an object"
        raise invalid("", "", "", [invalid_value("patch", patch, why)])
    if media == STRATEGIC and _has_list(patch):
        # These are merged by the keys of each list, which takes the schemas of all built-in kinds.
        raise not_modelled("strategic merge patches with lists")
    return patch


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), change)
    return result


def applied_configuration(body: bytes) -> Object:
    try:
        # All JSON is YAML, and is read a hundred times as fast as such.
        document = json.loads(body) if body.startswith(b"{") else yaml.safe_load(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"error decoding YAML: error converting YAML to JSON: yaml: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("error decoding YAML: not an object")
    return document


def whole_object(kind: Kind, body: bytes) -> Object:
    """Of a POST or a PUT. A built-in kind need not say what it is, a custom resource must."""
    try:
        document = json.loads(body)
    except ValueError as error:
        what = f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind"
        raise bad_request(f"{what}; json parse error: {error}") from None
    if not isinstance(document, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind})")
    handled = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
    if kind.group and not document.get("kind"):
        raise bad_request(f"{handled}: unmarshalerDecoder: Object 'Kind' is missing")
    if not kind.group and document.get("kind", kind.kind) != kind.kind:
        raise bad_request(f'{handled}: no kind "{document["kind"]}" is registered for version "{kind.version}"')
    if document.get("apiVersion", kind.api_version) != kind.api_version:
        raise bad_request(
            f"the API version in the data ({document['apiVersion']}) does not match the expected API version "
            f"({kind.api_version})"
        )
    return {**document, "apiVersion": kind.api_version, "kind": document.get("kind", kind.kind)}


def _has_list(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_list, value.values()))
    return isinstance(value, list)
