"""From what people write into `spec` to a `Spec`, or the one line that says which field and value can't be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from agent.model.cpuset import MAX_CPUS, CpuListError, CpuSet
from agent.model.node import DeviceType, Topology
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.spec import Helpers, Mode, Rebalance, Role, Spec, Strategy, ThreadRule

AUTO = "Auto"
_E = TypeVar("_E", bound=StrEnum)

COMM_BYTES = 15
"""A thread's name is cut to this (TASK_COMM_LEN is 16, the last byte is a NUL)."""


def parse_spec(raw: object, defaults: Spec | None = None) -> Spec:
    """`spec` as a mapping with the resource's field names; an absent field means `defaults`.

    Raises `Refused` with `InvalidSpec`, naming the first field that can't be used. Unknown fields are refused, too:
    a misspelt one would otherwise be a setting that is not in force.
    """
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise _invalid("spec", raw, "is not a mapping")
    base = defaults or Spec()
    values: dict[str, Any] = {}
    for field, value in raw.items():
        if field not in _FIELDS:
            raise Refused(
                Reason.INVALID_SPEC, f"spec.{printable(str(field), 40)} is not known; known are {', '.join(_FIELDS)}"
            )
        attribute, parse = _FIELDS[field]
        values[attribute] = parse(f"spec.{field}", value)
    return Spec(**{name: values.get(name, getattr(base, name)) for name in Spec.__dataclass_fields__})


def spec_fields(spec: Spec) -> dict[str, Any]:
    """A spec as a mapping with every field, which `parse_spec` reads as the same spec again."""
    fields: dict[str, Any] = {}
    for field, (attribute, _) in _FIELDS.items():
        value = getattr(spec, attribute)
        match value:
            case None:
                fields[field] = AUTO
            case bool():
                fields[field] = value
            case tuple():
                fields[field] = [{"prefix": rule.prefix, "role": rule.role.value} for rule in value]
            case _:
                fields[field] = str(value)
    return fields


def check_spec(spec: Spec, topology: Topology) -> Problem | None:
    """Whether a spec fits this node: reserved CPUs exist, and some CPU is left."""
    existing = topology.online | topology.possible
    if not spec.reserved_cpus <= existing:
        absent = spec.reserved_cpus - existing
        message = f"spec.reservedCpus {spec.reserved_cpus}: CPUs {absent} do not exist on this node ({existing})"
        return Problem(Reason.INVALID_SPEC, printable(message))
    if spec.reserved_cpus and topology.online <= spec.reserved_cpus:
        message = f"spec.reservedCpus {spec.reserved_cpus} leaves no CPU to plan with"
        return Problem(Reason.INVALID_SPEC, printable(message))
    return None


def _invalid(field: str, value: object, complaint: str) -> Refused:
    try:
        shown = printable(repr(value), 60)
    except (ValueError, RecursionError):  # a number of more than 4,300 digits; lists in lists, a thousand deep
        shown = "something huge"
    return Refused(Reason.INVALID_SPEC, f"{field}: {shown} {complaint}")


def _choice(kind: type[_E], *, auto: bool = False) -> Callable[[str, object], _E | None]:
    known = [AUTO] * auto + [member.value for member in kind if member.value != "Unknown"]

    def parse(field: str, value: object) -> _E | None:
        if value not in known:
            raise _invalid(field, value, f"is not one of {', '.join(known)}")
        return None if value == AUTO and auto else kind(value)

    return parse


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(field, value, "is neither true nor false")
    return value


def _cpu_list(field: str, value: object) -> CpuSet:
    # A single CPU written without quotes is an integer in YAML.
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_CPUS
    if not (number or isinstance(value, str)):
        raise _invalid(field, value, 'is not a CPU list such as "0-3,8"')
    try:
        return CpuSet.parse(str(value))
    except CpuListError as error:
        raise Refused(Reason.INVALID_SPEC, f"{field}: {error}") from None


def _rules(field: str, value: object) -> tuple[ThreadRule, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _invalid(field, value, "is not a list of {prefix, role}")
    rules = []
    for index, entry in enumerate(value):
        where = f"{field}[{index}]"
        if not isinstance(entry, Mapping) or set(entry) != {"prefix", "role"}:
            raise _invalid(where, entry, "is not of the form {prefix, role}")
        prefix, role = entry["prefix"], entry["role"]
        if not isinstance(prefix, str) or not prefix or not prefix.isprintable():
            raise _invalid(f"{where}.prefix", prefix, "is not a printable, non-empty text")
        # Interrupts are no threads, so that no thread can have that role.
        roles = [Role.MAIN.value, Role.ACL.value, Role.RELEASE.value]
        if role not in roles:
            raise _invalid(f"{where}.role", role, f"is not one of {', '.join(roles)}")
        rules.append(ThreadRule(prefix.encode()[:COMM_BYTES].decode(errors="ignore"), Role(role)))
    return tuple(rules)


_FIELDS: Mapping[str, tuple[str, Callable[[str, object], object]]] = {
    "mode": ("mode", _choice(Mode)),
    "strategy": ("strategy", _choice(Strategy, auto=True)),
    "deviceType": ("device_type", _choice(DeviceType, auto=True)),
    "reservedCpus": ("reserved_cpus", _cpu_list),
    "includeIsolatedCpus": ("include_isolated_cpus", _flag),
    "rebalance": ("rebalance", _choice(Rebalance)),
    "irqBinding": ("irq_binding", _flag),
    "memoryMigration": ("memory_migration", _flag),
    "uvbBinding": ("uvb_binding", _flag),
    "helpers": ("helpers", _choice(Helpers)),
    "threadRules": ("thread_rules", _rules),
    "allowAnyArchitecture": ("allow_any_architecture", _flag),
}
