"""Field managers of one object: what an apply or an update makes of it, and of who owns what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cluster.fake import ownership
from tests.cluster.fake.metadata import now
from tests.cluster.fake.ownership import Paths, Schema, compare, keyed, merge, paths_of, remove
from tests.cluster.fake.status import StatusError, failure

Object = dict[str, Any]
Manager = tuple[str, str]
"""Name and operation: Apply or Update."""
Managers = Mapping[Manager, Paths]

BEFORE_FIRST_APPLY = "before-first-apply"
"""Who owns what was there before anybody's fields were tracked."""


def create(schema: Schema, thing: Object, name: str, version: str) -> list[Object]:
    """`metadata.managedFields` of a new object."""
    return _entries(_updated(schema, {}, thing, {}, (name, "Update")), {}, (name, "Update"), version)


def apply(
    schema: Schema, live: Object, config: Object, fields: list[Object], name: str, *, force: bool, version: str
) -> tuple[Object, list[Object]]:
    """What server-side apply makes of `live`, and of its managedFields. 409 where others own something, without force.

    Objects here are without what the server alone manages: apiVersion, kind and metadata.
    """
    who = (name, "Apply")
    before = _parse(schema, live, fields)
    if not before:
        before = _updated(schema, {}, live, {}, (BEFORE_FIRST_APPLY, "Update"))
    mine = frozenset(paths_of(schema, config))
    last = before.get(who, frozenset())
    after: dict[Manager, Paths] = {**before, who: mine}
    new = merge(schema, live, config)
    if last:
        new = _pruned(schema, new, last, frozenset().union(*after.values()))
    added, changed, removed = compare(schema, live, new)
    conflicts = {
        other: taken for other, paths in before.items() if other != who and (taken := paths & (added | changed))
    }
    if conflicts and not force:
        raise _conflict(conflicts, version)
    for other in before:
        if other != who:
            after[other] = after[other] - added - changed - removed
    after = _nonempty(after)
    same = not (added or changed or removed)
    acting = None if same and after == _managers(fields) else who
    return live if same else new, _entries(after, _times(fields), acting, version)


def update(schema: Schema, live: Object, new: Object, fields: list[Object], name: str, version: str) -> list[Object]:
    """managedFields after any other write. An object that has none stays without until something is applied to it."""
    who = (name, "Update")
    before = _parse(schema, live, fields)
    if not before or not keyed(schema, new):
        return []
    after = _updated(schema, live, new, before, who)
    acting = None if after.get(who) == before.get(who) else who
    return _entries(after, _times(fields), acting, version)


def _updated(schema: Schema, live: Object, new: Object, before: Managers, who: Manager) -> dict[Manager, Paths]:
    added, changed, removed = compare(schema, live, new)
    after = {other: paths - added - changed - removed for other, paths in before.items()}
    after[who] = frozenset((after.get(who, frozenset()) | added | changed) - removed - {()})
    return _nonempty(after)


def _entries(managers: Managers, times: Mapping[Manager, str], acting: Manager | None, version: str) -> list[Object]:
    """A time is that of a manager's last act, not of what others took from it."""
    return [
        {
            "manager": who[0],
            "operation": who[1],
            "apiVersion": version,
            "time": now() if who == acting else times.get(who) or now(),
            "fieldsType": "FieldsV1",
            "fieldsV1": ownership.fields_v1(paths),
        }
        for who, paths in sorted(managers.items(), key=lambda one: (one[0][1], one[0][0]))
    ]


def _managers(fields: list[Object]) -> Managers:
    return {(one["manager"], one["operation"]): ownership.parse_fields_v1(one["fieldsV1"]) for one in fields}


def _parse(schema: Schema, live: Object, fields: list[Object]) -> Managers:
    return {who: ownership.reconcile(schema, live, paths) for who, paths in _managers(fields).items()}


def _times(fields: list[Object]) -> Mapping[Manager, str]:
    return {(one["manager"], one["operation"]): one["time"] for one in fields}


def _pruned(schema: Schema, merged: Object, last: Paths, owned: Paths) -> Object:
    """Without what the applier gave up and nobody else owns."""
    everything = set(paths_of(schema, merged))
    left = set(paths_of(schema, remove(schema, merged, last)))
    left = set(paths_of(schema, remove(schema, merged, everything - (left | owned))))
    pruned: Object = remove(schema, merged, (everything - left) & last) or {}
    return pruned


def _nonempty(managers: Managers) -> dict[Manager, Paths]:
    return {manager: paths for manager, paths in managers.items() if paths}


def _conflict(conflicts: Managers, version: str) -> StatusError:
    flat = [
        (f'"{name}" using {version}' if operation == "Update" else f'"{name}"', ownership.shown(path))
        for (name, operation), paths in sorted(conflicts.items())
        for path in sorted(paths, key=ownership.shown)
    ]
    if len(flat) == 1:
        message = f"Apply failed with 1 conflict: conflict with {flat[0][0]}: {flat[0][1]}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in flat}):
            lines += [f"conflicts with {manager}:", *(f"- {path}" for owner, path in flat if owner == manager)]
        message = f"Apply failed with {len(flat)} conflicts: " + "\n".join(lines)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in flat
    ]
    return StatusError(409, failure(409, "Conflict", message, {"causes": causes}))
