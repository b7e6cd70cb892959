"""`metadata`: what the server fills in, and what it refuses in every kind of object."""

from __future__ import annotations

import random
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cluster.fake.status import Fault, invalid_value, required

Object = dict[str, Any]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)


def now(after: float = 0.0) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=after)).strftime("%Y-%m-%dT%H:%M:%SZ")


def earlier(time: str, seconds: float) -> str:
    return (datetime.strptime(time, "%Y-%m-%dT%H:%M:%S%z") - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def born(metadata: Object, namespace: str) -> Object:
    """Of an object that is created."""
    fresh = {key: value for key, value in metadata.items() if key not in ("selfLink", "managedFields", "generation")}
    fresh |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
    if not fresh.get("name") and fresh.get("generateName"):
        fresh["name"] = fresh["generateName"] + "".join(random.choices(_SUFFIX_ALPHABET, k=5))
    if namespace:
        fresh["namespace"] = namespace
    else:
        fresh.pop("namespace", None)
    return _without_empty(fresh)


def kept(new: Object, old: Object) -> Object:
    """Of an object that is changed: what nobody can change stays as it was."""
    result = dict(new)
    for key in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"):
        result.pop(key, None)
        if key in old:
            result[key] = old[key]
    result.setdefault("uid", old["uid"])
    result["resourceVersion"] = old["resourceVersion"]
    return _without_empty(result)


def is_typed(metadata: Any) -> bool:
    """Whether it can be decoded at all."""
    if not isinstance(metadata, dict):
        return False
    for key in ("labels", "annotations"):
        values = metadata.get(key) or {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            return False
    return isinstance(metadata.get("name") or "", str)


def faults(metadata: Object, *, lax_name: bool = False) -> list[Fault]:
    """What is wrong with it. Events may have any name."""
    found = []
    name = metadata.get("name", "")
    if not name:
        found.append(required("metadata.name", "name or generateName is required"))
    elif not lax_name and (len(name) > 253 or not re.fullmatch(_SUBDOMAIN, name)):
        found.append(invalid_value("metadata.name", name, _SUBDOMAIN_RULE))
    for owner in metadata.get("ownerReferences") or ():
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                what = "version" if key == "apiVersion" else key
                found.append(invalid_value(f"metadata.ownerReferences.{key}", "", f"{what} must not be empty"))
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            found += _key_faults(f"metadata.{field}", key)
    return found


def label_fault(field: str, text: str) -> list[Fault]:
    """For names that must be a DNS label, as containers' are."""
    if len(text) <= 63 and re.fullmatch(_LABEL, text):
        return []
    return [invalid_value(field, text, _LABEL_RULE)]


def _key_faults(field: str, key: str) -> list[Fault]:
    prefix, slash, name = key.rpartition("/")
    found = []
    if slash and not re.fullmatch(_SUBDOMAIN, prefix.lower() if field == "metadata.annotations" else prefix):
        found.append(invalid_value(field, key, f"prefix part {_SUBDOMAIN_RULE}"))
    if not name:
        found.append(invalid_value(field, key, "name part must be non-empty"))
    elif len(name) > 63:
        found.append(invalid_value(field, key, "name part must be no more than 63 characters"))
    elif not re.fullmatch(_NAME, name):
        found.append(invalid_value(field, key, _NAME_RULE))
    return found


def _without_empty(metadata: Object) -> Object:
    return {key: value for key, value in metadata.items() if value not in (None, "", [], {})}
