"""What is done for a worker besides placing its threads: the spec, which annotations can only narrow."""

from __future__ import annotations

import pytest

from agent.model.spec import Helpers, Spec, Steps
from agent.model.workload import Pod
from agent.planning.optin import steps_of

IRQS, MEMORY, HELPERS = "cpubind.dev/irq-binding", "cpubind.dev/memory-migration", "cpubind.dev/helpers"


def steps(annotations: dict[str, str] | None = None, *, container: str = "vllm", spec: Spec | None = None) -> Steps:
    pod = Pod(uid="u", namespace="prod", name="llm-0", annotations=annotations or {})
    return steps_of(pod, container, spec or Spec())


def test_without_a_pod_and_without_annotations_the_spec_decides() -> None:
    spec = Spec(irq_binding=False, memory_migration=False, helpers=Helpers.CONFINE)
    assert steps_of(None, "", spec) == steps(spec=spec) == Steps(False, False, Helpers.CONFINE)
    assert steps_of(None, "", Spec()) == steps() == Steps(True, True, Helpers.LEAVE)


def test_a_pod_turns_off_what_is_on() -> None:
    assert steps({IRQS: "false"}) == Steps(irq_binding=False)
    assert steps({MEMORY: "false"}) == Steps(memory_migration=False)


def test_a_pod_turns_nothing_on() -> None:
    off = Spec(irq_binding=False, memory_migration=False)
    assert steps({IRQS: "true", MEMORY: "true"}, spec=off) == Steps(False, False)


@pytest.mark.parametrize("spec", [Spec(), Spec(helpers=Helpers.CONFINE)])
@pytest.mark.parametrize("said", ["", "Leave", "Confine"])
def test_helpers_are_confined_when_spec_or_pod_says_so(spec: Spec, said: str) -> None:
    found = steps({HELPERS: said} if said else {}, spec=spec).helpers
    assert (found is Helpers.CONFINE) == ("Confine" in (said, spec.helpers.value))


def test_what_is_said_of_a_container_counts_for_it_in_place_of_what_is_said_of_the_pod() -> None:
    said = {IRQS: "false", f"{IRQS}.vllm": "true", f"{MEMORY}.sidecar": "false"}
    assert steps(said, container="vllm") == Steps()
    assert steps(said, container="sidecar") == Steps(irq_binding=False, memory_migration=False)


def test_in_a_container_of_unknown_name_everything_counts_that_is_said_of_any() -> None:
    assert steps({f"{IRQS}.vllm": "false", IRQS: "true"}, container="") == Steps(irq_binding=False)
    assert steps({f"{HELPERS}.vllm": "Confine"}, container="") == Steps(helpers=Helpers.CONFINE)
