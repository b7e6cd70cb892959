"""The mirror of a plan is fed by two threads: the watch, and the publisher with what its writes were answered."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from agent.kube import plan
from agent.kube.plan import PlanResource


def version(number: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "node-a", "uid": "uid", "resourceVersion": str(number)}, "spec": spec}


def test_an_edit_is_not_lost_to_an_answer_that_comes_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No later event would bring it: the watch has told it already."""
    mirror = PlanResource("node-a", pods_listed=lambda: True, changed=lambda: None)
    mirror.replace([version(10, {})])
    answer, edit = version(11, {}), version(12, {"mode": "Disabled"})
    watch = threading.Thread(target=mirror.apply, args=("MODIFIED", edit))
    older = plan._older

    def slowly(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        found = older(one, other)
        if one is answer:
            watch.start()
            watch.join(0.2)
        return found

    monkeypatch.setattr(plan, "_older", slowly)
    mirror.apply("MODIFIED", answer)
    watch.join(10)
    assert mirror.spec() == {"mode": "Disabled"}
