"""What the API server would make of a ValidatingAdmissionPolicy: its expressions, evaluated by Google's CEL library.

No API server of these tests has such policies (they came with Kubernetes 1.30). The rules by which requests are matched
and answers put together are those of the reference of admissionregistration.k8s.io/v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

Object = dict[str, Any]

_VARIABLES = ("request", "object", "oldObject")


@dataclass(frozen=True, slots=True)
class Denied:
    """The answer to a request that the policy does not let pass."""

    messages: tuple[str, ...]
    """Of each validation that failed; why, where an expression could not be evaluated."""


class Policy:
    """A policy that is bound for all requests, with validationActions [Deny]."""

    def __init__(self, document: Object) -> None:
        self._spec = document["spec"]
        assert self._spec["failurePolicy"] == "Fail"
        self._env = cel.NewEnv(variables=dict.fromkeys(_VARIABLES, cel.Type.DYN))

    def decide(self, request: Object) -> Denied | None:
        """None where the request passes. `request` is that of an AdmissionReview (admission.k8s.io/v1)."""
        if not self._is_about(request):
            return None
        given = {**{name: request.get(name) for name in _VARIABLES[1:]}, "request": request}
        errors: list[str] = []
        for condition in self._spec["matchConditions"]:
            value = self._evaluate(condition["expression"], given)
            if value is False:
                return None
            if value is not True:
                errors.append(f"{condition['name']}: {value}")
        if errors:
            return Denied(tuple(errors))
        failed = []
        for validation in self._spec["validations"]:
            value = self._evaluate(validation["expression"], given)
            if value is not True:
                failed.append(validation["message"] if value is False else str(value))
        return Denied(tuple(failed)) if failed else None

    def _is_about(self, request: Object) -> bool:
        resource = request["resource"]["resource"]
        if request.get("subResource"):
            resource += f"/{request['subResource']}"
        return any(
            resource in rule["resources"]
            and request["resource"]["group"] in rule["apiGroups"]
            and request["operation"] in rule["operations"]
            for rule in self._spec["matchConstraints"]["resourceRules"]
        )

    def _evaluate(self, expression: str, given: Object) -> object:
        """True, False, or an error, which this library returns as a value."""
        return self._env.compile(expression).eval(data=given).value()
