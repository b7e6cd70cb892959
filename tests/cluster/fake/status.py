"""What an API server answers when it does not do as it was asked: Status objects, in the words of v1.20."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.objects import Kind

Object = dict[str, Any]


class StatusError(Exception):
    """An answer that is no success. `body` is a Status, or plain text where the real server sends that."""

    def __init__(self, code: int, body: Object | str) -> None:
        super().__init__(body if isinstance(body, str) else body["message"])
        self.code = code
        self.body = body


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an object; `field` is its path."""

    field: str
    reason: str
    message: str


def invalid_value(field: str, value: object, text: str) -> Fault:
    return Fault(field, "FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {text}")


def required(field: str, text: str = "") -> Fault:
    return Fault(field, "FieldValueRequired", f"Required value: {text}" if text else "Required value")


def failure(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    """A Status object. An empty reason is left out, as the server does with errors of no known kind."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    return {**status, "code": code}


def resource_name(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def about(plural: str, group: str, name: str = "") -> Object:
    """`details` of a Status."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", plural)) if value}


def bad_request(message: str) -> StatusError:
    return StatusError(400, failure(400, "BadRequest", message))


def internal(message: str) -> StatusError:
    return StatusError(500, failure(500, "", message))


def not_found(kind: Kind, name: str) -> StatusError:
    message = f'{resource_name(kind.plural, kind.group)} "{name}" not found'
    return StatusError(404, failure(404, "NotFound", message, about(kind.plural, kind.group, name)))


def no_such_page() -> StatusError:
    """For a path below no group that is served."""
    return StatusError(404, "404 page not found\n")


def no_such_resource() -> StatusError:
    return StatusError(404, failure(404, "NotFound", "the server could not find the requested resource", {}))


def already_exists(kind: Kind, name: str) -> StatusError:
    message = f'{resource_name(kind.plural, kind.group)} "{name}" already exists'
    return StatusError(409, failure(409, "AlreadyExists", message, about(kind.plural, kind.group, name)))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource_name(plural, group)} "{name}": {why}'
    return StatusError(409, failure(409, "Conflict", message, about(plural, group, name)))


def modified(kind: Kind, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind.plural, kind.group, name, why)


def invalid(what: str, group: str, name: str, faults: Sequence[Fault]) -> StatusError:
    """`what` is a kind, or a plural in the few places where the server says that."""
    texts = [f"{fault.field}: {fault.message}" for fault in faults]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": fault.reason, "message": fault.message, "field": fault.field} for fault in faults]
    details = {**about(what, group, name), "causes": causes}
    return StatusError(
        422, failure(422, "Invalid", f'{resource_name(what, group)} "{name}" is invalid: {text}', details)
    )


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, failure(405, "MethodNotAllowed", message, {}))


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, failure(415, "UnsupportedMediaType", message))


def unauthorized() -> StatusError:
    return StatusError(401, failure(401, "Unauthorized", "Unauthorized"))


def expired(asked: int, oldest: int) -> Object:
    """What ends a watch from a version that is forgotten."""
    return failure(410, "Expired", f"too old resource version: {asked} ({oldest})")


def not_modelled(what: str) -> StatusError:
    """Better a test that says what this fake can't do than one that passes here alone."""
    return StatusError(
        501, failure(501, "NotImplemented", f"the fake API server does not model {what}: use the real one")
    )


def deleted(kind: Kind, name: str, uid: str) -> Object:
    details = {**about(kind.plural, kind.group, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
