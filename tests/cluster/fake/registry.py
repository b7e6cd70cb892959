"""What each verb does to objects, as the API server's registry has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.fake import kinds, metadata, status
from tests.cluster.fake.plans import PlanSchema
from tests.cluster.fake.store import Key, Store
from tests.cluster.objects import EVENTS, NAMESPACES, NODES, PLANS, PODS, Kind

Object = dict[str, Any]

BUILT_IN = (NODES, PODS, EVENTS, NAMESPACES)
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass(frozen=True, slots=True)
class Deletion:
    """DeleteOptions."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None


class Registry:
    """Objects and what may become of them. For one thread."""

    def __init__(self) -> None:
        self.store = Store()
        self.plans: PlanSchema | None = None
        for kind in BUILT_IN:
            self.store.add_kind(kind)
        for name in _NAMESPACES:
            self.ensure_namespace(name)

    def ensure_namespace(self, name: str) -> None:
        if self.store.get(NAMESPACES, ("", name)) is None:
            self.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, "")

    def install(self, schema: PlanSchema) -> None:
        """Serves plans from now on, or by another schema; a new schema ends their watches."""
        if self.plans is not None and self.plans.document == schema.document:
            return
        if self.plans is None:
            self.store.add_kind(PLANS)
        else:
            self.store.renew(PLANS)
        self.plans = schema

    def uninstall(self) -> None:
        if self.plans is not None:
            self.store.drop_kind(PLANS)
            self.plans = None

    def get(self, kind: Kind, key: Key) -> Object:
        thing = self.store.get(kind, key)
        if thing is None:
            raise status.not_found(kind, key[1])
        return thing

    def create(self, kind: Kind, namespace: str, thing: Object, manager: str) -> Object:
        given = thing.get("metadata") or {}
        if not metadata.is_typed(given):
            raise status.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}')
        if given.get("namespace", namespace) != namespace and kind.namespaced:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise status.bad_request(message)
        if namespace and self.store.get(NAMESPACES, ("", namespace)) is None:
            raise status.not_found(NAMESPACES, namespace)
        if given.get("resourceVersion"):
            raise status.internal("resourceVersion should not be set on objects to be created")
        fresh = {**thing, "metadata": metadata.born(given, namespace)}
        fresh = self._schema.created(fresh, manager) if kind == PLANS else kinds.on_create(kind, fresh)
        self._check(kind, fresh)
        if self.store.get(kind, _key(fresh)) is not None:
            raise status.already_exists(kind, _key(fresh)[1])
        return self.store.put(kind, fresh)

    def replace(self, kind: Kind, key: Key, thing: Object, subresource: str, manager: str) -> Object:
        old = self.get(kind, key)
        given = thing.get("metadata") or {}
        self._same_name(given, old)
        if kind == PLANS and not given.get("resourceVersion"):
            fault = status.Fault(
                "metadata.resourceVersion", "FieldValueInvalid", "Invalid value: 0x0: must be specified for an update"
            )
            raise status.invalid(kind.plural, kind.group, key[1], [fault])
        if given.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            why = f"StorageError: invalid object: UID in precondition: {given['uid']}, UID in object meta: "
            raise status.conflict(kind.plural, kind.group, key[1], why + old["metadata"]["uid"])
        return self._update(kind, old, thing, subresource, manager)

    def change(
        self, kind: Kind, key: Key, change: Callable[[Object], Object], subresource: str, manager: str
    ) -> Object:
        """A merge patch."""
        old = self.get(kind, key)
        return self._update(kind, old, change(old), subresource, manager)

    def apply_status(self, key: Key, config: Object, manager: str, *, force: bool) -> Object:
        """Server-side apply on the status of a plan."""
        old = self.get(PLANS, key)
        given = config.get("metadata") or {}
        self._same_name(given, old)
        if given.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
            raise status.modified(PLANS, key[1])
        new = self._schema.applied(old, config, manager, force=force)
        return self._write(PLANS, old, new, "status")

    def bind(self, key: Key, node: str) -> None:
        """The scheduler's word."""
        pod = self.get(PODS, key)
        if there := pod["spec"].get("nodeName"):
            raise status.conflict("pods/binding", "", key[1], f'pod {key[1]} is already assigned to node "{there}"')
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        conditions = [*pod["status"].get("conditions", ()), {**scheduled, "lastTransitionTime": metadata.now()}]
        spec = {**pod["spec"], "nodeName": node}
        self.store.put(PODS, {**pod, "spec": spec, "status": {**pod["status"], "conditions": conditions}})

    def delete(self, kind: Kind, key: Key, options: Deletion) -> Object:
        """What the server answers: the object where it stays or was a pod, else a Status."""
        old = self.get(kind, key)
        meta = old["metadata"]
        for what, wanted, is_now in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.version, meta["resourceVersion"]),
        ):
            if wanted not in (None, is_now):
                why = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({is_now}). "
                why += "The object might have been " + ("deleted and then recreated" if what == "UID" else "modified")
                raise status.conflict(kind.kind, kind.group, key[1], why)
        grace = kinds.grace_period(kind, old, options.grace)
        if grace is not None:
            old = self._dying(kind, old, grace, options.grace)
        elif meta.get("finalizers"):
            if not meta.get("deletionTimestamp"):
                marked = {**meta, "deletionTimestamp": metadata.now(), "deletionGracePeriodSeconds": 0}
                if "generation" in meta:
                    marked["generation"] = meta["generation"] + 1
                old = self.store.put(kind, {**old, "metadata": marked})
            return old
        if old["metadata"].get("deletionGracePeriodSeconds", 0) or old["metadata"].get("finalizers"):
            return old
        self.store.delete(kind, key)
        return old if grace is not None else status.deleted(kind, key[1], meta["uid"])

    @property
    def _schema(self) -> PlanSchema:
        assert self.plans is not None
        return self.plans

    def _dying(self, kind: Kind, old: Object, grace: int, asked: int | None) -> Object:
        """A pod that is being deleted; the time that it has can only be shortened."""
        meta = old["metadata"]
        if "deletionTimestamp" not in meta:
            marked = {"deletionTimestamp": metadata.now(grace), "deletionGracePeriodSeconds": grace}
            return self.store.put(kind, {**old, "metadata": {**meta, **marked}})
        had = meta["deletionGracePeriodSeconds"]
        if asked is None or asked >= had:
            return old
        earlier = metadata.earlier(meta["deletionTimestamp"], had - asked)
        marked = {"deletionTimestamp": earlier, "deletionGracePeriodSeconds": asked}
        return self.store.put(kind, {**old, "metadata": {**meta, **marked}})

    def _update(self, kind: Kind, old: Object, new: Object, subresource: str, manager: str) -> Object:
        given, own = new.get("metadata") or {}, old["metadata"]
        if not metadata.is_typed(given):
            raise status.invalid("", "", "", [status.invalid_value("patch", "…", "labels and annotations are strings")])
        self._same_name(given, old)
        if given.get("resourceVersion") not in (None, "", own["resourceVersion"]):
            raise status.modified(kind, own["name"])
        new = {**new, "metadata": metadata.kept(given, own)}
        if kind == PLANS:
            new = self._schema.updated(new, old, subresource, manager)
        else:
            new = kinds.on_update(kind, new, old, subresource)
        return self._write(kind, old, new, subresource)

    def _write(self, kind: Kind, old: Object, new: Object, subresource: str) -> Object:
        """Puts what is new, if anything is."""
        self._check(kind, new, old, subresource)
        dying = "deletionTimestamp" in new["metadata"] and not new["metadata"].get("deletionGracePeriodSeconds")
        if dying and not new["metadata"].get("finalizers"):
            # The last finalizer was taken off.
            self.store.delete(kind, _key(old))
            return new
        return old if new == old else self.store.put(kind, new)

    def _check(self, kind: Kind, new: Object, old: Object | None = None, subresource: str = "") -> None:
        found = metadata.faults(new["metadata"], lax_name=kind == EVENTS)
        if old is not None and new["metadata"]["uid"] != old["metadata"]["uid"]:
            found.append(status.invalid_value("metadata.uid", new["metadata"]["uid"], "field is immutable"))
        if kind == PLANS:
            found += self._schema.faults(new, old, subresource)
        else:
            found += kinds.faults(kind, new, old)
        if found:
            raise status.invalid(new.get("kind", kind.kind), kind.group, new["metadata"].get("name", ""), found)

    def _same_name(self, given: Object, old: Object) -> None:
        own = old["metadata"]
        if given.get("name", own["name"]) != own["name"]:
            message = f"the name of the object ({given['name']}) does not match the name on the URL ({own['name']})"
            raise status.bad_request(message)
        if given.get("namespace", own.get("namespace")) != own.get("namespace"):
            message = f"the namespace of the object ({given['namespace']}) does not match the namespace on the URL"
            raise status.bad_request(f"{message} ({own.get('namespace')})")


def _key(thing: Object) -> Key:
    meta = thing["metadata"]
    return (meta.get("namespace", ""), meta.get("name", ""))
