"""CpuBindingPlans as their CRD makes them: pruned, checked, with field managers and a status of its own."""

from __future__ import annotations

from typing import Any

from tests.cluster.cluster import CRD_NAME
from tests.cluster.fake import managers, ownership, schema, status
from tests.cluster.objects import PLANS

Object = dict[str, Any]

_OWN = ("apiVersion", "kind", "metadata")


class PlanSchema:
    """One version of the CRD. ValueError for one that can't be served here."""

    def __init__(self, document: Object) -> None:
        self.document = document
        spec = document["spec"]
        version = next((one for one in spec["versions"] if one["name"] == PLANS.version), None)
        same = (spec["group"], spec["names"]["plural"], spec["names"]["kind"], spec["scope"])
        if same != (PLANS.group, PLANS.plural, PLANS.kind, "Cluster") or version is None:
            raise ValueError(f"the fake API server serves {CRD_NAME} {PLANS.version} alone")
        if "status" not in version.get("subresources", {}):
            raise ValueError("the fake API server serves plans with a status subresource alone")
        self._root: Object = version["schema"]["openAPIV3Schema"]
        if odd := schema.unsupported(self._root):
            raise ValueError(f"the fake API server does not know these parts of a schema: {', '.join(odd)}")
        declared: Object = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        }
        self._typed = {**self._root, "properties": {**self._root.get("properties", {}), **declared}}

    def created(self, plan: Object, manager: str) -> Object:
        plan = self._pruned(plan)
        # What was given as status is dropped, and yet its sender owns it: so it is on the real server.
        fields = managers.create(self._root, _body(plan), manager, PLANS.api_version)
        rest = {key: value for key, value in plan.items() if key != "status"}
        return {**rest, "metadata": {**plan["metadata"], "generation": 1, "managedFields": fields}}

    def updated(self, new: Object, old: Object, subresource: str, manager: str) -> Object:
        """After a PUT or a merge patch."""
        new = self._pruned(new)
        fields = managers.update(self._root, _body(old), _body(new), _fields(old), manager, PLANS.api_version)
        return self._finished(new, old, subresource, fields)

    def applied(self, old: Object, config: Object, manager: str, *, force: bool) -> Object:
        """After server-side apply to the status."""
        version = config.get("apiVersion", "")
        if version != PLANS.api_version:
            raise status.bad_request(
                f"Incorrect version specified in apply patch. Specified patch version: {version}, expected: "
                f"{PLANS.api_version}"
            )
        if config.get("kind") != PLANS.kind:
            self._untyped(f"no corresponding type for {version}, Kind={config.get('kind', '')}")
        if "managedFields" in (config.get("metadata") or {}):
            raise status.bad_request("metadata.managedFields must be nil")
        if odd := ownership.check(self._typed, config):
            self._untyped(odd[0] if len(odd) == 1 else "\n".join(("errors:", *(f"  {one}" for one in odd))))
        body, fields = managers.apply(
            self._root, _body(old), _body(config), _fields(old), manager, force=force, version=PLANS.api_version
        )
        new = {**{key: old[key] for key in _OWN}, **body}
        return self._finished(new, old, "status", fields)

    def faults(self, plan: Object, old: Object | None, subresource: str) -> list[status.Fault]:
        """What the schema refuses. Keys that come twice are no fault of a status, or where they did so before."""
        found = []
        for key, value in (("kind", PLANS.kind), ("apiVersion", PLANS.api_version)):
            if plan.get(key) != value:
                found.append(status.invalid_value(key, plan.get(key, ""), f"must be {value}"))
        body = _body(plan)
        found += dict.fromkeys(schema.validate(self._root, body))
        lenient = subresource == "status" or (old is not None and schema.duplicates(self._root, _body(old)))
        return found if lenient else found + schema.duplicates(self._root, body)

    def _finished(self, new: Object, old: Object, subresource: str, fields: list[Object]) -> Object:
        """The part that may be changed from the new one, all else from the old one."""
        if subresource == "status":
            whole = {key: value for key, value in old.items() if key != "status"}
            mine = new
        else:
            whole = {key: value for key, value in new.items() if key != "status"}
            mine = old
        if "status" in mine:
            whole["status"] = mine["status"]
        meta = {key: value for key, value in whole["metadata"].items() if key != "managedFields"}
        if fields:
            meta["managedFields"] = fields
        if subresource != "status" and _body(whole) != _body(old):
            meta["generation"] = old["metadata"]["generation"] + 1
        return {**whole, "metadata": meta}

    def _pruned(self, plan: Object) -> Object:
        pruned: Object = schema.prune(self._root, plan)
        return pruned

    def _untyped(self, why: str) -> None:
        raise status.internal(f"failed to create typed patch object: {why}")


def _fields(plan: Object) -> list[Object]:
    fields: list[Object] = plan["metadata"].get("managedFields", [])
    return fields


def _body(plan: Object) -> Object:
    return {key: value for key, value in plan.items() if key not in _OWN}
